//! Far ends that accept and never answer, in every way: each request ends, and the next one has a new connection.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::stream::pending;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ListParams, PostParams, WatchParams};
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs::default_provider;
use testkit::pki::Ca;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::error::Elapsed;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::backend::probe::ProbeClient;
use crate::backend::settings::{self, HostPort, TrustedRoots};
use crate::http::https_client::testing::{H1, H2, serving};

/// What an API server does with its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FarEnd {
    /// Takes them, and says nothing.
    Tcp,
    /// Says nothing after the TLS handshake.
    Tls,
    /// Answers the first request of all, and no other.
    Http,
    /// The same, but answers the others with a head, and nothing after it.
    Head,
    /// Answers one request on its first connection and none there later; all on others.
    FrozenFirst,
}

type Answered = Result<Response<UnsyncBoxBody<Bytes, Infallible>>, Infallible>;

impl FarEnd {
    async fn answer(self, connection: usize, earlier: usize) -> Answered {
        let object = Full::from(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}"#);
        match self {
            Self::Http | Self::Head if earlier == 0 => Ok(Response::new(object.boxed_unsync())),
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

    /// Whether it answers requests before it falls silent.
    fn answers_first(self) -> bool {
        matches!(self, Self::Http | Self::Head)
    }

    /// Such an API server, which is trusted, and its task.
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
        let mut roots = RootCertStore::empty();
        roots.add(ca.cert.clone()).unwrap();
        let settings = settings::Backend {
            endpoints: vec![settings::Endpoint {
                address: HostPort { host: "127.0.0.1".to_owned(), port },
                server_name: "backend.test".try_into().unwrap(),
            }],
            path_prefix: String::new(),
            roots: TrustedRoots(Arc::new(roots)),
            client_certificate: None,
            bearer_token: None,
            identity: IdentityMode::Impersonate,
            identity_headers: None,
        };
        let backend = Backend::new(&settings, &Arc::new(default_provider())).unwrap();
        let endpoint = &backend.endpoints()[0];
        assert!(endpoint.set_trusted(endpoint.trust()));
        (Arc::new(backend), task)
    }
}

#[derive(Debug, Clone, Copy)]
enum Asks {
    Read,
    List,
    Watch,
    Write,
}

impl Asks {
    async fn ask(self, client: kube::Client) -> Result<(), kube::Error> {
        let api = Api::<ConfigMap>::namespaced(client, "default");
        match self {
            Self::Read => api.get("x").await.map(drop),
            Self::List => api.list(&ListParams::default().limit(500)).await.map(drop),
            Self::Watch => api.watch(&WatchParams::default(), "1").await.map(drop),
            Self::Write => api.create(&PostParams::default(), &ConfigMap::default()).await.map(drop),
        }
    }

    fn bound(self, far_end: FarEnd) -> Duration {
        match (self, far_end) {
            (_, FarEnd::Head) => ANSWER_TIMEOUT,
            (Self::Read | Self::Watch, _) => PROMPT_HEAD_TIMEOUT,
            (Self::List | Self::Write, _) => HEAD_TIMEOUT,
        }
    }
}

/// What comes of something while nothing arrives from anywhere, so that only the clock can end it; and how long it takes.
async fn in_silence<T>(doing: impl Future<Output = T>) -> (Result<T, Elapsed>, Duration) {
    tokio::time::pause();
    let began = Instant::now();
    let done = timeout(Duration::from_mins(30), doing).await;
    let took = began.elapsed();
    tokio::time::resume();
    (done, took)
}

#[tokio::test]
async fn every_request_ends_whose_api_server_accepts_and_never_answers() {
    let mut failures = Vec::new();
    for alpn in [H1, H2] {
        for far_end in [FarEnd::Tcp, FarEnd::Tls, FarEnd::Http, FarEnd::Head] {
            for asks in [Asks::Read, Asks::List, Asks::Watch, Asks::Write] {
                // The head of a watch is an answer; what comes after it is its reader's business.
                if matches!((asks, far_end), (Asks::Watch, FarEnd::Head)) {
                    continue;
                }
                let (backend, task) = far_end.start(alpn).await;
                let client = client(&backend);
                if far_end.answers_first() {
                    asks.ask(client.clone()).await.ok();
                }
                let (asked, took) = in_silence(asks.ask(client)).await;
                let bound = asks.bound(far_end) + Duration::from_millis(100);
                if !matches!(asked, Ok(Err(_))) || took > bound {
                    failures.push(format!(
                        "{far_end:?}, {asks:?}, {} protocols: {asked:?} after {took:?}",
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
async fn a_frozen_connection_is_not_used_again() {
    for alpn in [H1, H2] {
        let (backend, _task) = FarEnd::FrozenFirst.start(alpn).await;
        let client = client(&backend);
        Asks::Read.ask(client.clone()).await.unwrap();
        // The connection goes back to where the next request finds it.
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        let (silent, _) = in_silence(Asks::Read.ask(client.clone())).await;
        assert!(silent.unwrap().unwrap_err().to_string().contains("no answer of the API server within 10s"));
        Asks::Read.ask(client).await.unwrap();
    }
}

/// The elector gives its renewals up sooner than they are given up here.
#[tokio::test]
async fn a_connection_on_which_a_request_was_given_up_from_outside_is_not_used_again() {
    let (backend, _task) = FarEnd::FrozenFirst.start(H2).await;
    let client = client(&backend);
    Asks::Read.ask(client.clone()).await.unwrap();
    let given_up = timeout(Duration::from_secs(5), Asks::Write.ask(client.clone()));
    assert!(in_silence(given_up).await.0.unwrap().is_err());
    Asks::Read.ask(client).await.unwrap();
}

/// The check of an endpoint has a connection of its own.
#[tokio::test]
async fn every_check_ends_whose_api_server_accepts_and_never_answers() {
    for alpn in [H1, H2] {
        for far_end in [FarEnd::Tcp, FarEnd::Tls, FarEnd::Http, FarEnd::Head] {
            let (backend, task) = far_end.start(alpn).await;
            let line = ProbeClient::new(Arc::clone(&backend), &backend.endpoints()[0]);
            if far_end.answers_first() {
                line.ask(None, "/x", None).await.unwrap();
            }
            let (asked, took) = in_silence(line.ask(None, "/x", None)).await;
            assert!(matches!(asked, Ok(Err(_))), "{far_end:?}: {asked:?}");
            assert!(took <= Duration::from_millis(10_100), "{far_end:?}: {took:?}");
            task.abort();
        }
    }
}
