//! Reads of what the API servers of a cluster say about themselves, as the gateway: of each key one at a time, kept in a bounded
//! cache, with fair shares of the reads. A client can name any key.
//!
//! Only a read takes a place of its flow. A request that waits for the read of another one takes none, or an aggregated API server
//! that does not answer would take the places of all flows that ask for its group. And no request waits behind one that waits for
//! a place. How many wait is bounded by the requests in flight. A read that has begun goes on without the request that began it: others
//! will need it, and it keeps the place until it ends.

use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use kube::client::Body;
use lru::LruCache;
use portcullis_http::held_texts::{HeldText, HeldTexts};
use portcullis_limits::Owner;
use portcullis_limits::byte_ledger::ByteLedger;
use portcullis_limits::cache_budget::{CacheMemory, CacheShare};
use portcullis_limits::fair_limiter::{FairLimiter, Shares};
use portcullis_system::sync::lock;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use super::AdmissionPlace;
use crate::backend::kube_client;

const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How many characters of a reason are kept.
const MAX_REASON: usize = 500;
const TOO_SLOW: &str = "no response in time";
const MAX_ENTRIES: NonZeroUsize = NonZeroUsize::MIN.saturating_add(255);

/// Reads of all caches of a cluster.
// threat: silent-backend
const SHARES: Shares = Shares::new(16, 4).with_queue(1024, 128);
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads documents of the API servers of a cluster.
#[derive(Clone)]
pub(super) struct DocumentReader {
    client: kube::Client,
    runtime: Handle,
    shares: FairLimiter<Arc<str>>,
    /// The ledger in which the texts count, and their owner.
    ledger: ByteLedger,
    owner: Owner,
}

/// A document as it is, which counts until this is dropped.
pub(super) struct DocumentText {
    pub(super) text: Bytes,
    held: HeldTexts,
    _count: HeldText,
}

impl DocumentText {
    /// Completes when the cluster is to give up what it holds.
    pub(super) async fn revoked(&self) {
        self.held.revoked().await;
    }
}

/// What was read, by key.
pub(super) struct CachedReads<K, V> {
    reader: DocumentReader,
    entries: Arc<Entries<K, V>>,
}

struct Entries<K, V> {
    by_key: Mutex<LruCache<K, Arc<CacheEntry<V>>>>,
    /// What may be kept, if it is many bytes.
    bound: Option<Bound<V>>,
}

struct Bound<V> {
    bytes: usize,
    /// What a value takes of it.
    size: SizeOf<V>,
    /// The part of the cluster's share.
    memory: Mutex<CacheMemory>,
}

/// What a value takes, in bytes.
type SizeOf<V> = fn(&V) -> usize;

/// Requests that need it at once share one read.
#[derive(Debug)]
struct CacheEntry<V> {
    known: Mutex<Option<V>>,
    is_reading: AtomicBool,
    /// Wakes those that wait for the end of a read.
    ended: Notify,
}

/// The read of an entry in progress.
struct ReadInProgress<V>(Arc<CacheEntry<V>>);

/// Why there is no document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReadError {
    /// The gateway has too many reads in progress.
    #[error("too many documents of the API servers are being read")]
    Busy,
    /// It cannot be read, for this reason.
    #[error("a document of the API servers cannot be used: {0}")]
    Unreadable(String),
}

impl ReadError {
    /// With the reason as far as it is kept: it may quote the document.
    // threat: published-schemas
    pub(super) fn unreadable(reason: &dyn fmt::Display) -> Self {
        Self::Unreadable(cut(reason))
    }
}

impl From<String> for ReadError {
    fn from(reason: String) -> Self {
        Self::unreadable(&reason)
    }
}

/// The beginning of a reason.
pub(super) fn cut(reason: &dyn fmt::Display) -> String {
    reason.to_string().chars().take(MAX_REASON).collect()
}

impl DocumentReader {
    pub(super) fn new(place: &AdmissionPlace<'_>) -> Self {
        let client = {
            let _runtime = place.runtime.enter();
            kube_client::client(place.backend)
        };
        Self {
            client,
            runtime: place.runtime.clone(),
            shares: FairLimiter::new(SHARES),
            ledger: place.ledger.clone(),
            owner: place.owner.of_gateway(),
        }
    }

    /// Reads by this client on the runtime of a test.
    #[cfg(test)]
    pub(super) fn of_test(client: kube::Client) -> Self {
        let (ledger, owner) = (ByteLedger::new(usize::MAX), Owner::Gateway);
        Self { client, runtime: Handle::current(), shares: FairLimiter::new(SHARES), ledger, owner }
    }

    /// A document in JSON of at most `max_bytes`; `None` if there is none.
    pub(super) async fn read<T: DeserializeOwned>(
        &self,
        path: &str,
        max_bytes: usize,
    ) -> Result<Option<T>, ReadError> {
        let Some(document) = self.read_text(path, max_bytes).await? else { return Ok(None) };
        let read = serde_json::from_slice(&document.text).map(Some);
        read.map_err(|error| ReadError::unreadable(&error))
    }

    /// A document as it is. The API server of a tenant chooses how much it sends, and how slowly.
    // threat: published-schemas, buffered-bytes-flood
    pub(super) async fn read_text(
        &self,
        path: &str,
        max_bytes: usize,
    ) -> Result<Option<DocumentText>, ReadError> {
        let texts = HeldTexts::new(&self.ledger, self.owner.clone());
        let reading = timeout(READ_TIMEOUT, self.response_text(path, &texts, max_bytes));
        let read = tokio::select! {
            read = reading => read.map_err(|_| TOO_SLOW.to_owned())??,
            () = texts.revoked() => return Err(ReadError::Busy),
        };
        Ok(read.map(|(text, count)| DocumentText { text, held: texts, _count: count }))
    }

    async fn response_text(
        &self,
        path: &str,
        texts: &HeldTexts,
        max_bytes: usize,
    ) -> Result<Option<(Bytes, HeldText)>, String> {
        let request = http::Request::get(path).header(http::header::ACCEPT, "application/json");
        let request = request.body(Body::empty()).map_err(|error| error.to_string())?;
        let response = self.client.send(request).await.map_err(|error| error.to_string())?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Ok(None),
            status => return Err(format!("status {}", status.as_u16())),
        }
        let read = texts.reader(response.into_body()).read_all(max_bytes).await;
        read.map(Some).map_err(|error| error.to_string())
    }
}

impl<K: Hash + Eq + Send + 'static, V: Clone + Send + 'static> CachedReads<K, V> {
    pub(super) fn new(reader: &DocumentReader) -> Self {
        Self::bounded(reader, None)
    }

    /// Keeps no more than so many bytes, but for the value that was read last, and no more than the share allows.
    pub(super) fn within(
        reader: &DocumentReader,
        (bytes, size): (usize, SizeOf<V>),
        share: &CacheShare,
    ) -> Self {
        let memory = Mutex::new(share.memory());
        Self::bounded(reader, Some(Bound { bytes, size, memory }))
    }

    fn bounded(reader: &DocumentReader, bound: Option<Bound<V>>) -> Self {
        let by_key = Mutex::new(LruCache::new(MAX_ENTRIES));
        Self { reader: reader.clone(), entries: Arc::new(Entries { by_key, bound }) }
    }

    /// What is known of a key, if it is fresh for a request that comes now, or else what `read` reads. A read that others have begun
    /// counts from its begin, however long it lasts.
    pub(super) async fn get<F>(
        &self,
        flow: &str,
        key: K,
        is_fresh: impl Fn(&V, Instant) -> bool,
        read: impl FnOnce(DocumentReader) -> F + Send + 'static,
    ) -> Result<V, ReadError>
    where
        F: Future<Output = Result<V, ReadError>> + Send + 'static,
    {
        let entry = Arc::clone(lock(&self.entries.by_key).get_or_insert(key, Arc::default));
        let now = Instant::now();
        let until = now + QUEUE_TIMEOUT;
        let shares = &self.reader.shares;
        let known = || lock(&entry.known).as_ref().filter(|known| is_fresh(known, now)).cloned();
        let (permit, reading) = loop {
            let mut ended = pin!(entry.ended.notified());
            // Before the look at the entry, so that no end is missed.
            ended.as_mut().enable();
            if let Some(known) = known() {
                return Ok(known);
            }
            let permit = shares.acquire(flow.into(), 1, until).await.map_err(|_| ReadError::Busy)?;
            if let Some(reading) = ReadInProgress::begin(&entry) {
                break (permit, reading);
            }
            drop(permit);
            timeout_at(until, ended).await.map_err(|_| ReadError::Unreadable(TOO_SLOW.to_owned()))?;
        };
        // A read may have ended between the two.
        if let Some(known) = known() {
            return Ok(known);
        }
        let (reader, entries) = (self.reader.clone(), Arc::clone(&self.entries));
        let reading = self.reader.runtime.spawn(async move {
            let (_permit, ReadInProgress(entry)) = (permit, &reading);
            let value = read(reader).await?;
            *lock(&entry.known) = Some(value.clone());
            entries.forget_beyond_bound();
            Ok(value)
        });
        reading.await.unwrap_or_else(|_| Err("the read was cancelled".to_owned().into()))
    }
}

impl<K: Hash + Eq, V> Entries<K, V> {
    /// Forgets what was not used for longest.
    fn forget_beyond_bound(&self) {
        let Some(Bound { bytes, size, memory }) = &self.bound else { return };
        let mut entries = lock(&self.by_key);
        let size = |entry: &CacheEntry<V>| lock(&entry.known).as_ref().map_or(0, size);
        let mut kept: usize = entries.iter().map(|(_, entry)| size(entry)).sum();
        while kept > *bytes && entries.len() > 1 {
            kept -= entries.pop_lru().map_or(0, |(_, entry)| size(&entry));
        }
        // threat: tenant-caches
        let mut memory = lock(memory);
        while !memory.set(kept) {
            let Some((_, entry)) = entries.pop_lru() else { break };
            kept -= size(&entry);
        }
    }
}

impl<V> Default for CacheEntry<V> {
    fn default() -> Self {
        Self { known: Mutex::new(None), is_reading: AtomicBool::new(false), ended: Notify::new() }
    }
}

impl<V> ReadInProgress<V> {
    /// Begins a read, unless there is one.
    fn begin(entry: &Arc<CacheEntry<V>>) -> Option<Self> {
        let was_reading = entry.is_reading.swap(true, Ordering::AcqRel);
        (!was_reading).then(|| Self(Arc::clone(entry)))
    }
}

impl<V> Drop for ReadInProgress<V> {
    fn drop(&mut self) {
        self.0.is_reading.store(false, Ordering::Release);
        self.0.ended.notify_waiters();
    }
}

impl fmt::Debug for DocumentReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DocumentReader").finish_non_exhaustive()
    }
}

impl<K, V> fmt::Debug for CachedReads<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedReads").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;
    use std::sync::atomic::AtomicUsize;

    use futures_util::future::join_all;
    use portcullis_limits::ClusterOwner;
    use portcullis_limits::cache_budget::CacheBudget;

    use super::*;

    const SLOW: Duration = Duration::from_secs(3);

    /// What is read is when it was read.
    type Reads = CachedReads<&'static str, Instant>;

    fn reads() -> Arc<Reads> {
        let unused =
            tower::service_fn(|_: http::Request<Body>| pending::<Result<http::Response<Body>, Infallible>>());
        let client = kube::Client::new(unused, "default");
        Arc::new(CachedReads::new(&DocumentReader::of_test(client)))
    }

    /// Asks for a key, whose read takes this long. What was read more than a second before counts no more.
    async fn ask(
        reads: &Reads,
        flow: &str,
        key: &'static str,
        takes: Duration,
    ) -> Result<Instant, ReadError> {
        let is_fresh =
            |read: &Instant, then: Instant| then.saturating_duration_since(*read) < Duration::from_secs(1);
        let read = move |_| async move {
            let read = Instant::now();
            tokio::time::sleep(takes).await;
            Ok(read)
        };
        reads.get(flow, key, is_fresh, read).await
    }

    fn spawn(
        reads: &Arc<Reads>,
        flow: impl Into<String>,
        key: &'static str,
    ) -> tokio::task::JoinHandle<Result<Instant, ReadError>> {
        let (reads, flow) = (Arc::clone(reads), flow.into());
        tokio::spawn(async move { ask(&reads, &flow, key, Duration::MAX).await })
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_wait_for_the_read_of_another_take_no_places() {
        let reads = reads();
        let hanging: Vec<_> = (0..64).map(|flow: u8| spawn(&reads, flow.to_string(), "hanging")).collect();
        tokio::task::yield_now().await;
        let before = Instant::now();
        assert!(ask(&reads, "0", "good", Duration::ZERO).await.is_ok());
        assert!(ask(&reads, "other", "also good", Duration::ZERO).await.is_ok());
        assert!(before.elapsed() < SLOW);
        for waited in join_all(hanging.into_iter().skip(1)).await {
            assert_eq!(waited.unwrap(), Err(ReadError::Unreadable(TOO_SLOW.to_owned())));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_fails_is_followed_by_one_at_once_and_one_that_is_given_up_goes_on() {
        for is_given_up in [false, true] {
            let (reads, begun) = (reads(), Arc::<AtomicUsize>::default());
            let ask = |number: usize| {
                let (reads, begun) = (Arc::clone(&reads), Arc::clone(&begun));
                let read = move |_| async move {
                    if begun.fetch_add(1, Ordering::SeqCst) > 0 {
                        return Ok(Instant::now());
                    }
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    if is_given_up { Ok(Instant::now()) } else { Err("failed".to_owned().into()) }
                };
                let fresh = |_: &Instant, _| true;
                tokio::spawn(async move { reads.get(&number.to_string(), "key", fresh, read).await })
            };
            let first = ask(0);
            tokio::task::yield_now().await;
            let waiting: Vec<_> = (1..20).map(ask).collect();
            tokio::task::yield_now().await;
            if is_given_up {
                first.abort();
            }
            let before = Instant::now();
            assert!(join_all(waiting).await.into_iter().all(|waited| waited.unwrap().is_ok()));
            assert!(before.elapsed() < SLOW);
            assert_eq!(begun.load(Ordering::SeqCst), if is_given_up { 1 } else { 2 });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_used_for_longest_is_forgotten() {
        let keeping = |bytes| Reads::within(&reads().reader, (bytes, |_| 1), &CacheShare::UNBOUNDED);
        let reads = keeping(2);
        for key in ["a", "b", "a", "c"] {
            ask(&reads, "flow", key, Duration::ZERO).await.unwrap();
        }
        let keys: Vec<_> = lock(&reads.entries.by_key).iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, ["c", "a"]);
        let reads = keeping(0);
        ask(&reads, "flow", "large", Duration::ZERO).await.unwrap();
        assert_eq!(lock(&reads.entries.by_key).len(), 1, "that of the request itself");
        // A tenant's share holds two of its four values of one byte.
        let budget = CacheBudget::new();
        budget.set_bytes_of_tenants(2, 2, 1);
        let share = budget.of(&ClusterOwner::tenant("t"));
        let reads = Reads::within(&reads.reader, (4, |_| 1), &share);
        for key in ["a", "b", "c", "d"] {
            ask(&reads, "flow", key, Duration::ZERO).await.unwrap();
        }
        let keys: Vec<_> = lock(&reads.entries.by_key).iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, ["d", "c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_waits_behind_one_that_waits_for_a_place() {
        let reads = reads();
        let _hanging = ["a", "b", "c", "d"].map(|key| spawn(&reads, "greedy", key));
        tokio::task::yield_now().await;
        let waiting = spawn(&reads, "greedy", "good");
        tokio::task::yield_now().await;
        let before = Instant::now();
        assert!(ask(&reads, "other", "good", Duration::ZERO).await.is_ok());
        assert!(before.elapsed() < SLOW);
        assert!(!waiting.is_finished(), "its flow has no place left");
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_lasts_counts_for_all_that_came_soon_after_its_begin() {
        let reads = reads();
        let begun = Instant::now();
        let late = async {
            tokio::time::sleep(SLOW / 2).await;
            ask(&reads, "late", "slow", SLOW).await
        };
        let ask = |flow| ask(&reads, flow, "slow", SLOW);
        let (first, second, late) = tokio::join!(ask("first"), ask("second"), late);
        assert_eq!((first, second), (Ok(begun), Ok(begun)));
        assert_eq!(late, Ok(begun + SLOW), "for it, the first read is too old");
    }
}
