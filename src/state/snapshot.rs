//! One generation of the configuration, built whole and never changed. Every request is served with a single
//! generation.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::HeaderValue;
use portcullis_limits::budget::Budget;
use portcullis_limits::byte_ledger::ByteLedger;
use portcullis_limits::cache_budget::CacheBudget;
use portcullis_system::sync::lock;
use rustls::{DistinguishedName, ServerConfig};
use tracing::info;

use super::cluster_outcome::{ClusterBuildError, ClusterOutcomes};
use super::effective_config::EffectiveConfig;
use crate::admission::ReviewMemory;
use crate::audit::AuditGeneration;
use crate::backend::endpoint::Endpoint;
use crate::cluster::authenticators::ClusterDeps;
use crate::cluster::router::Router;
use crate::cluster::{Cluster, settings};
use crate::config::ConfigErrors;
use crate::config::management_cluster::ManagementSettings;
use crate::config::page_settings::PageSettings;
use crate::config::settings::{MaxBufferedBytes, Shutdown};
use crate::listener::settings::{ClientLimits, ProxyProtocol};
use crate::listener::tls;
use crate::request::cors::AllowedOrigins;
use crate::sessions::Sessions;

/// One generation of the configuration.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Grows with each reload; cached verdicts are valid for one generation.
    pub(crate) generation: u64,
    /// The number of clusters that were built anew; the others are those of the generation before.
    pub(crate) rebuilt: usize,
    /// What is served of each cluster of the cluster directory and of Secrets. The next configuration is decided against it.
    pub(crate) separate: ClusterOutcomes,
    /// The clusters with their routes.
    pub(crate) router: Router<Cluster>,
    /// The TLS configuration of new connections.
    pub(crate) tls: Arc<ServerConfig>,
    /// The limits of new connections.
    pub(crate) limits: ClientLimits,
    /// Which new connections begin with a PROXY protocol header.
    pub(crate) proxy_protocol: Option<Arc<ProxyProtocol>>,
    /// The value of `Strict-Transport-Security`.
    pub(crate) strict_transport_security: Option<HeaderValue>,
    /// The origins whose scripts may read responses in a browser.
    pub(crate) allowed_origins: AllowedOrigins,
    /// How long a request may take, unless it is long-running.
    pub(crate) request_timeout: Duration,
    /// The requests of all clusters in flight; 0: no limit.
    max_requests_inflight_total: usize,
    max_requests_per_second_per_tenant: u32,
    max_buffered_bytes: MaxBufferedBytes,
    ledger: ByteLedger,
    caches: CacheBudget,
    connections: Budget,
    review_memory: ReviewMemory,
    sessions: Arc<Sessions>,
    /// The shutdown sequence.
    pub(crate) shutdown: Shutdown,
    /// The management cluster, whose Secrets are clusters.
    pub(crate) management: Option<Arc<ManagementSettings>>,
    /// How long `/livez` reports success while the first self-checks run.
    pub(crate) livez_grace_period: Duration,
    /// Whether every client of the admin listener sees the status of the clusters.
    pub(crate) exposes_cluster_status: bool,
    /// The page of the clusters, if there is one.
    pub(crate) page: Option<Arc<PageSettings>>,
    /// The backends of audit, until the snapshot is in force.
    audit: Mutex<Option<AuditGeneration>>,
}

/// Why a snapshot cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The configuration cannot take effect.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The serving certificate or the TLS options do not fit together.
    #[error("TLS cannot be served: {0}")]
    Serving(#[source] rustls::Error),
    /// Clusters cannot be built.
    #[error("{}", listed(.0))]
    Clusters(Vec<ClusterBuildError>),
}

fn listed(errors: &[ClusterBuildError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// All clusters, or all errors.
fn all_built<T>(
    results: impl Iterator<Item = Result<T, ClusterBuildError>>,
) -> Result<Vec<T>, SnapshotError> {
    let (mut clusters, mut failed) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(cluster) => clusters.push(cluster),
            Err(error) => failed.push(error),
        }
    }
    if failed.is_empty() { Ok(clusters) } else { Err(SnapshotError::Clusters(failed)) }
}

impl Snapshot {
    /// Builds a generation. Keeps connections, watches and keys of `before` where the settings are the same. Fails with all
    /// clusters that cannot be built: with one at a time, many of them would take as many attempts.
    // threat: revoked-on-open-connection
    pub(crate) fn build(
        config: &EffectiveConfig,
        before: Option<&Self>,
        deps: &ClusterDeps,
    ) -> Result<Self, SnapshotError> {
        let EffectiveConfig { settings, separate, .. } = config;
        let serving = &settings.serving;
        let mut audit = deps.audit.generation();
        let known: HashMap<&str, &Arc<Cluster>> =
            before.into_iter().flat_map(Self::clusters).map(|cluster| (&*cluster.name, cluster)).collect();
        let mut rebuilt = 0;
        let is_stale = |cluster: &&Arc<settings::Cluster>| separate.is_stale(&cluster.origin);
        let mut build = |cluster: &Arc<settings::Cluster>| {
            // A cluster that keeps an earlier configuration must not stop a change of others.
            audit.adopt(is_stale(&cluster));
            // What a Secret configures is its owner's: nothing of it passes to another owner of the name, nor to it.
            let is_same_owner = |before: &&Arc<Cluster>| before.settings.origin.has_owner_of(&cluster.origin);
            let before = known.get(&*cluster.name).copied().filter(is_same_owner);
            let built = if let Some(same) = before.filter(|before| before.is_settled_for(cluster)) {
                Cluster::keep(cluster, deps, &mut audit).map(|()| Arc::clone(same))
            } else {
                rebuilt += 1;
                let before = before.map(AsRef::as_ref);
                Cluster::build(cluster, &serving.provider, before, deps, &mut audit).map(Arc::new)
            };
            let (name, origin) = (&cluster.name, &cluster.origin);
            built.map(|built| (cluster.routes.clone(), built)).map_err(|source| ClusterBuildError {
                cluster: name.clone(),
                origin: origin.clone(),
                source,
            })
        };
        let mut ordered: Vec<_> = settings.clusters.iter().collect();
        ordered.sort_by_key(is_stale);
        let clusters = all_built(ordered.into_iter().map(&mut build))?;
        Ok(Self {
            rebuilt,
            generation: before.map_or(1, |before| before.generation + 1),
            separate: separate.clone(),
            router: Router::new(clusters, settings.page.as_ref().map(|page| page.host().to_owned())),
            tls: tls::server_config(serving, ca_names(&settings.clusters)).map_err(SnapshotError::Serving)?,
            limits: serving.limits,
            proxy_protocol: serving.proxy_protocol.clone(),
            strict_transport_security: serving.strict_transport_security.clone(),
            allowed_origins: serving.allowed_origins.clone(),
            request_timeout: settings.operation.request_timeout,
            max_requests_inflight_total: settings.operation.max_requests_inflight_total,
            max_requests_per_second_per_tenant: settings.operation.max_requests_per_second_per_tenant,
            max_buffered_bytes: settings.operation.max_buffered_bytes,
            ledger: deps.dials.ledger().clone(),
            caches: deps.dials.caches().clone(),
            connections: deps.dials.connections().clone(),
            review_memory: deps.review_memory.clone(),
            sessions: Arc::clone(&deps.sessions),
            shutdown: settings.operation.shutdown,
            management: settings.management.clone(),
            livez_grace_period: settings.operation.livez_grace_period,
            exposes_cluster_status: settings.operation.exposes_cluster_status,
            page: settings.page.clone(),
            audit: Mutex::new(Some(audit)),
        })
    }

    /// Puts the limits on requests in flight and on buffered bytes, the policies of backends, and the options of audit backends
    /// in force. All generations share them, so that is a step of its own: a generation that is built but never used changes
    /// nothing.
    pub(super) fn apply_shared(&self) {
        let max_buffered_bytes = self.max_buffered_bytes.bytes();
        let tenants = self.tenants().count();
        for cluster in self.clusters() {
            cluster.limiter.apply(&cluster.limits);
            cluster.limiter.apply_total(self.max_requests_inflight_total, tenants);
            cluster.limiter.apply_to_tenants(
                max_buffered_bytes,
                self.max_requests_per_second_per_tenant,
                tenants,
            );
            cluster.enforce();
        }
        self.ledger.set_total(max_buffered_bytes);
        let caches = max_buffered_bytes / TENANT_CACHES_PART;
        self.caches.set_bytes_of_tenants(caches / TENANT_PART, caches, tenants);
        self.connections.divide_among(tenants);
        self.sessions.divide_among(tenants);
        // Objects under review may have as much again.
        self.review_memory.set_total(max_buffered_bytes);
        if let Some(audit) = lock(&self.audit).take() {
            audit.commit(tenants);
        }
    }

    /// Ends the streams of the tenants' clusters that `next` does not serve, or that have another owner there.
    pub(super) fn end_streams_of_removed(&self, next: &Self) {
        let served: HashMap<&str, &Arc<Cluster>> =
            next.clusters().iter().map(|cluster| (&*cluster.name, cluster)).collect();
        for cluster in self.clusters() {
            let is_same = |next: &&Arc<Cluster>| next.settings.origin.has_owner_of(&cluster.settings.origin);
            if served.get(&*cluster.name).is_none_or(|next| !is_same(next))
                && let Some(streams) = cluster.end_streams()
            {
                info!(
                    cluster = cluster.name,
                    streams, "the cluster of the Secret is no longer served: its watches and tunnels end"
                );
            }
        }
    }

    /// Every cluster, in the order of the configuration.
    pub(crate) fn clusters(&self) -> &[Arc<Cluster>] {
        self.router.clusters()
    }

    /// The names of the clusters that tenants configure.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = &str> {
        let tenants = self.clusters().iter().filter(|cluster| cluster.settings.origin.is_of_tenant());
        tenants.map(|cluster| &*cluster.name)
    }

    /// The cluster of this name.
    pub(crate) fn cluster(&self, name: &str) -> Option<&Cluster> {
        self.clusters().iter().find(|cluster| cluster.name == name).map(AsRef::as_ref)
    }

    /// The endpoints in force, of every cluster.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = Arc<Endpoint>> {
        self.clusters().iter().flat_map(|cluster| Vec::clone(&cluster.backend.endpoints()))
    }
}

/// The length of all names of client CAs in a handshake. TLS cannot carry more than 64 KiB, and each handshake sends them.
// RFC 8446, section 4.2.4
const MAX_CA_NAMES_LENGTH: usize = 16 << 10;
/// The caches of all tenants' clusters hold this part of what all buffers may, and those of one tenant this part of that.
const TENANT_CACHES_PART: usize = 2;
const TENANT_PART: usize = 4;

/// The names of the client CAs, which the TLS handshake sends so that clients pick the right certificate. Those of the
/// operator's clusters are there in any case, unless they alone are too long: then no name is sent, and clients pick a certificate
/// by themselves. Those of tenants' clusters follow as long as they fit, the shortest first: one with long names costs no other
/// cluster its own.
// threat: tenant-ca-names
fn ca_names(clusters: &[Arc<settings::Cluster>]) -> Arc<[DistinguishedName]> {
    let names_of = |of_tenants: bool| {
        let clusters = clusters.iter().filter(move |cluster| cluster.origin.is_of_tenant() == of_tenants);
        clusters.map(|cluster| cluster.authentication.client_ca_names().collect::<Vec<_>>())
    };
    let mut names = CaNames::default();
    if !names.add(names_of(false).flatten().collect()) {
        return Arc::default();
    }
    let mut of_tenants: Vec<_> = names_of(true).collect();
    of_tenants.sort_by_cached_key(|names| names.iter().map(encoded_length).sum::<usize>());
    for of_tenant in of_tenants {
        names.add(of_tenant);
    }
    names.list.into()
}

/// Names in the order in which they were added, each one once.
#[derive(Default)]
struct CaNames {
    list: Vec<DistinguishedName>,
    known: HashSet<Vec<u8>>,
    length: usize,
}

impl CaNames {
    /// Adds these names, unless they are too long together with those before.
    fn add(&mut self, mut names: Vec<DistinguishedName>) -> bool {
        let mut seen = HashSet::new();
        names.retain(|name| !self.known.contains(name.as_ref()) && seen.insert(name.as_ref().to_vec()));
        let length = self.length + names.iter().map(encoded_length).sum::<usize>();
        let fits = length <= MAX_CA_NAMES_LENGTH;
        if fits {
            self.known.extend(seen);
            self.list.append(&mut names);
            self.length = length;
        }
        fits
    }
}

fn encoded_length(name: &DistinguishedName) -> usize {
    name.as_ref().len() + 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str, length: usize) -> DistinguishedName {
        let mut name = text.as_bytes().to_vec();
        name.resize(length, b'.');
        name.into()
    }

    #[test]
    fn names_that_do_not_fit_cost_no_others_theirs() {
        let mut names = CaNames::default();
        assert!(names.add(vec![name("operator", 4000), name("operator", 4000)]), "each one once");
        assert!(names.add(vec![name("a", 4000), name("operator", 4000)]));
        assert!(names.add(vec![name("b", 4000)]));
        assert!(!names.add(vec![name("c", 4000), name("d", 2000)]));
        assert!(names.add(vec![name("d", 2000)]), "what was left out is not known");
        let lengths: Vec<_> = names.list.iter().map(|name| name.as_ref().len()).collect();
        assert_eq!((lengths, names.length), (vec![4000, 4000, 4000, 2000], 14_008));
        assert!(!CaNames::default().add(vec![name("operator", MAX_CA_NAMES_LENGTH)]));
    }
}
