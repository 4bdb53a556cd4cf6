//! The labels of namespaces, for the `namespaceSelector` of webhooks: from a watch, else by a live read.
// apiserver: pkg/admission/plugin/webhook/predicates/namespace/matcher.go, GetNamespaceLabels

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use portcullis_admission::review::internal_error;
use portcullis_go::quote::Quoted;
use portcullis_go::url::path_segment;
use portcullis_limits::fair_limiter::{FairLimiter, Shares};
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::AdmissionPlace;
use crate::backend::watched::reflector::Reflector;
use crate::backend::watched::watch_cache::WatchCache;
use crate::backend::{Backend, kube_client, watched};

/// How long a live read may take.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
const PAGE_SIZE: u32 = 500;

/// Live reads: of a namespace that the watch does not show yet, or that does not exist.
// threat: silent-backend
const SHARES: Shares = Shares::new(64, 8).with_queue(1024, 64);
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

type Labels = BTreeMap<String, String>;

/// The labels of a cluster's namespaces.
pub(super) struct NamespaceLabels {
    cluster: Arc<str>,
    backend: Arc<Backend>,
    client: Client,
    runtime: Handle,
    cache: Arc<WatchCache<Labels>>,
    live_reads: FairLimiter<Arc<str>>,
    watch: AbortHandle,
}

impl NamespaceLabels {
    /// Starts the watch.
    pub(super) fn start(place: &AdmissionPlace<'_>) -> Self {
        let AdmissionPlace { cluster, backend, runtime, metrics, .. } = *place;
        let client = {
            let _runtime = runtime.enter();
            kube_client::client(backend)
        };
        let cache = Arc::default();
        let reflector = Reflector {
            cluster: cluster.to_owned(),
            resource: "namespaces",
            api: Api::<PartialObjectMeta<Namespace>>::all(client.clone()),
            fields: None,
            project: |namespace| namespace.metadata.labels.clone().unwrap_or_default(),
            page_size: PAGE_SIZE,
            cache: Arc::clone(&cache),
            stale: metrics.token_objects.stale_watches.with_label_values(&[cluster, "namespaces"]),
            last_error: Mutex::default(),
        };
        let watch = watched::spawn(reflector, backend, runtime, metrics);
        let live_reads = FairLimiter::new(SHARES);
        let (cluster, backend, runtime) = (cluster.into(), Arc::clone(backend), runtime.clone());
        Self { cluster, backend, client, runtime, cache, live_reads, watch }
    }

    /// Whether it watches this backend, so that a reload can keep it.
    pub(super) fn is_for(&self, backend: &Arc<Backend>) -> bool {
        Arc::ptr_eq(&self.backend, backend)
    }

    /// The labels of a namespace; the `Status` for the client if they cannot be read.
    pub(super) async fn get(&self, flow: &str, namespace: &str) -> Result<Labels, Box<meta::Status>> {
        // In a path, it could name another object.
        if !path_segment(namespace).is_ok_and(|segment| segment == namespace) {
            return Err(not_found(namespace));
        }
        if let Some(known) = self.cache.get("", namespace) {
            return Ok(Labels::clone(&known));
        }
        // A caller whose time is over gives up here, and begins no read.
        yield_now().await;
        let (client, name) = (self.client.clone(), namespace.to_owned());
        let (shares, flow, cluster) = (self.live_reads.clone(), Arc::from(flow), Arc::clone(&self.cluster));
        let reading = AbortOnDropHandle::new(self.runtime.spawn(async move {
            let busy = |_| internal_error("too many reads of namespaces are in progress");
            let _permit = shares.acquire(flow, 1, Instant::now() + QUEUE_TIMEOUT).await.map_err(busy)?;
            read(client, &cluster, &name).await
        }));
        reading.await.unwrap_or_else(|_| Err(internal_error("the read of the namespace was cancelled")))
    }
}

async fn read(client: Client, cluster: &str, name: &str) -> Result<Labels, Box<meta::Status>> {
    let api = Api::<PartialObjectMeta<Namespace>>::all(client);
    match timeout(READ_TIMEOUT, api.get_opt(name)).await {
        Ok(Ok(Some(found))) => Ok(found.metadata.labels.unwrap_or_default()),
        Ok(Ok(None)) => Err(not_found(name)),
        Ok(Err(error)) => {
            tracing::warn!(cluster, namespace = name, %error, "cannot read a namespace for an admission webhook");
            Err(internal_error(&format!("the gateway cannot read the namespace {}", Quoted(name))))
        }
        Err(_) => Err(internal_error(&format!("the namespace {} was not read in time", Quoted(name)))),
    }
}

// apimachinery: pkg/api/errors/errors.go, NewNotFound
fn not_found(name: &str) -> Box<meta::Status> {
    Box::new(meta::Status {
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
    })
}

impl Drop for NamespaceLabels {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl fmt::Debug for NamespaceLabels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamespaceLabels").finish_non_exhaustive()
    }
}
