//! A small HTTPS server at 127.0.0.1: the listener of the embedded API servers, of the provider and of the webhook.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use portcullis_pki::x509::CaBundle;
use portcullis_pki::x509::key_pair::CertificateKeyPair;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::SingleCertAndKey;
use rustls::{RootCertStore, ServerConfig};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use crate::authn::ConnInfo;
use crate::authn::x509::UnverifiedChain;

const OUT_OF_DESCRIPTORS_BACKOFF: Duration = Duration::from_millis(100);

pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;
pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// Answers the requests of a server.
pub(super) trait Handler: Send + Sync + 'static {
    fn respond(
        &self,
        conn: &ConnInfo,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Body>> + Send;
}

/// A running server. Dropping it closes the listener and every connection.
#[derive(Debug)]
pub(super) struct HttpsServer {
    pub(super) address: SocketAddr,
    _acceptor: AbortOnDropHandle<()>,
}

impl HttpsServer {
    /// Serves on a free port. Clients need a certificate of `clients`, if there is one.
    pub(super) async fn start(
        pair: &CertificateKeyPair,
        clients: Option<&CaBundle>,
        handler: impl Handler,
    ) -> Result<Self, BoxError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        Self::serve(listener, pair, clients, handler)
    }

    /// Serves on a listener.
    pub(super) fn serve(
        listener: TcpListener,
        pair: &CertificateKeyPair,
        clients: Option<&CaBundle>,
        handler: impl Handler,
    ) -> Result<Self, BoxError> {
        let address = listener.local_addr()?;
        let tls = TlsAcceptor::from(Arc::new(tls_config(clients, pair)?));
        let acceptor = tokio::spawn(accept(listener, tls, Arc::new(handler)));
        Ok(Self { address, _acceptor: AbortOnDropHandle::new(acceptor) })
    }
}

fn tls_config(clients: Option<&CaBundle>, pair: &CertificateKeyPair) -> Result<ServerConfig, BoxError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let config = if let Some(clients) = clients {
        let mut roots = RootCertStore::empty();
        for authority in clients.certificates() {
            roots.add(authority.der.clone())?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
        config.with_client_cert_verifier(verifier.build()?)
    } else {
        config.with_no_client_auth()
    };
    let mut config = config.with_cert_resolver(Arc::new(SingleCertAndKey::from(pair.certified_key())));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, handler: Arc<impl Handler>) {
    // Owns the connections, so that they end with the listener.
    let mut connections = JoinSet::new();
    loop {
        while let Some(ended) = connections.try_join_next() {
            tracing::debug!(?ended, "a connection to a server of `portcullis dev`");
        }
        let Ok((socket, peer)) = listener.accept().await else {
            tokio::time::sleep(OUT_OF_DESCRIPTORS_BACKOFF).await;
            continue;
        };
        connections.spawn(serve_connection(socket, peer, acceptor.clone(), Arc::clone(&handler)));
    }
}

async fn serve_connection(
    socket: TcpStream,
    peer: SocketAddr,
    acceptor: TlsAcceptor,
    handler: Arc<impl Handler>,
) -> Result<(), BoxError> {
    socket.set_nodelay(true)?;
    let stream = acceptor.accept(socket).await?;
    let (_, session) = stream.get_ref();
    let is_http2 = session.alpn_protocol() == Some(b"h2");
    let peer_chain = UnverifiedChain::new(session.peer_certificates().unwrap_or_default().to_vec());
    let conn = Arc::new(ConnInfo::new(peer, None, peer_chain));
    let service = service_fn(move |request| {
        let (handler, conn) = (Arc::clone(&handler), Arc::clone(&conn));
        async move { Ok::<_, Infallible>(handler.respond(&conn, request).await) }
    });
    let io = TokioIo::new(stream);
    if is_http2 {
        return Ok(http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await?);
    }
    Ok(http1::Builder::new().serve_connection(io, service).await?)
}

pub(super) fn json_response(code: u16, value: &Value) -> Response<Body> {
    response(code, "application/json", Full::from(format!("{value:#}\n")).boxed_unsync())
}

pub(super) fn response(code: u16, media_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or_default();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}
