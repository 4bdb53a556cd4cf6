//! Traces: what the backend and the collector receive.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use testkit::{FakeBackend, Gateway, H2, Pki, flags, full, in_time, until};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::gateway::{InProcess as _, resolved};

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
        "service.name",
        "audit-id",
        "/api/v1/namespaces/secret-namespace/pods/secret-pod",
    ] {
        assert!(text.contains(expected), "{expected} is missing in {text}");
    }
    for secret in ["secret=query", "alice", "system:monitoring"] {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
    setup.gateway.until_counted("portcullis_trace_spans_exported_total 2").await;
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
