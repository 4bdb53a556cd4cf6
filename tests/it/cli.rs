//! The command line: help, the output of `check`, errors of `serve`, and credentials that never reach the log.

use std::net::SocketAddr;
use std::process::{Command, Output};

use testkit::{FakeBackend, Gateway, Pki, flags, text, until};

use crate::gateway::InProcess as _;
use crate::gateway::start_process;

fn portcullis(arguments: &[&str]) -> Output {
    Command::new(crate::gateway::PORTCULLIS).args(arguments).env("NO_COLOR", "1").output().unwrap()
}

/// The output, without the paths of this run.
fn printed(output: &Output, directory: &str) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap().replace(directory, "DIR");
    format!(
        "exit {}\n--- stdout\n{}--- stderr\n{}",
        output.status.code().unwrap(),
        text(&output.stdout),
        text(&output.stderr)
    )
}

#[test]
fn help_texts() {
    insta::assert_snapshot!("help", printed(&portcullis(&["--help"]), "DIR"));
    for command in ["check", "explain", "admit", "kubeconfig"] {
        insta::assert_snapshot!(format!("help_{command}"), printed(&portcullis(&[command, "--help"]), "DIR"));
    }
    insta::assert_snapshot!("help_serve", printed(&portcullis(&["serve", "--help"]), "DIR"));
    insta::assert_snapshot!("help_serve_all", printed(&portcullis(&["serve", "--help-all"]), "DIR"));
    // Without a command: the same, as an error.
    let alone = portcullis(&[]);
    assert_eq!(alone.status.code(), Some(64));
    assert_eq!(alone.stderr, portcullis(&["--help"]).stdout);
}

#[test]
fn the_version_says_what_the_program_is_made_of() {
    let version = env!("CARGO_PKG_VERSION");
    for flag in ["--version", "-V"] {
        let output = portcullis(&[flag]);
        assert_eq!(
            printed(&output, "DIR"),
            format!("exit 0\n--- stdout\nportcullis {version}\n--- stderr\n")
        );
    }
    let output = portcullis(&["--version", "--output", "json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["version"], version);
    // The build of a release names it.
    assert_eq!(report["commit"].as_str(), option_env!("PORTCULLIS_COMMIT"));
    assert_eq!(report["kubernetes"], serde_json::json!({"reference": "1.37", "oldestBackend": "1.34"}));
    assert!(report["features"].as_array().unwrap().contains(&"page".into()), "{report}");
    assert!(
        report["libraries"]["rustls"].is_string() && report["libraries"]["aws-lc-rs"].is_string(),
        "{report}"
    );
    let refused = portcullis(&["--version", "--output", "toml"]);
    assert_eq!(refused.status.code(), Some(64));
    let yaml = portcullis(&["--version", "-o", "yaml"]).stdout;
    assert!(String::from_utf8(yaml).unwrap().contains("oldestBackend: "));
}

#[tokio::test]
async fn check_prints_the_resolved_settings() {
    let pki = Pki::new();
    let address: SocketAddr = "127.0.0.1:6443".parse().unwrap();
    let directory = pki.directory.path().display().to_string();
    let given = flags(&pki, address);
    let mut arguments: Vec<&str> = std::iter::once("check").chain(given.iter().map(String::as_str)).collect();
    insta::assert_snapshot!("check", printed(&portcullis(&arguments), &directory));
    arguments.extend([
        "--output",
        "json",
        "--tls-min-version=VersionTLS10",
        "--strict-transport-security-directives=preload",
    ]);
    insta::assert_snapshot!("check_json", printed(&portcullis(&arguments), &directory));
}

#[test]
fn check_and_serve_report_the_same_errors_for_malformed_files() {
    let pki = Pki::new();
    let given = flags(&pki, "127.0.0.1:6443".parse().unwrap());
    let directory = pki.directory.path();
    let broken = "-----BEGIN CERTIFICATE-----\nbm90aGluZw==\n-----END CERTIFICATE-----\n";
    pki.write("gateway.crt", broken);
    let front = std::fs::read_to_string(directory.join("front.crt")).unwrap();
    pki.write("front.crt", front + broken);
    std::fs::remove_file(directory.join("clients-ca.crt")).unwrap();
    assert!(Command::new("mkfifo").arg(directory.join("clients-ca.crt")).status().unwrap().success());
    let [checked, served] = ["check", "serve"].map(|command| {
        let arguments: Vec<&str> = std::iter::once(command).chain(given.iter().map(String::as_str)).collect();
        printed(&portcullis(&arguments), &directory.display().to_string())
    });
    assert_eq!(checked, served);
    insta::assert_snapshot!("broken_files", checked);
}

#[tokio::test]
async fn check_prints_every_cluster_of_a_file() {
    let pki = Pki::new();
    let directory = pki.directory.path().display().to_string();
    flags(&pki, "127.0.0.1:6443".parse().unwrap());
    let head = "apiVersion: portcullis.dev/v1alpha1\nkind: GatewayConfiguration\nserving:\n  tlsCertFile: \
                gateway.crt\n  tlsPrivateKeyFile: gateway.key\n";
    let good = pki.write(
        "gateway.yaml",
        format!(
            "{head}authentication: {{clientCAFile: clients-ca.crt}}\noperation: {{metricsBindAddress: '0'}}\n\
             clusters:\n- name: prod\n  kubeconfig: backend.kubeconfig\n  endpoints: [https://10.0.0.1:6443, \
             https://10.0.0.2:6443]\n  match: {{serverNames: [prod.test, '*.prod.test'], pathPrefix: /prod}}\n\
             - name: staging\n  kubeconfig: backend.kubeconfig\n  identity: impersonate\n  match: {{serverNames: \
             [staging.test]}}\n  authentication: {{tokenAuthFile: tokens.csv, authenticationConfig: issuers.yaml}}\n  \
             authorization: {{authorizationConfig: authorizers.yaml}}\n"
        ),
    );
    pki.write(
        "policy.kubeconfig",
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: b, cluster: {server: \
         'https://policy.test/authorize', certificate-authority: servers-ca.crt}}]\nusers: [{name: u, user: {token: \
         s3cr3t}}]\ncontexts: [{name: c, context: {cluster: b, user: u}}]\n",
    );
    pki.write(
        "authorizers.yaml",
        format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n- type: Webhook\n  \
             name: policy\n  webhook:\n    timeout: 3s\n    failurePolicy: Deny\n    subjectAccessReviewVersion: v1\n    \
             matchConditionSubjectAccessReviewVersion: v1\n    matchConditions: [{{expression: request.user != 'root'}}, \
             {{expression: has(request.resourceAttributes)}}]\n    connectionInfo: {{type: KubeConfigFile, kubeConfigFile: \
             {directory}/policy.kubeconfig}}\n- {{type: AlwaysAllow, name: alwaysallow}}\n"
        ),
    );
    pki.write(
        "issuers.yaml",
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {enabled: true, conditions: \
         [{path: /livez}, {path: /readyz}]}\njwt:\n- issuer:\n    url: https://idp.test\n    audiences: [a, b]\n    \
         audienceMatchPolicy: MatchAny\n  claimMappings: {username: {claim: sub, prefix: ''}}\n  \
         claimValidationRules: [{claim: hd, requiredValue: example.com}]\n",
    );
    let bad = pki.write("bad.yaml", format!("{head}  port: 1\nclusters: [{{name: a, kubeconfig: none}}]\n"));
    for output in ["text", "json", "yaml"] {
        let check = |file: &std::path::Path| {
            let config = format!("--config={}", file.display());
            printed(&portcullis(&["check", &config, "--output", output]), &directory)
        };
        insta::assert_snapshot!(format!("check_clusters_{output}"), check(&good));
        insta::assert_snapshot!(format!("check_bad_file_{output}"), check(&bad));
    }
}

#[tokio::test]
async fn all_errors_of_a_configuration_are_reported_together() {
    let pki = Pki::new();
    let directory = pki.directory.path().display().to_string();
    let given = flags(&pki, "127.0.0.1:6443".parse().unwrap());
    let no_key = pki.write("no-key", "");
    let csv = pki.write("bad.csv", "only,two\n");
    let other_key = pki.write("other.key", pki.clients.leaf().cn("x").issue().key_pem());
    let kubeconfig = pki.write(
        "bad.kubeconfig",
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{name: b, cluster: {server: 'http://127.0.0.1:1', insecure-skip-tls-verify: true}}]\n\
         users: [{name: u, user: {exec: {command: x, apiVersion: v1}}}]\n\
         contexts: [{name: c, context: {cluster: b, user: u}}]\n",
    );
    let extra = [
        format!("--tls-private-key-file={}", other_key.display()),
        format!("--client-ca-file={}", no_key.display()),
        format!("--token-auth-file={}", csv.display()),
        format!("--backend-kubeconfig={}", kubeconfig.display()),
        "--requestheader-uid-headers=X-Other".to_owned(),
        "--request-timeout=-5s".to_owned(),
        "--tls-cipher-suites=TLS_MADE_UP".to_owned(),
    ];
    // The last value of a flag counts, as in kube-apiserver; lists are extended.
    let replaced = ["--requestheader-uid-headers"];
    let given: Vec<&str> = given
        .iter()
        .map(String::as_str)
        .filter(|flag| !replaced.iter().any(|name| flag.starts_with(name)))
        .chain(extra.iter().map(String::as_str))
        .collect();
    let run = |command: &'static str| {
        let arguments: Vec<&str> = std::iter::once(command).chain(given.iter().copied()).collect();
        printed(&portcullis(&arguments), &directory)
    };
    let output = run("check");
    insta::assert_snapshot!("errors", output);
    assert_eq!(run("serve"), output, "check prints exactly the errors of serve");
}

#[test]
fn unsupported_kube_apiserver_flags_are_named() {
    let output = printed(&portcullis(&["serve", "--etcd-servers=x", "--cert-dir", "y"]), "DIR");
    insta::assert_snapshot!("foreign_flags", output);
}

#[tokio::test]
async fn a_port_in_use_is_reported() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    let given = flags(&pki, backend.address);
    let port = format!("--secure-port={}", gateway.address.port());
    let arguments: Vec<&str> =
        std::iter::once("serve").chain(given.iter().map(String::as_str)).chain([port.as_str()]).collect();
    let output = portcullis(&arguments);
    assert_eq!(output.status.code(), Some(1));
    let output = String::from_utf8(output.stderr).unwrap();
    assert!(output.contains(&format!("cannot listen on {}: ", gateway.address)), "{output}");
}

/// No credential of a client, valid or not, reaches the log at any verbosity; a signal ends the process with exit code
/// 0.
#[tokio::test]
async fn no_credential_reaches_the_log() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let extra = ["-v=9", "--shutdown-grace-period=1s"].map(str::to_owned);
    let process = start_process(flags(&pki, backend.address).into_iter().chain(extra)).await;
    let gateway = &process.gateway;
    for secret in
        ["Bearer good-token", "Bearer secret-unknown", "Basic c2VjcmV0LWJhc2lj", "Bearer  secret-spaced"]
    {
        text(gateway.http1(None).await.get("/api?token=secret-query", &[("authorization", secret)]).await)
            .await;
    }
    let subprotocol = "base64url.bearer.authorization.k8s.io.c2VjcmV0LXNvY2tldA, v4.channel.k8s.io";
    let headers = [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-key", "AAAA"),
        ("sec-websocket-protocol", subprotocol),
    ];
    text(gateway.http1(None).await.get("/api", &headers).await).await;
    until("the end of the last request", || backend.pending() >= 2).await;

    let (ended, log) = process.end().await;
    assert!(ended.success());
    assert!(log.contains("unable to authenticate the request"), "the log is empty:\n{log}");
    for secret in ["good-token", "secret-", "c2VjcmV0", "PRIVATE KEY"] {
        assert!(!log.contains(secret), "{secret} is in the log:\n{log}");
    }
}
