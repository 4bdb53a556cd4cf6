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
    let further: Vec<String> = further.iter().map(|flag| flag.replace("DIR", &directory)).collect();
    let name = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
    let all = all.into_iter().filter(|flag| !further.iter().any(|other| name(other) == name(flag)));
    let config = resolved(all.chain(further.clone()));
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

/// A signer of identities by a CA that is that of nothing else.
fn identities(further: &str) -> String {
    format!(
        "apiVersion: portcullis.dev/v1alpha1
kind: PodSignerProfiles
signers:
- signerName: example.com/api
  certFile: pods.crt
  keyFile: pods.key
  usages: [digital signature, client auth]
{further}"
    )
}

fn pki_with_pod_ca() -> Pki {
    let pki = pki();
    for (name, ca) in [("pods", testkit::pki::Ca::new("pods")), ("others", testkit::pki::Ca::new("others"))] {
        pki.write(&format!("{name}.crt"), ca.cert_pem());
        pki.write(&format!("{name}.key"), ca.key_pem());
    }
    pki
}

#[test]
fn the_keys_of_identities_and_records_are_checked_together() {
    const FLAG: &str = "--pod-signer-profiles=DIR/pods.yaml";
    let pki = pki_with_pod_ca();
    let cases: &[(&str, &str, &str)] = &[
        ("Critical", "  podIdentity: Critical\n", ""),
        ("NonCritical", "  podIdentity: NonCritical\n", ""),
        ("another form", "  podIdentity: 'true'\n", "\"true\" is not a form of the PodIdentity extension"),
        (
            "a template",
            "  podIdentity: Critical\n  dnsNames: \"['a.example']\"\n",
            "must not be given with signers[0].podIdentity, which sets all names of a certificate",
        ),
        ("records", "  podIdentity: Critical\n  indexFile: a.index.jsonl\n  crlFile: a.crl\n", ""),
        ("no index", "  podIdentity: Critical\n  crlFile: a.crl\n", "needs indexFile"),
        ("another name", "  podIdentity: Critical\n  indexFile: a.json\n", "is not the name of an index"),
        (
            "no directory",
            "  podIdentity: Critical\n  indexFile: absent/a.index.jsonl\n",
            "its directory does not exist",
        ),
        (
            "a short life",
            "  podIdentity: Critical\n  indexFile: a.index.jsonl\n  crlFile: a.crl\n  crlLifetime: 59m\n",
            "is less than 1h",
        ),
        (
            "a long life",
            "  podIdentity: Critical\n  indexFile: a.index.jsonl\n  crlFile: a.crl\n  crlLifetime: 721h\n",
            "is more than 720h",
        ),
        (
            "a CRL in the place of the record",
            "  podIdentity: Critical\n  indexFile: a.index.jsonl\n  crlFile: ./a.revoked.jsonl\n",
            "signers[0].crlFile: is the file of the index or of one beside it",
        ),
        (
            "two CAs with one file in two spellings",
            "  podIdentity: Critical
  indexFile: a.index.jsonl
  crlFile: a.crl
- signerName: example.com/b
  certFile: others.crt
  keyFile: others.key
  usages: [client auth]
  podIdentity: Critical
  indexFile: b.index.jsonl
  crlFile: workload/../a.crl
",
            "example.com/api signs with another CA, and has the same files",
        ),
        (
            "two signers of a CA",
            "  podIdentity: Critical
  indexFile: a.index.jsonl
- signerName: example.com/b
  certFile: pods.crt
  keyFile: pods.key
  usages: [client auth]
  podIdentity: Critical
",
            "example.com/api signs with the same CA, and has other keys of this kind",
        ),
        (
            "two CAs with one file",
            "  podIdentity: Critical
  indexFile: a.index.jsonl
- signerName: example.com/b
  certFile: others.crt
  keyFile: others.key
  usages: [client auth]
  podIdentity: Critical
  indexFile: a.index.jsonl
",
            "example.com/api signs with another CA, and has the same files",
        ),
    ];
    for (name, keys, expected) in cases {
        let result = resolved_with(&pki, &identities(keys), &[CONTROLLER, FLAG]);
        match result {
            Ok(_) => assert!(expected.is_empty(), "{name}"),
            Err(errors) => assert!(!expected.is_empty() && errors.contains(expected), "{name}: {errors}"),
        }
    }
    let server = identities("  podIdentity: Critical\n").replace("client auth", "server auth");
    let errors = resolved_with(&pki, &server, &[CONTROLLER, FLAG]).unwrap_err();
    assert!(errors.contains("has no client auth, which signers[0].podIdentity is for"), "{errors}");
}

#[test]
fn a_pod_ca_is_that_of_no_other_client() {
    const FLAG: &str = "--pod-signer-profiles=DIR/pods.yaml";
    let pki = pki_with_pod_ca();
    let root = testkit::pki::Ca::new("root");
    let pods = root.intermediate("below");
    pki.write("below.crt", pods.cert_pem());
    pki.write("root.crt", root.cert_pem());
    let result = |flags: &[&str]| resolved_with(&pki, &identities("  podIdentity: Critical\n"), flags);
    let trusted = "--pod-client-ca-file=DIR/pods.crt";
    assert_eq!(
        result(&[CONTROLLER, FLAG, trusted]).unwrap().len(),
        2,
        "a signer, and a warning that it has no rules"
    );
    let of_other = "is that of other clients too, or signs one of theirs, or is signed by one";
    for (name, flags, expected) in [
        ("the CA of users", &["--pod-client-ca-file=DIR/workload/client-ca.crt"][..], of_other),
        (
            "below a CA of users",
            &["--pod-client-ca-file=DIR/below.crt", "--client-ca-file=DIR/root.crt"],
            of_other,
        ),
        (
            "above a CA of users",
            &["--pod-client-ca-file=DIR/root.crt", "--client-ca-file=DIR/below.crt"],
            of_other,
        ),
        (
            "the CA of front proxies",
            &[
                trusted,
                "--requestheader-client-ca-file=DIR/pods.crt",
                "--requestheader-username-headers=X-Remote-User",
            ],
            of_other,
        ),
        ("no file", &["--pod-client-ca-file=DIR/absent.crt"], "absent.crt"),
    ] {
        let errors = result(flags).unwrap_err();
        assert!(errors.contains(expected), "{name}: {errors}");
    }
    // A signer whose CA is that of users.
    let of_users = identities("  podIdentity: Critical\n").replace("pods.", "workload/client-ca.");
    let errors = resolved_with(&pki, &of_users, &[CONTROLLER, FLAG]).unwrap_err();
    assert!(errors.contains("its signer names service accounts"), "{errors}");
}
