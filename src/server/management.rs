//! Keeps the Secrets of the management cluster up to date: a list, then watches, and a list again when a watch has failed
//! or its time is over. What was read last stays while the management cluster is away. Every request has a deadline.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::Resource as _;
use portcullis_limits::ClusterOwner;
use portcullis_system::clock::Clock;
use tracing::{info, warn};

use crate::backend::Backend;
use crate::backend::dials::DialLimits;
use crate::backend::follow::{FollowError, FollowEvent, FollowPolicy, FollowedResource, Follower, TimeLimit};
use crate::backend::kube_client;
use crate::config::inputs::CredentialUser;
use crate::config::management_cluster::{MAX_SECRETS, ManagementSettings, SecretData, make_room};
use crate::metrics::{BackendTimings, Metrics};
use crate::state::Live;

/// How long the next event of a watch may take: the watch ends before.
const EVENT_TIMEOUT: Duration = Duration::from_secs(75);
/// How long a list may take, with all its pages.
const LIST_TIMEOUT: Duration = Duration::from_mins(2);
/// Its name among the owners of connections.
const MANAGEMENT_CLUSTER: &str = "management-cluster";

/// After each watch everything is listed again.
const POLICY: FollowPolicy = FollowPolicy {
    page_size: 100,
    list: TimeLimit::Whole(LIST_TIMEOUT),
    watch_seconds: 60,
    head_timeout: EVENT_TIMEOUT,
    watch: TimeLimit::Each(EVENT_TIMEOUT),
    resumes: false,
    first_backoff: Duration::from_secs(1),
    ..FollowPolicy::DEFAULT
};

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
    pub(super) dials: DialLimits,
}

type Secrets = BTreeMap<String, Arc<SecretData>>;

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
                    () = self.reader.follow(settings, self.reader.start(settings), refused) => {}
                    () = changed => {}
                },
                None => changed.await,
            }
        }
    }
}

impl SecretReader {
    /// Follows the Secrets, with new connections for each list.
    fn start(&self, settings: &ManagementSettings) -> Follower {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let (backend, dials) = (settings.backend.clone(), self.dials.clone());
        let connect = move || {
            let dials = dials.of(ClusterOwner::operator(MANAGEMENT_CLUSTER));
            let backend = Backend::new(&backend, &provider, BackendTimings::default(), dials);
            let problem =
                |error| FollowError::Description(format!("the connection cannot be configured: {error}"));
            let backend = Arc::new(backend.map_err(problem)?);
            for endpoint in backend.endpoints().iter() {
                endpoint.trust_unchecked();
            }
            Ok(kube_client::client(&backend))
        };
        Follower::connecting(Box::new(connect), resource(settings), POLICY)
    }

    /// Never returns. Calls `refused` whenever the gateway's credential is rejected.
    // threat: silent-management-cluster
    async fn follow(&self, settings: &ManagementSettings, mut follower: Follower, refused: impl Fn()) {
        let (mut secrets, mut last_error) = (Secrets::new(), None);
        loop {
            let Err(error) = follower.next_into(|event| self.take(settings, event, &mut secrets)).await
            else {
                if !follower.is_failing() {
                    last_error = None;
                }
                continue;
            };
            self.metrics.config.management_failed();
            if is_unauthorized(&error) {
                refused();
            }
            let error = problem(&error);
            settings.store.fail(error.clone());
            if last_error.as_ref() != Some(&error) {
                let known = settings.store.names(&settings.scope()).len();
                warn!(
                    namespace = settings.namespace,
                    known, "the management cluster cannot be read, what is known of it stays: {error}"
                );
                last_error = Some(error);
            }
        }
    }

    fn take(
        &self,
        settings: &ManagementSettings,
        event: FollowEvent<Secret>,
        secrets: &mut Secrets,
    ) -> Result<(), FollowError> {
        let is_complete = event.apply_to(secrets, |secret| Arc::new(data(secret)));
        check_number(secrets)?;
        let has_room_again = make_room(secrets);
        if is_complete {
            self.store(settings, secrets);
        }
        if has_room_again {
            return Err(FollowError::Description(
                "there is room again for a Secret: all are read again".to_owned(),
            ));
        }
        Ok(())
    }

    fn store(&self, settings: &ManagementSettings, secrets: &Secrets) {
        if settings.missing().is_some() {
            info!(namespace = settings.namespace, secrets = secrets.len(), "the management cluster was read");
        }
        settings.store.replace(settings.scope(), secrets.clone());
        self.metrics.config.management_synced(self.clock.now());
    }
}

fn resource(settings: &ManagementSettings) -> FollowedResource {
    let path = Secret::url_path(&(), Some(&settings.namespace));
    let label_selector = Some(settings.label_selector.clone());
    FollowedResource { path, label_selector, ..FollowedResource::default() }
}

/// Whether the API server rejects the gateway's credential.
fn is_unauthorized(error: &FollowError) -> bool {
    let (FollowError::List(error) | FollowError::Watch(error)) = error else { return false };
    matches!(error, kube::Error::Api(status) if status.code == 401)
}

fn problem(error: &FollowError) -> String {
    match error {
        FollowError::List(error) => format!("Secrets cannot be listed: {error}"),
        FollowError::ListTimeout(limit) => format!("the list did not end within {limit:?}"),
        FollowError::Watch(error) | FollowError::Events(error) => {
            format!("Secrets cannot be watched: {error}")
        }
        FollowError::NoResponse(_) | FollowError::Overdue { .. } => {
            "the watch did not end in time".to_owned()
        }
        error => error.to_string(),
    }
}

fn check_number(secrets: &Secrets) -> Result<(), FollowError> {
    if secrets.len() > MAX_SECRETS {
        return Err(FollowError::Description(format!("more than {MAX_SECRETS} Secrets are selected")));
    }
    Ok(())
}

fn data(secret: Secret) -> SecretData {
    let data = secret.data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect();
    SecretData::new(secret.metadata.uid.unwrap_or_default(), data)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use futures_util::stream;
    use http::{Request, Response};
    use http_body::Frame;
    use http_body_util::{BodyExt as _, StreamBody};
    use portcullis_http::identity::IdentityMode;
    use portcullis_limits::byte_ledger::ByteLedger;
    use tokio::net::TcpListener;
    use tokio::time::{Instant, sleep_until, timeout};
    use tower::service_fn;
    use tracing::instrument::WithSubscriber as _;

    use super::*;
    use crate::backend::settings::{
        self, AddressPolicy, BackendPolicy, EndpointDiscovery, EndpointSource, HostPort, TrustedRoots,
    };
    use crate::config::management_cluster::{MAX_BYTES, MAX_SECRET_BYTES, SecretStore};
    use crate::controllers::csr::testing::CapturedLog;
    use crate::descriptors::Descriptors;

    fn settings(port: u16) -> ManagementSettings {
        let endpoint = settings::Endpoint {
            address: HostPort { host: "127.0.0.1".to_owned(), port },
            server_name: "127.0.0.1".try_into().unwrap(),
            source: EndpointSource::default(),
        };
        let backend = settings::Backend {
            endpoints: vec![endpoint],
            path_prefix: String::new(),
            roots: TrustedRoots::none(),
            client_certificate: None,
            bearer_token: None,
            identity: IdentityMode::Impersonate,
            identity_headers: None,
            discovery: EndpointDiscovery::None,
            policy: BackendPolicy::default(),
        };
        ManagementSettings {
            backend,
            namespace: "clusters".to_owned(),
            label_selector: "a=b".to_owned(),
            domain: None,
            path_prefix: Some("/clusters".to_owned()),
            addresses: AddressPolicy::default(),
            store: Arc::new(SecretStore::default()),
            read_scope: None,
        }
    }

    fn reader() -> SecretReader {
        SecretReader {
            metrics: Arc::new(Metrics::new()),
            clock: Clock::system(),
            dials: DialLimits::new(Descriptors::unlimited().backends, &ByteLedger::new(usize::MAX)),
        }
    }

    /// The log after each period, and the number of lists, while lists and watches are answered with these codes. A watch
    /// ends after a minute.
    async fn followed(periods: &[(u16, u16)]) -> Vec<(String, usize)> {
        const PERIOD: Duration = Duration::from_mins(30);
        let codes = Arc::new(Mutex::new((0, 0)));
        let lists = Arc::new(AtomicUsize::new(0));
        let (now, counted) = (Arc::clone(&codes), Arc::clone(&lists));
        let service = service_fn(move |request: Request<kube::client::Body>| {
            let is_watch = request.uri().query().unwrap().contains("watch=true");
            let (list, watch) = *now.lock().unwrap();
            let code = if is_watch { watch } else { list };
            counted.fetch_add(usize::from(!is_watch), Ordering::Relaxed);
            let end = Instant::now() + Duration::from_mins(1);
            let body = match (code, is_watch) {
                (200, true) => String::new(),
                (200, false) => r#"{"metadata":{"resourceVersion":"7"},"items":[]}"#.to_owned(),
                (code, _) => {
                    format!(r#"{{"kind":"Status","status":"Failure","code":{code},"message":"no"}}"#)
                }
            };
            let frames = stream::once(async move {
                if body.is_empty() {
                    sleep_until(end).await;
                }
                Ok::<_, Infallible>(Frame::data(Bytes::from(body)))
            });
            let response = Response::builder().status(code).body(StreamBody::new(frames).boxed_unsync());
            std::future::ready(Ok::<_, Infallible>(response.unwrap()))
        });
        let settings = settings(1);
        let reader = reader();
        let client = kube::Client::new(service, "default");
        let follower = Follower::new(client, resource(&settings), POLICY);
        let lines = CapturedLog::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let mut seen = Vec::new();
        let mut following = Box::pin(reader.follow(&settings, follower, || {}).with_subscriber(log));
        for period in periods {
            *codes.lock().unwrap() = *period;
            lists.store(0, Ordering::Relaxed);
            timeout(PERIOD, &mut following).await.unwrap_err();
            seen.push((lines.text(), lists.load(Ordering::Relaxed)));
        }
        seen
    }

    fn failures_in(text: &str) -> usize {
        text.matches("the management cluster cannot be read").count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_logged_once_and_again_after_a_recovery() {
        let periods = followed(&[(403, 200), (200, 200), (403, 200), (200, 403)]).await;
        let failures: Vec<usize> = periods.iter().map(|(text, _)| failures_in(text)).collect();
        assert_eq!(failures, [1, 1, 2, 3], "{}", periods[3].0);
        assert!(
            periods[3].0.contains("Secrets cannot be listed")
                && periods[3].0.contains("Secrets cannot be watched")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_management_cluster_that_refuses_watches_is_not_listed_without_a_pause() {
        for (_, lists) in followed(&[(200, 200), (200, 403), (403, 403)]).await {
            // A list every 30 to 36 seconds; after a watch of a minute, at once.
            assert!((28..=66).contains(&lists), "{lists} lists in half an hour");
        }
    }

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
        let settings = settings(port);
        let reader = reader();
        assert_eq!(settings.missing().as_deref(), Some("not read yet"));
        let known = Secrets::from([("prod".to_owned(), Arc::default())]);
        settings.store.replace(settings.scope(), known);
        let (began, mut follower, mut secrets) = (Instant::now(), reader.start(&settings), Secrets::new());
        let given_up = async {
            while follower.next_into(|event| reader.take(&settings, event, &mut secrets)).await.is_ok() {}
        };
        timeout(LIST_TIMEOUT * 2, given_up).await.expect("it is given up");
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
        check_number(&many(MAX_SECRETS, &secret(0))).unwrap();
        check_number(&many(MAX_SECRETS + 1, &secret(0))).unwrap_err();
        let largest = secret(MAX_SECRET_BYTES - "value".len());
        let most = MAX_BYTES / MAX_SECRET_BYTES;
        let length = |secrets: &Secrets| secrets.values().map(|secret| secret.length()).collect::<Vec<_>>();
        let mut all = many(most, &largest);
        assert!(!make_room(&mut all) && length(&all).iter().all(|length| *length == MAX_SECRET_BYTES));
        // One more, and a small one, which changes nothing for the others.
        let small =
            Arc::new(SecretData::new("small".to_owned(), BTreeMap::from([("k".to_owned(), vec![0; 100])])));
        all.extend([("more".to_owned(), Arc::clone(&largest)), ("small".to_owned(), Arc::clone(&small))]);
        assert!(!make_room(&mut all));
        assert_eq!(length(&all).iter().filter(|length| **length == 0).count(), 2, "the largest ones");
        assert_eq!(all["small"], small);
        let kept = all.iter().find(|(name, secret)| *name != "small" && secret.length() > 0);
        let kept = kept.map(|(name, _)| name.clone()).unwrap();
        all.remove(&kept);
        assert!(make_room(&mut all), "a list has the data again");
        // One that is too large is refused by itself, and stops no other.
        let too_large = secret(MAX_SECRET_BYTES);
        assert_eq!(too_large.length(), 0);
        assert!(!make_room(&mut many(most + 1, &too_large)));
    }
}
