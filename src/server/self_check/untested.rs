//! Warns once for each cluster and release if an API server is older or newer than those with which the gateway is tested.
//! Decides nothing: such an API server is used.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use portcullis_kubernetes::release::Release;
use portcullis_system::sync::lock;
use tracing::warn;

use super::version;

/// The most releases that are said of one cluster, whose API servers may report a new one each time.
const MAX_RELEASES: usize = 8;

/// The minor releases that the log has said of each cluster.
#[derive(Debug, Default)]
pub(super) struct UntestedReleases(Mutex<BTreeMap<String, BTreeSet<u32>>>);

impl UntestedReleases {
    /// Forgets the clusters that are not there any more.
    pub(super) fn retain_clusters(&self, exists: impl Fn(&str) -> bool) {
        lock(&self.0).retain(|cluster, _| exists(cluster));
    }

    /// Warns of those of these versions, which an endpoint has reported, that are new and not tested.
    pub(super) fn warn(&self, cluster: &str, endpoint: &str, versions: &[String]) {
        for version in versions.iter().map(|version| version::own(version)) {
            let Some(minor) = Release::untested_minor(version) else { continue };
            if !self.is_new(cluster, minor) {
                continue;
            }
            let (oldest, newest) = (Release::OLDEST, Release::default());
            let age = if minor < oldest.minor() { "older" } else { "newer" };
            warn!(
                cluster,
                endpoint,
                version,
                "the API server is {age} than the releases with which this gateway is tested, {oldest} to {newest}: see \
                 docs/releases.md"
            );
        }
    }

    fn is_new(&self, cluster: &str, minor: u32) -> bool {
        let mut known = lock(&self.0);
        let known = known.entry(cluster.to_owned()).or_default();
        known.len() < MAX_RELEASES && known.insert(minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_new_once_for_each_cluster() {
        let releases = UntestedReleases::default();
        let found: Vec<bool> = [("a", 33), ("a", 33), ("a", 38), ("b", 33), ("a", 33)]
            .map(|(cluster, minor)| releases.is_new(cluster, minor))
            .to_vec();
        assert_eq!(found, [true, false, true, true, false]);
        releases.retain_clusters(|cluster| cluster == "a");
        assert_eq!((releases.is_new("a", 33), releases.is_new("b", 33)), (false, true));
        // An API server cannot fill the log with ever new releases.
        let said = (100..200).filter(|minor| releases.is_new("a", *minor)).count();
        assert_eq!(said, MAX_RELEASES - 2);
    }
}
