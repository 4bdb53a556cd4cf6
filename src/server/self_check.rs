//! Whether an endpoint takes identities as they are: asked at start, after a reload, every minute, and when there is
//! reason to doubt it. Requests go to no endpoint that was not seen to.

mod headers;
mod pace;
mod verdict;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{error, info, warn};

use pace::Pace;
use verdict::{Accepted, Certificate, Fault, judge};

use crate::backend::endpoint::{Target, Trust};
use crate::backend::pool::SendError;
use crate::backend::probe::{AskError, Line};
use crate::backend::upstream::Upstream;
use crate::metrics::Metrics;
use crate::state::snapshot::Snapshot;
use crate::user::IdentityMode;
use crate::user::{ALL_AUTHENTICATED, GATEWAY, UserInfo};

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const REVIEW: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;

/// Doubts are looked into this often at most.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a check that panicked is not tried again.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// Checks every endpoint of the snapshot in force.
pub(crate) struct SelfCheck {
    pub(crate) current: Arc<ArcSwap<Snapshot>>,
    pub(crate) metrics: Arc<Metrics>,
    /// Told when there is a new snapshot.
    pub(crate) swapped: Arc<Notify>,
    /// Asks for a reload: an API server that waited for its first check has passed it.
    pub(crate) reload: Arc<Notify>,
    /// Tells that an API server has refused the gateway's credential.
    pub(crate) refused: Arc<Notify>,
}

impl SelfCheck {
    /// Never ends.
    pub(crate) async fn run(&self) {
        let mut checks: Vec<Running> = Vec::new();
        let mut tasks = JoinSet::new();
        let mut shown = BTreeMap::new();
        loop {
            let snapshot = self.current.load_full();
            self.follow(&snapshot, &mut checks, &mut tasks);
            self.show(&snapshot, &mut shown);
            drop(snapshot);
            tokio::select! {
                () = self.swapped.notified() => {}
                Some(ended) = tasks.join_next() => {
                    if ended.as_ref().is_err_and(JoinError::is_panic) {
                        close_unchecked(&checks);
                        sleep(AFTER_PANIC).await;
                    }
                }
            }
        }
    }

    /// Ends the checks of endpoints that are no longer configured, and begins those that are missing.
    fn follow(&self, snapshot: &Snapshot, checks: &mut Vec<Running>, tasks: &mut JoinSet<()>) {
        let mut wanted = Vec::new();
        for cluster in snapshot.router.clusters() {
            for upstream in [&cluster.upstream].into_iter().chain(&cluster.waiting) {
                wanted.extend(upstream.targets().iter().map(|target| (&cluster.name, upstream, target)));
            }
        }
        checks.retain(|check| {
            let kept = wanted.iter().any(|(_, _, wanted)| Arc::ptr_eq(wanted, &check.target));
            if !kept {
                check.task.abort();
            }
            kept && !check.task.is_finished()
        });
        for (cluster, upstream, target) in wanted {
            if checks.iter().any(|check| Arc::ptr_eq(&check.target, target)) {
                continue;
            }
            let check = Check {
                cluster: cluster.clone(),
                upstream: Arc::clone(upstream),
                target: Arc::clone(target),
                line: Line::new(Arc::clone(upstream), target),
                current: Arc::clone(&self.current),
                metrics: Arc::clone(&self.metrics),
                reload: Arc::clone(&self.reload),
                refused: Arc::clone(&self.refused),
                told: None,
            };
            checks.push(Running { target: Arc::clone(target), task: tasks.spawn(check.run()) });
        }
    }

    /// Shows in the metrics which endpoints there are. One that waits may have the address of one in force, so only
    /// those in force are shown.
    fn show(&self, snapshot: &Snapshot, shown: &mut BTreeMap<[String; 2], Arc<Target>>) {
        let before = std::mem::take(shown);
        for cluster in snapshot.router.clusters() {
            for target in cluster.upstream.targets() {
                shown.insert([cluster.name.clone(), target.address().to_string()], Arc::clone(target));
            }
        }
        for labels in before.keys().filter(|labels| !shown.contains_key(*labels)) {
            self.metrics.backend.forget_endpoint(labels);
        }
        for (labels, target) in shown.iter().filter(|(_, target)| target.is_checked()) {
            self.metrics.backend.endpoint_trusted.with_label_values(labels).set(i64::from(target.is_trusted()));
        }
    }
}

/// Closes the endpoints whose checks have ended though nobody ended them.
fn close_unchecked(checks: &[Running]) {
    for check in checks.iter().filter(|check| check.task.is_finished()) {
        error!(endpoint = %check.target.address(), "the check of an API server panicked; it is not used until it is checked again");
        check.target.distrust();
    }
}

/// A check that goes on until its endpoint is no longer configured.
struct Running {
    target: Arc<Target>,
    task: AbortHandle,
}

/// The check of one endpoint.
struct Check {
    cluster: String,
    upstream: Arc<Upstream>,
    target: Arc<Target>,
    line: Line,
    current: Arc<ArcSwap<Snapshot>>,
    metrics: Arc<Metrics>,
    reload: Arc<Notify>,
    refused: Arc<Notify>,
    /// What was last said of it.
    told: Option<String>,
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
    async fn run(mut self) {
        let mut pace = Pace::default();
        loop {
            let before = self.target.trust();
            let finding = self.ask().await;
            let wait = pace.after(&finding);
            self.conclude(finding, before);
            let now = Instant::now();
            sleep_until(now + PAUSE.min(wait)).await;
            tokio::select! {
                () = sleep_until(now + wait) => {}
                () = self.target.doubted() => {}
                () = self.line.broken() => {}
            }
        }
    }

    async fn ask(&mut self) -> Finding {
        let sent = subject();
        let (status, body) = match self.line.ask(Some(&sent), REVIEWS, Some(REVIEW.to_owned())).await {
            Ok(answer) => answer,
            Err(AskError::Send(SendError::Connect(error))) => return Finding::Away(error.to_string()),
            Err(error) => return Finding::Unknown(error.to_string()),
        };
        let certificate = Certificate::of(self.line.asked(), self.target.own_certificate());
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

    fn conclude(&mut self, finding: Finding, before: Trust) {
        let endpoint = self.target.address().to_string();
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
                if !self.target.set_trusted(before) {
                    // It went away meanwhile; that is a doubt, so it is asked again.
                    return;
                }
                self.target.end_trouble();
                self.upstream.note_there();
                match accepted {
                    Accepted::Whole => self.tell("", |cluster| {
                        info!(cluster, endpoint, "identities arrive as they are");
                    }),
                    Accepted::WithoutUid => self.tell(
                        "uid",
                        |cluster| {
                            warn!(cluster, endpoint, "uids do not arrive: set --requestheader-uid-headers=X-Remote-Uid on this API server");
                        },
                    ),
                }
            }
            Finding::Bad(fault) => {
                self.target.distrust();
                if matches!(fault, Fault::Unauthorized(_)) {
                    self.refused.notify_one();
                }
                let advice = fault.advice(self.upstream.identity());
                self.tell(&advice.clone(), |cluster| {
                    error!(cluster, endpoint, "this API server is not used: {advice}");
                });
            }
            Finding::Away(cause) => {
                self.target.distrust();
                self.tell(&cause.clone(), |cluster| {
                    warn!(cluster, endpoint, "this API server cannot be reached: {cause}");
                });
            }
            Finding::Unknown(cause) => {
                let trusted = self.target.is_trusted();
                self.tell(&cause.clone(), |cluster| {
                    warn!(cluster, endpoint, trusted, "this API server cannot be checked: {cause}");
                });
            }
        }
        self.target.set_checked();
        let snapshot = self.current.load();
        if snapshot.targets().any(|target| Arc::ptr_eq(target, &self.target)) {
            let trusted = i64::from(self.target.is_trusted());
            self.metrics.backend.endpoint_trusted.with_label_values(&[&self.cluster, &endpoint]).set(trusted);
        } else if self.target.is_trusted() && self.is_waiting(&snapshot) {
            self.reload.notify_one();
        }
    }

    /// Whether this is what a cluster waits for.
    fn is_waiting(&self, snapshot: &Snapshot) -> bool {
        let mut waiting = snapshot.router.clusters().iter().filter_map(|cluster| cluster.waiting.as_ref());
        waiting.any(|upstream| Arc::ptr_eq(upstream, &self.upstream))
    }

    /// Says something once.
    fn tell(&mut self, what: &str, say: impl FnOnce(&str)) {
        if self.told.as_deref() != Some(what) {
            say(&self.cluster);
            self.told = Some(what.to_owned());
        }
    }

    /// Finds out from which other headers the API server reads identities; they are taken out of every request. Says
    /// whether they are known, by the API server or by the configuration; an error says that they may be known later.
    // threat: further-identity-headers
    async fn learn_header_names(&mut self) -> Result<bool, String> {
        // Without a certificate the gateway cannot be taken for a front proxy, whose headers are read.
        if self.target.own_certificate().is_none() {
            return Ok(true);
        }
        match headers::ask(&self.line, self.upstream.identity()).await? {
            headers::Answer::Names(names) => {
                self.upstream.learn_identity_headers(&names);
                Ok(true)
            }
            headers::Answer::Unknown => Ok(true),
            headers::Answer::Forbidden => Ok(self.upstream.has_configured_identity_headers()),
        }
    }

    /// The user that may not read their names.
    // threat: backend-ignores-identity
    fn reads_as(&self) -> Option<String> {
        match self.upstream.identity() {
            IdentityMode::RequestHeader => Some(GATEWAY.to_owned()),
            IdentityMode::Impersonate => self.target.own_certificate().map(|(name, _)| name.to_owned()),
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
