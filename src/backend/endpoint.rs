//! One endpoint: how to connect to it (address, TLS, the gateway's client certificate), and whether it is trusted.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use portcullis_http::peer::enable_tcp_keep_alive;
use portcullis_system::sync::lock;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::{CertificateError, ClientConfig};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::author::RequestAuthor;
use super::balance::{Balance, EjectionCause};
use super::buffers::ClusterBuffers;
use super::counts::{DialResult, EndpointCounts};
use super::dials::{ClusterDials, ConnectionPlace};
use super::lookup::KnownAddresses;
use super::settings::{self, AddressPolicy, HostPort};
use super::vetted::{AddressTrust, VettedAddresses};
pub(crate) use crate::backend::client_certificate::ClientCertificateRequest;
use crate::backend::client_certificate::{CertificateRecorder, ClientCertificate};
use crate::metrics::BackendTimings;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// An endpoint with its TLS configuration and its health, which the whole process shares. It outlives a reload that
/// does not change its cluster's backend.
pub(crate) struct Endpoint {
    address: HostPort,
    server_name: ServerName<'static>,
    tls: EndpointTls,
    health: Arc<EndpointHealth>,
    recheck: Notify,
    dialling: Dialling,
    /// Of requests; those of the gateway's probes are not exported.
    counts: Arc<EndpointCounts>,
}

/// Which of the addresses that its name resolves to an endpoint connects to.
#[derive(Debug, Clone, Copy)]
enum Dialling {
    /// For requests: those that have passed the self-check.
    Vetted,
    /// For the gateway's probes: any.
    Probe,
    /// For the self-check of one address.
    Check(SocketAddr),
}

/// A connection, and whether requests may still use it.
#[derive(Debug)]
pub(crate) struct EndpointStream {
    pub(crate) stream: TlsStream<TcpStream>,
    pub(crate) trust: ConnectionTrust,
    /// To be held until it is closed.
    pub(crate) place: ConnectionPlace,
}

/// Whether requests may use a connection: the endpoint has been trusted without a break since before it was dialled, and the
/// address still passes. After a break the connection may lead to another process than the one that has passed.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionTrust {
    /// `None` for the gateway's own probes, which go to any endpoint.
    endpoint: Option<(Arc<EndpointHealth>, TrustVersion)>,
    address: AddressTrust,
}

impl ConnectionTrust {
    /// Whether requests may use the connection.
    // threat: backend-ignores-identity
    pub(crate) fn holds(&self) -> bool {
        let is_unbroken =
            self.endpoint.as_ref().is_none_or(|(health, before)| health.is_trusted_since(*before));
        is_unbroken && self.address.holds()
    }
}

impl EndpointHealth {
    fn trust_version(&self) -> TrustVersion {
        TrustVersion(self.trust_version.load(Ordering::Acquire))
    }

    fn is_trusted_since(&self, before: TrustVersion) -> bool {
        before.is_trusted() && self.trust_version().0 == before.0
    }
}

/// The TLS configurations for an endpoint, with the gateway's client certificate.
#[derive(Clone)]
pub(super) struct EndpointTls {
    http2_or_http1: Arc<ClientConfig>,
    http1_only: Arc<ClientConfig>,
    certificate: Option<Arc<ClientCertificate>>,
    recorder: Option<Arc<CertificateRecorder>>,
    dials: ClusterDials,
    addresses: AddressPolicy,
    timings: Arc<BackendTimings>,
}

/// Whether an endpoint is trusted and reachable.
#[derive(Debug, Default)]
struct EndpointHealth {
    /// Odd while the endpoint is trusted; grows with every change.
    trust_version: AtomicU64,
    /// Why the last connection attempt failed, if it did.
    failure: Mutex<Option<ConnectFailure>>,
    /// Whether the first self-check has ended, with whatever result.
    checked: AtomicBool,
    /// Why the last self-check has not passed, if so.
    check_error: Mutex<Option<String>>,
    balance: Arc<Balance>,
    known_addresses: KnownAddresses,
    vetted: VettedAddresses,
}

/// A failed connection attempt.
#[derive(Debug)]
struct ConnectFailure {
    error: ConnectError,
    /// Whether a self-check has reached the endpoint since, over a connection that was open.
    is_cleared: bool,
}

impl ConnectFailure {
    fn new(error: ConnectError) -> Self {
        Self { error, is_cleared: false }
    }
}

/// A version of an endpoint's trust. A self-check that began at an older version does not count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TrustVersion(u64);

impl TrustVersion {
    /// Whether the endpoint was trusted.
    pub(crate) fn is_trusted(self) -> bool {
        self.0 % 2 == 1
    }
}

/// Why the gateway could not connect to an endpoint. Nothing of the request was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConnectError {
    /// The TCP connection failed.
    #[error("cannot connect to {address}: {cause}")]
    Tcp {
        /// The endpoint's address.
        address: String,
        /// The error of the operating system.
        cause: String,
    },
    /// The TLS handshake failed.
    #[error("TLS handshake with {address} failed: {cause}")]
    Tls {
        /// The endpoint's address.
        address: String,
        /// The error of rustls.
        cause: String,
    },
    /// The connection failed before HTTP could be used.
    #[error("HTTP connection to {address} failed: {cause}")]
    Http {
        /// The endpoint's address.
        address: String,
        /// The error of the HTTP implementation.
        cause: String,
    },
    /// No connection was attempted: too many requests wait for one already.
    #[error("too many requests wait for a connection to {address}")]
    TooManyWaiting {
        /// The endpoint's address.
        address: String,
    },
    /// No connection was attempted: the client has as many as it may have, or all clients together.
    #[error(
        "the gateway has no further connection to {address} for this client: its share, or that of all, is in use"
    )]
    NoPlace {
        /// The endpoint's address.
        address: String,
    },
}

/// The HTTP versions to offer by ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AlpnOffer {
    /// HTTP/2, else HTTP/1.1.
    Http2OrHttp1,
    /// HTTP/1.1 alone: for upgrades, and for requests that must not share a connection.
    Http1Only,
}

impl EndpointTls {
    /// Fails if the provider supports neither TLS 1.2 nor TLS 1.3.
    pub(super) fn new(
        settings: &settings::Backend,
        provider: &Arc<CryptoProvider>,
        timings: &Arc<BackendTimings>,
        dials: ClusterDials,
    ) -> Result<Self, rustls::Error> {
        let builder = ClientConfig::builder_with_provider(Arc::clone(provider))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(Arc::clone(&settings.roots.0));
        let certificate =
            settings.client_certificate.as_ref().map(|pair| Arc::new(ClientCertificate::new(pair)));
        let mut http2_or_http1 = match &certificate {
            Some(certificate) => builder.with_client_cert_resolver(certificate.clone()),
            None => builder.with_no_client_auth(),
        };
        let mut http1_only = http2_or_http1.clone();
        http2_or_http1.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        http1_only.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            http2_or_http1: Arc::new(http2_or_http1),
            http1_only: Arc::new(http1_only),
            certificate,
            recorder: None,
            dials,
            addresses: settings.addresses,
            timings: Arc::clone(timings),
        })
    }

    /// The same without session resumption, and with a recorder of the server's `CertificateRequest`.
    fn recording(&self) -> Self {
        let recorder = self
            .certificate
            .as_ref()
            .map(|certificate| Arc::new(CertificateRecorder::new(Arc::clone(certificate))));
        let without_resumption = |config: &Arc<ClientConfig>| {
            let mut config = ClientConfig::clone(config);
            config.resumption = Resumption::disabled();
            if let Some(recorder) = &recorder {
                config.client_auth_cert_resolver = recorder.clone();
            }
            Arc::new(config)
        };
        Self {
            http2_or_http1: without_resumption(&self.http2_or_http1),
            http1_only: without_resumption(&self.http1_only),
            certificate: self.certificate.clone(),
            recorder,
            dials: self.dials.clone(),
            addresses: self.addresses,
            timings: Arc::clone(&self.timings),
        }
    }
}

impl Endpoint {
    pub(super) fn new(endpoint: &settings::Endpoint, tls: &EndpointTls) -> Self {
        Self {
            address: endpoint.address.clone(),
            server_name: endpoint.server_name.clone(),
            tls: tls.clone(),
            health: Arc::default(),
            recheck: Notify::new(),
            dialling: Dialling::Vetted,
            counts: Arc::default(),
        }
    }

    /// The same endpoint for the connections of its probes. Both share one health; the end of one's connection does
    /// not request a recheck of the other.
    pub(crate) fn for_self_check(&self) -> Self {
        self.dialling(Dialling::Probe)
    }

    /// The same for the self-check of one of its addresses.
    pub(crate) fn for_self_check_of(&self, address: SocketAddr) -> Self {
        self.dialling(Dialling::Check(address))
    }

    fn dialling(&self, dialling: Dialling) -> Self {
        Self {
            address: self.address.clone(),
            server_name: self.server_name.clone(),
            tls: self.tls.recording(),
            health: Arc::clone(&self.health),
            recheck: Notify::new(),
            dialling,
            counts: Arc::default(),
        }
    }

    /// Whether it is the endpoint of these settings.
    pub(crate) fn is_at(&self, settings: &settings::Endpoint) -> bool {
        self.address == settings.address && self.server_name == settings.server_name
    }

    /// The host and port to connect to.
    pub(crate) fn address(&self) -> &HostPort {
        &self.address
    }

    /// Whether it has passed its self-check. Requests go only to trusted endpoints.
    pub(crate) fn is_trusted(&self) -> bool {
        self.trust_version().is_trusted()
    }

    /// The current version, to be read before a self-check begins.
    pub(crate) fn trust_version(&self) -> TrustVersion {
        self.health.trust_version()
    }

    /// Whether it is trusted, and has been without a break since `before`.
    pub(crate) fn is_trusted_since(&self, before: TrustVersion) -> bool {
        self.health.is_trusted_since(before)
    }

    /// Trusts the endpoint after a self-check that began at version `before`. Returns `false` if the endpoint has been
    /// distrusted since: another process may listen there now.
    pub(crate) fn set_trusted(&self, TrustVersion(before): TrustVersion) -> bool {
        let version = &self.health.trust_version;
        version.compare_exchange(before, before | 1, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Trusts the endpoint, at every address of its name, without a self-check. For an API server that receives requests of
    /// the gateway alone: the self-check is for those that receive the requests of users.
    pub(crate) fn trust_unchecked(&self) {
        self.set_trusted(self.trust_version());
        self.health.vetted.accept_any();
    }

    /// Stops trusting the endpoint until the next self-check passes.
    pub(crate) fn distrust(&self) {
        // The next even number.
        let next = |version: u64| Some((version | 1).wrapping_add(1));
        self.health.trust_version.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok();
    }

    /// Its load, and whether requests are to avoid it.
    pub(crate) fn balance(&self) -> &Arc<Balance> {
        &self.health.balance
    }

    /// Its connections, for metrics.
    pub(crate) fn counts(&self) -> &Arc<EndpointCounts> {
        &self.counts
    }

    /// Why the last connection attempt failed, unless a self-check has reached the endpoint since.
    pub(crate) fn last_error(&self) -> Option<ConnectError> {
        self.failure().as_ref().filter(|failure| !failure.is_cleared).map(|failure| failure.error.clone())
    }

    /// Records that a self-check has reached the endpoint. Other endpoints are still preferred for a while, because the
    /// self-check may have used an open connection.
    pub(crate) fn clear_error(&self) {
        if let Some(failure) = self.failure().as_mut() {
            failure.is_cleared = true;
        }
    }

    /// Whether the first self-check has ended.
    pub(crate) fn is_checked(&self) -> bool {
        self.health.checked.load(Ordering::Acquire)
    }

    /// Records that a self-check has ended.
    pub(crate) fn set_checked(&self) {
        self.health.checked.store(true, Ordering::Release);
    }

    /// Why the last self-check has not passed; `None` if it has.
    pub(crate) fn check_error(&self) -> Option<String> {
        lock(&self.health.check_error).clone()
    }

    /// Records why a self-check has not passed.
    pub(crate) fn set_check_error(&self, error: Option<String>) {
        *lock(&self.health.check_error) = error;
    }

    /// Requests a self-check: a connection ended, or a response suggests that the endpoint refuses the gateway.
    pub(crate) fn request_recheck(&self) {
        self.recheck.notify_one();
    }

    /// Waits until a self-check is requested.
    pub(crate) async fn recheck_requested(&self) {
        self.recheck.notified().await;
    }

    /// Records that an HTTP/1.1 connection has ended. Connections of requests end routinely; that of the self-check
    /// ends only when the server does.
    pub(crate) fn http1_closed(&self) {
        if !matches!(self.dialling, Dialling::Vetted) {
            self.request_recheck();
        }
    }

    /// How the server requested a client certificate in the last handshake of the self-check.
    pub(crate) fn certificate_request(&self) -> ClientCertificateRequest {
        self.tls
            .recorder
            .as_ref()
            .map_or(ClientCertificateRequest::NotSent, |recorder| recorder.certificate_request())
    }

    /// The common name and the issuer of the gateway's certificate, for messages.
    pub(crate) fn gateway_certificate(&self) -> Option<(&str, &str)> {
        self.tls.certificate.as_ref().map(|own| (own.common_name.as_str(), own.issuer.as_str()))
    }

    fn failure(&self) -> MutexGuard<'_, Option<ConnectFailure>> {
        lock(&self.health.failure)
    }

    /// A place for a connection, in the share of the author of a request. Counts as no failure of the endpoint.
    pub(super) fn connection_place(&self, author: &RequestAuthor) -> Result<ConnectionPlace, ConnectError> {
        let place = self.tls.dials.connection_place(author);
        place.ok_or_else(|| self.no_place_error())
    }

    /// Connects, and records whether that succeeded.
    pub(crate) async fn connect(
        &self,
        offer: AlpnOffer,
        place: ConnectionPlace,
    ) -> Result<EndpointStream, ConnectError> {
        let began = Instant::now();
        let connected = self.dial(offer, place).await.map_err(|(result, error)| {
            self.counts.note_dial(result);
            self.note_connect_failure(&error);
            error
        })?;
        self.counts.note_dial(DialResult::Connected);
        if matches!(self.dialling, Dialling::Vetted) {
            self.tls.timings.dial.observe(began.elapsed());
        }
        *self.failure() = None;
        Ok(connected)
    }

    fn note_connect_failure(&self, error: &ConnectError) {
        // The name may have other addresses, which answer.
        if !self.is_one_of_several() {
            self.note_unreachable(error.clone());
            self.request_recheck();
        }
    }

    /// Records that no connection can be made to the endpoint.
    pub(crate) fn note_unreachable(&self, error: ConnectError) {
        *self.failure() = Some(ConnectFailure::new(error));
        self.balance().note_failure(EjectionCause::Connect, Instant::now());
    }

    fn is_one_of_several(&self) -> bool {
        matches!(self.dialling, Dialling::Check(_))
    }

    async fn dial(
        &self,
        offer: AlpnOffer,
        place: ConnectionPlace,
    ) -> Result<EndpointStream, (DialResult, ConnectError)> {
        let address = || self.address.to_string();
        let tcp = |result, cause| (result, ConnectError::Tcp { address: address(), cause });
        let before = self.trust_version();
        let (stream, vetted) = match timeout(CONNECT_TIMEOUT, Box::pin(self.dial_tcp())).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => {
                // No process listens there; the next one may have other flags. Other errors and timeouts prove less:
                // their cause may be this machine.
                if error.kind() == std::io::ErrorKind::ConnectionRefused && !self.is_one_of_several() {
                    self.distrust();
                }
                return Err(tcp(DialResult::Connect, error.to_string()));
            }
            Err(_) => return Err(tcp(DialResult::Timeout, format!("no answer within {CONNECT_TIMEOUT:?}"))),
        };
        stream.set_nodelay(true).map_err(|error| tcp(DialResult::Connect, error.to_string()))?;
        enable_tcp_keep_alive(&stream);
        let tls = |result, cause| (result, ConnectError::Tls { address: address(), cause });
        if let Some(recorder) = &self.tls.recorder {
            recorder.reset();
        }
        let config = match offer {
            AlpnOffer::Http2OrHttp1 => &self.tls.http2_or_http1,
            AlpnOffer::Http1Only => &self.tls.http1_only,
        };
        let connector = TlsConnector::from(Arc::clone(config));
        match timeout(HANDSHAKE_TIMEOUT, connector.connect(self.server_name.clone(), stream)).await {
            Ok(Ok(stream)) if vetted.holds() => {
                let is_for_requests = matches!(self.dialling, Dialling::Vetted);
                let endpoint = is_for_requests.then(|| (Arc::clone(&self.health), before));
                Ok(EndpointStream { stream, trust: ConnectionTrust { endpoint, address: vetted }, place })
            }
            Ok(Ok(_)) => {
                Err(tls(DialResult::Connect, "the address has not passed the last self-check".to_owned()))
            }
            Ok(Err(error)) => Err(tls(DialResult::Tls, tls_cause(&error))),
            Err(_) => Err(tls(DialResult::Timeout, format!("no answer within {HANDSHAKE_TIMEOUT:?}"))),
        }
    }

    /// In whose share what its connections hold counts.
    pub(super) fn buffers(&self) -> &ClusterBuffers {
        &self.tls.dials.buffers
    }

    /// Whether it is given by a name, which may resolve to other addresses at any time.
    pub(crate) fn is_named(&self) -> bool {
        self.address.host.parse::<IpAddr>().is_err()
    }

    /// The addresses of now to which the gateway may connect, at least one.
    pub(crate) async fn addresses(&self) -> std::io::Result<Vec<SocketAddr>> {
        let found = self.tls.dials.lookups.addresses(&self.address, &self.health.known_addresses).await?;
        let refused = |address: &SocketAddr| self.tls.addresses.refused_kind(address.ip());
        let permitted: Vec<SocketAddr> =
            found.iter().filter(|address| refused(address).is_none()).copied().collect();
        if !permitted.is_empty() {
            return Ok(permitted);
        }
        let refused = found.iter().find_map(|address| Some((address.ip(), refused(address)?)));
        Err(std::io::Error::other(match refused {
            Some((address, kind)) => format!(
                "{address} is {kind}, to which the gateway does not connect for the cluster of a Secret \
                 (managementCluster.allowLocalAddresses)"
            ),
            None => "the name has no address".to_owned(),
        }))
    }

    /// Records which addresses of its name have passed the self-check, and which have not. Requests use connections to the
    /// former alone.
    // threat: renamed-endpoint
    pub(crate) fn set_vetted(&self, passed: &[SocketAddr], failed: &[SocketAddr]) {
        self.health.vetted.replace(passed, failed);
    }

    /// Looks up the addresses, and connects to one that is permitted and, for requests, has passed the self-check. What a
    /// name resolves to may change at any time, so every connection checks it.
    // threat: renamed-endpoint
    async fn dial_tcp(&self) -> std::io::Result<(TcpStream, AddressTrust)> {
        let found = match self.dialling {
            Dialling::Check(address) => vec![address],
            Dialling::Vetted | Dialling::Probe => self.addresses().await?,
        };
        if !self.is_named() || !matches!(self.dialling, Dialling::Vetted) {
            return Ok((TcpStream::connect(found.as_slice()).await?, AddressTrust::default()));
        }
        let choice = self.health.vetted.choose(&found);
        if choice.has_new {
            self.request_recheck();
        }
        if choice.usable.is_empty() {
            let problem = "no address of the name has passed the self-check yet";
            return Err(std::io::Error::other(problem));
        }
        let stream = TcpStream::connect(choice.usable.as_slice()).await?;
        let trust = self.health.vetted.trust(stream.peer_addr()?);
        Ok((stream, trust))
    }

    /// The endpoint accepts connections and closes them before their first use, as a server does that refuses the
    /// gateway's certificate under TLS 1.3.
    pub(crate) fn closed_early_error(&self) -> ConnectError {
        let cause = "the server closed the connection before its first use; check that it accepts the gateway's \
                     certificate";
        self.record_http_error(cause.to_owned())
    }

    /// Too many requests wait for a connection. Counts as no failure of the endpoint.
    pub(crate) fn too_many_waiting_error(&self) -> ConnectError {
        ConnectError::TooManyWaiting { address: self.address.to_string() }
    }

    /// The client has no further connection in its share. Counts as no failure of the endpoint.
    pub(super) fn no_place_error(&self) -> ConnectError {
        ConnectError::NoPlace { address: self.address.to_string() }
    }

    /// The endpoint sent no HTTP/2 settings in time.
    pub(crate) fn silence_error(&self, limit: Duration) -> ConnectError {
        self.record_http_error(format!("no HTTP/2 SETTINGS within {limit:?}"))
    }

    pub(crate) fn http_error(&self, error: &(dyn std::error::Error + 'static)) -> ConnectError {
        // hyper's own text says less than that of its source.
        self.record_http_error(error.source().map_or_else(|| error.to_string(), ToString::to_string))
    }

    /// Counts an unusable connection as a failed attempt.
    fn record_http_error(&self, cause: String) -> ConnectError {
        let error = ConnectError::Http { address: self.address.to_string(), cause };
        self.counts.note_dial(DialResult::Http);
        self.note_connect_failure(&error);
        error
    }
}

/// Why a TLS handshake failed, with the fix where the certificate is at fault.
fn tls_cause(error: &std::io::Error) -> String {
    let fix = match error.get_ref().and_then(|error| error.downcast_ref()) {
        // A new CA of the same name shows as a bad signature.
        Some(rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        )) => {
            "its certificate is not signed by the CA of the kubeconfig. Fix, if the CA was replaced: add the new one to \
             certificate-authority"
        }
        Some(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => "Fix: set tls-server-name of the kubeconfig to a name in the certificates of all API servers",
        _ => return error.to_string(),
    };
    format!("{error}; {fix}")
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("address", &self.address).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
