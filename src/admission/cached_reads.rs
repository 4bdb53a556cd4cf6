//! Reads of what the API servers of a cluster say about themselves, as the gateway: of each key one at a time, kept in a bounded
//! cache, with fair shares of the reads. A client can name any key.

use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use lru::LruCache;
use portcullis_limits::fair_limiter::{FairLimiter, Shares};
use portcullis_system::sync::lock;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::AdmissionPlace;
use crate::backend::kube_client;

const READ_TIMEOUT: Duration = Duration::from_secs(10);
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
}

/// What was read, by key.
pub(super) struct CachedReads<K, V> {
    reader: DocumentReader,
    entries: Mutex<LruCache<K, Arc<CacheEntry<V>>>>,
}

/// Requests that need it at once share one read.
#[derive(Debug)]
struct CacheEntry<V> {
    known: Mutex<Option<V>>,
    reading: tokio::sync::Mutex<()>,
}

/// Why there is no document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReadError {
    /// The gateway has too many reads in progress.
    Busy,
    /// It cannot be read, for this reason.
    Unreadable(String),
}

impl DocumentReader {
    pub(super) fn new(place: &AdmissionPlace<'_>) -> Self {
        let client = {
            let _runtime = place.runtime.enter();
            kube_client::client(place.backend)
        };
        Self { client, runtime: place.runtime.clone(), shares: FairLimiter::new(SHARES) }
    }

    /// A document in JSON of at most `max_bytes`; `None` if there is none.
    pub(super) async fn read<T: DeserializeOwned>(
        &self,
        path: &str,
        max_bytes: usize,
    ) -> Result<Option<T>, String> {
        let read = timeout(READ_TIMEOUT, self.read_text(path, max_bytes)).await;
        let Some(text) = read.map_err(|_| "no response in time".to_owned())?? else { return Ok(None) };
        serde_json::from_slice(&text).map(Some).map_err(|error| error.to_string())
    }

    async fn read_text(&self, path: &str, max_bytes: usize) -> Result<Option<Bytes>, String> {
        let request = http::Request::get(path).header(http::header::ACCEPT, "application/json");
        let request = request.body(Body::empty()).map_err(|error| error.to_string())?;
        let response = self.client.send(request).await.map_err(|error| error.to_string())?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Ok(None),
            status => return Err(format!("status {}", status.as_u16())),
        }
        let body = Limited::new(response.into_body(), max_bytes).collect().await;
        body.map(|body| Some(body.to_bytes())).map_err(|error| error.to_string())
    }
}

impl<K: Hash + Eq, V: Clone + Send + 'static> CachedReads<K, V> {
    pub(super) fn new(reader: &DocumentReader) -> Self {
        Self { reader: reader.clone(), entries: Mutex::new(LruCache::new(MAX_ENTRIES)) }
    }

    /// What is known of a key, if it is fresh, or else what `read` reads.
    pub(super) async fn get<F>(
        &self,
        flow: &str,
        key: K,
        is_fresh: impl Fn(&V) -> bool + Send + 'static,
        read: impl FnOnce(DocumentReader) -> F + Send + 'static,
    ) -> Result<V, ReadError>
    where
        F: Future<Output = Result<V, String>> + Send + 'static,
    {
        let entry = Arc::clone(lock(&self.entries).get_or_insert(key, Arc::default));
        // Without waiting for a read that others have caused.
        if let Some(known) = entry.known(&is_fresh) {
            return Ok(known);
        }
        let until = Instant::now() + QUEUE_TIMEOUT;
        let permit = self.reader.shares.acquire(flow.into(), 1, until).await.map_err(|_| ReadError::Busy)?;
        let reader = self.reader.clone();
        let reading = AbortOnDropHandle::new(self.reader.runtime.spawn(async move {
            let _permit = permit;
            let _reading = entry.reading.lock().await;
            if let Some(known) = entry.known(&is_fresh) {
                return Ok(known);
            }
            let value = read(reader).await?;
            *lock(&entry.known) = Some(value.clone());
            Ok(value)
        }));
        let value = reading.await.unwrap_or_else(|_| Err("the read was cancelled".to_owned()));
        value.map_err(ReadError::Unreadable)
    }
}

impl<V> Default for CacheEntry<V> {
    fn default() -> Self {
        Self { known: Mutex::new(None), reading: tokio::sync::Mutex::new(()) }
    }
}

impl<V: Clone> CacheEntry<V> {
    fn known(&self, is_fresh: impl Fn(&V) -> bool) -> Option<V> {
        lock(&self.known).as_ref().filter(|known| is_fresh(known)).cloned()
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
