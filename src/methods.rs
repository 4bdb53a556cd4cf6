//! How the clients of one cluster are authenticated: the chain of a generation, and what outlives generations (watches,
//! keys, what is known of issuers).

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::authn::bearer::BearerAuthenticator;
use crate::authn::bootstrap::BootstrapTokens;
use crate::authn::cache::{CachedTokens, Keep};
use crate::authn::chain::{AudienceAgnostic, Chain, EmptyChain, OnError, token_union};
use crate::authn::lookup::Lookup;
use crate::authn::request_header::RequestHeaderAuthenticator;
use crate::authn::service_account;
use crate::authn::settings::Authentication;
use crate::authn::websocket::WebSocketAuthenticator;
use crate::authn::x509::{FrontProxyVerifier, X509Authenticator};
use crate::authn::{RequestAuthenticator, TokenAuthenticator};
use crate::clusters::upstream::Upstream;
use crate::lookups::{Lookups, Needs};
use crate::metrics::Metrics;

/// What authenticators work with; there for as long as the process is.
#[derive(Debug, Clone)]
pub(crate) struct Means {
    /// Where tokens are judged and everything is asked that this takes: away from the threads that serve requests.
    pub(crate) runtime: Handle,
    /// What is counted.
    pub(crate) metrics: Arc<Metrics>,
    /// Asks for a reload: something that was waited for is there.
    pub(crate) reload: Arc<Notify>,
}

impl Means {
    /// Means of their own, for a command that ends soon.
    pub(crate) fn new(runtime: &Handle) -> Self {
        Self { runtime: runtime.clone(), metrics: Arc::new(Metrics::new()), reload: Arc::default() }
    }
}

/// What the authenticators of one cluster know.
#[derive(Debug)]
pub(crate) struct Methods {
    means: Means,
    lookups: Option<Arc<Lookups>>,
}

impl Methods {
    /// What `settings` ask for; taken over from the generation `before` as far as they ask for the same.
    pub(crate) fn of(
        cluster: &str,
        settings: &Authentication,
        upstream: &Arc<Upstream>,
        before: Option<&Self>,
        means: &Means,
    ) -> Self {
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
        Self { means: means.clone(), lookups }
    }

    /// Whether the API server is asked about tokens.
    pub(crate) fn ask_the_backend(&self) -> bool {
        self.lookups.is_some()
    }

    /// The authenticators in kube-apiserver's order. A method that is off is absent; nothing at all is an error.
    // kubernetes: pkg/kubeapiserver/authenticator/config.go, Config.New
    pub(crate) fn chain(&self, settings: &Authentication) -> Result<Chain, EmptyChain> {
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
        if let Some(union) = token_union(self.tokens(settings), OnError::Continue) {
            let metrics = &self.means.metrics.token_cache;
            let cached = CachedTokens::new(union.into(), Keep::TOKENS, self.means.runtime.clone(), metrics);
            let union: Arc<dyn TokenAuthenticator> = Arc::new(cached);
            members.push(Box::new(BearerAuthenticator::new(Box::new(Arc::clone(&union)))));
            members.push(Box::new(WebSocketAuthenticator::new(Box::new(union))));
        }
        Chain::new(members, settings.anonymous.authenticator())
    }

    fn tokens(&self, settings: &Authentication) -> Vec<Box<dyn TokenAuthenticator>> {
        let agnostic = |delegate: Box<dyn TokenAuthenticator>| -> Box<dyn TokenAuthenticator> {
            Box::new(AudienceAgnostic::new(settings.audiences.clone(), delegate))
        };
        let lookup = || self.lookups.clone().map(|lookups| -> Arc<dyn Lookup> { lookups });
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
        tokens
    }
}
