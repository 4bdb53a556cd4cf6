//! The certificates of `issue` and `sign`, and their refusals.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use testkit::ambiguous_pem::ambiguous;

use super::{authorities, certs, mode, names, normal, shell};

/// A request made by openssl with this subject and additional flags.
fn request(directory: &Path, name: &str, subject: &str, more: &str) {
    let line = format!(
        "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {name}.key -out {name}.csr \
         -subj {subject} {more}"
    );
    shell(directory, &line);
}

#[test]
fn each_kind_is_signed_by_its_own_authority_for_its_own_purpose() {
    let directory = authorities();
    let node = ["--common-name", "worker-1"];
    let cases: [(&str, &[&str], &str, &str, &str); 5] = [
        (
            "client",
            &["--cn", "alice", "-O", "dev", "-O", "ops"],
            "client-ca",
            "clientAuth",
            "CN=alice,O=ops+O=dev",
        ),
        (
            "serving",
            &["--cn", "gateway", "--dns", "gw.test", "--ip", "10.0.0.1,::1"],
            "serving-ca",
            "serverAuth",
            "CN=gateway",
        ),
        (
            "front-proxy",
            &["--cn", "front-proxy-client"],
            "front-proxy-ca",
            "clientAuth",
            "CN=front-proxy-client",
        ),
        ("kubelet-client", &node, "client-ca", "clientAuth", "CN=system:node:worker-1,O=system:nodes"),
        (
            "kubelet-serving",
            &["--cn", "system:node:worker-1", "--dns", "worker-1"],
            "serving-ca",
            "serverAuth",
            "CN=system:node:worker-1,O=system:nodes",
        ),
    ];
    for (kind, flags, authority, purpose, subject) in cases {
        let output = certs(directory.path(), &[&["issue", kind, "--out", kind], flags].concat()).succeeds();
        insta::assert_snapshot!(format!("certs_issue_{kind}"), normal(&output));
        for name in [format!("{kind}.crt"), format!("{kind}.key")] {
            assert_eq!(mode(&directory.path().join(&name)), 0o600, "{name}");
        }
        // The file holds the whole chain, so the root suffices to verify it.
        let purpose_flag = if purpose == "clientAuth" { "sslclient" } else { "sslserver" };
        let verify = format!(
            "openssl verify -purpose {purpose_flag} -CAfile pki/ca.crt -untrusted {kind}.crt {kind}.crt"
        );
        shell(directory.path(), &verify);
        let other = if purpose == "clientAuth" { "sslserver" } else { "sslclient" };
        shell(directory.path(), &format!("! {}", verify.replace(purpose_flag, other)));
        shell(
            directory.path(),
            &format!("openssl verify -partial_chain -CAfile pki/{authority}.crt {kind}.crt"),
        );
        let named =
            shell(directory.path(), &format!("openssl x509 -noout -subject -nameopt RFC2253 -in {kind}.crt"));
        assert_eq!(named.trim(), format!("subject={subject}"), "{kind}");
        let line = format!(
            "diff <(openssl pkey -in {kind}.key -pubout) <(openssl x509 -in {kind}.crt -noout -pubkey)"
        );
        shell(directory.path(), &line);
    }
    let names = shell(directory.path(), "openssl x509 -noout -ext subjectAltName -in serving.crt");
    assert!(names.contains("DNS:gw.test, IP Address:10.0.0.1, IP Address:0:0:0:0:0:0:0:1"), "{names}");
}

#[test]
fn the_validity_is_as_requested_but_not_longer_than_that_of_the_ca() {
    let directory = tempfile::tempdir().unwrap();
    certs(directory.path(), &["init", "--validity", "30d"]).succeeds();
    let issue = |name, duration| {
        let flags =
            ["issue", "client", "--cn", name, "--out", name, "--duration", duration, "--output", "json"];
        let json: Value = serde_json::from_str(&certs(directory.path(), &flags).succeeds()).unwrap();
        json["remarks"].as_array().unwrap().clone()
    };
    assert!(issue("short", "10d").is_empty());
    shell(directory.path(), "openssl x509 -noout -checkend $((9*86400)) -in short.crt");
    shell(directory.path(), "! openssl x509 -noout -checkend $((11*86400)) -in short.crt");
    assert_eq!(issue("long", "365d"), ["the validity is limited by that of the CA"]);
    let end = |name: &str| shell(directory.path(), &format!("openssl x509 -noout -enddate -in {name}.crt"));
    assert_eq!(end("long"), end("pki/client-ca"));
}

#[test]
fn invalid_arguments_are_refused_before_signing() {
    let directory = authorities();
    let cases: [(&[&str], i32, &str); 18] = [
        (
            &["issue", "serving", "--cn", "a", "--dns", "bücher.example", "--out", "a"],
            64,
            "--dns <NAME>': a DNS name is ASCII: write other letters in Punycode (xn--)",
        ),
        (&["issue", "serving", "--cn", "a", "--dns", "", "--out", "a"], 64, "--dns"),
        (&["issue", "serving", "--cn", "a", "--dns", "a b", "--out", "a"], 64, "--dns <NAME>': each label"),
        (&["issue", "serving", "--cn", "a", "--dns", "http://x", "--out", "a"], 64, "it is a URL"),
        (&["issue", "serving", "--cn", "a", "--dns", "*", "--out", "a"], 64, "as in *.example.com"),
        (&["issue", "serving", "--cn", "a", "--dns", "10.0.0.1", "--out", "a"], 64, "give it with --ip"),
        (&["issue", "client", "--cn", "alice ", "--out", "a"], 1, "would not arrive byte for byte"),
        (&["issue", "front-proxy", "--cn", "al\u{200b}ice", "--out", "a"], 1, "or an invisible one"),
        (&["init", "--name", "", "--dir", "other"], 64, "--name"),
        (&["issue", "serving", "--cn", "a", "--out", "a"], 64, "give --dns or --ip"),
        (&["issue", "client", "--out", "a"], 64, "--common-name"),
        (&["issue", "client", "--cn", "a"], 64, "--out"),
        (
            &["issue", "client", "--cn", "a", "--out", "no/a"],
            1,
            "the directory no does not exist; create it first",
        ),
        (&["issue", "client", "--cn", "a", "--out", "a", "--duration", "0"], 64, "8h, 90d or 10y"),
        (
            &["issue", "client", "--cn", "a", "--out", "a", "--dir", "none"],
            1,
            "portcullis certs init --dir none",
        ),
        (&["issue", "client", "--cn", "a", "--out", "a", "--ca-cert", "pki/ca.crt"], 64, "--ca-key"),
        (
            &[
                "issue",
                "client",
                "--cn",
                "a",
                "--out",
                "a",
                "--ca-cert",
                "pki/ca.crt",
                "--ca-key",
                "pki/client-ca.key",
            ],
            1,
            "pki/ca.crt and pki/client-ca.key",
        ),
        (
            &["issue", "client", "--cn", "a", "--kubeconfig-out", "a", "--server", "http://a"],
            64,
            "https://HOST:PORT",
        ),
    ];
    for (arguments, code, error) in cases {
        certs(directory.path(), arguments).fails(code, &[error]);
    }
    assert_eq!(names(directory.path()), ["pki"]);
    assert!(!directory.path().join("pki/client-ca.index.jsonl").exists());
}

#[test]
fn system_masters_is_warned_about() {
    let directory = authorities();
    let flags = ["issue", "client", "--cn", "root", "-O", "system:masters", "--out", "root"];
    let output = certs(directory.path(), &flags).succeeds();
    assert!(output.contains("system:masters has full access"), "{output}");
    // A request for system:masters from another author is signed only with a flag.
    request(directory.path(), "mallory", "/O=system:masters/CN=mallory", "");
    let sign = ["sign", "mallory.csr", "--profile", "client"];
    certs(directory.path(), &sign)
        .fails(1, &["system:masters, which has full access", "--allow-system-masters"]);
    assert!(!directory.path().join("mallory.crt").exists());
    certs(directory.path(), &[&sign[..], &["--profile", "serving"]].concat()).fails(64, &["--profile"]);
    certs(directory.path(), &[&sign[..], &["--allow-system-masters"]].concat()).succeeds();
}

#[test]
fn names_that_the_gateway_refuses_are_not_signed() {
    let directory = authorities();
    for (name, subject) in
        [("blank", "'/CN=alice '"), ("group", "'/O= dev/CN=alice'"), ("unseen", "$'/CN=al\\u200bice' -utf8")]
    {
        request(directory.path(), name, subject, "");
        let problem = if name == "unseen" { "or an invisible one" } else { "would not arrive byte for byte" };
        certs(directory.path(), &["sign", &format!("{name}.csr"), "--profile", "client"])
            .fails(1, &["not signed as client", problem]);
    }
    let problem = "system:portcullis is the gateway's own user, and the gateway refuses clients of this name: choose another";
    let issue = ["issue", "client", "--cn", "system:portcullis", "--out", "own"];
    certs(directory.path(), &issue).fails(1, &["not signed as client", problem]);
    assert!(!directory.path().join("own.key").exists());
    request(directory.path(), "own", "/CN=system:portcullis", "");
    certs(directory.path(), &["sign", "own.csr", "--profile", "client"])
        .fails(1, &["not signed as client", problem]);
    // A front proxy asserts users, so its own name is not a user name.
    certs(directory.path(), &["issue", "front-proxy", "--cn", "system:portcullis", "--out", "front"])
        .succeeds();
}

#[test]
fn durations_are_parsed() {
    let directory = authorities();
    let issue = |name, more: &[&str]| {
        certs(directory.path(), &[&["issue", "client", "--cn", name, "--out", name], more].concat())
            .succeeds();
    };
    let lasts = |name, seconds: u64| {
        let line =
            format!("openssl x509 -noout -checkend {seconds} -in {name}.crt > /dev/null && echo yes || true");
        shell(directory.path(), &line).contains("yes")
    };
    let day = 86_400;
    issue("year", &["--duration", "365d"]);
    assert!(lasts("year", 365 * day - 60) && !lasts("year", 365 * day + 60));
    issue("hour", &["--duration", "1h"]);
    assert!(lasts("hour", 3600 - 60) && !lasts("hour", 3600 + 60));
    // A user certificate cannot be revoked, so its default validity is short.
    issue("usual", &[]);
    assert!(lasts("usual", 90 * day - 60) && !lasts("usual", 90 * day + 60));
}

#[test]
fn a_request_is_signed_with_its_groups_and_sans_but_no_other_extension() {
    let directory = authorities();
    let more = "-addext basicConstraints=CA:TRUE -addext keyUsage=keyCertSign -addext nsComment=hello \
                -addext subjectAltName=DNS:a.test";
    request(directory.path(), "alice", "/O=dev/O=ops/CN=alice", more);
    let output = certs(directory.path(), &["sign", "alice.csr", "--profile", "client"]).succeeds();
    assert!(output.contains("alice.crt") && output.contains("pki/client-ca.index.jsonl"), "{output}");
    let text = shell(directory.path(), "openssl x509 -noout -text -in alice.crt");
    for part in ["CA:FALSE", "Digital Signature", "TLS Web Client Authentication", "DNS:a.test"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains("Certificate Sign") && !text.contains("hello"), "{text}");
    let subject = shell(directory.path(), "openssl x509 -noout -subject -nameopt RFC2253 -in alice.crt");
    assert_eq!(subject.matches("O=").count(), 2, "{subject}");
    assert_eq!(mode(&directory.path().join("alice.crt")), 0o600);
    certs(directory.path(), &["sign", "alice.csr", "--profile", "client"])
        .fails(1, &["alice.crt: the file already exists"]);

    // A request in DER, another output file, another purpose.
    shell(directory.path(), "openssl req -in alice.csr -outform der -out alice.der");
    let other =
        ["sign", "alice.der", "--profile", "serving", "--usages", "server auth", "--out", "served.crt"];
    certs(directory.path(), &other).succeeds();
    let usage = shell(directory.path(), "openssl x509 -noout -ext keyUsage,extendedKeyUsage -in served.crt");
    assert!(usage.contains("TLS Web Server Authentication") && !usage.contains("Client"), "{usage}");
}

#[test]
fn refused_requests_have_a_reason() {
    let directory = authorities();
    request(directory.path(), "alice", "/CN=alice", "");
    shell(
        directory.path(),
        "openssl req -new -newkey rsa:1024 -nodes -keyout w.key -out weak.csr -subj /CN=w",
    );
    std::fs::write(directory.path().join("none.csr"), "hello").unwrap();
    // A request with an invalid signature.
    shell(directory.path(), "openssl req -in alice.csr -outform der -out bad.der");
    let mut request = std::fs::read(directory.path().join("bad.der")).unwrap();
    *request.last_mut().unwrap() ^= 1;
    std::fs::write(directory.path().join("bad.der"), request).unwrap();
    shell(directory.path(), "openssl req -text -in alice.csr -out text.csr");
    let before = names(directory.path());
    certs(directory.path(), &["issue", "client", "--cn", "x", "--out", "x", "--dir", "pki"]).succeeds();
    std::fs::remove_file(directory.path().join("pki/client-ca.index.jsonl")).unwrap();
    let before = [before, vec!["x.crt".to_owned(), "x.key".to_owned()]].concat();
    let cases: [(&[&str], &str); 9] = [
        (
            &["sign", "none.csr", "--profile", "client"],
            "none.csr: neither PEM nor DER of a certificate request",
        ),
        (
            &["sign", "x.crt", "--profile", "client", "--force"],
            "x.crt: a PEM file of the type CERTIFICATE, not",
        ),
        (&["sign", "alice.csr", "--profile", "kubelet-client"], "not signed as kubelet-client: "),
        (
            &["sign", "text.csr", "--profile", "client"],
            "text.csr: the certificate request is not one PEM block alone",
        ),
        (&["sign", "weak.csr", "--profile", "client"], "weak.csr: "),
        (&["sign", "none.csr", "--profile", "client"], "none.csr: "),
        (&["sign", "bad.der", "--profile", "client"], "bad.der: "),
        (&["sign", "missing.csr", "--profile", "client"], "missing.csr: No such file"),
        (&["sign", "alice.csr", "--profile", "client", "--usages", "cert sign"], "not signed as client: "),
    ];
    for (arguments, error) in cases {
        let output = certs(directory.path(), arguments).fails(1, &[error]);
        assert!(output.trim_end().len() > error.len() + "portcullis: ".len() + 10, "{output}");
    }
    assert_eq!(names(directory.path()), before);
    assert!(!directory.path().join("pki/client-ca.index.jsonl").exists());
}

#[test]
fn inspect_and_sign_parse_the_same_request() {
    let directory = authorities();
    let dir = directory.path();
    request(dir, "harmless", "/O=dev/CN=harmless", "");
    request(dir, "attacker", "/O=system:masters/CN=attacker", "");
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    for (place, (name, text)) in
        ambiguous(&read("harmless.csr"), &read("attacker.csr")).into_iter().enumerate()
    {
        let file = format!("ambiguous-{place}.csr");
        std::fs::write(dir.join(&file), text).unwrap();
        let refusal = "the certificate request is not one PEM block alone";
        certs(dir, &["sign", &file, "--profile", "client"]).fails(1, &[refusal]);
        let output = certs(dir, &["inspect", &file]);
        assert!(output.code == 1 && output.out.contains(refusal), "{name}: {output:?}");
        let (harmless, attacker) = (output.out.find("CN=harmless"), output.out.find("CN=attacker"));
        assert!(harmless.is_some_and(|first| attacker.is_none_or(|then| first < then)), "{name}: {output:?}");
    }
}

// keytool heads a request otherwise, and Windows ends lines otherwise.
#[test]
fn a_request_of_another_tool_is_signed() {
    let directory = authorities();
    let dir = directory.path();
    request(dir, "plain", "/O=dev/CN=plain", "");
    let plain = std::fs::read_to_string(dir.join("plain.csr")).unwrap();
    let new = plain.replace("CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST");
    for (name, text) in
        [("new", new.clone()), ("windows", plain.replace('\n', "\r\n")), ("both", new.replace('\n', "\r\n"))]
    {
        let file = format!("{name}.csr");
        std::fs::write(dir.join(&file), text).unwrap();
        certs(dir, &["sign", &file, "--profile", "client"]).succeeds();
        let output = certs(dir, &["inspect", &file]);
        assert!(output.code == 0 && output.out.contains("CN=plain"), "{name}: {output:?}");
    }
    std::fs::write(dir.join("two.csr"), format!("{new}{plain}")).unwrap();
    certs(dir, &["sign", "two.csr", "--profile", "client"]).fails(1, &["not one PEM block alone"]);
}

#[test]
fn an_external_ca_signs_a_front_proxy_certificate_as_in_the_readme() {
    let directory = tempfile::tempdir().unwrap();
    // A separate root, as kubeadm creates it.
    let line = "openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=front-proxy-ca -keyout front-proxy-ca.key \
                -out front-proxy-ca.crt -addext keyUsage=critical,digitalSignature,keyEncipherment,keyCertSign";
    shell(directory.path(), line);
    let issue = [
        "issue",
        "front-proxy",
        "--common-name",
        "front-proxy-client",
        "--ca-cert",
        "front-proxy-ca.crt",
        "--ca-key",
        "front-proxy-ca.key",
        "--out",
        "gateway-front",
    ];
    let output = certs(directory.path(), &issue).succeeds();
    assert!(output.contains("recorded in  front-proxy-ca.index.jsonl"), "{output}");
    shell(directory.path(), "openssl verify -purpose sslclient -CAfile front-proxy-ca.crt gateway-front.crt");
    // The chain does not include the root.
    let chain = std::fs::read_to_string(directory.path().join("gateway-front.crt")).unwrap();
    assert_eq!(chain.matches("BEGIN CERTIFICATE").count(), 1);
}

#[test]
fn a_kubeconfig_embeds_the_ca_certificates_but_not_the_ca_key() {
    let directory = authorities();
    let path = directory.path();
    shell(path, "cat pki/ca.key pki/ca.crt > both.pem");
    let issue = |authority: &str, out: &str| {
        let issue = ["issue", "client", "--cn", "alice", "--server", "https://gateway.test:6443"];
        let files = ["--kubeconfig-out", out, "--certificate-authority", authority];
        certs(path, &[&issue[..], &files].concat())
    };
    issue("both.pem", "a").succeeds();
    let config: Value = serde_saphyr::from_str(&std::fs::read_to_string(path.join("a")).unwrap()).unwrap();
    let held = config["clusters"][0]["cluster"]["certificate-authority-data"].as_str().unwrap();
    let held = String::from_utf8(STANDARD.decode(held).unwrap()).unwrap();
    assert_eq!(held.replace("\r\n", "\n"), shell(path, "cat pki/ca.crt").replace("\r\n", "\n"));
    issue("pki/ca.key", "b").fails(1, &["--certificate-authority pki/ca.key", "give the CA"]);
    assert!(!path.join("b").exists());
}
