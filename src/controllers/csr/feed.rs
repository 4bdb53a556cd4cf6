//! Delivers the names of requests that need work: a list and a watch for each signer. Only names stay in memory.
//!
//! The API server selects the requests of a signer (`spec.signerName` is a field selector), so that those of other
//! signers cost nothing here. The feed parses a few fields of each object; the controller reads the object again when
//! it processes it.

use std::convert::Infallible;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::Stream;
use futures_util::future::join_all;
use portcullis_kubernetes::service_account;
use prometheus::IntGauge;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::conditions::Conditions;
use super::{MAX_REQUEST, requests};
use crate::backend::follow::{FollowError, FollowEvent, FollowPolicy, Follower};
use crate::controllers::ControllerContext;
use crate::controllers::queue::{FlowId, WorkItem};
use crate::controllers::settings::ControllerName;

/// Even a silent watch ends before the client would abort it. An event is a request and its envelope.
// threat: pending-requests-flood
pub(super) const POLICY: FollowPolicy = FollowPolicy {
    max_objects: 500,
    watch_seconds: 120,
    max_event: MAX_REQUEST + 1024,
    skips_large_events: true,
    ..FollowPolicy::DEFAULT
};
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
    /// A hash of the requester, of a service account its namespace: requesters are served round-robin, so each waits only for its
    /// own requests.
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
                    follow: self.follow(signer),
                    listed: Instant::now(),
                    forgotten: 0,
                    has_logged_skip: false,
                };
                follower.run()
            });
            join_all(follow).await;
            std::future::pending().await
        };
        let keys = futures_util::stream::unfold(receiver, |mut receiver| async move {
            Some((receiver.recv().await?, receiver))
        });
        (keys, following)
    }

    fn follow(&self, signer: &str) -> Follower {
        let resource = requests(Some(format!("spec.signerName={signer}")));
        Follower::new(self.context.client.clone(), resource, POLICY)
    }
}

/// Follows the requests for one signer.
struct SignerFollower<'a> {
    feed: &'a CsrFeed<'a>,
    signer: &'a str,
    requesters: &'a RandomState,
    sender: mpsc::Sender<RequestKey>,
    follow: Follower,
    /// The time of the last list, and the value of `CsrFeed::forgotten` at that time.
    listed: Instant,
    forgotten: u64,
    /// Whether a skipped request was logged.
    has_logged_skip: bool,
}

impl SignerFollower<'_> {
    async fn run(mut self) {
        loop {
            self.step().await;
        }
    }

    async fn step(&mut self) {
        let context = self.feed.context;
        // Only one page of a cluster is in memory at a time.
        let _turn = if self.follow.is_listing() { context.lists.acquire().await.ok() } else { None };
        let is_due = self.feed.forgotten.load(Ordering::Relaxed) != self.forgotten;
        let event = tokio::select! {
            event = self.follow.next() => event,
            () = sleep_until(self.listed + RELIST_INTERVAL), if is_due => return self.follow.list_again(),
        };
        match event {
            Ok(event) => self.take(event).await,
            Err(FollowError::Expired) => {}
            Err(error) => self.failed(&error),
        }
    }

    async fn take(&mut self, event: FollowEvent<CsrSummary>) {
        match event {
            FollowEvent::ListBegins => {
                (self.listed, self.forgotten) = (Instant::now(), self.feed.forgotten.load(Ordering::Relaxed));
                return;
            }
            FollowEvent::Page(page) => {
                for summary in &page {
                    self.send(summary).await;
                }
                return;
            }
            FollowEvent::Listed { has_skipped_names: true, .. } => {
                self.log_skip("its name is not UTF-8, or has a prefix in common with one that is not");
            }
            FollowEvent::Applied(summary) => self.send(&summary).await,
            FollowEvent::Skipped => self.log_skip("the object is too large"),
            FollowEvent::Listed { .. }
            | FollowEvent::Deleted(_)
            | FollowEvent::Bookmark { .. }
            | FollowEvent::WatchEnded { .. } => {}
        }
        if !self.follow.is_failing() {
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
        let username = &summary.spec.username;
        let requester =
            self.requesters.hash_one(service_account::namespace_prefix(username).unwrap_or(username));
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

    /// Logs a failure once.
    fn failed(&self, error: &FollowError) {
        self.gauge().set(1);
        let problem = error.of_request().map_or_else(|| error.to_string(), super::error_message);
        let (cluster, signer) = (&*self.feed.context.cluster, self.signer);
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
    }

    fn works(&self) {
        self.gauge().set(0);
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
