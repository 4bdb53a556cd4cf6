//! The status of the clusters, which the admin listener serves at `/clusters` and `portcullis clusters` prints.
//!
//! Its readers are anonymous: it has no credential, and of a certificate only the name and the end of its validity.

use std::collections::BTreeMap;

use portcullis_go::time;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::backend::Backend;
use crate::backend::balance::{Load, Readiness};
use crate::backend::endpoint::Endpoint;
use crate::cluster::Cluster;
use crate::cluster::settings::{ClusterOrigin, Routes};
#[cfg(feature = "page")]
use crate::page::{self, HealthState};
use crate::state::Live;
use crate::state::cluster_outcome::RefusedCluster;

/// The version of the document.
pub(crate) const API_VERSION: &str = "portcullis.dev/v1alpha1";
/// The kind of the document.
pub(crate) const KIND: &str = "ClusterStatusList";

/// The status of every cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterStatusList {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    /// The generation of the configuration.
    pub(crate) generation: u64,
    pub(crate) items: Vec<ClusterStatus>,
}

/// The status of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterStatus {
    /// `None`: its configuration is refused, and does not say.
    pub(crate) name: Option<String>,
    /// What configures it.
    pub(crate) source: String,
    pub(crate) health: ClusterHealth,
    pub(crate) configuration: ConfigurationState,
    #[serde(rename = "match")]
    pub(crate) routes: Option<RoutesStatus>,
    /// The version of its API servers.
    pub(crate) server_version: Option<String>,
    pub(crate) endpoints: Vec<EndpointStatus>,
    /// The gateway's client certificate for it.
    pub(crate) client_certificate: Option<CertificateStatus>,
    pub(crate) requests: RequestCounts,
    pub(crate) last_error: Option<String>,
}

/// Whether requests to a cluster are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ClusterHealth {
    /// All of its endpoints are ready.
    Ready,
    /// Some are.
    Degraded,
    /// None has been checked yet.
    Checking,
    /// None is ready.
    Unavailable,
    /// It is not served: its configuration is refused.
    Refused,
}

/// Whether the configuration in force is the one that is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ConfigurationState {
    /// It is.
    Current,
    /// The backend's new settings wait for their self-check.
    Pending,
    /// The new configuration is refused, the old one stays.
    Stale,
    /// It is refused, and there is no old one.
    Refused,
}

/// The routes of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RoutesStatus {
    pub(crate) server_names: Vec<String>,
    pub(crate) path_prefix: Option<String>,
}

/// One API server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EndpointStatus {
    pub(crate) address: String,
    /// Whether it has passed its identity self-check.
    pub(crate) trusted: bool,
    /// Whether requests go to it: it is trusted, was reached, and its last readiness probe was answered well.
    pub(crate) ready: bool,
    /// Whether others are preferred, because connections to it failed a moment ago.
    pub(crate) ejected: bool,
    /// The short requests in progress.
    pub(crate) requests: usize,
    /// The watches and tunnels in progress.
    pub(crate) watches: usize,
    pub(crate) last_error: Option<String>,
}

/// A certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CertificateStatus {
    pub(crate) common_name: String,
    pub(crate) not_after: String,
}

/// Requests in progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RequestCounts {
    pub(crate) read_only: usize,
    pub(crate) mutating: usize,
    pub(crate) watches: usize,
    pub(crate) streams: usize,
}

impl ClusterStatusList {
    /// The status of now.
    pub(crate) fn of(live: &Live) -> Self {
        let snapshot = live.snapshot();
        let mut refused: BTreeMap<&ClusterOrigin, RefusedCluster<'_>> =
            snapshot.separate.refused().map(|cluster| (cluster.origin, cluster)).collect();
        let mut items: Vec<ClusterStatus> = snapshot
            .clusters()
            .iter()
            .map(|cluster| ClusterStatus::of(cluster, refused.remove(&cluster.settings.origin)))
            .collect();
        items.extend(refused.into_values().map(ClusterStatus::refused));
        Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            generation: snapshot.generation,
            items,
        }
    }
}

impl ClusterStatus {
    fn of(cluster: &Cluster, refused: Option<RefusedCluster<'_>>) -> Self {
        let endpoints: Vec<_> =
            cluster.backend.endpoints().iter().map(|one| EndpointStatus::of(one)).collect();
        let counts = cluster.activity.counts();
        let pending = cluster.pending_backend.as_ref();
        let pending_error = || {
            let endpoints = pending?.endpoints();
            let error = endpoints.iter().find_map(|endpoint| EndpointStatus::of(endpoint).last_error)?;
            Some(format!("new backend settings: {error}"))
        };
        let last_error = refused
            .map(errors)
            .or_else(|| endpoints.iter().find_map(|endpoint| endpoint.last_error.clone()))
            .or_else(|| cluster.backend.discovery_error().map(|error| format!("endpoint discovery: {error}")))
            .or_else(pending_error);
        Self {
            name: Some(cluster.name.clone()),
            source: cluster.settings.origin.to_string(),
            health: health(&cluster.backend, &endpoints),
            configuration: match (refused, pending) {
                (Some(_), _) => ConfigurationState::Stale,
                (None, Some(_)) => ConfigurationState::Pending,
                (None, None) => ConfigurationState::Current,
            },
            routes: match &cluster.settings.routes {
                Routes::Everything => None,
                Routes::Matching { server_names, path_prefix } => {
                    let (server_names, path_prefix) = (server_names.clone(), path_prefix.clone());
                    Some(RoutesStatus { server_names, path_prefix })
                }
            },
            server_version: server_version(&cluster.backend.server_versions()),
            endpoints,
            client_certificate: cluster
                .backend
                .client_certificate_end()
                .map(|(name, end)| CertificateStatus { common_name: name, not_after: time::format_utc(end) }),
            requests: RequestCounts {
                read_only: counts.read_only,
                mutating: counts.mutating,
                watches: counts.watches,
                streams: counts.streams,
            },
            last_error,
        }
    }

    /// A cluster that is not served.
    fn refused(cluster: RefusedCluster<'_>) -> Self {
        Self {
            name: None,
            source: cluster.origin.to_string(),
            health: ClusterHealth::Refused,
            configuration: ConfigurationState::Refused,
            routes: None,
            server_version: None,
            endpoints: Vec::new(),
            client_certificate: None,
            requests: RequestCounts::default(),
            last_error: Some(errors(cluster)),
        }
    }
}

impl EndpointStatus {
    fn of(endpoint: &Endpoint) -> Self {
        let (trusted, balance, now) = (endpoint.is_trusted(), endpoint.balance(), Instant::now());
        let readiness = balance.readiness();
        let answers = matches!(readiness, Readiness::Unknown | Readiness::Ready);
        let last_error = endpoint.last_error().map(|error| error.to_string());
        Self {
            address: endpoint.address().to_string(),
            trusted,
            ready: trusted && answers && last_error.is_none(),
            ejected: trusted && balance.ejected_until(now).is_some(),
            requests: balance.in_flight(Load::Short),
            watches: balance.in_flight(Load::Long),
            last_error: last_error
                .or_else(|| endpoint.check_error())
                .or_else(|| (!answers).then(|| format!("readiness probe: {}", readiness.label()))),
        }
    }
}

/// The health of a cluster, for users who may reach it: no address, certificate or error.
#[cfg(feature = "page")]
pub(super) fn page_health(cluster: &Cluster) -> page::ClusterHealth {
    let status = ClusterStatus::of(cluster, None);
    page::ClusterHealth {
        state: match status.health {
            ClusterHealth::Ready => HealthState::Ready,
            ClusterHealth::Degraded => HealthState::Degraded,
            ClusterHealth::Checking => HealthState::Checking,
            ClusterHealth::Unavailable | ClusterHealth::Refused => HealthState::Unavailable,
        },
        version: status.server_version,
        ready: status.endpoints.iter().filter(|endpoint| endpoint.ready).count(),
        endpoints: status.endpoints.len(),
    }
}

/// The versions of a cluster's API servers; several while it is upgraded.
fn server_version(versions: &[String]) -> Option<String> {
    (!versions.is_empty()).then(|| versions.join(", "))
}

fn health(backend: &Backend, endpoints: &[EndpointStatus]) -> ClusterHealth {
    match endpoints.iter().filter(|endpoint| endpoint.ready).count() {
        0 if !backend.is_checked() => ClusterHealth::Checking,
        0 => ClusterHealth::Unavailable,
        all if all == endpoints.len() => ClusterHealth::Ready,
        _ => ClusterHealth::Degraded,
    }
}

/// All errors in one line.
fn errors(refused: RefusedCluster<'_>) -> String {
    let errors = refused.errors.iter().map(|error| error.to_string().replace("\n      fix:", "; fix:"));
    errors.collect::<Vec<_>>().join("; ")
}
