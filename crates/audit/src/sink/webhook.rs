//! The webhook: sends lists of events, several at a time, and again when that fails.
// apiserver: plugin/pkg/audit/webhook/webhook.go, pkg/util/webhook/webhook.go

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::lines::Chunk;
use super::observer::DropCause;
use super::queue::{Batch, Queue};
use super::throttle::TokenBucket;
use crate::event::EncodedEvent;

/// How many lists are sent at a time. Upstream has no limit; with a webhook that hangs, this one is reached, and further events wait
/// in the buffer. Each list has events of all owners, in turns: the sends need no share for each of them.
const MAX_SENDS: usize = 64;
/// The time of one attempt.
// apiserver: pkg/util/webhook/webhook.go, defaultRequestTimeout
const POST_TIMEOUT: Duration = Duration::from_secs(30);
// apiserver: pkg/util/webhook/webhook.go, DefaultRetryBackoffWithInitialDelay
const MAX_ATTEMPTS: u32 = 5;
const BACKOFF_FACTOR: f64 = 1.5;
const BACKOFF_JITTER: f64 = 0.2;

/// Posts to a webhook: the connection, and the credential for it.
pub trait Post: Send + Sync + 'static {
    /// Posts a list of events once. The caller limits the time.
    fn post(&self, body: Bytes) -> BoxFuture<'_, Result<(), PostError>>;
}

/// Why a list was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct PostError {
    /// The text, for the log: without secrets.
    pub text: String,
    /// Whether it is worth another attempt. kube-apiserver thinks so of every error.
    pub is_retryable: bool,
}

/// A webhook and its buffer.
pub(super) struct Webhook {
    pub(super) queue: Arc<Queue>,
    connection: Mutex<Connection>,
}

#[derive(Clone)]
struct Connection {
    post: Arc<dyn Post>,
    initial_backoff: Duration,
}

impl Webhook {
    pub(super) fn new(queue: Queue, post: Arc<dyn Post>, initial_backoff: Duration) -> Self {
        Self { queue: Arc::new(queue), connection: Mutex::new(Connection { post, initial_backoff }) }
    }

    /// Uses another connection for all further attempts.
    pub(super) fn set_connection(&self, post: Arc<dyn Post>, initial_backoff: Duration) {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        *connection = Connection { post, initial_backoff };
    }

    fn connection(&self) -> Connection {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends what is in the queue. Ends once that is closed and empty and `ends` agrees.
    pub(super) async fn run(self: Arc<Self>, ends: impl Fn() -> bool) {
        let sends = Arc::new(Semaphore::new(MAX_SENDS));
        let mut bucket = TokenBucket::default();
        loop {
            let Some(batch) = self.queue.collect().await else {
                if ends() {
                    return;
                }
                continue;
            };
            bucket.take(self.queue.options().batch.throttle).await;
            // The semaphore is never closed.
            let Ok(permit) = Arc::clone(&sends).acquire_owned().await else { return };
            let webhook = Arc::clone(&self);
            tokio::spawn(async move {
                webhook.store(batch).await;
                drop(permit);
            });
        }
    }

    async fn store(&self, mut batch: Batch) {
        let mut unsent = Unsent { webhook: self, clusters: batch.clusters(), error: None };
        let body = EncodedEvent::list(batch.chunks.iter().flat_map(Chunk::lines));
        let reports = batch.release();
        let sent = self.send(body).await;
        let is_sent = sent.is_ok();
        match sent {
            Ok(()) => unsent.clusters.clear(),
            Err(error) => unsent.error = Some(error),
        }
        drop(unsent);
        for reports in reports {
            reports.report_all(is_sent);
        }
    }

    /// Sends a list, several times if it must be.
    // apimachinery: pkg/util/wait/backoff.go, ExponentialBackoffWithContext
    async fn send(&self, body: Bytes) -> Result<(), PostError> {
        let mut backoff = self.connection().initial_backoff;
        for attempt in 1.. {
            let connection = self.connection();
            let late =
                || PostError { text: format!("no answer within {POST_TIMEOUT:?}"), is_retryable: true };
            let posted = timeout(POST_TIMEOUT, connection.post.post(body.clone())).await;
            match posted.unwrap_or_else(|_| Err(late())) {
                Err(error) if error.is_retryable && attempt < MAX_ATTEMPTS => {
                    tracing::debug!(%error, attempt, "audit events are sent again later");
                }
                result => return result,
            }
            sleep(times(backoff, 1.0 + BACKOFF_JITTER * fastrand::f64())).await;
            backoff = times(backoff, BACKOFF_FACTOR);
        }
        Ok(())
    }
}

fn times(duration: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(duration.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

/// Counts a batch as lost unless it was sent, also after a panic.
struct Unsent<'a> {
    webhook: &'a Webhook,
    /// Its events, by cluster.
    clusters: BTreeMap<Arc<str>, u64>,
    error: Option<PostError>,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        let losses = self.webhook.queue.losses();
        let lost = self.clusters.iter().map(|(cluster, events)| (cluster, *events));
        match &self.error {
            Some(error) => losses.add(DropCause::Failed, lost, error),
            None => losses.add(DropCause::Failed, lost, &"sending was interrupted"),
        }
    }
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook").field("queue", &self.queue).finish_non_exhaustive()
    }
}
