//! What one HTTP/2 connection holds beside its streams: a header block that has begun to arrive, and output that the peer does
//! not read.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use portcullis_limits::Owner;
use portcullis_limits::byte_ledger::{ByteLedger, Holder, Registration};
use tokio::sync::Notify;

/// How much output may wait for a peer that does not read, beside what its streams count. Beyond that, headers wait.
const MAX_UNDRAINED_BYTES: usize = 1 << 20;
/// How much larger than on the wire HPACK can make a header: a byte that refers to an entry of its tables becomes a field.
const HPACK_GROWTH: usize = 64;

/// The buffers of one connection.
#[derive(Default)]
pub struct ConnectionBuffers {
    /// The length of headers, and of ends of bodies, given to HTTP/2 since all output was last written.
    undrained: AtomicUsize,
    drained: Notify,
    /// The length of the header block that has begun to arrive, as on the wire.
    header_block: AtomicUsize,
    max_header_list: usize,
    /// The request bodies that are being received.
    uploads: AtomicUsize,
    revoked: AtomicBool,
    /// The task of the connection.
    task: AtomicWaker,
    registration: OnceLock<Registration>,
}

impl ConnectionBuffers {
    /// Those of a connection that accepts header lists of this size.
    pub(super) fn new(max_header_list: usize) -> Arc<Self> {
        Arc::new(Self { max_header_list, ..Self::default() })
    }

    /// Counts them for this owner from now on.
    pub fn register(self: &Arc<Self>, ledger: &ByteLedger, owner: Owner) {
        self.registration.get_or_init(|| ledger.register(owner, self));
    }

    /// Counts them for another owner from now on, if they count.
    pub fn set_owner(&self, owner: Owner) {
        if let Some(registration) = self.registration.get() {
            registration.set_owner(owner);
        }
    }

    /// Counts a request body until the guard is dropped.
    pub fn begin_upload(self: &Arc<Self>) -> UploadGuard {
        self.uploads.fetch_add(1, Ordering::Relaxed);
        UploadGuard(Arc::clone(self))
    }

    /// The request bodies that are being received.
    pub fn uploads(&self) -> usize {
        self.uploads.load(Ordering::Relaxed)
    }

    /// Counts output until it is written.
    pub(super) fn give(&self, bytes: usize) {
        self.undrained.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether further headers are to wait, because the peer does not read.
    pub(super) fn is_behind(&self) -> bool {
        self.undrained.load(Ordering::Relaxed) > MAX_UNDRAINED_BYTES
    }

    /// Completes the next time that all output is written.
    pub(super) async fn drained(&self) {
        self.drained.notified().await;
    }

    /// Records that all output is written.
    pub(super) fn note_drained(&self) {
        if self.undrained.load(Ordering::Relaxed) > 0 {
            self.undrained.store(0, Ordering::Relaxed);
            self.drained.notify_waiters();
        }
    }

    /// Records the length of the header block that has begun to arrive; 0: none has.
    pub(super) fn note_header_block(&self, length: usize) {
        self.header_block.store(length, Ordering::Relaxed);
    }

    /// Completes when the connection is to end, because its owner holds more memory than any other.
    pub fn poll_revoked(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.task.register(cx.waker());
        if self.revoked.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Holder for ConnectionBuffers {
    fn held(&self) -> usize {
        let block = self.header_block.load(Ordering::Relaxed);
        let fields = block.saturating_mul(HPACK_GROWTH).min(self.max_header_list);
        self.undrained.load(Ordering::Relaxed) + block + fields
    }

    fn give_way(&self) -> bool {
        let is_new = !self.revoked.swap(true, Ordering::AcqRel);
        self.task.wake();
        is_new
    }
}

/// Counts a request body that is being received.
#[derive(Debug)]
pub struct UploadGuard(Arc<ConnectionBuffers>);

impl Drop for UploadGuard {
    fn drop(&mut self) {
        self.0.uploads.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for ConnectionBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionBuffers").field("registration", &self.registration).finish_non_exhaustive()
    }
}
