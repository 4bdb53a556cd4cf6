//! One endpoint: how it is dialled (address, TLS with its CA, the gateway's credential), and whether it is used.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls_pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::settings::{self, HostPort};
pub(crate) use crate::backend::client_certificate::CertificateRequest;
use crate::backend::client_certificate::{CertificateRecorder, ClientCertificate};

const KEEP_ALIVE: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long others are tried before an endpoint that could not be reached.
const UNREACHABLE_BACKOFF: Duration = Duration::from_secs(5);

/// An endpoint ready to be dialled, and what is known of it. One for the process; it outlives a reload that does not
/// touch its cluster's backend.
pub(crate) struct Endpoint {
    address: HostPort,
    server_name: ServerName<'static>,
    tls: Connectors,
    health: Arc<EndpointHealth>,
    recheck: Notify,
    /// Whether it is dialled by nobody but the check.
    is_for_checks: bool,
}

/// TLS to an endpoint, with the gateway's credential.
#[derive(Clone)]
pub(super) struct Connectors {
    either: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
    certificate: Option<Arc<ClientCertificate>>,
    watched: Option<Arc<CertificateRecorder>>,
}

/// Whether an endpoint is used.
#[derive(Debug, Default)]
struct EndpointHealth {
    /// Odd while it is seen to take identities as they are; grows with every change.
    trust: AtomicU64,
    /// Why the last dial failed, if it did.
    failure: Mutex<Option<DialFailure>>,
    /// Whether the first check has ended, well or not.
    checked: AtomicBool,
}

/// A dial that failed.
#[derive(Debug)]
struct DialFailure {
    since: Instant,
    error: ConnectError,
    /// Whether a check has reached the endpoint since, over a connection that was open.
    is_over: bool,
}

impl DialFailure {
    fn new(error: ConnectError) -> Self {
        Self { since: Instant::now(), error, is_over: false }
    }
}

/// How far an endpoint was trusted when a check of it began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trust(u64);

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
pub(crate) enum Offer {
    /// HTTP/2, else HTTP/1.1.
    Either,
    /// HTTP/1.1 alone: for upgrades, and for identities that make the backend close HTTP/2 connections.
    Http1,
}

impl Connectors {
    /// Fails if the provider has no TLS version in common with us.
    pub(super) fn new(
        settings: &settings::Backend,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, rustls::Error> {
        let builder = ClientConfig::builder_with_provider(Arc::clone(provider))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(Arc::clone(&settings.roots.0));
        let certificate =
            settings.client_certificate.as_ref().map(|pair| Arc::new(ClientCertificate::new(pair)));
        let mut either = match &certificate {
            Some(certificate) => builder.with_client_cert_resolver(certificate.clone()),
            None => builder.with_no_client_auth(),
        };
        let mut http1 = either.clone();
        either.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { either: Arc::new(either), http1: Arc::new(http1), certificate, watched: None })
    }

    /// The same, such that every handshake is a whole one and is watched.
    fn watched(&self) -> Self {
        let watched = self
            .certificate
            .as_ref()
            .map(|certificate| Arc::new(CertificateRecorder::new(Arc::clone(certificate))));
        let anew = |config: &Arc<ClientConfig>| {
            let mut config = ClientConfig::clone(config);
            config.resumption = Resumption::disabled();
            if let Some(watched) = &watched {
                config.client_auth_cert_resolver = watched.clone();
            }
            Arc::new(config)
        };
        let (either, http1) = (anew(&self.either), anew(&self.http1));
        Self { either, http1, certificate: self.certificate.clone(), watched }
    }
}

impl Endpoint {
    pub(super) fn new(endpoint: &settings::Endpoint, tls: &Connectors) -> Self {
        Self {
            address: endpoint.address.clone(),
            server_name: endpoint.server_name.clone(),
            tls: tls.clone(),
            health: Arc::default(),
            recheck: Notify::new(),
            is_for_checks: false,
        }
    }

    /// The same endpoint for the connections of its check: what is found out by either is known to both, and what
    /// happens to the connections of one is no doubt of the other.
    pub(crate) fn for_checks(&self) -> Self {
        Self {
            address: self.address.clone(),
            server_name: self.server_name.clone(),
            tls: self.tls.watched(),
            health: Arc::clone(&self.health),
            recheck: Notify::new(),
            is_for_checks: true,
        }
    }

    /// Where it is.
    pub(crate) fn address(&self) -> &HostPort {
        &self.address
    }

    /// Whether it was seen to take identities as they are; requests go to no other.
    pub(crate) fn is_trusted(&self) -> bool {
        self.trust().0 % 2 == 1
    }

    /// To be taken before a check begins.
    pub(crate) fn trust(&self) -> Trust {
        Trust(self.health.trust.load(Ordering::Acquire))
    }

    /// Says that a check has found it to take identities as they are. That counts unless it has gone away since the
    /// check began: whoever is there now may be another.
    pub(crate) fn set_trusted(&self, Trust(before): Trust) -> bool {
        let health = &self.health.trust;
        health.compare_exchange(before, before | 1, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Says that it is not known to take identities as they are.
    pub(crate) fn distrust(&self) {
        // The next even number.
        let next = |trust: u64| Some((trust | 1).wrapping_add(1));
        self.health.trust.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok();
    }

    /// Whether it could not be reached a moment ago: others are tried first.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.failure().as_ref().is_some_and(|failure| failure.since.elapsed() < UNREACHABLE_BACKOFF)
    }

    /// Why it could not be reached when it was last dialled, unless a check has reached it since.
    pub(crate) fn last_error(&self) -> Option<ConnectError> {
        self.failure().as_ref().filter(|failure| !failure.is_over).map(|failure| failure.error.clone())
    }

    /// Notes that a check has reached it. Others are still tried first for a while: a check needs no dial.
    pub(crate) fn clear_error(&self) {
        if let Some(failure) = self.failure().as_mut() {
            failure.is_over = true;
        }
    }

    /// Whether it was looked at, and something is known of it.
    pub(crate) fn is_checked(&self) -> bool {
        self.health.checked.load(Ordering::Acquire)
    }

    /// Says that it was looked at.
    pub(crate) fn set_checked(&self) {
        self.health.checked.store(true, Ordering::Release);
    }

    /// Asks for a check: it said something that it should not say to a gateway it believes.
    pub(crate) fn request_recheck(&self) {
        self.recheck.notify_one();
    }

    /// Waits for a doubt.
    pub(crate) async fn recheck_requested(&self) {
        self.recheck.notified().await;
    }

    /// Says that a connection over HTTP/1.1 has ended. Those that carry requests come and go; the check's stays, and
    /// its end says that the server has ended.
    pub(crate) fn http1_ended(&self) {
        if self.is_for_checks {
            self.request_recheck();
        }
    }

    /// How it asked for a certificate when the check dialled it.
    pub(crate) fn asked(&self) -> CertificateRequest {
        self.tls.watched.as_ref().map_or(CertificateRequest::Never, |watched| watched.asked())
    }

    /// The common name and the issuer of the gateway's certificate, for people.
    pub(crate) fn own_certificate(&self) -> Option<(&str, &str)> {
        self.tls.certificate.as_ref().map(|own| (own.subject.as_str(), own.issuer.as_str()))
    }

    fn failure(&self) -> MutexGuard<'_, Option<DialFailure>> {
        self.health.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Dials, and remembers whether that worked.
    pub(crate) async fn connect(&self, offer: Offer) -> Result<TlsStream<TcpStream>, ConnectError> {
        let connected = self.dial(offer).await;
        *self.failure() = connected.as_ref().err().map(|error| DialFailure::new(error.clone()));
        if connected.is_err() {
            self.request_recheck();
        }
        connected
    }

    /// The address that is connected to is the one that was resolved here.
    async fn dial(&self, offer: Offer) -> Result<TlsStream<TcpStream>, ConnectError> {
        let address = || self.address.to_string();
        let tcp = |cause: String| ConnectError::Tcp { address: address(), cause };
        let dial = TcpStream::connect((self.address.host.as_str(), self.address.port));
        let stream = match timeout(CONNECT_TIMEOUT, dial).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                // Nobody is there, and whoever is there next may have been started with other flags. Other errors and
                // silence say less: they may be this machine's.
                if error.kind() == std::io::ErrorKind::ConnectionRefused {
                    self.distrust();
                }
                return Err(tcp(error.to_string()));
            }
            Err(_) => return Err(tcp(format!("no answer within {CONNECT_TIMEOUT:?}"))),
        };
        stream.set_nodelay(true).map_err(|error| tcp(error.to_string()))?;
        keep_alive(&stream);
        let tls = |cause: String| ConnectError::Tls { address: address(), cause };
        if let Some(watched) = &self.tls.watched {
            watched.begin();
        }
        let config = match offer {
            Offer::Either => &self.tls.either,
            Offer::Http1 => &self.tls.http1,
        };
        let connector = TlsConnector::from(Arc::clone(config));
        match timeout(HANDSHAKE_TIMEOUT, connector.connect(self.server_name.clone(), stream)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(tls(error.to_string())),
            Err(_) => Err(tls(format!("no answer within {HANDSHAKE_TIMEOUT:?}"))),
        }
    }

    /// The backend accepts connections and ends them before they can be used, as it does when it refuses the gateway's
    /// certificate under TLS 1.3.
    pub(crate) fn hung_up(&self) -> ConnectError {
        let cause = "the connection ended before it could be used; is the gateway's certificate accepted?";
        self.no_http(cause.to_owned())
    }

    /// Why there is no connection that said nothing for so long.
    pub(crate) fn mute(&self, patience: Duration) -> ConnectError {
        self.no_http(format!("it has said nothing within {patience:?}"))
    }

    pub(crate) fn http_error(&self, error: &(dyn std::error::Error + 'static)) -> ConnectError {
        // What hyper says itself is less than its cause.
        self.no_http(error.source().map_or_else(|| error.to_string(), ToString::to_string))
    }

    /// A connection that is of no use is as good as none.
    fn no_http(&self, cause: String) -> ConnectError {
        let error = ConnectError::Http { address: self.address.to_string(), cause };
        *self.failure() = Some(DialFailure::new(error.clone()));
        self.request_recheck();
        error
    }
}

/// Lets the system find out that a silent peer is gone: a quiet watch or tunnel would hold its connections for ever.
// Go: net.ListenConfig and net.Dialer, KeepAlive
pub(crate) fn keep_alive(stream: &impl AsFd) {
    let period = TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE);
    if let Err(error) = SockRef::from(stream).set_tcp_keepalive(&period) {
        tracing::debug!(%error, "cannot keep a connection alive");
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("address", &self.address).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
