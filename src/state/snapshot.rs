//! Everything that a request is judged by, built whole and never changed: one request, one generation.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use rustls::crypto::CryptoProvider;
use rustls::{DistinguishedName, ServerConfig};

use crate::authn::chain::EmptyChain;
use crate::backend::endpoint::Target;
use crate::backend::upstream::Upstream;
use crate::cluster::authenticators::{Means, Methods};
use crate::cluster::router::Router;
use crate::cluster::{Cluster, settings};
use crate::config::settings::{Backend, Settings, Shutdown};
use crate::controllers::ClusterControllers;
use crate::listener::settings::Limits;
use crate::listener::tls;

/// One generation of the configuration.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Counts up with each reload; verdicts are remembered for one generation.
    pub(crate) generation: u64,
    /// The clusters.
    pub(crate) router: Router<Cluster>,
    /// What their authenticators know, in the same order.
    pub(crate) methods: Vec<Methods>,
    /// The controllers of those that have any.
    pub(crate) controllers: Vec<ClusterControllers>,
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
    // threat: revoked-on-open-connection
    pub(crate) fn build(
        settings: &Settings,
        before: Option<&Self>,
        means: &Means,
    ) -> Result<Self, SnapshotError> {
        let serving = &settings.serving;
        let (mut clusters, mut methods, mut controllers) = (Vec::new(), Vec::new(), Vec::new());
        for cluster in &settings.clusters {
            let (built, known) = build_cluster(cluster, &serving.provider, before, means)?;
            if let Some(settings) = settings.controllers.get(&cluster.name) {
                controllers.push(ClusterControllers {
                    cluster: cluster.name.as_str().into(),
                    upstream: Arc::clone(&built.upstream),
                    settings: Arc::clone(settings),
                });
            }
            clusters.push((cluster.routes.clone(), Arc::new(built)));
            methods.push(known);
        }
        Ok(Self {
            generation: before.map_or(1, |before| before.generation + 1),
            router: Router::new(clusters),
            methods,
            controllers,
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
    means: &Means,
) -> Result<(Cluster, Methods), SnapshotError> {
    let settings::Cluster { name, authentication, backend, .. } = settings;
    let before = before.and_then(|before| {
        let mut known = before.router.clusters().iter().zip(&before.methods);
        known.find(|(known, _)| known.name == *name)
    });
    let (known, methods) = before.unzip();
    let (upstream, waiting) = upstreams(backend, provider, known)
        .map_err(|source| SnapshotError::Backend { cluster: name.clone(), source })?;
    let methods = Methods::of(name, authentication, &upstream, methods, means)
        .map_err(|source| SnapshotError::Backend { cluster: name.clone(), source })?;
    let cluster = Cluster {
        name: name.clone(),
        chain: methods
            .chain(authentication)
            .map_err(|source| SnapshotError::NoAuthentication { cluster: name.clone(), source })?,
        audiences: authentication.audiences.clone(),
        front_proxy: authentication.request_header.as_ref().map(|proxies| Arc::new(proxies.headers.clone())),
        upstream,
        waiting,
    };
    Ok((cluster, methods))
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
