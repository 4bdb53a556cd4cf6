//! One endpoint: how to connect to it (address, TLS, the gateway's client certificate), and whether it is trusted.

mod tls;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use portcullis_http::peer::enable_tcp_keep_alive;
use portcullis_kubernetes::release::Release;
use portcullis_system::sync::lock;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::author::RequestAuthor;
use super::balance::{Balance, EjectionCause};
use super::buffers::ClusterBuffers;
use super::connect_error::is_of_this_machine;
use super::counts::{DialResult, EndpointCounts};
use super::dials::ConnectionPlace;
use super::lookup::KnownAddresses;
use super::policy::PermittedConnection;
use super::server_version::ReportedVersion;
use super::settings::{self, HostPort};
use super::vetted::{AddressTrust, VettedAddresses};
pub(crate) use crate::backend::client_certificate::ClientCertificateRequest;
pub(crate) use crate::backend::connect_error::ConnectError;
pub(super) use tls::EndpointTls;
use tls::{refusal_cause, tls_cause};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// An endpoint with its TLS configuration and its health, which the whole process shares. It outlives a reload that
/// does not change its cluster's backend.
pub(crate) struct Endpoint {
    settings: settings::Endpoint,
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
    /// Drives it for as long as the policy permits its address.
    pub(crate) permitted: PermittedConnection,
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
    version: ReportedVersion,
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

    /// Whether trust was not broken between the two. Gaining it by a self-check is no break.
    pub(crate) fn is_of_same_process(self, other: Self) -> bool {
        self.0 | 1 == other.0 | 1
    }

    #[cfg(test)]
    pub(crate) fn of_test(version: u64) -> Self {
        Self(version)
    }
}

/// The HTTP versions to offer by ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AlpnOffer {
    /// HTTP/2, else HTTP/1.1.
    Http2OrHttp1,
    /// HTTP/1.1 alone: for upgrades, and for requests that must not share a connection.
    Http1Only,
}

impl Endpoint {
    pub(super) fn new(endpoint: &settings::Endpoint, tls: &EndpointTls) -> Self {
        Self {
            settings: endpoint.clone(),
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
            settings: self.settings.clone(),
            tls: self.tls.recording(),
            health: Arc::clone(&self.health),
            recheck: Notify::new(),
            dialling,
            counts: Arc::default(),
        }
    }

    /// Whether it is the endpoint of these settings, whatever has named it.
    pub(crate) fn is_at(&self, settings: &settings::Endpoint) -> bool {
        let own = &self.settings;
        own.address == settings.address && own.server_name == settings.server_name
    }

    /// The settings that it was made from.
    pub(super) fn settings(&self) -> &settings::Endpoint {
        &self.settings
    }

    /// The host and port to connect to.
    pub(crate) fn address(&self) -> &HostPort {
        &self.settings.address
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

    /// Records what its API servers have reported to a self-check that began at version `before`: one version for each
    /// address that requests go to, `None` if it is not known.
    pub(crate) fn learn_version(&self, before: TrustVersion, versions: &[Option<String>]) {
        self.health.version.learn(before, versions);
    }

    /// The same while requests may still go to addresses of the versions before: an older one of these counts as well.
    pub(crate) fn narrow_version(&self, before: TrustVersion, versions: &[Option<String>]) {
        self.health.version.narrow(before, versions);
    }

    /// Whether every API server there is known to ask for the verbs of constrained impersonation. To an older one a role
    /// may have these verbs without meaning anything.
    pub(crate) fn has_constrained_impersonation(&self) -> bool {
        let release = self.health.version.release(self.trust_version());
        release.is_some_and(Release::has_constrained_impersonation)
    }

    /// The versions that its API servers have reported last, as they write them.
    pub(crate) fn versions(&self) -> Vec<String> {
        self.health.version.texts()
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

    // threat: local-shortage
    fn note_connect_failure(&self, error: &ConnectError) {
        // The name may have other addresses, which answer.
        if !error.is_of_this_machine() && !self.is_one_of_several() {
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
        let address = || self.address().to_string();
        let local = |error: &io::Error| {
            let error = ConnectError::Local { address: address(), cause: error.to_string() };
            (DialResult::Local, error)
        };
        let tcp = |result, cause| (result, ConnectError::Tcp { address: address(), cause });
        let before = self.trust_version();
        let (stream, vetted, permitted) = match timeout(CONNECT_TIMEOUT, Box::pin(self.dial_tcp())).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) if is_of_this_machine(&error) => return Err(local(&error)),
            Ok(Err(error)) => {
                // No process listens there; the next one may have other flags. Other errors and timeouts prove less.
                if error.kind() == io::ErrorKind::ConnectionRefused && !self.is_one_of_several() {
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
        let server_name = self.settings.server_name.clone();
        match timeout(HANDSHAKE_TIMEOUT, connector.connect(server_name, stream)).await {
            Ok(Ok(stream)) if vetted.holds() => {
                let verified =
                    self.tls.verifier.verify_resumed(stream.get_ref().1, &self.settings.server_name);
                verified.map_err(|refusal| tls(DialResult::Tls, refusal_cause(&refusal)))?;
                let is_for_requests = matches!(self.dialling, Dialling::Vetted);
                let endpoint = is_for_requests.then(|| (Arc::clone(&self.health), before));
                let trust = ConnectionTrust { endpoint, address: vetted };
                Ok(EndpointStream { stream, trust, place, permitted })
            }
            Ok(Ok(_)) => {
                Err(tls(DialResult::Connect, "the address has not passed the last self-check".to_owned()))
            }
            Ok(Err(error)) if is_of_this_machine(&error) => Err(local(&error)),
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
        self.address().host.parse::<IpAddr>().is_err()
    }

    /// The addresses of now to which the gateway may connect, at least one.
    pub(crate) async fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let found = self.tls.dials.lookups.addresses(self.address(), &self.health.known_addresses).await?;
        self.permitted(&found)
    }

    /// Those of the addresses to which the policy lets the gateway connect, at least one.
    fn permitted(&self, found: &[SocketAddr]) -> io::Result<Vec<SocketAddr>> {
        let refused = |address: &SocketAddr| self.tls.policy.refused_kind(address.ip());
        let permitted: Vec<SocketAddr> =
            found.iter().filter(|address| refused(address).is_none()).copied().collect();
        if !permitted.is_empty() {
            return Ok(permitted);
        }
        let refused = found.iter().find_map(|address| Some((address.ip(), refused(address)?)));
        Err(io::Error::other(match refused {
            Some((address, kind)) => format!(
                "{address} is {kind}, to which the gateway does not connect for the cluster of a Secret \
                 (managementCluster.allowLocalAddresses)"
            ),
            None => "the name has no address".to_owned(),
        }))
    }

    /// Ends the trust in addresses that the policy no longer permits.
    // threat: withdrawn-permission
    pub(super) fn enforce_policy(&self) {
        let is_refused = |address: IpAddr| self.tls.policy.refused_kind(address).is_some();
        match self.address().host.parse() {
            Ok(address) if is_refused(address) => self.distrust(),
            Ok(_) => {}
            Err(_) => self.health.vetted.retain(|address| !is_refused(address.ip())),
        }
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
    async fn dial_tcp(&self) -> io::Result<(TcpStream, AddressTrust, PermittedConnection)> {
        let found = match self.dialling {
            Dialling::Check(address) => self.permitted(&[address])?,
            Dialling::Vetted | Dialling::Probe => self.addresses().await?,
        };
        if !self.is_named() || !matches!(self.dialling, Dialling::Vetted) {
            let stream = TcpStream::connect(found.as_slice()).await?;
            let permitted = self.register(stream.peer_addr()?)?;
            return Ok((stream, AddressTrust::default(), permitted));
        }
        let choice = self.health.vetted.choose(&found);
        if choice.has_new {
            self.request_recheck();
        }
        if choice.usable.is_empty() {
            let problem = "no address of the name has passed the self-check yet";
            return Err(io::Error::other(problem));
        }
        let stream = TcpStream::connect(self.permitted(&choice.usable)?.as_slice()).await?;
        let peer = stream.peer_addr()?;
        Ok((stream, self.health.vetted.trust(peer), self.register(peer)?))
    }

    /// Registers a new connection, unless the policy has become stricter meanwhile.
    fn register(&self, peer: SocketAddr) -> io::Result<PermittedConnection> {
        let refused = || io::Error::other("the address is no longer permitted");
        self.tls.policy.register(peer.ip()).ok_or_else(refused)
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
        ConnectError::TooManyWaiting { address: self.address().to_string() }
    }

    /// The client has no further connection in its share. Counts as no failure of the endpoint.
    pub(super) fn no_place_error(&self) -> ConnectError {
        ConnectError::NoPlace { address: self.address().to_string() }
    }

    /// The endpoint sent no HTTP/2 settings in time.
    pub(crate) fn silence_error(&self, limit: Duration) -> ConnectError {
        self.record_http_error(format!("no HTTP/2 SETTINGS within {limit:?}"))
    }

    pub(crate) fn http_error(&self, error: &(dyn std::error::Error + 'static)) -> ConnectError {
        if is_of_this_machine(error) {
            self.counts.note_dial(DialResult::Local);
            return ConnectError::Local { address: self.address().to_string(), cause: error.to_string() };
        }
        // hyper's own text says less than that of its source.
        self.record_http_error(error.source().map_or_else(|| error.to_string(), ToString::to_string))
    }

    /// Counts an unusable connection as a failed attempt.
    fn record_http_error(&self, cause: String) -> ConnectError {
        let error = ConnectError::Http { address: self.address().to_string(), cause };
        self.counts.note_dial(DialResult::Http);
        self.note_connect_failure(&error);
        error
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("address", self.address()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
