//! Whether an endpoint takes identities as they are: asked at start, after a reload, every minute, and when there is
//! reason to doubt it. Requests go to no endpoint that was not seen to.

mod verdict;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::FutureExt as _;
use serde::Deserialize;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, error, info, warn};

use verdict::{Accepted, Certificate, Fault, judge};

use crate::authn::request_header::RequestHeaderNames;
use crate::clusters::settings::IdentityMode;
use crate::clusters::target::Target;
use crate::clusters::upstream::Upstream;
use crate::forward::SendError;
use crate::forward::ask::{AskError, Line};
use crate::metrics::Metrics;
use crate::snapshot::Snapshot;
use crate::user::{ALL_AUTHENTICATED, UserInfo};

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const REVIEW: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;
const HEADER_NAMES: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";

/// How often a good endpoint is asked.
const EVERY: Duration = Duration::from_mins(1);
/// How soon a bad one is asked again: a young API server forbids everything until its roles are loaded.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(10);
/// How long one that was away may be there again before it is asked.
const LAST_KNOCK: Duration = Duration::from_secs(1);
/// Doubts are looked into this often at most.
const PAUSE: Duration = Duration::from_millis(100);

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
    pub(crate) async fn run(self) {
        let mut checks: Vec<Running> = Vec::new();
        let mut tasks = JoinSet::new();
        loop {
            let snapshot = self.current.load_full();
            let mut wanted = Vec::new();
            for cluster in snapshot.router.clusters() {
                let waiting = cluster.waiting.iter().map(|upstream| (upstream, true));
                for (upstream, waits) in [(&cluster.upstream, false)].into_iter().chain(waiting) {
                    for target in upstream.targets() {
                        wanted.push((&cluster.name, upstream, target, waits));
                    }
                }
            }
            checks.retain(|check| {
                let kept = wanted.iter().any(|(_, _, wanted, _)| Arc::ptr_eq(wanted, &check.target));
                if !kept {
                    check.task.abort();
                    self.metrics.forget_endpoint(&check.labels);
                }
                kept
            });
            for (cluster, upstream, target, waits) in wanted {
                if checks.iter().any(|check| Arc::ptr_eq(&check.target, target)) {
                    continue;
                }
                let labels = [cluster.clone(), target.address().to_string()];
                let check = Check {
                    cluster: cluster.clone(),
                    upstream: Arc::clone(upstream),
                    target: Arc::clone(target),
                    line: Line::new(Arc::clone(upstream), Arc::clone(target)),
                    metrics: Arc::clone(&self.metrics),
                    reload: waits.then(|| Arc::clone(&self.reload)),
                    refused: Arc::clone(&self.refused),
                    told: None,
                    unreadable: false,
                };
                checks.push(Running { target: Arc::clone(target), labels, task: tasks.spawn(check.run()) });
            }
            drop(snapshot);
            self.swapped.notified().await;
            while tasks.try_join_next().is_some() {}
        }
    }
}

/// A check that goes on until its endpoint is no longer configured.
struct Running {
    target: Arc<Target>,
    /// The cluster and the endpoint, as metrics name them.
    labels: [String; 2],
    task: AbortHandle,
}

/// The check of one endpoint.
struct Check {
    cluster: String,
    upstream: Arc<Upstream>,
    target: Arc<Target>,
    line: Line,
    metrics: Arc<Metrics>,
    reload: Option<Arc<Notify>>,
    refused: Arc<Notify>,
    /// What was last said of it.
    told: Option<String>,
    /// Whether it was said that the names of its identity headers cannot be read.
    unreadable: bool,
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
        let mut retry = FIRST_RETRY;
        loop {
            let finding = self.ask().await;
            let (wait, next) = match finding {
                Finding::Good(_) => (EVERY, FIRST_RETRY),
                Finding::Away(_) => (retry.min(LAST_KNOCK), retry * 2),
                Finding::Bad(_) | Finding::Unknown(_) => (retry, retry * 2),
            };
            self.conclude(finding).await;
            retry = next.min(LAST_RETRY);
            let now = Instant::now();
            sleep_until(now + PAUSE.min(wait)).await;
            tokio::select! {
                () = sleep_until(now + wait) => {}
                () = self.target.doubted() => {}
            }
        }
    }

    async fn ask(&self) -> Finding {
        let sent = subject();
        let (status, body) = match self.line.ask(&sent, REVIEWS, Some(REVIEW.to_owned())).await {
            Ok(answer) => answer,
            Err(AskError::Send(SendError::Connect(error))) => return Finding::Away(error.to_string()),
            Err(error) => return Finding::Unknown(error.to_string()),
        };
        let certificate = Certificate::of(self.target.asked(), self.target.own_certificate());
        match judge(&sent, status, &body, certificate) {
            Some(Ok(accepted)) => Finding::Good(accepted),
            Some(Err(fault)) => Finding::Bad(fault),
            None => Finding::Unknown(format!("it answered {status}")),
        }
    }

    async fn conclude(&mut self, finding: Finding) {
        let endpoint = self.target.address().to_string();
        let result = match &finding {
            Finding::Good(Accepted::Whole) => "ok",
            Finding::Good(Accepted::WithoutUid) => "uid_missing",
            Finding::Bad(fault) => fault.label(),
            Finding::Away(_) => "away",
            Finding::Unknown(_) => "unknown",
        };
        self.metrics.self_checks.with_label_values(&[&self.cluster, &endpoint, result]).inc();
        match finding {
            Finding::Good(accepted) => {
                if self.upstream.identity() == IdentityMode::RequestHeader {
                    self.learn_header_names().await;
                }
                let first = !self.target.is_trusted();
                self.target.set_trusted(true);
                match accepted {
                    Accepted::Whole => self.tell_good(&endpoint, "identities arrive as they are"),
                    Accepted::WithoutUid => self.tell(
                        "uid",
                        |cluster| {
                            warn!(cluster, endpoint, "uids do not arrive: set --requestheader-uid-headers=X-Remote-Uid on this API server");
                        },
                    ),
                }
                if let Some(reload) = self.reload.take_if(|_| first) {
                    reload.notify_one();
                }
            }
            Finding::Bad(fault) => {
                self.target.set_trusted(false);
                if matches!(fault, Fault::Unauthorized(_)) {
                    self.refused.notify_one();
                }
                let advice = fault.advice(self.upstream.identity());
                self.tell(&advice.clone(), |cluster| {
                    error!(cluster, endpoint, "this API server is not used: {advice}");
                });
            }
            Finding::Away(cause) => {
                self.target.set_trusted(false);
                // That of this very check.
                self.target.doubted().now_or_never();
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
        let trusted = i64::from(self.target.is_trusted());
        self.metrics.endpoint_trusted.with_label_values(&[&self.cluster, &endpoint]).set(trusted);
    }

    fn tell_good(&mut self, endpoint: &str, text: &str) {
        self.tell("", |cluster| info!(cluster, endpoint, "{text}"));
    }

    /// Says something once.
    fn tell(&mut self, what: &str, say: impl FnOnce(&str)) {
        if self.told.as_deref() != Some(what) {
            say(&self.cluster);
            self.told = Some(what.to_owned());
        }
    }

    /// Finds out from which other headers the API server reads identities; they are taken out of every request.
    // kubernetes: pkg/controlplane/controller/clusterauthenticationtrust/cluster_authentication_trust_controller.go
    async fn learn_header_names(&mut self) {
        let answer = self.line.ask(&UserInfo::portcullis(), HEADER_NAMES, None).await;
        let names = match answer {
            Ok((http::StatusCode::OK, body)) => header_names(&body),
            Ok((http::StatusCode::FORBIDDEN, _)) => {
                if !std::mem::replace(&mut self.unreadable, true) {
                    info!(
                        cluster = self.cluster,
                        "the names of its identity headers cannot be read, so others than X-Remote-* are not taken out of \
                         requests: kubectl create rolebinding portcullis -n kube-system \
                         --role=extension-apiserver-authentication-reader --user=system:portcullis"
                    );
                }
                None
            }
            Ok((status, _)) => {
                debug!(cluster = self.cluster, %status, "the names of its identity headers cannot be read");
                None
            }
            Err(error) => {
                debug!(cluster = self.cluster, %error, "the names of its identity headers cannot be read");
                None
            }
        };
        // What was learnt once stays when it cannot be read.
        if let Some(names) = names {
            self.upstream.identity_headers.store(Some(Arc::new(names)));
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

#[derive(Deserialize)]
struct ConfigMap {
    #[serde(default)]
    data: BTreeMap<String, String>,
}

fn header_names(body: &[u8]) -> Option<RequestHeaderNames> {
    let map: ConfigMap = serde_json::from_slice(body).ok()?;
    let list = |key: &str| -> Vec<String> {
        map.data.get(key).and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default()
    };
    let names = RequestHeaderNames::new(
        &list("requestheader-username-headers"),
        &list("requestheader-uid-headers"),
        &list("requestheader-group-headers"),
        &list("requestheader-extra-headers-prefix"),
    );
    names.ok()
}
