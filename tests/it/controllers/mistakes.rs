//! Controller configurations that are refused at startup.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use portcullis::internal::Clock;
use portcullis::internal::InputReader;
use portcullis::internal::resolve;
use testkit::pki::Ca;

use super::*;
use crate::gateway::resolved;

/// The errors for these controller flags; `DIR` replaces the directory of the files.
fn refused(pki: &Pki, further: &[&str]) -> String {
    let directory = pki.directory.path().display().to_string();
    let all = flags(pki, SocketAddr::from(([127, 0, 0, 1], 6443)));
    let further = further.iter().map(|flag| flag.replace("DIR", &directory));
    let errors = resolved(all.into_iter().chain(further))
        .expect_err("the configuration should be refused")
        .to_string();
    errors.replace(&directory, "DIR")
}

fn pki() -> Pki {
    let (pki, other) = (Pki::new(), Ca::new("other"));
    pki.write("ca.crt", pki.clients.cert_pem());
    pki.write("ca.key", pki.clients.key_pem());
    pki.write("two.crt", pki.clients.cert_pem() + &other.cert_pem());
    pki.write("other.key", other.key_pem());
    let expired = Ca::build("expired").expired(1_600_000_000).issue_ca();
    pki.write("expired.crt", expired.cert_pem());
    pki.write("expired.key", expired.key_pem());
    let early = Ca::build("early").not_yet_valid(4_000_000_000).issue_ca();
    pki.write("early.crt", early.cert_pem());
    pki.write("early.key", early.key_pem());
    let clients = Ca::build("clients").eku(&["1.3.6.1.5.5.7.3.2"]).issue_ca();
    pki.write("clients.crt", clients.cert_pem());
    pki.write("clients.key", clients.key_pem());
    pki.write(
        "for-servers.yaml",
        "apiVersion: portcullis.dev/v1alpha1
kind: SignerProfiles
signers:
- signerName: example.com/service
  certFile: clients.crt
  keyFile: clients.key
  allowedUsages: [client auth, server auth]
",
    );
    pki.write(
        "encrypted.key",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    pki
}

const CERT: &str = "--cluster-signing-cert-file=DIR/ca.crt";
const KEY: &str = "--cluster-signing-key-file=DIR/ca.key";

#[test]
fn authorities_that_cannot_sign_are_refused() {
    let pki = pki();
    let cases: &[(&[&str], &str)] = &[
        (&["--controllers=csrsinging,*"], "\"csrsinging\" is not in the list of known controllers"),
        (&["--controllers=csrsigning", CERT], "\"cluster-signing\": cannot specify cert without key"),
        (&["--controllers=csrsigning", KEY], "\"cluster-signing\": cannot specify key without cert"),
        (
            &["--controllers=csrsigning", "--cluster-signing-legacy-unknown-cert-file=DIR/ca.crt"],
            "\"cluster-signing-legacy-unknown\": cannot specify cert without key",
        ),
        (
            &[
                "--controllers=csrsigning",
                CERT,
                KEY,
                "--cluster-signing-kubelet-client-cert-file=DIR/ca.crt",
                "--cluster-signing-kubelet-client-key-file=DIR/ca.key",
            ],
            "cannot specify --cluster-signing-{cert,key}-file and other --cluster-signing-*-file flags at the same time",
        ),
        (
            &["--controllers=csrsigning", "--cluster-signing-cert-file=DIR/two.crt", KEY],
            "expected 1 certificate, found 2",
        ),
        (
            &["--controllers=csrsigning", CERT, "--cluster-signing-key-file=DIR/other.key"],
            "private key does not match public key",
        ),
        (&["--controllers=csrsigning", "--cluster-signing-cert-file=DIR/none.crt", KEY], "No such file"),
        (
            &[
                "--controllers=csrsigning",
                "--cluster-signing-cert-file=DIR/expired.crt",
                "--cluster-signing-key-file=DIR/expired.key",
            ],
            "the CA certificate has expired: NotAfter=2020-",
        ),
        (
            &[
                "--controllers=csrsigning",
                "--cluster-signing-cert-file=DIR/early.crt",
                "--cluster-signing-key-file=DIR/early.key",
            ],
            "the CA certificate is not valid yet: NotBefore=2",
        ),
        (
            &[
                "--controllers=csrsigning",
                "--cluster-signing-cert-file=DIR/clients.crt",
                "--cluster-signing-key-file=DIR/clients.key",
            ],
            "kubernetes.io/kubelet-serving: the CA certificate allows client auth, but not server auth",
        ),
        (
            &["--controllers=csrsigning", "--signer-profiles=DIR/for-servers.yaml"],
            "example.com/service: the CA certificate allows client auth, but not server auth",
        ),
        (
            &["--controllers=csrsigning", CERT, "--cluster-signing-key-file=DIR/encrypted.key"],
            "encrypted keys are not supported: decrypt it",
        ),
        (
            &["--controllers=csrcleaner", "--leader-elect-renew-deadline=15s"],
            "leaseDuration must be greater than renewDeadline",
        ),
        (
            &["--controllers=csrcleaner", "--leader-elect-renew-deadline=2400ms"],
            "renewDeadline must be greater than retryPeriod*JitterFactor",
        ),
        (
            &["--controllers=csrcleaner", "--leader-elect-resource-name="],
            "--leader-elect-resource-name: is required",
        ),
    ];
    for (flags, expected) in cases {
        let errors = refused(&pki, flags);
        assert!(errors.contains(expected), "{flags:?}: {errors}");
        assert!(errors.starts_with("the configuration has 1 error:"), "{flags:?}: {errors}");
    }
}

#[test]
fn unused_authority_files_are_not_read() {
    let pki = pki();
    let directory = pki.directory.path().display().to_string();
    let all = flags(&pki, SocketAddr::from(([127, 0, 0, 1], 6443)));
    let further = [
        "--controllers=csrcleaner",
        "--cluster-signing-cert-file=DIR/none",
        "--cluster-signing-key-file=DIR/none",
    ]
    .map(|flag| flag.replace("DIR", &directory));
    let resolved = resolved(all.into_iter().chain(further)).unwrap();
    let expected = "--cluster-signing-cert-file has no effect without csrsigning in --controllers";
    assert!(resolved.warnings.iter().any(|warning| warning == expected), "{:?}", resolved.warnings);
}

#[test]
fn an_authority_is_reloaded_only_when_its_files_have_changed() {
    let pki = pki();
    let directory = pki.directory.path().display().to_string();
    let further = ["--controllers=csrsigning", CERT, KEY].map(|flag| flag.replace("DIR", &directory));
    let all = flags(&pki, SocketAddr::from(([127, 0, 0, 1], 6443))).into_iter().chain(further);
    let mut inputs = InputReader::default();
    let parsed = crate::gateway::parse(all);
    let mut authority = || {
        let settings = resolve(&parsed, &mut inputs).unwrap().settings;
        Arc::clone(&settings.clusters[0].controllers.as_ref().unwrap().signers[0].authority)
    };
    let first = authority();
    // The key may be on a PKCS#11 token, which a reload of other settings must not access.
    assert!(Arc::ptr_eq(&first, &authority()));
    let next = Ca::new("next");
    pki.write("ca.crt", next.cert_pem());
    pki.write("ca.key", next.key_pem());
    let second = authority();
    assert_ne!(second.certificate_pem(), first.certificate_pem());
    assert!(Arc::ptr_eq(&second, &authority()));
}

#[test]
fn an_authority_that_expires_while_in_use_does_not_block_other_changes() {
    let pki = pki();
    let directory = pki.directory.path().display().to_string();
    let further = ["--controllers=csrsigning", CERT, KEY].map(|flag| flag.replace("DIR", &directory));
    let all = flags(&pki, SocketAddr::from(([127, 0, 0, 1], 6443))).into_iter().chain(further);
    let parsed = crate::gateway::parse(all);
    let late = Arc::new(AtomicBool::new(false));
    let is_late = Arc::clone(&late);
    let clock = Clock::from_fn(move || {
        let of_all =
            if is_late.load(Ordering::Relaxed) { Duration::from_hours(24 * 365_000) } else { Duration::ZERO };
        Clock::system().now() + of_all
    });
    let mut inputs = InputReader::new(clock.clone());
    let reports = |warnings: &[String]| {
        warnings.iter().any(|warning| warning.contains("the CA certificate has expired"))
    };
    assert!(!reports(&resolve(&parsed, &mut inputs).unwrap().warnings));
    late.store(true, Ordering::Relaxed);
    assert!(reports(&resolve(&parsed, &mut inputs).unwrap().warnings));
    // At startup the same file is an error.
    let refused = resolve(&parsed, &mut InputReader::new(clock)).unwrap_err().to_string();
    assert!(refused.contains("the CA certificate has expired"), "{refused}");
}

#[test]
fn every_mistake_in_signer_profiles_is_told_with_its_line() {
    let pki = pki();
    pki.write(
        "profiles.yaml",
        "apiVersion: portcullis.dev/v1alpha1
kind: SignerProfiles
signers:
- signerName: kubernetes.io/mine
  certFile: ca.crt
  keyFile: ca.key
  allowedUsages: [client auth]
- signerName: example.com/a
  certFile: ca.crt
  allowedUsages: [client auth, flying]
  requiredUsages: [server auth]
  organisations: [x]
- signerName: example.com/a
  certFile: ca.crt
  keyFile: other.key
  commonNames: ['a*b']
  ipRanges: [10.0.0.0]
  allowedUsages: [client auth]
  maxDuration: 5m
- signerName: example.com/b
  certFile: ca.crt
  keyFile: ca.key
- signerName: example.com/c
  certFile: ca.crt
  keyFile: ca.key
  allowedUsages: [digital signature, key encipherment]
- signerName: example.com/d
  certFile: ca.crt
  keyFile: ca.key
  allowedUsages: [client auth, cert sign]
",
    );
    let errors = refused(&pki, &["--controllers=csrsigning", "--signer-profiles=DIR/profiles.yaml"]);
    insta::assert_snapshot!(errors);
}

#[test]
fn check_lists_the_controllers_that_would_run() {
    let pki = pki();
    let directory = pki.directory.path().display().to_string();
    let all = flags(&pki, SocketAddr::from(([127, 0, 0, 1], 6443)));
    let further = ["--controllers=*,-csrcleaner", CERT, KEY].map(|flag| flag.replace("DIR", &directory));
    let output = std::process::Command::new(crate::gateway::PORTCULLIS)
        .arg("check")
        .args(all.into_iter().chain(further))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let reports = |line: &str| text.lines().any(|found| found.starts_with(line));
    for line in [
        "runs      csrsigning, csrapproving, while the lease kube-system/portcullis-controllers is held",
        "signs     kubernetes.io/kubelet-serving, by CN=clients, until 20",
        "          kubernetes.io/kube-apiserver-client-kubelet, by CN=clients, until 20",
        "          kubernetes.io/kube-apiserver-client, by CN=clients, until 20",
        "          kubernetes.io/legacy-unknown, by CN=clients, until 20",
    ] {
        assert!(reports(line), "{line} is missing in\n{text}");
    }
}
