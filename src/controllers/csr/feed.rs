//! Delivers the names of requests that need work: a list and a watch for each signer. Only names stay in memory.
//!
//! The API server selects the requests of a signer (`spec.signerName` is a field selector), so that those of other
//! signers cost nothing here. The feed parses a few fields of each object; the controller reads the object again when
//! it processes it. Follows client-go's reflector: a list, then a watch from its version; another list when that
//! version has expired.

use std::convert::Infallible;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::Stream;
use futures_util::future::join_all;
use kube::api::WatchParams;
use kube::core::Request;
use prometheus::IntGauge;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

use super::conditions::Conditions;
use super::events::{CsrEvent, watch};
use super::pages::{PATH, PagedList};
use crate::backend::response_size::is_too_large;
use crate::controllers::ControllerContext;
use crate::controllers::queue::{FlowId, WorkItem};
use crate::controllers::settings::ControllerName;

/// The duration of a watch: even a silent one ends before `WATCH_IDLE_TIMEOUT` would abort it.
const WATCH_TIMEOUT_SECONDS: u32 = 120;
/// The back-off after a failure; doubled with each further one in a row.
const INITIAL_WATCH_BACKOFF: Duration = Duration::from_millis(800);
const MAX_WATCH_BACKOFF: Duration = Duration::from_secs(30);
/// The interval between lists after the queue dropped requests.
const RELIST_INTERVAL: Duration = Duration::from_mins(10);
/// The maximum length of a name. The API has no limit for requests, but kubelets keep to the limit of other objects.
const MAX_NAME: usize = 253;
/// The maximum number of names in transit to the queue.
const CHANNEL_CAPACITY: usize = 64;

/// The key of a request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RequestKey {
    pub(super) name: Arc<str>,
    /// A hash of the requester: requesters are served round-robin, so each waits only for its own requests.
    requester: FlowId,
}

impl RequestKey {
    #[cfg(test)]
    pub(super) fn of(name: &str) -> Self {
        Self { name: name.into(), requester: 0 }
    }
}

// threat: pending-requests-flood
impl WorkItem for RequestKey {
    fn flow(&self) -> FlowId {
        self.requester
    }
}

impl std::fmt::Display for RequestKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// The parsed fields of a request.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct CsrSummary {
    metadata: SummaryMetadata,
    spec: SummarySpec,
    status: Option<SummaryStatus>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SummaryMetadata {
    name: String,
    resource_version: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SummarySpec {
    signer_name: String,
    username: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct SummaryStatus {
    certificate: Option<IgnoredAny>,
    conditions: Conditions,
}

impl CsrSummary {
    /// Whether the request has a certificate.
    pub(super) fn is_issued(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.certificate.is_some())
    }

    pub(super) fn conditions(&self) -> Conditions {
        self.status.as_ref().map(|status| status.conditions).unwrap_or_default()
    }
}

/// The requests for some signers whose summary satisfies `is_wanted`.
pub(super) struct CsrFeed<'a> {
    pub(super) context: &'a ControllerContext,
    pub(super) controller: ControllerName,
    pub(super) signers: Vec<String>,
    pub(super) is_wanted: fn(&CsrSummary) -> bool,
    /// The number of keys that the queue dropped; when it grows, the feed lists again.
    pub(super) forgotten: &'a AtomicU64,
}

impl<'a> CsrFeed<'a> {
    /// Returns a stream of the keys of all requests, then of each that changes; and the future that produces them.
    pub(super) fn start(
        self,
    ) -> (impl Stream<Item = RequestKey> + Send, impl Future<Output = Infallible> + Send + 'a) {
        let (sender, receiver) = mpsc::channel(CHANNEL_CAPACITY);
        let requesters = RandomState::new();
        let following = async move {
            let follow = self.signers.iter().map(|signer| {
                let follower = SignerFollower {
                    feed: &self,
                    signer,
                    requesters: &requesters,
                    sender: sender.clone(),
                    backoff: INITIAL_WATCH_BACKOFF,
                    listed: Instant::now(),
                    forgotten: 0,
                    has_watch_failed: false,
                    has_logged_skip: false,
                };
                follower.follow()
            });
            join_all(follow).await;
            std::future::pending().await
        };
        let keys = futures_util::stream::unfold(receiver, |mut receiver| async move {
            Some((receiver.recv().await?, receiver))
        });
        (keys, following)
    }
}

/// How a watch ended.
enum WatchEnd {
    /// A new watch can resume from the last version.
    Resumable,
    /// A new list is necessary.
    Expired,
}

/// Follows the requests for one signer.
struct SignerFollower<'a> {
    feed: &'a CsrFeed<'a>,
    signer: &'a str,
    requesters: &'a RandomState,
    sender: mpsc::Sender<RequestKey>,
    backoff: Duration,
    /// The time of the last list, and the value of `CsrFeed::forgotten` at that time.
    listed: Instant,
    forgotten: u64,
    /// Whether the last watch failed, and no event has arrived since.
    has_watch_failed: bool,
    /// Whether a skipped request was logged.
    has_logged_skip: bool,
}

impl SignerFollower<'_> {
    async fn follow(mut self) {
        loop {
            match self.list().await {
                Ok(version) => self.watch(version).await,
                Err(error) => self.failed(&error).await,
            }
        }
    }

    fn selector(&self) -> String {
        format!("spec.signerName={}", self.signer)
    }

    /// Lists the requests and sends their keys; returns the version for the watch.
    async fn list(&mut self) -> kube::Result<String> {
        let context = self.feed.context;
        (self.listed, self.forgotten) = (Instant::now(), self.feed.forgotten.load(Ordering::Relaxed));
        let mut pages = PagedList::new(Some(self.selector()));
        loop {
            // Only one page of a cluster is in memory at a time.
            let _turn = context.lists.acquire().await;
            let Some(page) = pages.next::<CsrSummary>(&context.client).await? else { break };
            for summary in page {
                self.send(&summary).await;
            }
        }
        if pages.has_skipped() {
            self.log_skip("its name is not UTF-8, or has a prefix in common with one that is not");
        }
        // After a failed watch, a successful list does not mean that the next watch will work.
        if !self.has_watch_failed {
            self.works();
        }
        Ok(pages.version().to_owned())
    }

    /// Sends the keys of changed requests, until a new list is necessary.
    async fn watch(&mut self, mut version: String) {
        loop {
            let begun = Instant::now();
            match self.watch_once(&mut version).await {
                Ok(WatchEnd::Expired) => return,
                Ok(WatchEnd::Resumable) => {
                    // A server may end each watch at once.
                    if begun.elapsed() < INITIAL_WATCH_BACKOFF {
                        sleep(INITIAL_WATCH_BACKOFF).await;
                    }
                }
                Err(error) => {
                    self.has_watch_failed = true;
                    self.failed(&error).await;
                    // A watch from the same version would deliver the same event again.
                    if is_too_large(&error) || matches!(error, kube::Error::SerdeError(_)) {
                        return;
                    }
                }
            }
        }
    }

    async fn watch_once(&mut self, version: &mut String) -> kube::Result<WatchEnd> {
        let context = self.feed.context;
        let params = WatchParams::default().fields(&self.selector()).timeout(WATCH_TIMEOUT_SECONDS);
        let request = Request::new(PATH).watch(&params, version).map_err(kube::Error::BuildRequest)?;
        let mut events = match watch(&context.client, request).await {
            Err(kube::Error::Api(status)) if status.code == 410 => return Ok(WatchEnd::Expired),
            opened => opened?,
        };
        let relist = self.listed + RELIST_INTERVAL;
        loop {
            let is_due = self.feed.forgotten.load(Ordering::Relaxed) != self.forgotten;
            let event = tokio::select! {
                event = events.next() => event?,
                () = sleep_until(relist), if is_due => return Ok(WatchEnd::Expired),
            };
            match event {
                Some(CsrEvent::Failed(status)) if status.code == 410 => return Ok(WatchEnd::Expired),
                Some(CsrEvent::Failed(status)) => return Err(kube::Error::Api(status)),
                Some(CsrEvent::Changed(summary)) => {
                    self.send(&summary).await;
                    *version = summary.metadata.resource_version;
                }
                Some(CsrEvent::Passed(summary)) => *version = summary.metadata.resource_version,
                Some(CsrEvent::TooLarge) => self.log_skip("the object is too large"),
                None => {
                    self.works();
                    return Ok(WatchEnd::Resumable);
                }
            }
            // Only an event proves that the watch works, not its response head.
            self.works();
        }
    }

    async fn send(&mut self, summary: &CsrSummary) {
        // An API server that does not support the selector sends requests of other signers, too.
        if summary.spec.signer_name != self.signer || !(self.feed.is_wanted)(summary) {
            return;
        }
        if summary.metadata.name.len() > MAX_NAME {
            self.log_skip("its name is longer than 253 bytes");
            return;
        }
        let name = summary.metadata.name.as_str().into();
        let requester = self.requesters.hash_one(&summary.spec.username);
        // Fails only while the controller is being dropped.
        self.sender.send(RequestKey { name, requester }).await.ok();
    }

    /// Logs the first skipped request, and others at debug level.
    fn log_skip(&mut self, why: &str) {
        let (cluster, signer) = (&*self.feed.context.cluster, self.signer);
        let controller = self.feed.controller.alias();
        if std::mem::replace(&mut self.has_logged_skip, true) {
            debug!(cluster, controller, signer, "request skipped: {why}");
        } else {
            warn!(cluster, controller, signer, "request skipped: {why}; further ones are not logged");
        }
    }

    /// Logs a failure once, and waits for the back-off.
    async fn failed(&mut self, error: &kube::Error) {
        self.gauge().set(1);
        let (cluster, signer, problem) =
            (&*self.feed.context.cluster, self.signer, super::error_message(error));
        let controller = self.feed.controller.alias();
        if self.feed.context.problems.begins(&self.cause()) {
            warn!(
                cluster,
                controller,
                signer,
                "cannot watch, the controller waits: {problem}; it needs the verbs get, list and watch on \
                 certificatesigningrequests (deploy/rbac-controllers.yaml)"
            );
        } else {
            debug!(cluster, controller, signer, "cannot watch: {problem}");
        }
        sleep(self.backoff).await;
        self.backoff = (self.backoff * 2).min(MAX_WATCH_BACKOFF);
    }

    fn works(&mut self) {
        self.has_watch_failed = false;
        self.gauge().set(0);
        self.backoff = INITIAL_WATCH_BACKOFF;
        if self.feed.context.problems.ends(&self.cause()) {
            let controller = self.feed.controller.alias();
            info!(cluster = &*self.feed.context.cluster, controller, signer = self.signer, "watching again");
        }
    }

    fn cause(&self) -> String {
        format!("{} watches {}", self.feed.controller.alias(), self.signer)
    }

    fn labels(&self) -> [&str; 3] {
        [&self.feed.context.cluster, self.feed.controller.alias(), self.signer]
    }

    fn gauge(&self) -> IntGauge {
        self.feed.context.metrics.controllers.watch_failing.with_label_values(&self.labels())
    }
}

impl Drop for SignerFollower<'_> {
    fn drop(&mut self) {
        self.feed.context.metrics.controllers.watch_failing.remove_label_values(&self.labels()).ok();
    }
}

#[cfg(test)]
mod tests;
