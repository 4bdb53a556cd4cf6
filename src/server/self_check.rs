//! The identity self-check: sends a `SelfSubjectReview` as a test user to every endpoint, and trusts the endpoint only
//! if the user arrives unchanged. Runs at the start, after a reload, every minute, and when a connection or a response
//! gives reason. No request goes to an endpoint that has not passed.

mod addresses;
mod headers;
mod pace;
mod readiness;
mod reviews;
mod verdict;
mod version;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_http::identity::IdentityMode;
use portcullis_kubernetes::user::{ALL_AUTHENTICATED, GATEWAY, UserInfo};
use portcullis_system::sync::lock;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info, warn};

use addresses::CheckedAddresses;
use pace::{CheckSchedule, spread, stagger};
use verdict::{AcceptedIdentity, CertificateFinding, SelfCheckFailure, evaluate, is_unavailable_gateway};

use crate::backend::cluster_identity::{IdentityObject, NotAdmitted};
use crate::backend::endpoint::{ConnectError, Endpoint, TrustVersion};
use crate::backend::pool::SendError;
use crate::backend::probe::{ProbeClient, ProbeError};
use crate::backend::{Backend, contains};
use crate::metrics::Metrics;
use crate::state::{Live, Snapshot};
use crate::tasks::{MAX_RESTART_BACKOFF, OnPanic, Supervisor};

const REVIEW_PATH: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const REVIEW_BODY: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;

/// The shortest interval between two checks of an endpoint.
const MIN_RECHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The longest interval while an address of an endpoint has not passed.
const FAILED_ADDRESS_INTERVAL: Duration = Duration::from_secs(10);

/// How often the version of an API server is read.
const VERSION_INTERVAL: Duration = Duration::from_mins(10);

/// Checks every endpoint of the snapshot in force.
pub(crate) struct SelfCheck {
    live: Arc<Live>,
    metrics: Arc<Metrics>,
}

impl SelfCheck {
    pub(crate) fn new(live: Arc<Live>, metrics: Arc<Metrics>) -> Self {
        Self { live, metrics }
    }

    /// Starts and ends checks with each change of the endpoints. Never returns.
    pub(crate) async fn run(&self) {
        let mut running: Vec<RunningCheck> = Vec::new();
        let mut exported = BTreeMap::new();
        let mut changes = self.live.subscribe_endpoints();
        loop {
            let snapshot = self.live.snapshot();
            let ended = self.follow(&snapshot, &mut running);
            self.export(&snapshot, &mut exported, &ended);
            drop(snapshot);
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Ends the checks of endpoints that a reload or discovery has removed, and starts the missing ones. Returns the labels
    /// of those that have ended.
    fn follow(&self, snapshot: &Snapshot, running: &mut Vec<RunningCheck>) -> Vec<[String; 2]> {
        let mut wanted = Vec::new();
        for cluster in snapshot.clusters() {
            for backend in cluster.backends() {
                let endpoints = Vec::clone(&backend.endpoints());
                wanted.extend(endpoints.into_iter().map(|endpoint| (&cluster.name, backend, endpoint)));
            }
        }
        let is_wanted = |check: &mut RunningCheck| {
            wanted.iter().any(|(_, _, wanted)| Arc::ptr_eq(wanted, &check.endpoint))
        };
        let ended = running.extract_if(.., |check| !is_wanted(check));
        let ended = ended.map(|check| [check.cluster, check.endpoint.address().to_string()]).collect();
        let mut added = 0;
        for (cluster, backend, endpoint) in wanted {
            if running.iter().any(|check| Arc::ptr_eq(&check.endpoint, &endpoint)) {
                continue;
            }
            let pause = stagger(added);
            added += 1;
            let check = EndpointCheck {
                cluster: cluster.clone(),
                backend: Arc::clone(backend),
                endpoint: Arc::clone(&endpoint),
                live: Arc::clone(&self.live),
                metrics: Arc::clone(&self.metrics),
                last_log: Mutex::default(),
                lacks_reviews: AtomicBool::new(false),
                lacks_namespace: AtomicBool::new(false),
            };
            let task = tokio::spawn(async move {
                let supervisor = Supervisor {
                    cluster: Some(&check.cluster),
                    metrics: &check.metrics,
                    stop: None,
                    max_backoff: MAX_RESTART_BACKOFF,
                };
                let task = format!("self-check of {}", check.endpoint.address());
                sleep(pause).await;
                supervisor.run(&task, || check.run()).await;
            });
            let cluster = cluster.clone();
            running.push(RunningCheck { cluster, endpoint, _task: AbortOnDropHandle::new(task) });
        }
        ended
    }

    /// Exports the endpoints in force as metrics, without pending ones, which may have the same address. The checks of those
    /// are counted all the same, until they have `ended`.
    fn export(
        &self,
        snapshot: &Snapshot,
        exported: &mut BTreeMap<[String; 2], Arc<Endpoint>>,
        ended: &[[String; 2]],
    ) {
        let before = std::mem::take(exported);
        for cluster in snapshot.clusters() {
            for endpoint in cluster.backend.endpoints().iter() {
                exported.insert([cluster.name.clone(), endpoint.address().to_string()], Arc::clone(endpoint));
            }
        }
        for labels in before.keys().chain(ended).filter(|labels| !exported.contains_key(*labels)) {
            let [cluster, _] = labels;
            self.metrics.backend.forget_endpoint(labels);
            if snapshot.cluster(cluster).is_none() {
                self.metrics.backend.forget_cluster(cluster);
            }
        }
        self.metrics.audit.retain_clusters(|cluster| snapshot.cluster(cluster).is_some());
        for (labels, endpoint) in exported.iter().filter(|(_, endpoint)| endpoint.is_checked()) {
            self.metrics
                .backend
                .endpoint_trusted
                .with_label_values(labels)
                .set(i64::from(endpoint.is_trusted()));
        }
    }
}

/// A check that runs for as long as its endpoint is configured.
struct RunningCheck {
    cluster: String,
    endpoint: Arc<Endpoint>,
    _task: AbortOnDropHandle<()>,
}

/// The self-check of one endpoint.
struct EndpointCheck {
    cluster: String,
    backend: Arc<Backend>,
    endpoint: Arc<Endpoint>,
    live: Arc<Live>,
    metrics: Arc<Metrics>,
    /// The outcome that was logged last.
    last_log: Mutex<Option<String>>,
    /// Whether the log says that the gateway may not create access reviews.
    lacks_reviews: AtomicBool,
    /// Whether the log says that the gateway may not read the namespace by which it would compare clusters.
    lacks_namespace: AtomicBool,
}

/// When the version of the API server was read last.
#[derive(Default)]
struct VersionAge(Option<Instant>);

impl VersionAge {
    /// Reads the version if it may have changed.
    async fn learn(&mut self, client: &ProbeClient, backend: &Backend) {
        if self.0.is_some_and(|read| read.elapsed() < VERSION_INTERVAL) {
            return;
        }
        self.0 = Some(Instant::now());
        if let Some(version) = version::read(client, &test_user()).await {
            backend.learn_server_version(version);
        }
    }
}

/// The outcome of one check.
enum CheckOutcome {
    Passed(AcceptedIdentity),
    Failed(SelfCheckFailure),
    /// The endpoint cannot be reached, and must pass another check.
    Unreachable(ConnectError),
    /// No evidence either way: the API server is starting, overloaded or shutting down.
    Inconclusive(String),
}

impl EndpointCheck {
    async fn run(&self) {
        // No request goes to an endpoint whose check has panicked until a check has passed again.
        let _distrust = OnPanic(|| {
            self.endpoint.distrust();
            self.export_trust(&self.live.peek());
        });
        *lock(&self.last_log) = None;
        tokio::join!(self.check_repeatedly(), readiness::run(self));
    }

    async fn check_repeatedly(&self) {
        let mut schedule = CheckSchedule::default();
        let mut version_age = VersionAge::default();
        let mut addresses = CheckedAddresses::default();
        loop {
            addresses.follow(self).await;
            let before = self.endpoint.trust_version();
            let outcome = addresses.check(self, before).await;
            let mut wait = schedule.after(&outcome);
            if addresses.has_failed() {
                wait = wait.min(FAILED_ADDRESS_INTERVAL);
            }
            let wait = spread(wait, &self.cluster, &self.endpoint.address().to_string());
            let has_passed = matches!(outcome, CheckOutcome::Passed(_));
            self.conclude(outcome, before);
            if has_passed && let Some(client) = addresses.client() {
                self.check_reviews(client).await;
                version_age.learn(client, &self.backend).await;
            }
            let now = Instant::now();
            sleep_until(now + MIN_RECHECK_INTERVAL.min(wait)).await;
            tokio::select! {
                () = sleep_until(now + wait) => {}
                () = self.endpoint.recheck_requested() => {}
                () = addresses.disconnected() => {}
            }
        }
    }

    async fn attempt(&self, client: &ProbeClient) -> CheckOutcome {
        let sent = test_user();
        let (status, body) = match client.send(Some(&sent), REVIEW_PATH, Some(REVIEW_BODY.to_owned())).await {
            Ok(answer) => answer,
            // The share of connections says nothing about the endpoint.
            Err(error @ ProbeError::Send(SendError::Connect(ConnectError::NoPlace { .. }))) => {
                return CheckOutcome::Inconclusive(error.to_string());
            }
            Err(ProbeError::Send(SendError::Connect(error))) => {
                return CheckOutcome::Unreachable(error);
            }
            Err(error) => return CheckOutcome::Inconclusive(error.to_string()),
        };
        let certificate =
            CertificateFinding::of(client.certificate_request(), self.endpoint.gateway_certificate());
        match evaluate(&sent, status, &body, certificate) {
            Some(Ok(accepted)) => match self.learn_header_names(client).await {
                Ok(None) => CheckOutcome::Passed(accepted),
                Ok(Some(failure)) => CheckOutcome::Failed(failure),
                Err(cause) => CheckOutcome::Inconclusive(cause),
            },
            Some(Err(failure)) => CheckOutcome::Failed(failure),
            None if is_unavailable_gateway(&body) => CheckOutcome::Inconclusive(format!(
                "the self-check got HTTP status {status} of a gateway that has no usable backend itself. Fix, if that \
                 persists: configure the API servers as its endpoints, and not a gateway that has this one as its backend"
            )),
            None => CheckOutcome::Inconclusive(format!("the self-check got HTTP status {status}")),
        }
    }

    fn conclude(&self, outcome: CheckOutcome, before: TrustVersion) {
        let endpoint = self.endpoint.address().to_string();
        let result = match &outcome {
            CheckOutcome::Passed(AcceptedIdentity::Complete) => "ok",
            CheckOutcome::Passed(AcceptedIdentity::WithoutUid) => "uid_missing",
            CheckOutcome::Failed(failure) => failure.label(),
            CheckOutcome::Unreachable(_) => "unreachable",
            CheckOutcome::Inconclusive(_) => "inconclusive",
        };
        self.metrics.backend.self_checks.with_label_values(&[&self.cluster, &endpoint, result]).inc();
        self.endpoint.set_check_error(match &outcome {
            CheckOutcome::Passed(_) => None,
            CheckOutcome::Failed(failure) => Some(failure.diagnosis(self.backend.identity())),
            CheckOutcome::Unreachable(error) => Some(error.to_string()),
            CheckOutcome::Inconclusive(cause) => Some(cause.clone()),
        });
        // Even if the outcome does not count: a server could change its endpoint's trust during every check.
        self.endpoint.set_checked();
        match outcome {
            CheckOutcome::Passed(accepted) => {
                if !self.endpoint.set_trusted(before) {
                    // The endpoint went away during the check, which has requested another one.
                    return;
                }
                self.endpoint.clear_error();
                self.backend.note_available();
                match accepted {
                    AcceptedIdentity::Complete => self.log_once("", |cluster| {
                        info!(
                            cluster,
                            endpoint, "self-check passed: the backend accepts forwarded identities"
                        );
                    }),
                    AcceptedIdentity::WithoutUid => self.log_once("uid", |cluster| {
                        warn!(
                            cluster,
                            endpoint,
                            "the backend drops user UIDs; set --requestheader-uid-headers=X-Remote-Uid on it"
                        );
                    }),
                }
            }
            CheckOutcome::Failed(failure) => {
                self.endpoint.distrust();
                if matches!(failure, SelfCheckFailure::Unauthorized(_)) {
                    self.live.report_refused_credential();
                }
                let diagnosis = failure.diagnosis(self.backend.identity());
                self.log_once(&diagnosis.clone(), |cluster| {
                    error!(cluster, endpoint, "self-check failed, endpoint not used: {diagnosis}");
                });
            }
            CheckOutcome::Unreachable(error) => {
                self.endpoint.distrust();
                let cause = error.to_string();
                if self.endpoint.is_named() {
                    // None of its addresses can be reached.
                    self.endpoint.note_unreachable(error);
                }
                self.log_once(&cause.clone(), |cluster| {
                    warn!(cluster, endpoint, "self-check failed, endpoint unreachable: {cause}");
                });
            }
            CheckOutcome::Inconclusive(cause) => {
                let trusted = self.endpoint.is_trusted();
                self.log_once(&cause.clone(), |cluster| {
                    warn!(cluster, endpoint, trusted, "self-check inconclusive: {cause}");
                });
            }
        }
        let snapshot = self.live.peek();
        if !self.export_trust(&snapshot) && self.endpoint.is_trusted() && self.is_pending(&snapshot) {
            self.live.request_reload();
        }
    }

    /// Warns once if the gateway should decide on impersonations but may not ask who may impersonate whom.
    async fn check_reviews(&self, client: &ProbeClient) {
        let decides = self
            .live
            .peek()
            .clusters()
            .iter()
            .any(|cluster| cluster.name == self.cluster && cluster.impersonator.is_some());
        if !decides {
            return;
        }
        let Some(may_ask) = reviews::may_ask(client, self.backend.identity()).await else { return };
        if self.lacks_reviews.swap(!may_ask, Ordering::Relaxed) || may_ask {
            return;
        }
        let (cluster, endpoint) = (&self.cluster, self.endpoint.address().to_string());
        let user = self.gateway_user();
        warn!(
            cluster,
            endpoint,
            "{user} may not create subjectaccessreviews.authorization.k8s.io, so the gateway refuses every request with \
             Impersonate-User; apply deploy/rbac.yaml, or set --impersonation=backend (with --identity=requestHeader)"
        );
    }

    /// As which the gateway asks the API server, for messages.
    fn gateway_user(&self) -> &'static str {
        match self.backend.identity() {
            IdentityMode::RequestHeader => GATEWAY,
            IdentityMode::Impersonate => "the user of the kubeconfig",
        }
    }

    /// Exports whether the endpoint is trusted, if it is in force; a pending one may have the same address.
    fn export_trust(&self, snapshot: &Snapshot) -> bool {
        let is_in_force = self.is_in_force(snapshot);
        if is_in_force {
            let labels = [self.cluster.as_str(), &self.endpoint.address().to_string()];
            let trusted = i64::from(self.endpoint.is_trusted());
            self.metrics.backend.endpoint_trusted.with_label_values(&labels).set(trusted);
        }
        is_in_force
    }

    /// Whether the endpoint is in force. Looks for its backend first, without a copy of any list: with hundreds of clusters
    /// each of their endpoints asks each second.
    fn is_in_force(&self, snapshot: &Snapshot) -> bool {
        let mut clusters = snapshot.clusters().iter();
        clusters.any(|cluster| Arc::ptr_eq(&cluster.backend, &self.backend))
            && contains(&self.backend.endpoints(), &self.endpoint)
    }

    /// Whether this endpoint belongs to a pending backend.
    fn is_pending(&self, snapshot: &Snapshot) -> bool {
        let mut pending = snapshot.clusters().iter().filter_map(|cluster| cluster.pending_backend.as_ref());
        pending.any(|backend| Arc::ptr_eq(backend, &self.backend))
    }

    /// Logs an outcome, unless it was the last one logged.
    fn log_once(&self, outcome: &str, log: impl FnOnce(&str)) {
        let mut last = lock(&self.last_log);
        if last.as_deref() != Some(outcome) {
            log(&self.cluster);
            *last = Some(outcome.to_owned());
        }
    }

    /// Reads the names of the API server's identity headers, which the gateway removes from every request. Fails if
    /// neither the API server nor the configuration names them, or if the object that names them is another cluster's.
    /// Returns an error if a later attempt may succeed.
    // threat: further-identity-headers
    async fn learn_header_names(&self, client: &ProbeClient) -> Result<Option<SelfCheckFailure>, String> {
        // Without a client certificate the API server never treats the gateway as a front proxy.
        if self.endpoint.gateway_certificate().is_none() {
            return self.compare_by_namespace(client).await;
        }
        let published = headers::read(client, self.backend.identity()).await;
        match published
            .map_err(|cause| format!("the names of its identity headers cannot be read: {cause}"))?
        {
            headers::PublishedHeaderNames::All(names, uid) => {
                // Before anything is learnt from it.
                let failure = match uid {
                    Some(uid) => self.compare(IdentityObject::AuthenticationConfigMap, &uid)?,
                    None => self.compare_by_namespace(client).await?,
                };
                if failure.is_none() {
                    self.backend.learn_identity_headers(&names);
                }
                Ok(failure)
            }
            headers::PublishedHeaderNames::NotFound => self.compare_by_namespace(client).await,
            headers::PublishedHeaderNames::Forbidden if self.backend.has_configured_identity_headers() => {
                self.compare_by_namespace(client).await
            }
            headers::PublishedHeaderNames::Forbidden => {
                Ok(Some(SelfCheckFailure::HeaderNamesForbidden(self.reader())))
            }
        }
    }

    /// Compares the cluster of the endpoint with that of the others, by the UID of an object in it. Returns an error if a
    /// later attempt may succeed.
    fn compare(&self, object: IdentityObject, uid: &str) -> Result<Option<SelfCheckFailure>, String> {
        match self.backend.admit_to_cluster(&self.endpoint, object, uid) {
            Ok(()) => Ok(None),
            Err(NotAdmitted::OtherCluster(other)) => Ok(Some(SelfCheckFailure::OtherCluster(other))),
            Err(NotAdmitted::Undecided) => {
                Err("it is not known yet which cluster the other endpoints belong to".to_owned())
            }
        }
    }

    /// The same by the UID of the namespace `kube-system`, if the gateway may read it.
    async fn compare_by_namespace(&self, client: &ProbeClient) -> Result<Option<SelfCheckFailure>, String> {
        if !self.backend.may_have_several_endpoints() {
            return Ok(None);
        }
        match headers::read_namespace(client, self.backend.identity()).await? {
            headers::NamespaceUid::Known(uid) => self.compare(IdentityObject::KubeSystem, &uid),
            headers::NamespaceUid::NotFound => Ok(None),
            headers::NamespaceUid::Forbidden => {
                if !self.lacks_namespace.swap(true, Ordering::Relaxed) {
                    warn!(
                        cluster = self.cluster,
                        endpoint = %self.endpoint.address(),
                        "whether the endpoints belong to one cluster is not checked: {} may not get the namespace \
                         kube-system; apply deploy/rbac.yaml with it in the subjects",
                        self.gateway_user()
                    );
                }
                Ok(None)
            }
        }
    }

    /// The user that reads the header names, if known; the advice on a failure names it.
    // threat: backend-ignores-identity
    fn reader(&self) -> Option<String> {
        match self.backend.identity() {
            IdentityMode::RequestHeader => Some(GATEWAY.to_owned()),
            IdentityMode::Impersonate => self.endpoint.gateway_certificate().map(|(name, _)| name.to_owned()),
        }
    }
}

/// The user of the self-check, whose every part changes if the API server misreads it.
fn test_user() -> UserInfo {
    let mut user = UserInfo::named("system:portcullis:self-check");
    user.uid = Some("portcullis-self-check".to_owned());
    user.groups = vec!["portcullis:self-check".to_owned(), ALL_AUTHENTICATED.to_owned()];
    user.extra
        .insert("portcullis.dev/self-check".to_owned(), vec!["one".to_owned(), "two, three".to_owned()]);
    user
}
