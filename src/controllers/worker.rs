//! The loop of a controller: watch events go into a work queue, and a few workers process its items.
//!
//! The loop is a single future. A replica that loses the lease drops it, which ends the work at an await. So every
//! change must be a single request, with the `resourceVersion` of the read.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt::{self, Debug};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt as _};
use prometheus::IntGauge;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, error, info, warn};

use super::ControllerContext;
use super::name::ControllerName;
use super::queue::{AttemptOutcome, MAX_WAITING, RetryPolicy, WorkItem, WorkQueue};

/// The maximum number of objects in a list page: a page of the largest possible objects is still small.
const PAGE_SIZE: u32 = 10;

/// The maximum number of concurrent attempts of a controller.
// kubernetes: cmd/kube-controller-manager/app/certificates.go
pub(super) const WORKERS: usize = 5;
/// The maximum duration of an attempt: an API server that does not answer must not block a worker for ever.
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_mins(1);

/// The name of an object, and its namespace if it has one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectKey {
    /// Empty for cluster-scoped kinds.
    pub(crate) namespace: String,
    /// The name of the object.
    pub(crate) name: String,
}

impl ObjectKey {
    fn of<K: Resource>(object: &K) -> Self {
        Self { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }

    /// The object in a store.
    pub(crate) fn within<K>(&self, store: &Store<K>) -> Option<std::sync::Arc<K>>
    where
        K: Resource<DynamicType = ()> + Clone + 'static,
    {
        let name = ObjectRef::new(&self.name);
        let name = if self.namespace.is_empty() { name } else { name.within(&self.namespace) };
        store.get(&name)
    }
}

impl WorkItem for ObjectKey {}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, name } = self;
        if namespace.is_empty() { f.write_str(name) } else { write!(f, "{namespace}/{name}") }
    }
}

/// Watches the objects of a kind. Returns the store of the objects, and a stream of keys: those of all objects once the
/// first list is complete, then the key of each object that changes or is deleted. The store drops `managedFields`;
/// writes leave them out.
// kubernetes: cmd/kube-controller-manager/app/controllermanager.go, CreateControllerContext
pub(crate) fn watch<K>(
    context: &ControllerContext,
    resource: &'static str,
    api: Api<K>,
    config: watcher::Config,
) -> (Store<K>, impl Stream<Item = ObjectKey> + Send + use<K>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let mut writer = Writer::<K>::default();
    let store = writer.as_reader();
    let known = store.clone();
    let cluster = context.cluster.clone();
    let mut listed = BTreeSet::new();
    let mut last_error: Option<String> = None;
    // The store is updated first, so that the receiver of a key finds the new object in it.
    let trimmed = watcher(api, config.page_size(PAGE_SIZE)).default_backoff().modify(|object| {
        object.meta_mut().managed_fields = None;
    });
    let events = trimmed.inspect(move |event| {
        if let Ok(event) = event {
            writer.apply_watcher_event(event);
        }
    });
    let changed = events.map(move |event| match event {
        Ok(Event::Apply(object) | Event::Delete(object)) => vec![ObjectKey::of(&object)],
        Ok(Event::Init) => {
            // No event reports a deletion between two watches: the keys from before the list are sent, too.
            listed = known.state().iter().map(|object| ObjectKey::of(&**object)).collect();
            Vec::new()
        }
        Ok(Event::InitApply(object)) => {
            listed.insert(ObjectKey::of(&object));
            Vec::new()
        }
        Ok(Event::InitDone) => {
            if last_error.take().is_some() {
                info!(cluster = &*cluster, resource, "watching again");
            }
            std::mem::take(&mut listed).into_iter().collect()
        }
        Err(error) => {
            let text = error.to_string();
            if last_error.as_ref() == Some(&text) {
                debug!(cluster = &*cluster, resource, "cannot watch: {text}");
            } else {
                warn!(
                    cluster = &*cluster,
                    resource,
                    "cannot watch, its controllers wait: {text}; they need the verbs list and watch"
                );
            }
            last_error = Some(text);
            Vec::new()
        }
    });
    (store, changed.flat_map(futures_util::stream::iter))
}

/// The gauge of queued items; zero once the controller has stopped.
struct DepthGauge(IntGauge);

impl Drop for DepthGauge {
    fn drop(&mut self) {
        self.0.set(0);
    }
}

/// Calls `handle` for the items of `changes`, with at most [`WORKERS`] attempts at a time. An attempt that times out or
/// panics counts as failed, and does not affect other items. `forgotten` counts the items dropped from a full queue.
pub(crate) async fn work<K, F>(
    context: &ControllerContext,
    name: ControllerName,
    retry_policy: RetryPolicy,
    changes: impl Stream<Item = K> + Send,
    forgotten: &AtomicU64,
    handle: impl Fn(K) -> F + Send + Sync,
) -> Infallible
where
    K: WorkItem + fmt::Display + Send,
    F: Future<Output = AttemptOutcome> + Send,
{
    let metrics = &context.metrics.controllers;
    let labels = [&*context.cluster, name.alias()];
    let depth = DepthGauge(metrics.depth.with_label_values(&labels));
    let adds = metrics.adds.with_label_values(&labels);
    let (waited, worked) =
        (metrics.waited.with_label_values(&labels), metrics.worked.with_label_values(&labels));
    let retries = metrics.retries.with_label_values(&labels);
    let mut changes = pin!(changes);
    let mut queue = WorkQueue::new(retry_policy);
    let mut attempts = FuturesUnordered::new();
    let attempt = async |key: K| {
        let begun = Instant::now();
        let (cluster, controller) = (labels[0], labels[1]);
        // A field, because fields are escaped: names of requests may contain any character.
        let item = || key.to_string();
        let caught = AssertUnwindSafe(async { handle(key.clone()).await }).catch_unwind();
        let outcome = match timeout(ATTEMPT_TIMEOUT, caught).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => {
                context.metrics.panics.inc();
                error!(cluster, controller, item = item(), "an attempt panicked, will retry");
                AttemptOutcome::Retry
            }
            Err(_) => {
                warn!(cluster, controller, item = item(), "the attempt took too long, will retry");
                AttemptOutcome::Retry
            }
        };
        worked.observe(begun.elapsed().as_secs_f64());
        (key, outcome)
    };
    loop {
        while attempts.len() < WORKERS
            && let Some((key, since)) = queue.take()
        {
            waited.observe(since.elapsed().as_secs_f64());
            attempts.push(attempt(key));
        }
        depth.0.set(i64::try_from(queue.len()).unwrap_or(i64::MAX));
        let due = queue.due();
        let now = tokio::select! {
            Some(key) = changes.next() => {
                let now = Instant::now();
                if queue.add(key, now) {
                    adds.inc();
                }
                now
            }
            Some((key, outcome)) = attempts.next() => {
                let now = Instant::now();
                if outcome == AttemptOutcome::Retry {
                    retries.inc();
                }
                queue.done(key, outcome, now);
                now
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => Instant::now(),
            // No more changes, and no work left.
            else => std::future::pending().await,
        };
        adds.inc_by(u64::try_from(queue.queue_due(now)).unwrap_or_default());
        let lost = queue.take_forgotten();
        if lost > 0 {
            metrics.forgotten.with_label_values(&labels).inc_by(lost);
            if forgotten.fetch_add(lost, Ordering::Relaxed) == 0 {
                let [cluster, controller] = labels;
                warn!(
                    cluster,
                    controller,
                    most = MAX_WAITING,
                    "too many items wait: those of the client with the most are dropped until the next list"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures_util::stream;
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;
    use tokio::time::sleep;

    use super::super::testing::FakeCluster;
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: String::new(), name: name.to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_over_one_item_does_not_delay_others() {
        let context = FakeCluster::new().context();
        let metrics = std::sync::Arc::clone(&context.metrics);
        let done = std::sync::Arc::new(Mutex::new(Vec::new()));
        let seen = std::sync::Arc::clone(&done);
        tokio::spawn(async move {
            let changes = stream::iter(["poison", "good"].map(key)).chain(stream::pending());
            let handle = async |key: ObjectKey| {
                seen.lock().unwrap().push(key.name.clone());
                let again = seen.lock().unwrap().len() > 2;
                assert!(again || key.name == "good", "panics over this item");
                AttemptOutcome::Done
            };
            work(
                &context,
                ControllerName::CsrApproving,
                RetryPolicy::CERTIFICATES,
                changes,
                &AtomicU64::new(0),
                handle,
            )
            .await
        });
        sleep(Duration::from_mins(1)).await;
        assert_eq!(*done.lock().unwrap(), ["poison", "good", "poison"]);
        assert_eq!(metrics.panics.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_depth_of_a_stopped_controller_is_zero() {
        let context = FakeCluster::new().context();
        let depth = context.metrics.controllers.depth.with_label_values(&["c", "csrsigning"]);
        let keys = (0..10).map(|number| key(&number.to_string()));
        let none = AtomicU64::new(0);
        let changes = stream::iter(keys).chain(stream::pending());
        let working =
            work(&context, ControllerName::CsrSigning, RetryPolicy::CERTIFICATES, changes, &none, |_| {
                std::future::pending()
            });
        assert!(timeout(Duration::from_secs(1), working).await.is_err());
        assert_eq!(depth.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn managed_fields_are_dropped() {
        let cluster = FakeCluster::new();
        let fields = json!([{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:data": {}}}]);
        let map = json!({"metadata": {"labels": {"a": "b"}, "managedFields": fields}, "data": {"k": "v"}});
        cluster.put("/api/v1/namespaces/n/configmaps/one", map);
        let context = cluster.context();
        let api = Api::<ConfigMap>::namespaced(context.client.clone(), "n");
        let (store, changes) = watch(&context, "configmaps", api, watcher::Config::default());
        let found = pin!(changes).next().await.unwrap().within(&store).unwrap();
        assert_eq!(found.metadata.managed_fields, None);
        assert_eq!((found.labels()["a"].as_str(), found.data.as_ref().unwrap()["k"].as_str()), ("b", "v"));
    }
}
