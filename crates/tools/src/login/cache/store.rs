//! The stores of cached credentials. A store keeps one secret document for each name; what the document contains, and
//! which process may change it, the cache decides.
// threat: stolen-login-cache

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use portcullis_system::platform;
use secrecy::zeroize::Zeroizing;

use super::CacheError;
use super::Keyring;

/// The largest file: tokens have some kilobytes.
const MAX_FILE_SIZE: u64 = 1 << 20;

/// The suffix of documents, and that of documents that are being written.
const DOCUMENT: &str = "json";
const PARTIAL: &str = "partial";

/// The document of an entry, erased when dropped.
pub(super) type SecretDocument = Zeroizing<Vec<u8>>;

/// Where the documents are kept.
#[derive(Debug, Clone)]
pub(super) enum CredentialStore {
    /// Files of mode 0600.
    File(FileStore),
    /// Items of the system's keyring.
    Keyring(Keyring),
    /// Fails as a keyring does.
    #[cfg(test)]
    Failing(FailingStore),
}

/// Whose files are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FilePrivacy {
    /// Only files that no other user can read.
    Private,
    /// Also files that others can read, to revoke their tokens.
    Any,
}

impl CredentialStore {
    /// The document of this name, if there is one.
    pub(super) async fn read(
        &self,
        name: &str,
        privacy: FilePrivacy,
    ) -> Result<Option<SecretDocument>, CacheError> {
        match self {
            Self::File(files) => files.read(name, privacy),
            Self::Keyring(keyring) => Ok(keyring.read(name).await?),
            #[cfg(test)]
            Self::Failing(store) => store.files.read(name, privacy),
        }
    }

    /// Replaces the document. A reader sees the old one or the new one.
    pub(super) async fn write(&self, name: &str, content: &[u8]) -> Result<(), CacheError> {
        match self {
            Self::File(files) => files.write(name, content),
            Self::Keyring(keyring) => Ok(keyring.write(name, content).await?),
            #[cfg(test)]
            Self::Failing(store) => store.write(name, content),
        }
    }

    /// The document that a process was killed before it had replaced the other one, if there is one.
    pub(super) fn read_partial(&self, name: &str) -> Result<Option<SecretDocument>, CacheError> {
        match self {
            Self::File(files) => FileStore::read_file(files.file(name, PARTIAL), FilePrivacy::Any),
            Self::Keyring(_) => Ok(None),
            #[cfg(test)]
            Self::Failing(_) => Ok(None),
        }
    }

    /// Removes the document, if there is one.
    pub(super) async fn remove(&self, name: &str) -> Result<(), CacheError> {
        match self {
            Self::File(files) => files.remove(name),
            Self::Keyring(keyring) => Ok(keyring.remove(name).await?),
            #[cfg(test)]
            Self::Failing(store) => store.files.remove(name),
        }
    }

    /// The names of all documents. Some may be of other programs.
    pub(super) async fn names(&self) -> Result<Vec<String>, CacheError> {
        match self {
            Self::File(files) => files.names(),
            Self::Keyring(keyring) => Ok(keyring.names().await?),
            #[cfg(test)]
            Self::Failing(store) => store.files.names(),
        }
    }

    /// The parts of the store that [`names`](Self::names) has not looked into.
    pub(super) async fn unsearched(&self) -> Result<Vec<String>, CacheError> {
        match self {
            Self::File(_) => Ok(Vec::new()),
            Self::Keyring(keyring) => Ok(keyring.locked_collections().await?),
            #[cfg(test)]
            Self::Failing(_) => Ok(Vec::new()),
        }
    }

    /// The error for locks that cannot be used: without them, a keyring cannot either.
    pub(super) fn lock_error(&self, error: CacheError) -> CacheError {
        match self {
            Self::File(_) => error,
            Self::Keyring(_) => CacheError::KeyringLock(Box::new(error)),
            #[cfg(test)]
            Self::Failing(_) => CacheError::KeyringLock(Box::new(error)),
        }
    }

    /// Where the document is, for errors.
    pub(super) fn place(&self, name: &str) -> String {
        match self {
            Self::File(files) => files.file(name, DOCUMENT).display().to_string(),
            Self::Keyring(_) => format!("the keyring's item {name} of portcullis"),
            #[cfg(test)]
            Self::Failing(_) => name.to_owned(),
        }
    }
}

/// Files of mode 0600 in a directory that the cache has checked.
#[derive(Debug, Clone)]
pub(super) struct FileStore {
    directory: PathBuf,
}

impl FileStore {
    pub(super) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    pub(super) fn file(&self, name: &str, suffix: &str) -> PathBuf {
        self.directory.join(format!("{name}.{suffix}"))
    }

    fn read(&self, name: &str, privacy: FilePrivacy) -> Result<Option<SecretDocument>, CacheError> {
        Self::read_file(self.file(name, DOCUMENT), privacy)
    }

    fn read_file(path: PathBuf, privacy: FilePrivacy) -> Result<Option<SecretDocument>, CacheError> {
        let failed = |error| CacheError::Io(path.clone(), error);
        let file = match platform::open_private(OpenOptions::new().read(true), &path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed)?,
        };
        let metadata = file.metadata().map_err(failed)?;
        if !platform::is_own(&metadata) {
            return Err(CacheError::Owner(path));
        }
        if privacy == FilePrivacy::Private && platform::is_open_to_others(&metadata) {
            return Err(CacheError::Readable(path));
        }
        let mut content = Zeroizing::new(Vec::new());
        file.take(MAX_FILE_SIZE).read_to_end(&mut content).map_err(failed)?;
        Ok(Some(content))
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<(), CacheError> {
        let (path, partial) = (self.file(name, DOCUMENT), self.file(name, PARTIAL));
        let write = || {
            // Of a process that was killed; this one holds the lock.
            fs::remove_file(&partial).ok();
            let mut file = platform::open_private(OpenOptions::new().write(true).create_new(true), &partial)?;
            file.write_all(content)?;
            file.sync_all()?;
            fs::rename(&partial, &path)
        };
        write().map_err(|error| {
            fs::remove_file(&partial).ok();
            CacheError::Io(path.clone(), error)
        })
    }

    fn remove(&self, name: &str) -> Result<(), CacheError> {
        let removed = [PARTIAL, DOCUMENT].map(|suffix| {
            let path = self.file(name, suffix);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CacheError::Io(path, error)),
                _ => Ok(()),
            }
        });
        removed.into_iter().collect()
    }

    fn names(&self) -> Result<Vec<String>, CacheError> {
        let failed = |error| CacheError::Io(self.directory.clone(), error);
        let files = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            files => files.map_err(failed)?,
        };
        let mut names = Vec::new();
        for file in files {
            let name = file.map_err(failed)?.file_name();
            let parts = name.to_str().and_then(|name| name.rsplit_once('.'));
            names.extend(
                parts
                    .filter(|(_, suffix)| [DOCUMENT, PARTIAL].contains(suffix))
                    .map(|(name, _)| name.to_owned()),
            );
        }
        Ok(names)
    }
}

/// Files, until writes begin to fail as those to a keyring do.
#[cfg(test)]
#[derive(Debug, Clone)]
pub(super) struct FailingStore {
    files: FileStore,
    /// How many writes succeed.
    writes: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

#[cfg(test)]
impl FailingStore {
    pub(super) fn new(directory: &Path, writes: usize) -> Self {
        Self { files: FileStore::new(directory), writes: std::sync::Arc::new(writes.into()) }
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<(), CacheError> {
        use std::sync::atomic::Ordering::SeqCst;
        let left = self.writes.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        left.map_err(|_| super::KeyringError::of_test())?;
        self.files.write(name, content)
    }
}
