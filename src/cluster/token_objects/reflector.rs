//! Keeps a [`WatchCache`] store up to date: a list, and then watches, one after the other.
//!
//! Follows `k8s.io/client-go/tools/cache/reflector.go`, with watches that are short: each lasts [`WATCH_TIME`]. Two seconds
//! before its end the API server says how far it is (a bookmark) if there is anything new to it. So a watch proves several
//! times a minute that all changes before it was asked for were told, and nothing else has to be guessed: a bookmark is
//! sent after that moment, however long it takes to come. After a watch without a bookmark the API server is asked for its
//! version: a version below the one that is known is that of a cluster restored from a backup, which watches pass over in
//! silence. Every request has a deadline.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_lc_rs::rand;
use futures_util::{Stream, TryStreamExt as _};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt as _};
use prometheus::IntGauge;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{debug, info, warn};

use crate::cluster::token_objects::watch_cache::{FRESH_FOR, Key, WatchCache};

/// How long a watch lasts, in the seconds of `timeoutSeconds`.
const WATCH_SECONDS: u32 = 7;
const WATCH_TIME: Duration = Duration::from_secs(7);
/// How much sooner than that a watch may end and still have lasted its time: the API server's clock began before ours.
const EARLY_END_TOLERANCE: Duration = Duration::from_secs(1);
/// How much later a watch may end: one that goes on is broken.
const WATCH_GRACE: Duration = Duration::from_secs(5);
/// How long a watch without a bookmark must have told nothing at some time, because there was no more to tell: an API
/// server that sends what is behind may end the watch in the middle of it. An event alone, whenever it comes, leaves more.
const QUIET_INTERVAL: Duration = Duration::from_secs(3);
/// How long a watch and a version may take to be answered, and a page of a list to come. Longer than the client itself
/// waits for a watch: the client then gives up the connection too.
const WATCH_ANSWER_TIMEOUT: Duration = Duration::from_secs(12);
const PAGE_TIMEOUT: Duration = Duration::from_mins(1);
/// The pause after the first failure, and the longest.
const FIRST_BACKOFF: Duration = Duration::from_millis(800);
const MAX_BACKOFF: Duration = Duration::from_secs(15);

/// Forgets the objects of a watch when the watch ends.
struct EndOnDrop<'a, V>(&'a WatchCache<V>);

impl<V> Drop for EndOnDrop<'_, V> {
    fn drop(&mut self) {
        self.0.end();
    }
}

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
    #[error("the watch sent events all the time, and no bookmark")]
    NotCaughtUp,
    #[error("the version could not be read: {0}")]
    Version(#[source] kube::Error),
    #[error("the API server is at resourceVersion {found:?}, before {known:?}, which it has told")]
    WentBack { known: String, found: String },
}

impl WatchError {
    fn is_forbidden(&self) -> bool {
        match self {
            Self::List(kube::Error::Api(status))
            | Self::Watch(kube::Error::Api(status))
            | Self::Version(kube::Error::Api(status)) => status.code == 403,
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
            Self::NotCaughtUp => "leave the watch cache of the API server on (--watch-cache)",
            Self::WentBack { .. } => {
                "everything is listed anew; if etcd was not restored from a backup, look for API servers of different \
                 clusters behind one address"
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
    /// How many objects a page of a list holds.
    pub(super) page_size: u32,
    pub(super) store: Arc<WatchCache<V>>,
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
        // Also when it panics: the objects of a watch that has ended must not verify a token.
        let _ended = EndOnDrop(&self.store);
        tokio::join!(self.follow(), self.report_staleness());
    }

    async fn follow(&self) {
        let mut backoff = FIRST_BACKOFF;
        let mut version = None;
        loop {
            match self.next_watch(&mut version).await {
                // Not after a list alone: it costs more than the watch that fails after it.
                Ok(()) => {
                    backoff = FIRST_BACKOFF;
                    *self.last_error() = None;
                }
                // It has lasted its time: where there are no bookmarks it can be no better.
                Err(error @ WatchError::NotCaughtUp) => self.report_failure(&error),
                Err(error) => {
                    self.report_failure(&error);
                    sleep(jittered(backoff)).await;
                    backoff = MAX_BACKOFF.min(backoff * 2);
                }
            }
        }
    }

    /// One watch to its end, with a list before it if there is no version to watch from.
    async fn next_watch(&self, version: &mut Option<String>) -> Result<(), WatchError> {
        let from = match version {
            Some(version) => version,
            None => version.insert(self.list().await?),
        };
        let watched = self.watch(from).await;
        if matches!(watched, Err(WatchError::Expired | WatchError::WentBack { .. })) {
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
        let (mut has_bookmark, mut was_quiet, mut last) = (false, false, Instant::now());
        let deadline = began + WATCH_TIME + WATCH_GRACE;
        while let Some(event) = next_before(deadline, events.as_mut()).await? {
            was_quiet |= last.elapsed() >= QUIET_INTERVAL;
            last = Instant::now();
            let (object, is_deleted) = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                WatchEvent::Deleted(object) => (object, true),
                WatchEvent::Bookmark(bookmark) => {
                    advance(version, bookmark.metadata.resource_version)?;
                    self.store.confirm(began);
                    has_bookmark = true;
                    continue;
                }
                WatchEvent::Error(status) if status.code == 410 => return Err(WatchError::Expired),
                WatchEvent::Error(status) => return Err(WatchError::Refused(status.message)),
            };
            advance(version, object.resource_version().unwrap_or_default())?;
            self.store.apply(key(&object), (!is_deleted).then(|| (self.project)(&object)));
        }
        // An end before its time is no evidence: whoever ended it may have held events back.
        if began.elapsed() + EARLY_END_TOLERANCE < WATCH_TIME {
            return Err(WatchError::EndedEarly);
        }
        if has_bookmark {
            return Ok(());
        }
        if !was_quiet && last.elapsed() < QUIET_INTERVAL {
            return Err(WatchError::NotCaughtUp);
        }
        self.check_version(version).await?;
        self.store.confirm(began);
        Ok(())
    }

    /// Asks the API server for its version, which must not be below the one that it has told. Without the field selector,
    /// by which etcd would be searched for one object that it fits; and without the data of the one object.
    async fn check_version(&self, known: &str) -> Result<(), WatchError> {
        let params = ListParams::default().limit(1);
        let list = timeout(WATCH_ANSWER_TIMEOUT, self.api.list_metadata(&params)).await;
        let list = list.map_err(|_| WatchError::NotAnswered)?.map_err(WatchError::Version)?;
        let found = list.metadata.resource_version.unwrap_or_default();
        if is_before(&found, known) {
            return Err(WatchError::WentBack { known: known.to_owned(), found });
        }
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
        } else if is_new && matches!(error, WatchError::WentBack { .. }) {
            let WatchFailure { cause, fix } = &failure;
            warn!(cluster, resource, "watching anew: {cause}; {fix}");
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

/// The next event of a watch, unless its time is over: also if events never cease to be there.
async fn next_before<T>(
    deadline: Instant,
    mut events: impl Stream<Item = Result<T, kube::Error>> + Unpin,
) -> Result<Option<T>, WatchError> {
    if Instant::now() >= deadline {
        return Err(WatchError::Overdue);
    }
    let next = timeout_at(deadline, events.try_next()).await;
    next.map_err(|_| WatchError::Overdue)?.map_err(watch_error)
}

/// Goes on to the version that was told, which never goes back.
fn advance(version: &mut String, reached: String) -> Result<(), WatchError> {
    if reached.is_empty() {
        return Err(WatchError::NoResourceVersion);
    }
    if is_before(&reached, version) {
        return Err(WatchError::WentBack { known: version.clone(), found: reached });
    }
    *version = reached;
    Ok(())
}

/// Whether a version is before another one, or cannot be compared with it.
// apimachinery: pkg/util/resourceversion, CompareResourceVersion
fn is_before(version: &str, other: &str) -> bool {
    let [version, other] = [version, other].map(|version| version.parse::<u128>().ok());
    version.is_none() || other.is_none() || version < other
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

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_always_has_an_event_comes_to_its_end() {
        let mut events = stream::repeat_with(|| Ok(()));
        let deadline = Instant::now() + Duration::from_secs(1);
        assert!(matches!(next_before(deadline, &mut events).await, Ok(Some(()))));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(matches!(next_before(deadline, &mut events).await, Err(WatchError::Overdue)));
    }

    #[test]
    fn versions_are_numbers_of_any_length() {
        for (version, other, expected) in [
            ("9", "10", true),
            ("10", "9", false),
            ("10", "10", false),
            ("18446744073709551616", "18446744073709551615", false),
            ("", "1", true),
            ("1", "", true),
            ("x", "1", true),
            ("-1", "1", true),
        ] {
            assert_eq!(is_before(version, other), expected, "{version:?} and {other:?}");
        }
    }
}
