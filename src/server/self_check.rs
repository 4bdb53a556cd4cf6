//! The identity self-check: sends a `SelfSubjectReview` as a test user to every endpoint, and trusts the endpoint only
//! if the user arrives unchanged. Runs at the start, after a reload, every minute, and when a connection or a response
//! gives reason. No request goes to an endpoint that has not passed.

mod addresses;
mod header_names;
mod headers;
mod outcome;
mod pace;
mod readiness;
mod reviews;
mod turns;
mod untested;
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
use outcome::CheckOutcome;
use pace::{CheckSchedule, NextCheck, spread, stagger};
use turns::TenantTurns;
use untested::UntestedReleases;
use verdict::{AcceptedIdentity, CertificateFinding, SelfCheckFailure, evaluate, is_unavailable_gateway};

use crate::backend::endpoint::{Endpoint, TrustVersion};
use crate::backend::probe::ProbeClient;
use crate::backend::{Backend, contains};
use crate::config::inputs::CredentialUser;
use crate::metrics::Metrics;
use crate::state::{Live, Snapshot};
use crate::tasks::{MAX_RESTART_BACKOFF, OnPanic, Supervisor};

const REVIEW_PATH: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const REVIEW_BODY: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;

/// The longest interval while an address of an endpoint has not passed.
const FAILED_ADDRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Checks every endpoint of the snapshot in force.
pub(crate) struct SelfCheck {
    live: Arc<Live>,
    metrics: Arc<Metrics>,
    turns: Arc<TenantTurns>,
    untested: Arc<UntestedReleases>,
}

impl SelfCheck {
    pub(crate) fn new(live: Arc<Live>, metrics: Arc<Metrics>) -> Self {
        Self { live, metrics, turns: Arc::default(), untested: Arc::default() }
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
                wanted.extend(endpoints.into_iter().map(|endpoint| (cluster, backend, endpoint)));
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
            let is_of_tenant = cluster.settings.origin.is_of_tenant();
            let cluster = &cluster.name;
            let check = EndpointCheck {
                cluster: cluster.clone(),
                turns: is_of_tenant.then(|| Arc::clone(&self.turns)),
                untested: Arc::clone(&self.untested),
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
        self.untested.retain_clusters(|cluster| snapshot.cluster(cluster).is_some());
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
    /// If a tenant configures the cluster.
    turns: Option<Arc<TenantTurns>>,
    untested: Arc<UntestedReleases>,
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
        let mut addresses = CheckedAddresses::default();
        let mut was_requested = false;
        loop {
            let check = self.check_once(&mut addresses);
            let outcome = match &self.turns {
                Some(turns) => turns.run(&self.cluster, check).await,
                None => check.await,
            };
            let now = Instant::now();
            let NextCheck { soonest, mut latest } = schedule.after(&outcome, was_requested, now);
            if addresses.has_failed() {
                latest = latest.min(FAILED_ADDRESS_INTERVAL).max(soonest);
            }
            let latest = spread(latest, &self.cluster, &self.endpoint.address().to_string());
            sleep_until(now + soonest.min(latest)).await;
            was_requested = tokio::select! {
                () = sleep_until(now + latest) => false,
                () = self.endpoint.recheck_requested() => true,
                () = addresses.disconnected() => true,
            };
        }
    }

    async fn check_once(&self, addresses: &mut CheckedAddresses) -> CheckOutcome {
        addresses.follow(self).await;
        let before = self.endpoint.trust_version();
        let outcome = addresses.check(self, before).await;
        self.conclude(&outcome, before);
        if matches!(outcome, CheckOutcome::Passed(_))
            && let Some(client) = addresses.client()
        {
            self.check_reviews(client).await;
        }
        outcome
    }

    async fn attempt(&self, client: &ProbeClient) -> CheckOutcome {
        let sent = test_user();
        let (status, body) = match client.send(Some(&sent), REVIEW_PATH, Some(REVIEW_BODY.to_owned())).await {
            Ok(answer) => answer,
            Err(error) => return error.into(),
        };
        let certificate =
            CertificateFinding::of(client.certificate_request(), self.endpoint.gateway_certificate());
        match evaluate(&sent, status, &body, certificate) {
            Some(Ok(accepted)) => match self.learn_header_names(client).await {
                Ok(None) => CheckOutcome::Passed(accepted),
                Ok(Some(failure)) => CheckOutcome::Failed(failure),
                Err(cause) => CheckOutcome::Inconclusive(cause),
            },
            // The API server may have other identity headers now, or be that of another cluster.
            Some(Err(SelfCheckFailure::ReviewForbidden)) => match self.learn_header_names(client).await {
                Ok(failure) => CheckOutcome::Failed(failure.unwrap_or(SelfCheckFailure::ReviewForbidden)),
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

    /// Trusts the endpoint or ends its trust, by the outcome of a check that began at version `before`.
    // threat: backend-ignores-identity
    fn conclude(&self, outcome: &CheckOutcome, before: TrustVersion) {
        let endpoint = self.endpoint.address().to_string();
        self.metrics
            .backend
            .self_checks
            .with_label_values(&[&self.cluster, &endpoint, outcome.label()])
            .inc();
        let cause = outcome.cause(self.backend.identity());
        self.endpoint.set_check_error(cause.clone());
        // Even if the outcome does not count: a server could change its endpoint's trust during every check.
        self.endpoint.set_checked();
        let cause = cause.unwrap_or_default();
        match outcome {
            CheckOutcome::Passed(accepted) => {
                if !self.endpoint.set_trusted(before) {
                    // The endpoint went away during the check, which has requested another one.
                    return;
                }
                self.endpoint.clear_error();
                self.backend.note_available();
                self.log_passed(*accepted);
                self.untested.warn(&self.cluster, &endpoint, &self.endpoint.versions());
            }
            CheckOutcome::Failed(_) if outcome.keeps_trust() && self.endpoint.is_trusted_since(before) => {
                self.log_once("refused", |cluster| {
                    warn!(cluster, endpoint, "self-check refused, the endpoint stays in use: {cause}");
                });
            }
            CheckOutcome::Failed(failure) => {
                self.endpoint.distrust();
                if matches!(failure, SelfCheckFailure::Unauthorized(_)) {
                    self.live.report_refused_credential(CredentialUser::Cluster(self.cluster.clone()));
                }
                self.log_once(&cause, |cluster| {
                    error!(cluster, endpoint, "self-check failed, endpoint not used: {cause}");
                });
            }
            CheckOutcome::Unreachable(error) => {
                self.endpoint.distrust();
                if self.endpoint.is_named() {
                    // None of its addresses can be reached.
                    self.endpoint.note_unreachable(error.clone());
                }
                self.log_once(&cause, |cluster| {
                    warn!(cluster, endpoint, "self-check failed, endpoint unreachable: {cause}");
                });
            }
            CheckOutcome::Inconclusive(_) => {
                let trusted = self.endpoint.is_trusted();
                self.log_once(&cause, |cluster| {
                    warn!(cluster, endpoint, trusted, "self-check inconclusive: {cause}");
                });
            }
        }
        let snapshot = self.live.peek();
        if !self.export_trust(&snapshot) && self.endpoint.is_trusted() && self.is_pending(&snapshot) {
            self.live.request_reload();
        }
    }

    fn log_passed(&self, accepted: AcceptedIdentity) {
        let endpoint = self.endpoint.address().to_string();
        match accepted {
            AcceptedIdentity::Complete => self.log_once("", |cluster| {
                info!(cluster, endpoint, "self-check passed: the backend accepts forwarded identities");
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

    /// Warns once if the gateway should decide on impersonations but may not ask who may impersonate whom.
    async fn check_reviews(&self, client: &ProbeClient) {
        let decides = self
            .live
            .peek()
            .clusters()
            .iter()
            .any(|cluster| cluster.name == self.cluster && cluster.deciding_impersonator().is_some());
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
