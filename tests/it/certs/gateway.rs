//! The users that the gateway authenticates by the certificates: as `verify` predicts, and in requests.

use testkit::{FakeBackend, Gateway, H2, Pki, flags, full};

use super::{CommandOutput, authorities, certs, command, shell};
use crate::gateway::InProcess as _;

const LIST: &str = r#"{"kind":"CertificateSigningRequestList","apiVersion":"certificates.k8s.io/v1","metadata":{},"items":[]}"#;

#[test]
fn verify_prints_the_user_or_the_reason_for_refusal() {
    let directory = authorities();
    let dir = directory.path();
    certs(dir, &["issue", "client", "--cn", "alice", "-O", "dev", "--out", "alice"]).succeeds();
    certs(dir, &["issue", "serving", "--cn", "gw", "--dns", "gw", "--out", "gw"]).succeeds();
    certs(dir, &["issue", "front-proxy", "--cn", "proxy", "--out", "proxy"]).succeeds();
    let verify = |certificate: &str, ca: &str| certs(dir, &["verify", certificate, "--client-ca-file", ca]);
    insta::assert_snapshot!("certs_verify", verify("alice.crt", "pki/client-ca.crt").normal());
    insta::assert_snapshot!("certs_verify_refused", verify("alice.crt", "pki/front-proxy-ca.crt").normal());
    assert_eq!(verify("gw.crt", "pki/ca.crt").code, 1);
    // With the root as client CA, a front proxy's certificate would be accepted as a client certificate.
    assert_eq!(verify("proxy.crt", "pki/ca.crt").code, 0);
    assert_eq!(verify("proxy.crt", "pki/client-ca.crt").code, 1);
    verify("alice.crt", "alice.key").fails(64, &["client-ca-file"]);
    verify("alice.crt", "none").fails(64, &["none"]);
    verify("alice.key", "pki/client-ca.crt").fails(1, &["alice.key: no certificate in it"]);
    certs(dir, &["verify", "alice.crt"]).fails(64, &["--client-ca-file"]);
    // As SPIRE and cert-manager issue them.
    shell(
        dir,
        "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout workload.key -subj / -addext \
         subjectAltName=URI:spiffe://example.com/a | openssl x509 -req -CA pki/client-ca.crt -CAkey pki/client-ca.key -days 1 \
         -copy_extensions copy -out workload.crt",
    );
    let unnamed = verify("workload.crt", "pki/client-ca.crt");
    assert_eq!(unnamed.code, 1);
    assert!(unnamed.out.contains("common name: the certificate has no CommonName"), "{unnamed:?}");
    assert!(!unnamed.out.contains("not enabled") && !unnamed.out.contains("--client-ca-file"), "{unnamed:?}");
    certs(dir, &["verify", "alice.crt", "--config", "none"]).fails(64, &["none"]);
    let json = certs(dir, &["verify", "alice.crt", "--client-ca-file", "pki/client-ca.crt", "-o", "json"])
        .succeeds();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["user"]["username"], "alice");
    assert_eq!(json["user"]["groups"], serde_json::json!(["dev", "system:authenticated"]));
}

/// Subjects whose names would be altered in an HTTP header: openssl's `-subj`, and the printed name.
const UNENCODABLE_SUBJECTS: [(&str, &str); 5] = [
    ("/CN=alice ", "\"alice \""),
    ("/CN= alice", "\" alice\""),
    ("/CN=alice/O=system:masters ", "\"system:masters \""),
    ("/CN=alice\tx/O=dev\t", "\"dev\\t\""),
    ("/CN=a\nb", "\"a\\nb\""),
];

#[test]
fn an_identity_that_the_gateway_refuses_is_refused_by_verify_and_explain() {
    let pki = Pki::new();
    let dir = pki.directory.path();
    let given = flags(&pki, "127.0.0.1:6443".parse().unwrap());
    let explain = |certificate: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command.arg("explain").args(&given).args(["--certificate", certificate]).current_dir(dir);
        CommandOutput::of(command.output().unwrap())
    };
    certs(dir, &["init"]).succeeds();
    for (subject, shown) in UNENCODABLE_SUBJECTS {
        let names = subject.split('/').skip(1).map(|pair| pair.split_once('=').unwrap());
        let mut leaf = pki.clients.leaf();
        for (kind, name) in names.clone() {
            leaf = if kind == "CN" { leaf.cn(name) } else { leaf.org(name) };
        }
        pki.write("odd.crt", leaf.issue().cert_pem());
        let refused = certs(dir, &["verify", "odd.crt", "--client-ca-file", "clients-ca.crt"]);
        let explained = explain("odd.crt");
        for output in [&refused, &explained] {
            assert_eq!(output.code, 1, "{subject:?}: {output:?}");
            assert!(output.out.starts_with("refused (401 Unauthorized)"), "{subject:?}: {output:?}");
            let why = "forwarding, identity: the ";
            assert!(output.out.contains(why) && output.out.contains(shown), "{subject:?}: {output:?}");
        }
        // `issue` and `sign` refuse such names too.
        let names: Vec<String> = names
            .map(|(kind, name)| {
                format!("{}={name}", if kind == "CN" { "--common-name" } else { "--organization" })
            })
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let issue = [&["issue", "client", "--out", "odd"], &names[..]].concat();
        certs(dir, &issue).fails(1, &["not signed as client", shown, "would not arrive byte for byte"]);
        assert!(!dir.join("odd.key").exists());
    }
}

#[test]
fn verify_takes_the_configuration_of_the_gateway() {
    let pki = Pki::new();
    let dir = pki.directory.path();
    flags(&pki, "127.0.0.1:6443".parse().unwrap());
    pki.write("pods-ca.crt", testkit::pki::Ca::new("pods").cert_pem());
    pki.write("alice.crt", pki.clients.leaf().cn("alice").issue().cert_pem());
    pki.write(
        "gateway.yaml",
        "apiVersion: portcullis.dev/v1alpha1\nkind: GatewayConfiguration\n\
         serving: {tlsCertFile: gateway.crt, tlsPrivateKeyFile: gateway.key}\n\
         clusters:\n- {name: prod, kubeconfig: backend.kubeconfig, match: {serverNames: [prod.test]}, authentication: \
         {clientCAFile: clients-ca.crt}}\n- {name: staging, kubeconfig: backend.kubeconfig, match: {serverNames: \
         [staging.test]}, authentication: {clientCAFile: servers-ca.crt}}\n- {name: tokens, kubeconfig: \
         backend.kubeconfig, match: {serverNames: [tokens.test]}, authentication: {tokenAuthFile: tokens.csv, anonymousAuth: false}}\n- {name: pods, kubeconfig: \
         backend.kubeconfig, match: {serverNames: [pods.test]}, authentication: {podClientCAFile: pods-ca.crt}}\n",
    );
    let verify = |cluster: &[&str]| {
        certs(dir, &[&["verify", "alice.crt", "--config", "gateway.yaml"], cluster].concat())
    };
    let output = verify(&["--cluster", "prod"]).succeeds();
    assert!(output.starts_with("accepted by x509 for cluster prod\n"), "{output}");
    let refused = verify(&["--cluster", "staging"]);
    assert!(
        refused.code == 1 && refused.out.starts_with("refused (401 Unauthorized) for cluster staging"),
        "{refused:?}"
    );
    verify(&["--cluster", "tokens"])
        .fails(64, &["cluster tokens does not accept client certificates of users"]);
    verify(&["--cluster", "pods"]).fails(64, &["cluster pods does not accept client certificates of users"]);
    // No server is asked whether the pod exists, so this is not the verdict of the gateway.
    let pod = testkit::pki::Ca::new("pods").leaf().cn("system:serviceaccount:default:web");
    let pod = pod.extension("1.3.6.1.4.1.57683.1", true, testkit::pki::null()).issue();
    pki.write("pod.crt", pod.cert_pem());
    for (cluster, expected) in [
        (
            "pods",
            "look them up: portcullis explain --config gateway.yaml --cluster pods --certificate pod.crt",
        ),
        ("tokens", "set podClientCAFile for the certificates of pods"),
    ] {
        certs(dir, &["verify", "pod.crt", "--config", "gateway.yaml", "--cluster", cluster])
            .fails(64, &[expected]);
    }
    certs(dir, &["verify", "pod.crt", "--client-ca-file", "pods-ca.crt"])
        .fails(1, &["the certificate names a pod"]);
    let mut explain = std::process::Command::new(crate::gateway::PORTCULLIS);
    explain.args(["explain", "--config", "gateway.yaml", "--cluster", "tokens", "--certificate", "pod.crt"]);
    let explained = CommandOutput::of(explain.current_dir(dir).output().unwrap());
    assert!(explained.code == 1 && explained.out.contains("set --pod-client-ca-file"), "{explained:?}");
    verify(&["--cluster", "other"]).fails(64, &["prod, staging, tokens, pods"]);
    verify(&[]).fails(64, &["prod, staging, tokens, pods"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateway_accepts_an_issued_kubeconfig() {
    let directory = authorities();
    let pki = Pki::new();
    let backend = FakeBackend::start(&pki, H2, |_| {
        Box::pin(async {
            let answer = http::Response::builder().header("content-type", "application/json");
            answer.body(full(LIST)).unwrap()
        })
    })
    .await;
    let ca = directory.path().join("pki/client-ca.crt").display().to_string();
    let mut given = flags(&pki, backend.address);
    given.push(format!("--client-ca-file={ca}"));
    let gateway = Gateway::with(given);
    gateway.checked().await;
    let server = format!("https://localhost:{}", gateway.address.port());
    let servers = pki.directory.path().join("servers-ca.crt").display().to_string();
    let issue = [
        "issue",
        "client",
        "--cn",
        "alice",
        "-O",
        "dev",
        "--kubeconfig-out",
        "alice.kubeconfig",
        "--server",
        &server,
        "--certificate-authority",
        &servers,
    ];
    certs(directory.path(), &issue).succeeds();
    let mut list = command(directory.path(), &["list", "--kubeconfig", "alice.kubeconfig"]);
    let listed =
        tokio::task::spawn_blocking(move || CommandOutput::of(list.output().unwrap())).await.unwrap();
    assert_eq!(listed.succeeds(), "No resources found\n");
    let seen = backend.take().unwrap();
    assert_eq!(seen.target.trim_end_matches('?'), "/apis/certificates.k8s.io/v1/certificatesigningrequests");
    assert_eq!(seen.all("x-remote-user"), ["alice"]);
    assert_eq!(seen.all("x-remote-group"), ["dev", "system:authenticated"]);
}
