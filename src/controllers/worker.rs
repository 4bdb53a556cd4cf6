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

use futures_util::stream::{self, FuturesUnordered};
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt as _};
use prometheus::IntGauge;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, error, info, warn};

use super::ControllerContext;
use super::bounded_store::{BoundedStore, BoundedWriter, Fit};
use super::name::ControllerName;
use super::queue::{AttemptOutcome, MAX_WAITING, RetryPolicy, WorkItem, WorkQueue};
use crate::backend::follow::{FollowEvent, FollowPolicy, FollowedResource, Follower};

/// A small page is rarely larger than the client permits.
const POLICY: FollowPolicy = FollowPolicy { page_size: 10, ..FollowPolicy::DEFAULT };

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
/// first list is complete, then the key of each object that changes or is deleted. The store has of each object
/// what `trim` leaves, without `managedFields`, and objects as far as they fit: see [`BoundedWriter`].
// kubernetes: cmd/kube-controller-manager/app/controllermanager.go, CreateControllerContext
pub(super) fn watch<K>(
    context: &ControllerContext,
    resource: &'static str,
    api: Api<K>,
    config: watcher::Config,
    trim: fn(&mut K),
) -> (BoundedStore<K>, impl Stream<Item = ObjectKey> + Send + use<K>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let followed = FollowedResource {
        path: api.resource_url().to_owned(),
        label_selector: config.label_selector,
        field_selector: config.field_selector,
        ..FollowedResource::default()
    };
    watch_resource(context, resource, Follower::new(api.into_client(), followed, POLICY), trim)
}

/// The same for a resource whose path depends on the API server.
pub(super) fn watch_path<K>(
    context: &ControllerContext,
    resource: &'static str,
    followed: FollowedResource,
    trim: fn(&mut K),
) -> (BoundedStore<K>, impl Stream<Item = ObjectKey> + Send + use<K>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    watch_resource(context, resource, Follower::new(context.client.clone(), followed, POLICY), trim)
}

fn watch_resource<K>(
    context: &ControllerContext,
    resource: &'static str,
    follower: Follower,
    trim: fn(&mut K),
) -> (BoundedStore<K>, impl Stream<Item = ObjectKey> + Send + use<K>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let mut writer = BoundedWriter::<K>::new(context.max_stored_bytes, &context.caches);
    let (store, known) = (writer.store(), writer.store());
    let cluster = context.cluster.clone();
    let mut listed = BTreeSet::new();
    let mut last_error: Option<String> = None;
    let events = stream::unfold(follower, async |mut follower| {
        let event = follower.next().await;
        Some(((event, follower.is_failing()), follower))
    });
    let max_bytes = context.max_stored_bytes;
    let changed = events.map(move |(event, is_failing)| {
        let warn_of_first = |fit: Fit| {
            if fit == (Fit::LeftOut { is_first: true }) {
                warn!(
                    cluster = &*cluster,
                    resource, max_bytes, "too many objects: a controller leaves out those that do not fit"
                );
            }
        };
        if !is_failing && last_error.take().is_some() {
            info!(cluster = &*cluster, resource, "watching again");
        }
        match event {
            Ok(FollowEvent::ListBegins) => {
                writer.begin_list();
                // No event reports a deletion between two watches: the keys from before the list are sent, too.
                listed = known.state().iter().map(|object| ObjectKey::of(&**object)).collect();
            }
            Ok(FollowEvent::Page(objects)) => {
                for object in objects {
                    let (key, object) = trimmed(object, trim);
                    let fit = writer.list(object);
                    warn_of_first(fit);
                    // Nothing is done for an object that is left out: its key need not be kept, either.
                    if fit == Fit::Kept {
                        listed.insert(key);
                    }
                }
            }
            Ok(FollowEvent::Listed { .. }) => {
                writer.end_list();
                return std::mem::take(&mut listed).into_iter().collect();
            }
            // Its receiver finds the new object in the store.
            Ok(FollowEvent::Applied(object)) => {
                let (key, object) = trimmed(object, trim);
                warn_of_first(writer.apply(object));
                return vec![key];
            }
            Ok(FollowEvent::Deleted(object)) => {
                let (key, object) = trimmed(object, trim);
                writer.delete(object);
                return vec![key];
            }
            Ok(_) => {}
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
            }
        }
        Vec::new()
    });
    (store, changed.flat_map(stream::iter))
}

/// The key of an object, and what is kept of it.
fn trimmed<K: Resource>(mut object: K, trim: fn(&mut K)) -> (ObjectKey, K) {
    object.meta_mut().managed_fields = None;
    trim(&mut object);
    (ObjectKey::of(&object), object)
}

/// Drops of a token's Secret what no controller needs to know: all but its identity, its type and these keys.
pub(super) fn trim_token(secret: &mut Secret, keys: &[&str]) {
    let metadata = std::mem::take(&mut secret.metadata);
    let ObjectMeta { name, namespace, uid, resource_version, .. } = metadata;
    secret.metadata = ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() };
    secret.string_data = None;
    if let Some(data) = &mut secret.data {
        data.retain(|key, _| keys.contains(&key.as_str()));
    }
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
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::client::Body;
    use serde_json::json;
    use tokio::time::sleep;
    use tower::service_fn;

    use super::super::testing::FakeCluster;
    use super::*;
    use crate::backend::response_size::ResponseSize;

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

    /// A context with a client of an API server that lists ten `ConfigMap`s, of which `fit` are not too large for a page,
    /// or refuses lists. It never answers a watch. Also returns the limits of the lists.
    fn listing(fit: Option<usize>) -> (ControllerContext, std::sync::Arc<Mutex<Vec<usize>>>) {
        let limits = std::sync::Arc::<Mutex<Vec<usize>>>::default();
        let seen = std::sync::Arc::clone(&limits);
        let service = service_fn(move |request: http::Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            let query: BTreeMap<_, _> = url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
            let limit = query.get("limit").map(|limit| limit.parse::<usize>().unwrap());
            seen.lock().unwrap().extend(limit);
            async move {
                let Some(limit) = limit else { return std::future::pending().await };
                let Some(fit) = fit else {
                    return Ok(http::Response::builder().status(500).body(Body::empty()).unwrap());
                };
                if limit > fit {
                    return Err(ResponseSize::new(false, 0).add(b"x").unwrap_err());
                }
                let from: usize = query.get("continue").map_or(0, |token| token.parse().unwrap());
                let to = (from + limit).min(10);
                let items: Vec<_> =
                    (from..to).map(|n| json!({"metadata": {"name": n.to_string()}})).collect();
                let token = if to < 10 { to.to_string() } else { String::new() };
                let list = json!({"metadata": {"resourceVersion": "7", "continue": token}, "items": items});
                Ok(http::Response::new(Body::from(list.to_string().into_bytes())))
            }
        });
        let mut context = FakeCluster::new().context();
        context.client = kube::Client::new(service, "default");
        (context, limits)
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_of_large_objects_is_requested_in_parts() {
        let (context, limits) = listing(Some(3));
        let api = Api::<ConfigMap>::namespaced(context.client.clone(), "n");
        let (store, changes) = watch(&context, "configmaps", api, watcher::Config::default(), |_| {});
        let keys: Vec<_> = pin!(changes).take(10).map(|key| key.name).collect().await;
        assert_eq!(keys, (0..10).map(|number| number.to_string()).collect::<Vec<_>>());
        assert_eq!(store.state().len(), 10);
        assert_eq!(limits.lock().unwrap()[..3], [10, 1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn lists_that_fail_are_requested_less_and_less_often() {
        let (context, limits) = listing(None);
        let api = Api::<ConfigMap>::namespaced(context.client.clone(), "n");
        let (_, changes) = watch(&context, "configmaps", api, watcher::Config::default(), |_| {});
        assert!(timeout(Duration::from_mins(10), pin!(changes).next()).await.is_err());
        let lists = limits.lock().unwrap().len();
        assert!((15..=30).contains(&lists), "{lists} lists in ten minutes");
    }

    #[tokio::test(start_paused = true)]
    async fn managed_fields_are_dropped() {
        let cluster = FakeCluster::new();
        let fields = json!([{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:data": {}}}]);
        let map = json!({"metadata": {"labels": {"a": "b"}, "managedFields": fields}, "data": {"k": "v"}});
        cluster.put("/api/v1/namespaces/n/configmaps/one", map);
        let context = cluster.context();
        let api = Api::<ConfigMap>::namespaced(context.client.clone(), "n");
        let (store, changes) = watch(&context, "configmaps", api, watcher::Config::default(), |_| {});
        let found = pin!(changes).next().await.unwrap().within(&store).unwrap();
        assert_eq!(found.metadata.managed_fields, None);
        assert_eq!((found.labels()["a"].as_str(), found.data.as_ref().unwrap()["k"].as_str()), ("b", "v"));
    }
}
