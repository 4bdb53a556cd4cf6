//! Keeps a [`WatchCache`] up to date: a list, and then one watch after the other.
//!
//! Follows `k8s.io/client-go/tools/cache/reflector.go`, with short watches: each lasts [`WATCH_TIME`]. Two seconds
//! before its end the API server sends a bookmark if there is anything new. A bookmark proves that all changes before
//! the request were reported, however long it is on its way. After a watch without a bookmark the reflector reads the
//! current resourceVersion: one below the last known is that of a cluster restored from a backup, which watches do not
//! report. Every request has a deadline.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use aws_lc_rs::rand;
use futures_util::{Stream, TryStreamExt as _};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt as _};
use portcullis_system::sync::lock;
use prometheus::IntGauge;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{debug, info, warn};

use crate::backend::response_size::is_too_large;
use crate::backend::watched::watch_cache::{CacheFull, Cacheable, CachedObjects, FRESH_FOR, Key, WatchCache};
use crate::metrics::GaugeGuard;

/// How long a watch lasts; the value of `timeoutSeconds`.
const WATCH_SECONDS: u32 = 7;
const WATCH_TIME: Duration = Duration::from_secs(7);
/// How much earlier a watch may end and still count as complete: the API server's clock starts before ours.
const EARLY_END_TOLERANCE: Duration = Duration::from_secs(1);
/// How much later a watch may end before it counts as broken.
const WATCH_GRACE: Duration = Duration::from_secs(5);
/// How long a pause between events a watch without a bookmark needs, to show that no events were queued: the API server
/// may end a watch in the middle of a backlog.
const QUIET_INTERVAL: Duration = Duration::from_secs(3);
/// How long the response to a watch or a version read may take. Longer than the client's own timeout, after which the
/// client abandons the connection, too.
const WATCH_RESPONSE_TIMEOUT: Duration = Duration::from_secs(12);
/// How long a page of a list may take.
const PAGE_TIMEOUT: Duration = Duration::from_mins(1);
/// The back-off after the first failure, and its limit.
const FIRST_BACKOFF: Duration = Duration::from_millis(800);
const MAX_BACKOFF: Duration = Duration::from_secs(15);

/// Clears the cache when the reflector ends.
pub(crate) struct EndOnDrop<'a, V>(pub(crate) &'a WatchCache<V>);

impl<V> Drop for EndOnDrop<'_, V> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Why a list or a watch failed.
#[derive(Debug, thiserror::Error)]
enum WatchError {
    #[error("the list failed: {0}")]
    List(#[source] kube::Error),
    #[error("a page of the list did not arrive within {PAGE_TIMEOUT:?}")]
    ListTimeout,
    #[error("the list has no resourceVersion")]
    NoResourceVersion,
    #[error("the watch failed: {0}")]
    Watch(#[source] kube::Error),
    #[error("no response to the watch within {WATCH_RESPONSE_TIMEOUT:?}")]
    NoResponse,
    #[error("the watch ended with {0}")]
    Refused(String),
    #[error("the resourceVersion of the watch is too old")]
    Expired,
    #[error("the watch ended before its time")]
    EndedEarly,
    #[error("the watch of {WATCH_TIME:?} did not end, even {WATCH_GRACE:?} later")]
    Overdue,
    #[error("the watch sent events without a pause, and no bookmark")]
    NotCaughtUp,
    #[error("the version could not be read: {0}")]
    Version(#[source] kube::Error),
    #[error("the API server is at resourceVersion {found:?}, before {known:?}, which it reported earlier")]
    VersionWentBack { known: String, found: String },
    #[error(transparent)]
    CacheFull(#[from] CacheFull),
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
                "grant system:portcullis the verbs list and watch (deploy/rbac*.yaml)"
            }
            Self::EndedEarly | Self::Overdue | Self::NoResponse | Self::ListTimeout => {
                "look for a proxy or load balancer in front of the API server that buffers or cuts off watches"
            }
            Self::NotCaughtUp => "enable the watch cache of the API server (--watch-cache)",
            Self::VersionWentBack { .. } => {
                "all objects are listed again; if etcd was not restored from a backup, look for API servers of \
                 different clusters behind one address"
            }
            Self::CacheFull(_) => "delete what the cluster does not need; each token costs a read until then",
            _ => "check the API server and the network to it",
        }
    }
}

/// Watches one resource.
pub(crate) struct Reflector<K, V> {
    pub(crate) cluster: String,
    pub(crate) resource: &'static str,
    pub(crate) api: Api<K>,
    /// The field selector.
    pub(crate) fields: Option<&'static str>,
    pub(crate) project: fn(&K) -> V,
    /// Objects per page of a list.
    pub(crate) page_size: u32,
    pub(crate) cache: Arc<WatchCache<V>>,
    /// Counts the stale watches of the resource.
    pub(crate) stale: IntGauge,
    pub(crate) last_error: Mutex<Option<WatchFailure>>,
}

/// The last failure, for the log.
#[derive(Debug, Clone)]
pub(crate) struct WatchFailure {
    cause: String,
    fix: &'static str,
}

impl<K, V> Reflector<K, V>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
    V: Cacheable,
{
    /// Follows the resource. Never returns.
    pub(crate) async fn run(&self) {
        // Also on a panic: objects that are no longer watched must not verify a token.
        let _ended = EndOnDrop(&self.cache);
        tokio::join!(self.follow(), self.report_staleness());
    }

    async fn follow(&self) {
        let mut backoff = FIRST_BACKOFF;
        let mut version = None;
        loop {
            match self.next_watch(&mut version).await {
                // A list alone does not reset the back-off: it costs more than the watch that fails after it.
                Ok(()) => {
                    backoff = FIRST_BACKOFF;
                    *self.last_error() = None;
                }
                // No back-off: the watch was complete, and an API server without bookmarks can do no better.
                Err(error @ WatchError::NotCaughtUp) => self.report_failure(&error),
                Err(error) => {
                    self.report_failure(&error);
                    sleep(jittered(backoff)).await;
                    backoff = MAX_BACKOFF.min(backoff * 2);
                }
            }
        }
    }

    /// Runs one watch to its end, after a list if there is no version to watch from.
    async fn next_watch(&self, version: &mut Option<String>) -> Result<(), WatchError> {
        let from = match version {
            Some(version) => version,
            None => version.insert(self.list().await?),
        };
        let watched = self.watch(from).await;
        if matches!(watched, Err(WatchError::CacheFull(_))) {
            // An event is missing now.
            self.cache.end();
        }
        if matches!(
            watched,
            Err(WatchError::Expired | WatchError::VersionWentBack { .. } | WatchError::CacheFull(_))
        ) {
            *version = None;
        }
        watched
    }

    /// Lists all objects; returns the version of the list.
    async fn list(&self) -> Result<String, WatchError> {
        let requested_at = Instant::now();
        let mut objects = CachedObjects::default();
        let mut params =
            ListParams { field_selector: self.fields.map(str::to_owned), ..ListParams::default() };
        let mut page_size = self.page_size;
        loop {
            params.limit = Some(page_size);
            let page = timeout(PAGE_TIMEOUT, self.api.list(&params)).await;
            let page = match page.map_err(|_| WatchError::ListTimeout)? {
                Err(error) if page_size > 1 && is_too_large(&error) => {
                    page_size = (page_size / 8).max(1);
                    continue;
                }
                page => page.map_err(WatchError::List)?,
            };
            for object in &page.items {
                objects.insert(key(object), (self.project)(object))?;
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                let version = page.metadata.resource_version.filter(|version| !version.is_empty());
                let version = version.ok_or(WatchError::NoResourceVersion)?;
                self.cache.replace(objects, requested_at);
                return Ok(version);
            }
        }
    }

    /// Watches from `version`, which advances with the events.
    // threat: deleted-account
    async fn watch(&self, version: &mut String) -> Result<(), WatchError> {
        let began = Instant::now();
        let params = WatchParams { field_selector: self.fields.map(str::to_owned), ..WatchParams::default() };
        let params = params.timeout(WATCH_SECONDS);
        let response = timeout(WATCH_RESPONSE_TIMEOUT, self.api.watch(&params, version)).await;
        let events = response.map_err(|_| WatchError::NoResponse)?.map_err(watch_error)?;
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
                    self.cache.confirm(began);
                    has_bookmark = true;
                    continue;
                }
                WatchEvent::Error(status) if status.code == 410 => return Err(WatchError::Expired),
                WatchEvent::Error(status) => return Err(WatchError::Refused(status.message)),
            };
            advance(version, object.resource_version().unwrap_or_default())?;
            self.cache.apply(key(&object), (!is_deleted).then(|| (self.project)(&object)))?;
        }
        // An early end is not evidence: a proxy that ended the watch may have held events back.
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
        self.cache.confirm(began);
        Ok(())
    }

    /// Reads the current version, which must not be below the known one. Without the field selector, for which etcd
    /// would be searched until an object matches, and as metadata only.
    async fn check_version(&self, known: &str) -> Result<(), WatchError> {
        let params = ListParams::default().limit(1);
        let list = timeout(WATCH_RESPONSE_TIMEOUT, self.api.list_metadata(&params)).await;
        let list = list.map_err(|_| WatchError::NoResponse)?.map_err(WatchError::Version)?;
        let found = list.metadata.resource_version.unwrap_or_default();
        if is_before(&found, known) {
            return Err(WatchError::VersionWentBack { known: known.to_owned(), found });
        }
        Ok(())
    }

    /// Logs a failure, unless it has the same cause as the last one.
    fn report_failure(&self, error: &WatchError) {
        let (cluster, resource) = (&self.cluster, self.resource);
        let failure = WatchFailure { cause: error.to_string(), fix: error.fix() };
        let mut last = self.last_error();
        let is_new = last.as_ref().is_none_or(|last| last.cause != failure.cause);
        if is_new && error.is_forbidden() {
            let WatchFailure { cause, fix } = &failure;
            warn!(cluster, resource, "watch failed, falling back to one GET per token: {cause}; {fix}");
        } else if is_new && matches!(error, WatchError::VersionWentBack { .. }) {
            let WatchFailure { cause, fix } = &failure;
            warn!(cluster, resource, "restarting the watch: {cause}; {fix}");
        } else {
            debug!(cluster, resource, "watch failed: {}", failure.cause);
        }
        *last = Some(failure);
    }

    fn last_error(&self) -> MutexGuard<'_, Option<WatchFailure>> {
        lock(&self.last_error)
    }

    /// Logs and counts each time the cache becomes stale, and logs when it is fresh again.
    async fn report_staleness(&self) {
        let (cluster, resource) = (&self.cluster, self.resource);
        let began = Instant::now();
        loop {
            self.cache.until_stale(began).await;
            let count = GaugeGuard::new(&self.stale);
            let no_response = || {
                let cause = "no response from the API server".to_owned();
                WatchFailure { cause, fix: "check the API server, the network to it, and proxies between" }
            };
            let last = self.last_error().clone();
            let WatchFailure { cause, fix } = last.unwrap_or_else(no_response);
            warn!(
                cluster,
                resource,
                "watch stale, falling back to one GET per token: not confirmed for {FRESH_FOR:?}; {cause}; {fix}"
            );
            self.cache.until_fresh().await;
            drop(count);
            info!(cluster, resource, "watch recovered");
        }
    }
}

/// The next event of a watch before `deadline`, even if events are always ready.
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

/// Advances to the version of an event, which must not go back.
fn advance(version: &mut String, reached: String) -> Result<(), WatchError> {
    if reached.is_empty() {
        return Err(WatchError::NoResourceVersion);
    }
    if is_before(&reached, version) {
        return Err(WatchError::VersionWentBack { known: version.clone(), found: reached });
    }
    *version = reached;
    Ok(())
}

/// Whether a version is before another one, or not comparable with it.
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

/// Adds up to a fifth, so that many gateways do not retry at once.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [0; 1];
    // Without randomness only the jitter is lost.
    rand::fill(&mut byte).ok();
    pause + pause.mul_f64(f64::from(byte[0]) / 255.0 / 5.0)
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_watch_with_an_event_always_ready_ends_at_its_deadline() {
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
