//! The backend of a cluster: its API servers (endpoints), the connections to them, the gateway's own clients, and the
//! lists and watches of these.
//!
//! Requests go only to endpoints that have passed the identity self-check. This module never authenticates or
//! authorizes a client. Whether a request is sent again is decided by `send_with_retry` in `pipeline/forward.rs`; how often it may
//! be, in `balance/retry_budget.rs`.

pub(crate) mod address_policy;
pub(crate) mod author;
pub(crate) mod balance;
pub(crate) mod bounded_client;
pub(crate) mod buffers;
mod client_certificate;
pub(crate) mod cluster_identity;
pub(crate) mod connect_error;
pub(crate) mod counts;
pub(crate) mod dials;
pub(crate) mod endpoint;
pub(crate) mod endpoint_list;
pub(crate) mod follow;
mod http2;
pub(crate) mod kube_client;
mod lanes;
mod lookup;
pub(crate) mod policy;
pub(crate) mod pool;
pub(crate) mod pools;
pub(crate) mod probe;
pub(crate) mod response_size;
mod server_version;
pub(crate) mod settings;
pub(crate) mod sharing;
pub(crate) mod vetted;
pub(crate) mod watched;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use portcullis_http::identity::IdentityMode;
use portcullis_http::identity_headers::RequestHeaderNames;
use portcullis_limits::ClusterOwner;
use portcullis_limits::cache_budget::CacheShare;
use rustls::crypto::CryptoProvider;
use tokio::time::{Instant, sleep};

use crate::backend::balance::{
    Load, Random, Rank, RetryBudget, RetryCause, WatchMoves, choose, end_oldest, excess,
};
use crate::backend::cluster_identity::{ClusterIdentity, IdentityObject, NotAdmitted, PeerEndpoint};
use crate::backend::dials::ClusterDials;
use crate::backend::endpoint::{Endpoint, EndpointTls};
use crate::backend::endpoint_list::EndpointList;
use crate::backend::policy::PolicyInForce;
use crate::backend::settings::EndpointDiscovery;
use crate::backend::sharing::SharingClass;
use crate::metrics::BackendTimings;

/// How often [`Backend::until_trusted`] checks for a trusted endpoint.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How often a read that waits at a silent endpoint looks for another one.
const SILENCE_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The API servers of one cluster, with their connection and trust state.
pub(crate) struct Backend {
    settings: settings::Backend,
    /// The cluster, in whose share its requests count.
    owner: ClusterOwner,
    /// What the caches of the cluster may take.
    caches: CacheShare,
    /// That of the cluster, which all its generations share.
    policy: Arc<PolicyInForce>,
    endpoints: EndpointList,
    /// The value of `Host` when the client's own is not forwarded.
    authority: Authority,
    /// The gateway's `Authorization` header: its bearer token.
    authorization: Option<HeaderValue>,
    /// The headers beside the standard ones from which the API servers read identities, as configured or discovered.
    pub(crate) identity_headers: ArcSwapOption<RequestHeaderNames>,
    /// Whether a request was refused for lack of a usable endpoint since a self-check last passed.
    is_unavailable: AtomicBool,
    retries: RetryBudget,
    /// For requests whose failures the API server does not cause alone: pods and clients may break their connections at will.
    relayed_retries: RetryBudget,
    cluster: ClusterIdentity,
    /// How long requests wait for connections.
    pub(crate) timings: Arc<BackendTimings>,
}

impl Backend {
    /// Builds a backend with untrusted endpoints. Opens no connection.
    pub(crate) fn new(
        settings: &settings::Backend,
        provider: &Arc<CryptoProvider>,
        timings: BackendTimings,
        dials: ClusterDials,
    ) -> Result<Self, rustls::Error> {
        Self::with_policy(settings, provider, timings, dials, PolicyInForce::new(settings.policy))
    }

    /// The same with the policy of the cluster, which is that of earlier settings until [`Self::enforce`].
    pub(crate) fn with_policy(
        settings: &settings::Backend,
        provider: &Arc<CryptoProvider>,
        timings: BackendTimings,
        dials: ClusterDials,
        policy: Arc<PolicyInForce>,
    ) -> Result<Self, rustls::Error> {
        let (timings, owner, caches) = (Arc::new(timings), dials.cluster.clone(), dials.caches.clone());
        let tls = EndpointTls::new(settings, provider, &timings, dials, &policy)?;
        let general = |text: &str| rustls::Error::General(text.to_owned());
        let authorization = match &settings.bearer_token {
            Some(token) => {
                let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
                    .map_err(|_| general("the bearer token cannot be sent in a header"))?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        let first = settings.endpoints.first().ok_or_else(|| general("the backend has no endpoint"))?;
        Ok(Self {
            owner,
            caches,
            policy,
            endpoints: EndpointList::new(settings, tls),
            authority: first
                .address
                .to_string()
                .parse()
                .map_err(|_| general(&format!("{} is not a valid host and port", first.address)))?,
            authorization,
            identity_headers: ArcSwapOption::from_pointee(settings.identity_headers.clone()),
            is_unavailable: AtomicBool::new(false),
            retries: RetryBudget::default(),
            relayed_retries: RetryBudget::default(),
            cluster: ClusterIdentity::default(),
            timings,
            settings: settings.clone(),
        })
    }

    /// Whether it connects as these settings say, so that a reload can keep it with its connections.
    pub(crate) fn is_for(&self, settings: &settings::Backend) -> bool {
        self.settings.has_connections_of(settings)
    }

    /// The name of the cluster.
    pub(crate) fn cluster_name(&self) -> &str {
        self.owner.cluster()
    }

    /// What the caches of the cluster may take.
    pub(crate) fn caches(&self) -> &CacheShare {
        &self.caches
    }

    /// Whether a tenant's Secret describes the cluster.
    pub(crate) fn is_of_tenant(&self) -> bool {
        self.owner.is_of_tenant()
    }

    /// The policy of its cluster.
    pub(crate) fn policy(&self) -> &Arc<PolicyInForce> {
        &self.policy
    }

    /// Puts in force what of the cluster's settings needs no success of anything, whether it connects as they say or as earlier
    /// ones do, because theirs are pending: the policy, further identity headers, and that endpoints were removed. The
    /// trust of an endpoint whose address is no longer permitted ends, and its connections close.
    // threat: withdrawn-permission
    pub(crate) fn enforce(&self, settings: &settings::Backend) {
        self.policy.replace(settings.policy);
        if let Some(names) = &settings.identity_headers {
            self.learn_identity_headers(names);
        }
        self.endpoints.restrict(settings.permitted_endpoints());
        self.endpoints.peek().iter().for_each(|endpoint| endpoint.enforce_policy());
    }

    /// Whether these settings are for the same cluster.
    pub(crate) fn is_same_cluster(&self, settings: &settings::Backend) -> bool {
        self.settings.is_same_cluster(settings)
    }

    /// Whether the configuration names the API servers' identity headers.
    pub(crate) fn has_configured_identity_headers(&self) -> bool {
        self.settings.identity_headers.is_some()
    }

    /// Adds the identity headers that an endpoint has published. Never removes names: other endpoints may have other
    /// flags, and configured names stay.
    pub(crate) fn learn_identity_headers(&self, published: &RequestHeaderNames) {
        self.identity_headers.rcu(|known| {
            let Some(known) = known else { return Some(Arc::new(published.clone())) };
            let all = known.union(published);
            // Requests that are being sent compare the allocation.
            Some(if all == **known { Arc::clone(known) } else { Arc::new(all) })
        });
    }

    /// The versions that its API servers have reported, as they write them, without repetitions.
    pub(crate) fn server_versions(&self) -> Vec<String> {
        let mut versions: Vec<String> =
            self.endpoints.peek().iter().flat_map(|endpoint| endpoint.versions()).collect();
        versions.sort_unstable();
        versions.dedup();
        versions
    }

    /// Whether the verbs of constrained impersonation mean something to every API server that requests go to now. One that
    /// gains trust later gets no request that was allowed by them: [`Pools`](pools::Pools) looks at its version as well.
    pub(crate) fn has_constrained_impersonation(&self) -> bool {
        let endpoints = self.endpoints.peek();
        let mut usable = endpoints.iter().filter(|endpoint| endpoint.is_trusted()).peekable();
        usable.peek().is_some() && usable.all(|endpoint| endpoint.has_constrained_impersonation())
    }

    /// The common name of the gateway's client certificate, and the end of its validity.
    pub(crate) fn client_certificate_end(&self) -> Option<(String, i64)> {
        let endpoints = self.endpoints.peek();
        let (name, _) = endpoints.first()?.gateway_certificate()?;
        let leaf = self.settings.client_certificate.as_ref()?.certificates().first()?;
        Some((name.to_owned(), leaf.not_after))
    }

    /// The endpoints of now, in the order of the configuration.
    pub(crate) fn endpoints(&self) -> Arc<Vec<Arc<Endpoint>>> {
        self.endpoints.load()
    }

    /// The version of the list of endpoints, to be read before the list.
    pub(crate) fn endpoints_version(&self) -> u64 {
        self.endpoints.version()
    }

    /// How further endpoints are found, and from which settings.
    pub(crate) fn discovery(&self) -> (EndpointDiscovery, &[settings::Endpoint]) {
        (self.settings.discovery, &self.settings.endpoints)
    }

    /// Records what discovery has found. Returns the number of endpoints that are left out, because there are too many.
    pub(crate) fn record_discovery(&self, outcome: Result<Vec<settings::Endpoint>, String>) -> usize {
        self.endpoints.record(outcome)
    }

    /// Puts the endpoints in force that discovery has found. Returns whether they have changed.
    pub(crate) fn settle_endpoints(&self) -> bool {
        self.endpoints.settle()
    }

    /// Why discovery has failed last, if so.
    pub(crate) fn discovery_error(&self) -> Option<String> {
        self.endpoints.error()
    }

    /// Whether it has, or may have, several endpoints, which must belong to one cluster.
    pub(crate) fn may_have_several_endpoints(&self) -> bool {
        self.settings.endpoints.len() > 1 || self.settings.discovery != EndpointDiscovery::None
    }

    /// The trusted endpoint for a request. An endpoint in `tried` is the last resort, one in `failed` is not chosen.
    pub(crate) fn choose(
        &self,
        load: Load,
        tried: &[Arc<Endpoint>],
        failed: &[Arc<Endpoint>],
        random: &Random,
    ) -> Option<Arc<Endpoint>> {
        let endpoints = self.endpoints.peek();
        if let [only] = endpoints.as_slice() {
            return (only.is_trusted() && failed.is_empty()).then(|| Arc::clone(only));
        }
        let now = Instant::now();
        let candidates = endpoints.iter().enumerate().filter_map(|(index, endpoint)| {
            if !endpoint.is_trusted() || contains(failed, endpoint) {
                return None;
            }
            let balance = endpoint.balance();
            let rank = if contains(tried, endpoint) { Rank::Tried } else { balance.rank(now) };
            Some((index, rank, balance.in_flight(load)))
        });
        let index = choose(candidates, || random.next())?;
        let endpoint = endpoints.get(index)?;
        endpoint.balance().note_chosen(now);
        Some(Arc::clone(endpoint))
    }

    /// The most requests of a kind in progress at one endpoint.
    pub(crate) fn max_load(&self, load: Load) -> usize {
        let policy = self.policy.load();
        match load {
            Load::Short => policy.max_requests,
            Load::Long => policy.max_watches,
        }
    }

    /// When watches move between its endpoints; `None` if they stay.
    pub(crate) fn watch_moves(&self) -> Option<WatchMoves> {
        self.policy.load().watch_moves.filter(|_| self.may_have_several_endpoints())
    }

    /// The watches and tunnels at the other usable endpoints.
    pub(crate) fn watches_elsewhere(&self, than: &Arc<Endpoint>, now: Instant) -> usize {
        let endpoints = self.endpoints.peek();
        let others = endpoints.iter().filter(|endpoint| {
            let is_usable = endpoint.is_trusted() && endpoint.balance().rank(now) == Rank::Preferred;
            is_usable && !Arc::ptr_eq(endpoint, than)
        });
        others.map(|endpoint| endpoint.balance().in_flight(Load::Long)).sum()
    }

    /// Ends a few watches at an endpoint that has far more of them than another one. Returns their number.
    pub(crate) fn move_watches(&self, from: &Arc<Endpoint>, moves: &WatchMoves, now: Instant) -> usize {
        let endpoints = self.endpoints.peek();
        let ago = |duration| now.checked_sub(duration);
        let (Some(calm), Some(begun)) = (ago(moves.calm), ago(moves.min_age)) else { return 0 };
        let is_usable =
            |endpoint: &Endpoint| endpoint.is_trusted() && endpoint.balance().rank(now) == Rank::Preferred;
        // An endpoint that comes and goes would get the watches of the others again and again.
        if !is_usable(from) || endpoints.iter().any(|endpoint| endpoint.balance().was_ejected(calm)) {
            return 0;
        }
        let usable = endpoints.iter().filter(|endpoint| is_usable(endpoint));
        let loads: Vec<usize> = usable.map(|endpoint| endpoint.balance().in_flight(Load::Long)).collect();
        match excess(from.balance().in_flight(Load::Long), &loads) {
            0 => 0,
            count => end_oldest(from.balance(), count, begun),
        }
    }

    /// Waits until a read that waits for a response at an endpoint should be sent to another one: a probe got no answer
    /// either, another endpoint answers, and the budget permits the retry, which it has then paid.
    // threat: silent-backend
    pub(crate) async fn until_worth_leaving(&self, endpoint: &Arc<Endpoint>, class: SharingClass<'_>) {
        let mut is_counted = false;
        loop {
            self.until_outdone(endpoint, &[]).await;
            if self.retries(class).withdraw_again(RetryCause::Silent, Instant::now(), &mut is_counted) {
                return;
            }
            sleep(SILENCE_POLL_INTERVAL).await;
        }
    }

    /// Waits until a probe of an endpoint got no answer and another endpoint answers, which is not one of `failed`.
    pub(crate) async fn until_outdone(&self, endpoint: &Arc<Endpoint>, failed: &[Arc<Endpoint>]) {
        loop {
            endpoint.balance().until_silent().await;
            let now = Instant::now();
            let answers = |other: &Arc<Endpoint>| {
                !Arc::ptr_eq(other, endpoint)
                    && !contains(failed, other)
                    && other.is_trusted()
                    && other.balance().rank(now) == Rank::Preferred
            };
            if self.endpoints.peek().iter().any(answers) {
                return;
            }
            sleep(SILENCE_POLL_INTERVAL).await;
        }
    }

    /// Checks that an endpoint, whose object has this UID, belongs to the same cluster as the others. If the UID of the
    /// whole cluster may have changed, the others are checked again.
    pub(crate) fn admit_to_cluster(
        &self,
        endpoint: &Arc<Endpoint>,
        object: IdentityObject,
        uid: &str,
    ) -> Result<(), NotAdmitted> {
        let endpoints = self.endpoints.load();
        let peers: Vec<PeerEndpoint> = endpoints
            .iter()
            .map(|endpoint| PeerEndpoint {
                address: endpoint.address().to_string(),
                is_checked: endpoint.is_checked(),
                is_trusted: endpoint.is_trusted(),
            })
            .collect();
        self.cluster.admit(object, &endpoint.address().to_string(), uid, &peers).inspect_err(|refused| {
            let others = endpoints.iter().filter(|other| !Arc::ptr_eq(other, endpoint));
            if matches!(refused, NotAdmitted::OtherCluster(other) if other.was_member) {
                others.filter(|other| other.is_trusted()).for_each(|other| other.request_recheck());
            }
        })
    }

    /// Takes over which cluster the endpoints of `before` belong to: these settings are for the same one.
    pub(crate) fn inherit_cluster(&self, before: &Self) {
        self.cluster.inherit(&before.cluster);
    }

    /// How many requests of a class may be sent again.
    // threat: retry-floods
    pub(crate) fn retries(&self, class: SharingClass<'_>) -> &RetryBudget {
        if class.is_answered_by_backend() { &self.retries } else { &self.relayed_retries }
    }

    /// The budgets of all classes.
    pub(crate) fn retry_budgets(&self) -> [&RetryBudget; 2] {
        [&self.retries, &self.relayed_retries]
    }

    /// Whether at least one endpoint is trusted.
    pub(crate) fn is_trusted(&self) -> bool {
        self.endpoints.peek().iter().any(|endpoint| endpoint.is_trusted())
    }

    /// Waits until at least one endpoint is trusted.
    pub(crate) async fn until_trusted(&self) {
        while !self.is_trusted() {
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Whether the first self-check of every endpoint has ended.
    pub(crate) fn is_checked(&self) -> bool {
        self.endpoints.peek().iter().all(|endpoint| endpoint.is_checked())
    }

    /// Requests a self-check of every endpoint.
    pub(crate) fn request_recheck(&self) {
        self.endpoints.peek().iter().for_each(|endpoint| endpoint.request_recheck());
    }

    /// Records that a request was refused for lack of a usable endpoint; returns whether it is the first.
    pub(crate) fn note_unavailable(&self) -> bool {
        !self.is_unavailable.swap(true, Ordering::Relaxed)
    }

    /// Records that a request was refused because no endpoint was trusted; returns whether it is the first. A request
    /// that was refused just before an endpoint became trusted belongs to an outage that is over.
    pub(crate) fn note_untrusted(&self) -> bool {
        let is_first = self.note_unavailable();
        if self.is_trusted() {
            self.note_available();
            return false;
        }
        is_first
    }

    /// Records that an endpoint has passed its self-check.
    pub(crate) fn note_available(&self) {
        self.is_unavailable.store(false, Ordering::Relaxed);
    }

    /// The URI of a path at this backend, below its path prefix. `authority` is the client's, where it is forwarded.
    pub(crate) fn uri(&self, authority: Option<Authority>, path: PathAndQuery) -> Result<Uri, http::Error> {
        let path = match self.path_prefix() {
            // A request target of only a query is valid over HTTP/1.1 alone.
            "" if path.as_str().starts_with('?') => PathAndQuery::try_from(format!("/{}", path.as_str()))?,
            "" => path,
            prefix => PathAndQuery::try_from(format!("{prefix}{path}"))?,
        };
        let authority = authority.unwrap_or_else(|| self.authority.clone());
        Uri::builder().scheme(Scheme::HTTPS).authority(authority).path_and_query(path).build()
    }

    /// Adds the gateway's bearer token, if one is configured.
    pub(crate) fn add_credential(&self, headers: &mut HeaderMap) {
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
    }

    /// How the gateway passes the user of a request.
    pub(crate) fn identity(&self) -> IdentityMode {
        self.settings.identity
    }

    /// The prefix of every path at this backend.
    pub(crate) fn path_prefix(&self) -> &str {
        &self.settings.path_prefix
    }
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend").field("endpoints", &self.endpoints.load()).finish_non_exhaustive()
    }
}

/// Whether a list has this endpoint.
pub(crate) fn contains(endpoints: &[Arc<Endpoint>], endpoint: &Arc<Endpoint>) -> bool {
    endpoints.iter().any(|one| Arc::ptr_eq(one, endpoint))
}

#[cfg(test)]
pub(crate) mod testing {
    use portcullis_limits::ClusterOwner;
    use portcullis_limits::budget::BudgetShares;
    use portcullis_limits::byte_ledger::ByteLedger;
    use rustls::crypto::aws_lc_rs::default_provider;

    use super::*;
    use crate::backend::dials::DialLimits;
    use crate::backend::settings::{self, HostPort, TrustedRoots};

    /// A backend whose endpoint has not been checked.
    pub(crate) fn backend() -> Backend {
        with_settings(&settings())
    }

    /// A backend with these settings.
    pub(crate) fn with_settings(settings: &settings::Backend) -> Backend {
        Backend::new(settings, &Arc::new(default_provider()), BackendTimings::default(), dials()).unwrap()
    }

    /// The TLS of these settings.
    pub(super) fn tls(settings: &settings::Backend) -> EndpointTls {
        let policy = PolicyInForce::new(settings.policy);
        EndpointTls::new(settings, &Arc::new(default_provider()), &Arc::default(), dials(), &policy).unwrap()
    }

    /// As much as any cluster wants.
    pub(super) fn dials() -> ClusterDials {
        DialLimits::new(BudgetShares::new(usize::MAX), &ByteLedger::new(usize::MAX))
            .of(ClusterOwner::operator("test"))
    }

    /// The settings of a backend with one endpoint.
    pub(crate) fn settings() -> settings::Backend {
        let endpoint = settings::Endpoint {
            address: HostPort { host: "backend.test".to_owned(), port: 6443 },
            server_name: "backend.test".try_into().unwrap(),
            source: settings::EndpointSource::default(),
        };
        settings::Backend {
            endpoints: vec![endpoint],
            path_prefix: String::new(),
            roots: TrustedRoots::none(),
            client_certificate: None,
            bearer_token: None,
            identity: IdentityMode::Impersonate,
            identity_headers: None,
            discovery: EndpointDiscovery::None,
            policy: settings::BackendPolicy::default(),
        }
    }
}
