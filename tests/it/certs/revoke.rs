//! `certs revoke`: the CRL as openssl and Go read it, the deny list, and what the gateway makes of both.

use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use testkit::client::Client;
use testkit::go_program::GoProgram;
use testkit::pki::{Ca, usage};
use testkit::{FakeBackend, Gateway, Pki, flags};

use super::{authorities, certs, mode, names, shell};
use crate::gateway::InProcess as _;

fn issue(dir: &Path, name: &str) {
    certs(dir, &["issue", "client", "--cn", name, "-O", "dev", "--out", name]).succeeds();
}

fn json_of(dir: &Path, arguments: &[&str]) -> Value {
    let arguments: Vec<&str> = arguments.iter().copied().chain(["-o", "json"]).collect();
    serde_json::from_str(&certs(dir, &arguments).succeeds()).unwrap()
}

/// The serial number that openssl prints, and the CRL as openssl prints it.
fn serial(dir: &Path, name: &str) -> String {
    let line = shell(dir, &format!("openssl x509 -noout -serial -in {name}.crt"));
    line.trim().split_once('=').unwrap().1.to_owned()
}

fn crl_text(dir: &Path, file: &str) -> String {
    shell(dir, &format!("openssl crl -in {file} -noout -text -CAfile pki/client-ca.crt 2>&1"))
}

#[test]
fn a_crl_is_read_by_openssl_and_go() {
    for kind in ["ecdsa-p256", "ecdsa-p384", "rsa-3072", "ed25519"] {
        let directory = tempfile::tempdir().unwrap();
        let dir = directory.path();
        certs(dir, &["init", "--key-type", kind]).succeeds();
        for name in ["alice", "bob", "carol"] {
            issue(dir, name);
        }
        let report =
            json_of(dir, &["revoke", "alice.crt", "--reason", "keyCompromise", "--crl", "client.crl"]);
        assert_eq!(report["crl"]["entries"], 1, "{report}");
        let first: u64 = report["crl"]["number"].as_str().unwrap().parse().unwrap();
        let of_bob = serial(dir, "bob");
        let report =
            json_of(dir, &["revoke", "--serial", &of_bob, "--crl", "client.crl", "--next-update", "7d"]);
        assert_eq!(report["crl"]["entries"], 2);
        let second: u64 = report["crl"]["number"].as_str().unwrap().parse().unwrap();
        assert!(second > first, "{first} {second}");

        let text = crl_text(dir, "client.crl");
        for part in [
            "verify OK",
            "Version 2 (0x1)",
            "X509v3 Authority Key Identifier",
            "X509v3 CRL Number",
            &format!("Serial Number: {}", serial(dir, "alice")),
            &format!("Serial Number: {of_bob}"),
            "Key Compromise",
        ] {
            assert!(text.contains(part), "{kind}: {part} is not in {text}");
        }
        assert_eq!(text.matches("X509v3 CRL Reason Code").count(), 1, "unspecified is left out: {text}");
        for (name, revoked) in [("alice", true), ("bob", true), ("carol", false)] {
            let line = format!(
                "cat pki/ca.crt pki/client-ca.crt > all.crt; openssl verify -crl_check -CAfile all.crt \
                 -CRLfile client.crl {name}.crt 2>&1 || true"
            );
            assert_eq!(shell(dir, &line).contains("certificate revoked"), revoked, "{kind} {name}");
        }
        let Some(go) = GoProgram::build("crls") else { continue };
        let der = |line: &str| {
            STANDARD
                .decode(shell(dir, &format!("{line} | base64 -w0")).trim())
                .map(|der| STANDARD.encode(der))
                .unwrap()
        };
        let question = json!({
            "crl": der("openssl crl -in client.crl -outform der"),
            "ca": der("openssl x509 -in pki/client-ca.crt -outform der"),
        });
        let answer = &go.ask(&[question])[0];
        assert_eq!((&answer["parse"], &answer["signature"]), (&json!(""), &json!("")), "{kind}");
        assert_eq!(answer["number"], second.to_string());
        let entries = answer["entries"].as_array().unwrap();
        let found: Vec<_> =
            entries.iter().map(|entry| (entry["serial"].as_str().unwrap(), &entry["reason"])).collect();
        let number = |name| serial(dir, name).to_lowercase().trim_start_matches('0').to_owned();
        assert_eq!(found, [(number("alice").as_str(), &json!(1)), (number("bob").as_str(), &json!(0))]);
        let week = answer["nextUpdate"].as_i64().unwrap() - answer["thisUpdate"].as_i64().unwrap();
        assert_eq!(week, 7 * 86_400);
    }
}

#[test]
fn certificates_are_named_by_file_serial_number_digest_or_user() {
    let directory = authorities();
    let dir = directory.path();
    for name in ["alice", "bob", "carol", "dave"] {
        issue(dir, name);
    }
    certs(dir, &["issue", "client", "--cn", "carol", "--out", "carol2"]).succeeds();
    let digest = shell(dir, "openssl x509 -noout -fingerprint -sha256 -in bob.crt");
    let digest = digest.trim().split_once('=').unwrap().1;
    let report = json_of(
        dir,
        &["revoke", "alice.crt", "--sha256", digest, "--user", "carol", "--deny-list", "denied"],
    );
    let subjects: Vec<_> = report["revoked"].as_array().unwrap().iter().map(|one| &one["subject"]).collect();
    assert_eq!(subjects, ["O=dev, CN=alice", "O=dev, CN=bob", "O=dev, CN=carol", "CN=carol"]);
    // Again: nothing is written twice.
    let before = fs::read_to_string(dir.join("denied")).unwrap();
    assert_eq!(before.lines().count(), 4, "{before}");
    assert!(before.starts_with("X509SHA256="), "{before}");
    let report = json_of(dir, &["revoke", "alice.crt", "--user", "carol", "--deny-list", "denied"]);
    assert_eq!(report["revoked"], json!([]));
    assert_eq!(report["alreadyRevoked"].as_array().unwrap().len(), 3);
    assert_eq!(fs::read_to_string(dir.join("denied")).unwrap(), before);
    // The index shows them.
    let listed = certs(dir, &["index", "--ca-cert", "pki/client-ca.crt"]).succeeds();
    assert_eq!(listed.matches("revoked 2").count(), 4, "{listed}");
    assert_eq!(listed.matches("(unspecified)").count(), 4, "{listed}");
    assert!(listed.lines().any(|line| line.contains("CN=dave") && line.ends_with("valid")), "{listed}");
    let revoked = json_of(dir, &["index", "--revoked"]);
    assert_eq!(revoked.as_array().unwrap().len(), 4);
    assert_eq!(
        (&revoked[0]["status"], &revoked[0]["revocationReason"]),
        (&json!("revoked"), &json!("unspecified"))
    );
    assert_eq!(json_of(dir, &["index", "--expires-within", "1d"]), json!([]));
    let client = ["index", "--ca-cert", "pki/client-ca.crt", "--expires-within", "91d"];
    assert_eq!(json_of(dir, &client).as_array().unwrap().len(), 5);
    assert_eq!(certs(dir, &["index", "--expires-within", "1d"]).succeeds(), "no such certificates\n");
    let record = fs::read_to_string(dir.join("pki/client-ca.revoked.jsonl")).unwrap();
    assert_eq!(record.lines().count(), 4);
    assert_eq!(mode(&dir.join("pki/client-ca.revoked.jsonl")), 0o600);
}

#[test]
fn nothing_is_lost_when_a_crl_is_written_again() {
    let directory = authorities();
    let dir = directory.path();
    for name in ["alice", "bob"] {
        issue(dir, name);
    }
    // A CRL of another tool, with a certificate that the record does not know.
    let config = "[ca]\ndefault_ca=a\n[a]\ndatabase=db\ncrlnumber=number\ndefault_md=sha256\n\
                  default_crl_days=1\ncrl_extensions=e\n[e]\nauthorityKeyIdentifier=keyid\n";
    fs::write(dir.join("openssl.cnf"), config).unwrap();
    fs::write(dir.join("db"), "R\t350101000000Z\t260101000000Z,keyCompromise\t0BADCAFE\tunknown\t/CN=old\n")
        .unwrap();
    fs::write(dir.join("number"), "7FFFFFFFFFFF\n").unwrap();
    shell(
        dir,
        "openssl ca -config openssl.cnf -gencrl -keyfile pki/client-ca.key -cert pki/client-ca.crt -out client.crl 2>&1; \
         openssl crl -in client.crl -outform der -out client.der; chmod 644 client.crl",
    );
    let report = json_of(dir, &["revoke", "alice.crt", "--crl", "client.crl"]);
    assert_eq!(report["crl"]["number"], "140737488355328", "one more than the old one");
    let text = crl_text(dir, "client.crl");
    assert!(text.contains("0BADCAFE") && text.contains("Key Compromise"), "{text}");
    assert_eq!(mode(&dir.join("client.crl")), 0o644);
    // Signed again, without a new entry; in DER if the old one was.
    json_of(dir, &["revoke", "--crl", "client.der"]);
    assert_eq!(fs::read(dir.join("client.der")).unwrap()[0], 0x30);
    let text = shell(dir, "openssl crl -inform der -in client.der -noout -text");
    assert_eq!(text.matches("Serial Number").count(), 2, "{text}");
    // Of a lost file, the record remains.
    fs::remove_file(dir.join("client.crl")).unwrap();
    let report = json_of(dir, &["revoke", "bob.crt", "--crl", "client.crl"]);
    assert_eq!(report["crl"]["entries"], 2);
    // An empty CRL.
    let report = json_of(dir, &["revoke", "--authority", "serving", "--crl", "serving.crl"]);
    assert_eq!(report["crl"]["entries"], 0);
    let text = shell(dir, "openssl crl -in serving.crl -noout -text -CAfile pki/serving-ca.crt 2>&1");
    assert!(text.contains("verify OK") && text.contains("No Revoked Certificates"), "{text}");
    // The root revokes a CA.
    let report = json_of(
        dir,
        &[
            "revoke",
            "pki/client-ca.crt",
            "--authority",
            "root",
            "--reason",
            "cACompromise",
            "--crl",
            "root.crl",
        ],
    );
    assert_eq!(report["crl"]["issuer"], "CN=portcullis root CA");
}

#[test]
fn what_cannot_be_revoked_is_an_error_and_nothing_is_written() {
    let directory = authorities();
    let dir = directory.path();
    issue(dir, "alice");
    certs(dir, &["issue", "serving", "--cn", "gw", "--dns", "gw", "--out", "gw"]).succeeds();
    fs::write(dir.join("broken"), "user=alice\nnonsense\n").unwrap();
    certs(dir, &["revoke", "--authority", "serving", "--crl", "serving.crl"]).succeeds();
    let weak = Ca::build("weak").key_usage(usage::CERT_SIGN).issue_ca();
    fs::write(dir.join("weak.crt"), weak.cert_pem()).unwrap();
    fs::write(dir.join("weak.key"), weak.key_pem()).unwrap();
    let before = (names(dir), names(&dir.join("pki")));
    for (arguments, code, text) in [
        (&["revoke", "alice.crt"][..], 64, "--crl FILE, --deny-list FILE, or both"),
        (&["revoke", "--deny-list", "d"], 64, "FILE, --serial, --sha256 or --user"),
        (&["revoke", "gw.crt", "--crl", "c"], 1, "gw.crt: it was not signed by portcullis client CA"),
        (&["revoke", "alice.key", "--crl", "c"], 1, "alice.key: no certificate in it"),
        (&["revoke", "none.crt", "--crl", "c"], 1, "none.crt: "),
        (&["revoke", "--serial", "00ff", "--crl", "c"], 1, "00ff: the index has no such certificate"),
        (&["revoke", "--serial", "xyz", "--crl", "c"], 1, "--serial: give hexadecimal digits"),
        (&["revoke", "--sha256", "00ff", "--crl", "c"], 1, "00ff: the index has no such certificate"),
        (
            &["revoke", "--user", "bob", "--crl", "c"],
            1,
            "bob: the index has no certificate with this common name",
        ),
        (&["revoke", "alice.crt", "--deny-list", "broken"], 1, "broken: line 2: give one of"),
        (&["revoke", "alice.crt", "--crl", "serving.crl"], 1, "serving.crl: a CRL of another CA"),
        (&["revoke", "alice.crt", "--crl", "alice.key"], 1, "alice.key: not a file with one CRL"),
        (&["revoke", "alice.crt", "--crl", "none/c"], 1, "none/c: the directory none does not exist"),
        (&["revoke", "--dir", "none", "--crl", "c"], 1, "none/client-ca.crt: there is no such CA"),
        (
            &["revoke", "--ca-cert", "weak.crt", "--ca-key", "weak.key", "--crl", "c"],
            1,
            "does not allow cRLSign",
        ),
    ] {
        certs(dir, arguments).fails(code, &[text]);
        let mut left = (names(dir), names(&dir.join("pki")));
        // The lock of an index may be left.
        left.0.retain(|name| name != "weak.index.jsonl");
        assert_eq!(left, before, "{arguments:?}");
    }
}

/// Two installations whose CAs have the same names.
#[test]
fn a_ca_revokes_only_what_it_has_signed_whatever_its_name() {
    let directory = authorities();
    let dir = directory.path();
    issue(dir, "alice");
    certs(dir, &["init", "--dir", "other", "--name", "portcullis"]).succeeds();
    certs(dir, &["issue", "client", "--cn", "bob", "--dir", "other", "--out", "bob"]).succeeds();
    certs(dir, &["revoke", "bob.crt", "--dir", "other", "--crl", "other.crl"]).succeeds();
    let before = fs::read(dir.join("other.crl")).unwrap();
    let key_id = |file: &str| {
        let text = shell(dir, &format!("openssl x509 -noout -ext subjectKeyIdentifier -in {file}"));
        text.lines().nth(1).unwrap().trim().replace(':', "").to_lowercase()
    };
    for output in ["--crl", "--deny-list"] {
        certs(dir, &["revoke", "bob.crt", output, "out"]).fails(
            1,
            &[
                "bob.crt: it was not signed by portcullis client CA, the CA of pki/client-ca.crt, but by another CA",
                &key_id("pki/client-ca.crt"),
                &key_id("other/client-ca.crt"),
            ],
        );
    }
    certs(dir, &["revoke", "alice.crt", "--crl", "other.crl"]).fails(1, &["other.crl: a CRL of another CA"]);
    assert!(!dir.join("out").exists() && !dir.join("pki/client-ca.revoked.jsonl").exists());
    assert_eq!(fs::read(dir.join("other.crl")).unwrap(), before);
    // Of a former key: by its certificate in the bundle, then by the index alone.
    certs(dir, &["renew-ca", "client", "--new-key"]).succeeds();
    fs::rename(dir.join("pki/client-ca.index.jsonl"), dir.join("index")).unwrap();
    certs(dir, &["revoke", "alice.crt", "--crl", "by-bundle"]).succeeds();
    fs::remove_file(dir.join("pki/client-ca.bundle.crt")).unwrap();
    certs(dir, &["revoke", "alice.crt", "--crl", "unknown"]).fails(1, &["alice.crt: it was not signed by"]);
    fs::rename(dir.join("index"), dir.join("pki/client-ca.index.jsonl")).unwrap();
    certs(dir, &["revoke", "alice.crt", "--crl", "by-index"]).succeeds();
}

/// The gateway reads the CRL under one name, also after the CA has a new key and its former certificate is gone.
#[test]
fn the_crl_of_a_former_key_is_moved_away_and_signed_anew() {
    let directory = authorities();
    let dir = directory.path();
    issue(dir, "alice");
    certs(dir, &["revoke", "alice.crt", "--crl", "client.crl"]).succeeds();
    let of_alice = serial(dir, "alice");
    certs(dir, &["renew-ca", "client", "--new-key"]).succeeds();
    fs::remove_file(dir.join("pki/client-ca.bundle.crt")).unwrap();
    let before = fs::read(dir.join("client.crl")).unwrap();
    certs(dir, &["revoke", "--crl", "client.crl"]).fails(
        1,
        &[
            "client.crl: a CRL of another CA",
            "move it away: the new CRL has the entries of pki/client-ca.revoked.jsonl",
        ],
    );
    assert_eq!(fs::read(dir.join("client.crl")).unwrap(), before);
    fs::rename(dir.join("client.crl"), dir.join("former.crl")).unwrap();
    certs(dir, &["revoke", "--crl", "client.crl"]).succeeds();
    let text = crl_text(dir, "client.crl");
    assert!(text.contains("verify OK") && text.contains(&format!("Serial Number: {of_alice}")), "{text}");
}

#[test]
fn an_encrypted_key_signs_crls() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    fs::write(dir.join("pass"), "secret\n").unwrap();
    certs(dir, &["init", "--passphrase-file", "pass"]).succeeds();
    certs(dir, &["issue", "client", "--cn", "alice", "--out", "alice", "--passphrase-file", "pass"])
        .succeeds();
    fs::write(dir.join("wrong"), "other\n").unwrap();
    certs(dir, &["revoke", "alice.crt", "--crl", "c", "--passphrase-file", "wrong"])
        .fails(1, &["passphrase is wrong"]);
    assert!(!dir.join("pki/client-ca.revoked.jsonl").exists(), "nothing is recorded without the key");
    certs(dir, &["revoke", "alice.crt", "--crl", "c", "--passphrase-file", "pass"]).succeeds();
    assert!(crl_text(dir, "c").contains("verify OK"));
    // A deny list needs no key.
    certs(dir, &["revoke", "alice.crt", "--deny-list", "d"]).succeeds();
}

#[tokio::test]
async fn the_gateway_refuses_what_is_revoked() {
    let (directory, pki) = (authorities(), Pki::new());
    let dir = directory.path();
    for name in ["alice", "bob", "carol"] {
        issue(dir, name);
    }
    certs(dir, &["revoke", "alice.crt", "--crl", "client.crl"]).succeeds();
    certs(dir, &["revoke", "bob.crt", "--deny-list", "denied"]).succeeds();
    let backend = FakeBackend::plain(&pki).await;
    let path = |name: &str| dir.join(name).display().to_string();
    let mut given = flags(&pki, backend.address);
    given.retain(|flag| !flag.starts_with("--client-ca-file"));
    given.extend([
        format!("--client-ca-file={}", path("pki/client-ca.crt")),
        format!("--client-ca-crl-file={}", path("client.crl")),
        format!("--credential-deny-list-file={}", path("denied")),
    ]);
    let check =
        std::process::Command::new(crate::gateway::PORTCULLIS).arg("check").args(&given).output().unwrap();
    let printed = String::from_utf8(check.stdout).unwrap();
    assert!(printed.contains("of CN=portcullis client CA, 1 revoked, next update 2"), "{printed}");
    assert!(printed.contains("deny list, 1 entry"), "{printed}");
    for (name, revoked) in [("alice", true), ("bob", true), ("carol", false)] {
        let mut explain = std::process::Command::new(crate::gateway::PORTCULLIS);
        explain.arg("explain").arg("--certificate").arg(dir.join(name).with_extension("crt")).args(&given);
        let explained = explain.output().unwrap();
        let printed = String::from_utf8(explained.stdout).unwrap();
        assert_eq!(
            (explained.status.success(), printed.contains("revocation")),
            (!revoked, true),
            "{printed}"
        );
        let reason =
            printed.contains("is on the deny list, line 1") || printed.contains("is revoked by the CRL of");
        assert_eq!(reason, revoked, "{printed}");
    }
    let gateway = Gateway::with(given);
    let code = async |name: &str| {
        let [chain, key] =
            ["crt", "key"].map(|extension| fs::read(dir.join(name).with_extension(extension)).unwrap());
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&chain).map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_slice(&key).unwrap();
        let config = testkit::tls_client(rustls::DEFAULT_VERSIONS).with_client_auth_cert(chain, key).unwrap();
        gateway.checked().await;
        let stream = gateway.tls_with("localhost".try_into().unwrap(), std::sync::Arc::new(config)).await;
        Client::over(&gateway, stream).await.code(&[]).await
    };
    assert_eq!(code("alice").await, 401);
    assert_eq!(code("bob").await, 401);
    assert_eq!(code("carol").await, 200);
}
