//! The output of `inspect`, and the problems that it reports.

use std::path::Path;

use serde_json::Value;
use testkit::now;
use testkit::pki::{Ca, KeyKind};
use testkit::{FakeBackend, Pki, full};

use super::{authorities, certs, shell};

const DAY: i64 = 86_400;

/// Severity and text of each problem, and the exit code.
fn problems(directory: &Path, arguments: &[&str]) -> (Vec<(String, String)>, i32) {
    let output = certs(directory, &[&["inspect", "--output", "json"], arguments].concat());
    let json: Value = serde_json::from_str(&output.out).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let problems = json["problems"].as_array().unwrap();
    (problems.iter().map(|one| (text(&one["severity"]), text(&one["problem"]))).collect(), output.code)
}

/// Severity and text of each problem.
type Found<'a> = &'a [(&'a str, &'a str)];

#[test]
fn tables_end_with_the_problems() {
    let directory = authorities();
    let dir = directory.path();
    let issue =
        ["issue", "serving", "--cn", "gateway", "--dns", "gw.test", "--ip", "10.0.0.1", "--out", "gateway"];
    certs(dir, &issue).succeeds();
    insta::assert_snapshot!(
        "certs_inspect_pair",
        certs(dir, &["inspect", "gateway.crt", "gateway.key"]).normal()
    );
    shell(
        dir,
        "openssl req -new -key gateway.key -subj /O=dev/CN=alice -out alice.csr -addext subjectAltName=DNS:a.test",
    );
    insta::assert_snapshot!("certs_inspect_request", certs(dir, &["inspect", "alice.csr"]).normal());
    insta::assert_snapshot!("certs_inspect_authority", certs(dir, &["inspect", "pki/ca.crt"]).normal());
    insta::assert_snapshot!(
        "certs_inspect_json",
        certs(dir, &["inspect", "-o", "json", "gateway.crt"]).normal()
    );
    let yaml = certs(dir, &["inspect", "-o", "yaml", "gateway.key"]).succeeds();
    let yaml: Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(yaml["items"][0]["facts"]["key"], "ECDSA P-256");
    // No part of a key is shown.
    let key = std::fs::read_to_string(dir.join("gateway.key")).unwrap();
    let output = certs(dir, &["inspect", "gateway.key", "pki/ca.key"]).succeeds();
    assert!(!key.lines().any(|line| output.contains(line)), "{output}");
}

#[test]
fn each_problem_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    let ca = Ca::new("clients");
    let write = |name: &str, text: String| std::fs::write(dir.join(name), text).unwrap();
    let leaf = || ca.leaf().cn("alice").eku(&["1.3.6.1.5.5.7.3.2"]);
    let good = leaf().issue();
    write("good.crt", good.cert_pem());
    write("good.key", good.key_pem());
    write("expired.crt", leaf().validity(now() - 2 * DAY, now() - DAY).issue().cert_pem());
    write("early.crt", leaf().validity(now() + DAY, now() + 90 * DAY).issue().cert_pem());
    write("soon.crt", leaf().validity(now() - DAY, now() + 29 * DAY).issue().cert_pem());
    write("later.crt", leaf().validity(now() - DAY, now() + 31 * DAY).issue().cert_pem());
    write("nobody.crt", ca.leaf().eku(&["1.3.6.1.5.5.7.3.2"]).issue().cert_pem());
    write("masters.crt", leaf().org("system:masters").issue().cert_pem());
    write("any.crt", ca.leaf().cn("alice").no_eku().issue().cert_pem());
    write("nameless.crt", ca.leaf().cn("gw").eku(&["1.3.6.1.5.5.7.3.1"]).issue().cert_pem());
    write(
        "other.key",
        Ca::with_key("x", KeyKind::P256).leaf().cn("x").key(KeyKind::Rsa2048).issue().key_pem(),
    );
    write("chain.crt", good.cert_pem() + &Ca::new("others").cert_pem());
    let openssl = |name: &str, more: &str| {
        shell(
            dir,
            &format!(
                "openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj /CN=ca -days 90 2>&1; \
             openssl req -new -newkey {more} -nodes -keyout k -out r -subj /CN=a 2>&1; \
             openssl x509 -req -in r -CA ca.crt -CAkey ca.key -CAcreateserial -days 90 -extfile <(echo extendedKeyUsage=clientAuth) -out {name}"
            ),
        );
    };
    openssl("weak.crt", "rsa:1024");
    shell(
        dir,
        "openssl req -new -newkey rsa:2048 -nodes -keyout k -out r -subj /CN=a; \
                openssl x509 -req -sha1 -in r -CA ca.crt -CAkey ca.key -CAcreateserial -days 90 \
                -extfile <(echo extendedKeyUsage=clientAuth) -out sha1.crt",
    );
    shell(
        dir,
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout k -out bit.crt -subj /CN=a -days 90 \
                -addext keyUsage=critical,digitalSignature",
    );
    shell(dir, "chmod 600 good.key other.key; cp good.key open.key; chmod 644 open.key");
    let cases: [(&[&str], i32, Found<'_>); 16] = [
        (&["good.crt", "good.key"], 0, &[]),
        (&["good.crt", "open.key"], 0, &[("warning", "every user of this machine can read this key")]),
        (&["later.crt"], 0, &[]),
        (&["expired.crt"], 1, &[("error", "expired ")]),
        (&["early.crt"], 1, &[("error", "not yet valid: valid from ")]),
        (&["soon.crt"], 0, &[("warning", "expires soon: ")]),
        (&["soon.crt", "--fail-on-warnings"], 1, &[("warning", "expires soon: ")]),
        (&["nobody.crt"], 1, &[("error", "no CommonName")]),
        (&["masters.crt"], 0, &[("warning", "in the group system:masters")]),
        (&["any.crt"], 0, &[("warning", "no extended key usage")]),
        (&["nameless.crt"], 1, &[("error", "no subjectAltName")]),
        (&["good.crt", "other.key"], 1, &[("error", "the key does not match the certificate")]),
        (&["chain.crt"], 1, &[("error", "incomplete chain: the next certificate, chain.crt (2 of 2)")]),
        (&["weak.crt"], 1, &[("error", "the key is too short: RSA 1024")]),
        (&["sha1.crt"], 1, &[("error", "signature algorithm SHA-1 with RSA")]),
        (&["bit.crt"], 1, &[("error", "a CA that may not sign")]),
    ];
    for (arguments, code, expected) in cases {
        let (found, ended) = problems(dir, arguments);
        assert_eq!(ended, code, "{arguments:?}: {found:?}");
        assert_eq!(found.len(), expected.len(), "{arguments:?}: {found:?}");
        for ((severity, problem), (level, begin)) in found.iter().zip(expected) {
            assert!(severity == level && problem.starts_with(begin), "{arguments:?}: {found:?}");
        }
    }
}

#[test]
fn certificates_of_kubeconfigs_are_inspected_whether_embedded_or_not() {
    let directory = authorities();
    let dir = directory.path();
    let issue = [
        "issue",
        "client",
        "--cn",
        "alice",
        "--out",
        "alice",
        "--kubeconfig-out",
        "alice.kubeconfig",
        "--server",
        "https://gateway.test:6443",
    ];
    certs(dir, &issue).succeeds();
    insta::assert_snapshot!(
        "certs_inspect_kubeconfig",
        certs(dir, &["inspect", "alice.kubeconfig"]).normal()
    );
    let serving = ["issue", "serving", "--cn", "gw", "--dns", "gw", "--out", "gw"];
    certs(dir, &serving).succeeds();
    let config = |user: &str, cluster: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: 'https://a', {cluster}}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\ncontexts: []\n"
        );
        std::fs::write(dir.join("config"), text).unwrap();
        problems(dir, &["config"])
    };
    let ca = "certificate-authority: pki/ca.crt";
    assert_eq!(config("client-certificate: alice.crt, client-key: alice.key", ca), (Vec::new(), 0));
    let cases = [
        ("client-certificate: alice.crt, client-key: gw.key", ca, "the key does not match the certificate"),
        ("client-certificate: gw.crt, client-key: gw.key", ca, "not for clients"),
        ("client-certificate: pki/client-ca.crt, client-key: pki/client-ca.key", ca, "a CA certificate"),
        ("client-certificate: alice.crt", ca, "a client certificate without its client-key"),
        ("client-key: alice.key", ca, "a client-key without its client certificate"),
        ("client-certificate: none.crt, client-key: alice.key", ca, "none.crt: No such file"),
        ("token: hidden-token", "certificate-authority-data: '!'", "it is not base64"),
        ("token: hidden-token", "insecure-skip-tls-verify: true", "insecure-skip-tls-verify"),
    ];
    for (user, cluster, expected) in cases {
        let (found, code) = config(user, cluster);
        assert!(
            code == 1 && found.iter().any(|(_, problem)| problem.contains(expected)),
            "{user}: {found:?}"
        );
        let output = certs(dir, &["inspect", "config"]);
        assert!(!output.out.contains("hidden"), "{}", output.out);
    }
    std::fs::write(dir.join("garbage"), "users: [hidden: {").unwrap();
    let output =
        certs(dir, &["inspect", "garbage"]).fails(1, &["garbage: neither PEM, DER nor a kubeconfig"]);
    assert!(!output.contains("hidden"), "{output}");
    certs(dir, &["inspect", "missing"]).fails(1, &["missing: No such file"]);
    certs(dir, &["inspect"]).fails(64, &["--server"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_servers_chain_is_shown_with_its_verification() {
    let pki = Pki::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = FakeBackend::without_client_auth(&pki, listener, |_| {
        Box::pin(async { http::Response::new(full("ok")) })
    });
    let backend = FakeBackend::plain(&pki).await;
    let dir = pki.directory.path().to_owned();
    pki.write("servers.crt", pki.servers.cert_pem());
    pki.write("clients.crt", pki.clients.cert_pem());
    let address = server.address.to_string();
    let mutual_tls = backend.address.to_string();
    tokio::task::spawn_blocking(move || {
        let server = ["inspect", "--server", &address];
        let good = certs(&dir, &[&server[..], &["--ca-file", "servers.crt"]].concat());
        insta::assert_snapshot!("certs_inspect_server", good.normal());
        let (found, code) = problems(&dir, &[&server[1..], &["--ca-file", "clients.crt"]].concat());
        assert_eq!((code, found.len()), (1, 1), "{found:?}");
        assert!(found[0].1.contains("with clients.crt refuses it: "), "{found:?}");
        let other = ["--ca-file", "servers.crt", "--server-name", "elsewhere.test"];
        let (found, code) = problems(&dir, &[&server[1..], &other].concat());
        assert!(code == 1 && found[0].1.contains("but wanted to match elsewhere.test; fix: "), "{found:?}");
        // A server that requests client certificates names the accepted CAs.
        let out = certs(&dir, &["inspect", "--server", &mutual_tls]).out;
        assert!(out.contains("requests a certificate of CN=front"), "{out}");
        certs(&dir, &["inspect", "--server", "nowhere"]).fails(64, &["give HOST:PORT"]);
        certs(&dir, &["inspect", "--server", &address, "--ca-file", "none"]).fails(1, &["--ca-file none"]);
    })
    .await
    .unwrap();
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap().to_string();
    drop(closed);
    let dir = pki.directory.path().to_owned();
    let refused = tokio::task::spawn_blocking(move || certs(&dir, &["inspect", "--server", &address]));
    refused.await.unwrap().fails(1, &["Connection refused"]);
}

/// The gateway and the signer accept groups in every string type, so the warning must cover every type.
#[test]
fn system_masters_is_found_in_every_string_type() {
    let directory = authorities();
    let path = directory.path();
    // openssl's masks of PrintableString, T61String, BMPString and UTF8String.
    for mask in ["2", "4", "2048", "8192"] {
        let config = format!(
            "[req]\nprompt = no\ndistinguished_name = name\nstring_mask = MASK:{mask}\n[name]\nO = system:masters\n\
             CN = root\n"
        );
        std::fs::write(path.join("req.cnf"), config).unwrap();
        shell(
            path,
            "openssl req -new -newkey ed25519 -nodes -keyout k -config req.cnf -out r.csr 2>/dev/null",
        );
        let output = certs(path, &["inspect", "r.csr"]).succeeds();
        assert!(output.contains("requests the group system:masters"), "{mask}: {output}");
        shell(
            path,
            "openssl req -x509 -key k -config req.cnf -addext extendedKeyUsage=clientAuth \
                     -addext basicConstraints=CA:FALSE -out r.crt",
        );
        let output = certs(path, &["inspect", "r.crt"]).succeeds();
        assert!(output.contains("in the group system:masters"), "{mask}: {output}");
    }
}

#[test]
fn an_encrypted_key_is_compared_with_its_certificate() {
    let directory = authorities();
    let dir = directory.path();
    for name in ["alice", "bob"] {
        certs(dir, &["issue", "client", "--cn", name, "--out", name]).succeeds();
        shell(dir, &format!("openssl pkey -in {name}.key -aes256 -passout pass:horse -out {name}.enc"));
    }
    std::fs::write(dir.join("passphrase"), "horse\n").unwrap();
    std::fs::write(dir.join("wrong"), "battery\n").unwrap();
    let (found, code) = problems(dir, &["alice.crt", "alice.enc"]);
    assert!(code == 0 && found[0].0 == "warning" && found[0].1.contains("not matched"), "{found:?}");
    let with = |key, file| problems(dir, &["alice.crt", key, "--passphrase-file", file]);
    assert_eq!(with("alice.enc", "passphrase"), (Vec::new(), 0));
    let (found, code) = with("bob.enc", "passphrase");
    assert!(code == 1 && found[0].1.contains("does not match the certificate"), "{found:?}");
    let (found, code) = with("alice.enc", "wrong");
    assert!(code == 1 && found[0].1.contains("passphrase is wrong"), "{found:?}");
}

#[test]
fn the_standard_input_is_inspected() {
    let directory = authorities();
    let portcullis = crate::gateway::PORTCULLIS;
    let output = shell(directory.path(), &format!("cat pki/ca.crt | {portcullis} certs inspect -"));
    assert!(output.contains("CN=portcullis root CA") && output.contains("no problems found"), "{output}");
}
