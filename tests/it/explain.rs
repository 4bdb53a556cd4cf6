//! `docs/explain.md` is a transcript of `portcullis explain` on typical mistakes and on valid credentials. Its output
//! never contains a part of a token.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use regex::Regex;
use serde_json::{Value, json};
use testkit::issuer::{Issuer, SigningKey};
use testkit::now;
use testkit::pki::Ca;
use testkit::{BoxedBody, FakeBackend, H2, Pki, flags, self_check};

const INTRODUCTION: &str = "\
# Why was a credential or a request refused?

<!-- Written by tests/it/explain.rs; change it there, or the output of the command. -->

`portcullis explain` checks a credential as `serve` does with the same flags. It prints the verdict, the reason, and the claim,
flag or key to change; then the content of the credential (verified or not), and each check of the authenticators that the
credential is for. `--all` also prints the checks of the others. `--output json` and `yaml` are for programs.

The command reads the token from standard input, so that the token appears in no shell history and no process list, and it prints
no part of the token. The exit code is 0 for an accepted credential, 1 for a refused one, and 64 for an invalid configuration.

Clients see only `Unauthorized`, whatever the reason. The output below is for the operators of the gateway; `<time>` and
`<seconds>` stand for times.

All examples use this configuration:

```yaml
# gateway.yaml
GATEWAY
```

```yaml
# issuers.yaml
ISSUERS
```

```yaml
# audit.yaml
AUDIT
```

Accepted credentials come last: [an ID token](#accepted-id-token),
[a service-account token](#accepted-service-account-token), [a client certificate](#accepted-client-certificate).

With `--verb`, or `--as` for an impersonated user, the command also authorizes a request: by the gateway's own
[authorizers](authorization.md), and by the API server. It shows [each check and its answer](#allowed-impersonation), and how the
request is [audited](audit.md).
";

const IDP: &str = "https://idp.example.com";
const AWAY: &str = "https://away.example.com";
const CLUSTER: &str = "https://kubernetes.default.svc";

/// The configuration; `PORT` is the issuer's port, `CLOSED` a port without a listener.
const GATEWAY: &str = "\
apiVersion: portcullis.dev/v1alpha1
kind: GatewayConfiguration
serving:
  tlsCertFile: gateway.crt
  tlsPrivateKeyFile: gateway.key
authentication:
  clientCAFile: clients-ca.crt
  enableBootstrapTokenAuth: true
  serviceAccountIssuer: [https://kubernetes.default.svc]
  serviceAccountKeyFile: [service-accounts.pub]
  authenticationConfig: issuers.yaml
audit:
  auditPolicyFile: audit.yaml
  auditLogPath: audit.log
clusters:
- name: prod
  kubeconfig: backend.kubeconfig
  match: {serverNames: [prod.example.com]}
";

const AUDIT: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: Metadata
  users: ['idp:alice@example.com']
  resources: [{group: '', resources: [pods]}]
  omitStages: [RequestReceived]
- level: None
  nonResourceURLs: ['/healthz*']
";

const ISSUERS: &str = "\
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: https://idp.example.com
    discoveryURL: https://127.0.0.1:PORT/.well-known/openid-configuration
    audiences: [kubernetes]
    certificateAuthority: |
CA
  claimMappings:
    username: {claim: email, prefix: 'idp:'}
    groups: {claim: groups, prefix: 'idp:'}
    uid: {claim: sub}
    extra:
    - {key: example.com/team, valueExpression: claims.?team.orValue('none')}
  claimValidationRules:
  - {expression: \"claims.?tier.orValue('staff') == 'staff'\", message: contractors have no access}
  userValidationRules:
  - {expression: \"!user.username.endsWith('@old.example.com')\", message: the domain is retired}
- issuer:
    url: https://away.example.com
    discoveryURL: https://127.0.0.1:CLOSED/.well-known/openid-configuration
    audiences: [kubernetes]
    certificateAuthority: |
CA
  claimMappings:
    username: {claim: sub, prefix: ''}
";

/// A credential to explain: a title, the flags, the token on standard input.
struct Case {
    title: &'static str,
    flags: Vec<String>,
    token: Option<(&'static str, String)>,
}

struct ExplainedServers {
    pki: Pki,
    backend: FakeBackend,
    _issuer: Issuer,
    /// Bound without listening, so that no other process gets the port.
    closed: tokio::net::TcpSocket,
    idp: SigningKey,
    accounts: SigningKey,
}

impl ExplainedServers {
    async fn new() -> Self {
        let pki = Pki::new();
        let (idp, accounts) = (SigningKey::new("2026-01"), SigningKey::of_service_accounts());
        let issuer = Issuer::start(&pki, &[&idp]).await;
        issuer.is(IDP, &[&idp]);
        let backend = FakeBackend::with_self_check(&pki, H2, say, |request| Box::pin(review(request))).await;
        flags(&pki, backend.address);
        let closed = tokio::net::TcpSocket::new_v4().unwrap();
        closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = |url: &str| url.rsplit_once(':').unwrap().1.to_owned();
        let authority = pki.servers.cert_pem().trim_end().replace('\n', "\n      ");
        pki.write("gateway.yaml", GATEWAY);
        pki.write("audit.yaml", AUDIT);
        pki.write(
            "issuers.yaml",
            ISSUERS
                .replace("CA\n", &format!("      {authority}\n"))
                .replace("PORT", &port(&issuer.url))
                .replace("CLOSED", &closed.local_addr().unwrap().port().to_string()),
        );
        pki.write("service-accounts.pub", accounts.public_pem());
        Self { pki, backend, _issuer: issuer, closed, idp, accounts }
    }

    fn id_token(&self, changes: &Value) -> String {
        self.idp.sign(&claims(changes))
    }

    /// A token of the service account `ci/builder`, bound to a pod.
    fn account_token(&self, changes: &Value, bound: &Value) -> String {
        let mut kubernetes = json!({
            "namespace": "ci",
            "serviceaccount": {"name": "builder", "uid": "builder-1"},
            "pod": {"name": "build-7", "uid": "pod-7"},
        });
        change(&mut kubernetes, bound);
        let mut claims = json!({
            "iss": CLUSTER, "aud": [CLUSTER], "sub": "system:serviceaccount:ci:builder", "jti": "7",
            "iat": now() - 450, "nbf": now() - 450, "exp": now() + 27_000, "kubernetes.io": kubernetes,
        });
        change(&mut claims, changes);
        self.accounts.sign(&claims)
    }
}

/// The claims of a valid token of the issuer, with these changes; `null` removes a claim.
fn claims(changes: &Value) -> Value {
    let mut claims = json!({
        "iss": IDP, "aud": "kubernetes", "sub": "0042", "email": "alice@example.com", "email_verified": true,
        "groups": ["dev", "ops"], "iat": now() - 60, "exp": now() + 27_000, "jti": "c0ffee",
    });
    change(&mut claims, changes);
    claims
}

fn change(object: &mut Value, changes: &Value) {
    for (name, value) in changes.as_object().unwrap() {
        if value.is_null() {
            object.as_object_mut().unwrap().remove(name);
        } else {
            object[name] = value.clone();
        }
    }
}

/// The objects of the API server: one service account, its pod, and two bootstrap tokens.
fn say(request: &Request<Incoming>) -> Option<Response<BoxedBody>> {
    if request.uri().path().ends_with("/subjectaccessreviews") {
        return None;
    }
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let meta =
        |namespace: &str, name: &str, uid: &str| json!({"namespace": namespace, "name": name, "uid": uid});
    let secret = |id: &str, expiration: &str, usage: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
            "metadata": meta("kube-system", &format!("bootstrap-token-{id}"), id),
            "data": {
                "token-id": encode(id), "token-secret": encode("0123456789abcdef"),
                "expiration": encode(expiration), "usage-bootstrap-authentication": encode(usage),
            },
        })
    };
    let object = match request.uri().path() {
        "/api/v1/namespaces/ci/serviceaccounts/builder" => {
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta("ci", "builder", "builder-1")})
        }
        "/api/v1/namespaces/ci/pods/build-7" => {
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta("ci", "build-7", "pod-7")})
        }
        "/api/v1/namespaces/kube-system/secrets/bootstrap-token-expird" => {
            secret("expird", "2026-01-01T00:00:00Z", "true")
        }
        "/api/v1/namespaces/kube-system/secrets/bootstrap-token-usages" => {
            secret("usages", "2099-01-01T00:00:00Z", "false")
        }
        _ => {
            return self_check::answer(request).map(|answer| match answer.status() {
                // The `Status` of a missing object.
                StatusCode::NOT_FOUND => self_check::respond(
                    StatusCode::NOT_FOUND,
                    &json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound",
                        "message": "not found", "code": 404}),
                ),
                _ => answer,
            });
        }
    };
    Some(self_check::respond(StatusCode::OK, &object))
}

/// The API server's answer to an access review: alice may impersonate bob, and bob may read pods in one namespace.
async fn review(request: Request<Incoming>) -> Response<BoxedBody> {
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap_or_default();
    let (user, on) = (&review["spec"]["user"], &review["spec"]["resourceAttributes"]);
    let of = |field: &str| on[field].as_str().unwrap_or_default();
    let reason = if user == "idp:alice@example.com"
        && of("verb") == "impersonate"
        && ["bob", "dev "].contains(&of("name"))
    {
        "RBAC: allowed by ClusterRoleBinding \"support\" of ClusterRole \"impersonate-bob\" to Group \"ops\""
    } else if user == "bob" && (of("verb"), of("resource"), of("namespace")) == ("list", "pods", "dev") {
        "RBAC: allowed by RoleBinding \"readers/dev\" of ClusterRole \"view\" to User \"bob\""
    } else {
        ""
    };
    let status = json!({"allowed": !reason.is_empty(), "reason": reason});
    self_check::respond(StatusCode::CREATED, &json!({"status": status}))
}

fn cases(servers: &ExplainedServers) -> Vec<Case> {
    let token = |title, file, token| Case { title, flags: Vec::new(), token: Some((file, token)) };
    let certificate = |title, file: &str, pem: String| {
        servers.pki.write(file, pem);
        Case { title, flags: vec!["--certificate".to_owned(), file.to_owned()], token: None }
    };
    let asks = |title, flags: &[&str]| Case {
        flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        ..token(title, "alice.token", servers.id_token(&json!({"team": "payments"})))
    };
    let header = |header: Value| servers.idp.sign_as(&header, &claims(&json!({})));
    let (begun, ended) = (now() - 10 * 86_400 - 3600, now() + 30 * 86_400 + 3600);
    let stranger = Ca::new("strangers").leaf().cn("alice").validity(begun, ended).issue();
    let leaf = || servers.pki.clients.leaf().cn("alice").org("dev").validity(begun, ended);
    let id = |changes: &Value| servers.id_token(changes);
    let account = |changes: &Value, bound: &Value| servers.account_token(changes, bound);
    let other_audience = Case {
        flags: vec!["--audiences".to_owned(), "vault".to_owned()],
        ..token("Token checked for another audience", "pod.token", account(&json!({}), &json!({})))
    };
    vec![
        token("Wrong audience", "billing.token", id(&json!({"aud": ["billing"]}))),
        token(
            "Expired ID token",
            "yesterday.token",
            id(&json!({"iat": now() - 90000, "exp": now() - 27_000})),
        ),
        token("Unknown signing key", "unknown-kid.token", header(json!({"alg": "ES256", "kid": "2025-12"}))),
        token("Missing username claim", "no-email.token", id(&json!({"email": null}))),
        token("Email not verified", "unverified.token", id(&json!({"email_verified": false}))),
        token("Failed claim validation rule", "contractor.token", id(&json!({"tier": "contractor"}))),
        token("Failed user validation rule", "retired.token", id(&json!({"email": "bob@old.example.com"}))),
        token("Wrong issuer", "wrong-issuer.token", id(&json!({"iss": "https://login.example.com"}))),
        token("Wrong issuer: trailing slash", "slash.token", id(&json!({"iss": format!("{IDP}/")}))),
        token(
            "Signing algorithm not allowed",
            "hs256.token",
            header(json!({"alg": "HS256", "kid": "2026-01"})),
        ),
        token("Unreachable issuer", "away.token", id(&json!({"iss": AWAY}))),
        token(
            "Deleted service account",
            "gone.token",
            account(
                &json!({"sub": "system:serviceaccount:ci:gone"}),
                &json!({"serviceaccount": {"name": "gone", "uid": "gone-1"}}),
            ),
        ),
        token(
            "Deleted and recreated service account",
            "again.token",
            account(&json!({}), &json!({"serviceaccount": {"name": "builder", "uid": "builder-0"}})),
        ),
        token(
            "Deleted pod",
            "gone-pod.token",
            account(&json!({}), &json!({"pod": {"name": "build-6", "uid": "pod-6"}})),
        ),
        token(
            "Service-account token for another audience",
            "vault.token",
            account(&json!({"aud": ["vault"]}), &json!({})),
        ),
        other_audience,
        token("Expired bootstrap token", "expired-bootstrap.token", "expird.0123456789abcdef".to_owned()),
        token(
            "Bootstrap token without the usage authentication",
            "signing-bootstrap.token",
            "usages.0123456789abcdef".to_owned(),
        ),
        token("Unknown bootstrap token", "no-bootstrap.token", "absent.0123456789abcdef".to_owned()),
        token("Not a token", "garbage.token", "c2VjcmV0LWdhcmJhZ2U".to_owned()),
        certificate("Certificate signed by an unknown CA", "stranger.crt", stranger.cert_pem()),
        certificate(
            "Server certificate",
            "server.crt",
            leaf().eku(&["1.3.6.1.5.5.7.3.1"]).issue().cert_pem(),
        ),
        certificate(
            "Expired certificate",
            "expired.crt",
            leaf().validity(begun, now() - 27_000).issue().cert_pem(),
        ),
        token("Accepted ID token", "alice.token", id(&json!({"team": "payments"}))),
        token("Accepted service-account token", "builder.token", account(&json!({}), &json!({}))),
        certificate("Accepted client certificate", "alice.crt", leaf().issue().cert_pem()),
        asks(
            "Allowed impersonation",
            &["--as", "bob", "--verb", "list", "--resource", "pods", "--namespace", "dev"],
        ),
        asks("Impersonation without the right", &["--as", "carol"]),
        asks("Impersonated group that no header can carry", &["--as", "bob", "--as-group", "dev "]),
        asks("Request that the API server refuses", &["--verb", "get", "--path", "/metrics"]),
    ]
}

/// Standard output, standard error and the exit code.
fn explain(directory: &Path, arguments: &[&str], token: Option<&str>) -> (String, String, i32) {
    let mut child = Command::new(crate::gateway::PORTCULLIS)
        .arg("explain")
        .args(arguments)
        .current_dir(directory)
        .env("NO_COLOR", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(token.unwrap_or_default().as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code().unwrap())
}

/// Replaces times, ports and paths, which vary from run to run.
fn normal(text: &str) -> String {
    let rules = [
        (r"127\.0\.0\.1:\d+", "127.0.0.1:8443"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "<time>"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "<date> <time>"),
        (r"\b1[789]\d{8}\b", "<seconds>"),
        (r"[0-9a-f]{64}", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"),
        (r#""[0-9A-Za-z_-]{43}""#, r#""n4bQgYhMfWWaL-qgxVrQFaO_TxsrC4Is0V1sFbDwCgg""#),
        (r"SN=\d+", "SN=1000"),
        (r"([0-9A-F]{2}:){19}[0-9A-F]{2}", "00:01:02:03:04:05:06:07:08:09:0A:0B:0C:0D:0E:0F:10:11:12:13"),
    ];
    rules.iter().fold(text.to_owned(), |text, (pattern, by)| {
        Regex::new(pattern).unwrap().replace_all(&text, *by).into_owned()
    })
}

/// Fails if the output contains a part of the token that is too long for a coincidence.
fn assert_no_part_of(token: Option<&str>, printed: &str) {
    let parts = token.into_iter().flat_map(|token| token.split('.'));
    for part in parts.flat_map(|part| part.as_bytes().windows(12)) {
        let part = std::str::from_utf8(part).unwrap();
        assert!(!printed.contains(part), "{part} is in\n{printed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_is_the_output_of_the_commands() {
    let servers = ExplainedServers::new().await;
    let directory = servers.pki.directory.path();
    let issuers = ISSUERS.replace("CA\n", "      …\n").replace("PORT", "8443").replace("CLOSED", "8444");
    let mut text =
        INTRODUCTION.replace("GATEWAY\n", GATEWAY).replace("ISSUERS\n", &issuers).replace("AUDIT\n", AUDIT);
    let closed = servers.closed.local_addr().unwrap().to_string();
    let cases = cases(&servers);
    for Case { title, flags, token } in &cases {
        let mut arguments = vec!["--config", "gateway.yaml"];
        arguments.extend(flags.iter().map(String::as_str));
        let (file, token) = token.as_ref().map(|(file, token)| (*file, token.as_str())).unzip();
        let (out, err, code) = explain(directory, &arguments, token);
        assert!(matches!(code, 0 | 1), "{title}: {err}");
        assert_no_part_of(token, &(out.clone() + &err));
        let from = file.map(|file| format!(" < {file}")).unwrap_or_default();
        let command = format!("portcullis explain {}{from}", arguments.join(" "));
        let shown = (out + &err).replace(&closed, "127.0.0.1:CLOSED");
        let output = normal(&shown).replace("CLOSED", "8444");
        write!(text, "\n## {title}\n\n```console\n$ {command}\n{output}$ echo $?\n{code}\n```\n").unwrap();
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/explain.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == text,
        "docs/explain.md is out of date; regenerate it with: UPDATE_DOCS=1 cargo test --test it explain"
    );
}

/// JSON and YAML have the content of the text output and all steps; no format contains a part of the token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_and_yaml_have_the_content_of_the_text() {
    let servers = ExplainedServers::new().await;
    let directory = servers.pki.directory.path();
    for Case { title, flags, token } in &cases(&servers) {
        let explained = |further: &[&str]| {
            let mut arguments = vec!["--config", "gateway.yaml"];
            arguments.extend(flags.iter().map(String::as_str));
            arguments.extend(further);
            let token = token.as_ref().map(|(_, token)| token.as_str());
            let (out, err, code) = explain(directory, &arguments, token);
            assert_no_part_of(token, &(out.clone() + &err));
            (out, code)
        };
        let (text, code) = explained(&["--all"]);
        let (json, json_code) = explained(&["--output", "json"]);
        let json: Value = serde_json::from_str(&json).unwrap();
        let is_allowed = json["authorization"]["allowed"].as_bool().unwrap_or(true);
        let is_accepted = json["authenticated"] == true && is_allowed;
        assert_eq!((code, is_accepted), (json_code, code == 0), "{title}");
        for fact in json["reasons"].as_array().unwrap() {
            let [detail, fix] = ["detail", "fix"].map(|key| fact[key].as_str().unwrap_or(title));
            // The two runs differ in time.
            let timeless = detail.contains("it is 20") || detail.contains("current time");
            assert!(timeless || text.contains(detail), "{title}: {detail:?} is not in\n{text}");
            assert!(text.contains(fix), "{title}: {fix:?} is not in\n{text}");
        }
        assert_eq!(json["reasons"].as_array().unwrap().is_empty(), json["authenticated"] == true, "{title}");
        for step in json["steps"].as_array().unwrap() {
            assert!(
                text.contains(step["authenticator"].as_str().unwrap()),
                "{title}: {step} is not in\n{text}"
            );
        }
        for fact in json["credential"].as_object().unwrap().keys() {
            assert!(text.contains(&format!(" {fact:7}  ")), "{title}: {fact} is not in\n{text}");
        }
        let (yaml, _) = explained(&["--output", "yaml"]);
        let yaml: Value = serde_saphyr::from_str(&yaml).unwrap();
        for key in ["cluster", "authenticated", "user"] {
            assert_eq!(yaml[key], json[key], "{title}");
        }
    }
}

/// If a server is unreachable, the command ends within seconds and names the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_ends_in_time_if_servers_are_unreachable() {
    let servers = ExplainedServers::new().await;
    let directory = servers.pki.directory.path();
    // Accepts connections and never sends a byte.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    let closed = servers.closed.local_addr().unwrap().to_string();
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    let (kubeconfig, issuers) = (read("backend.kubeconfig"), read("issuers.yaml"));
    let backend = servers.backend.address.to_string();
    let account = servers.account_token(&json!({}), &json!({}));
    let away = servers.id_token(&json!({"iss": AWAY}));
    let cases = [
        ("a silent API server", &account, &backend, &silent, "the API server cannot be used for this token"),
        ("no API server", &account, &backend, &closed, "self-check failed, endpoint unreachable: "),
        ("a silent issuer", &away, &closed, &silent, "does not answer; continuing without it"),
        (
            "an unreachable API server that is not called",
            &servers.id_token(&json!({})),
            &backend,
            &closed,
            "",
        ),
    ];
    for (name, token, instead, of, expected) in cases {
        servers.pki.write("backend.kubeconfig", kubeconfig.replace(instead.as_str(), of));
        servers.pki.write("issuers.yaml", issuers.replace(instead.as_str(), of));
        let began = Instant::now();
        let (out, err, code) = explain(directory, &["--config", "gateway.yaml"], Some(token));
        assert!(began.elapsed() < Duration::from_secs(15), "{name} took {:?}", began.elapsed());
        assert_eq!(
            (code, err.is_empty()),
            (i32::from(!expected.is_empty()), expected.is_empty()),
            "{name}: {err}\n{out}"
        );
        assert!(err.contains(expected), "{name}: {err}\n{out}");
        assert_no_part_of(Some(token), &(out + &err));
    }
}

#[test]
fn an_invalid_configuration_is_reported_before_the_token_is_read() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("gateway.yaml"), GATEWAY).unwrap();
    let (out, err, code) = explain(directory.path(), &["--config", "gateway.yaml"], Some("some.token.here"));
    assert_eq!((out.as_str(), code), ("", 64), "{err}");
    assert!(err.contains("authenticationConfig") && err.contains("clientCAFile"), "{err}");
    let (_, err, code) = explain(directory.path(), &["--no-such-flag"], None);
    assert_eq!(code, 64, "{err}");
}
