//! A cluster that is configured by itself, in a file of the cluster directory or a Secret, and all that was read for it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use aws_lc_rs::digest;
use portcullis_system::clock::UnixTime;

use super::cluster_authorities::ClusterAuthorities;
use super::error::ConfigError;
use super::settings::{Cluster, ClusterOrigin};

/// The most clusters that may be configured one by one.
pub(super) const MAX_CLUSTERS: usize = 4096;

/// The most endpoints of all clusters together. Each takes a connection for its self-check.
pub(crate) const MAX_ENDPOINTS: usize = 8192;

/// The kinds of claims that are routes.
pub(crate) const SERVER_NAME: &str = "server name";
pub(crate) const PREFIX: &str = "prefix";

/// A value that only one cluster may have: its kind, and the value.
pub(crate) type Claim = (&'static str, String);

/// Claims, each with the key that has the value, or the cluster that owns it.
pub(crate) type Claims = BTreeMap<Claim, String>;

/// What configures a cluster, and its settings, or their errors.
pub(crate) type SeparateCluster = (ClusterOrigin, Result<Arc<ResolvedCluster>, Vec<ConfigError>>);

/// A cluster that is valid by itself.
#[derive(Debug)]
pub(crate) struct ResolvedCluster {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) authorities: ClusterAuthorities,
    pub(crate) claims: Claims,
    pub(super) recording: Recording,
}

impl ResolvedCluster {
    /// The number of its endpoints.
    pub(crate) fn endpoints(&self) -> usize {
        self.cluster.backend.endpoints.len()
    }

    /// Whether both were resolved from the same content of the same files.
    pub(crate) fn has_inputs_of(&self, other: &Self) -> bool {
        let (one, other) = (&self.recording, &other.recording);
        one.files == other.files && one.folders == other.folders && one.inherited == other.inherited
    }
}

/// The digest of a file's content.
pub(super) type FileDigest = [u8; digest::SHA256_OUTPUT_LEN];

/// What was read to resolve a cluster.
#[derive(Debug, Clone, Default)]
pub(super) struct Recording {
    pub(super) files: BTreeMap<PathBuf, Option<FileDigest>>,
    pub(super) folders: BTreeMap<PathBuf, Option<Vec<PathBuf>>>,
    /// The digest of the sections that every cluster inherits.
    pub(super) inherited: Option<FileDigest>,
    pub(super) warnings: Vec<String>,
    /// The number of warnings before.
    pub(super) warnings_before: usize,
    /// Whether the result depends on more than files.
    pub(super) is_volatile: bool,
    /// The last time at which resolving it again gives the same warnings.
    pub(super) same_until: Option<UnixTime>,
}
