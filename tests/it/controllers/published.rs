//! The configuration of the published CAs and of the certificate log: what is refused, and what `check` shows.

use std::net::SocketAddr;
use std::process::{Command, Output};

use super::*;
use crate::gateway::PORTCULLIS;

struct Files {
    pki: Pki,
}

impl Files {
    fn new() -> Self {
        let pki = Pki::new();
        pki.write("ca.crt", pki.clients.cert_pem());
        pki.write("ca.key", pki.clients.key_pem());
        pki.write("leaf.crt", pki.servers.server(&["gateway.example.com"]).cert_pem());
        Self { pki }
    }

    fn portcullis(&self, arguments: &[&str]) -> Output {
        let directory = self.pki.directory.path().display().to_string();
        let arguments = arguments.iter().map(|argument| argument.replace("DIR", &directory));
        Command::new(PORTCULLIS).args(arguments).output().unwrap()
    }

    /// The output of `check` with these flags.
    fn check(&self, further: &[&str]) -> String {
        let mut arguments = vec!["check".to_owned()];
        arguments.extend(flags(&self.pki, SocketAddr::from(([127, 0, 0, 1], 6443))));
        arguments.push("--cluster-signing-cert-file=DIR/ca.crt".to_owned());
        arguments.push("--cluster-signing-key-file=DIR/ca.key".to_owned());
        arguments.extend(further.iter().map(|flag| (*flag).to_owned()));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = self.portcullis(&arguments);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let directory = self.pki.directory.path().display().to_string();
        (text(output.stdout) + &text(output.stderr)).replace(&directory, "DIR")
    }

    fn log(&self, name: &str) {
        let output =
            self.portcullis(&["certs", "log", "init", "--dir", &format!("DIR/{name}"), "--origin", name]);
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn check_shows_whose_cas_are_published() {
    let files = Files::new();
    let both = "--controllers=csrsigning,clustertrustbundle-publishing";
    let text = files.check(&[both, "--cluster-trust-bundle-serving-ca-file=DIR/servers-ca.crt"]);
    let expected = "publishes the CAs of kubernetes.io/kubelet-serving, kubernetes.io/kube-apiserver-client-kubelet, \
                    kubernetes.io/kube-apiserver-client, kubernetes.io/kube-apiserver-serving\n";
    assert!(text.contains(expected), "{text}");
    // Without the signer no CA is in use here.
    let text = files.check(&["--controllers=clustertrustbundle-publishing"]);
    let expected = "clustertrustbundle-publishing publishes nothing without a signer, or \
                    --cluster-trust-bundle-serving-ca-file";
    assert!(text.contains(expected), "{text}");
    let text = files
        .check(&["--controllers=csrsigning", "--cluster-trust-bundle-serving-ca-file=DIR/servers-ca.crt"]);
    let expected = "--cluster-trust-bundle-serving-ca-file has no effect without clustertrustbundle-publishing in --controllers";
    assert!(text.contains(expected) && !text.contains("publishes"), "{text}");
}

#[test]
fn a_certificate_that_no_bundle_may_have_is_refused() {
    let files = Files::new();
    let flag = "--cluster-trust-bundle-serving-ca-file=DIR/leaf.crt";
    let text = files.check(&["--controllers=clustertrustbundle-publishing", flag]);
    assert!(text.contains("DIR/leaf.crt") && text.contains("is not that of a CA"), "{text}");
}

#[test]
fn the_next_ca_of_a_signer_is_the_certificate_of_a_ca() {
    let files = Files::new();
    let check = |next: &str| {
        let profiles = format!(
            "apiVersion: portcullis.dev/v1alpha1\nkind: SignerProfiles\nsigners:\n- signerName: example.com/service\n  \
             certFile: ca.crt\n  keyFile: ca.key\n  trustAnchorsFile: {next}\n  allowedUsages: [client auth]\n"
        );
        files.pki.write("profiles.yaml", profiles);
        let controllers = "--controllers=csrsigning,clustertrustbundle-publishing";
        files.check(&[controllers, "--signer-profiles=DIR/profiles.yaml"])
    };
    let text = check("servers-ca.crt");
    assert!(text.contains("kubernetes.io/kube-apiserver-client, example.com/service\n"), "{text}");
    let text = check("leaf.crt");
    assert!(text.contains("trustAnchorsFile") && text.contains("is not that of a CA"), "{text}");
    assert!(text.contains("DIR/profiles.yaml:7"), "{text}");
}

#[test]
fn both_controllers_of_a_signer_have_one_bundle() {
    let files = Files::new();
    files.pki.write("service.crt", files.pki.front.cert_pem());
    files.pki.write("service.key", files.pki.front.key_pem());
    let service = "signerName: example.com/service\n  certFile: service.crt\n  keyFile: service.key\n";
    let write = |name: &str, kind: &str, keys: &str| {
        let text =
            format!("apiVersion: portcullis.dev/v1alpha1\nkind: {kind}\nsigners:\n- {service}  {keys}\n");
        files.pki.write(name, text);
    };
    write("profiles.yaml", "SignerProfiles", "allowedUsages: [client auth]");
    let check = |next: &str| {
        let keys = format!(
            "usages: [client auth]\n  uris: \"['spiffe://example.com/a']\"\n  trustAnchorsFile: {next}"
        );
        write("pods.yaml", "PodSignerProfiles", &keys);
        files.check(&[
            "--controllers=csrsigning,podcertificaterequest-signing,clustertrustbundle-publishing",
            "--signer-profiles=DIR/profiles.yaml",
            "--pod-signer-profiles=DIR/pods.yaml",
        ])
    };
    let text = check("servers-ca.crt");
    assert!(text.contains("kubernetes.io/kube-apiserver-client, example.com/service\n"), "{text}");
    let text = check("leaf.crt");
    assert!(text.contains("trustAnchorsFile") && text.contains("is not that of a CA"), "{text}");
    assert!(text.contains("DIR/pods.yaml:"), "{text}");
}

#[test]
fn a_log_that_cannot_be_written_with_its_key_is_refused() {
    let files = Files::new();
    files.log("log");
    files.log("other");
    let check =
        |name: &str| files.check(&["--controllers=csrsigning", &format!("--certificate-log=DIR/{name}")]);
    let text = check("log");
    assert!(text.contains("signs") && !text.contains("certificate-log"), "{text}");
    let text = check("absent");
    assert!(text.contains("--certificate-log") && text.contains("DIR/absent.key"), "{text}");
    let path = |name: &str| files.path().join(name);
    std::fs::copy(path("other.key"), path("log.key")).unwrap();
    let text = check("log");
    assert!(text.contains("DIR/log.vkey: is not the public key of the key beside it"), "{text}");
    std::fs::copy(path("other.vkey"), path("log.vkey")).unwrap();
    let text = check("log");
    assert!(text.contains("DIR/log/checkpoint: has no signature of the key other"), "{text}");
    std::fs::remove_dir_all(path("other")).unwrap();
    let text = check("other");
    assert!(text.contains("create it: portcullis certs log init --dir DIR --origin NAME"), "{text}");
    let text = files.check(&["--controllers=csrapproving", "--certificate-log=DIR/absent"]);
    assert!(text.contains("--certificate-log has no effect without csrsigning or podcertificaterequest-signing in --controllers"), "{text}");
}

impl Files {
    fn path(&self) -> &Path {
        self.pki.directory.path()
    }
}
