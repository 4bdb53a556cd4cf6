//! Delivers the names of requests that need work: a list and a watch for each signer. Only names stay in memory.
//!
//! The API server selects the requests of a signer (`spec.signerName` is a field selector), so that those of other
//! signers cost nothing here. The feed parses a few fields of each object; the controller reads the object again when
//! it processes it.

use std::borrow::Cow;
use std::convert::Infallible;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::Stream;
use futures_util::future::join_all;
use prometheus::IntGauge;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::ControllerContext;
use super::problems::error_message;
use super::queue::{FlowId, WorkItem};
use super::settings::ControllerName;
use crate::backend::follow::{FollowError, FollowEvent, FollowPolicy, FollowedResource, Follower};

/// The maximum size of a request in JSON; the PEM in it has up to 64 KiB.
pub(super) const MAX_REQUEST: usize = 1024 * 1024;

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

/// The fields of a request that the feed parses.
pub(super) trait RequestSummary: DeserializeOwned + Send + Sync {
    /// The plural of its kind, for messages.
    const RESOURCE: &'static str;
    /// The manifest that grants what its controllers need.
    const MANIFEST: &'static str;
    /// The maximum length of the text in its key.
    const MAX_NAME: usize;

    /// `spec.signerName`
    fn signer_name(&self) -> &str;

    /// What its key consists of: the name, with a namespace before it if the kind has namespaces.
    fn key_text(&self) -> Cow<'_, str>;

    /// The client that requests are served round-robin for.
    fn requester(&self) -> &str;
}

/// The requests for some signers whose summary satisfies `is_wanted`.
pub(super) struct RequestFeed<'a, S> {
    pub(super) context: &'a ControllerContext,
    pub(super) controller: ControllerName,
    /// The path of the collection.
    pub(super) path: &'a str,
    pub(super) signers: Vec<String>,
    pub(super) is_wanted: fn(&S) -> bool,
    /// The number of keys that the queue dropped; when it grows, the feed lists again.
    pub(super) forgotten: &'a AtomicU64,
    /// Notified when the API server does not know the collection.
    pub(super) absent: Option<&'a Notify>,
}

impl<'a, S: RequestSummary + 'a> RequestFeed<'a, S> {
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
        let field_selector = Some(format!("spec.signerName={signer}"));
        let resource =
            FollowedResource { path: self.path.to_owned(), field_selector, ..FollowedResource::default() };
        Follower::new(self.context.client.clone(), resource, POLICY)
    }
}

/// Follows the requests for one signer.
struct SignerFollower<'a, S: RequestSummary> {
    feed: &'a RequestFeed<'a, S>,
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

impl<S: RequestSummary> SignerFollower<'_, S> {
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

    async fn take(&mut self, event: FollowEvent<S>) {
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

    async fn send(&mut self, summary: &S) {
        // An API server that does not support the selector sends requests of other signers, too.
        if summary.signer_name() != self.signer || !(self.feed.is_wanted)(summary) {
            return;
        }
        let name = summary.key_text();
        if name.len() > S::MAX_NAME {
            self.log_skip("its name is longer than 253 bytes");
            return;
        }
        let name = name.as_ref().into();
        let requester = self.requesters.hash_one(summary.requester());
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
        if let (Some(kube::Error::Api(status)), Some(absent)) = (error.of_request(), self.feed.absent)
            && status.code == 404
        {
            absent.notify_one();
        }
        let problem = error.of_request().map_or_else(|| error.to_string(), error_message);
        let (cluster, signer) = (&*self.feed.context.cluster, self.signer);
        let controller = self.feed.controller.alias();
        let (resource, manifest) = (S::RESOURCE, S::MANIFEST);
        if self.feed.context.problems.begins(&self.cause()) {
            warn!(
                cluster,
                controller,
                signer,
                "cannot watch, the controller waits: {problem}; it needs the verbs get, list and watch on \
                 {resource} ({manifest})"
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

impl<S: RequestSummary> Drop for SignerFollower<'_, S> {
    fn drop(&mut self) {
        self.feed.context.metrics.controllers.watch_failing.remove_label_values(&self.labels()).ok();
    }
}

#[cfg(test)]
mod tests;
