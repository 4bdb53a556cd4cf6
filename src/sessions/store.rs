//! A directory of recordings, and the threads that wait for its disk.
//!
//! A directory that hangs, such as a network file system that is away, keeps its own threads alone; and its threads are shared by
//! owners, so that one with many sessions does not delay the recordings of the others.

use std::sync::Arc;

use portcullis_limits::Owner;
use portcullis_limits::fair_limiter::{FairLimiter, Permit, Refused, Shares};
use portcullis_sessions::storage::RecordingStore;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The threads of one directory, and the recordings that wait for one: half and a quarter for one owner.
// threat: recording-hang
const THREADS: Shares = Shares::new(8, 4).with_queue(8192, 2048);

/// Where recordings are stored.
pub(super) struct SessionStore {
    store: Arc<dyn RecordingStore>,
    name: String,
    threads: FairLimiter<Owner>,
}

/// A thread of a store.
pub(super) type StoreThread = Permit<Owner>;

impl SessionStore {
    /// A store, with a name for the log.
    pub(super) fn new(store: Arc<dyn RecordingStore>, name: String) -> Self {
        Self { store, name, threads: FairLimiter::new(THREADS) }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The store itself, whose functions block.
    pub(super) fn blocking(&self) -> Arc<dyn RecordingStore> {
        Arc::clone(&self.store)
    }

    /// Waits for a thread of the owner's share, at most until then.
    pub(super) async fn thread(&self, owner: &Owner, until: Instant) -> Result<StoreThread, Refused> {
        self.threads.acquire(owner.clone(), 1, until).await
    }
}

/// Runs work on the thread, which is free again when it is done, however long that takes.
pub(super) fn run<T: Send + 'static>(
    thread: StoreThread,
    runtime: &Handle,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    runtime.spawn_blocking(move || {
        let _thread = thread;
        work()
    })
}

impl std::fmt::Debug for SessionStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionStore").field("name", &self.name).finish_non_exhaustive()
    }
}
