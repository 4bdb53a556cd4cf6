//! The objects of a cluster that tokens are verified against: secrets, service accounts, pods and nodes. Watches keep
//! the parts that authenticators need; the gateway reads an object live if the watch cache is stale or does not have
//! it.
//!
//! Follows kube-apiserver's getters (`pkg/controller/serviceaccount/tokengetter.go`): a cache hit counts, a miss costs
//! a live read. An unauthenticated client can name any bootstrap token, so live reads of their secrets are rate
//! limited.

mod label_patches;
mod published;
mod read_rate;

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use portcullis_go::url::path_segment;
use portcullis_http::identity::TEXT_OVERHEAD;
use portcullis_limits::Owner;
use portcullis_openid::jwt::key_set::KeySet;
use portcullis_system::clock::UnixTime;
use secrecy::{ExposeSecret as _, SecretSlice};
use serde_json::json;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::authn::BoxFuture;
use crate::authn::service_account::{LEGACY_TOKEN_KEY, LEGACY_TOKEN_LABELS};
use crate::authn::token_getter::{
    GetResult, ObjectIdentity, Secret, ServiceAccount, TokenGetter, TokenGetterError,
};
use crate::backend::Backend;
use crate::backend::kube_client;
use crate::backend::watched;
use crate::backend::watched::reflector::Reflector;
use crate::backend::watched::watch_cache::{Cacheable, WatchCache};
use crate::metrics::Metrics;
use label_patches::LabelPatches;
use published::PublishedKeys;
use read_rate::ReadRateLimiter;

const BOOTSTRAP_NAMESPACE: &str = "kube-system";
const BOOTSTRAP_SECRETS: &str = "type=bootstrap.kubernetes.io/token";
const TOKEN_SECRETS: &str = "type=kubernetes.io/service-account-token";

/// Objects per page of a list; fewer secrets, because one may have a megabyte.
const PAGE_SIZE: u32 = 500;
const SECRETS_PAGE_SIZE: u32 = 50;

/// How long a live read of an object may take, with its body.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a label is not written again, so that a watch can report it or an operator can grant the permission.
const LABEL_PATCH_INTERVAL: Duration = Duration::from_mins(1);

impl Cacheable for ObjectIdentity {
    fn memory(&self) -> usize {
        size_of::<Self>() + self.uid.len()
    }
}

impl Cacheable for ServiceAccount {
    fn memory(&self) -> usize {
        let secrets = self.secrets.iter().map(|name| name.len() + TEXT_OVERHEAD);
        self.identity.memory() + secrets.sum::<usize>()
    }
}

impl Cacheable for Secret {
    fn memory(&self) -> usize {
        let value = |value: &SecretSlice<u8>| value.expose_secret().len() + 2 * TEXT_OVERHEAD;
        let data = self.data.iter().map(|(key, found)| key.len() + value(found));
        self.identity.memory() + self.labels.memory() + self.kind.len() + data.sum::<usize>()
    }
}

/// Which kinds of tokens need objects of the cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TokenObjectKinds {
    /// Bootstrap tokens.
    pub(crate) bootstrap_tokens: bool,
    /// Service-account tokens.
    pub(crate) service_accounts: bool,
}

/// The watch caches of one cluster. They outlive a reload that does not change the cluster's backend.
pub(crate) struct TokenObjectCache {
    cluster: String,
    backend: Arc<Backend>,
    kinds: TokenObjectKinds,
    client: Client,
    runtime: Handle,
    metrics: Arc<Metrics>,
    bootstrap_secrets: Arc<WatchCache<Secret>>,
    token_secrets: Arc<WatchCache<Secret>>,
    service_accounts: Arc<WatchCache<ServiceAccount>>,
    pods: Arc<WatchCache<ObjectIdentity>>,
    nodes: Arc<WatchCache<ObjectIdentity>>,
    live_bootstrap_reads: ReadRateLimiter,
    labels: LabelPatches,
    keys: Arc<KeySet>,
    /// Fetches the keys ahead of the first token, and refreshes them.
    key_refresh: OnceLock<AbortHandle>,
    watches: Vec<AbortHandle>,
}

impl TokenObjectCache {
    /// Starts the watches that `kinds` need, on `runtime`.
    pub(crate) fn start(
        cluster: &str,
        backend: &Arc<Backend>,
        kinds: TokenObjectKinds,
        runtime: &Handle,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let _entered = runtime.enter();
        Self::with_client(kube_client::client(backend), cluster, backend, kinds, runtime, metrics)
    }

    /// [`Self::start`] with a given client.
    fn with_client(
        client: Client,
        cluster: &str,
        backend: &Arc<Backend>,
        kinds: TokenObjectKinds,
        runtime: &Handle,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let keys = KeySet::new(Box::new(PublishedKeys::new(client.clone(), cluster, metrics)));
        let mut cache = Self {
            cluster: cluster.to_owned(),
            backend: Arc::clone(backend),
            kinds,
            runtime: runtime.clone(),
            metrics: Arc::clone(metrics),
            bootstrap_secrets: Arc::default(),
            token_secrets: Arc::default(),
            service_accounts: Arc::default(),
            pods: Arc::default(),
            nodes: Arc::default(),
            live_bootstrap_reads: ReadRateLimiter::new(),
            labels: LabelPatches::default(),
            keys: Arc::new(keys),
            key_refresh: OnceLock::new(),
            watches: Vec::new(),
            client,
        };
        cache.watches = cache.start_watches();
        cache
    }

    fn start_watches(&self) -> Vec<AbortHandle> {
        let client = || self.client.clone();
        let mut watches = Vec::new();
        if self.kinds.bootstrap_tokens {
            let api = Api::<core::Secret>::namespaced(client(), BOOTSTRAP_NAMESPACE);
            let cache = &self.bootstrap_secrets;
            watches.push(self.spawn("secrets", api, Some(BOOTSTRAP_SECRETS), cache, bootstrap_secret));
        }
        if self.kinds.service_accounts {
            let api = Api::<core::Secret>::all(client());
            watches.push(self.spawn("secrets", api, Some(TOKEN_SECRETS), &self.token_secrets, token_secret));
            let api = Api::<core::ServiceAccount>::all(client());
            watches.push(self.spawn("serviceaccounts", api, None, &self.service_accounts, service_account));
            let api = Api::<PartialObjectMeta<core::Pod>>::all(client());
            let project = |pod: &PartialObjectMeta<core::Pod>| identity(&pod.metadata);
            watches.push(self.spawn("pods", api, None, &self.pods, project));
            let api = Api::<PartialObjectMeta<core::Node>>::all(client());
            let project = |node: &PartialObjectMeta<core::Node>| identity(&node.metadata);
            watches.push(self.spawn("nodes", api, None, &self.nodes, project));
        }
        watches
    }

    fn spawn<K, V>(
        &self,
        resource: &'static str,
        api: Api<K>,
        fields: Option<&'static str>,
        cache: &Arc<WatchCache<V>>,
        project: fn(&K) -> V,
    ) -> AbortHandle
    where
        K: kube::Resource + Clone + fmt::Debug + serde::de::DeserializeOwned + Send + Sync + 'static,
        V: Cacheable + Send + Sync + 'static,
    {
        let cluster = self.cluster.clone();
        let stale = self.metrics.token_objects.stale_watches.with_label_values(&[cluster.as_str(), resource]);
        let (cache, last_error) = (Arc::clone(cache), Mutex::default());
        let page_size = if resource == "secrets" { SECRETS_PAGE_SIZE } else { PAGE_SIZE };
        let reflector =
            Reflector { cluster, resource, api, fields, project, page_size, cache, stale, last_error };
        watched::spawn(reflector, &self.backend, &self.runtime, &self.metrics)
    }

    /// Whether it was built for this backend and these kinds, so that a reload can keep it.
    pub(crate) fn is_for(&self, backend: &Arc<Backend>, kinds: TokenObjectKinds) -> bool {
        Arc::ptr_eq(&self.backend, backend) && self.kinds == kinds
    }

    /// The keys that the API server publishes for its service-account tokens. The first call starts to fetch them, so
    /// that the tokens after a restart do not have to wait.
    pub(crate) fn service_account_keys(&self) -> Arc<KeySet> {
        // One task for the life of this cache: the API server may never become available, and each reload calls this.
        self.key_refresh.get_or_init(|| {
            let (backend, keys) = (Arc::clone(&self.backend), Arc::clone(&self.keys));
            let task = self.runtime.spawn(async move {
                backend.until_trusted().await;
                // If this fails, the first token causes another attempt.
                keys.initialize().await.ok();
                keys.keep_fresh().await;
            });
            task.abort_handle()
        });
        Arc::clone(&self.keys)
    }

    fn count(&self, resource: &str, source: &str) {
        self.metrics.token_objects.lookups.with_label_values(&[&self.cluster, resource, source]).inc();
    }

    /// Gets an object from the watch cache, else from the API server.
    // threat: deleted-account
    async fn cached_or_live<K, V>(
        &self,
        resource: &'static str,
        known: &WatchCache<V>,
        api: Api<K>,
        namespace: &str,
        name: &str,
        project: fn(&K) -> V,
    ) -> GetResult<V>
    where
        K: kube::Resource + Clone + fmt::Debug + serde::de::DeserializeOwned,
    {
        // No object has such a name, and in a path it could name another object.
        if !(namespace.is_empty() || is_path_segment(namespace)) || !is_path_segment(name) {
            return Ok(None);
        }
        if let Some(found) = known.get(namespace, name) {
            self.count(resource, "watch");
            return Ok(Some(found));
        }
        self.read_live(resource, api, name, project).await
    }

    // threat: object-name-escape
    async fn read_live<K, V>(
        &self,
        resource: &'static str,
        api: Api<K>,
        name: &str,
        project: fn(&K) -> V,
    ) -> GetResult<V>
    where
        K: kube::Resource + Clone + fmt::Debug + serde::de::DeserializeOwned,
    {
        self.count(resource, "live");
        let Ok(found) = timeout(READ_TIMEOUT, api.get_opt(name)).await else {
            let problem = format!("cannot read {resource} {name:?}: no response within {READ_TIMEOUT:?}");
            return Err(TokenGetterError(problem));
        };
        match found {
            Ok(Some(object)) if object.meta().name.as_deref() != Some(name) => {
                let other = object.meta().name.as_deref().unwrap_or_default();
                Err(TokenGetterError(format!(
                    "requested {resource} {name:?}, but the API server returned {other:?}"
                )))
            }
            Ok(object) => Ok(object.map(|object| Arc::new(project(&object)))),
            Err(error) => Err(TokenGetterError(format!("cannot read {resource} {name:?}: {error}"))),
        }
    }
}

impl Drop for TokenObjectCache {
    fn drop(&mut self) {
        self.watches.iter().chain(self.key_refresh.get()).for_each(AbortHandle::abort);
    }
}

impl fmt::Debug for TokenObjectCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenObjectCache")
            .field("cluster", &self.cluster)
            .field("kinds", &self.kinds)
            .finish_non_exhaustive()
    }
}

impl TokenGetter for TokenObjectCache {
    fn service_account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, GetResult<ServiceAccount>> {
        let api = Api::namespaced(self.client.clone(), namespace);
        Box::pin(self.cached_or_live(
            "serviceaccounts",
            &self.service_accounts,
            api,
            namespace,
            name,
            service_account,
        ))
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, GetResult<Secret>> {
        Box::pin(async move {
            let api = Api::namespaced(self.client.clone(), namespace);
            self.cached_or_live("secrets", &self.token_secrets, api, namespace, name, token_secret).await
        })
    }

    fn bootstrap_secret<'a>(&'a self, name: &'a str, owner: &'a Owner) -> BoxFuture<'a, GetResult<Secret>> {
        Box::pin(async move {
            // A client can name tokens that do not exist: past the rate limit, a fresh watch cache decides alone.
            if let Some(found) = self.bootstrap_secrets.get(BOOTSTRAP_NAMESPACE, name) {
                self.count("secrets", "watch");
                return Ok(Some(found));
            }
            if !self.live_bootstrap_reads.take(owner) {
                self.count("secrets", "rate_limited");
                return if self.bootstrap_secrets.is_fresh() {
                    Ok(None)
                } else {
                    let problem = "no fresh watch of bootstrap tokens, and the read rate limit is reached";
                    Err(TokenGetterError(problem.to_owned()))
                };
            }
            let api = Api::namespaced(self.client.clone(), BOOTSTRAP_NAMESPACE);
            self.read_live("secrets", api, name, bootstrap_secret).await
        })
    }

    fn pod<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, GetResult<ObjectIdentity>> {
        let api = Api::<core::Pod>::namespaced(self.client.clone(), namespace);
        let project = |pod: &core::Pod| identity(&pod.metadata);
        Box::pin(self.cached_or_live("pods", &self.pods, api, namespace, name, project))
    }

    fn node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, GetResult<ObjectIdentity>> {
        let api = Api::<core::Node>::all(self.client.clone());
        let project = |node: &core::Node| identity(&node.metadata);
        Box::pin(self.cached_or_live("nodes", &self.nodes, api, "", name, project))
    }

    fn label_secret(&self, namespace: &str, name: &str, label: &'static str, value: String) {
        // The verdict on a refused token is not cached: without this, each request with one could cause a patch.
        let Some(patch_in_flight) = self.labels.begin(namespace, name) else { return };
        let api = Api::<core::Secret>::namespaced(self.client.clone(), namespace);
        let (cluster, namespace, name) = (self.cluster.clone(), namespace.to_owned(), name.to_owned());
        self.runtime.spawn(async move {
            let patch = json!({"metadata": {"labels": {label: value}}});
            let patched = api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
            if let Err(error) = patched {
                warn!(cluster, namespace, name, label, %error, "cannot label a service account's secret");
            }
            sleep(LABEL_PATCH_INTERVAL).await;
            drop(patch_in_flight);
        });
    }
}

/// Whether the name is a path segment without escapes.
fn is_path_segment(name: &str) -> bool {
    path_segment(name).is_ok_and(|segment| segment == name)
}

fn identity(meta: &ObjectMeta) -> ObjectIdentity {
    let deleted = meta.deletion_timestamp.as_ref().map(|time| {
        // A time before 1970 counts as deleted, too.
        UnixTime::try_from(time.0.duration_since(k8s_openapi::jiff::Timestamp::UNIX_EPOCH))
            .unwrap_or_default()
    });
    ObjectIdentity { uid: meta.uid.clone().unwrap_or_default(), deleted }
}

fn service_account(account: &core::ServiceAccount) -> ServiceAccount {
    let secrets = account.secrets.iter().flatten().filter_map(|secret| secret.name.clone());
    ServiceAccount { identity: identity(&account.metadata), secrets: secrets.collect() }
}

/// The secret of a bootstrap token.
fn bootstrap_secret(secret: &core::Secret) -> Secret {
    reduced(secret, |_| true, |_| false)
}

/// The secret of a service-account token, reduced to the parts that a token is compared with.
fn token_secret(secret: &core::Secret) -> Secret {
    reduced(secret, |key| key == LEGACY_TOKEN_KEY, |label| LEGACY_TOKEN_LABELS.contains(&label))
}

fn reduced(secret: &core::Secret, keeps: fn(&str) -> bool, keeps_label: fn(&str) -> bool) -> Secret {
    let data = secret.data.iter().flatten().filter(|(key, _)| keeps(key));
    let labels = secret.metadata.labels.iter().flatten().filter(|(label, _)| keeps_label(label));
    Secret {
        identity: identity(&secret.metadata),
        labels: labels.map(|(label, value)| (label.clone(), value.clone())).collect(),
        kind: secret.type_.clone().unwrap_or_default(),
        data: data.map(|(key, value)| (key.clone(), SecretSlice::from(value.0.clone()))).collect(),
    }
}

#[cfg(test)]
mod tests;
