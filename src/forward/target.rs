//! How a backend is dialled: address, TLS with its CA, the gateway's credential.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::uri::Authority;
use rustls::ClientConfig;
use rustls::crypto::CryptoProvider;
use rustls_pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::settings::{Backend, HostPort, IdentityMode};

const KEEP_ALIVE: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A backend, ready to be dialled.
pub(crate) struct Target {
    address: HostPort,
    server_name: ServerName<'static>,
    either: TlsConnector,
    http1: TlsConnector,
    pub(super) authority: Authority,
    pub(super) path_prefix: String,
    pub(super) identity: IdentityMode,
    pub(super) authorization: Option<HeaderValue>,
}

/// Why there is no connection to the backend. Nothing of the request was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConnectError {
    /// The TCP connection failed.
    #[error("cannot connect to {address}: {cause}")]
    Tcp {
        /// What was dialled.
        address: String,
        /// The system's words.
        cause: String,
    },
    /// The TLS handshake failed.
    #[error("TLS handshake with {address} failed: {cause}")]
    Tls {
        /// What was dialled.
        address: String,
        /// rustls's words.
        cause: String,
    },
    /// HTTP could not begin.
    #[error("HTTP with {address} cannot begin: {cause}")]
    Http {
        /// What was dialled.
        address: String,
        /// hyper's words.
        cause: String,
    },
}

/// Which HTTP versions to offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    /// HTTP/2, else HTTP/1.1.
    Either,
    /// HTTP/1.1 alone: for upgrades, and for identities that make the backend close HTTP/2 connections.
    Http1,
}

impl Target {
    /// Prepares a backend; fails if its client certificate and key do not fit together.
    pub(crate) fn new(backend: &Backend, provider: &Arc<CryptoProvider>) -> Result<Self, rustls::Error> {
        let builder = ClientConfig::builder_with_provider(Arc::clone(provider))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(Arc::clone(&backend.roots.0));
        let mut either = match backend.client_certificate.clone() {
            Some(certificate) => builder.with_client_auth_cert(certificate.chain, certificate.key)?,
            None => builder.with_no_client_auth(),
        };
        let mut http1 = either.clone();
        either.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        let Some(endpoint) = backend.endpoints.first() else {
            return Err(rustls::Error::General("no endpoint".to_owned()));
        };
        let authorization = match &backend.bearer_token {
            Some(token) => {
                let mut value =
                    HeaderValue::from_str(&format!("Bearer {}", token.expose())).map_err(|_| {
                        rustls::Error::General("the bearer token cannot be sent in a header".to_owned())
                    })?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        Ok(Self {
            authority: endpoint
                .address
                .to_string()
                .parse()
                .map_err(|_| rustls::Error::General(format!("{} is no host and port", endpoint.address)))?,
            address: endpoint.address.clone(),
            server_name: endpoint.server_name.clone(),
            either: TlsConnector::from(Arc::new(either)),
            http1: TlsConnector::from(Arc::new(http1)),
            path_prefix: backend.path_prefix.clone(),
            identity: backend.identity,
            authorization,
        })
    }

    /// Dials. The address that is connected to is the one that was resolved here.
    pub(super) async fn connect(&self, offer: Offer) -> Result<TlsStream<TcpStream>, ConnectError> {
        let address = || self.address.to_string();
        let tcp = |cause: String| ConnectError::Tcp { address: address(), cause };
        let dial = TcpStream::connect((self.address.host.as_str(), self.address.port));
        let stream = match timeout(CONNECT_TIMEOUT, dial).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(tcp(error.to_string())),
            Err(_) => return Err(tcp(format!("no answer within {CONNECT_TIMEOUT:?}"))),
        };
        stream.set_nodelay(true).map_err(|error| tcp(error.to_string()))?;
        keep_alive(&stream);
        let tls = |cause: String| ConnectError::Tls { address: address(), cause };
        let connector = match offer {
            Offer::Either => &self.either,
            Offer::Http1 => &self.http1,
        };
        match timeout(HANDSHAKE_TIMEOUT, connector.connect(self.server_name.clone(), stream)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(tls(error.to_string())),
            Err(_) => Err(tls(format!("no answer within {HANDSHAKE_TIMEOUT:?}"))),
        }
    }

    /// The backend accepts connections and ends them before they can be used, as it does when it refuses the gateway's
    /// certificate under TLS 1.3.
    pub(super) fn hung_up(&self) -> ConnectError {
        let cause =
            "the connection ended before it could be used; is the gateway's certificate accepted?".to_owned();
        ConnectError::Http { address: self.address.to_string(), cause }
    }

    pub(super) fn http_error(&self, error: &hyper::Error) -> ConnectError {
        ConnectError::Http { address: self.address.to_string(), cause: error.to_string() }
    }
}

/// Lets the system find out that a silent peer is gone: a quiet watch or tunnel would hold its connections for ever.
// Go: net.ListenConfig and net.Dialer, KeepAlive
pub(crate) fn keep_alive(stream: &TcpStream) {
    let period = TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE);
    if let Err(error) = SockRef::from(stream).set_tcp_keepalive(&period) {
        tracing::debug!(%error, "cannot keep a connection alive");
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").field("address", &self.address).finish_non_exhaustive()
    }
}
