//! The kubeconfigs of a user, read and written as kubectl does: `$KUBECONFIG` may list several. The first file that has an entry
//! decides what its name stands for, absent files are skipped, a changed entry goes back to its file, and a new one to the first
//! file that exists.
//!
//! Files are replaced together and atomically, under the lock files that kubectl uses, and what they had before is kept beside
//! them.
// client-go: tools/clientcmd/config.go, PathOptions and ModifyConfig; tools/clientcmd/loader.go, Load

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::{self, Display, Formatter};
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use portcullis_system::input_file::{self, ReadFileError};
use portcullis_system::platform;
use tokio::time::{Instant, sleep};

use super::super::error::LoginError;
use super::{CLUSTERS, CONTEXTS, KubeconfigFile, KubeconfigTarget, USERS};
use crate::certs::files::NewFiles;
use crate::certs::link;
use crate::print_error;

/// How long a command that has logged in waits for kubectl's lock. The user can end the program that holds it meanwhile.
const LOCK_TIMEOUT: Duration = Duration::from_mins(1);
/// How long a command waits before the login: a program that writes has done so.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
const LOCK_INTERVAL: Duration = Duration::from_millis(100);
/// The most old contents that are kept beside a file.
const MAX_BACKUPS: usize = 10_000;

/// The paths of the kubeconfigs of a user.
#[derive(Debug, PartialEq)]
pub(in crate::login) struct KubeconfigPaths {
    /// In the order in which kubectl reads them; with `--kubeconfig` that one alone.
    paths: Vec<PathBuf>,
    /// With `--kubeconfig`, the others of `$KUBECONFIG`, if it lists that one: without the flag, kubectl reads them together.
    others: Vec<PathBuf>,
}

/// The kubeconfigs of a user.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::login) struct Kubeconfigs {
    /// At least one.
    files: Vec<PresentOrAbsent>,
    /// Those that are only read, to see what names stand for.
    others: Vec<KubeconfigFile>,
}

/// A kubeconfig that need not exist.
#[derive(Debug, Clone, PartialEq)]
struct PresentOrAbsent {
    path: PathBuf,
    content: Option<KubeconfigFile>,
}

/// A file that was replaced.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::login) struct ReplacedKubeconfig {
    pub(in crate::login) path: PathBuf,
    /// Where the old content is; `None`: the file is new.
    pub(in crate::login) backup: Option<PathBuf>,
}

impl KubeconfigPaths {
    /// Those of `--kubeconfig`, else of `$KUBECONFIG`, else `~/.kube/config`.
    pub(in crate::login) fn of(flag: Option<&Path>) -> Result<Self, LoginError> {
        let home = platform::user_home().map(|home| home.join(".kube").join("config"));
        Self::from(flag, std::env::var_os("KUBECONFIG"), home)
    }

    // client-go: tools/clientcmd/config.go, GetLoadingPrecedence. Empty names, which kubectl skips only when it reads, are none.
    fn from(
        flag: Option<&Path>,
        variable: Option<OsString>,
        home: Option<PathBuf>,
    ) -> Result<Self, LoginError> {
        let mut listed: Vec<PathBuf> = Vec::new();
        for file in std::env::split_paths(&variable.unwrap_or_default()) {
            if !file.as_os_str().is_empty() && !listed.contains(&file) {
                listed.push(file);
            }
        }
        match flag {
            Some(flag) => {
                let is_listed = listed.iter().any(|file| file == flag);
                listed.retain(|file| is_listed && file != flag);
                Ok(Self { paths: vec![flag.to_owned()], others: listed })
            }
            None if !listed.is_empty() => Ok(Self { paths: listed, others: Vec::new() }),
            None => {
                let no_home = || LoginError::usage("there is no home directory; give --kubeconfig FILE");
                Ok(Self { paths: vec![home.ok_or_else(no_home)?], others: Vec::new() })
            }
        }
    }

    /// Reads them. An absent one has no entries; one that cannot be read is an error.
    pub(in crate::login) fn read(&self) -> Result<Kubeconfigs, LoginError> {
        let files = self.paths.iter().map(|path| {
            let content = KubeconfigFile::read_existing(path)?;
            Ok(PresentOrAbsent { path: path.clone(), content })
        });
        let others = self.others.iter().map(|path| KubeconfigFile::read(path));
        Ok(Kubeconfigs {
            files: files.collect::<Result<_, LoginError>>()?,
            others: others.collect::<Result<_, _>>()?,
        })
    }
}

impl Display for Kubeconfigs {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (number, file) in self.files.iter().enumerate() {
            if number > 0 {
                write!(f, "{}", platform::LIST_SEPARATOR)?;
            }
            write!(f, "{}", file.path.display())?;
        }
        Ok(())
    }
}

impl Kubeconfigs {
    /// Files of tests.
    #[cfg(test)]
    pub(in crate::login) fn of(
        files: impl IntoIterator<Item = (PathBuf, Option<KubeconfigFile>)>,
        others: &[KubeconfigFile],
    ) -> Self {
        let files = files.into_iter().map(|(path, content)| PresentOrAbsent { path, content });
        Self { files: files.collect(), others: others.to_vec() }
    }

    /// The content of a file.
    #[cfg(test)]
    pub(in crate::login) fn content(&self, path: &Path) -> Option<&KubeconfigFile> {
        self.files.iter().find(|file| file.path == path)?.content.as_ref()
    }

    fn contents(&self) -> impl Iterator<Item = &KubeconfigFile> {
        self.files.iter().filter_map(|file| file.content.as_ref())
    }

    /// What kubectl reads: of each name the entry of the first file that has it.
    pub(in crate::login) fn merged(&self) -> KubeconfigFile {
        self.contents().fold(KubeconfigFile::new(), KubeconfigFile::or)
    }

    /// The same with the files that are only read.
    pub(in crate::login) fn all(&self) -> KubeconfigFile {
        self.others.iter().fold(self.merged(), KubeconfigFile::or)
    }

    /// A context, or the current one.
    pub(in crate::login) fn target(&self, context: Option<&str>) -> Result<KubeconfigTarget, LoginError> {
        let merged = self.merged();
        let context = context.or(merged.current_context()).ok_or_else(|| {
            LoginError::usage(&format!(
                "{self} has no current context; give --server and --issuer, or --from FILE"
            ))
        })?;
        merged.target(context).map_err(|problem| LoginError::usage(&format!("{self}: {problem}")))
    }

    /// The file of a user, and of a cluster: the paths in its entry are relative to that one.
    pub(in crate::login) fn user_path(&self, name: &str) -> &Path {
        self.path_of(USERS, name)
    }

    /// The file of a cluster.
    pub(in crate::login) fn cluster_path(&self, name: &str) -> &Path {
        self.path_of(CLUSTERS, name)
    }

    /// The directory of the file that has a cluster; `None` for the files that are only read.
    pub(in crate::login) fn cluster_directory(&self, name: &str) -> Option<&Path> {
        self.files.get(self.position_of(CLUSTERS, name)?)?.path.parent()
    }

    fn path_of(&self, kind: (&str, &str), name: &str) -> &Path {
        let place = self.place_of(kind, name);
        self.files.get(place).map_or(Path::new(""), |file| file.path.as_path())
    }

    // client-go: tools/clientcmd/config.go, ModifyConfig — LocationOfOrigin, else the default file
    fn place_of(&self, kind: (&str, &str), name: &str) -> usize {
        self.position_of(kind, name).unwrap_or_else(|| self.default_place())
    }

    fn position_of(&self, kind: (&str, &str), name: &str) -> Option<usize> {
        let has = |file: &PresentOrAbsent| {
            file.content.as_ref().is_some_and(|content| content.entry(kind, name).is_some())
        };
        self.files.iter().position(has)
    }

    /// Where new entries go: to the first file that exists, or to the last of the list.
    // client-go: tools/clientcmd/config.go, PathOptions.GetDefaultFilename
    fn default_place(&self) -> usize {
        let exists = |file: &PresentOrAbsent| file.content.is_some();
        self.files.iter().position(exists).unwrap_or_else(|| self.files.len().saturating_sub(1))
    }

    fn content_at(&mut self, place: usize) -> Option<&mut KubeconfigFile> {
        let file = self.files.get_mut(place)?;
        Some(file.content.get_or_insert_with(KubeconfigFile::new))
    }

    /// Adds or replaces the entries of a target, as another file has them.
    pub(in crate::login) fn copy(&mut self, target: &KubeconfigTarget, from: &KubeconfigFile) {
        let names =
            [(CLUSTERS, &target.cluster_name), (USERS, &target.user_name), (CONTEXTS, &target.context)];
        for (kind, name) in names {
            let Some(content) = from.entry(kind, name) else { continue };
            let place = self.place_of(kind, name);
            if let Some(file) = self.content_at(place) {
                file.put(kind, name, content.clone());
            }
        }
    }

    /// Sets the context that kubectl uses by default.
    // client-go: tools/clientcmd/config.go, writeCurrentContext
    pub(in crate::login) fn set_current_context(&mut self, name: &str) {
        if self.merged().current_context() == Some(name) {
            return;
        }
        let place = self.default_place();
        if let Some(file) = self.content_at(place) {
            file.set_current_context(name);
        }
    }

    /// The files that differ from those before.
    fn changed<'a>(&'a self, before: &Self) -> impl Iterator<Item = (&'a Path, &'a KubeconfigFile)> {
        let before: Vec<_> = before.files.iter().map(|file| file.content.clone()).collect();
        self.files.iter().enumerate().filter_map(move |(place, file)| {
            let content = file.content.as_ref()?;
            let is_same = before.get(place).is_some_and(|old| old.as_ref() == Some(content));
            (!is_same).then_some((file.path.as_path(), content))
        })
    }

    /// The paths of the files that differ from those before.
    pub(in crate::login) fn changed_paths(&self, before: &Self) -> Vec<&Path> {
        self.changed(before).map(|(path, _)| path).collect()
    }

    /// Replaces the files that differ from those before, all or none, under their locks.
    pub(in crate::login) fn write(
        &self,
        before: &Self,
        _locks: &KubeconfigLocks,
    ) -> Result<Vec<ReplacedKubeconfig>, LoginError> {
        let (mut files, mut replaced, mut private) = (NewFiles::new(true), Vec::new(), Vec::new());
        for (path, content) in self.changed(before) {
            let failed = |error: &dyn Display| LoginError::Other(format!("{}: {error}", path.display()));
            // A symbolic link stays one.
            let file = behind_links(path).map_err(|error| failed(&error))?;
            let old = match input_file::read(&file) {
                Ok(old) => Some(old),
                Err(ReadFileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(failed(&error)),
            };
            let backup = match &old {
                Some(old) => {
                    let (backup, is_kept) = backup_of(&file, old).map_err(|error| failed(&error))?;
                    if !is_kept {
                        // The directory may be shared: not in the place of what another user has put there meanwhile.
                        files.stage_new(&backup, old).map_err(|error| failed(&error))?;
                        private.push(backup.clone());
                    }
                    Some(backup)
                }
                None => None,
            };
            files.stage(&file, content.to_yaml()?.as_bytes()).map_err(|error| failed(&error))?;
            private.push(file);
            replaced.push(ReplacedKubeconfig { path: path.to_owned(), backup });
        }
        drop(files.commit().map_err(LoginError::other)?);
        for file in private {
            platform::make_private(&file)
                .map_err(|error| LoginError::Other(format!("{}: {error}", file.display())))?;
        }
        Ok(replaced)
    }
}

/// Where the old content of a file is kept, and whether it is there already. The first one, which may have the comments and the
/// order of its owner, is never overwritten, and neither are the later ones. Other users of a shared directory may have put anything
/// under these names: nothing of theirs is opened or counts.
// threat: planted-link
fn backup_of(file: &Path, old: &[u8]) -> io::Result<(PathBuf, bool)> {
    for number in 1..MAX_BACKUPS {
        let extension = match number {
            1 => "portcullis-backup".to_owned(),
            number => format!("portcullis-backup-{number}"),
        };
        let backup = file.with_added_extension(extension);
        let found = match fs::symlink_metadata(&backup) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((backup, false)),
            found => found?,
        };
        if is_own_file(&found) && has_content(&backup, old) {
            return Ok((backup, true));
        }
    }
    Err(io::Error::other("too many old contents are kept beside it; remove *.portcullis-backup-*"))
}

fn is_own_file(found: &Metadata) -> bool {
    found.is_file() && platform::is_own(found)
}

/// Whether a file of the user has this content. The path may name another one by now, which is not waited for.
fn has_content(path: &Path, expected: &[u8]) -> bool {
    let Ok(file) = platform::open_private(OpenOptions::new().read(true), path) else { return false };
    let is_own = file.metadata().is_ok_and(|found| is_own_file(&found));
    let length = u64::try_from(expected.len()).unwrap_or(u64::MAX);
    let mut content = Vec::new();
    is_own && file.take(length.saturating_add(1)).read_to_end(&mut content).is_ok() && content == expected
}

/// The file that is written: behind symbolic links, of which the last one may name a file that is not there yet. Those that another
/// user may have placed are refused.
// threat: planted-link
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let file = link::resolve(path).map_err(io::Error::other)?;
    match (platform::real_path(directory_of(&file)), file.file_name()) {
        (Ok(directory), Some(name)) => Ok(directory.join(name)),
        // As kubectl, which creates the directory of the path, and none behind a link.
        _ if path.is_symlink() => Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("it is a symbolic link to {}, whose directory does not exist", file.display()),
        )),
        _ => Ok(file),
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// kubectl's locks of some kubeconfigs; removed when dropped. Other programs lock the path that they were given, or that of the
/// file behind it.
// client-go: tools/clientcmd/loader.go, lockFile
#[derive(Debug)]
pub(in crate::login) struct KubeconfigLocks {
    _files: Vec<LockFile>,
}

#[derive(Debug)]
struct LockFile(PathBuf);

impl Drop for LockFile {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}

/// Why a kubeconfig is not locked.
#[derive(Debug, thiserror::Error)]
enum LockError {
    #[error(
        "cannot lock {}: {} exists\n  fix: wait until kubectl config has ended, or remove {}",
        path.display(), lock.display(), lock.display()
    )]
    Held { path: PathBuf, lock: PathBuf },
    #[error(
        "cannot lock {}: {cause}\n  fix: make its directory writable, or choose another file by --kubeconfig or $KUBECONFIG",
        path.display()
    )]
    Io { path: PathBuf, cause: io::Error },
}

impl KubeconfigLocks {
    /// Fails if the files cannot be locked. Creates nothing: a login may be interrupted. The locks are not held while the user logs
    /// in: kubectl config would fail for minutes.
    pub(in crate::login) async fn check(paths: &[&Path]) -> Result<(), LoginError> {
        let existing: Vec<&Path> = paths.iter().copied().filter(|path| directory_of(path).is_dir()).collect();
        Self::acquire_within(CHECK_TIMEOUT, &existing, |_| {}).await.map(drop)
    }

    /// Waits for the locks: without them, a login would have been in vain. Creates the directories.
    pub(in crate::login) async fn acquire(paths: &[&Path]) -> Result<Self, LoginError> {
        for path in paths {
            platform::create_private_directory(directory_of(path)).map_err(|error| {
                LoginError::Other(format!("cannot create {}: {error}", directory_of(path).display()))
            })?;
        }
        let waiting = |error: &LockError| print_error(&format!("waiting for another program: {error}"));
        Self::acquire_within(LOCK_TIMEOUT, paths, waiting).await
    }

    async fn acquire_within(
        limit: Duration,
        paths: &[&Path],
        waiting: impl FnOnce(&LockError),
    ) -> Result<Self, LoginError> {
        let (began, mut waiting) = (Instant::now(), Some(waiting));
        loop {
            let error = match Self::try_acquire(paths) {
                Ok(locks) => return Ok(locks),
                Err(error) => error,
            };
            if !matches!(error, LockError::Held { .. }) || began.elapsed() >= limit {
                return Err(LoginError::other(error));
            }
            if let Some(waiting) = waiting.take() {
                waiting(&error);
            }
            sleep(LOCK_INTERVAL).await;
        }
    }

    fn try_acquire(paths: &[&Path]) -> Result<Self, LockError> {
        let mut locked = BTreeSet::new();
        for path in paths {
            let file = behind_links(path)
                .map_err(|error| LockError::Io { path: (*path).to_owned(), cause: error })?;
            // Two names of one directory must not make this command wait for itself.
            let own = platform::real_path(directory_of(path)).ok().zip(path.file_name());
            locked.insert(own.map_or_else(|| (*path).to_owned(), |(directory, name)| directory.join(name)));
            locked.insert(file);
        }
        // In one order, as kubectl does, so that two commands do not wait for each other.
        let locks = locked.into_iter().map(|path| {
            let lock = path.with_added_extension("lock");
            match platform::private(OpenOptions::new().write(true).create_new(true)).open(&lock) {
                Ok(_) => Ok(LockFile(lock)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    Err(LockError::Held { path, lock })
                }
                Err(cause) => Err(LockError::Io { path, cause }),
            }
        });
        Ok(Self { _files: locks.collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
mod tests;
