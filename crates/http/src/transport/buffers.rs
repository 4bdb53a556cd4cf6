//! What the buffers of one exchange, a request and its response, hold, so that its owner answers for it.
//!
//! A body that is received waits in the flow-control window of its stream until it is read, one that is sent waits until it is
//! written. Both are counted where they wait, and looked at when the ledger is sampled.

use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use futures_util::task::AtomicWaker;
use h2::FlowControl;
use portcullis_limits::Owner;
use portcullis_limits::byte_ledger::{ByteLedger, Holder, Registration};
use portcullis_system::sync::lock;

use crate::limits::MAX_HEADER_BYTES;

/// What hyper may hold of a body over HTTP/1.1 that is not written: 16 buffers, each a frame of the other side.
// hyper: src/proto/h1/io.rs, MAX_BUF_LIST_BUFFERS
const HTTP1_WRITE_BUFFER: usize = 256 << 10;
/// What hyper may hold of a body over HTTP/1.1 that is not read: a chunk, and the records of TLS behind it.
const HTTP1_READ_BUFFER: usize = 64 << 10;

/// The two directions of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the backend.
    Request,
    /// From the backend to the client.
    Response,
}

/// The buffers of one exchange.
#[derive(Default)]
pub struct ExchangeBuffers {
    request: DirectionBuffers,
    response: DirectionBuffers,
    /// The size of a header that waits, or has begun to arrive over HTTP/1.1.
    header: AtomicUsize,
    /// Whether what arrives over HTTP/1.1 is a header.
    awaits_header: AtomicBool,
    revoked: AtomicBool,
    registration: OnceLock<Registration>,
}

/// The buffers of one direction.
#[derive(Default)]
struct DirectionBuffers {
    /// The stream in whose window a body waits over HTTP/2.
    unread: Mutex<Option<FlowControl>>,
    /// Whether hyper may hold bytes over HTTP/1.1 that are not read.
    is_unread_by_http1: AtomicBool,
    unsent: Arc<UnsentBytes>,
    /// Whether hyper may hold bytes over HTTP/1.1 that are not written.
    is_unsent_by_http1: AtomicBool,
    /// The task that gives the exchange up: that of the request or, beyond its end, that of an upload.
    task: AtomicWaker,
}

/// The bytes of one body that HTTP/2 is to send.
#[derive(Debug, Default)]
pub(super) struct UnsentBytes {
    count: AtomicUsize,
    /// The task that waits until there are none.
    task: AtomicWaker,
}

impl UnsentBytes {
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Completes when all are written, or their stream is reset.
    pub(super) fn poll_written(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.task.register(cx.waker());
        if self.count() == 0 { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl DirectionBuffers {
    fn held(&self) -> usize {
        let by_http1 = |is_held: &AtomicBool, bytes| if is_held.load(Ordering::Relaxed) { bytes } else { 0 };
        lock(&self.unread).as_ref().map_or(0, FlowControl::used_capacity)
            + self.unsent.count()
            + by_http1(&self.is_unread_by_http1, HTTP1_READ_BUFFER)
            + by_http1(&self.is_unsent_by_http1, HTTP1_WRITE_BUFFER)
    }
}

impl ExchangeBuffers {
    fn of(&self, direction: Direction) -> &DirectionBuffers {
        match direction {
            Direction::Request => &self.request,
            Direction::Response => &self.response,
        }
    }

    /// Counts them for this owner from now on.
    pub fn register(self: &Arc<Self>, ledger: &ByteLedger, owner: Owner) {
        let mut owner = Some(owner);
        let registration = self.registration.get_or_init(|| {
            // Taken, since this is the first registration.
            ledger.register(owner.take().unwrap_or(Owner::Gateway), self)
        });
        if let Some(owner) = owner {
            registration.set_owner(owner);
        }
    }

    /// Counts them for another owner from now on, if they count.
    pub fn set_owner(&self, owner: impl FnOnce() -> Owner) {
        if let Some(registration) = self.registration.get() {
            registration.set_owner(owner());
        }
    }

    /// Counts a header of this size until the next call.
    pub fn set_header(&self, size: usize) {
        self.header.store(size, Ordering::Relaxed);
    }

    /// Counts what arrives over HTTP/1.1 from now on as a header, or no longer.
    pub fn await_header(&self, awaits: bool) {
        self.set_header(0);
        self.awaits_header.store(awaits, Ordering::Relaxed);
    }

    /// These bytes have arrived over HTTP/1.1.
    pub(super) fn note_arrived(&self, bytes: usize) {
        if self.awaits_header.load(Ordering::Relaxed) {
            let known = self.header.load(Ordering::Relaxed);
            self.set_header(known.saturating_add(bytes).min(MAX_HEADER_BYTES));
        }
    }

    /// Counts what a stream has received and nothing has read, until [`Self::forget`].
    pub(super) fn receive(&self, direction: Direction, stream: FlowControl) {
        let before = lock(&self.of(direction).unread).replace(stream);
        // A handle to a stream, outside the lock.
        drop(before);
    }

    /// Nothing of a body will be read any more: its stream must not be kept open.
    pub(super) fn forget(&self, direction: Direction) {
        self.note_unread_by_http1(direction, false);
        let before = lock(&self.of(direction).unread).take();
        drop(before);
    }

    /// Records whether hyper may hold bytes that are not read.
    pub(super) fn note_unread_by_http1(&self, direction: Direction, may_hold: bool) {
        self.of(direction).is_unread_by_http1.store(may_hold, Ordering::Relaxed);
    }

    /// The bytes of a direction that are to be sent.
    pub(super) fn unsent(&self, direction: Direction) -> &Arc<UnsentBytes> {
        &self.of(direction).unsent
    }

    /// Records whether hyper may hold bytes that are not written.
    pub(crate) fn note_unsent_by_http1(&self, direction: Direction, may_hold: bool) {
        self.of(direction).is_unsent_by_http1.store(may_hold, Ordering::Relaxed);
    }

    /// Completes when the exchange is to be given up, because its owner holds more memory than any other. One task may wait
    /// for each direction.
    pub fn poll_revoked(&self, direction: Direction, cx: &mut Context<'_>) -> Poll<()> {
        self.of(direction).task.register(cx.waker());
        if self.revoked.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The same, for the task of the exchange.
    pub fn revoked(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        let buffers = Arc::clone(self);
        poll_fn(move |cx| buffers.poll_revoked(Direction::Response, cx))
    }
}

impl Holder for ExchangeBuffers {
    fn held(&self) -> usize {
        self.request.held() + self.response.held() + self.header.load(Ordering::Relaxed)
    }

    fn give_way(&self) -> bool {
        let is_new = !self.revoked.swap(true, Ordering::AcqRel);
        self.request.task.wake();
        self.response.task.wake();
        is_new
    }
}

impl fmt::Debug for DirectionBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectionBuffers").field("unsent", &self.unsent).finish_non_exhaustive()
    }
}

impl fmt::Debug for ExchangeBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExchangeBuffers").field("registration", &self.registration).finish_non_exhaustive()
    }
}

/// Bytes that HTTP/2 is to send. They count until it drops them: when they are written, or their stream is reset.
#[derive(Debug)]
pub struct SentBytes {
    bytes: Bytes,
    counted: Option<(usize, Arc<UnsentBytes>)>,
}

impl SentBytes {
    /// Bytes that count here.
    pub(super) fn counted(bytes: Bytes, unsent: &Arc<UnsentBytes>) -> Self {
        unsent.count.fetch_add(bytes.len(), Ordering::Relaxed);
        let counted = Some((bytes.len(), Arc::clone(unsent)));
        Self { bytes, counted }
    }

    /// Bytes that count for nothing but their connection.
    pub(super) fn uncounted(bytes: Bytes) -> Self {
        Self { bytes, counted: None }
    }
}

impl Buf for SentBytes {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

impl Drop for SentBytes {
    fn drop(&mut self) {
        let Some((length, unsent)) = &self.counted else { return };
        if unsent.count.fetch_sub(*length, Ordering::Relaxed) == *length {
            unsent.task.wake();
        }
    }
}
