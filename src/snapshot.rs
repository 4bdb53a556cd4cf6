//! Everything that a request is judged by, built whole and never changed: one request, one generation.

use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use rustls::{DistinguishedName, ServerConfig};

use crate::authn::anonymous::AnonymousAuthenticator;
use crate::authn::bearer::BearerAuthenticator;
use crate::authn::chain::{AudienceAgnostic, Chain, EmptyChain, OnError, token_union};
use crate::authn::request_header::{RequestHeaderAuthenticator, RequestHeaderNames};
use crate::authn::settings::Authentication;
use crate::authn::websocket::WebSocketAuthenticator;
use crate::authn::x509::{FrontProxyVerifier, X509Authenticator};
use crate::authn::{Audience, RequestAuthenticator, TokenAuthenticator};
use crate::config::settings::Settings;
use crate::forward::target::Target;
use crate::listen::tls;

/// One generation of the configuration.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Counts up with each reload; verdicts are remembered for one generation.
    pub(crate) generation: u64,
    /// Who clients are.
    pub(crate) chain: Chain,
    /// The audiences of this API server.
    pub(crate) audiences: Vec<Audience>,
    /// The front-proxy headers that are taken out of every request beside the standard ones.
    front_proxy: Option<RequestHeaderNames>,
    /// The backend.
    pub(crate) target: Arc<Target>,
    /// What each new connection is accepted with.
    pub(crate) tls: Arc<ServerConfig>,
    /// The value of `Strict-Transport-Security`.
    pub(crate) strict_transport_security: Option<HeaderValue>,
}

/// Why settings cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The serving certificate or the TLS options do not fit together.
    #[error("TLS cannot be served: {0}")]
    Serving(#[source] rustls::Error),
    /// The backend's certificate and key do not fit together.
    #[error("the backend's credential cannot be used: {0}")]
    Backend(#[source] rustls::Error),
    /// Nobody could be let in.
    #[error(transparent)]
    NoAuthentication(#[from] EmptyChain),
}

impl Snapshot {
    /// Builds a generation.
    pub(crate) fn build(settings: &Settings, generation: u64) -> Result<Self, SnapshotError> {
        let [cluster, ..] = settings.clusters.as_slice() else {
            return Err(SnapshotError::NoAuthentication(EmptyChain));
        };
        let authentication = &cluster.authentication;
        Ok(Self {
            generation,
            chain: chain(authentication)?,
            audiences: authentication.audiences.clone(),
            front_proxy: authentication
                .request_header
                .as_ref()
                .map(|request_header| request_header.headers.clone()),
            target: Arc::new(
                Target::new(&cluster.backend, &settings.serving.provider).map_err(SnapshotError::Backend)?,
            ),
            tls: tls::server_config(&settings.serving, hints(authentication))
                .map_err(SnapshotError::Serving)?,
            strict_transport_security: settings.serving.strict_transport_security.clone(),
        })
    }
}

impl Snapshot {
    /// Whether a front proxy writes identities into this header.
    pub(crate) fn is_front_proxy_header(&self, name: &HeaderName) -> bool {
        self.front_proxy.as_ref().is_some_and(|names| names.contains(name))
    }
}

/// The names of our CAs, sent to clients so that they pick the right certificate.
fn hints(authentication: &Authentication) -> Arc<[DistinguishedName]> {
    let front_proxies = authentication.request_header.as_ref().map(|request_header| &request_header.ca);
    authentication.client_ca.iter().chain(front_proxies).flat_map(|ca| ca.subjects()).collect()
}

/// The authenticators in kube-apiserver's order. A method that is off is absent; nothing at all is an error.
// kubernetes: pkg/kubeapiserver/authenticator/config.go, Config.New
fn chain(authentication: &Authentication) -> Result<Chain, SnapshotError> {
    let audiences = &authentication.audiences;
    let mut members: Vec<Box<dyn RequestAuthenticator>> = Vec::new();
    if let Some(request_header) = &authentication.request_header {
        let verifier =
            FrontProxyVerifier::new(Arc::clone(&request_header.ca), request_header.allowed_names.clone());
        let authenticator = RequestHeaderAuthenticator::new(verifier, request_header.headers.clone());
        members.push(Box::new(AudienceAgnostic::new(audiences.clone(), Box::new(authenticator))));
    }
    if let Some(client_ca) = &authentication.client_ca {
        members.push(Box::new(X509Authenticator::new(Arc::clone(client_ca))));
    }
    let mut tokens: Vec<Box<dyn TokenAuthenticator>> = Vec::new();
    if let Some(static_tokens) = &authentication.static_tokens {
        tokens.push(Box::new(AudienceAgnostic::new(audiences.clone(), Box::new(Arc::clone(static_tokens)))));
    }
    if let Some(union) = token_union(tokens, OnError::Continue) {
        let union: Arc<dyn TokenAuthenticator> = Arc::from(union);
        members.push(Box::new(BearerAuthenticator::new(Box::new(Arc::clone(&union)))));
        members.push(Box::new(WebSocketAuthenticator::new(Box::new(union))));
    }
    let everywhere = || AnonymousAuthenticator::new([]);
    Ok(Chain::new(members, authentication.anonymous.then(everywhere))?)
}
