//! Keeps a [`WatchCache`] up to date, by watches that prove that no event is missing: see [`FollowPolicy::proves`].
//!
//! Watches are short: each lasts [`WATCH_SECONDS`]. Two seconds before its end the API server sends a bookmark if there is
//! anything new.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kube::Api;
use portcullis_limits::cache_budget::CacheShare;
use portcullis_system::sync::lock;
use prometheus::IntGauge;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::backend::follow::{FollowError, FollowEvent, FollowPolicy, FollowedResource, Follower, TimeLimit};
use crate::backend::watched::watch_cache::{CacheFull, Cacheable, CachedObjects, FRESH_FOR, Key, WatchCache};
use crate::metrics::GaugeGuard;

/// How long a watch lasts.
const WATCH_SECONDS: u32 = 7;
/// How long a watch, its response head or a version read may take: five seconds longer than a watch lasts. Longer than
/// the client's own timeout, after which the client abandons the connection, too.
const WATCH_TIMEOUT: Duration = Duration::from_secs(12);

const POLICY: FollowPolicy = FollowPolicy {
    watch_seconds: WATCH_SECONDS,
    head_timeout: WATCH_TIMEOUT,
    watch: TimeLimit::Whole(WATCH_TIMEOUT),
    proves: true,
    max_backoff: Duration::from_secs(15),
    ..FollowPolicy::DEFAULT
};

/// Clears the cache when the reflector ends.
pub(crate) struct EndOnDrop<'a, V>(pub(crate) &'a WatchCache<V>);

impl<V> Drop for EndOnDrop<'_, V> {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn fix(error: &FollowError) -> &'static str {
    match error {
        error if error.is_forbidden() => {
            "grant system:portcullis the verbs list and watch (deploy/rbac*.yaml)"
        }
        FollowError::EndedEarly
        | FollowError::Overdue { .. }
        | FollowError::NoResponse(_)
        | FollowError::ListTimeout(_) => {
            "look for a proxy or load balancer in front of the API server that buffers or cuts off watches"
        }
        FollowError::NotCaughtUp => "enable the watch cache of the API server (--watch-cache)",
        FollowError::VersionWentBack { .. } => {
            "all objects are listed again; if etcd was not restored from a backup, look for API servers of different \
             clusters behind one address"
        }
        FollowError::Description(_) => {
            "delete what the cluster does not need; each token costs a read until then"
        }
        _ => "check the API server and the network to it",
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
    /// Follows the resource, of a cluster that is a tenant's or not, in the share of its caches. Never returns.
    pub(crate) async fn run(&self, is_of_tenant: bool, share: &CacheShare) {
        // Also on a panic: objects that are no longer watched must not verify a token.
        let _ended = EndOnDrop(&self.cache);
        tokio::join!(self.follow(is_of_tenant, share), self.report_staleness());
    }

    async fn follow(&self, is_of_tenant: bool, share: &CacheShare) {
        let resource = FollowedResource {
            path: self.api.resource_url().to_owned(),
            field_selector: self.fields.map(str::to_owned),
            is_metadata: K::metadata_api(),
            ..FollowedResource::default()
        };
        let policy = FollowPolicy { page_size: self.page_size, ..POLICY };
        let mut follower = Follower::new(self.api.clone().into_client(), resource, policy);
        let mut listed = CachedObjects::new(is_of_tenant, share);
        loop {
            let Err(error) = follower.next_into(|event| self.take(event, &mut listed)).await else {
                continue;
            };
            if matches!(error, FollowError::NotCaughtUp) {
                // The watch was complete, and an API server without bookmarks can do no better.
                follower.forgive();
            }
            self.report_failure(&error);
        }
    }

    // threat: deleted-account
    fn take(&self, event: FollowEvent<K>, listed: &mut CachedObjects<V>) -> Result<(), FollowError> {
        match event {
            FollowEvent::ListBegins => *listed = listed.none(),
            FollowEvent::Page(objects) => {
                for object in objects {
                    listed.insert(key(&object), (self.project)(&object)).map_err(full)?;
                }
            }
            FollowEvent::Listed { requested_at, .. } => {
                let next = listed.none();
                self.cache.replace(std::mem::replace(listed, next), requested_at);
            }
            FollowEvent::Applied(object) => self.apply(&object, Some((self.project)(&object)))?,
            FollowEvent::Deleted(object) => self.apply(&object, None)?,
            FollowEvent::Bookmark { requested_at } => self.cache.confirm(requested_at),
            FollowEvent::WatchEnded { requested_at } => {
                self.cache.confirm(requested_at);
                *self.last_error() = None;
            }
            FollowEvent::Skipped => {
                self.cache.end();
                return Err(FollowError::Description("an event was skipped".to_owned()));
            }
        }
        Ok(())
    }

    fn apply(&self, object: &K, now: Option<V>) -> Result<(), FollowError> {
        self.cache.apply(key(object), now).map_err(|error| {
            // An event is missing now.
            self.cache.end();
            full(error)
        })
    }

    /// Logs a failure, unless it has the same cause as the last one.
    fn report_failure(&self, error: &FollowError) {
        let (cluster, resource) = (&self.cluster, self.resource);
        let failure = WatchFailure { cause: error.to_string(), fix: fix(error) };
        let mut last = self.last_error();
        let is_new = last.as_ref().is_none_or(|last| last.cause != failure.cause);
        if is_new && error.is_forbidden() {
            let WatchFailure { cause, fix } = &failure;
            warn!(cluster, resource, "watch failed, falling back to one GET per token: {cause}; {fix}");
        } else if is_new && matches!(error, FollowError::VersionWentBack { .. }) {
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

fn full(error: CacheFull) -> FollowError {
    FollowError::Description(error.to_string())
}

fn key(object: &impl kube::ResourceExt) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}
