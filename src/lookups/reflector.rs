//! Keeps a [`Watched`] store up to date: a list, and then watches, one after the other.
//!
//! Follows `k8s.io/client-go/tools/cache/reflector.go`, with watches that are short: each lasts [`WATCH_TIME`], at the end
//! of which the API server says how far it is (a bookmark) and ends it in good order. So a quiet watch proves several
//! times a minute that it is one, and nothing else has to be guessed. Every request has a deadline.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_lc_rs::rand;
use futures_util::TryStreamExt as _;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt as _};
use prometheus::IntGauge;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{debug, info, warn};

use super::watched::{FRESH_FOR, Key, Watched};

/// How long a watch lasts, in the seconds of `timeoutSeconds`.
const WATCH_SECONDS: u32 = 15;
const WATCH_TIME: Duration = Duration::from_secs(15);
/// How much sooner than that a watch may end and still have lasted its time: the API server's clock began before ours.
const EARLY: Duration = Duration::from_secs(1);
/// How much later a watch may end: one that goes on is broken.
const WATCH_GRACE: Duration = Duration::from_secs(5);
/// How long a watch may take to begin, and a page of a list to come.
const WATCH_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const PAGE_TIMEOUT: Duration = Duration::from_mins(1);
/// The pause after the first failure, and the longest.
const FIRST_BACKOFF: Duration = Duration::from_millis(800);
const MAX_BACKOFF: Duration = Duration::from_secs(15);

/// Why a list or a watch is not there.
#[derive(Debug, thiserror::Error)]
enum WatchError {
    #[error("the list failed: {0}")]
    List(#[source] kube::Error),
    #[error("a page of the list did not come within {PAGE_TIMEOUT:?}")]
    ListTimeout,
    #[error("the list has no resourceVersion")]
    NoResourceVersion,
    #[error("the watch failed: {0}")]
    Watch(#[source] kube::Error),
    #[error("the watch was not answered within {WATCH_ANSWER_TIMEOUT:?}")]
    NotAnswered,
    #[error("the watch ended with {0}")]
    Refused(String),
    #[error("the resourceVersion of the watch is too old")]
    Expired,
    #[error("the watch ended before its time")]
    EndedEarly,
    #[error("the watch of {WATCH_TIME:?} had not ended {WATCH_GRACE:?} later")]
    Overdue,
}

impl WatchError {
    fn is_forbidden(&self) -> bool {
        match self {
            Self::List(kube::Error::Api(status)) | Self::Watch(kube::Error::Api(status)) => {
                status.code == 403
            }
            _ => false,
        }
    }

    fn fix(&self) -> &'static str {
        match self {
            error if error.is_forbidden() => {
                "grant system:portcullis the verbs list and watch (deploy/rbac.yaml)"
            }
            Self::EndedEarly | Self::Overdue | Self::NotAnswered | Self::ListTimeout => {
                "look for a proxy or load balancer before the API server that holds back or cuts off watches"
            }
            _ => "look at the API server and at the network to it",
        }
    }
}

/// Watches the objects of one kind.
pub(super) struct Reflector<K, V> {
    pub(super) cluster: String,
    pub(super) resource: &'static str,
    pub(super) api: Api<K>,
    /// Which objects, as a field selector.
    pub(super) fields: Option<&'static str>,
    pub(super) project: fn(&K) -> V,
    pub(super) store: Arc<Watched<V>>,
    /// How many watches of the resource are stale.
    pub(super) stale: IntGauge,
    pub(super) last_error: Mutex<Option<WatchFailure>>,
}

/// The last failure, as it is told.
#[derive(Debug, Clone)]
pub(super) struct WatchFailure {
    cause: String,
    fix: &'static str,
}

/// A count that is taken back when this is dropped.
struct Counted<'a>(&'a IntGauge);

impl<'a> Counted<'a> {
    fn new(gauge: &'a IntGauge) -> Self {
    /// How many objects a page of a list holds.
    pub(super) page_size: u32,
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl<K, V> Reflector<K, V>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    /// Never ends.
    pub(super) async fn run(&self) {
        tokio::join!(self.follow(), self.report_staleness());
    }

    async fn follow(&self) {
        let mut backoff = FIRST_BACKOFF;
        let mut version = None;
        loop {
            let confirmed = self.store.confirmed_at();
            let Err(error) = self.next_watch(&mut version).await else {
                backoff = FIRST_BACKOFF;
                *self.last_error() = None;
                continue;
            };
            if self.store.confirmed_at() != confirmed {
                backoff = FIRST_BACKOFF;
            }
            self.report_failure(&error);
            sleep(jittered(backoff)).await;
            backoff = MAX_BACKOFF.min(backoff * 2);
        }
    }

    /// One watch to its end, with a list before it if there is no version to watch from.
    async fn next_watch(&self, version: &mut Option<String>) -> Result<(), WatchError> {
        let from = match version {
            Some(version) => version,
            None => version.insert(self.list().await?),
        };
        let watched = self.watch(from).await;
        if matches!(watched, Err(WatchError::Expired)) {
            *version = None;
        }
        watched
    }

    /// Lists everything; returns the version of the list.
    async fn list(&self) -> Result<String, WatchError> {
        let asked = Instant::now();
        let mut objects = HashMap::new();
        let mut params =
            ListParams { field_selector: self.fields.map(str::to_owned), ..ListParams::default() };
        params = params.limit(self.page_size);
        loop {
            let page = timeout(PAGE_TIMEOUT, self.api.list(&params)).await;
            let page = page.map_err(|_| WatchError::ListTimeout)?.map_err(WatchError::List)?;
            objects.extend(page.items.iter().map(|object| (key(object), Arc::new((self.project)(object)))));
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                let version = page.metadata.resource_version.filter(|version| !version.is_empty());
                let version = version.ok_or(WatchError::NoResourceVersion)?;
                self.store.replace(objects, asked);
                return Ok(version);
            }
        }
    }

    /// Watches from `version` on, which goes along.
    // threat: deleted-account
    async fn watch(&self, version: &mut String) -> Result<(), WatchError> {
        let began = Instant::now();
        let params = WatchParams { field_selector: self.fields.map(str::to_owned), ..WatchParams::default() };
        let params = params.timeout(WATCH_SECONDS);
        let answered = timeout(WATCH_ANSWER_TIMEOUT, self.api.watch(&params, version)).await;
        let events = answered.map_err(|_| WatchError::NotAnswered)?.map_err(watch_error)?;
        let mut events = pin!(events);
        loop {
            let next = timeout_at(began + WATCH_TIME + WATCH_GRACE, events.try_next()).await;
            let Some(event) = next.map_err(|_| WatchError::Overdue)?.map_err(watch_error)? else { break };
            let (object, is_deleted) = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                WatchEvent::Deleted(object) => (object, true),
                WatchEvent::Bookmark(bookmark) => {
                    *version = bookmark.metadata.resource_version;
                    self.store.confirm();
                    continue;
                }
                WatchEvent::Error(status) if status.code == 410 => return Err(WatchError::Expired),
                WatchEvent::Error(status) => return Err(WatchError::Refused(status.message)),
            };
            let reached = object.resource_version().filter(|reached| !reached.is_empty());
            *version = reached.ok_or(WatchError::NoResourceVersion)?;
            self.store.apply(key(&object), (!is_deleted).then(|| (self.project)(&object)));
        }
        // An end before its time is no evidence: whoever ended it may have held events back.
        if began.elapsed() + EARLY < WATCH_TIME {
            return Err(WatchError::EndedEarly);
        }
        self.store.confirm();
        Ok(())
    }

    /// Logs a failure, if it is another than the last one.
    fn report_failure(&self, error: &WatchError) {
        let (cluster, resource) = (&self.cluster, self.resource);
        let failure = WatchFailure { cause: error.to_string(), fix: error.fix() };
        let mut last = self.last_error();
        let is_new = last.as_ref().is_none_or(|last| last.cause != failure.cause);
        if is_new && error.is_forbidden() {
            let WatchFailure { cause, fix } = &failure;
            warn!(cluster, resource, "cannot watch, each token costs a read: {cause}; {fix}");
        } else {
            debug!(cluster, resource, "cannot watch: {}", failure.cause);
        }
        *last = Some(failure);
    }

    fn last_error(&self) -> MutexGuard<'_, Option<WatchFailure>> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs and counts once each time the store is no longer good, and logs when it is good again.
    async fn report_staleness(&self) {
        let (cluster, resource) = (&self.cluster, self.resource);
        let began = Instant::now();
        loop {
            self.store.until_stale(began).await;
            let counted = Counted::new(&self.stale);
            let silence = || {
                let cause = "the API server says nothing".to_owned();
                WatchFailure {
                    cause,
                    fix: "look at the API server, at the network to it, and at proxies between",
                }
            };
            let last = self.last_error().clone();
            let WatchFailure { cause, fix } = last.unwrap_or_else(silence);
            warn!(
                cluster,
                resource,
                "the watch is stale, each token costs a read: nothing was heard of it for {FRESH_FOR:?}; {cause}; {fix}"
            );
            self.store.until_fresh().await;
            drop(counted);
            info!(cluster, resource, "watching again");
        }
    }
}

fn watch_error(error: kube::Error) -> WatchError {
    match error {
        kube::Error::Api(status) if status.code == 410 => WatchError::Expired,
        error => WatchError::Watch(error),
    }
}

fn key(object: &impl kube::ResourceExt) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Up to a fifth longer, so that the watches of many gateways do not come at once.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [0; 1];
    // Without randomness there is no jitter, and nothing else is lost.
    rand::fill(&mut byte).ok();
    pause + pause.mul_f64(f64::from(byte[0]) / 255.0 / 5.0)
}
