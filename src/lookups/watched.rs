//! Objects as a watch reports them, reduced to what is judged by.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use kube::ResourceExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Error, Event, Result};
use tokio::time::Instant;
use tracing::{debug, info, warn};

/// Namespace and name; objects without a namespace have an empty one.
type Key = (String, String);

/// What is known of the objects of one kind.
#[derive(Debug)]
pub(super) struct Watched<V> {
    known: Mutex<HashMap<Key, Arc<V>>>,
    complete: AtomicBool,
    failing: Mutex<Option<Failing>>,
    /// Whether the watch may go on; what it knows is old news if not.
    lost: AtomicBool,
}

/// A row of failures, each soon after the one before.
#[derive(Debug, Clone, Copy)]
struct Failing {
    since: Instant,
    last: Instant,
}

/// How long what is known is good while a watch fails. A deleted object must not be vouched for without end.
const GOOD_FOR: Duration = Duration::from_secs(60);
/// A watch that has not failed for as long fails no more: attempts are at most half a minute apart. It need not have
/// reported anything.
const RECOVERED: Duration = Duration::from_secs(120);

impl<V> Default for Watched<V> {
    fn default() -> Self {
        Self {
            known: Mutex::default(),
            complete: AtomicBool::new(false),
            failing: Mutex::default(),
            lost: AtomicBool::new(false),
        }
    }
}

impl<V> Watched<V> {
    /// The object of this name, if the watch has reported it and has not failed since for long.
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<V>> {
        if self.is_stale() || self.is_lost() {
            return None;
        }
        let key = (namespace.to_owned(), name.to_owned());
        self.known().get(&key).cloned()
    }

    /// Held for a moment, by threads that carry no requests.
    fn known(&self) -> MutexGuard<'_, HashMap<Key, Arc<V>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all objects were reported once, and changes to them are.
    pub(super) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire) && !self.is_stale() && !self.is_lost()
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    fn is_stale(&self) -> bool {
        let failing = *self.failing();
        failing.is_some_and(|row| row.last.elapsed() < RECOVERED && row.since.elapsed() > GOOD_FOR)
    }

    fn failed(&self) {
        let now = Instant::now();
        let mut failing = self.failing();
        let since = failing.filter(|row| now - row.last < RECOVERED).map_or(now, |row| row.since);
        *failing = Some(Failing { since, last: now });
    }

    fn failing(&self) -> MutexGuard<'_, Option<Failing>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A watch that is over, however it ended, knows nothing any more.
struct Lost<'a>(&'a AtomicBool);

impl Drop for Lost<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Keeps `known` up to date for as long as it is polled.
pub(super) async fn follow<K, V>(
    cluster: &str,
    resource: &str,
    stream: impl Stream<Item = Result<Event<K>>> + Send,
    known: &Watched<V>,
    project: fn(&K) -> V,
) where
    K: kube::Resource + Send + 'static,
{
    let _lost = Lost(&known.lost);
    let mut stream = pin!(stream.default_backoff());
    let mut listed: HashMap<Key, Arc<V>> = HashMap::new();
    let mut told: Option<String> = None;
    let key = |object: &K| (object.namespace().unwrap_or_default(), object.name_any());
    while let Some(event) = stream.next().await {
        // Interruptions are made up for; what is forbidden may be so for ever, and what is deleted meanwhile stays known.
        known.lost.store(event.as_ref().is_err_and(is_forbidden), Ordering::Release);
        match event {
            Ok(Event::Apply(object)) => {
                *known.failing() = None;
                known.known().insert(key(&object), Arc::new(project(&object)));
            }
            Ok(Event::Delete(object)) => {
                *known.failing() = None;
                known.known().remove(&key(&object));
            }
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => {
                listed.insert(key(&object), Arc::new(project(&object)));
            }
            Ok(Event::InitDone) => {
                *known.failing() = None;
                *known.known() = std::mem::take(&mut listed);
                known.complete.store(true, Ordering::Release);
                if told.take().is_some() {
                    info!(cluster, resource, "watching again");
                }
            }
            Err(error) => {
                known.failed();
                let text = error.to_string();
                if told.as_ref() == Some(&text) {
                    debug!(cluster, resource, "cannot watch: {text}");
                } else if is_forbidden(&error) {
                    warn!(
                        cluster,
                        resource,
                        "cannot watch, each token costs a read: {text}; give system:portcullis the verbs list and watch"
                    );
                } else {
                    warn!(cluster, resource, "cannot watch: {text}");
                }
                told = Some(text);
            }
        }
    }
}

fn is_forbidden(error: &Error) -> bool {
    match error {
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 403,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, stream};
    use k8s_openapi::api::core::v1::{Node, ServiceAccount};
    use kube::core::{ObjectMeta, Status};
    use tokio::time::sleep;

    use super::*;

    fn node() -> Node {
        Node {
            metadata: ObjectMeta { name: Some("node".to_owned()), ..ObjectMeta::default() },
            ..Node::default()
        }
    }

    /// Follows a watch that reports a node and then fails for so long, while something else goes on.
    async fn beside(failing: Duration, other: impl AsyncFnOnce(&Watched<()>)) {
        let known = Watched::default();
        let begun = Instant::now();
        let listed = stream::iter([Ok(Event::Init), Ok(Event::InitApply(node())), Ok(Event::InitDone)]);
        // As a watcher does: each attempt to list begins with an event.
        let failures = stream::unfold(true, |init| async move {
            Some((if init { Ok(Event::Init) } else { Err(Error::NoResourceVersion) }, !init))
        });
        let failures = failures.take_while(|_| {
            let more = begun.elapsed() < failing;
            async move { more }
        });
        let watch = listed.chain(failures).chain(stream::pending());
        tokio::select! {
            () = follow("c", "nodes", watch, &known, |_: &Node| ()) => {}
            () = other(&known) => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_watch_knew_is_good_for_a_while() {
        beside(Duration::MAX, async |known| {
            sleep(Duration::from_secs(30)).await;
            assert!(known.get("", "node").is_some() && known.is_complete(), "a watch may break");
            sleep(Duration::from_secs(60)).await;
            for _ in 0..100 {
                assert!(known.get("", "node").is_none() && !known.is_complete(), "it has failed for long");
                sleep(Duration::from_secs(9)).await;
            }
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_fails_no_more_is_good_again() {
        beside(Duration::from_secs(600), async |known| {
            sleep(Duration::from_secs(590)).await;
            assert!(known.get("", "node").is_none());
            // Where nothing changes, a watch reports nothing.
            sleep(Duration::from_secs(150)).await;
            assert!(known.get("", "node").is_some() && known.is_complete());
        })
        .await;
    }

    const LATER: Duration = Duration::from_hours(1);

    #[tokio::test(start_paused = true)]
    async fn what_may_not_be_watched_any_more_is_not_known() {
        let account = || {
            let mut account = ServiceAccount::default();
            (account.metadata.namespace, account.metadata.name) = (Some("ns".into()), Some("builder".into()));
            account
        };
        let refused = |code| {
            let status = Status { code, ..Status::failure("no", "Forbidden") };
            Err(Error::WatchStartFailed(kube::Error::Api(Box::new(status))))
        };
        let list = || [Ok(Event::Init), Ok(Event::InitApply(account())), Ok(Event::InitDone)];
        for (name, last, is_known) in [
            ("in order", None, true),
            ("away for a while", Some(refused(500)), true),
            ("forbidden", Some(refused(403)), false),
        ] {
            let known = Watched::default();
            let knows = || (known.get("ns", "builder").is_some(), known.is_complete());
            let events = stream::iter(list().into_iter().chain(last));
            let later = stream::once(tokio::time::sleep(LATER)).map(|()| Ok(Event::Apply(account())));
            let events = events.chain(later).chain(stream::pending());
            let mut following = Box::pin(follow("c", "serviceaccounts", events, &known, |_| ()));
            assert!(following.as_mut().now_or_never().is_none());
            assert_eq!(knows(), (is_known, is_known), "{name}");
            tokio::time::timeout(2 * LATER, following.as_mut()).await.unwrap_err();
            assert_eq!(knows(), (true, true), "{name}: watched again");
            drop(following);
            assert_eq!(knows(), (false, false), "{name}: over");
        }
    }
}
