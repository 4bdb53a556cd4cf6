//! How the clients of one cluster are authenticated: the chain of authenticators, which lasts one generation of the
//! configuration, and the watches, keys and issuers behind it, which outlive a reload that does not touch them.

use std::sync::Arc;

use http::HeaderName;
use portcullis_http::identity_headers::RequestHeaderNames;
use portcullis_limits::byte_ledger::ByteLedger;
use portcullis_limits::cache_budget::CacheShare;
use portcullis_system::clock::Clock;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::jwt_issuers::JwtIssuers;
use super::token_objects::{TokenObjectCache, TokenObjectKinds};
use super::{ClusterError, settings};
use crate::admission::ReviewMemory;
use crate::audit::Audit;
use crate::authn::bearer::BearerAuthenticator;
use crate::authn::bootstrap::BootstrapTokens;
use crate::authn::cache::{CacheLimits, CachePolicy, CachedTokens};
use crate::authn::chain::{
    AudienceAgnostic, AuthenticatedGroupAdder, AuthnChain, EmptyChain, UnionErrorPolicy, token_union,
};
use crate::authn::request_header::RequestHeaderAuthenticator;
use crate::authn::revocation::ClusterRevocation;
use crate::authn::revocation::watch::RevocationWatch;
use crate::authn::service_account::PodCertificateAuthenticator;
use crate::authn::settings::Authentication;
use crate::authn::token_getter::TokenGetter;
use crate::authn::webhook::settings::WebhookSettings;
use crate::authn::websocket::WebSocketAuthenticator;
use crate::authn::x509::{FrontProxyVerifier, PodIdentities, X509Authenticator};
use crate::authn::{Audience, RequestAuthenticator, TokenAuthenticator};
use crate::authn::{service_account, webhook};
use crate::backend::Backend;
use crate::backend::dials::DialLimits;
use crate::descriptors::Descriptors;
use crate::limits::Limiters;
use crate::metrics::Metrics;
use crate::sessions::Sessions;
use crate::tasks::compute::ComputePool;

/// The dependencies of all authenticators, for the life of the process.
#[derive(Debug, Clone)]
pub(crate) struct ClusterDeps {
    /// Follows the objects and fetches the keys that tokens are verified by, away from the threads that serve requests.
    pub(crate) runtime: Handle,
    /// Checks tokens.
    pub(crate) checks: ComputePool,
    /// Works on large objects under review.
    pub(crate) reviewing: ComputePool,
    /// The memory of objects under review.
    pub(crate) review_memory: ReviewMemory,
    /// Asks authorizers, apart from the verification of tokens: clients choose how much there is to ask.
    pub(crate) reviews: Handle,
    /// The crypto provider of TLS connections to issuers and webhooks.
    pub(crate) provider: Arc<CryptoProvider>,
    /// The metrics.
    pub(crate) metrics: Arc<Metrics>,
    /// The requests in flight.
    pub(crate) limiters: Arc<Limiters>,
    /// Connections to API servers, and lookups of their names.
    pub(crate) dials: DialLimits,
    /// Keeps deny lists up to date.
    pub(crate) revocation: Arc<RevocationWatch>,
    /// The backends of audit.
    pub(crate) audit: Arc<Audit>,
    /// The sessions and their recordings.
    pub(crate) sessions: Arc<Sessions>,
    /// Requests a reload when the first discovery of an issuer has succeeded.
    pub(crate) reload: Arc<Notify>,
}

/// Where the work of clusters runs, away from the threads that serve requests.
pub(crate) struct ClusterThreads {
    /// See [`ClusterDeps::runtime`].
    pub(crate) runtime: Handle,
    /// See [`ClusterDeps::checks`].
    pub(crate) checks: ComputePool,
    /// See [`ClusterDeps::reviewing`].
    pub(crate) reviewing: ComputePool,
    /// See [`ClusterDeps::reviews`].
    pub(crate) reviews: Handle,
}

impl ClusterDeps {
    /// Dependencies for a configuration that is not served.
    pub(crate) fn idle(runtime: &Handle) -> Self {
        let metrics = Arc::new(Metrics::new());
        let audit = Arc::new(Audit::new(&metrics, &Clock::system(), runtime.clone()));
        let sessions = Arc::new(Sessions::new(&metrics, &Clock::system(), runtime.clone()));
        let pool = || ComputePool::new(runtime.clone(), 1);
        let dials = DialLimits::new(Descriptors::unlimited().backends, &ByteLedger::new(usize::MAX));
        let threads = ClusterThreads {
            runtime: runtime.clone(),
            checks: pool(),
            reviewing: pool(),
            reviews: runtime.clone(),
        };
        Self::new(threads, metrics, (audit, sessions), dials)
    }

    /// Dependencies whose work runs on these threads.
    pub(crate) fn new(
        threads: ClusterThreads,
        metrics: Arc<Metrics>,
        (audit, sessions): (Arc<Audit>, Arc<Sessions>),
        dials: DialLimits,
    ) -> Self {
        let ClusterThreads { runtime, checks, reviewing, reviews } = threads;
        Self {
            dials,
            audit,
            sessions,
            runtime,
            checks,
            reviewing,
            review_memory: ReviewMemory::default(),
            reviews,
            provider: Arc::new(default_provider()),
            limiters: Arc::new(Limiters::new(&metrics)),
            metrics,
            revocation: RevocationWatch::new(),
            reload: Arc::default(),
        }
    }
}

/// Authentication of one cluster's clients.
#[derive(Debug)]
pub(crate) struct ClusterAuthn {
    /// The authenticators, in kube-apiserver's order.
    pub(crate) chain: AuthnChain,
    /// The audiences of the cluster's API servers.
    pub(crate) audiences: Vec<Audience>,
    /// Whether long-running responses end with their credential.
    pub(crate) ends_streams: bool,
    /// The headers in which a front proxy passes identities, beside the standard ones.
    front_proxy_headers: Option<RequestHeaderNames>,
    /// The issuers of JSON Web Tokens.
    pub(crate) issuers: JwtIssuers,
    token_objects: Option<Arc<TokenObjectCache>>,
    webhook: Option<TokenWebhook>,
}

/// A token webhook with its cache, and the settings it was built from.
#[derive(Debug, Clone)]
struct TokenWebhook {
    settings: Arc<WebhookSettings>,
    audiences: Vec<Audience>,
    authenticator: Arc<CachedTokens>,
}

impl ClusterAuthn {
    /// Builds the authenticators of `settings`. Keeps watches, issuers and webhooks of `before` where their settings
    /// are the same. The chain itself is always new, so that no verdict outlives its configuration.
    // threat: revoked-on-open-connection
    pub(super) fn build(
        cluster: &settings::Cluster,
        backend: &Arc<Backend>,
        before: Option<&Self>,
        deps: &ClusterDeps,
    ) -> Result<Self, ClusterError> {
        let settings::Cluster { name, authentication: settings, .. } = cluster;
        let token_objects = token_objects(
            name,
            settings,
            backend,
            before.and_then(|before| before.token_objects.as_ref()),
            deps,
        );
        let issuers = JwtIssuers::new(&settings.jwt, before.map(|before| &before.issuers), deps)?;
        let webhook = match &settings.webhook {
            Some(webhook) => {
                let known = before.and_then(|before| before.webhook.as_ref());
                let same = known.filter(|known| known.is_for(webhook, &settings.audiences));
                Some(match same {
                    Some(known) => known.clone(),
                    None => TokenWebhook::new(name, webhook, &settings.audiences, backend.caches(), deps)?,
                })
            }
            None => None,
        };
        let tokens = token_authenticators(settings, token_objects.as_ref(), &issuers, webhook.as_ref(), deps);
        Ok(Self {
            chain: chain(cluster, tokens, token_objects.as_ref(), backend.caches(), deps)?,
            audiences: settings.audiences.clone(),
            ends_streams: settings.ends_streams,
            front_proxy_headers: settings.request_header.as_ref().map(|proxies| proxies.headers.clone()),
            issuers,
            token_objects,
            webhook,
        })
    }

    /// Whether front proxies of this cluster pass identities in this header.
    pub(crate) fn is_front_proxy_header(&self, name: &HeaderName) -> bool {
        self.front_proxy_headers.as_ref().is_some_and(|names| names.contains(name))
    }

    /// Whether some credentials are verified against objects of the cluster (secrets, service accounts, pods).
    pub(crate) fn reads_cluster_objects(&self) -> bool {
        self.token_objects.is_some()
    }
}

/// The cache of the objects that tokens depend on, if any do.
fn token_objects(
    cluster: &str,
    settings: &Authentication,
    backend: &Arc<Backend>,
    before: Option<&Arc<TokenObjectCache>>,
    deps: &ClusterDeps,
) -> Option<Arc<TokenObjectCache>> {
    let needs = TokenObjectKinds {
        bootstrap_tokens: settings.bootstrap_tokens,
        service_accounts: settings.service_accounts.is_some() || settings.pod_client_ca.is_some(),
    };
    if needs == TokenObjectKinds::default() {
        return None;
    }
    Some(match before.filter(|known| known.is_for(backend, needs)) {
        Some(known) => Arc::clone(known),
        None => Arc::new(TokenObjectCache::start(cluster, backend, needs, &deps.runtime, &deps.metrics)),
    })
}

/// The chain in kube-apiserver's order. A method that is not configured is absent; an empty chain is an error.
// kubernetes: pkg/kubeapiserver/authenticator/config.go, Config.New
fn chain(
    cluster: &settings::Cluster,
    tokens: Vec<Box<dyn TokenAuthenticator>>,
    objects: Option<&Arc<TokenObjectCache>>,
    caches: &CacheShare,
    deps: &ClusterDeps,
) -> Result<AuthnChain, EmptyChain> {
    let is_of_tenant = cluster.origin.is_of_tenant();
    let settings = &cluster.authentication;
    let audiences = &settings.audiences;
    let revocation = ClusterRevocation::new(&settings.revocation, &deps.revocation, &deps.metrics);
    let mut members: Vec<Box<dyn RequestAuthenticator>> = Vec::new();
    let pods = if settings.pod_client_ca.is_some() { PodIdentities::Refused } else { PodIdentities::Ignored };
    if let Some(request_header) = &settings.request_header {
        let (ca, names) = (Arc::clone(&request_header.ca), request_header.allowed_names.clone());
        let verifier = FrontProxyVerifier::new(ca, names, pods);
        let authenticator = RequestHeaderAuthenticator::new(verifier, request_header.headers.clone());
        members.push(Box::new(AudienceAgnostic::new(audiences.clone(), Box::new(authenticator))));
    }
    let users = settings.client_ca.as_ref().map(|bundle| X509Authenticator::new(Arc::clone(bundle), pods));
    match (&settings.pod_client_ca, objects) {
        (Some(bundle), Some(objects)) => {
            let (bundle, getter) = (Arc::clone(bundle), Arc::<TokenObjectCache>::clone(objects));
            members.push(Box::new(PodCertificateAuthenticator::new(
                bundle,
                users,
                getter,
                is_of_tenant,
                caches,
            )));
        }
        // There are objects if there is a pod CA: see `token_objects`.
        _ => members.extend(users.map(|users| -> Box<dyn RequestAuthenticator> { Box::new(users) })),
    }
    let Some(union) = token_union(tokens, UnionErrorPolicy::Continue) else {
        return AuthnChain::new(members, settings.anonymous.authenticator(), revocation);
    };
    let cached = CachedTokens::new(
        Arc::new(AuthenticatedGroupAdder::new(union)),
        CachePolicy::TOKENS,
        deps.checks.of_cluster(&cluster.name),
        &deps.metrics.token_cache,
        if is_of_tenant { CacheLimits::TENANT } else { CacheLimits::CLUSTER },
        caches,
    );
    let tokens: Arc<dyn TokenAuthenticator> = Arc::new(cached);
    members.push(Box::new(BearerAuthenticator::new(Box::new(Arc::clone(&tokens)))));
    members.push(Box::new(WebSocketAuthenticator::new(Box::new(Arc::clone(&tokens)))));
    Ok(AuthnChain::new(members, settings.anonymous.authenticator(), revocation)?.with_token_review(tokens))
}

/// The token authenticators in kube-apiserver's order.
fn token_authenticators(
    settings: &Authentication,
    token_objects: Option<&Arc<TokenObjectCache>>,
    issuers: &JwtIssuers,
    webhook: Option<&TokenWebhook>,
    deps: &ClusterDeps,
) -> Vec<Box<dyn TokenAuthenticator>> {
    let agnostic = |delegate: Box<dyn TokenAuthenticator>| -> Box<dyn TokenAuthenticator> {
        Box::new(AudienceAgnostic::new(settings.audiences.clone(), delegate))
    };
    let mut tokens = Vec::new();
    if let Some(static_tokens) = &settings.static_tokens {
        tokens.push(agnostic(Box::new(Arc::clone(static_tokens))));
    }
    if let (Some(accounts), Some(objects)) = (&settings.service_accounts, token_objects) {
        tokens.extend(service_account::authenticators(
            accounts,
            || objects.service_account_keys(),
            Arc::<TokenObjectCache>::clone(objects),
            settings.audiences.clone(),
            deps.metrics.service_accounts.clone(),
        ));
    }
    if let Some(objects) = token_objects.filter(|_| settings.bootstrap_tokens) {
        let getter: Arc<dyn TokenGetter> = Arc::<TokenObjectCache>::clone(objects);
        tokens.push(agnostic(Box::new(BootstrapTokens::new(getter))));
    }
    if let Some(union) = token_union(issuers.authenticators(), UnionErrorPolicy::Stop) {
        tokens.push(agnostic(union));
    }
    if let Some(TokenWebhook { authenticator, .. }) = webhook {
        tokens.push(Box::new(Arc::clone(authenticator)));
    }
    tokens
}

impl TokenWebhook {
    fn new(
        cluster: &str,
        settings: &Arc<WebhookSettings>,
        audiences: &[Audience],
        caches: &CacheShare,
        deps: &ClusterDeps,
    ) -> Result<Self, rustls::Error> {
        let (checks, metrics) = (deps.checks.of_cluster(cluster), &deps.metrics);
        let authenticator =
            webhook::cached(settings, audiences.to_vec(), &deps.provider, checks, metrics, caches)?;
        Ok(Self {
            settings: Arc::clone(settings),
            audiences: audiences.to_vec(),
            authenticator: Arc::new(authenticator),
        })
    }

    /// Whether it was built from these settings, so that a reload can keep it.
    fn is_for(&self, settings: &WebhookSettings, audiences: &[Audience]) -> bool {
        *self.settings == *settings && self.audiences == audiences
    }
}
