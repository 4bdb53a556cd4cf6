//! Audit as operators see it: the events in the file, failing files, and changes of the policy.

use std::path::{Path, PathBuf};

use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use serde_json::{Value, json};
use testkit::body::fed;
use testkit::{BoxedBody, FakeBackend, Gateway, H2, Pki, flags, full, text, until};
use tokio::io::AsyncWriteExt as _;

use crate::gateway::InProcess as _;

const MAPS: &str = "/api/v1/namespaces/n/configmaps";

struct Audited {
    pki: Pki,
    backend: FakeBackend,
    gateway: Gateway,
    policy: PathBuf,
    log: PathBuf,
}

fn policy(rules: &Value) -> String {
    json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}).to_string()
}

impl Audited {
    async fn start(rules: &Value, log: &str, more: &[&str]) -> Self {
        let pki = Pki::new();
        let backend = FakeBackend::start(&pki, H2, |request: Request<hyper::body::Incoming>| {
            let is_watch = request.uri().query() == Some("watch=true");
            Box::pin(async move {
                if is_watch {
                    let (frames, body, _) = fed();
                    frames.send(http_body::Frame::data("event\n".into())).unwrap();
                    // Ends with the client.
                    std::mem::forget(frames);
                    return http::Response::new(body);
                }
                http::Response::builder().header("content-type", "application/json").body(full("{}")).unwrap()
            })
        })
        .await;
        let policy_file = pki.write("policy.yaml", policy(rules));
        let log = if log.starts_with('/') { PathBuf::from(log) } else { pki.directory.path().join(log) };
        let mut given = flags(&pki, backend.address);
        given.push(format!("--audit-policy-file={}", policy_file.display()));
        given.push(format!("--audit-log-path={}", log.display()));
        given.extend(more.iter().map(ToString::to_string));
        let gateway = Gateway::with(given);
        gateway.checked().await;
        Self { pki, backend, gateway, policy: policy_file, log }
    }

    async fn reload(&self) {
        for _ in 0..2 {
            let before = self.gateway.generation().await;
            self.gateway.server().reload();
            self.gateway.reloaded(before).await;
        }
    }
}

fn events(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    // The last line may still be written.
    let lines = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn stages(log: &Path) -> Vec<String> {
    events(log).iter().map(|event| event["stage"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_request_is_in_the_file_before_the_backend_has_it() {
    let audited = Audited::start(&json!([{"level": "Request"}]), "audit.log", &[]).await;
    let alice = audited.pki.clients.leaf().cn("alice").org("dev").issue();
    let mut client = audited.gateway.http2(Some(&alice)).await;
    let request = Request::post(format!("https://localhost{MAPS}"))
        .header("content-type", "application/json")
        .header("audit-id", "the-id")
        .header("x-forwarded-for", "6.6.6.6")
        .body(full(r#"{"metadata":{"name":"one"}}"#))
        .unwrap();
    assert_eq!(text(client.send(request).await.unwrap()).await, "{}");
    until("both events", || stages(&audited.log).len() == 2).await;
    let events = events(&audited.log);
    assert_eq!(stages(&audited.log), ["RequestReceived", "ResponseComplete"]);
    for event in &events {
        assert_eq!(event["auditID"], "the-id");
        assert_eq!(event["user"]["username"], "alice");
        assert_eq!(event["user"]["groups"], json!(["dev", "system:authenticated"]));
        assert_eq!(event["sourceIPs"], json!(["127.0.0.1"]), "a client names no other address");
        assert_eq!(event["verb"], "create");
    }
    assert_eq!(events[0]["objectRef"].get("name"), None);
    assert_eq!(events[1]["objectRef"]["name"], "one");
    assert_eq!(events[1]["requestObject"], json!({"metadata": {"name": "one"}}));
    assert_eq!(events[1]["responseStatus"]["code"], 200);
}

/// What the backend sends to a path: nothing, a body whose length is known, one of many frames whose length is not.
fn answer_of(path: &str) -> http::Response<BoxedBody> {
    let builder = http::Response::builder().header("content-type", "application/json");
    match path {
        "/api/v1/namespaces/n/empty" => builder.status(204).body(full("")).unwrap(),
        "/api/v1/namespaces/n/long" => {
            let frames = (0..40).map(|_| Ok(http_body::Frame::data(vec![b'x'; 9_000].into())));
            builder.body(StreamBody::new(futures_util::stream::iter(frames)).boxed()).unwrap()
        }
        "/api/v1/namespaces/n/known" => builder.body(full("x".repeat(100_000))).unwrap(),
        _ => builder.body(full("{}")).unwrap(),
    }
}

// apiserver: pkg/endpoints/filters/audit.go — the last event is processed before the handler returns, and thus before the end of the
// response leaves the server.
#[tokio::test]
async fn a_client_that_has_a_response_finds_its_event_in_the_file() {
    let pki = Pki::new();
    let backend = FakeBackend::start(&pki, H2, |request: Request<hyper::body::Incoming>| {
        let response = answer_of(request.uri().path());
        Box::pin(async move { response })
    })
    .await;
    let rules = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata"}]});
    let (policy, log) = (pki.write("policy.yaml", rules.to_string()), pki.directory.path().join("audit.log"));
    let mut given = flags(&pki, backend.address);
    given.push(format!("--audit-policy-file={}", policy.display()));
    given.push(format!("--audit-log-path={}", log.display()));
    let gateway = Gateway::with(given);
    gateway.checked().await;
    let alice = pki.clients.leaf().cn("alice").issue();
    let (mut http2, mut http1) = (gateway.http2(Some(&alice)).await, gateway.http1(Some(&alice)).await);
    let mut asked = 0;
    let mut check = async |what: String, response: http::Response<hyper::body::Incoming>| {
        let code = response.status().as_u16();
        text(response).await;
        let events = events(&log);
        asked += 1;
        assert_eq!(events.len(), asked, "{what} {code}");
        assert_eq!(events[asked - 1]["responseStatus"]["code"], code, "{what}");
    };
    let request = |method: &str, path: &str, token: &str| {
        let request = Request::builder().method(method).uri(path).header("host", "localhost");
        request.header("authorization", token).body(full("")).unwrap()
    };
    let over_http2 = |request: Request<BoxedBody>| {
        let (mut head, body) = request.into_parts();
        head.headers.remove("host");
        head.uri = format!("https://localhost{}", head.uri).parse().unwrap();
        Request::from_parts(head, body)
    };
    for _ in 0..20 {
        for (method, path) in [
            ("GET", "/api/v1/namespaces/n/known"),
            ("GET", "/api/v1/namespaces/n/long"),
            ("HEAD", "/api/v1/namespaces/n/known"),
            ("DELETE", "/api/v1/namespaces/n/empty"),
            ("POST", MAPS),
            ("GET", "/livez"),
        ] {
            let request = || request(method, path, "");
            check(format!("HTTP/2 {method} {path}"), http2.send(over_http2(request())).await.unwrap()).await;
            check(format!("HTTP/1.1 {method} {path}"), http1.send(request()).await.unwrap()).await;
        }
        let forged = || request("GET", "/api/v1/pods?watch=true", "Bearer forged");
        check(
            "refused over HTTP/2".to_owned(),
            gateway.http2(None).await.send(over_http2(forged())).await.unwrap(),
        )
        .await;
        check("refused over HTTP/1.1".to_owned(), gateway.http1(None).await.send(forged()).await.unwrap())
            .await;
    }
}

#[tokio::test]
async fn a_watch_has_an_event_when_it_starts_and_one_when_its_client_is_gone() {
    let audited = Audited::start(&json!([{"level": "Metadata"}]), "audit.log", &[]).await;
    let alice = audited.pki.clients.leaf().cn("alice").issue();
    let mut client = audited.gateway.http2(Some(&alice)).await;
    let watch = client.get("/api/v1/pods?watch=true", &[]).await;
    assert_eq!(watch.status(), StatusCode::OK);
    until("the watch has started", || stages(&audited.log).len() == 2).await;
    assert_eq!(stages(&audited.log), ["RequestReceived", "ResponseStarted"]);
    drop((watch, client));
    until("the watch has ended", || stages(&audited.log).len() == 3).await;
    assert_eq!(stages(&audited.log)[2], "ResponseComplete");
}

#[tokio::test]
async fn a_client_that_is_gone_before_the_response_leaves_a_complete_trail() {
    let pki = Pki::new();
    let backend = FakeBackend::start(&pki, H2, |_| {
        Box::pin(async { std::future::pending::<http::Response<BoxedBody>>().await })
    })
    .await;
    let policy_file = pki.write("policy.yaml", policy(&json!([{"level": "Metadata"}])));
    let log = pki.directory.path().join("audit.log");
    let mut given = flags(&pki, backend.address);
    given.push(format!("--audit-policy-file={}", policy_file.display()));
    given.push(format!("--audit-log-path={}", log.display()));
    let gateway = Gateway::with(given);
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut stream = gateway.tls(b"http/1.1", Some(&alice)).await;
    stream.write_all(b"GET /api/v1/pods HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    until("the request is received", || stages(&log).len() == 1).await;
    drop(stream);
    until("the request has ended", || stages(&log).len() == 2).await;
    let last = &events(&log)[1];
    assert_eq!(
        (&last["stage"], &last["responseStatus"]["message"]),
        (&json!("ResponseComplete"), &json!("Connection closed early"))
    );
}

/// `/dev/full` fails every write, as a full disk does.
#[tokio::test]
async fn a_full_disk_refuses_requests_in_strict_mode_only() {
    for (mode, status) in [
        ("batch", StatusCode::OK),
        ("blocking", StatusCode::OK),
        ("blocking-strict", StatusCode::INTERNAL_SERVER_ERROR),
    ] {
        let mode_flag = format!("--audit-log-mode={mode}");
        let more = [mode_flag.as_str(), "--audit-log-maxsize=0"];
        let audited = Audited::start(&json!([{"level": "Metadata"}]), "/dev/full", &more).await;
        let alice = audited.pki.clients.leaf().cn("alice").issue();
        let mut client = audited.gateway.http1(Some(&alice)).await;
        while audited.backend.take().is_some() {}
        let response = client.get(MAPS, &[]).await;
        assert_eq!(response.status(), status, "{mode}");
        let body = text(response).await;
        let is_refused = status != StatusCode::OK;
        assert_eq!(body.contains("failed to store audit event"), is_refused, "{mode}: {body}");
        assert_eq!(
            audited.backend.take().is_none(),
            is_refused,
            "{mode}: a refused request is not forwarded"
        );
        audited
            .gateway
            .until_counted_as("portcullis_audit_events_dropped_total{", |line| !line.ends_with(" 0"))
            .await;
    }
}

#[tokio::test]
async fn a_policy_is_reloaded_and_a_bad_one_is_not() {
    let audited = Audited::start(&json!([{"level": "None"}]), "audit.log", &[]).await;
    let alice = audited.pki.clients.leaf().cn("alice").issue();
    let mut client = audited.gateway.http1(Some(&alice)).await;
    client.get("/api/v1/none", &[]).await;
    std::fs::write(&audited.policy, policy(&json!([{"level": "Metadata"}]))).unwrap();
    audited.reload().await;
    let mut client = audited.gateway.http1(Some(&alice)).await;
    client.get("/api/v1/first", &[]).await;
    let mut expected = 2;
    until("the events of the first", || stages(&audited.log).len() == expected).await;
    for bad in [policy(&json!([])), policy(&json!([{"level": "Everything"}])), "{".to_owned()] {
        std::fs::write(&audited.policy, bad).unwrap();
        audited.gateway.server().reload();
        audited.gateway.until_counted("portcullis_config_last_reload_successful 0").await;
        let mut client = audited.gateway.http1(Some(&alice)).await;
        client.get("/api/v1/second", &[]).await;
        expected += 2;
        until("the events of the second", || stages(&audited.log).len() == expected).await;
        std::fs::write(&audited.policy, policy(&json!([{"level": "Metadata"}]))).unwrap();
        audited.gateway.server().reload();
        audited.gateway.until_counted("portcullis_config_last_reload_successful 1").await;
    }
    let targets: Vec<Value> = events(&audited.log).iter().map(|event| event["requestURI"].clone()).collect();
    assert_eq!(targets[..2], ["/api/v1/first", "/api/v1/first"]);
    assert!(targets[2..].iter().all(|target| target == "/api/v1/second"), "{targets:?}");
}
