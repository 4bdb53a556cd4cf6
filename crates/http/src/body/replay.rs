//! Keeps the bytes of a request body that have been sent, so that a write which the backend has not processed can be sent
//! again. kube-apiserver refuses requests in this way with `--goaway-chance`, and when it shuts down; Go's own clients
//! then send the body again.
//!
//! Bodies stream as before: this module never waits for a body. It keeps nothing of long bodies, nor beyond the budget of
//! a worker thread; such a request is not sent again.
// RFC 9113, section 8.7; Go: net/http/h2_bundle.go, http2shouldRetryRequest
// threat: retained-bodies

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use portcullis_limits::budget::{BudgetPermit, BudgetShares};
use portcullis_system::sync::lock;

use super::{Body, BodyKind};
use crate::transport::{BodyError, ExchangeBuffers};

/// The longest body that is kept. Objects in etcd have at most 1.5 MiB, and almost all have less than this.
const MAX_BODY_BYTES: usize = 256 << 10;
/// Shorter chunks are copied: a chunk keeps the whole buffer alive into which it was received.
const MIN_SHARED_BYTES: usize = 4096;
/// What a chunk counts beside its bytes.
const CHUNK_OVERHEAD: usize = 64;
/// The bytes of all bodies that a worker thread keeps until their responses begin.
const MAX_TOTAL_BYTES: usize = 32 << 20;

/// The shares of [`MAX_TOTAL_BYTES`]: bodies that do not come, of one client or of one tenant's, cost no other client a retry.
pub const REPLAY_SHARES: BudgetShares = BudgetShares::new(MAX_TOTAL_BYTES)
    .with_tenants(MAX_TOTAL_BYTES / 8, MAX_TOTAL_BYTES / 2)
    .with_flows(MAX_TOTAL_BYTES / 4)
    .with_networks(MAX_TOTAL_BYTES / 16, MAX_TOTAL_BYTES / 8);

/// A body that can be sent several times. While it lives, the bytes that were sent are kept.
pub struct Replay(Arc<Mutex<Kept>>);

/// Without the bytes, which may be secret.
impl std::fmt::Debug for Replay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Replay")
    }
}

/// The body for one attempt.
pub(super) struct ReplayedBody {
    shared: Arc<Mutex<Kept>>,
    attempt: usize,
    /// The next of the kept chunks.
    next: usize,
    sent: u64,
}

struct Kept {
    chunks: Vec<Bytes>,
    bytes: usize,
    /// Whether bytes were sent that are not kept.
    is_incomplete: bool,
    rest: Body,
    /// The size of the whole body.
    size: SizeHint,
    /// The number of the attempt in progress: the body of an earlier one may live a little longer.
    attempt: usize,
    memory: BudgetPermit,
}

impl Replay {
    /// Keeps `body` as far as the share of its owner allows, of which `memory` holds nothing yet.
    pub fn new(body: Body, memory: BudgetPermit) -> Self {
        Self(Arc::new(Mutex::new(Kept::of(body, memory))))
    }

    /// The body for the next attempt, from its beginning; `None` if that is no longer known. Breaks the body of the attempt
    /// before off.
    pub fn body(&self) -> Option<Body> {
        let mut kept = lock(&self.0);
        if kept.is_incomplete {
            return None;
        }
        kept.attempt += 1;
        let body = ReplayedBody { shared: Arc::clone(&self.0), attempt: kept.attempt, next: 0, sent: 0 };
        Some(Body::new(BodyKind::Replayed(Box::new(body))))
    }
}

impl Kept {
    fn of(body: Body, memory: BudgetPermit) -> Self {
        Self {
            chunks: Vec::new(),
            bytes: 0,
            is_incomplete: false,
            size: body.size_hint(),
            rest: body,
            attempt: 0,
            memory,
        }
    }

    /// Keeps a chunk that is sent now, unless it is too much or no further attempt can follow.
    fn keep(&mut self, data: &Bytes, is_wanted: bool) {
        let cost = data.len().saturating_add(CHUNK_OVERHEAD);
        let size = self.bytes.saturating_add(cost);
        if self.is_incomplete || !is_wanted || size > MAX_BODY_BYTES || !self.memory.grow(cost) {
            self.is_incomplete = true;
            self.forget();
            return;
        }
        self.bytes = size;
        let is_short = data.len() < MIN_SHARED_BYTES;
        self.chunks.push(if is_short { Bytes::copy_from_slice(data) } else { data.clone() });
    }

    fn forget(&mut self) {
        self.chunks = Vec::new();
        self.bytes = 0;
        self.memory.release();
    }
}

impl ReplayedBody {
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let is_wanted = Arc::strong_count(&self.shared) > 1;
        let mut kept = lock(&self.shared);
        if kept.attempt != self.attempt {
            // Never an end: an endpoint must not take a part of a body for the whole.
            return Poll::Ready(Some(Err(BodyError::Cut)));
        }
        let data = if let Some(data) = kept.chunks.get(self.next) {
            data.clone()
        } else {
            let frame = match Pin::new(&mut kept.rest).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(Some(Err(error))) => {
                    kept.is_incomplete = true;
                    return Poll::Ready(Some(Err(error)));
                }
                other => return other,
            };
            let data = match frame.into_data() {
                Ok(data) => data,
                Err(trailers) => {
                    // Only bodies that the gateway has read have trailers; they are not sent twice.
                    kept.is_incomplete = true;
                    return Poll::Ready(Some(Ok(trailers)));
                }
            };
            kept.keep(&data, is_wanted);
            data
        };
        self.next = self.next.saturating_add(1).min(kept.chunks.len());
        self.sent = self.sent.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX));
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    /// Where the exchange counts, if it does.
    pub(super) fn buffers(&self) -> Option<Arc<ExchangeBuffers>> {
        lock(&self.shared).rest.buffers()
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let kept = lock(&self.shared);
        kept.attempt == self.attempt && self.next >= kept.chunks.len() && kept.rest.is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let mut left = SizeHint::new();
        let size = &lock(&self.shared).size;
        if let Some(upper) = size.upper() {
            left.set_upper(upper.saturating_sub(self.sent));
        }
        left.set_lower(size.lower().saturating_sub(self.sent));
        left
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use portcullis_limits::Owner;
    use portcullis_limits::budget::Budget;

    use super::*;

    fn body_of(length: usize) -> Body {
        Body::bytes(vec![b'x'; length])
    }

    fn budget() -> Budget {
        Budget::new(REPLAY_SHARES)
    }

    fn alice() -> Owner {
        Owner::flow("prod", "alice")
    }

    fn in_use(budget: &Budget) -> usize {
        budget.usage().total()
    }

    async fn sent(body: Option<Body>) -> Option<usize> {
        let body = body?;
        let size = body.size_hint().exact().unwrap();
        let bytes = body.collect().await.unwrap().to_bytes();
        assert_eq!(u64::try_from(bytes.len()), Ok(size));
        Some(bytes.len())
    }

    #[tokio::test]
    async fn a_body_is_sent_again_from_its_beginning() {
        let budget = budget();
        let replay = Replay::new(body_of(1000), budget.reserve(alice()));
        for _ in 0..3 {
            assert_eq!(sent(replay.body()).await, Some(1000));
        }
        assert_eq!(in_use(&budget), 1000 + CHUNK_OVERHEAD);
        // An attempt that sent nothing, and the body of one that is over.
        let mut earlier = replay.body().unwrap();
        assert_eq!(sent(replay.body()).await, Some(1000));
        assert!(!earlier.is_end_stream());
        let taken = earlier.frame().await.unwrap();
        assert!(taken.is_err(), "it takes nothing from the attempt after it, and does not look complete");
        drop((replay, earlier));
        assert_eq!(in_use(&budget), 0);
    }

    /// A client that sends its body in the smallest pieces makes the gateway keep no more than the budget.
    #[tokio::test]
    async fn small_chunks_hold_no_large_buffers() {
        let budget = budget();
        let buffer = Bytes::from(vec![b'x'; 16 << 10]);
        let mut kept = Kept::of(Body::empty(), budget.reserve(alice()));
        let mut chunks = 0;
        while !kept.is_incomplete {
            kept.keep(&buffer.slice(..1), true);
            chunks += 1;
        }
        assert_eq!(chunks, MAX_BODY_BYTES / (1 + CHUNK_OVERHEAD) + 1);
        let mut kept = Kept::of(Body::empty(), budget.reserve(alice()));
        kept.keep(&buffer.slice(..1), true);
        assert!(kept.chunks.iter().all(|chunk| chunk.as_ptr() != buffer.as_ptr()), "it is a copy");
    }

    #[tokio::test]
    async fn long_bodies_are_not_kept() {
        let budget = budget();
        let replay = Replay::new(body_of(MAX_BODY_BYTES + 1), budget.reserve(alice()));
        assert_eq!(sent(replay.body()).await, Some(MAX_BODY_BYTES + 1), "but sent");
        assert_eq!(in_use(&budget), 0);
        assert!(replay.body().is_none());
    }

    #[tokio::test]
    async fn a_client_with_many_requests_has_its_share_and_others_theirs() {
        let budget = budget();
        let replay_of = |owner| Replay::new(body_of(MAX_BODY_BYTES - CHUNK_OVERHEAD), budget.reserve(owner));
        let mut held = Vec::new();
        for _ in 0..MAX_TOTAL_BYTES / MAX_BODY_BYTES {
            let replay = replay_of(alice());
            sent(replay.body()).await.unwrap();
            held.push(replay);
        }
        assert_eq!(in_use(&budget), MAX_TOTAL_BYTES / 4);
        assert_eq!(held.iter().filter(|replay| replay.body().is_some()).count(), held.len() / 4);
        let other = replay_of(Owner::flow("prod", "bob"));
        sent(other.body()).await.unwrap();
        assert!(other.body().is_some());
        drop((held, other));
        assert_eq!(in_use(&budget), 0);
    }

    #[tokio::test]
    async fn nothing_is_kept_after_the_response_has_begun() {
        let budget = budget();
        let replay = Replay::new(body_of(1000), budget.reserve(alice()));
        let body = replay.body();
        drop(replay);
        assert_eq!(sent(body).await, Some(1000));
        assert_eq!(in_use(&budget), 0);
    }
}
