//! Objects as a watch reports them, reduced to what is judged by.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::{Stream, StreamExt as _};
use kube::ResourceExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Error, Event, Result};
use tracing::{debug, info, warn};

/// Namespace and name; objects without a namespace have an empty one.
type Key = (String, String);

/// What is known of the objects of one kind.
#[derive(Debug)]
pub(super) struct Watched<V> {
    known: Mutex<HashMap<Key, Arc<V>>>,
    complete: AtomicBool,
    /// Whether the watch may go on; what it knows is old news if not.
    lost: AtomicBool,
}

impl<V> Default for Watched<V> {
    fn default() -> Self {
        Self { known: Mutex::default(), complete: AtomicBool::new(false), lost: AtomicBool::new(false) }
    }
}

impl<V> Watched<V> {
    /// The object of this name, if the watch has reported it.
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<V>> {
        if self.is_lost() {
            return None;
        }
        let key = (namespace.to_owned(), name.to_owned());
        self.known().get(&key).cloned()
    }

    /// Held for a moment, by threads that carry no requests.
    fn known(&self) -> MutexGuard<'_, HashMap<Key, Arc<V>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all objects were reported once, and their changes are.
    pub(super) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire) && !self.is_lost()
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
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
                known.known().insert(key(&object), Arc::new(project(&object)));
            }
            Ok(Event::Delete(object)) => {
                known.known().remove(&key(&object));
            }
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => {
                listed.insert(key(&object), Arc::new(project(&object)));
            }
            Ok(Event::InitDone) => {
                *known.known() = std::mem::take(&mut listed);
                known.complete.store(true, Ordering::Release);
                if told.take().is_some() {
                    info!(cluster, resource, "watching again");
                }
            }
            Err(error) => {
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
    use std::time::Duration;

    use futures_util::{FutureExt as _, stream};
    use k8s_openapi::api::core::v1::ServiceAccount;
    use kube::core::Status;

    use super::*;

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
