//! The management cluster, whose Secrets are clusters: its keys and settings, and the Secrets as they were read last.
//!
//! A Secret is written by a tenant. It names no file of the gateway, runs no program, and chooses neither its cluster's name
//! nor its routes: they follow from the name of the Secret, of which there is one.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex};

use clap::Args;
use portcullis_system::sync::lock;
use serde::{Deserialize, Serialize};

use super::settings::ClusterOrigin;
use crate::backend::settings::{AddressPolicy, Backend};

/// Begins the paths of data in Secrets. No file of the gateway is read below it.
const ROOT: &str = "secret:";
/// The most bytes of one Secret. A larger one is refused by itself.
pub(crate) const MAX_SECRET_BYTES: usize = 256 << 10;
/// The most Secrets, and the most bytes of all of them.
pub(crate) const MAX_SECRETS: usize = 4096;
pub(crate) const MAX_BYTES: usize = 64 << 20;

/// A management cluster, whose Secrets are clusters.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ManagementClusterKeys {
    /// File with the address, the CA and the credential for the management cluster, in kubeconfig format. Its user may list
    /// and watch Secrets in the namespace. Required.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The namespace of the Secrets. Required.
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// The label selector of the Secrets.
    #[arg(long, value_name = "SELECTOR", default_value = "portcullis.dev/secret-type=cluster")]
    pub label_selector: String,
    /// The domain of the clusters: the cluster of the Secret `prod` is served at the server name prod.DOMAIN.
    #[arg(long, value_name = "NAME")]
    pub domain: Option<String>,
    /// The path of the clusters: the cluster of the Secret `prod` is served below PATH/prod.
    #[arg(long, value_name = "PATH")]
    pub path_prefix: Option<String>,
    /// Let the clusters of Secrets have API servers at loopback, link-local, unspecified, multicast and cloud metadata
    /// addresses. With `false` the gateway does not connect to such an address, also if a name resolves to it.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub allow_local_addresses: bool,
}

/// The validated settings of the management cluster.
#[derive(Debug, Clone)]
pub struct ManagementSettings {
    pub(crate) backend: Backend,
    pub(crate) namespace: String,
    pub(crate) label_selector: String,
    pub(crate) domain: Option<String>,
    pub(crate) path_prefix: Option<String>,
    /// Which addresses the API servers of the clusters may have.
    pub(crate) addresses: AddressPolicy,
    /// The Secrets as they were read last.
    pub(crate) store: Arc<SecretStore>,
    /// Where the Secrets are from that were read for this configuration; `None` before any were read.
    pub(crate) read_scope: Option<SecretScope>,
}

/// Where Secrets are read, and which.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SecretScope {
    /// The addresses of the API servers.
    endpoints: Arc<[String]>,
    namespace: String,
    label_selector: String,
}

impl SecretScope {
    /// The cluster of a Secret.
    fn cluster(&self, name: &str, secret: &SecretData) -> ClusterOrigin {
        let (management, namespace) = (Arc::clone(&self.endpoints), self.namespace.clone());
        ClusterOrigin::Secret { management, namespace, name: name.to_owned(), uid: secret.uid.clone() }
    }
}

impl ManagementSettings {
    /// Which Secrets are read.
    pub(crate) fn scope(&self) -> SecretScope {
        SecretScope {
            endpoints: self.backend.endpoints.iter().map(|one| one.address.to_string()).collect(),
            namespace: self.namespace.clone(),
            label_selector: self.label_selector.clone(),
        }
    }

    /// Why its Secrets have never been read; `None` if they have.
    pub(crate) fn missing(&self) -> Option<String> {
        self.store.missing(&self.scope())
    }

    /// Why this configuration has no clusters of its Secrets; `None` if it has.
    pub(crate) fn not_in_force(&self) -> Option<String> {
        let reason = || self.missing().unwrap_or_else(|| "read, but not in force yet".to_owned());
        self.read_scope.is_none().then(reason)
    }

    /// Whether both read the same Secrets in the same way.
    pub(crate) fn is_same_watch(&self, other: &Self) -> bool {
        self.backend == other.backend
            && self.namespace == other.namespace
            && self.label_selector == other.label_selector
    }
}

/// The data of a Secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct SecretData {
    uid: String,
    data: BTreeMap<String, Vec<u8>>,
    refused: Option<SecretRefusal>,
}

/// Why nothing of a Secret is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SecretRefusal {
    /// It has more than [`MAX_SECRET_BYTES`].
    TooLarge,
    /// All Secrets together have more than [`MAX_BYTES`], and no other has more than this one, which has so many.
    NoRoom(usize),
}

impl fmt::Debug for SecretData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.data.keys()).finish()
    }
}

impl SecretData {
    /// Keeps the data of the Secret with this UID, unless it is too large.
    // threat: large-secret
    pub(crate) fn new(uid: String, data: BTreeMap<String, Vec<u8>>) -> Self {
        let secret = Self { uid, data, refused: None };
        if secret.length() > MAX_SECRET_BYTES { secret.refused(SecretRefusal::TooLarge) } else { secret }
    }

    /// The same without its data.
    fn refused(&self, refused: SecretRefusal) -> Self {
        Self { uid: self.uid.clone(), data: BTreeMap::new(), refused: Some(refused) }
    }

    /// The bytes for which there was no room.
    fn missing_room(&self) -> Option<usize> {
        match self.refused {
            Some(SecretRefusal::NoRoom(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// The bytes that it takes.
    pub(crate) fn length(&self) -> usize {
        self.data.iter().map(|(key, value)| key.len() + value.len()).sum()
    }
}

/// Refuses the largest Secrets until the others have no more than [`MAX_BYTES`]: one within its part of them always has room.
/// Returns whether there is room again for one that was refused before.
// threat: large-secret
pub(crate) fn make_room(secrets: &mut BTreeMap<String, Arc<SecretData>>) -> bool {
    let mut bytes: usize = secrets.values().map(|secret| secret.length()).sum();
    while bytes > MAX_BYTES {
        let Some(largest) = secrets.values_mut().max_by_key(|secret| secret.length()) else { break };
        let length = largest.length();
        *largest = Arc::new(largest.refused(SecretRefusal::NoRoom(length)));
        bytes -= length;
    }
    let smallest = secrets.values().filter_map(|secret| secret.missing_room()).min();
    smallest.is_some_and(|missing| bytes + missing <= MAX_BYTES)
}

/// A complete list of the Secrets, which never changes.
#[derive(Debug)]
pub(super) struct SecretList {
    /// Where they are from.
    pub(super) scope: SecretScope,
    secrets: BTreeMap<String, Arc<SecretData>>,
}

impl SecretList {
    /// The names of the Secrets; `None` if they are of another scope.
    fn names(&self, scope: &SecretScope) -> Option<Vec<String>> {
        (self.scope == *scope).then(|| self.secrets.keys().cloned().collect())
    }

    /// The cluster of each Secret.
    pub(super) fn clusters(&self) -> Vec<ClusterOrigin> {
        self.secrets.iter().map(|(name, secret)| self.scope.cluster(name, secret)).collect()
    }

    /// The same; `None` if the Secrets are of another scope.
    pub(super) fn clusters_of(&self, scope: &SecretScope) -> Option<Vec<ClusterOrigin>> {
        (self.scope == *scope).then(|| self.clusters())
    }

    /// Why nothing of a Secret is kept.
    pub(super) fn refusal(&self, name: &str) -> Option<SecretRefusal> {
        self.secrets.get(name).and_then(|secret| secret.refused)
    }

    /// The content of a path below a Secret; `None` if it is none.
    pub(super) fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let mut parts = path.components();
        let mut part = || match parts.next()? {
            Component::Normal(part) => part.to_str(),
            _ => None,
        };
        let (ROOT, name, key) = (part()?, part()?, part()?) else { return None };
        if part().is_some() {
            return None;
        }
        self.secrets.get(name)?.data.get(key).cloned()
    }
}

/// The Secrets of the management cluster as they were read last. They stay when it is away.
#[derive(Debug, Default)]
pub struct SecretStore(Mutex<StoredSecrets>);

#[derive(Debug, Default)]
struct StoredSecrets {
    /// `None` before the first complete list.
    list: Option<Arc<SecretList>>,
    last_error: Option<String>,
}

impl SecretStore {
    /// Replaces all Secrets by a complete list.
    pub(crate) fn replace(&self, scope: SecretScope, secrets: BTreeMap<String, Arc<SecretData>>) {
        let list = Some(Arc::new(SecretList { scope, secrets }));
        *lock(&self.0) = StoredSecrets { list, last_error: None };
    }

    /// Forgets the Secrets.
    pub(crate) fn clear(&self) {
        *lock(&self.0) = StoredSecrets::default();
    }

    /// Why the last attempt to read the Secrets failed.
    pub(crate) fn fail(&self, error: String) {
        lock(&self.0).last_error = Some(error);
    }

    /// Why the Secrets have never been read; `None` if they have.
    pub(crate) fn missing(&self, scope: &SecretScope) -> Option<String> {
        let stored = lock(&self.0);
        let error = || stored.last_error.clone().unwrap_or_else(|| "not read yet".to_owned());
        stored.list.as_ref().is_none_or(|list| list.scope != *scope).then(error)
    }

    /// The names of the Secrets; none before they were read.
    pub(crate) fn names(&self, scope: &SecretScope) -> Vec<String> {
        self.list().and_then(|list| list.names(scope)).unwrap_or_default()
    }

    /// The Secrets as of now, of any scope; `None` before they were read.
    pub(super) fn list(&self) -> Option<Arc<SecretList>> {
        lock(&self.0).list.clone()
    }
}

/// The directory of a Secret's data.
pub(super) fn directory(name: &str) -> PathBuf {
    [ROOT, name].iter().collect()
}

/// Whether a path is that of data in a Secret.
pub(super) fn is_in_secret(path: &Path) -> bool {
    path.starts_with(ROOT)
}

/// Resolves a path against a directory. From the data of a Secret, only other data of the same Secret can be named.
// threat: secret-names-file
pub(super) fn below(directory: &Path, given: &Path) -> PathBuf {
    if !is_in_secret(directory) {
        return directory.join(given);
    }
    let mut parts = given.components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(name)), None) => directory.join(name),
        // No data has this name, and no file is read here.
        _ => directory.join("..").join("not a key of the Secret"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_names_only_its_own_data() {
        let store = SecretStore::default();
        let data = |text: &str| {
            Arc::new(SecretData::new(String::new(), [("value".to_owned(), text.as_bytes().to_vec())].into()))
        };
        store.replace(
            SecretScope::default(),
            [("a".to_owned(), data("of a")), ("b".to_owned(), data("of b"))].into(),
        );
        let home = directory("a");
        let cases = [
            ("value", Some("of a")),
            ("./value", None),
            ("../b/value", None),
            ("/etc/hostname", None),
            ("/secret:/b/value", None),
            ("secret:/b/value", None),
            ("value/x", None),
            ("..", None),
            (".", None),
            ("", None),
            ("other", None),
        ];
        for (given, expected) in cases {
            let path = below(&home, Path::new(given));
            assert!(is_in_secret(&path), "{given}: {path:?}");
            let expected = expected.map(|text| text.as_bytes().to_vec());
            assert_eq!(store.list().unwrap().read(&path), expected, "{given}: {path:?}");
        }
        assert_eq!(below(Path::new("/etc/portcullis"), Path::new("/a/b")), Path::new("/a/b"));
    }
}
