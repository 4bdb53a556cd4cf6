//! The page's listener: TLS and HTTP/1.1 with limits on connections, time and size, behind the layers of `tower-http`.
//! Browsers share no HTTP/1.1 connection between two hosts.
// threat: page-flood

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use portcullis_http::peer::enable_tcp_keep_alive;
use rustls::ServerConfig;
use rustls::sign::SingleCertAndKey;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tower::{BoxError, Service, ServiceBuilder, service_fn};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;
use tracing::{debug, debug_span};

use super::{Page, html};
use crate::config::page_settings::PageSettings;
use crate::listener::{ConnectionLimiter, ConnectionOrigin, accept_tls};

/// Concurrent connections. When the limit is reached, the client network with the most connections loses one.
const MAX_CONNECTIONS: usize = 256;
/// How long a TLS handshake may take, and the header of a request, from the end of the response before it.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_TIMEOUT: Duration = Duration::from_secs(20);
/// How long an answer may take to be made. A provider has less.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(40);
/// How long a connection may last, with a client that reads slowly.
const CONNECTION_TIMEOUT: Duration = Duration::from_mins(3);
/// The cookies of a session have up to 12 KiB.
const MAX_HEADER_BYTES: usize = 32 << 10;
const MAX_HEADERS: usize = 64;
/// The body of the only form.
const MAX_BODY_BYTES: usize = 4 << 10;

/// Serves connections until the future is dropped.
// threat: forged-proxy-header
pub(super) async fn serve(listener: TcpListener, page: Arc<Page>) {
    let limiter = Arc::new(ConnectionLimiter::without_workers(MAX_CONNECTIONS, Arc::clone(page.metrics())));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                limiter.wait_after(&error).await;
                continue;
            }
        };
        let Some(in_force) = page.in_force() else { continue };
        let Some(origin) = limiter.admit(peer, in_force.settings.proxy_protocol.as_ref()) else { continue };
        stream.set_nodelay(true).ok();
        enable_tcp_keep_alive(&stream);
        let (page, limiter, tls) = (Arc::clone(&page), Arc::clone(&limiter), Arc::clone(&in_force.tls));
        tokio::spawn(accepted(stream, origin, limiter, tls, page));
    }
}

/// Serves a connection of the client that a load balancer may have to name first.
async fn accepted(
    mut stream: TcpStream,
    origin: ConnectionOrigin,
    limiter: Arc<ConnectionLimiter>,
    tls: Arc<ServerConfig>,
    page: Arc<Page>,
) {
    let header_timeout = page.live().peek().limits.proxy_header_timeout;
    let Some((client, slot)) = origin.client(&mut stream, &limiter, header_timeout).await else { return };
    tokio::select! {
        () = serve_client(stream, client, &limiter, tls, page) => {}
        () = slot.evicted() => debug!(peer = %client, "connection to the page closed: evicted"),
    }
}

/// The TLS configuration of these settings. Its sessions are resumed by connections of the same settings alone.
pub(super) fn tls_config(settings: &PageSettings) -> Result<ServerConfig, rustls::Error> {
    let certificate = settings.certificate.certified_key();
    let mut config = ServerConfig::builder_with_provider(Arc::clone(&settings.crypto))
        .with_protocol_versions(&settings.versions)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certificate)));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Early data could be replayed.
    config.max_early_data_size = 0;
    Ok(config)
}

async fn serve_client(
    stream: TcpStream,
    peer: SocketAddr,
    limiter: &ConnectionLimiter,
    tls: Arc<ServerConfig>,
    page: Arc<Page>,
) {
    let stream = match timeout(HANDSHAKE_TIMEOUT, accept_tls(tls, stream, peer, limiter)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!(%peer, %error, "TLS handshake with the page failed"),
        Err(_) => return debug!(%peer, "TLS handshake with the page: timeout"),
    };
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES);
    let service = TowerToHyperService::new(layered(page, peer));
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    if let Ok(Err(error)) = timeout(CONNECTION_TIMEOUT, connection).await {
        debug!(%peer, %error, "connection to the page failed");
    }
}

/// The page's answers within the layers. The outermost ones come first.
fn layered(
    page: Arc<Page>,
    peer: SocketAddr,
) -> impl Service<
    Request<Incoming>,
    Response = Response<impl Body<Data = Bytes, Error: Into<BoxError>> + Send>,
    Error = Infallible,
    Future: Send,
> + Clone {
    let metrics = Arc::clone(page.metrics());
    let panics = metrics.panics.clone();
    let answer = service_fn(move |request| {
        let page = Arc::clone(&page);
        // Boxed, so that its type is known.
        async move { Ok::<_, Infallible>(page.answer(peer, request).await) }.boxed()
    });
    // The path alone: the query of a callback has the code of a login.
    // No line for each 5xx: anonymous clients cause them, and their causes are logged where they occur.
    let trace = TraceLayer::new_for_http().on_failure(()).make_span_with(
        |request: &Request<Incoming>| debug_span!("page", method = %request.method(), path = request.uri().path()),
    );
    ServiceBuilder::new()
        .layer(trace)
        .map_response(move |response: Response<_>| {
            metrics.page.answered(response.status());
            html::secured(response)
        })
        .layer(CompressionLayer::new().compress_when(is_style_sheet))
        .layer(CatchPanicLayer::custom(move |_| {
            panics.inc();
            html::fallback(StatusCode::INTERNAL_SERVER_ERROR)
        }))
        .layer(TimeoutLayer::with_status_code(StatusCode::SERVICE_UNAVAILABLE, REQUEST_TIMEOUT))
        .layer(RequestBodyLimitLayer::new(MAX_BODY_BYTES))
        .service(answer)
}

/// Only what has no secret is compressed: the length of a compressed page tells about a secret beside a text of an
/// attacker (BREACH).
// threat: page-cross-site
fn is_style_sheet(_: StatusCode, _: Version, headers: &HeaderMap, _: &http::Extensions) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/css"))
}
