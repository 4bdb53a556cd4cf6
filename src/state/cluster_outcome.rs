//! What is served of each cluster that is configured by itself, and of one whose settings are refused or cannot be built.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cluster::settings::ClusterOrigin;
use crate::config::ConfigError;
use crate::config::resolve::ResolvedConfig;
use crate::config::separate_cluster::ResolvedCluster;

/// What is served of a cluster of the cluster directory or of a Secret.
///
/// | its settings in the configuration | its settings in force | outcome |
/// |---|---|---|
/// | get what they request, and can be built | any or none | `Current` |
/// | are invalid, or request what another cluster has | can be kept | `Stale` |
/// | cannot be built | can be kept | `Stale`, until one of its files changes |
/// | are refused for any of these reasons | none, or a cluster that goes before it took what they have | `NotServed` |
/// | of a Secret are refused for any of these reasons | inherit what the configuration file no longer says | `NotServed` |
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
pub(crate) struct ClusterOutcomes(BTreeMap<ClusterOrigin, ClusterOutcome>);

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
        self.0.insert(origin, outcome);
    }

    /// The settings of a cluster that are served.
    pub(super) fn in_force(&self, origin: &ClusterOrigin) -> Option<&Arc<ResolvedCluster>> {
        self.0.get(origin).and_then(ClusterOutcome::served)
    }

    /// The clusters that are served.
    pub(super) fn served(&self) -> impl Iterator<Item = (&ClusterOrigin, &Arc<ResolvedCluster>)> {
        self.0.iter().filter_map(|(origin, outcome)| Some((origin, outcome.served()?)))
    }

    /// Whether a cluster is served by earlier settings than those in the configuration.
    pub(super) fn is_stale(&self, origin: &ClusterOrigin) -> bool {
        matches!(self.0.get(origin), Some(ClusterOutcome::Stale(..)))
    }

    /// The clusters whose settings in the configuration are refused.
    pub(crate) fn refused(&self) -> impl Iterator<Item = RefusedCluster<'_>> {
        self.0.iter().filter_map(|(origin, outcome)| match outcome {
            ClusterOutcome::Current(_) => None,
            ClusterOutcome::Stale(cluster, errors) => {
                Some(RefusedCluster { origin, in_force: Some(&cluster.cluster.name), errors })
            }
            ClusterOutcome::NotServed(errors) => Some(RefusedCluster { origin, in_force: None, errors }),
        })
    }

    /// Adds the positions in the configuration file, for the errors of what a cluster inherits.
    pub(super) fn locate_errors(&mut self, config: &ResolvedConfig) {
        for outcome in self.0.values_mut() {
            if let ClusterOutcome::Stale(_, errors) | ClusterOutcome::NotServed(errors) = outcome {
                config.locate(errors);
            }
        }
    }
}

/// Settings of clusters that turned out not to be buildable.
#[derive(Debug, Clone, Default)]
pub(super) struct UnbuildableClusters {
    /// Of the configuration. They are refused until one of their files changes.
    requested: BTreeMap<ClusterOrigin, (Arc<ResolvedCluster>, ConfigError)>,
    /// In force. They are not served. Counts for one attempt.
    in_force: BTreeMap<ClusterOrigin, ConfigError>,
}

impl UnbuildableClusters {
    /// Begins an attempt: forgets the clusters that `config` no longer has, and what counts for one attempt.
    pub(super) fn begin_attempt(&mut self, config: &ResolvedConfig) {
        self.requested.retain(|origin, _| config.separate.iter().any(|(known, _)| known == origin));
        self.in_force.clear();
    }

    /// Notes that the settings that `outcomes` serves of a cluster cannot be built. Returns `false` if it has no others to
    /// fall back to, since the configuration file has it.
    // threat: unbuildable-cluster
    pub(super) fn note(&mut self, outcomes: &ClusterOutcomes, origin: &ClusterOrigin, problem: &str) -> bool {
        let error = match origin {
            ClusterOrigin::Configuration => return false,
            ClusterOrigin::File(file) => ConfigError::new("clusterDirectory", problem).in_file(file),
            ClusterOrigin::Secret { .. } => ConfigError::new("managementCluster", problem),
        };
        let error = error.fix("correct the configuration of the cluster");
        match outcomes.0.get(origin) {
            Some(ClusterOutcome::Current(cluster)) => {
                self.requested.insert(origin.clone(), (Arc::clone(cluster), error));
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
        match self.requested.get(origin) {
            Some((cluster, error)) if cluster.has_inputs_of(requested) => Err(vec![error.clone()]),
            _ => Ok(()),
        }
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
