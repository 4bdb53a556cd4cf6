//! API servers that fall silent at each step: every request ends in time, and the next one gets a new connection.

use std::convert::Infallible;
use std::iter::repeat;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::TryStreamExt as _;
use futures_util::stream::{iter, pending};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ListParams, PostParams, WatchParams};
use portcullis_http::https_client::testing::{H1, H2, serving, trusting};
use portcullis_http::loop_detection::GatewayId;
use testkit::pki::Ca;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::error::Elapsed;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::backend::probe::ProbeClient;
use crate::backend::response_size::is_too_large;
use crate::backend::settings::{self, HostPort};

/// How an API server treats its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FaultyServer {
    /// Accepts them, and sends nothing.
    Tcp,
    /// Sends nothing after the TLS handshake.
    Tls,
    /// Answers the very first request, and no other.
    Http,
    /// The same, but answers the others with a head and no body.
    Head,
    /// Answers one request on its first connection, and all requests on other connections.
    FrozenFirst,
    /// Answers without end.
    Endless,
}

type Answer = Result<Response<UnsyncBoxBody<Bytes, Infallible>>, Infallible>;

impl FaultyServer {
    async fn answer(self, connection: usize, earlier: usize) -> Answer {
        let object = Full::from(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}"#);
        match self {
            Self::Http | Self::Head if earlier == 0 => Ok(Response::new(object.boxed_unsync())),
            Self::Endless => {
                let pieces = repeat(Bytes::from(vec![b' '; 1 << 20])).map(|piece| Ok(Frame::data(piece)));
                Ok(Response::new(StreamBody::new(iter(pieces)).boxed_unsync()))
            }
            Self::Head => Ok(Response::new(StreamBody::new(pending()).boxed_unsync())),
            Self::FrozenFirst if connection > 0 || earlier == 0 => Ok(Response::new(object.boxed_unsync())),
            _ => std::future::pending().await,
        }
    }

    async fn serve(
        self,
        stream: TcpStream,
        acceptor: TlsAcceptor,
        connection: usize,
        requests: Arc<AtomicUsize>,
    ) {
        if self == Self::Tcp {
            return std::future::pending().await;
        }
        let stream = acceptor.accept(stream).await.unwrap();
        if self == Self::Tls {
            return std::future::pending().await;
        }
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let service = service_fn(move |_: Request<Incoming>| {
            self.answer(connection, requests.fetch_add(1, Ordering::SeqCst))
        });
        let io = TokioIo::new(stream);
        if is_http2 {
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            server.serve_connection(io, service).await.ok();
        } else {
            hyper::server::conn::http1::Builder::new().serve_connection(io, service).await.ok();
        }
    }

    /// Whether it answers a request before it falls silent.
    fn answers_first(self) -> bool {
        matches!(self, Self::Http | Self::Head)
    }

    /// Starts the server; returns a backend that trusts it, and the server's task.
    async fn start(self, alpn: &[&[u8]]) -> (Arc<Backend>, JoinHandle<()>) {
        let ca = Ca::new("servers");
        let acceptor = TlsAcceptor::from(Arc::new(serving(&ca.server(&["backend.test"]), None, alpn)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            let requests = Arc::new(AtomicUsize::new(0));
            for number in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(self.serve(stream, acceptor.clone(), number, Arc::clone(&requests)));
            }
        });
        let settings = settings::Backend {
            endpoints: vec![settings::Endpoint {
                address: HostPort { host: "127.0.0.1".to_owned(), port },
                server_name: "backend.test".try_into().unwrap(),
                source: settings::EndpointSource::default(),
            }],
            path_prefix: String::new(),
            roots: trusting(&ca).roots,
            client_certificate: None,
            bearer_token: None,
            identity: IdentityMode::Impersonate,
            identity_headers: None,
            discovery: settings::EndpointDiscovery::None,
            policy: settings::BackendPolicy::default(),
        };
        let backend = crate::backend::testing::with_settings(&settings);
        let endpoint = &backend.endpoints()[0];
        assert!(endpoint.set_trusted(endpoint.trust_version()));
        (Arc::new(backend), task)
    }
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    Read,
    List,
    Watch,
    Write,
}

impl Operation {
    async fn run(self, client: kube::Client) -> Result<(), kube::Error> {
        let api = Api::<ConfigMap>::namespaced(client, "default");
        match self {
            Self::Read => api.get("x").await.map(drop),
            Self::List => api.list(&ListParams::default().limit(500)).await.map(drop),
            Self::Watch => api.watch(&WatchParams::default(), "1").await.map(drop),
            Self::Write => api.create(&PostParams::default(), &ConfigMap::default()).await.map(drop),
        }
    }

    fn bound(self, server: FaultyServer) -> Duration {
        match (self, server) {
            (_, FaultyServer::Head) => RESPONSE_TIMEOUT,
            (Self::Read | Self::Watch, _) => PROMPT_HEAD_TIMEOUT,
            (Self::List | Self::Write, _) => HEAD_TIMEOUT,
        }
    }
}

/// Runs `future` on a paused clock, so that only timeouts can end it; returns its output and the time it took.
async fn in_silence<T>(future: impl Future<Output = T>) -> (Result<T, Elapsed>, Duration) {
    tokio::time::pause();
    let began = Instant::now();
    let done = timeout(Duration::from_mins(30), future).await;
    let took = began.elapsed();
    tokio::time::resume();
    (done, took)
}

#[tokio::test]
async fn every_request_to_a_silent_api_server_ends() {
    let mut failures = Vec::new();
    for alpn in [H1, H2] {
        for server in [FaultyServer::Tcp, FaultyServer::Tls, FaultyServer::Http, FaultyServer::Head] {
            for operation in [Operation::Read, Operation::List, Operation::Watch, Operation::Write] {
                // The head is a valid response to a watch; its reader has deadlines of its own.
                if matches!((operation, server), (Operation::Watch, FaultyServer::Head)) {
                    continue;
                }
                let (backend, task) = server.start(alpn).await;
                let client = client(&backend);
                if server.answers_first() {
                    operation.run(client.clone()).await.ok();
                }
                let (outcome, took) = in_silence(operation.run(client)).await;
                let bound = operation.bound(server) + Duration::from_millis(100);
                if !matches!(outcome, Ok(Err(_))) || took > bound {
                    failures.push(format!(
                        "{server:?}, {operation:?}, {} protocols: {outcome:?} after {took:?}",
                        alpn.len()
                    ));
                }
                task.abort();
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[tokio::test]
async fn every_response_has_a_maximum_size() {
    let (backend, _task) = FaultyServer::Endless.start(H2).await;
    let client = client(&backend);
    for operation in [Operation::Read, Operation::List, Operation::Write] {
        let error = operation.run(client.clone()).await.unwrap_err();
        assert!(is_too_large(&error), "{operation:?}: {error}");
    }
    let maps = Api::<ConfigMap>::namespaced(client, "default");
    let events = maps.watch(&WatchParams::default(), "1").await.unwrap();
    let error = pin!(events).try_next().await.unwrap_err();
    assert!(is_too_large(&error), "watch: {error}");
}

#[tokio::test]
async fn a_frozen_connection_is_not_used_again() {
    for alpn in [H1, H2] {
        let (backend, _task) = FaultyServer::FrozenFirst.start(alpn).await;
        let client = client(&backend);
        Operation::Read.run(client.clone()).await.unwrap();
        // Until the connection is back in the pool.
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        let (silent, _) = in_silence(Operation::Read.run(client.clone())).await;
        assert!(
            silent.unwrap().unwrap_err().to_string().contains("no response from the API server within 10s")
        );
        Operation::Read.run(client).await.unwrap();
    }
}

/// Leader election gives up its renewals before this client's deadline.
#[tokio::test]
async fn a_connection_whose_request_the_caller_gave_up_is_not_used_again() {
    let (backend, _task) = FaultyServer::FrozenFirst.start(H2).await;
    let client = client(&backend);
    Operation::Read.run(client.clone()).await.unwrap();
    let given_up = timeout(Duration::from_secs(5), Operation::Write.run(client.clone()));
    assert!(in_silence(given_up).await.0.unwrap().is_err());
    Operation::Read.run(client).await.unwrap();
}

/// The self-check of an endpoint has a connection of its own.
#[tokio::test]
async fn every_self_check_of_a_silent_api_server_ends() {
    for alpn in [H1, H2] {
        for server in [FaultyServer::Tcp, FaultyServer::Tls, FaultyServer::Http, FaultyServer::Head] {
            let (backend, task) = server.start(alpn).await;
            let probe =
                ProbeClient::new(Arc::clone(&backend), &backend.endpoints()[0], &GatewayId::default());
            if server.answers_first() {
                probe.send(None, "/x", None).await.unwrap();
            }
            let (outcome, took) = in_silence(probe.send(None, "/x", None)).await;
            assert!(matches!(outcome, Ok(Err(_))), "{server:?}: {outcome:?}");
            assert!(took <= Duration::from_millis(10_100), "{server:?}: {took:?}");
            task.abort();
        }
    }
}

#[tokio::test]
async fn connections_without_requests_are_closed() {
    let (backend, _task) = FaultyServer::FrozenFirst.start(H2).await;
    let pools = Arc::new(pools(&backend));
    let open = || pools.open_connections(SharingClass::Short);
    let send = || {
        let (backend, pools) = (Arc::clone(&backend), Arc::clone(&pools));
        let request = Request::builder().uri(backend.uri(None, PathAndQuery::from_static("/x")).unwrap());
        let request = Box::new(request.body(Body::empty()).unwrap());
        async move { pools.send(&backend, request, SharingClass::Short).await.map(drop) }
    };
    send().await.unwrap();
    let waiting = tokio::spawn(send());
    for _ in 0..4 {
        tokio::task::yield_now().await;
        pools.close_idle();
        assert_eq!(open(), 1, "a request waits for its response");
    }
    waiting.abort();
    assert!(waiting.await.is_err());
    pools.close_idle();
    pools.close_idle();
    assert_eq!(open(), 0);
    // One that was used since is kept for another interval.
    send().await.unwrap();
    pools.close_idle();
    assert_eq!(open(), 1);
    pools.close_idle();
    assert_eq!(open(), 0);
}
