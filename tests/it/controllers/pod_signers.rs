//! Files of signers for pods: the sample is valid, and an error names the line of each mistake.

use std::net::SocketAddr;

use super::*;
use crate::gateway::resolved;

const CONTROLLER: &str = "--controllers=podcertificaterequest-signing";

fn pki() -> Pki {
    let pki = Pki::new();
    std::fs::create_dir(pki.directory.path().join("workload")).unwrap();
    for (name, content) in
        [("client-ca.crt", pki.clients.cert_pem()), ("client-ca.key", pki.clients.key_pem())]
    {
        pki.write(&format!("workload/{name}"), content);
    }
    pki
}

/// The result for a file of this content; `DIR` replaces the directory of the files.
fn resolved_with(pki: &Pki, content: &str, further: &[&str]) -> Result<Vec<String>, String> {
    pki.write("pods.yaml", content);
    let directory = pki.directory.path().display().to_string();
    let all = flags(pki, SocketAddr::from(([127, 0, 0, 1], 6443)));
    let further = further.iter().map(|flag| flag.replace("DIR", &directory));
    let config = resolved(all.into_iter().chain(further));
    let config = config.map_err(|errors| errors.to_string().replace(&directory, "DIR"))?;
    let controllers = config.settings.clusters[0].controllers.as_ref();
    let signers = controllers.into_iter().flat_map(|controllers| &controllers.pod_signers);
    let warnings = config.warnings.iter().map(|warning| warning.replace(&directory, "DIR"));
    Ok(signers.map(|signer| signer.name.as_str().to_owned()).chain(warnings).collect())
}

#[test]
fn the_sample_is_valid_and_check_lists_its_signer() {
    let pki = pki();
    let sample = include_str!("../../../certs/workload.yaml");
    let flag = "--pod-signer-profiles=DIR/pods.yaml";
    assert_eq!(resolved_with(&pki, sample, &[CONTROLLER, flag]), Ok(vec!["example.com/workload".to_owned()]));
    let directory = pki.directory.path().display().to_string();
    let output = std::process::Command::new(crate::gateway::PORTCULLIS)
        .arg("check")
        .args(flags(&pki, SocketAddr::from(([127, 0, 0, 1], 6443))))
        .args([CONTROLLER, &flag.replace("DIR", &directory)])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "runs      podcertificaterequest-signing, while the lease kube-system/portcullis-controllers is held",
        "signs     example.com/workload, by CN=clients, until 20",
    ] {
        assert!(text.lines().any(|found| found.starts_with(line)), "{line} is missing in\n{text}");
    }
}

#[test]
fn a_controller_without_signers_and_signers_without_their_controller_are_warned_about() {
    let pki = pki();
    let sample = include_str!("../../../certs/workload.yaml");
    let warnings = |further: &[&str]| resolved_with(&pki, sample, further).unwrap().join("\n");
    let text = warnings(&[CONTROLLER]);
    assert!(
        text.contains("podcertificaterequest-signing signs nothing without --pod-signer-profiles"),
        "{text}"
    );
    let text = warnings(&["--controllers=csrcleaner", "--pod-signer-profiles=DIR/pods.yaml"]);
    assert!(text.contains("has no effect without podcertificaterequest-signing in --controllers"), "{text}");
}

#[test]
fn every_mistake_in_pod_signer_profiles_is_told_with_its_line() {
    let pki = pki();
    let clients = testkit::pki::Ca::build("clients").eku(&["1.3.6.1.5.5.7.3.2"]).issue_ca();
    pki.write("clients.crt", clients.cert_pem());
    pki.write("clients.key", clients.key_pem());
    let errors = resolved_with(
        &pki,
        "apiVersion: portcullis.dev/v1alpha1
kind: PodSignerProfiles
signers:
- signerName: kubernetes.io/kube-apiserver-client-pod
  certFile: workload/client-ca.crt
  keyFile: workload/client-ca.key
  usages: [client auth]
  uris: \"['spiffe://example.com/a']\"
- signerName: example.com/a
  certFile: workload/client-ca.crt
  usages: [client auth, flying]
  keyTypes: [ECDSAP256, RSA2048]
  maxDuration: 30m
  userAnnotations: [purpose]
  rules:
  - expression: \"'a'\"
  - message: never
  - expression: request.spec.podUid == ''
  - expresion: 'true'
  commonName: \"1\"
  organizations: \"'a'\"
  uri: x
- signerName: example.com/a
  certFile: clients.crt
  keyFile: clients.key
  usages: [server auth]
  dnsNames: \"[namespace.metadata.name]\"
- signerName: example.com/b
  certFile: clients.crt
  keyFile: clients.key
  usages: [client auth, server auth]
  maxDuration: 2185h
- signerName: example.com/c
  certFile: clients.crt
  keyFile: clients.key
  usages: [digital signature]
  dnsNames: \"[]\"
- signerName: example.com/d
  certFile: clients.crt
  keyFile: clients.key
  usages: [client auth, server auth]
  dnsNames: \"[]\"
- signerName: example.com/e
  certFile: clients.crt
  keyFile: clients.key
  usages: [client auth, cert sign]
  dnsNames: \"[]\"
",
        &[CONTROLLER, "--pod-signer-profiles=DIR/pods.yaml"],
    );
    insta::assert_snapshot!(errors.unwrap_err());
}
