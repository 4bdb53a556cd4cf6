//! Reads the inputs of a configuration: files, Secrets, and the credentials of exec plugins. Detects changes by the
//! digests of what it has read. Its caches spare a reload the work for unchanged inputs, and change no result.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use aws_lc_rs::digest;
use portcullis_pki::issuance::authority::CertificateAuthority;
use portcullis_pki::x509::certificate::Certificate;
use portcullis_system::clock::{Clock, UnixTime};
use portcullis_system::input_file::{self, ReadFileError};

pub use super::kubeconfig::CredentialUser;
use super::kubeconfig::{ExecPlugin, PluginCache, PluginCredential, PluginError};
use super::management_cluster::{SecretList, SecretRefusal, SecretScope, SecretStore, is_in_secret};
use super::manifest_files;
use super::separate_cluster::{FileDigest, Recording, ResolvedCluster};
use super::settings::ClusterOrigin;

/// The files that were read, each with the digest of its content (`None` if unreadable), and the state of the exec
/// plugins.
///
/// Compares content, not time stamps: the kubelet updates a mounted Secret by swapping a symbolic link.
#[derive(Debug, Clone)]
pub struct InputReader {
    files: BTreeMap<PathBuf, Option<FileDigest>>,
    /// The manifests in each folder; `None` if it is unreadable.
    folders: BTreeMap<PathBuf, Option<Vec<PathBuf>>>,
    plugins: PluginCache,
    /// For which connection kubeconfigs are read now.
    credential_user: Option<CredentialUser>,
    authorities: BTreeMap<Vec<u8>, CachedAuthority>,
    warnings: Vec<String>,
    /// What was read since [`Self::record`].
    recording: Option<Recording>,
    /// The clusters of cluster directory and Secrets that were resolved, while they are in use.
    clusters: BTreeMap<ClusterOrigin, Vec<Weak<ResolvedCluster>>>,
    /// The Secrets of the management cluster.
    secrets: Arc<SecretStore>,
    /// The Secrets that this load reads: one state of all of them.
    secret_list: Option<Arc<SecretList>>,
    /// The scope of the Secrets and their clusters, if there is a management cluster. Before they were read there are none.
    secret_clusters: Option<(SecretScope, Option<Vec<ClusterOrigin>>)>,
    /// The directories that were found usable once.
    usable_directories: BTreeSet<PathBuf>,
    clock: Clock,
}

/// An authority, and whether the last load used it.
#[derive(Debug, Clone)]
struct CachedAuthority {
    authority: Arc<CertificateAuthority>,
    used: bool,
}

impl Default for InputReader {
    fn default() -> Self {
        Self::new(Clock::system())
    }
}

impl InputReader {
    /// No inputs yet. `clock` decides which credentials have expired.
    pub fn new(clock: Clock) -> Self {
        Self {
            files: BTreeMap::new(),
            folders: BTreeMap::new(),
            plugins: PluginCache::default(),
            credential_user: None,
            authorities: BTreeMap::new(),
            warnings: Vec::new(),
            recording: None,
            clusters: BTreeMap::new(),
            secrets: Arc::default(),
            secret_list: None,
            secret_clusters: None,
            usable_directories: BTreeSet::new(),
            clock,
        }
    }

    /// Begins a load: forgets the files of the previous one, and the credentials and authorities that it did not use.
    pub(super) fn begin(&mut self) {
        self.files.clear();
        self.folders.clear();
        self.secret_list = self.secrets.list();
        self.secret_clusters = None;
        self.plugins.begin();
        self.authorities.retain(|_, held| std::mem::take(&mut held.used));
        self.clusters.retain(|_, resolved| {
            resolved.retain(|cluster| cluster.strong_count() > 0);
            !resolved.is_empty()
        });
        self.warnings.clear();
    }

    /// Reads a file and records the digest of its content.
    pub fn read(&mut self, file: &Path) -> Result<Vec<u8>, ReadFileError> {
        let content = content(self.secret_list.as_deref(), file);
        // Keeps the first digest: if the file changed between two reads of one load, `changed` must report it.
        let digest =
            *self.files.entry(file.to_owned()).or_insert_with(|| content.as_deref().ok().map(digest_of));
        if let Some(recording) = &mut self.recording {
            recording.files.entry(file.to_owned()).or_insert(digest);
        }
        content
    }

    /// Whether a directory is usable. One that was is not looked at again: a reload must not wait for a disk, nor fail because it is
    /// full.
    pub(super) fn is_usable(
        &mut self,
        directory: &Path,
        check: impl FnOnce(&Path) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        if !self.usable_directories.contains(directory) {
            check(directory)?;
            self.usable_directories.insert(directory.to_owned());
        }
        Ok(())
    }

    /// The manifests in a folder in order of their names. Records them, so that a file that appears is a change.
    pub(super) fn manifests(&mut self, folder: &Path) -> std::io::Result<Vec<PathBuf>> {
        let files = manifest_files::in_folder(folder);
        let seen = files.as_ref().ok().cloned();
        if let Some(recording) = &mut self.recording {
            recording.folders.entry(folder.to_owned()).or_insert_with(|| seen.clone());
        }
        self.folders.entry(folder.to_owned()).or_insert(seen);
        files
    }

    /// The credential of an exec plugin. Runs the plugin only if no credential is cached, or if it is due.
    pub(super) fn credential(&mut self, plugin: &ExecPlugin) -> Result<PluginCredential, PluginError> {
        self.note_volatile();
        self.plugins.credential(plugin, self.credential_user.as_ref(), &self.clock)
    }

    /// Records for which connection to API servers the credentials are that are read from now on; `None`: for a webhook.
    pub(super) fn set_credential_user(&mut self, user: Option<CredentialUser>) {
        self.credential_user = user;
    }

    /// The authority with this digest, cached or made now. The cache avoids a PKCS #11 login at each load.
    pub(super) fn authority<E>(
        &mut self,
        digest: &[u8],
        make: impl FnOnce() -> Result<CertificateAuthority, E>,
    ) -> Result<Arc<CertificateAuthority>, E> {
        self.note_volatile();
        if let Some(held) = self.authorities.get_mut(digest) {
            held.used = true;
            return Ok(Arc::clone(&held.authority));
        }
        let authority = Arc::new(make()?);
        let held = CachedAuthority { authority: Arc::clone(&authority), used: true };
        self.authorities.insert(digest.to_vec(), held);
        Ok(authority)
    }

    /// Records what is read until [`Self::recorded`].
    pub(super) fn record(&mut self) {
        self.recording = Some(Recording { warnings_before: self.warnings.len(), ..Recording::default() });
    }

    /// What was read since [`Self::record`].
    pub(super) fn recorded(&mut self) -> Recording {
        let mut recording = self.recording.take().unwrap_or_default();
        recording.warnings.extend(self.warnings.iter().skip(recording.warnings_before).cloned());
        recording
    }

    /// Keeps a cluster for [`Self::unchanged_cluster`].
    pub(super) fn resolved(&mut self, origin: &ClusterOrigin, cluster: &Arc<ResolvedCluster>) {
        self.clusters.entry(origin.clone()).or_default().push(Arc::downgrade(cluster));
    }

    /// A cluster in use that resolving it again would only repeat. Its files count as read by this load.
    pub(super) fn unchanged_cluster(
        &mut self,
        origin: &ClusterOrigin,
        inherited: Option<FileDigest>,
    ) -> Option<Arc<ResolvedCluster>> {
        let resolved: Vec<_> = self.clusters.get(origin)?.iter().filter_map(Weak::upgrade).collect();
        resolved
            .into_iter()
            .find(|cluster| cluster.recording.inherited == inherited && self.replay(&cluster.recording))
    }

    /// The files and folders of the clusters of Secrets in use, as they are now. Those of the gateway count as read by this
    /// load: a Secret that is refused before they are read may keep its cluster only while they are the same.
    // threat: withdrawn-setting
    pub(super) fn read_in_use(&mut self) -> Recording {
        let of_tenants = self.clusters.iter().filter(|(origin, _)| origin.is_of_tenant());
        let of_tenants: Vec<_> =
            of_tenants.flat_map(|(_, resolved)| resolved.iter().filter_map(Weak::upgrade)).collect();
        let mut now = Recording::default();
        for Recording { files, folders, .. } in of_tenants.iter().map(|cluster| &cluster.recording) {
            for file in files.keys() {
                if now.files.contains_key(file) {
                    continue;
                }
                let known = self.files.get(file).copied();
                let digest = known.unwrap_or_else(|| digest_now(self.secret_list.as_deref(), file));
                if !is_in_secret(file) {
                    self.files.insert(file.clone(), digest);
                }
                now.files.insert(file.clone(), digest);
            }
            for folder in folders.keys() {
                let seen = self.folders.entry(folder.clone());
                let seen = seen.or_insert_with(|| manifest_files::in_folder(folder).ok());
                now.folders.insert(folder.clone(), seen.clone());
            }
        }
        now
    }

    /// Whether reading again all that was recorded would give the same. If so, it counts as read by this load.
    fn replay(&mut self, recording: &Recording) -> bool {
        let secrets = self.secret_list.as_deref();
        let same_files = recording.files.iter().all(|(file, before)| digest_now(secrets, file) == *before);
        let same_folders = recording
            .folders
            .iter()
            .all(|(folder, before)| manifest_files::in_folder(folder).ok() == *before);
        let same_warnings = recording.same_until.is_none_or(|until| self.now() <= until);
        let is_same = !recording.is_volatile && same_warnings && same_files && same_folders;
        if is_same {
            for (file, digest) in &recording.files {
                self.files.entry(file.clone()).or_insert(*digest);
            }
            for (folder, files) in &recording.folders {
                self.folders.entry(folder.clone()).or_insert_with(|| files.clone());
            }
            self.warnings.extend(recording.warnings.iter().cloned());
        }
        is_same
    }

    /// The result depends on more than files: on the time, or on a program.
    fn note_volatile(&mut self) {
        if let Some(recording) = &mut self.recording {
            recording.is_volatile = true;
        }
    }

    /// Warnings about these certificates change with the time.
    pub(super) fn note_validity(&mut self, certificates: &[Certificate]) {
        for certificate in certificates {
            self.note_boundary(certificate.not_before);
            self.note_boundary(certificate.not_after);
        }
    }

    /// Warnings change at this time, in seconds since 1970.
    pub(super) fn note_boundary(&mut self, seconds: i64) {
        let boundary = UnixTime::from_secs(u64::try_from(seconds).unwrap_or(0));
        if let Some(recording) = &mut self.recording
            && boundary >= self.clock.now()
        {
            let until = recording.same_until.map_or(boundary, |until| until.min(boundary));
            recording.same_until = Some(until);
        }
    }

    /// The Secrets of the management cluster.
    pub(super) fn secrets(&self) -> &Arc<SecretStore> {
        &self.secrets
    }

    /// Where the Secrets are from that this load reads.
    pub(super) fn read_scope(&self) -> Option<SecretScope> {
        self.secret_list.as_ref().map(|list| list.scope.clone())
    }

    /// The clusters of the Secrets. Records those of `scope`, so that a Secret that appears, or takes the place of another
    /// one, is a change.
    pub(super) fn secret_clusters(&mut self, scope: SecretScope) -> Vec<ClusterOrigin> {
        let list = self.secret_list.as_ref();
        let of_scope = list.and_then(|list| list.clusters_of(&scope));
        self.secret_clusters = Some((scope, of_scope));
        list.map(|list| list.clusters()).unwrap_or_default()
    }

    /// Why nothing of a Secret is kept.
    pub(super) fn secret_refusal(&self, name: &str) -> Option<SecretRefusal> {
        self.secret_list.as_ref().and_then(|list| list.refusal(name))
    }

    /// The current time.
    pub(super) fn now(&self) -> UnixTime {
        self.clock.now()
    }

    /// Adds a warning.
    pub(super) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// All warnings, including failed runs of plugins whose earlier credential remains in use.
    pub(super) fn warnings(&self) -> Vec<String> {
        self.warnings.iter().cloned().chain(self.plugins.warnings()).collect()
    }

    /// Whether the content of any file, or the manifests in any folder, have changed.
    pub fn changed(&self) -> bool {
        let secrets = self.secrets.list();
        let secret_clusters = |scope: &SecretScope| secrets.as_ref().and_then(|list| list.clusters_of(scope));
        self.files.iter().any(|(file, before)| digest_now(secrets.as_deref(), file) != *before)
            || self.folders.iter().any(|(folder, before)| manifest_files::in_folder(folder).ok() != *before)
            || self.secret_clusters.as_ref().is_some_and(|(scope, before)| *before != secret_clusters(scope))
    }

    /// When to load the configuration again although no file has changed, because a credential expires.
    pub fn due(&self) -> Option<UnixTime> {
        self.plugins.due()
    }

    /// Makes the plugins of these connections due, and returns whether there are any; call it when their API servers have
    /// rejected the gateway's credential. Plugins that ran just now become due a few seconds later, so that a server that
    /// rejects everything does not keep them running.
    pub fn expire_credentials(&mut self, users: &BTreeSet<CredentialUser>) -> bool {
        self.plugins.expire(users)
    }
}

/// The content of a file, or of data of a Secret.
// threat: secret-names-file
fn content(secrets: Option<&SecretList>, file: &Path) -> Result<Vec<u8>, ReadFileError> {
    if is_in_secret(file) {
        let missing = || std::io::Error::new(std::io::ErrorKind::NotFound, "the Secret has no such key");
        let read = secrets.and_then(|list| list.read(file));
        return read.ok_or_else(missing).map_err(ReadFileError::Io);
    }
    input_file::read(file)
}

fn digest_now(secrets: Option<&SecretList>, file: &Path) -> Option<FileDigest> {
    content(secrets, file).ok().as_deref().map(digest_of)
}

fn digest_of(content: &[u8]) -> FileDigest {
    let digest = digest::digest(&digest::SHA256, content);
    digest.as_ref().try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::management_cluster::SecretData;

    #[test]
    fn a_load_reads_one_state_of_the_secrets() {
        let mut inputs = InputReader::default();
        let put = |store: &SecretStore, text: &str| {
            let keys = ["kubeconfig", "ca"].map(|key| (key.to_owned(), text.as_bytes().to_vec()));
            let secret = Arc::new(SecretData::new(String::new(), keys.into()));
            store.replace(SecretScope::default(), [("prod".to_owned(), secret)].into());
        };
        let secrets = Arc::clone(inputs.secrets());
        let [kubeconfig, ca] = ["kubeconfig", "ca"].map(|key| Path::new("secret:/prod").join(key));
        put(&secrets, "before");
        inputs.begin();
        assert_eq!(inputs.read(&kubeconfig).unwrap(), b"before");
        put(&secrets, "after");
        assert_eq!(inputs.read(&ca).unwrap(), b"before");
        assert!(inputs.changed());
        inputs.begin();
        assert_eq!(
            (inputs.read(&kubeconfig).unwrap(), inputs.read(&ca).unwrap()),
            (b"after".into(), b"after".into())
        );
        assert!(!inputs.changed());
    }

    #[test]
    fn a_secret_that_takes_the_place_of_another_one_is_a_change() {
        let mut inputs = InputReader::default();
        let secrets = Arc::clone(inputs.secrets());
        let put = |uid: &str| {
            let data = [("value".to_owned(), b"the same".to_vec())].into();
            let secret = Arc::new(SecretData::new(uid.to_owned(), data));
            secrets.replace(SecretScope::default(), [("prod".to_owned(), secret)].into());
        };
        put("one");
        inputs.begin();
        let before = inputs.secret_clusters(SecretScope::default());
        put("one");
        assert!(!inputs.changed());
        put("two");
        assert!(inputs.changed());
        inputs.begin();
        let after = inputs.secret_clusters(SecretScope::default());
        assert!(before.len() == 1 && after.len() == 1 && !after[0].has_owner_of(&before[0]));
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_twice_has_changed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tokens.csv");
        let mut inputs = InputReader::default();
        std::fs::write(&file, "before").unwrap();
        inputs.read(&file).unwrap();
        assert!(!inputs.changed());
        std::fs::write(&file, "after").unwrap();
        inputs.read(&file).unwrap();
        assert!(inputs.changed());
    }
}
