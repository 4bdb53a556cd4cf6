//! Cached credentials: one entry for the tokens of each issuer, client, scopes and user, and one for each client
//! certificate that was got with them. A [`CredentialStore`] keeps them: files, or the system's keyring.
//!
//! When an entry is used, renewed or replaced, `session.rs` decides.
//!
//! A damaged, foreign or unwritable cache of files costs a login and a warning, never the command; a keyring that cannot
//! be used is an error. A file lock makes concurrent commands log in once, with either store; the kernel frees the lock
//! of a process that dies.
// threat: stolen-login-cache

mod certificate;
#[cfg(all(feature = "keyring", target_os = "linux"))]
mod keyring;
// Its tests are those of all builds.
#[cfg(any(test, not(all(feature = "keyring", target_os = "linux"))))]
mod no_keyring;
mod store;

use std::fmt::{self, Display};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::{digest, rand};
use clap::ValueEnum;
use portcullis_go::hex::hex;
use portcullis_go::time;
use portcullis_http::client_tls::TrustedRoots;
use portcullis_system::clock::{Clock, UnixTime};
use portcullis_system::platform;
use secrecy::zeroize::Zeroizing;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::error::{LoginError, shortened};
use super::id_token::display_name;
use super::provider::{OpenIdClientSettings, ScopeChoice};
use super::settings::{ClientSettings, Flow, TokenKind, roots};
use crate::terminal::plain;
pub(super) use certificate::{CachedCertificate, IssuedCertificate, PendingRequest};
#[cfg(all(feature = "keyring", target_os = "linux"))]
use keyring::{IS_BUILT, Keyring, KeyringError};
#[cfg(not(all(feature = "keyring", target_os = "linux")))]
use no_keyring::{IS_BUILT, Keyring, KeyringError};
pub(super) use portcullis_openid::SecretText;
use store::{CredentialStore, FilePrivacy, FileStore};

/// The version of the entries. An entry of another version is ignored and replaced.
const VERSION: u32 = 1;
/// How often a locked entry is tried again.
const LOCK_INTERVAL: Duration = Duration::from_millis(50);
/// The most bytes of a lock file that are read.
const MAX_LOCK_RECORD: usize = 16 * 1024;

/// The stores that `--credential-store` names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum CredentialStoreKind {
    /// Files of mode 0600 in the directory of the cache.
    #[default]
    File,
    /// The system's keyring: on Linux the Secret Service, with the cargo feature `keyring`.
    Keyring,
}

impl CredentialStoreKind {
    /// The store that is not this one.
    pub(super) fn other(self) -> Self {
        match self {
            Self::File => Self::Keyring,
            Self::Keyring => Self::File,
        }
    }

    /// The value of the flag.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Keyring => "keyring",
        }
    }
}

/// Why the cache is not used. The command continues without it, unless the error is [fatal](CacheError::is_fatal).
#[derive(Debug, thiserror::Error)]
pub(super) enum CacheError {
    #[error("cannot use {0}: {1}")]
    Io(PathBuf, io::Error),
    #[error(
        "{0} belongs to another user; fix: run the command as that user, remove it, or choose another directory by \
         --cache-dir or $XDG_CACHE_HOME"
    )]
    Owner(PathBuf),
    #[error("other users can write to {0}; fix: chmod 700 {0}")]
    Writable(PathBuf),
    #[error("other users can read {0}; its tokens are not used. fix: portcullis logout, and log in again")]
    Readable(PathBuf),
    #[error("{0} is damaged")]
    Damaged(String),
    #[error("{0} is of another version of portcullis")]
    Version(String),
    #[error("there is no home directory; set {}, or give --cache-dir DIR", platform::CACHE_VARIABLES.join(" or "))]
    NoHome,
    #[error("{}", locked(.0, .1.as_ref()))]
    Locked(Duration, Option<LockHolder>),
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    #[error(
        "{0}\n  fix: --credential-store=keyring has its locks in $XDG_CACHE_HOME/portcullis/login or \
         ~/.cache/portcullis/login: make the directory yours and writable, or set XDG_CACHE_HOME to another one"
    )]
    KeyringLock(Box<Self>),
}

impl CacheError {
    /// Whether a command must not go on without the cache: another process is logging in, or a keyring that the user has
    /// chosen cannot be used, so that each command would ask for a login.
    pub(super) fn is_fatal(&self) -> bool {
        matches!(self, Self::Locked(..) | Self::Keyring(_) | Self::KeyringLock(_))
    }

    /// Whether there is no keyring that could have entries: no session bus, or no service on it.
    pub(super) fn is_absent_keyring(&self) -> bool {
        matches!(self, Self::Keyring(error) if error.is_absent())
    }
}

fn locked(limit: &Duration, holder: Option<&LockHolder>) -> String {
    const ENDED: &str = "then repeat the command; it may wait for a browser that was closed, or be stopped";
    let Some(holder @ LockHolder { process, is_login, .. }) = holder else {
        return format!(
            "another process has used this login for {limit:?}\n  fix: end the other portcullis, {ENDED}"
        );
    };
    let (doing, fix) =
        if *is_login { ("logs in", "complete its login, or ") } else { ("has used this login", "") };
    // Another process here may have the ID of that one.
    let end = if holder.is_here() { format!("with `kill {process}`") } else { "on its machine".to_owned() };
    format!(
        "another process {doing}, and has not ended within {limit:?}: {holder}\n  fix: {fix}end it {end}, {ENDED}"
    )
}

impl From<CacheError> for LoginError {
    fn from(error: CacheError) -> Self {
        match error {
            CacheError::Keyring(error) if error.is_usage() => Self::Usage(error.to_string()),
            error => Self::Other(error.to_string()),
        }
    }
}

/// The tokens of one login.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CachedTokens {
    version: u32,
    /// Repeated from the key, for people and for `logout --all`.
    pub(super) issuer: String,
    #[serde(rename = "clientID")]
    pub(super) client_id: String,
    /// The token for the cluster.
    pub(super) token: SecretText,
    /// When the token expires, in seconds since 1970 by this machine's clock.
    pub(super) expires_at: u64,
    /// When the token was received.
    pub(super) received_at: u64,
    /// The user of the ID token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) subject: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refresh_token: Option<SecretText>,
    /// The provider's CAs, PEM, for `logout --all`; `None`: those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer_certificate_authority: Option<String>,
}

impl CachedTokens {
    pub(super) fn new(settings: &ClientSettings, token: &str, expires_at: u64, received_at: u64) -> Self {
        Self {
            version: VERSION,
            issuer: settings.issuer.clone(),
            client_id: settings.client_id.clone(),
            token: SecretText::new(token),
            expires_at,
            received_at,
            subject: None,
            refresh_token: None,
            issuer_certificate_authority: settings
                .authorities
                .as_deref()
                .map(|pem| String::from_utf8_lossy(pem).into_owned()),
        }
    }

    /// The user for people: a name, and the subject behind it, which alone tells users apart.
    pub(super) fn user(&self) -> Option<String> {
        let subject = self.subject.as_deref()?;
        let shown = plain(&shortened(subject)).into_owned();
        match display_name(self.token.expose(), subject).filter(|name| name != subject) {
            Some(name) => Some(format!("{} ({shown})", plain(&shortened(&name)))),
            None => Some(shown),
        }
    }

    /// The same with another refresh token.
    pub(super) fn with_refresh_token(&self, refresh_token: Option<SecretText>) -> Self {
        Self { refresh_token, ..self.clone() }
    }

    /// The client of the provider, to revoke the refresh token.
    pub(super) fn client(&self) -> Result<OpenIdClientSettings, String> {
        let authorities = self.issuer_certificate_authority.as_deref().map(str::as_bytes);
        Ok(OpenIdClientSettings {
            issuer: self.issuer.clone(),
            client_id: self.client_id.clone(),
            // A secret of one provider is not sent to the others.
            secret: None,
            roots: authorities.map_or_else(|| Ok(TrustedRoots::system()), roots)?,
            scopes: ScopeChoice::These(Vec::new()),
            extra: Vec::new(),
            user: None,
        })
    }
}

/// The login cache of a user.
#[derive(Debug, Clone)]
pub(super) struct LoginCache {
    /// The directory of the locks, and of the files of a [`FileStore`].
    directory: PathBuf,
    store: CredentialStore,
}

/// One entry of the cache: the tokens of a login, or a certificate that was got with them.
#[derive(Debug, Clone)]
pub(super) struct CacheEntry {
    cache: LoginCache,
    name: String,
}

/// What [`CacheEntry::remove_login`] has done.
#[derive(Debug, Default)]
pub(super) struct RemovedLogin {
    /// Whether the tokens are removed.
    pub(super) has_tokens: bool,
    /// How many certificates are removed.
    pub(super) certificates: usize,
    /// The first failure.
    pub(super) failure: Option<CacheError>,
}

impl RemovedLogin {
    /// Whether a removal has succeeded; keeps its error if it is the first.
    fn is_done(&mut self, outcome: Result<(), CacheError>) -> bool {
        let Err(error) = outcome else { return true };
        self.failure.get_or_insert(error);
        false
    }
}

/// Held while an entry is read, renewed and written. Freed when dropped, or by the kernel.
///
/// Processes that wait for an attempt of another one share its failure. Otherwise each would wait for the same silent
/// provider, one after another.
#[derive(Debug)]
pub(super) struct CacheLock {
    /// Closing it frees the lock.
    file: File,
    /// This process.
    holder: LockHolder,
    /// That of the last holder, if it failed while this process waited for the lock.
    awaited: Option<FailedAttempt>,
}

/// Why the last holder of a lock got nothing, as the file of the lock says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FailedAttempt {
    /// Distinguishes it from all others.
    id: String,
    /// What was attempted; another attempt could succeed.
    attempt: String,
    problem: String,
    is_temporary: bool,
}

/// The process that holds a lock, as the file of the lock says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LockHolder {
    /// Its process ID.
    process: u32,
    /// Its machine: several can share the directory of the cache.
    #[serde(default)]
    machine: Option<String>,
    /// Since when it holds the lock, in seconds since 1970.
    since: u64,
    /// Whether it waits for its user, who logs in.
    is_login: bool,
}

impl LockHolder {
    fn current() -> Self {
        Self {
            process: std::process::id(),
            machine: platform::machine(),
            since: Clock::system().now().as_secs(),
            is_login: false,
        }
    }

    fn is_here(&self) -> bool {
        self.machine.is_some() && self.machine == platform::machine()
    }
}

impl Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = time::format_since_epoch(UnixTime::from_secs(self.since));
        write!(f, "process {}, since {since}", self.process)
    }
}

/// How long to wait for a lock.
#[derive(Debug, Clone, Copy)]
pub(super) struct LockLimits {
    /// Whatever its holder does.
    pub(super) all: Duration,
    /// For a holder that waits for its user.
    pub(super) login: Duration,
}

impl LockLimits {
    /// One limit for every holder.
    pub(super) fn alike(limit: Duration) -> Self {
        Self { all: limit, login: limit }
    }
}

/// What a lock file says. Anything else in it counts as an empty one.
#[derive(Debug, Default, Serialize, Deserialize)]
struct LockRecord {
    holder: Option<LockHolder>,
    failure: Option<FailedAttempt>,
    /// When a login that no terminal had asked for has failed, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failed_login: Option<u64>,
}

impl LockRecord {
    /// An error: on Windows, another process has locked it.
    fn read(file: &File) -> io::Result<Self> {
        let mut content = vec![0; MAX_LOCK_RECORD];
        let length = platform::read_start(file, &mut content)?;
        Ok(serde_json::from_slice(content.get(..length).unwrap_or_default()).unwrap_or_default())
    }

    /// The failure that the file says, if it said something else before.
    fn failure_since(before: &io::Result<Self>, file: &File) -> Option<FailedAttempt> {
        // Without knowing what it said before, each process finds out by itself.
        let before = before.as_ref().ok()?.failure.as_ref();
        Self::read(file).ok()?.failure.filter(|now| Some(now) != before)
    }

    /// Without the content of the file, each process finds out by itself.
    fn write(&self, file: &File) {
        let content = serde_json::to_vec(self).unwrap_or_default();
        file.set_len(0).and_then(|()| platform::write_start(file, &content)).ok();
    }
}

impl CacheLock {
    /// The failure of the same attempt, for which this process has waited.
    pub(super) fn failure(&self, attempt: &str) -> Option<LoginError> {
        let FailedAttempt { problem, is_temporary, .. } =
            self.awaited.clone().filter(|failure| failure.attempt == attempt)?;
        Some(LoginError::OtherProcess { problem, is_temporary })
    }

    /// Begins an attempt: from now on, an earlier failure is not that for which others wait.
    pub(super) fn begin(&self) {
        LockRecord { holder: Some(self.holder.clone()), failure: None, ..self.record() }.write(&self.file);
    }

    /// From now on, the user is asked.
    pub(super) fn begin_login(&self) {
        let holder = LockHolder { is_login: true, ..self.holder.clone() };
        LockRecord { holder: Some(holder), failure: None, ..self.record() }.write(&self.file);
    }

    /// Tells the processes that wait for this attempt why it has failed.
    pub(super) fn fail(&self, attempt: &str, problem: &dyn Display, is_temporary: bool) {
        let mut id = [0; 16];
        if rand::fill(&mut id).is_err() {
            return;
        }
        let (attempt, problem) = (attempt.to_owned(), problem.to_string());
        let failure = FailedAttempt { id: hex(&id), attempt, problem, is_temporary };
        LockRecord { holder: Some(self.holder.clone()), failure: Some(failure), ..self.record() }
            .write(&self.file);
    }

    /// When a login that no terminal had asked for has failed, if no later one has succeeded.
    pub(super) fn failed_login(&self) -> Option<u64> {
        self.record().failed_login
    }

    pub(super) fn set_failed_login(&self, at: Option<UnixTime>) {
        LockRecord { failed_login: at.map(|at| at.as_secs()), ..self.record() }.write(&self.file);
    }

    fn record(&self) -> LockRecord {
        LockRecord::read(&self.file).unwrap_or_default()
    }
}

/// The directory of the cache.
fn directory(flag: Option<&Path>) -> Result<PathBuf, CacheError> {
    let default = || platform::cache_home().map(|caches| caches.join("portcullis").join("login"));
    flag.map(Path::to_owned).or_else(default).ok_or(CacheError::NoHome)
}

/// The stores of a build with the keyring, or without.
fn stores(has_keyring: bool) -> &'static [CredentialStoreKind] {
    // First the one that may ask the user: Ctrl-C at the prompt leaves the other as it is.
    if has_keyring {
        &[CredentialStoreKind::Keyring, CredentialStoreKind::File]
    } else {
        &[CredentialStoreKind::File]
    }
}

impl LoginCache {
    /// The cache in a store. `directory` is the one of `--cache-dir`, and `may_prompt` says whether the keyring may ask the
    /// user to unlock it.
    pub(super) fn open(
        directory: Option<&Path>,
        kind: CredentialStoreKind,
        may_prompt: bool,
    ) -> Result<Self, CacheError> {
        match kind {
            CredentialStoreKind::File => {
                let directory = self::directory(directory)?;
                Ok(Self { store: CredentialStore::File(FileStore::new(&directory)), directory })
            }
            CredentialStoreKind::Keyring => {
                let store = CredentialStore::Keyring(Keyring::open(may_prompt)?);
                // All directories share the items of the keyring, so they share the locks.
                let directory = self::directory(None).map_err(|error| store.lock_error(error))?;
                let cache = Self { directory, store };
                cache.prepare()?;
                Ok(cache)
            }
        }
    }

    /// The caches in all stores of this build.
    pub(super) fn open_all(
        directory: Option<&Path>,
        may_prompt: bool,
    ) -> impl Iterator<Item = Result<Self, CacheError>> {
        stores(IS_BUILT).iter().map(move |kind| Self::open(directory, *kind, may_prompt))
    }

    /// The entry of a login. Creates and checks the directory.
    pub(super) fn entry(&self, settings: &ClientSettings) -> Result<CacheEntry, CacheError> {
        self.prepare()?;
        Ok(CacheEntry { cache: self.clone(), name: name_of(settings) })
    }

    fn prepare(&self) -> Result<(), CacheError> {
        prepare(&self.directory).map_err(|error| self.store.lock_error(error))
    }

    /// A cache whose store keeps this many documents, and then fails as a keyring does.
    #[cfg(test)]
    pub(super) fn failing_after(directory: &Path, writes: usize) -> Self {
        let store = CredentialStore::Failing(store::FailingStore::new(directory, writes));
        Self { directory: directory.to_owned(), store }
    }

    /// Whether the store has tokens of this login, as far as it can be read.
    pub(super) async fn has_login(&self, settings: &ClientSettings) -> bool {
        let entry = CacheEntry { cache: self.clone(), name: name_of(settings) };
        let read = entry.read().await;
        let is_unusable = |error: &CacheError| {
            matches!(error, CacheError::Readable(_) | CacheError::Damaged(_) | CacheError::Version(_))
        };
        read.as_ref().map_or_else(is_unusable, Option::is_some)
    }

    /// The parts of the store that [`entries`](Self::entries) has not looked into.
    pub(super) async fn unsearched(&self) -> Result<Vec<String>, CacheError> {
        self.store.unsearched().await
    }

    /// All entries.
    pub(super) async fn entries(&self) -> Result<Vec<CacheEntry>, CacheError> {
        let mut names = self.store.names().await?;
        // A directory may have files of others, and a keyring items that say they are of this program.
        names.retain(|name| is_name(name));
        names.sort();
        names.dedup();
        Ok(names.into_iter().map(|name| CacheEntry { cache: self.clone(), name }).collect())
    }
}

impl CacheEntry {
    /// The entry of a certificate that was got with the tokens of this entry. `key` distinguishes it from the others.
    pub(super) fn certificate(&self, key: &[Vec<u8>]) -> Self {
        Self {
            cache: self.cache.clone(),
            name: format!("{}-{}", self.name, digest_of(key.iter().map(Vec::as_slice))),
        }
    }

    /// Removes the tokens, and the certificates that were got with them. One that stays keeps no other.
    pub(super) async fn remove_login(&self) -> RemovedLogin {
        let mut removed = RemovedLogin::default();
        removed.has_tokens = removed.is_done(self.remove().await);
        match self.certificates().await {
            Ok(certificates) => {
                for certificate in certificates {
                    let is_removed = removed.is_done(certificate.remove().await);
                    removed.certificates += usize::from(is_removed);
                }
            }
            Err(error) => {
                removed.failure.get_or_insert(error);
            }
        }
        removed
    }

    /// The entries of the certificates that were got with the tokens of this entry.
    pub(super) async fn certificates(&self) -> Result<Vec<Self>, CacheError> {
        let all = self.cache.entries().await?;
        Ok(all.into_iter().filter(|entry| entry.is_certificate_of(self)).collect())
    }

    /// Where its document is. Entries of the same place are one entry.
    pub(super) fn place(&self) -> String {
        self.cache.store.place(&self.name)
    }

    /// Whether this is the entry of a certificate that was got with the tokens of `login`.
    pub(super) fn is_certificate_of(&self, login: &Self) -> bool {
        self.name.strip_prefix(login.name.as_str()).is_some_and(|rest| rest.starts_with('-'))
    }

    /// Whether this is the entry of a certificate.
    pub(super) fn is_certificate(&self) -> bool {
        self.name.contains('-')
    }

    /// Waits for the lock, which is a file with every store. Calls `waiting` once if another process holds it.
    pub(super) async fn lock(
        &self,
        limit: Duration,
        waiting: impl FnOnce(),
    ) -> Result<CacheLock, CacheError> {
        self.lock_within(LockLimits::alike(limit), |_| waiting()).await
    }

    /// The same, with a limit of its own for a holder that waits for its user.
    pub(super) async fn lock_within(
        &self,
        limits: LockLimits,
        waiting: impl FnOnce(Option<&LockHolder>),
    ) -> Result<CacheLock, CacheError> {
        let path = self.cache.directory.join(format!("{}.lock", self.name));
        let failed = |error| self.cache.store.lock_error(CacheError::Io(path.clone(), error));
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true);
        let file = platform::open_private(options, &path).map_err(failed)?;
        let (began, mut waiting) = (Instant::now(), Some(waiting));
        // Before the first try: the holder may fail at any time after it.
        let before = LockRecord::read(&file);
        loop {
            match file.try_lock() {
                Ok(()) => {
                    let awaited = LockRecord::failure_since(&before, &file);
                    let lock = CacheLock { file, holder: LockHolder::current(), awaited };
                    // A failure is left for the others that wait for it.
                    if lock.awaited.is_none() {
                        lock.begin();
                    }
                    return Ok(lock);
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
                Err(TryLockError::WouldBlock) => {}
            }
            let holder = LockRecord::read(&file).ok().and_then(|record| record.holder);
            let is_login = holder.as_ref().is_some_and(|holder| holder.is_login);
            let limit = if is_login { limits.login } else { limits.all };
            if began.elapsed() >= limit {
                return Err(CacheError::Locked(limit, holder));
            }
            if let Some(waiting) = waiting.take() {
                waiting(holder.as_ref());
            }
            sleep(LOCK_INTERVAL).await;
        }
    }

    /// The tokens, if there are any.
    pub(super) async fn read(&self) -> Result<Option<CachedTokens>, CacheError> {
        self.read_document(FilePrivacy::Private).await
    }

    /// The tokens, if there are any, also of a file that other users can read: those should be revoked above all.
    pub(super) async fn read_to_revoke(&self) -> Result<Option<CachedTokens>, CacheError> {
        self.read_document(FilePrivacy::Any).await
    }

    async fn read_document<T: DeserializeOwned>(
        &self,
        privacy: FilePrivacy,
    ) -> Result<Option<T>, CacheError> {
        match self.cache.store.read(&self.name, privacy).await? {
            Some(content) => self.parse(&content).map(Some),
            None => Ok(None),
        }
    }

    /// The tokens of a login that was killed while it wrote them, if they can be read.
    pub(super) fn read_partial(&self) -> Option<CachedTokens> {
        self.parse(&self.cache.store.read_partial(&self.name).ok()??).ok()
    }

    fn parse<T: DeserializeOwned>(&self, content: &[u8]) -> Result<T, CacheError> {
        let store = &self.cache.store;
        let version: Result<OnlyVersion, _> = serde_json::from_slice(content);
        if version.is_ok_and(|found| found.version != VERSION) {
            return Err(CacheError::Version(store.place(&self.name)));
        }
        serde_json::from_slice(content).map_err(|_| CacheError::Damaged(store.place(&self.name)))
    }

    /// Replaces the tokens. A reader sees the old ones or the new ones.
    pub(super) async fn write(&self, tokens: &CachedTokens) -> Result<(), CacheError> {
        self.write_document(tokens).await
    }

    async fn write_document(&self, document: &impl Serialize) -> Result<(), CacheError> {
        let store = &self.cache.store;
        let content = serde_json::to_vec(document).map(Zeroizing::new);
        let content = content.map_err(|_| CacheError::Damaged(store.place(&self.name)))?;
        store.write(&self.name, &content).await
    }

    /// Removes the document. The lock file stays: a process may wait for it.
    pub(super) async fn remove(&self) -> Result<(), CacheError> {
        self.cache.store.remove(&self.name).await
    }
}

/// Only the version of an entry, of any version.
#[derive(Deserialize)]
struct OnlyVersion {
    version: u32,
}

/// Creates the directory, and checks that it is of the user alone.
fn prepare(directory: &Path) -> Result<(), CacheError> {
    let failed = |error| CacheError::Io(directory.to_owned(), error);
    platform::create_private_directory(directory).map_err(failed)?;
    let metadata = fs::metadata(directory).map_err(failed)?;
    if !platform::is_own(&metadata) {
        return Err(CacheError::Owner(directory.to_owned()));
    }
    if platform::is_writable_for_others(&metadata) {
        return Err(CacheError::Writable(directory.to_owned()));
    }
    Ok(())
}

/// The name of an entry: a digest of everything that distinguishes the tokens.
fn name_of(settings: &ClientSettings) -> String {
    let scopes = match &settings.scopes {
        ScopeChoice::Offline => String::new(),
        ScopeChoice::These(scopes) if scopes.is_empty() => "openid".to_owned(),
        ScopeChoice::These(scopes) => scopes.join(" "),
    };
    let mut key = vec![settings.issuer.clone(), settings.client_id.clone(), scopes];
    key.push(settings.user.clone().unwrap_or_default());
    // A machine's token is not a user's, and an access token not an ID token.
    key.push((settings.flow == Flow::ClientCredentials).to_string());
    key.push((settings.token == TokenKind::Access).to_string());
    key.extend(settings.extra.iter().flat_map(|(name, value)| [name.clone(), value.clone()]));
    // What was issued by a provider whom these CAs vouch for is sent to no other.
    // threat: hostile-kubeconfig
    let authorities = settings.authorities.as_ref();
    key.push(authorities.map_or_else(String::new, |pem| hex(digest::digest(&digest::SHA256, pem).as_ref())));
    digest_of(key.iter().map(String::as_bytes))
}

/// The digest of the parts. No part can imitate two: each is preceded by its length.
fn digest_of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        context.update(format!("{}:", part.len()).as_bytes());
        context.update(part);
    }
    hex(context.finish().as_ref())
}

/// Whether a name may be that of an entry: a digest, with a second one for a certificate.
fn is_name(name: &str) -> bool {
    let is_digest =
        |part: &str| part.len() == 64 && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let (login, certificate) = name.split_once('-').map_or((name, None), |(login, rest)| (login, Some(rest)));
    is_digest(login) && certificate.is_none_or(is_digest)
}

#[cfg(test)]
mod tests;
