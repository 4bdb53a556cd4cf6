//! The admin listener, plain HTTP without authentication: `/metrics`, the health checks, and the status of the clusters. The
//! status has no secret, but addresses, paths of files and error texts: only clients on this machine see it, unless the
//! configuration shows it to all. Because clients are anonymous, connections are few, carry one request each and have a
//! short deadline. A thread of its own keeps them from delaying the acceptor and the workers.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, FORWARDED, HeaderName, HeaderValue, VIA};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use portcullis_http::body::Body;
use portcullis_http::peer::client_network;
use portcullis_limits::fair_limiter::{FairLimiter, Shares};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::cluster_status::ClusterStatusList;
use crate::listener::{ConnectionQuota, Listener, ShutdownPhase};
use crate::metrics::{Exposition, Metrics};
use crate::pipeline::health::{HealthChecks, HealthRequest};
use crate::state::Live;
use crate::tasks::RuntimeThread;

/// Concurrent connections. When the limit is reached, the client network with the most connections loses one.
const MAX_CONNECTIONS: usize = 64;
/// How long the header of a request may take.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may last, with its response.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the listener waits after it ran out of file descriptors.
const OUT_OF_DESCRIPTORS_BACKOFF: Duration = Duration::from_millis(100);

/// The headers by which a proxy on this machine shows that it forwards the request of another client.
const FORWARDING_HEADERS: [HeaderName; 5] = [
    FORWARDED,
    VIA,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-real-ip"),
];

const STATUS_FORBIDDEN: &str = "the status of the clusters is shown only to clients on the gateway's own machine, over the \
                                loopback interface: run `portcullis clusters` there (kubectl exec, kubectl \
                                port-forward), or set --metrics-expose-cluster-status\n";

/// What costs the thread time, metrics and the status of the clusters, is made for one client at a time, and the networks of clients
/// take turns. Health checks wait for no turn.
const TURNS: Shares = Shares::new(1, 1).with_queue(MAX_CONNECTIONS, MAX_CONNECTIONS);

/// Responds to the request of a client at this address.
type Handler = dyn Fn(&Request<Incoming>, IpAddr) -> Response<Body> + Send + Sync;

/// The handler of the admin listener.
#[derive(Debug)]
pub(super) struct AdminServer {
    pub(super) metrics: Arc<Metrics>,
    pub(super) health: Arc<HealthChecks>,
    pub(super) live: Arc<Live>,
}

/// Serves until the server aborts, on a thread of its own.
pub(super) fn start(
    listener: Listener,
    admin: AdminServer,
    mut phase: watch::Receiver<ShutdownPhase>,
) -> io::Result<()> {
    let thread = RuntimeThread::new()?;
    let listener = {
        let _entered = thread.enter();
        listener.register()?
    };
    let handler: Arc<Handler> = Arc::new(move |request, peer| admin.respond(request, peer));
    thread.start("admin", async move || {
        tokio::select! {
            () = serve(listener, handler) => {}
            _ = phase.wait_for(|phase| *phase == ShutdownPhase::Abort) => {}
        }
    })?;
    Ok(())
}

// threat: metrics-port
async fn serve(listener: TcpListener, handler: Arc<Handler>) {
    let quota = ConnectionQuota::unauthenticated(MAX_CONNECTIONS);
    let turns = turns();
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            sleep(OUT_OF_DESCRIPTORS_BACKOFF).await;
            continue;
        };
        let Some(slot) = quota.admit(peer.ip(), false) else { continue };
        let (handler, turns) = (Arc::clone(&handler), Arc::clone(&turns));
        tokio::spawn(async move {
            tokio::select! {
                () = serve_one(stream, peer.ip(), handler, turns) => {}
                () = slot.evicted() => {}
            }
        });
    }
}

/// Serves one request of a client at this address.
async fn serve_one(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: IpAddr,
    handler: Arc<Handler>,
    turns: Arc<FairLimiter<IpAddr>>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (handler, turns) = (Arc::clone(&handler), Arc::clone(&turns));
        async move {
            let _turn = if is_costly(request.uri().path()) {
                let until = Instant::now() + CONNECTION_TIMEOUT;
                turns.acquire(client_network(peer), 1, until).await.ok()
            } else {
                None
            };
            // What waits has its turn, too.
            tokio::task::yield_now().await;
            Ok::<_, Infallible>(handler(&request, peer))
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).keep_alive(false);
    timeout(CONNECTION_TIMEOUT, builder.serve_connection(TokioIo::new(stream), service)).await.ok();
}

/// No client has a turn yet.
fn turns() -> Arc<FairLimiter<IpAddr>> {
    Arc::new(FairLimiter::new(TURNS))
}

fn is_costly(path: &str) -> bool {
    matches!(path, "/metrics" | "/clusters")
}

/// Whether a request comes from this machine: from the loopback interface, and not from a proxy there that forwards it.
// threat: cluster-status
fn is_local(peer: IpAddr, headers: &HeaderMap) -> bool {
    peer.to_canonical().is_loopback() && !FORWARDING_HEADERS.iter().any(|name| headers.contains_key(name))
}

impl AdminServer {
    fn respond(&self, request: &Request<Incoming>, peer: IpAddr) -> Response<Body> {
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            return empty(StatusCode::METHOD_NOT_ALLOWED);
        }
        let shows_status = || self.live.peek().exposes_cluster_status || is_local(peer, request.headers());
        let path = request.uri().path();
        let response = match (path, HealthRequest::of_path(path)) {
            ("/metrics", _) => Some(self.metrics(request.headers())),
            ("/clusters", _) if shows_status() => Some(self.clusters()),
            ("/clusters", _) => Some(forbidden()),
            (_, Some(HealthRequest::Root(endpoint))) => {
                Some(self.health.root(endpoint, None, request.uri().query()))
            }
            (_, Some(HealthRequest::Single(check))) if shows_status() => self.health.single(&check),
            (_, Some(HealthRequest::Single(check))) => self.health.single_without_reason(&check),
            (_, None) => None,
        };
        response.unwrap_or_else(|| empty(StatusCode::NOT_FOUND))
    }

    fn metrics(&self, headers: &HeaderMap) -> Response<Body> {
        let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
        let exposition = Exposition::accepted_by(accept.unwrap_or_default());
        let (text, content_type) = self.metrics.expose(exposition);
        with_type(Response::new(Body::bytes(text)), content_type)
    }

    fn clusters(&self) -> Response<Body> {
        match serde_json::to_vec(&ClusterStatusList::of(&self.live)) {
            Ok(text) => with_type(Response::new(Body::bytes(text)), "application/json"),
            Err(_) => empty(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

fn forbidden() -> Response<Body> {
    let mut response = Response::new(Body::bytes(STATUS_FORBIDDEN));
    *response.status_mut() = StatusCode::FORBIDDEN;
    with_type(response, "text/plain; charset=utf-8")
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

fn with_type(mut response: Response<Body>, content_type: &'static str) -> Response<Body> {
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};
    use testkit::Pki;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpSocket, TcpStream};
    use tokio::runtime::Handle;

    use super::*;
    use crate::cluster::authenticators::ClusterDeps;
    use crate::config::flags::ServeFlags;
    use crate::config::source::ConfigSource;
    use crate::state::reload::{BuildHistory, build_snapshot};

    const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nhost: gateway\r\n\r\n";
    /// The address of the API server, which only the status of the clusters has.
    const API_SERVER: &str = "127.0.0.1:1";

    fn large(_: &Request<Incoming>, _: IpAddr) -> Response<Body> {
        Response::new(Body::bytes(vec![b'x'; 1 << 20]))
    }

    #[tokio::test]
    async fn many_connections_of_one_client_make_room_for_another() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, Arc::new(large)));
        let mut crowd = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            crowd.push(TcpStream::connect(address).await.unwrap());
        }
        let other = TcpSocket::new_v4().unwrap();
        other.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut other = other.connect(address).await.unwrap();
        other.write_all(REQUEST).await.unwrap();
        let mut answer = Vec::new();
        other.read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200") && answer.len() > 1 << 20);
        let ended = timeout(HEADER_TIMEOUT / 2, crowd[0].read(&mut [0])).await;
        assert!(matches!(ended, Ok(Ok(0) | Err(_))), "{ended:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_disconnected() {
        let (mut client, server) = tokio::io::duplex(1024);
        client.write_all(REQUEST).await.unwrap();
        let begun = Instant::now();
        serve_one(server, IpAddr::from([127, 0, 0, 1]), Arc::new(large), turns()).await;
        assert_eq!(begun.elapsed(), CONNECTION_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_health_check_waits_for_no_metrics_of_other_clients() {
        let (turns, [other, probe]) = (turns(), [1, 2].map(|last| IpAddr::from([10, 0, 0, last])));
        let held = turns.acquire(other, 1, Instant::now()).await.unwrap();
        let ask = async |path: &str| {
            let (mut client, server) = tokio::io::duplex(2 << 20);
            client.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
            let begun = Instant::now();
            serve_one(server, probe, Arc::new(large), Arc::clone(&turns)).await;
            begun.elapsed()
        };
        assert_eq!(ask("/readyz").await, Duration::ZERO);
        let release = async {
            sleep(Duration::from_secs(1)).await;
            drop(held);
        };
        let (waited, ()) = tokio::join!(ask("/metrics"), release);
        assert_eq!(waited, Duration::from_secs(1));
    }

    #[tokio::test]
    async fn a_request_comes_from_the_address_of_its_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let echo = |_: &Request<Incoming>, peer: IpAddr| Response::new(Body::bytes(peer.to_string()));
        tokio::spawn(serve(listener, Arc::new(echo)));
        for from in ["127.0.0.1", "127.0.0.2"] {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
            let mut client = socket.connect(address).await.unwrap();
            client.write_all(REQUEST).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.ends_with(&format!("\r\n\r\n{from}")), "{answer}");
        }
    }

    /// The handler of a gateway whose API server has not passed a self-check.
    fn handler(more: &[&str]) -> Arc<Handler> {
        let pki = Pki::new();
        let given = testkit::flags(&pki, API_SERVER.parse().unwrap());
        let given = given.into_iter().chain(more.iter().map(|flag| (*flag).to_owned()));
        let command = ServeFlags::augment_args(clap::Command::new("serve").no_binary_name(true));
        let flags = ServeFlags::from_arg_matches(&command.try_get_matches_from(given).unwrap()).unwrap();
        let resolved = ConfigSource::new(flags).load().unwrap();
        let deps = ClusterDeps::idle(&Handle::current());
        let snapshot = build_snapshot(&resolved, None, &deps, &mut BuildHistory::default()).unwrap();
        let live = Live::new(snapshot, Arc::clone(&deps.reload));
        let (_, phase) = watch::channel(ShutdownPhase::Serving);
        let health = Arc::new(HealthChecks::new(Arc::clone(&live), phase));
        let admin = AdminServer { metrics: deps.metrics, health, live };
        Arc::new(move |request, peer| admin.respond(request, peer))
    }

    /// The response to a GET of a client at this address, with this header line.
    async fn get(handler: &Arc<Handler>, peer: &str, header: &str, path: &str) -> String {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let line = if header.is_empty() { String::new() } else { format!("{header}\r\n") };
        client.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\n{line}\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        let serving = serve_one(server, peer.parse().unwrap(), Arc::clone(handler), turns());
        let ((), read) = tokio::join!(serving, client.read_to_string(&mut answer));
        read.unwrap();
        answer
    }

    #[tokio::test]
    async fn only_clients_on_this_machine_see_the_status_of_the_clusters() {
        let handler = handler(&[]);
        for (peer, header, is_local) in [
            ("127.0.0.1", "", true),
            ("127.0.0.6", "", true),
            ("::1", "", true),
            ("::ffff:127.0.0.1", "", true),
            ("192.0.2.1", "", false),
            ("10.0.0.1", "", false),
            ("169.254.1.1", "", false),
            ("fd00::1", "", false),
            ("fe80::1", "", false),
            ("::ffff:192.0.2.1", "", false),
            // A client cannot claim to be on this machine.
            ("192.0.2.1", "X-Forwarded-For: 127.0.0.1", false),
            ("192.0.2.1", "Forwarded: for=127.0.0.1", false),
            ("192.0.2.1", "Host: localhost", false),
            // Forwarded by a proxy on this machine.
            ("127.0.0.1", "X-Forwarded-For: 192.0.2.1", false),
            ("::1", "Forwarded: for=192.0.2.1", false),
            ("127.0.0.1", "Via: 1.1 proxy", false),
            ("127.0.0.1", "X-Real-IP: 192.0.2.1", false),
            ("127.0.0.1", "X-Forwarded-Host: gateway", false),
        ] {
            let case = format!("{peer} {header}");
            let clusters = get(&handler, peer, header, "/clusters").await;
            let check = get(&handler, peer, header, "/readyz/cluster-backend").await;
            assert!(check.starts_with("HTTP/1.1 500"), "{case}: {check}");
            assert_eq!(clusters.contains(API_SERVER), is_local, "{case}: {clusters}");
            assert_eq!(check.contains(API_SERVER), is_local, "{case}: {check}");
            if is_local {
                assert!(clusters.starts_with("HTTP/1.1 200"), "{case}: {clusters}");
            } else {
                assert!(clusters.starts_with("HTTP/1.1 403"), "{case}: {clusters}");
                assert!(clusters.ends_with(STATUS_FORBIDDEN), "{case}: {clusters}");
                assert!(check.contains("reason withheld"), "{case}: {check}");
            }
            // What probes and Prometheus read is for all.
            for (path, code) in
                [("/metrics", 200), ("/livez", 500), ("/livez/ping", 200), ("/readyz/none", 404)]
            {
                let answer = get(&handler, peer, header, path).await;
                assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{case} {path}: {answer}");
            }
        }
    }

    #[tokio::test]
    async fn the_status_of_the_clusters_is_shown_to_all_on_request() {
        let handler = handler(&["--metrics-expose-cluster-status"]);
        for (peer, header) in [("192.0.2.1", ""), ("127.0.0.1", "Via: 1.1 proxy")] {
            for path in ["/clusters", "/readyz/cluster-backend"] {
                let answer = get(&handler, peer, header, path).await;
                assert!(answer.contains(API_SERVER), "{peer} {path}: {answer}");
            }
        }
    }
}
