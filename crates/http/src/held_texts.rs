//! Bodies that are held as a whole: of a request under review and of the responses to its rehearsals, and documents of API servers.
//! They count among the bytes in buffers as they arrive, for their owner; beyond the limit of all, the owner with the most gives way.
//! So a body that is sent slowly, or not at all, takes nothing from other owners.
// threat: buffered-bytes-flood, review-memory

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use http_body::Body as HttpBody;
use http_body_util::BodyExt as _;
use portcullis_limits::Owner;
use portcullis_limits::byte_ledger::{ByteLedger, Holder, Registration};
use tokio::sync::Notify;

/// The texts of one request, counted until this is dropped, and given up together.
#[derive(Debug)]
pub struct HeldTexts {
    count: Arc<TextCount>,
    _registration: Registration,
}

#[derive(Debug, Default)]
struct TextCount {
    bytes: AtomicUsize,
    is_revoked: AtomicBool,
    revoked: Notify,
}

impl Holder for TextCount {
    fn held(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn give_way(&self) -> bool {
        let is_new = !self.is_revoked.swap(true, Ordering::AcqRel);
        self.revoked.notify_waiters();
        is_new
    }
}

impl HeldTexts {
    /// Nothing yet.
    pub fn new(ledger: &ByteLedger, owner: Owner) -> Self {
        let count = Arc::default();
        let registration = ledger.register(owner, &count);
        Self { count, _registration: registration }
    }

    /// Reads a body.
    pub fn reader<B>(&self, body: B) -> TextReader<B> {
        let held = HeldText { count: Arc::clone(&self.count), bytes: 0 };
        TextReader { body, read: BytesMut::new(), whole: None, held }
    }

    /// Completes when the request is to be given up, because its owner holds more memory than any other.
    pub async fn revoked(&self) {
        let notified = self.count.revoked.notified();
        // Begun before the look, so that no notification is missed.
        if !self.count.is_revoked.load(Ordering::Acquire) {
            notified.await;
        }
    }
}

/// A text that counts until this is dropped.
#[derive(Debug)]
pub struct HeldText {
    count: Arc<TextCount>,
    bytes: usize,
}

impl HeldText {
    fn set(&mut self, bytes: usize) {
        self.count.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.count.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for HeldText {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Reads a body, and counts what is there of it.
#[derive(Debug)]
pub struct TextReader<B> {
    body: B,
    read: BytesMut,
    /// The whole body, if it has come in one piece.
    whole: Option<Bytes>,
    held: HeldText,
}

/// Why a body is not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError<E> {
    /// It has more bytes than are read.
    #[error("length limit exceeded")]
    TooLarge,
    /// It ended with an error.
    #[error("{0}")]
    Body(E),
}

impl<B: HttpBody<Data = Bytes> + Unpin> TextReader<B> {
    /// Whether the body is known to have more bytes.
    pub fn is_larger_than(&self, limit: usize) -> bool {
        u64::try_from(limit).is_ok_and(|limit| self.body.size_hint().lower() > limit)
    }

    /// Reads on, until the end or until more than `limit` bytes are there. Whether it is the end. Nothing is lost if the future is
    /// dropped.
    pub async fn read_to(&mut self, limit: usize) -> Result<bool, B::Error> {
        while self.read.len() <= limit && self.whole.is_none() {
            let Some(frame) = self.body.frame().await.transpose()? else { return Ok(true) };
            // The rest is trailers.
            let Ok(data) = frame.into_data() else { continue };
            if self.read.is_empty() && self.body.is_end_stream() {
                self.held.set(data.len());
                self.whole = Some(data);
            } else {
                // Copied: a short piece may keep a long buffer.
                self.read.extend_from_slice(&data);
                self.held.set(self.read.capacity());
            }
        }
        Ok(self.whole.as_ref().is_some_and(|whole| whole.len() <= limit))
    }

    /// Reads the whole body, which must not be larger.
    pub async fn read_all(mut self, limit: usize) -> Result<(Bytes, HeldText), ReadError<B::Error>> {
        let is_larger = self.is_larger_than(limit) || !self.read_to(limit).await.map_err(ReadError::Body)?;
        if is_larger { Err(ReadError::TooLarge) } else { Ok(self.finish()) }
    }

    /// What has been read.
    pub fn finish(self) -> (Bytes, HeldText) {
        (self.whole.unwrap_or_else(|| self.read.freeze()), self.held)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::body::Body;

    fn owner(name: &str) -> Owner {
        Owner::flow("prod", name)
    }

    #[tokio::test]
    async fn a_text_counts_until_it_is_dropped_and_the_largest_gives_way() {
        let ledger = ByteLedger::new(1000);
        let (large, small) = (HeldTexts::new(&ledger, owner("a")), HeldTexts::new(&ledger, owner("b")));
        let read = large.reader(Body::bytes(vec![0; 900])).read_all(900).await.unwrap();
        let _small = small.reader(Body::bytes(vec![0; 50])).read_all(900).await.unwrap();
        assert_eq!((read.0.len(), ledger.held()[&owner("a")]), (900, 900));
        assert_eq!(ledger.sample().held, 950);
        let more = large.reader(Body::bytes(vec![0; 200])).read_all(900).await.unwrap();
        assert_eq!(ledger.sample().gave_way.into_keys().collect::<Vec<_>>(), [owner("a")]);
        assert!(large.revoked().now_or_never().is_some() && small.revoked().now_or_never().is_none());
        drop((read, more));
        assert_eq!(ledger.held()[&owner("a")], 0);
    }

    #[tokio::test]
    async fn no_more_is_read_than_the_limit() {
        let texts = HeldTexts::new(&ByteLedger::new(1000), owner("a"));
        let all = texts.reader(Body::bytes("abc")).read_all(2).await;
        assert!(matches!(all, Err(ReadError::TooLarge)));
        for body in [Body::empty(), Body::bytes("ab")] {
            assert!(texts.reader(body).read_all(2).await.is_ok());
        }
        let mut reader = texts.reader(Body::bytes("abc"));
        assert_eq!((reader.is_larger_than(2), reader.read_to(3).await.unwrap()), (true, true));
        assert_eq!(reader.finish().0, "abc");
    }
}
