//! Namespaces, for the `namespaceSelector` of webhooks and policies, and for the `namespaceObject` of policies: from a watch, else by a
//! live read. Of those that no policy uses only the metadata is read.
// apiserver: pkg/admission/plugin/webhook/predicates/namespace/matcher.go, GetNamespaceLabels; GetNamespace

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use kube::core::{ClusterResourceScope, PartialObjectMeta};
use kube::{Api, Client, Resource};
use portcullis_admission::MatchError;
use portcullis_admission::review::internal_error;
use portcullis_go::quote::Quoted;
use portcullis_go::url::path_segment;
use portcullis_limits::fair_limiter::{FairLimiter, Shares};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::AdmissionPlace;
use super::surroundings::too_many_requests;
use crate::backend::watched::reflector::Reflector;
use crate::backend::watched::watch_cache::{Cacheable, WatchCache};
use crate::backend::{Backend, kube_client, watched};

/// How long a live read may take.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
const PAGE_SIZE: u32 = 500;

/// Live reads: of a namespace that the watch does not show yet, or that does not exist.
// threat: silent-backend
const SHARES: Shares = Shares::new(64, 8).with_queue(1024, 64);
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

type Labels = BTreeMap<String, String>;

/// What admission needs of namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NamespaceUse {
    Nothing,
    Labels,
    Objects,
}

/// The namespaces of a cluster.
#[derive(Debug)]
pub(super) enum Namespaces {
    Labels(WatchedNamespaces<PartialObjectMeta<Namespace>, Labels>),
    Objects(WatchedNamespaces<Namespace, NamespaceObject>),
}

/// A namespace.
#[derive(Debug, Clone)]
pub(super) struct NamespaceObject {
    labels: Labels,
    /// `None` if it cannot be shown.
    object: Option<Value>,
    /// The length of its text.
    size: usize,
}

impl NamespaceObject {
    // What no policy sees takes no memory.
    fn of(namespace: &Namespace) -> Self {
        let mut namespace = namespace.clone();
        namespace.metadata.managed_fields = None;
        let object = serde_json::to_value(&namespace).ok();
        let size = object.as_ref().map_or(0, |object| object.to_string().len());
        Self { labels: namespace.metadata.labels.unwrap_or_default(), object, size }
    }
}

impl Cacheable for NamespaceObject {
    fn memory(&self) -> usize {
        // A tree of values takes more than its text.
        self.labels.memory() + 4 * self.size
    }
}

fn labels_of(namespace: &PartialObjectMeta<Namespace>) -> Labels {
    namespace.metadata.labels.clone().unwrap_or_default()
}

impl Namespaces {
    /// Starts the watch, or keeps that of before if it is for the same backend and use.
    pub(super) fn start(
        needed: NamespaceUse,
        place: &AdmissionPlace<'_>,
        before: Option<&Arc<Self>>,
    ) -> Option<Arc<Self>> {
        if let Some(before) = before.filter(|before| before.serves(needed, place.backend)) {
            return Some(Arc::clone(before));
        }
        match needed {
            NamespaceUse::Nothing => None,
            NamespaceUse::Labels => Some(Self::Labels(WatchedNamespaces::start(place, labels_of))),
            NamespaceUse::Objects => {
                Some(Self::Objects(WatchedNamespaces::start(place, NamespaceObject::of)))
            }
        }
        .map(Arc::new)
    }

    fn serves(&self, needed: NamespaceUse, backend: &Arc<Backend>) -> bool {
        match self {
            Self::Labels(known) => needed == NamespaceUse::Labels && Arc::ptr_eq(&known.backend, backend),
            Self::Objects(known) => needed == NamespaceUse::Objects && Arc::ptr_eq(&known.backend, backend),
        }
    }

    /// The labels of a namespace.
    pub(super) async fn labels(&self, flow: &str, namespace: &str) -> Result<Labels, MatchError> {
        match self {
            Self::Labels(known) => known.get(flow, namespace).await.map(|labels| Labels::clone(&labels)),
            Self::Objects(known) => known.get(flow, namespace).await.map(|found| found.labels.clone()),
        }
    }

    /// A namespace.
    pub(super) async fn object(&self, flow: &str, namespace: &str) -> Result<Value, MatchError> {
        match self {
            Self::Labels(_) => Err(unknown("namespaces are not watched as a whole")),
            Self::Objects(known) => {
                let found = known.get(flow, namespace).await?;
                found.object.clone().ok_or_else(|| unknown("the namespace cannot be read"))
            }
        }
    }
}

/// What is known of the namespaces of a cluster, which are read as `K`.
pub(super) struct WatchedNamespaces<K, V> {
    cluster: Arc<str>,
    backend: Arc<Backend>,
    client: Client,
    runtime: Handle,
    project: fn(&K) -> V,
    cache: Arc<WatchCache<V>>,
    live_reads: FairLimiter<Arc<str>>,
    watch: AbortHandle,
}

impl<K, V> WatchedNamespaces<K, V>
where
    K: Resource<Scope = ClusterResourceScope, DynamicType = ()>
        + Clone
        + fmt::Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
    V: Cacheable + Send + Sync + 'static,
{
    fn start(place: &AdmissionPlace<'_>, project: fn(&K) -> V) -> Self {
        let AdmissionPlace { cluster, backend, runtime, metrics, .. } = *place;
        let client = {
            let _runtime = runtime.enter();
            kube_client::client(backend)
        };
        let cache = Arc::default();
        let reflector = Reflector {
            cluster: cluster.to_owned(),
            resource: "namespaces",
            api: Api::<K>::all(client.clone()),
            fields: None,
            project,
            page_size: PAGE_SIZE,
            cache: Arc::clone(&cache),
            stale: metrics.token_objects.stale_watches.with_label_values(&[cluster, "namespaces"]),
            last_error: Mutex::default(),
        };
        let watch = watched::spawn(reflector, backend, runtime, metrics);
        let live_reads = FairLimiter::new(SHARES);
        let (cluster, backend, runtime) = (cluster.into(), Arc::clone(backend), runtime.clone());
        Self { cluster, backend, client, runtime, project, cache, live_reads, watch }
    }

    /// What is known of a namespace.
    async fn get(&self, flow: &str, namespace: &str) -> Result<Arc<V>, MatchError> {
        // In a path, it could name another object.
        if !path_segment(namespace).is_ok_and(|segment| segment == namespace) {
            return Err(not_found(namespace));
        }
        if let Some(known) = self.cache.get("", namespace) {
            return Ok(known);
        }
        // A caller whose time is over gives up here, and begins no read.
        yield_now().await;
        let (api, name, project) = (Api::<K>::all(self.client.clone()), namespace.to_owned(), self.project);
        let (shares, flow, cluster) = (self.live_reads.clone(), Arc::from(flow), Arc::clone(&self.cluster));
        let reading = AbortOnDropHandle::new(self.runtime.spawn(async move {
            let busy = |_| MatchError::Request(too_many_requests());
            let _permit = shares.acquire(flow, 1, Instant::now() + QUEUE_TIMEOUT).await.map_err(busy)?;
            read(&api, &cluster, &name).await.map(|found| Arc::new(project(&found)))
        }));
        reading.await.unwrap_or_else(|_| Err(unknown("the read of the namespace was cancelled")))
    }
}

async fn read<K>(api: &Api<K>, cluster: &str, name: &str) -> Result<K, MatchError>
where
    K: Clone + fmt::Debug + DeserializeOwned,
{
    match timeout(READ_TIMEOUT, api.get_opt(name)).await {
        Ok(Ok(Some(found))) => Ok(found),
        Ok(Ok(None)) => Err(not_found(name)),
        Ok(Err(error)) => {
            tracing::warn!(cluster, namespace = name, %error, "cannot read a namespace for admission");
            Err(unknown(&format!("the gateway cannot read the namespace {}", Quoted(name))))
        }
        Err(_) => Err(unknown(&format!("the namespace {} was not read in time", Quoted(name)))),
    }
}

/// No policy may be ignored for it. The reference reads namespaces from itself.
fn unknown(error: &str) -> MatchError {
    MatchError::Request(internal_error(error))
}

// apimachinery: pkg/api/errors/errors.go, NewNotFound
fn not_found(name: &str) -> MatchError {
    MatchError::Configuration(Box::new(meta::Status {
        code: Some(404),
        reason: Some("NotFound".to_owned()),
        message: Some(format!("namespaces {} not found", Quoted(name))),
        status: Some("Failure".to_owned()),
        details: Some(meta::StatusDetails {
            name: Some(name.to_owned()),
            kind: Some("namespaces".to_owned()),
            ..meta::StatusDetails::default()
        }),
        ..meta::Status::default()
    }))
}

impl<K, V> Drop for WatchedNamespaces<K, V> {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl<K, V> fmt::Debug for WatchedNamespaces<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedNamespaces").finish_non_exhaustive()
    }
}
