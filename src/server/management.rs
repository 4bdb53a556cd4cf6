//! Keeps the Secrets of the management cluster up to date: a list, then watches, and a list again when a watch has failed
//! or its time is over. What was read last stays while the management cluster is away. Every request has a deadline.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt as _};
use portcullis_system::clock::Clock;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::backend::Backend;
use crate::backend::kube_client;
use crate::backend::response_size::is_too_large;
use crate::config::inputs::CredentialUser;
use crate::config::management_cluster::{MAX_BYTES, MAX_SECRETS, ManagementSettings, SecretData};
use crate::metrics::{BackendTimings, Metrics};
use crate::state::Live;

/// How long a watch lasts; then everything is listed again.
const WATCH_SECONDS: u32 = 60;
/// How long the next event of a watch may take: the watch ends before.
const EVENT_TIMEOUT: Duration = Duration::from_secs(75);
/// How long a list may take, with all its pages.
const LIST_TIMEOUT: Duration = Duration::from_mins(2);
const PAGE_SIZE: u32 = 100;
/// The shortest round: an API server may end watches at once.
const MIN_ROUND: Duration = Duration::from_secs(1);
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Watches the Secrets of the management cluster in force.
#[derive(Debug)]
pub(super) struct ManagementWatch {
    pub(super) live: Arc<Live>,
    pub(super) reader: SecretReader,
}

/// Reads the Secrets of one management cluster.
#[derive(Debug)]
pub(super) struct SecretReader {
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
}

type Secrets = BTreeMap<String, Arc<SecretData>>;

/// Why the Secrets cannot be read.
#[derive(Debug, thiserror::Error)]
enum SyncError {
    #[error("the connection cannot be configured: {0}")]
    Connection(#[source] rustls::Error),
    #[error("Secrets cannot be listed: {0}")]
    List(#[source] kube::Error),
    #[error("the list did not end within {LIST_TIMEOUT:?}")]
    ListTimeout,
    #[error("Secrets cannot be watched: {0}")]
    Watch(#[source] kube::Error),
    #[error("the watch did not end in time")]
    WatchTimeout,
    #[error("the watch ended with {0}")]
    Refused(String),
    #[error("more than {MAX_SECRETS} Secrets, or {MAX_BYTES} bytes, are selected")]
    TooLarge,
}

impl SyncError {
    /// Whether the API server rejects the gateway's credential.
    fn is_unauthorized(&self) -> bool {
        matches!(self, Self::List(kube::Error::Api(status)) | Self::Watch(kube::Error::Api(status)) if status.code == 401)
    }
}

impl ManagementWatch {
    /// Follows the management cluster of each configuration. Never returns.
    pub(super) async fn run(&self) {
        let mut generations = self.live.subscribe();
        loop {
            let settings = self.live.peek().management.clone();
            let changed = async {
                loop {
                    if generations.changed().await.is_err() {
                        return std::future::pending().await;
                    }
                    let next = self.live.peek().management.clone();
                    let is_same = match (&settings, &next) {
                        (Some(before), Some(next)) => before.is_same_watch(next),
                        (None, None) => true,
                        _ => false,
                    };
                    if !is_same {
                        return;
                    }
                }
            };
            let refused = || self.live.report_refused_credential(CredentialUser::ManagementCluster);
            match &settings {
                Some(settings) => tokio::select! {
                    () = self.reader.follow(settings, refused) => {}
                    () = changed => {}
                },
                None => changed.await,
            }
        }
    }
}

impl SecretReader {
    /// Never returns. Calls `refused` whenever the gateway's credential is rejected.
    // threat: silent-management-cluster
    async fn follow(&self, settings: &ManagementSettings, refused: impl Fn()) {
        let mut backoff = FIRST_BACKOFF;
        let mut last_error = None;
        loop {
            let began = Instant::now();
            let Err(error) = self.sync(settings, &mut backoff).await else {
                sleep(MIN_ROUND.saturating_sub(began.elapsed())).await;
                continue;
            };
            self.metrics.config.management_failed();
            if error.is_unauthorized() {
                refused();
            }
            let error = error.to_string();
            settings.store.fail(error.clone());
            if last_error.as_ref() != Some(&error) {
                let known = settings.store.names(&settings.scope()).len();
                warn!(
                    namespace = settings.namespace,
                    known, "the management cluster cannot be read, what is known of it stays: {error}"
                );
                last_error = Some(error);
            }
            sleep(backoff).await;
            backoff = MAX_BACKOFF.min(backoff * 2);
        }
    }

    /// Lists the Secrets, and follows them until a watch ends.
    async fn sync(&self, settings: &ManagementSettings, backoff: &mut Duration) -> Result<(), SyncError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let backend = Backend::new(&settings.backend, &provider, BackendTimings::default());
        let backend = Arc::new(backend.map_err(SyncError::Connection)?);
        for endpoint in backend.endpoints().iter() {
            endpoint.trust_unchecked();
        }
        let api: Api<Secret> = Api::namespaced(kube_client::client(&backend), &settings.namespace);
        let listed = timeout(LIST_TIMEOUT, list(&api, settings)).await;
        let (mut secrets, mut version) = listed.map_err(|_| SyncError::ListTimeout)??;
        self.store(settings, &secrets);
        *backoff = FIRST_BACKOFF;
        let params = WatchParams::default().labels(&settings.label_selector).timeout(WATCH_SECONDS);
        let events = timeout(EVENT_TIMEOUT, api.watch(&params, &version)).await;
        let mut events = pin!(events.map_err(|_| SyncError::WatchTimeout)?.map_err(SyncError::Watch)?);
        loop {
            let event =
                timeout(EVENT_TIMEOUT, events.try_next()).await.map_err(|_| SyncError::WatchTimeout)?;
            match event.map_err(SyncError::Watch)? {
                Some(WatchEvent::Added(secret) | WatchEvent::Modified(secret)) => {
                    version = secret.resource_version().unwrap_or(version);
                    secrets.insert(secret.name_any(), Arc::new(data(secret)));
                }
                Some(WatchEvent::Deleted(secret)) => {
                    secrets.remove(&secret.name_any());
                }
                Some(WatchEvent::Bookmark(_)) => continue,
                Some(WatchEvent::Error(status)) => return Err(SyncError::Refused(status.message)),
                None => return Ok(()),
            }
            check_size(&secrets)?;
            self.store(settings, &secrets);
        }
    }

    fn store(&self, settings: &ManagementSettings, secrets: &Secrets) {
        if settings.missing().is_some() {
            info!(namespace = settings.namespace, secrets = secrets.len(), "the management cluster was read");
        }
        settings.store.replace(settings.scope(), secrets.clone());
        self.metrics.config.management_synced(self.clock.now());
    }
}

async fn list(api: &Api<Secret>, settings: &ManagementSettings) -> Result<(Secrets, String), SyncError> {
    let mut secrets = Secrets::new();
    let mut params = ListParams::default().labels(&settings.label_selector);
    let mut page_size = PAGE_SIZE;
    loop {
        params.limit = Some(page_size);
        let page = match api.list(&params).await {
            Err(error) if page_size > 1 && is_too_large(&error) => {
                page_size = (page_size / 8).max(1);
                continue;
            }
            page => page.map_err(SyncError::List)?,
        };
        secrets.extend(page.items.into_iter().map(|secret| (secret.name_any(), Arc::new(data(secret)))));
        check_size(&secrets)?;
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok((secrets, page.metadata.resource_version.unwrap_or_default()));
        }
    }
}

fn check_size(secrets: &Secrets) -> Result<(), SyncError> {
    let bytes: usize = secrets.values().map(|secret| secret.length()).sum();
    if secrets.len() > MAX_SECRETS || bytes > MAX_BYTES { Err(SyncError::TooLarge) } else { Ok(()) }
}

fn data(secret: Secret) -> SecretData {
    let data = secret.data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect();
    SecretData::new(secret.metadata.uid.unwrap_or_default(), data)
}

#[cfg(test)]
mod tests {
    use portcullis_http::identity::IdentityMode;
    use rustls::RootCertStore;
    use tokio::net::TcpListener;

    use super::*;
    use crate::backend::settings::{
        self, AddressPolicy, BackendPolicy, EndpointDiscovery, EndpointSource, HostPort, TrustedRoots,
    };
    use crate::config::management_cluster::{MAX_SECRET_BYTES, SecretStore};

    #[tokio::test(start_paused = true)]
    async fn a_management_cluster_that_never_answers_is_given_up_and_what_is_known_stays() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mute = tokio::spawn(async move {
            let mut held = Vec::new();
            loop {
                held.push(listener.accept().await.unwrap());
            }
        });
        let endpoint = settings::Endpoint {
            address: HostPort { host: "127.0.0.1".to_owned(), port },
            server_name: "127.0.0.1".try_into().unwrap(),
            source: EndpointSource::default(),
        };
        let backend = settings::Backend {
            endpoints: vec![endpoint],
            path_prefix: String::new(),
            roots: TrustedRoots(Arc::new(RootCertStore::empty())),
            client_certificate: None,
            bearer_token: None,
            identity: IdentityMode::Impersonate,
            identity_headers: None,
            discovery: EndpointDiscovery::None,
            policy: BackendPolicy::default(),
        };
        let settings = ManagementSettings {
            backend,
            namespace: "clusters".to_owned(),
            label_selector: "a=b".to_owned(),
            domain: None,
            path_prefix: Some("/clusters".to_owned()),
            addresses: AddressPolicy::default(),
            store: Arc::new(SecretStore::default()),
            read_scope: None,
        };
        let reader = SecretReader { metrics: Arc::new(Metrics::new()), clock: Clock::system() };
        assert_eq!(settings.missing().as_deref(), Some("not read yet"));
        let known = Secrets::from([("prod".to_owned(), Arc::default())]);
        settings.store.replace(settings.scope(), known);
        let (began, mut backoff) = (Instant::now(), FIRST_BACKOFF);
        let outcome = timeout(LIST_TIMEOUT * 2, reader.sync(&settings, &mut backoff)).await;
        assert!(outcome.expect("it is given up").is_err());
        assert!(began.elapsed() <= LIST_TIMEOUT);
        assert_eq!(settings.store.names(&settings.scope()), ["prod"]);
        mute.abort();
    }

    #[test]
    fn what_is_kept_of_secrets_is_bounded() {
        let secret = |bytes: usize| {
            let data = [("value".to_owned(), vec![0; bytes])].into();
            Arc::new(SecretData::new(String::new(), data))
        };
        let many = |count: usize, secret: &Arc<SecretData>| {
            (0..count).map(|index| (index.to_string(), Arc::clone(secret))).collect::<Secrets>()
        };
        check_size(&many(MAX_SECRETS, &secret(0))).unwrap();
        check_size(&many(MAX_SECRETS + 1, &secret(0))).unwrap_err();
        let largest = secret(MAX_SECRET_BYTES - "value".len());
        let most = MAX_BYTES / MAX_SECRET_BYTES;
        check_size(&many(most, &largest)).unwrap();
        check_size(&many(most + 1, &largest)).unwrap_err();
        // One that is too large is refused by itself, and stops no other.
        let too_large = secret(MAX_SECRET_BYTES);
        assert_eq!(too_large.length(), 0);
        check_size(&many(most + 1, &too_large)).unwrap();
    }
}
