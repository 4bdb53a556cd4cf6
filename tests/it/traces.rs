//! Traces: what the backend and the collector receive.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use testkit::{FakeBackend, Gateway, H2, Pki, flags, full, in_time, text, until};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

#[cfg(feature = "dev")]
use crate::admission::Admitting;
use crate::authorization::Authorizing;
use crate::gateway::{InProcess as _, resolved};
use crate::impersonation::{REVIEWS, Reviewing, decision};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// A collector, and the messages that it received.
async fn collector() -> (SocketAddr, mpsc::UnboundedReceiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let sender = sender.clone();
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let sender = sender.clone();
                    tokio::spawn(async move {
                        let (mut body, mut message) = (request.into_body(), Vec::new());
                        while let Some(Ok(data)) = body.data().await {
                            body.flow_control().release_capacity(data.len()).unwrap();
                            message.extend_from_slice(&data);
                        }
                        let mut answer = respond.send_response(Response::new(()), false).unwrap();
                        answer.send_data(Bytes::from_static(&[0; 5]), false).unwrap();
                        let status = (HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"));
                        answer.send_trailers(HeaderMap::from_iter([status])).unwrap();
                        sender.send(message).ok();
                    });
                }
            });
        }
    });
    (address, receiver)
}

/// A span as the collector has received it.
#[derive(Debug, Clone, Default)]
struct Exported {
    id: Vec<u8>,
    parent: Vec<u8>,
    name: String,
    times: [u64; 2],
    /// Those that are texts.
    attributes: BTreeMap<String, String>,
}

/// The fields of a Protocol Buffers message: number, and bytes or a number as bytes.
fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>)> {
    fn varint(message: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (first, rest) = message.split_first().unwrap();
            *message = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message);
        let length = match tag & 7 {
            0 => {
                found.push((tag >> 3, varint(&mut message).to_le_bytes().to_vec()));
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut message)).unwrap(),
            5 => 4,
            kind => panic!("wire type {kind}"),
        };
        let (value, rest) = message.split_at(length);
        found.push((tag >> 3, value.to_vec()));
        message = rest;
    }
    found
}

fn all(message: &[u8], number: u64) -> Vec<Vec<u8>> {
    fields(message).into_iter().filter(|(found, _)| *found == number).map(|(_, value)| value).collect()
}

/// The spans of a message, behind its five bytes of gRPC.
// opentelemetry-proto: trace/v1/trace.proto
fn exported(message: &[u8]) -> Vec<Exported> {
    let resources = all(&message[5..], 1);
    let scopes = resources.iter().flat_map(|resource| all(resource, 2));
    let spans = scopes.flat_map(|scope| all(&scope, 2));
    let one = |span: Vec<u8>| {
        let bytes = |number| all(&span, number).pop().unwrap_or_default();
        let time = |number| u64::from_le_bytes(bytes(number).try_into().unwrap());
        Exported {
            id: bytes(2),
            parent: bytes(4),
            name: String::from_utf8(bytes(5)).unwrap(),
            times: [time(7), time(8)],
            attributes: all(&span, 9).iter().filter_map(|attribute| text_attribute(attribute)).collect(),
        }
    };
    spans.map(one).collect()
}

/// The name and the value of an attribute that is a text.
// opentelemetry-proto: common/v1/common.proto, KeyValue and AnyValue
fn text_attribute(attribute: &[u8]) -> Option<(String, String)> {
    let text = |message: &[u8]| String::from_utf8(all(message, 1).pop()?).ok();
    Some((text(attribute)?, text(&all(attribute, 2).pop()?)?))
}

/// The spans of the next request, up to the span of the request itself, which ends last.
async fn request(received: &mut mpsc::UnboundedReceiver<Vec<u8>>, name: &str) -> Vec<Exported> {
    let mut spans: Vec<Exported> = Vec::new();
    while !spans.iter().any(|span| span.name == name) {
        spans.extend(exported(&in_time(received.recv()).await.unwrap()));
    }
    spans
}

fn named<'a>(spans: &'a [Exported], name: &str) -> &'a Exported {
    let found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
    let [span] = found.as_slice() else { panic!("{} spans {name}: {spans:#?}", found.len()) };
    span
}

/// The span in a `traceparent`.
fn span_of(headers: &HeaderMap) -> Vec<u8> {
    let parent = headers["traceparent"].to_str().unwrap();
    let id = parent.split('-').nth(2).unwrap();
    (0..8).map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// The flag of a gateway that samples every request.
fn sampled(pki: &Pki, collector: SocketAddr) -> String {
    let configuration = format!("{HEAD}endpoint: {collector}\nsamplingRatePerMillion: 1000000\n");
    format!("--tracing-config-file={}", pki.write("tracing.yaml", configuration).display())
}

/// The review of an impersonation belongs to its stage, and the API server continues the trace of both requests.
#[tokio::test]
async fn an_impersonation_and_its_review_have_spans() {
    let (collector, mut received) = collector().await;
    let pki = Pki::new();
    let reviewing = Reviewing::start(&pki, |_| decision(true)).await;
    let mut flags = flags(&pki, reviewing.backend.address);
    flags.extend([sampled(&pki, collector), "--impersonation=gateway".to_owned()]);
    let gateway = Gateway::with(flags);
    gateway.checked().await;
    while reviewing.backend.take().is_some() {}
    let headers = [("authorization", "Bearer good-token"), ("impersonate-user", "bob")];
    let response = gateway.http2(None).await.get("/api/v1/pods", &headers).await;
    assert_eq!(text(response).await, "ok");
    let spans = request(&mut received, "GET /api/v1/pods").await;
    let whole = named(&spans, "GET /api/v1/pods");
    for name in ["authentication", "constrainedimpersonation", "HTTP GET"] {
        let span = named(&spans, name);
        assert_eq!(span.parent, whole.id, "{name}");
        let [[from, to], [start, end]] = [whole.times, span.times];
        assert!(from <= start && start <= end && end <= to, "{name}: {spans:#?}");
    }
    let stage = named(&spans, "constrainedimpersonation");
    let seen: Vec<_> = std::iter::from_fn(|| reviewing.backend.take()).collect();
    let asked: Vec<_> = seen.iter().filter(|seen| seen.target.starts_with(REVIEWS)).collect();
    let posts: Vec<_> = spans.iter().filter(|span| span.name == "HTTP POST").collect();
    assert!(!asked.is_empty() && asked.len() == posts.len(), "{spans:#?}");
    for (asked, post) in asked.iter().zip(&posts) {
        assert_eq!(post.parent, stage.id);
        assert!(posts.iter().any(|post| post.id == span_of(&asked.headers)));
    }
    let forwarded = seen.iter().find(|seen| seen.target == "/api/v1/pods").unwrap();
    assert_eq!(span_of(&forwarded.headers), named(&spans, "HTTP GET").id);
    // The second one needs no question.
    text(gateway.http2(None).await.get("/api/v1/pods", &headers).await).await;
    let spans = request(&mut received, "GET /api/v1/pods").await;
    assert!(!spans.iter().any(|span| span.name == "HTTP POST"), "{spans:#?}");
}

#[tokio::test]
async fn an_authorization_webhook_and_a_place_in_flight_have_spans() {
    let (collector, mut received) = collector().await;
    let authorizing = Authorizing::start().await;
    authorizing.write("true", "");
    let more = [sampled(&authorizing.pki, collector), "--max-requests-inflight=5".to_owned()];
    let gateway = authorizing.gateway_with(&more);
    gateway.checked().await;
    let token = [("authorization", "Bearer good-token")];
    text(gateway.http2(None).await.get("/api/v1/pods", &token).await).await;
    let spans = request(&mut received, "GET /api/v1/pods").await;
    let whole = named(&spans, "GET /api/v1/pods");
    for name in ["priorityandfairness", "authorization"] {
        assert_eq!(named(&spans, name).parent, whole.id, "{name}");
    }
    assert_eq!(named(&spans, "HTTP POST").parent, named(&spans, "authorization").id);
    let asked =
        std::iter::from_fn(|| authorizing.backend.take()).find(|seen| seen.target.starts_with("/authorize"));
    assert!(!asked.unwrap().headers.contains_key("traceparent"), "as with kube-apiserver");
}

/// Each request that a review needs has its own span, and the webhook continues the trace.
#[cfg(feature = "dev")]
#[tokio::test]
async fn admission_webhooks_and_dry_runs_have_spans() {
    let (collector, mut received) = collector().await;
    let admitting = Admitting::start(|review| {
        let allowed = serde_json::json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "response": {"uid": review["request"]["uid"], "allowed": true}});
        Some(testkit::self_check::respond(StatusCode::OK, &allowed))
    })
    .await;
    admitting.write("Fail", 5);
    let gateway = admitting.gateway_with("pinnedDryRun", &[&sampled(&admitting.pki, collector)]);
    gateway.checked().await;
    let map = "/api/v1/namespaces/n/configmaps";
    let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"n"}}"#;
    let create = http::Request::post(map)
        .header("authorization", "Bearer good-token")
        .header("content-type", "application/json");
    let response = gateway.http1(None).await.send(create.body(full(body)).unwrap()).await.unwrap();
    let answer = (response.status(), text(response).await);
    assert!(answer.0.is_success(), "{answer:?}");
    let name = "POST /api/v1/namespaces/{:namespace}/configmaps";
    let spans = request(&mut received, name).await;
    let whole = named(&spans, name);
    let call = named(&spans, "Call validating webhook");
    assert_eq!(call.parent, whole.id);
    let called = admitting.webhook.take().unwrap();
    let attribute = |name: &str| call.attributes.get(name).map_or("none", String::as_str);
    assert_eq!(attribute("resource"), "/v1, Resource=configmaps");
    assert_eq!((attribute("subresource"), attribute("operation")), ("", "CREATE"));
    assert_eq!(attribute("UID"), admitting.reviews.lock().unwrap()[0]["request"]["uid"]);
    let post = spans.iter().find(|span| span.id == span_of(&called.headers)).unwrap();
    assert_eq!((&*post.name, &post.parent), ("HTTP POST", &call.id));
    let received = admitting.received.lock().unwrap();
    let at_backend: Vec<_> = received.iter().filter(|seen| seen.target.starts_with(map)).collect();
    assert!(at_backend.len() > 1, "a dry run, and the write");
    let mut ids = std::collections::HashSet::new();
    for seen in at_backend {
        let id = span_of(&seen.headers);
        assert!(spans.iter().any(|span| span.id == id && span.parent == whole.id), "{}", seen.target);
        assert!(ids.insert(id), "each has its own span");
    }
}

/// Policies need no request.
#[cfg(feature = "dev")]
#[tokio::test]
async fn policies_have_a_span() {
    let (collector, mut received) = collector().await;
    let admitting = crate::admission::policies::start("Fail", &["Deny"]).await;
    let gateway = admitting.gateway_with("pinnedDryRun", &[&sampled(&admitting.pki, collector)]);
    gateway.checked().await;
    let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"n"}}"#;
    let create = http::Request::post("/api/v1/namespaces/n/configmaps")
        .header("authorization", "Bearer good-token")
        .header("content-type", "application/json");
    let response = gateway.http1(None).await.send(create.body(full(body)).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::CREATED);
    let name = "POST /api/v1/namespaces/{:namespace}/configmaps";
    let spans = request(&mut received, name).await;
    assert_eq!(named(&spans, "Evaluate validating policies").parent, named(&spans, name).id);
    assert!(!spans.iter().any(|span| span.name == "Evaluate mutating policies"));
}

struct Setup {
    pki: Pki,
    backend: FakeBackend,
    gateway: Gateway,
}

impl Setup {
    async fn new(configuration: Option<&str>) -> Self {
        let pki = Pki::new();
        let answer = |_| -> testkit::ResponseFuture { Box::pin(async { Response::new(full("ok")) }) };
        let backend = FakeBackend::start(&pki, H2, answer).await;
        let mut flags = flags(&pki, backend.address);
        if let Some(configuration) = configuration {
            let file = pki.write("tracing.yaml", format!("{HEAD}{configuration}"));
            flags.push(format!("--tracing-config-file={}", file.display()));
        }
        let gateway = Gateway::with(flags);
        gateway.checked().await;
        while backend.take().is_some() {}
        Self { pki, backend, gateway }
    }

    /// Sends a request as a user in this group; returns `traceparent` and `tracestate` as the backend receives them.
    async fn forwarded(&self, group: &str, headers: &[(&str, &str)]) -> [Vec<String>; 2] {
        let alice = self.pki.clients.leaf().cn("alice").org(group).issue();
        let path = "/api/v1/namespaces/secret-namespace/pods/secret-pod?secret=query";
        let response = self.gateway.http2(Some(&alice)).await.get(path, headers).await;
        assert_eq!(response.status(), StatusCode::OK);
        let seen = self.backend.take().unwrap();
        ["traceparent", "tracestate"].map(|name| seen.all(name).iter().map(ToString::to_string).collect())
    }
}

const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n";
const CLIENTS: [(&str, &str); 2] = [("traceparent", PARENT), ("tracestate", "vendor=1")];

#[tokio::test]
async fn without_traces_the_clients_context_passes() {
    let setup = Setup::new(None).await;
    assert_eq!(setup.forwarded("a", &CLIENTS).await, [[PARENT], ["vendor=1"]]);
    assert_eq!(setup.forwarded("a", &[]).await, [[""; 0]; 2]);
}

#[tokio::test]
async fn a_privileged_user_continues_its_trace() {
    let (collector, mut received) = collector().await;
    let setup = Setup::new(Some(&format!("endpoint: {collector}\n"))).await;
    let [parents, states] = setup.forwarded("system:monitoring", &CLIENTS).await;
    let [parent] = parents.as_slice() else { panic!("{parents:?}") };
    assert!(parent.starts_with(&format!("00-{TRACE_ID}-")) && parent.ends_with("-01"), "{parent}");
    assert!(!parent.contains("00f067aa0ba902b7"), "the span is the gateway's own: {parent}");
    assert_eq!(states, ["vendor=1"]);
    let message = in_time(received.recv()).await.unwrap();
    let text = String::from_utf8_lossy(&message);
    for expected in [
        "GET /api/v1/namespaces/{:namespace}/pods/{:name}",
        "HTTP GET",
        "authentication",
        "service.name",
        "audit-id",
        "/api/v1/namespaces/secret-namespace/pods/secret-pod",
    ] {
        assert!(text.contains(expected), "{expected} is missing in {text}");
    }
    for secret in ["secret=query", "alice", "system:monitoring"] {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
    setup.gateway.until_counted("portcullis_trace_spans_exported_total 3").await;
    // A scraper that asks for OpenMetrics gets the trace of the request.
    let metrics = setup.gateway.metrics_as("application/openmetrics-text; version=1.0.0").await;
    let exemplar = format!(" # {{trace_id=\"{TRACE_ID}\",span_id=\"");
    let is_exemplar = |line: &&str| {
        line.starts_with("apiserver_request_duration_seconds_bucket{verb=\"GET\"") && line.contains(&exemplar)
    };
    assert_eq!(metrics.lines().filter(is_exemplar).count(), 1, "{metrics}");
    assert!(
        metrics.contains("content-type: application/openmetrics-text; version=1.0.0")
            && metrics.ends_with("# EOF\n")
    );
    let text = setup.gateway.metrics("/metrics").await;
    assert!(text.contains("content-type: text/plain; version=0.0.4") && !text.contains(TRACE_ID), "{text}");
}

/// A request that is not sampled leaves no exemplar.
#[tokio::test]
async fn only_sampled_requests_are_exemplars() {
    let setup = Setup::new(Some("endpoint: 127.0.0.1:1\n")).await;
    setup.forwarded("a", &CLIENTS).await;
    // A request counts when its response has ended.
    setup.gateway.until_counted("apiserver_request_duration_seconds_count{verb=\"GET\"} 1").await;
    let metrics = setup.gateway.metrics_as("application/openmetrics-text").await;
    assert!(metrics.contains("apiserver_request_duration_seconds_count{verb=\"GET\"} 1"), "{metrics}");
    assert!(!metrics.contains("trace_id"), "{metrics}");
}

/// Otherwise every client could make the gateway and the backend record its requests.
#[tokio::test]
async fn an_ordinary_users_trace_is_not_continued() {
    let setup = Setup::new(Some("endpoint: 127.0.0.1:1\n")).await;
    let [parents, states] = setup.forwarded("a", &CLIENTS).await;
    let [parent] = parents.as_slice() else { panic!("{parents:?}") };
    assert!(!parent.contains(TRACE_ID) && parent.ends_with("-00"), "{parent}");
    assert_eq!(states, [""; 0]);
}

#[tokio::test]
async fn requests_are_sampled_by_the_rate() {
    let (collector, mut received) = collector().await;
    let setup = Setup::new(Some(&format!("endpoint: {collector}\nsamplingRatePerMillion: 1000000\n"))).await;
    let [parents, _] = setup.forwarded("a", &CLIENTS).await;
    assert!(parents[0].ends_with("-01") && !parents[0].contains(TRACE_ID), "{parents:?}");
    in_time(received.recv()).await.unwrap();
}

/// A collector that accepts and never answers delays no request, and the shutdown only for a bounded time.
#[tokio::test]
async fn a_silent_collector_delays_no_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, mut connected) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.read_u8().await.ok();
            held.push(stream);
            sender.send(()).ok();
        }
    });
    let mut setup =
        Setup::new(Some(&format!("endpoint: {address}\nsamplingRatePerMillion: 1000000\n"))).await;
    for _ in 0..20 {
        setup.forwarded("a", &[]).await;
    }
    in_time(connected.recv()).await.unwrap();
    setup.forwarded("a", &[]).await;
    let server = setup.gateway.take_server();
    let ended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let end = std::sync::Arc::clone(&ended);
    std::thread::spawn(move || {
        server.shut_down();
        end.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    until("the end of the shutdown", || ended.load(std::sync::atomic::Ordering::SeqCst)).await;
}

#[test]
fn the_configuration_is_checked() {
    let pki = Pki::new();
    let base = flags(&pki, SocketAddr::from(([127, 0, 0, 1], 6443)));
    for (configuration, expected) in [
        (HEAD.to_owned(), None),
        (format!("{HEAD}endpoint: dns:///collector:4317\nsamplingRatePerMillion: 1\n"), None),
        (format!("{HEAD}samplingRatePerMillion: 1000001\n"), Some("samplingRatePerMillion: Invalid value")),
        (format!("{HEAD}samplingRatePerMillion: -1\n"), Some("samplingRatePerMillion: Invalid value")),
        (format!("{HEAD}endpoint: unix:///run/otlp\n"), Some("endpoint: Invalid value")),
        (format!("{HEAD}endpoint: collector\n"), Some("endpoint: Invalid value")),
        (format!("{HEAD}sampling: 1\n"), Some("sampling")),
        (HEAD.replace("Tracing", "Other"), Some("no kind")),
        (String::new(), Some("empty config data")),
    ] {
        let file = pki.write("tracing.yaml", &configuration);
        let flag = format!("--tracing-config-file={}", file.display());
        let found =
            resolved(base.iter().cloned().chain([flag])).map(|_| ()).map_err(|errors| errors.to_string());
        match expected {
            None => assert_eq!(found, Ok(())),
            Some(expected) => {
                let found = found.unwrap_err();
                assert!(
                    found.contains(expected) && found.contains("tracing.yaml"),
                    "{configuration}: {found}"
                );
            }
        }
    }
}
