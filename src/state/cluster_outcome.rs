//! What is served of each cluster that is configured by itself, and of one whose settings are refused or cannot be built.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::audit::AuditError;
use crate::cluster::ClusterError;
use crate::cluster::settings::ClusterOrigin;
use crate::config::ConfigError;
use crate::config::management_cluster::SecretScope;
use crate::config::resolve::ResolvedConfig;
use crate::config::separate_cluster::ResolvedCluster;

/// What is served of a cluster of the cluster directory or of a Secret.
///
/// | its settings in the configuration | its settings in force | outcome |
/// |---|---|---|
/// | get what they request, and can be built | any or none | `Current` |
/// | are invalid, or request what another cluster has | can be kept | `Stale` |
/// | cannot be built | can be kept | `Stale`, until one of its files changes or a reload is requested |
/// | cannot be audited: the log cannot be opened, or another cluster gives it other options | can be kept | `Stale`; the next load tries again |
/// | are refused for any of these reasons | none, or a cluster that goes before it took what they have | `NotServed` |
/// | of a Secret are refused for any of these reasons | inherit what the configuration file or its files no longer say | `NotServed`; see `ResolvedConfig::lets_keep` |
/// | are refused for any of these reasons | cannot be built | `NotServed`; the next load tries again |
/// | there are none: the file or the Secret was removed | any | it is no longer served, and has no outcome |
#[derive(Debug, Clone)]
pub(crate) enum ClusterOutcome {
    /// Its settings in the configuration.
    Current(Arc<ResolvedCluster>),
    /// Its settings in force, because those in the configuration are refused.
    Stale(Arc<ResolvedCluster>, Vec<ConfigError>),
    /// Nothing: its settings are refused, and none are in force.
    NotServed(Vec<ConfigError>),
}

impl ClusterOutcome {
    /// The settings that are served.
    pub(super) fn served(&self) -> Option<&Arc<ResolvedCluster>> {
        match self {
            Self::Current(cluster) | Self::Stale(cluster, _) => Some(cluster),
            Self::NotServed(_) => None,
        }
    }
}

/// The outcome of each cluster of the cluster directory and of Secrets.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClusterOutcomes {
    outcomes: BTreeMap<ClusterOrigin, ClusterOutcome>,
    /// Where the Secrets are from of the clusters that are served.
    pub(super) scope: Option<SecretScope>,
}

/// A cluster whose configuration is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedCluster<'a> {
    /// What configures it.
    pub origin: &'a ClusterOrigin,
    /// The name of the cluster that stays in force; `None`: there was none before.
    pub in_force: Option<&'a str>,
    /// The errors.
    pub errors: &'a [ConfigError],
}

impl ClusterOutcomes {
    pub(super) fn insert(&mut self, origin: ClusterOrigin, outcome: ClusterOutcome) {
        self.outcomes.insert(origin, outcome);
    }

    /// The settings of a cluster that are served.
    pub(super) fn in_force(&self, origin: &ClusterOrigin) -> Option<&Arc<ResolvedCluster>> {
        self.outcomes.get(origin).and_then(ClusterOutcome::served)
    }

    /// The clusters that are served.
    pub(super) fn served(&self) -> impl Iterator<Item = (&ClusterOrigin, &Arc<ResolvedCluster>)> {
        self.outcomes.iter().filter_map(|(origin, outcome)| Some((origin, outcome.served()?)))
    }

    /// Whether a cluster is served by earlier settings than those in the configuration.
    pub(super) fn is_stale(&self, origin: &ClusterOrigin) -> bool {
        matches!(self.outcomes.get(origin), Some(ClusterOutcome::Stale(..)))
    }

    /// The clusters whose settings in the configuration are refused.
    pub(crate) fn refused(&self) -> impl Iterator<Item = RefusedCluster<'_>> {
        self.outcomes.iter().filter_map(|(origin, outcome)| match outcome {
            ClusterOutcome::Current(_) => None,
            ClusterOutcome::Stale(cluster, errors) => {
                Some(RefusedCluster { origin, in_force: Some(&cluster.cluster.name), errors })
            }
            ClusterOutcome::NotServed(errors) => Some(RefusedCluster { origin, in_force: None, errors }),
        })
    }

    /// Adds the positions in the configuration file, for the errors of what a cluster inherits.
    pub(super) fn locate_errors(&mut self, config: &ResolvedConfig) {
        for outcome in self.outcomes.values_mut() {
            if let ClusterOutcome::Stale(_, errors) | ClusterOutcome::NotServed(errors) = outcome {
                config.locate(errors);
            }
        }
    }
}

/// Why a cluster cannot be built.
#[derive(Debug, thiserror::Error)]
#[error("cluster {cluster}: {source}")]
pub struct ClusterBuildError {
    /// The cluster's name.
    pub cluster: String,
    /// What configures it.
    pub origin: ClusterOrigin,
    /// The cause.
    #[source]
    pub source: ClusterError,
}

/// Settings of clusters that turned out not to be buildable.
#[derive(Debug, Clone, Default)]
pub(super) struct UnbuildableClusters {
    /// Of the configuration, for reasons in their own files. They are refused until one of these changes.
    by_inputs: BTreeMap<ClusterOrigin, (Arc<ResolvedCluster>, ConfigError)>,
    /// Of the configuration, for other reasons. They are refused. Counts for one attempt.
    requested: BTreeMap<ClusterOrigin, ConfigError>,
    /// In force. They are not served. Counts for one attempt.
    in_force: BTreeMap<ClusterOrigin, ConfigError>,
}

impl UnbuildableClusters {
    /// Begins an attempt: forgets the clusters that `config` no longer has, and what counts for one attempt.
    pub(super) fn begin_attempt(&mut self, config: &ResolvedConfig) {
        if !self.by_inputs.is_empty() {
            let known: BTreeSet<_> = config.separate.iter().map(|(origin, _)| origin).collect();
            self.by_inputs.retain(|origin, _| known.contains(origin));
        }
        self.requested.clear();
        self.in_force.clear();
    }

    /// Notes that the settings that `outcomes` serves of a cluster cannot be built. Returns `false` if it has no others to
    /// fall back to, since the configuration file has it.
    // threat: unbuildable-cluster
    pub(super) fn note(&mut self, outcomes: &ClusterOutcomes, failed: &ClusterBuildError) -> bool {
        let ClusterBuildError { origin, source, .. } = failed;
        let problem = source.to_string();
        let error = match origin {
            ClusterOrigin::Configuration => return false,
            ClusterOrigin::File(file) => ConfigError::new("clusterDirectory", problem).in_file(file),
            ClusterOrigin::Secret { .. } => ConfigError::new("managementCluster", problem),
        };
        let error = error.fix("correct the configuration of the cluster");
        match outcomes.outcomes.get(origin) {
            Some(ClusterOutcome::Current(cluster)) if follows_from_inputs(source) => {
                self.by_inputs.insert(origin.clone(), (Arc::clone(cluster), error));
            }
            Some(ClusterOutcome::Current(_)) => {
                self.requested.insert(origin.clone(), error);
            }
            Some(ClusterOutcome::Stale(..)) => {
                self.in_force.insert(origin.clone(), error);
            }
            Some(ClusterOutcome::NotServed(_)) | None => return false,
        }
        true
    }

    /// Whether settings in the configuration may be buildable.
    pub(super) fn check(
        &self,
        origin: &ClusterOrigin,
        requested: &ResolvedCluster,
    ) -> Result<(), Vec<ConfigError>> {
        let by_inputs = self.by_inputs.get(origin).filter(|(cluster, _)| cluster.has_inputs_of(requested));
        let error = by_inputs.map(|(_, error)| error).or_else(|| self.requested.get(origin));
        error.map_or(Ok(()), |error| Err(vec![error.clone()]))
    }

    /// The outcome of a cluster whose settings in the configuration are refused.
    pub(super) fn fall_back(
        &self,
        origin: &ClusterOrigin,
        in_force: Option<Arc<ResolvedCluster>>,
        mut errors: Vec<ConfigError>,
    ) -> ClusterOutcome {
        match (in_force, self.in_force.get(origin)) {
            (Some(cluster), None) => ClusterOutcome::Stale(cluster, errors),
            (_, unbuildable) => {
                errors.extend(unbuildable.filter(|error| !errors.contains(error)).cloned());
                ClusterOutcome::NotServed(errors)
            }
        }
    }
}

/// Whether building a cluster from the same inputs would fail again. An audit log depends on its volume, and its options on
/// those of other clusters.
fn follows_from_inputs(error: &ClusterError) -> bool {
    match error {
        ClusterError::Audit(AuditError::Sink(_)) => false,
        ClusterError::Audit(AuditError::Credential(_))
        | ClusterError::Backend(_)
        | ClusterError::NoAuthentication(_)
        | ClusterError::OlderCrl(_) => true,
    }
}
