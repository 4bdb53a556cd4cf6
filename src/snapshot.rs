//! Everything that a request is judged by, built whole and never changed: one request, one generation.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use rustls::crypto::CryptoProvider;
use rustls::{DistinguishedName, ServerConfig};

use crate::authn::anonymous::AnonymousAuthenticator;
use crate::authn::bearer::BearerAuthenticator;
use crate::authn::chain::{AudienceAgnostic, Chain, EmptyChain, OnError, token_union};
use crate::authn::request_header::RequestHeaderAuthenticator;
use crate::authn::settings::Authentication;
use crate::authn::websocket::WebSocketAuthenticator;
use crate::authn::x509::{FrontProxyVerifier, X509Authenticator};
use crate::authn::{RequestAuthenticator, TokenAuthenticator};
use crate::clusters::router::Router;
use crate::clusters::target::Target;
use crate::clusters::upstream::Upstream;
use crate::clusters::{Cluster, settings};
use crate::config::settings::{Backend, Settings, Shutdown};
use crate::listen::settings::Limits;
use crate::listen::tls;

/// One generation of the configuration.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Counts up with each reload; verdicts are remembered for one generation.
    pub(crate) generation: u64,
    /// The clusters.
    pub(crate) router: Router<Cluster>,
    /// What each new connection is accepted with.
    pub(crate) tls: Arc<ServerConfig>,
    /// The limits of each new connection.
    pub(crate) limits: Limits,
    /// The value of `Strict-Transport-Security`.
    pub(crate) strict_transport_security: Option<HeaderValue>,
    /// How long a request may take, unless it is long-running.
    pub(crate) request_timeout: Duration,
    /// What happens after SIGTERM, and when.
    pub(crate) shutdown: Shutdown,
    /// How long `/livez` believes that the start is going well.
    pub(crate) livez_grace_period: Duration,
}

/// Why settings cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The serving certificate or the TLS options do not fit together.
    #[error("TLS cannot be served: {0}")]
    Serving(#[source] rustls::Error),
    /// The gateway's certificate and key for a backend do not fit together.
    #[error("cluster {cluster}: the backend's credential cannot be used: {source}")]
    Backend {
        /// The cluster.
        cluster: String,
        /// rustls's words.
        #[source]
        source: rustls::Error,
    },
    /// Nobody could be let in.
    #[error("cluster {cluster}: {source}")]
    NoAuthentication {
        /// The cluster.
        cluster: String,
        /// Says so.
        #[source]
        source: EmptyChain,
    },
}

impl Snapshot {
    /// Builds a generation. API servers that `before` knew by the same settings are taken over, with their connections.
    pub(crate) fn build(settings: &Settings, before: Option<&Self>) -> Result<Self, SnapshotError> {
        let serving = &settings.serving;
        let clusters = settings.clusters.iter().map(|cluster| {
            let built = build_cluster(cluster, &serving.provider, before)?;
            Ok((cluster.routes.clone(), Arc::new(built)))
        });
        Ok(Self {
            generation: before.map_or(1, |before| before.generation + 1),
            router: Router::new(clusters.collect::<Result<_, SnapshotError>>()?),
            tls: tls::server_config(serving, hints(&settings.clusters)).map_err(SnapshotError::Serving)?,
            limits: serving.limits,
            strict_transport_security: serving.strict_transport_security.clone(),
            request_timeout: settings.operation.request_timeout,
            shutdown: settings.operation.shutdown,
            livez_grace_period: settings.operation.livez_grace_period,
        })
    }
}

impl Snapshot {
    /// The endpoints of every cluster.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &Arc<Target>> {
        self.router.clusters().iter().flat_map(|cluster| cluster.upstream.targets())
    }
}

fn build_cluster(
    settings: &settings::Cluster,
    provider: &Arc<CryptoProvider>,
    before: Option<&Snapshot>,
) -> Result<Cluster, SnapshotError> {
    let settings::Cluster { name, authentication, backend, .. } = settings;
    let known = before.and_then(|before| before.router.clusters().iter().find(|known| known.name == *name));
    let (upstream, waiting) = upstreams(backend, provider, known)
        .map_err(|source| SnapshotError::Backend { cluster: name.clone(), source })?;
    Ok(Cluster {
        name: name.clone(),
        chain: chain(authentication)
            .map_err(|source| SnapshotError::NoAuthentication { cluster: name.clone(), source })?,
        audiences: authentication.audiences.clone(),
        front_proxy: authentication.request_header.as_ref().map(|proxies| proxies.headers.clone()),
        upstream,
        waiting,
    })
}

/// The API server in force, and the one that waits to be. One that is trusted is not given up for one that is not yet:
/// a rotated credential that nobody accepts must not end the service. That is, if both are of the same cluster: whom
/// the new configuration lets in has no business at another.
fn upstreams(
    backend: &Backend,
    provider: &Arc<CryptoProvider>,
    known: Option<&Arc<Cluster>>,
) -> Result<(Arc<Upstream>, Option<Arc<Upstream>>), rustls::Error> {
    let before = known.map(|known| &known.upstream);
    let candidates = before.into_iter().chain(known.and_then(|known| known.waiting.as_ref()));
    let next = match candidates.into_iter().find(|upstream| upstream.is_for(backend)) {
        Some(upstream) => Arc::clone(upstream),
        None => Arc::new(Upstream::new(backend, provider)?),
    };
    match before {
        Some(before) if before.is_trusted() && !next.is_trusted() && before.serves_for(backend) => {
            Ok((Arc::clone(before), Some(next)))
        }
        _ => Ok((next, None)),
    }
}

/// The names of our CAs, sent to clients so that they pick the right certificate.
fn hints(clusters: &[settings::Cluster]) -> Arc<[DistinguishedName]> {
    let mut hints: Vec<DistinguishedName> = Vec::new();
    for settings::Cluster { authentication, .. } in clusters {
        let front_proxies = authentication.request_header.as_ref().map(|request_header| &request_header.ca);
        for subject in authentication.client_ca.iter().chain(front_proxies).flat_map(|ca| ca.subjects()) {
            if !hints.iter().any(|known| known.as_ref() == subject.as_ref()) {
                hints.push(subject);
            }
        }
    }
    hints.into()
}

/// The authenticators in kube-apiserver's order. A method that is off is absent; nothing at all is an error.
// kubernetes: pkg/kubeapiserver/authenticator/config.go, Config.New
fn chain(authentication: &Authentication) -> Result<Chain, EmptyChain> {
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
    Chain::new(members, authentication.anonymous.then(everywhere))
}
