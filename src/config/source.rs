//! The source of a configuration, which is read again whenever it may have changed.

use super::cluster_files::RefusedCluster;
use super::flags::ServeFlags;
use super::inputs::InputReader;
use super::resolve::{ResolvedConfig, resolve};
use super::settings::ClusterOrigin;
use super::{ConfigError, ConfigErrors};

/// The command line, and the inputs read when it was last resolved.
#[derive(Debug, Clone)]
pub struct ConfigSource {
    flags: ServeFlags,
    inputs: InputReader,
    /// The warnings of the last valid configuration.
    warned: Vec<String>,
    /// The refused clusters of the last valid configuration.
    refused: Vec<RefusedCluster>,
}

impl ConfigSource {
    /// The configuration that these flags describe. Reads nothing yet.
    pub fn new(flags: ServeFlags) -> Self {
        Self { flags, inputs: InputReader::default(), warned: Vec::new(), refused: Vec::new() }
    }

    /// Reads and validates the configuration. Omits the warnings that the previous call returned.
    pub fn load(&mut self) -> Result<ResolvedConfig, ConfigErrors> {
        self.inputs.cluster_files.dropped.clear();
        self.load_rest()
    }

    /// The same, without the clusters that were [rejected](Self::reject) since the last call of [`load`](Self::load).
    pub(crate) fn load_rest(&mut self) -> Result<ResolvedConfig, ConfigErrors> {
        let mut resolved = resolve(&self.flags, &mut self.inputs)?;
        self.refused.clone_from(&resolved.refused);
        let before = std::mem::replace(&mut self.warned, resolved.warnings.clone());
        resolved.warnings.retain(|warning| !before.contains(warning));
        Ok(resolved)
    }

    /// The configuration that was loaded last is in force.
    pub fn commit(&mut self) {
        self.inputs.cluster_files.commit();
    }

    /// Refuses a cluster that was loaded last, until one of its files changes. If it is the state that was in force, it is
    /// no longer served. Returns `false` for a cluster of the configuration file, which is refused with all others, and if
    /// nothing is left to refuse.
    pub(crate) fn reject(&mut self, origin: &ClusterOrigin, problem: &str) -> bool {
        let error = match origin {
            ClusterOrigin::Configuration => return false,
            ClusterOrigin::File(file) => ConfigError::new("clusterDirectory", problem).in_file(file),
            ClusterOrigin::Secret { .. } => ConfigError::new("managementCluster", problem),
        };
        self.inputs.cluster_files.reject(origin, error.fix("correct the configuration of the cluster"))
    }

    /// The clusters that the last valid load refuses.
    pub(crate) fn refused(&self) -> &[RefusedCluster] {
        &self.refused
    }

    /// The clusters of the cluster directory that were resolved anew by the last load; the others had not changed.
    pub fn resolved_clusters(&self) -> usize {
        self.inputs.cluster_files.resolved
    }

    /// Whether [`load`](Self::load) may return another result than the last time.
    pub fn changed(&self) -> bool {
        let due = self.inputs.due().is_some_and(|due| due <= self.inputs.now());
        due || self.inputs.changed()
    }

    /// Expires the credentials of exec plugins. Call it when an API server has rejected the gateway's credential.
    pub fn expire_credentials(&mut self) {
        self.inputs.expire_credentials();
    }
}
