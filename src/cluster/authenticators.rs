//! How the clients of one cluster are authenticated: the chain of a generation, and what outlives generations (watches,
//! keys, what is known of issuers).

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::jwt_issuers::Issuers;
use crate::authn::bearer::BearerAuthenticator;
use crate::authn::bootstrap::BootstrapTokens;
use crate::authn::cache::{CacheLimits, CachePolicy, CachedTokens};
use crate::authn::chain::{
    AudienceAgnostic, AuthenticatedGroupAdder, AuthnChain, EmptyChain, UnionErrorPolicy, token_union,
};
use crate::authn::request_header::RequestHeaderAuthenticator;
use crate::authn::settings::Authentication;
use crate::authn::token_getter::TokenGetter;
use crate::authn::webhook::settings::WebhookSettings;
use crate::authn::websocket::WebSocketAuthenticator;
use crate::authn::x509::{FrontProxyVerifier, X509Authenticator};
use crate::authn::{Audience, RequestAuthenticator, TokenAuthenticator};
use crate::authn::{service_account, webhook};
use crate::backend::upstream::Upstream;
use crate::cluster::token_objects::{Lookups, Needs};
use crate::metrics::Metrics;

/// What authenticators work with; there for as long as the process is.
#[derive(Debug, Clone)]
pub(crate) struct Means {
    /// Where tokens are judged and everything is asked that this takes: away from the threads that serve requests.
    pub(crate) runtime: Handle,
    /// What TLS connections to issuers and webhooks are made with.
    pub(crate) provider: Arc<CryptoProvider>,
    /// What is counted.
    pub(crate) metrics: Arc<Metrics>,
    /// Asks for a reload: something that was waited for is there.
    pub(crate) reload: Arc<Notify>,
}

impl Means {
    /// Means that work on `runtime`.
    pub(crate) fn new(runtime: Handle, metrics: Arc<Metrics>, reload: Arc<Notify>) -> Self {
        Self { runtime, provider: Arc::new(default_provider()), metrics, reload }
    }
}

/// What the authenticators of one cluster know.
#[derive(Debug)]
pub(crate) struct Methods {
    means: Means,
    lookups: Option<Arc<Lookups>>,
    issuers: Issuers,
    webhook: Option<Asked>,
}

/// A webhook with its memory, and what it was made of.
#[derive(Debug, Clone)]
struct Asked {
    settings: Arc<WebhookSettings>,
    audiences: Vec<Audience>,
    webhook: Arc<CachedTokens>,
}

impl Methods {
    /// What `settings` ask for; taken over from the generation `before` as far as they ask for the same.
    // threat: revoked-on-open-connection
    pub(crate) fn of(
        cluster: &str,
        settings: &Authentication,
        upstream: &Arc<Upstream>,
        before: Option<&Self>,
        means: &Means,
    ) -> Result<Self, rustls::Error> {
        let needs = Needs {
            bootstrap_tokens: settings.bootstrap_tokens,
            service_accounts: settings.service_accounts.is_some(),
        };
        let known = before.and_then(|before| before.lookups.as_ref());
        let lookups = match known.filter(|known| known.is_for(upstream, needs)) {
            _ if needs == Needs::default() => None,
            Some(known) => Some(Arc::clone(known)),
            None => Some(Arc::new(Lookups::start(cluster, upstream, needs, &means.runtime, &means.metrics))),
        };
        let none = Issuers::default();
        let issuers = Issuers::new(&settings.jwt, before.map_or(&none, |before| &before.issuers), means)?;
        let webhook = match &settings.webhook {
            Some(webhook) => {
                let known = before.and_then(|before| before.webhook.as_ref());
                let same =
                    |known: &&Asked| *known.settings == **webhook && known.audiences == settings.audiences;
                Some(match known.filter(same) {
                    Some(known) => known.clone(),
                    None => Asked::new(webhook, &settings.audiences, means)?,
                })
            }
            None => None,
        };
        Ok(Self { means: means.clone(), lookups, issuers, webhook })
    }

    /// The issuers of JSON Web Tokens.
    pub(crate) fn issuers(&self) -> &Issuers {
        &self.issuers
    }

    /// Whether the API server is asked about tokens.
    pub(crate) fn ask_the_backend(&self) -> bool {
        self.lookups.is_some()
    }

    /// The authenticators in kube-apiserver's order. A method that is off is absent; nothing at all is an error.
    // kubernetes: pkg/kubeapiserver/authenticator/config.go, Config.New
    pub(crate) fn chain(&self, settings: &Authentication) -> Result<AuthnChain, EmptyChain> {
        let audiences = &settings.audiences;
        let mut members: Vec<Box<dyn RequestAuthenticator>> = Vec::new();
        if let Some(request_header) = &settings.request_header {
            let verifier =
                FrontProxyVerifier::new(Arc::clone(&request_header.ca), request_header.allowed_names.clone());
            let authenticator = RequestHeaderAuthenticator::new(verifier, request_header.headers.clone());
            members.push(Box::new(AudienceAgnostic::new(audiences.clone(), Box::new(authenticator))));
        }
        if let Some(client_ca) = &settings.client_ca {
            members.push(Box::new(X509Authenticator::new(Arc::clone(client_ca))));
        }
        let mut reviewed = None;
        if let Some(union) = token_union(self.tokens(settings), UnionErrorPolicy::Continue) {
            let metrics = &self.means.metrics.token_cache;
            let cached = CachedTokens::new(
                Arc::new(AuthenticatedGroupAdder::new(union)),
                CachePolicy::TOKENS,
                self.means.runtime.clone(),
                metrics,
                CacheLimits::CLUSTER,
            );
            let union: Arc<dyn TokenAuthenticator> = Arc::new(cached);
            members.push(Box::new(BearerAuthenticator::new(Box::new(Arc::clone(&union)))));
            members.push(Box::new(WebSocketAuthenticator::new(Box::new(Arc::clone(&union)))));
            reviewed = Some(union);
        }
        let chain = AuthnChain::new(members, settings.anonymous.authenticator())?;
        Ok(match reviewed {
            Some(tokens) => chain.with_token_review(tokens),
            None => chain,
        })
    }

    fn tokens(&self, settings: &Authentication) -> Vec<Box<dyn TokenAuthenticator>> {
        let agnostic = |delegate: Box<dyn TokenAuthenticator>| -> Box<dyn TokenAuthenticator> {
            Box::new(AudienceAgnostic::new(settings.audiences.clone(), delegate))
        };
        let lookup = || self.lookups.clone().map(|lookups| -> Arc<dyn TokenGetter> { lookups });
        let mut tokens = Vec::new();
        if let Some(static_tokens) = &settings.static_tokens {
            tokens.push(agnostic(Box::new(Arc::clone(static_tokens))));
        }
        if let (Some(accounts), Some(lookups)) = (&settings.service_accounts, &self.lookups) {
            tokens.extend(service_account::authenticators(
                accounts,
                || lookups.service_account_keys(),
                Arc::<Lookups>::clone(lookups),
                settings.audiences.clone(),
                self.means.metrics.service_accounts.clone(),
            ));
        }
        if let Some(lookup) = lookup().filter(|_| settings.bootstrap_tokens) {
            tokens.push(agnostic(Box::new(BootstrapTokens::new(lookup))));
        }
        if let Some(union) = token_union(self.issuers.authenticators(), UnionErrorPolicy::Stop) {
            tokens.push(agnostic(union));
        }
        if let Some(Asked { webhook, .. }) = &self.webhook {
            tokens.push(Box::new(Arc::clone(webhook)));
        }
        tokens
    }
}

impl Asked {
    fn new(
        settings: &Arc<WebhookSettings>,
        audiences: &[Audience],
        means: &Means,
    ) -> Result<Self, rustls::Error> {
        let (runtime, metrics) = (means.runtime.clone(), &means.metrics);
        let webhook = webhook::cached(settings, audiences.to_vec(), &means.provider, runtime, metrics)?;
        Ok(Self { settings: Arc::clone(settings), audiences: audiences.to_vec(), webhook: Arc::new(webhook) })
    }
}
