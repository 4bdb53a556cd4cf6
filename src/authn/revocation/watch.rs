//! Keeps deny lists up to date: an entry takes effect within a second, without a reload of the configuration.
//!
//! Each file has a check of its own, every [`POLL_INTERVAL`]: its metadata, and every [`READ_INTERVAL`] its content. New
//! entries count at once. Content that lacks entries of the list in force, or does not parse, counts once two checks in a
//! row have found it: another process may be writing the file. Content that does not parse never replaces the list.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use aws_lc_rs::digest;
use portcullis_pki::revocation::deny_list::DenyList;
use portcullis_system::clock::{Clock, UnixTime};
use portcullis_system::input_file::{self, ReadFileError};
use portcullis_system::sync::lock;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, info, warn};

use super::crls::ClientCrls;
use crate::metrics::Metrics;

/// How often the metadata of a file is compared.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The number of checks after which the content is read although the metadata is the same: a write within the
/// granularity of its times leaves them unchanged.
const READ_INTERVAL: u32 = 3;

/// The deny lists and CRLs of all clusters, and a generation that grows with each change of them.
#[derive(Debug)]
pub(crate) struct RevocationWatch {
    lists: Mutex<Vec<Weak<WatchedDenyList>>>,
    crls: Mutex<Vec<(Weak<ClientCrls>, usize)>>,
    generation: watch::Sender<u64>,
}

/// A deny list, as its file was read last.
#[derive(Debug, Clone)]
pub struct LoadedDenyList {
    path: PathBuf,
    list: Arc<DenyList>,
    digest: ContentDigest,
}

type ContentDigest = [u8; digest::SHA256_OUTPUT_LEN];

/// A deny list in force. Clusters that name the same file share it.
#[derive(Debug)]
pub(crate) struct WatchedDenyList {
    path: PathBuf,
    list: ArcSwap<DenyList>,
    state: Mutex<FileState>,
    /// Whether a check runs: that of a file system that does not answer must not delay the others.
    is_busy: AtomicBool,
}

/// What is known of a file.
#[derive(Debug)]
struct FileState {
    /// The content in force.
    current: ContentDigest,
    /// Content or an error that the last check found, and that waits for another check.
    pending: Option<Found>,
    /// Whether `pending` has been refused, logged and counted.
    is_refused: bool,
    stamp: Option<FileStamp>,
    checks: u32,
}

/// The content of a file, or why it cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    Content(ContentDigest),
    Unreadable(String),
}

/// Metadata that changes with a file.
type FileStamp = (u64, u64, u64, i64, i64, i64, i64);

/// The result of a check.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    None,
    Replaced(usize),
    Refused(String),
}

/// Why a deny list cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum DenyListLoadError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadFileError),
    /// The file does not parse.
    #[error(transparent)]
    Parse(#[from] portcullis_pki::revocation::deny_list::DenyListError),
}

impl LoadedDenyList {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self, DenyListLoadError> {
        let content = input_file::read(path)?;
        let list = Arc::new(DenyList::parse(&content)?);
        Ok(Self { path: path.to_owned(), list, digest: digest_of(&content) })
    }

    /// The entries.
    pub fn list(&self) -> &DenyList {
        &self.list
    }
}

impl RevocationWatch {
    /// Watches nothing yet.
    pub(crate) fn new() -> Arc<Self> {
        let (generation, _) = watch::channel(0);
        Arc::new(Self { lists: Mutex::default(), crls: Mutex::default(), generation })
    }

    /// The list of a file, which [`Self::run`] keeps up to date while it is in use. A file that is already watched keeps
    /// its list: the watch finds the change that `loaded` may contain.
    pub(super) fn deny_list(&self, loaded: &LoadedDenyList) -> Arc<WatchedDenyList> {
        let mut lists = lock(&self.lists);
        lists.retain(|list| list.strong_count() > 0);
        if let Some(known) = lists.iter().filter_map(Weak::upgrade).find(|known| known.path == loaded.path) {
            return known;
        }
        let list = Arc::new(WatchedDenyList::new(loaded));
        lists.push(Arc::downgrade(&list));
        list
    }

    /// Reports when one of these CRLs becomes stale, while they are in use.
    pub(super) fn observe_crls(&self, crls: &Arc<ClientCrls>) {
        let mut known = lock(&self.crls);
        known.retain(|(crls, _)| crls.strong_count() > 0);
        if !known.iter().any(|(known, _)| known.ptr_eq(&Arc::downgrade(crls))) {
            known.push((Arc::downgrade(crls), 0));
        }
    }

    /// Notifies of each change of a deny list or of the CRLs, also of a CRL that becomes stale. A credential that was
    /// not revoked before a change may be revoked after it.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// Notifies the subscribers.
    pub(crate) fn note_change(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// Keeps the lists up to date. Never returns; it may be called again after a panic.
    pub(crate) async fn run(self: &Arc<Self>, metrics: &Arc<Metrics>, clock: &Clock) {
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.check_crls(metrics, clock.now());
            let lists: Vec<_> = lock(&self.lists).iter().filter_map(Weak::upgrade).collect();
            for list in lists {
                let Some(check) = RunningCheck::begin(list) else { continue };
                let (watch, metrics, now) = (Arc::clone(self), Arc::clone(metrics), clock.now());
                tokio::task::spawn_blocking(move || check.run(&watch, &metrics, now));
            }
        }
    }

    /// Warns about CRLs that have become stale.
    fn check_crls(&self, metrics: &Metrics, now: UnixTime) {
        let mut total = 0;
        let mut has_changed = false;
        for (crls, stale_before) in lock(&self.crls).iter_mut() {
            let Some(crls) = crls.upgrade() else { continue };
            let stale: Vec<_> = crls.lists().into_iter().filter(|list| list.is_stale(now)).collect();
            if stale.len() > std::mem::replace(stale_before, stale.len()) {
                has_changed = true;
                for list in &stale {
                    warn!(issuer = list.issuer, policy = ?crls.policy(), "a client CRL is stale: its nextUpdate has passed");
                }
            }
            total += stale.len();
        }
        metrics.revocation.stale_crls.set(i64::try_from(total).unwrap_or(i64::MAX));
        if has_changed {
            self.note_change();
        }
    }
}

/// A check of a file; only one at a time runs for each.
struct RunningCheck(Arc<WatchedDenyList>);

impl RunningCheck {
    fn begin(list: Arc<WatchedDenyList>) -> Option<Self> {
        // Lazily: a check that is made and dropped would end the one that runs.
        (!list.is_busy.swap(true, Ordering::AcqRel)).then(|| Self(list))
    }

    fn run(&self, watch: &RevocationWatch, metrics: &Metrics, now: UnixTime) {
        let Self(list) = self;
        let file = list.path.display();
        match list.check(now) {
            Change::None => {}
            Change::Replaced(entries) => {
                metrics.revocation.deny_list_reloads.with_label_values(&["success"]).inc();
                info!(%file, entries, "credential deny list reloaded");
                watch.note_change();
            }
            Change::Refused(problem) => {
                metrics.revocation.deny_list_reloads.with_label_values(&["failure"]).inc();
                error!(%file, "the credential deny list is not reloaded, the old one stays in force: {problem}");
            }
        }
    }
}

impl Drop for RunningCheck {
    fn drop(&mut self) {
        self.0.is_busy.store(false, Ordering::Release);
    }
}

impl WatchedDenyList {
    fn new(loaded: &LoadedDenyList) -> Self {
        let state =
            FileState { current: loaded.digest, pending: None, is_refused: false, stamp: None, checks: 0 };
        Self {
            path: loaded.path.clone(),
            list: ArcSwap::new(Arc::clone(&loaded.list)),
            state: Mutex::new(state),
            is_busy: AtomicBool::new(false),
        }
    }

    /// The list in force.
    pub(crate) fn list(&self) -> Guard<Arc<DenyList>> {
        self.list.load()
    }

    /// Compares the file with the list in force, and replaces the list if it has to.
    // threat: broken-deny-list
    fn check(&self, now: UnixTime) -> Change {
        let mut state = self.state();
        let stamp = std::fs::metadata(&self.path).ok().map(|metadata| stamp(&metadata));
        state.checks = state.checks.wrapping_add(1);
        let is_settled = state.pending.is_none() || state.is_refused;
        if stamp.is_some()
            && stamp == state.stamp
            && is_settled
            && !state.checks.is_multiple_of(READ_INTERVAL)
        {
            return Change::None;
        }
        state.stamp = stamp;
        match input_file::read(&self.path) {
            Ok(content) => self.compare(&mut state, &content, now),
            Err(error) => state.refuse(Found::Unreadable(error.to_string()), || error.to_string()),
        }
    }

    fn compare(&self, state: &mut FileState, content: &[u8], now: UnixTime) -> Change {
        let digest = digest_of(content);
        if digest == state.current {
            state.pending = None;
            return Change::None;
        }
        let found = Found::Content(digest);
        if state.is_refused && state.pending.as_ref() == Some(&found) {
            return Change::None;
        }
        let list = match DenyList::parse(content) {
            Ok(list) => list,
            Err(error) => return state.refuse(found, || error.to_string()),
        };
        if !list.includes(&self.list(), now) && state.pending.as_ref() != Some(&found) {
            (state.pending, state.is_refused) = (Some(found), false);
            return Change::None;
        }
        let entries = list.count();
        self.list.store(Arc::new(list));
        (state.current, state.pending, state.is_refused) = (digest, None, false);
        Change::Replaced(entries)
    }

    fn state(&self) -> MutexGuard<'_, FileState> {
        lock(&self.state)
    }
}

impl FileState {
    /// Refuses what two checks in a row have found, once.
    fn refuse(&mut self, found: Found, problem: impl FnOnce() -> String) -> Change {
        if self.pending.as_ref() != Some(&found) {
            (self.pending, self.is_refused) = (Some(found), false);
            return Change::None;
        }
        if std::mem::replace(&mut self.is_refused, true) { Change::None } else { Change::Refused(problem()) }
    }
}

fn stamp(metadata: &Metadata) -> FileStamp {
    (
        metadata.dev(),
        metadata.ino(),
        metadata.size(),
        metadata.mtime(),
        metadata.mtime_nsec(),
        metadata.ctime(),
        metadata.ctime_nsec(),
    )
}

fn digest_of(content: &[u8]) -> ContentDigest {
    digest::digest(&digest::SHA256, content).as_ref().try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests;
