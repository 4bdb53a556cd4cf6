//! The admin listener, plain HTTP without authentication: `/metrics`, the health checks, and the
//! status of the clusters, in which there is no secret. Because clients are
//! anonymous, connections are few, carry one request each and have a short deadline. A thread of its own keeps them
//! from delaying the acceptor and the workers.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use portcullis_http::body::Body;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

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

type Handler = dyn Fn(&Request<Incoming>) -> Response<Body> + Send + Sync;

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
    let handler: Arc<Handler> = Arc::new(move |request| admin.respond(request));
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
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            sleep(OUT_OF_DESCRIPTORS_BACKOFF).await;
            continue;
        };
        let Some(slot) = quota.admit(peer.ip(), false) else { continue };
        let handler = Arc::clone(&handler);
        tokio::spawn(async move {
            tokio::select! {
                () = serve_one(stream, handler) => {}
                () = slot.evicted() => {}
            }
        });
    }
}

/// Serves one request.
async fn serve_one(stream: impl AsyncRead + AsyncWrite + Unpin, handler: Arc<Handler>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = handler(&request);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).keep_alive(false);
    timeout(CONNECTION_TIMEOUT, builder.serve_connection(TokioIo::new(stream), service)).await.ok();
}

impl AdminServer {
    fn respond(&self, request: &Request<Incoming>) -> Response<Body> {
        let status = |status| {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = status;
            response
        };
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            return status(StatusCode::METHOD_NOT_ALLOWED);
        }
        let path = request.uri().path();
        if path == "/metrics" {
            let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
            let exposition = Exposition::accepted_by(accept.unwrap_or_default());
            let (text, content_type) = self.metrics.expose(exposition);
            let mut response = Response::new(Body::bytes(text));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
            return response;
        }
        if path == "/clusters" {
            let list = ClusterStatusList::of(&self.live);
            let Ok(text) = serde_json::to_vec(&list) else {
                return status(StatusCode::INTERNAL_SERVER_ERROR);
            };
            let mut response = Response::new(Body::bytes(text));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            return response;
        }
        let response = match HealthRequest::of_path(path) {
            Some(HealthRequest::Root(endpoint)) => {
                Some(self.health.root(endpoint, None, request.uri().query()))
            }
            Some(HealthRequest::Single(check)) => self.health.single(&check),
            None => None,
        };
        response.unwrap_or_else(|| status(StatusCode::NOT_FOUND))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpSocket, TcpStream};

    use super::*;

    const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nhost: gateway\r\n\r\n";

    fn large(_: &Request<Incoming>) -> Response<Body> {
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
        let begun = tokio::time::Instant::now();
        serve_one(server, Arc::new(large)).await;
        assert_eq!(begun.elapsed(), CONNECTION_TIMEOUT);
    }
}
