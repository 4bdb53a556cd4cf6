//! Whether an endpoint takes identities as they are: asked at start, after a reload, every minute, and when there is
//! reason to doubt it. Requests go to no endpoint that was not seen to.

mod headers;
mod pace;
mod verdict;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info, warn};

use pace::CheckSchedule;
use verdict::{Accepted, Certificate, Fault, judge};

use crate::backend::Backend;
use crate::backend::endpoint::{Endpoint, Trust};
use crate::backend::pool::SendError;
use crate::backend::probe::{ProbeClient, ProbeError};
use crate::metrics::Metrics;
use crate::state::{Live, Snapshot};
use crate::tasks::Supervisor;
use crate::user::IdentityMode;
use crate::user::{ALL_AUTHENTICATED, GATEWAY, UserInfo};

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const REVIEW: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;

/// Doubts are looked into this often at most.
const MIN_RECHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Checks every endpoint of the snapshot in force.
pub(crate) struct SelfCheck {
    live: Arc<Live>,
    metrics: Arc<Metrics>,
}

impl SelfCheck {
    pub(crate) fn new(live: Arc<Live>, metrics: Arc<Metrics>) -> Self {
        Self { live, metrics }
    }

    /// Starts and ends checks with each new snapshot. Never returns.
    pub(crate) async fn run(&self) {
        let mut running: Vec<RunningCheck> = Vec::new();
        let mut shown = BTreeMap::new();
        let mut generations = self.live.subscribe();
        loop {
            let snapshot = self.live.snapshot();
            self.follow(&snapshot, &mut running);
            self.show(&snapshot, &mut shown);
            drop(snapshot);
            if generations.changed().await.is_err() {
                return;
            }
        }
    }

    /// Ends the checks of endpoints that are no longer configured, and starts the missing ones.
    fn follow(&self, snapshot: &Snapshot, running: &mut Vec<RunningCheck>) {
        let mut wanted = Vec::new();
        for cluster in snapshot.clusters() {
            for backend in cluster.backends() {
                wanted.extend(backend.endpoints().iter().map(|endpoint| (&cluster.name, backend, endpoint)));
            }
        }
        running.retain(|check| wanted.iter().any(|(_, _, wanted)| Arc::ptr_eq(wanted, &check.endpoint)));
        for (cluster, backend, endpoint) in wanted {
            if running.iter().any(|check| Arc::ptr_eq(&check.endpoint, endpoint)) {
                continue;
            }
            let check = Check {
                cluster: cluster.clone(),
                backend: Arc::clone(backend),
                endpoint: Arc::clone(endpoint),
                client: ProbeClient::new(Arc::clone(backend), endpoint),
                live: Arc::clone(&self.live),
                metrics: Arc::clone(&self.metrics),
                last_log: Mutex::default(),
            };
            let task = tokio::spawn(async move {
                let supervisor =
                    Supervisor { cluster: Some(&check.cluster), metrics: &check.metrics, stop: None };
                supervisor.run("self-check", || check.run()).await;
            });
            running
                .push(RunningCheck { endpoint: Arc::clone(endpoint), _task: AbortOnDropHandle::new(task) });
        }
    }

    /// Shows the endpoints in force in the metrics. A pending one may have the address of one in force and is left out.
    fn show(&self, snapshot: &Snapshot, shown: &mut BTreeMap<[String; 2], Arc<Endpoint>>) {
        let before = std::mem::take(shown);
        for cluster in snapshot.clusters() {
            for endpoint in cluster.backend.endpoints() {
                shown.insert([cluster.name.clone(), endpoint.address().to_string()], Arc::clone(endpoint));
            }
        }
        for labels in before.keys().filter(|labels| !shown.contains_key(*labels)) {
            self.metrics.backend.forget_endpoint(labels);
        }
        for (labels, endpoint) in shown.iter().filter(|(_, endpoint)| endpoint.is_checked()) {
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
    endpoint: Arc<Endpoint>,
    _task: AbortOnDropHandle<()>,
}

/// The check of one endpoint.
struct Check {
    cluster: String,
    backend: Arc<Backend>,
    endpoint: Arc<Endpoint>,
    client: ProbeClient,
    live: Arc<Live>,
    metrics: Arc<Metrics>,
    /// The finding that was last logged.
    last_log: Mutex<Option<String>>,
}

/// Revokes the trust in an endpoint when its check panics: no request goes there until a check has passed again.
struct DistrustOnPanic<'a>(&'a Endpoint);

impl Drop for DistrustOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.distrust();
        }
    }
}

/// What one question found.
enum Finding {
    Good(Accepted),
    Bad(Fault),
    /// It cannot be reached, and is to be asked anew.
    Away(String),
    /// Nothing either way: it is starting, overloaded or ending.
    Unknown(String),
}

impl Check {
    async fn run(&self) {
        let _distrust = DistrustOnPanic(&self.endpoint);
        let mut pace = CheckSchedule::default();
        loop {
            let before = self.endpoint.trust();
            let finding = self.ask().await;
            let wait = pace.after(&finding);
            self.conclude(finding, before);
            let now = Instant::now();
            sleep_until(now + MIN_RECHECK_INTERVAL.min(wait)).await;
            tokio::select! {
                () = sleep_until(now + wait) => {}
                () = self.endpoint.recheck_requested() => {}
                () = self.client.broken() => {}
            }
        }
    }

    async fn ask(&self) -> Finding {
        let sent = subject();
        let (status, body) = match self.client.ask(Some(&sent), REVIEWS, Some(REVIEW.to_owned())).await {
            Ok(answer) => answer,
            Err(ProbeError::Send(SendError::Connect(error))) => return Finding::Away(error.to_string()),
            Err(error) => return Finding::Unknown(error.to_string()),
        };
        let certificate = Certificate::of(self.client.asked(), self.endpoint.own_certificate());
        match judge(&sent, status, &body, certificate) {
            Some(Ok(accepted)) => match self.learn_header_names().await {
                Ok(true) => Finding::Good(accepted),
                Ok(false) => Finding::Bad(Fault::HeaderNamesForbidden(self.reads_as())),
                Err(cause) => {
                    Finding::Unknown(format!("the names of its identity headers cannot be read: {cause}"))
                }
            },
            Some(Err(fault)) => Finding::Bad(fault),
            None => Finding::Unknown(format!("it answered {status}")),
        }
    }

    fn conclude(&self, finding: Finding, before: Trust) {
        let endpoint = self.endpoint.address().to_string();
        let result = match &finding {
            Finding::Good(Accepted::Whole) => "ok",
            Finding::Good(Accepted::WithoutUid) => "uid_missing",
            Finding::Bad(fault) => fault.label(),
            Finding::Away(_) => "away",
            Finding::Unknown(_) => "unknown",
        };
        self.metrics.backend.self_checks.with_label_values(&[&self.cluster, &endpoint, result]).inc();
        match finding {
            Finding::Good(accepted) => {
                if !self.endpoint.set_trusted(before) {
                    // It went away meanwhile; that is a doubt, so it is asked again.
                    return;
                }
                self.endpoint.clear_error();
                self.backend.note_available();
                match accepted {
                    Accepted::Whole => self.log_once("", |cluster| {
                        info!(
                            cluster,
                            endpoint, "self-check passed: the backend accepts forwarded identities"
                        );
                    }),
                    Accepted::WithoutUid => self.log_once("uid", |cluster| {
                        warn!(
                            cluster,
                            endpoint,
                            "the backend drops user UIDs; set --requestheader-uid-headers=X-Remote-Uid on it"
                        );
                    }),
                }
            }
            Finding::Bad(fault) => {
                self.endpoint.distrust();
                if matches!(fault, Fault::Unauthorized(_)) {
                    self.live.report_refused_credential();
                }
                let advice = fault.advice(self.backend.identity());
                self.log_once(&advice.clone(), |cluster| {
                    error!(cluster, endpoint, "this API server is not used: {advice}");
                });
            }
            Finding::Away(cause) => {
                self.endpoint.distrust();
                self.log_once(&cause.clone(), |cluster| {
                    warn!(cluster, endpoint, "this API server cannot be reached: {cause}");
                });
            }
            Finding::Unknown(cause) => {
                let trusted = self.endpoint.is_trusted();
                self.log_once(&cause.clone(), |cluster| {
                    warn!(cluster, endpoint, trusted, "this API server cannot be checked: {cause}");
                });
            }
        }
        self.endpoint.set_checked();
        let snapshot = self.live.peek();
        if snapshot.endpoints().any(|endpoint| Arc::ptr_eq(endpoint, &self.endpoint)) {
            let trusted = i64::from(self.endpoint.is_trusted());
            self.metrics.backend.endpoint_trusted.with_label_values(&[&self.cluster, &endpoint]).set(trusted);
        } else if self.endpoint.is_trusted() && self.is_pending(&snapshot) {
            self.live.request_reload();
        }
    }

    /// Whether this endpoint is of a pending backend.
    fn is_pending(&self, snapshot: &Snapshot) -> bool {
        let mut pending = snapshot.clusters().iter().filter_map(|cluster| cluster.pending_backend.as_ref());
        pending.any(|backend| Arc::ptr_eq(backend, &self.backend))
    }

    /// Logs a finding, unless it is the one that was last logged.
    fn log_once(&self, finding: &str, log: impl FnOnce(&str)) {
        let mut last = self.last_log.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_deref() != Some(finding) {
            log(&self.cluster);
            *last = Some(finding.to_owned());
        }
    }

    /// Finds out from which other headers the API server reads identities; they are taken out of every request. Says
    /// whether they are known, by the API server or by the configuration; an error says that they may be known later.
    // threat: further-identity-headers
    async fn learn_header_names(&self) -> Result<bool, String> {
        // Without a certificate the gateway cannot be taken for a front proxy, whose headers are read.
        if self.endpoint.own_certificate().is_none() {
            return Ok(true);
        }
        match headers::ask(&self.client, self.backend.identity()).await? {
            headers::Answer::Names(names) => {
                self.backend.learn_identity_headers(&names);
                Ok(true)
            }
            headers::Answer::Unknown => Ok(true),
            headers::Answer::Forbidden => Ok(self.backend.has_configured_identity_headers()),
        }
    }

    /// The user that may not read their names.
    // threat: backend-ignores-identity
    fn reads_as(&self) -> Option<String> {
        match self.backend.identity() {
            IdentityMode::RequestHeader => Some(GATEWAY.to_owned()),
            IdentityMode::Impersonate => self.endpoint.own_certificate().map(|(name, _)| name.to_owned()),
        }
    }
}

/// The user that the check is made as: each part in a shape that a misread would change.
fn subject() -> UserInfo {
    let mut user = UserInfo::named("system:portcullis:self-check");
    user.uid = Some("portcullis-self-check".to_owned());
    user.groups = vec!["portcullis:self-check".to_owned(), ALL_AUTHENTICATED.to_owned()];
    user.extra
        .insert("portcullis.dev/self-check".to_owned(), vec!["one".to_owned(), "two, three".to_owned()]);
    user
}
