//! Revokes the certificates of pods that were deleted, for signers with a CRL.
//!
//! The index of a signer is the record: a certificate is in it, with the UID of its pod, before the API server gets the
//! certificate. This task follows the pods of the cluster, and keeps in memory only those with certificates. A restart reads
//! the index, and compares it with the list of pods. A list may be older than a pod, so a pod that it lacks is read once more;
//! the event of a deletion is certain. Runs on the leader alone. A failed write is repeated until it works.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use portcullis_system::clock::UnixTime;
use portcullis_system::sync::lock;
use portcullis_tools::certs::signer_records::{
    CrlOutcome, IndexedPod, RecordedCertificate, SignerRecordsError,
};
use serde::Deserialize;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, error, info};

use super::decision::PodDecision;
use super::request::{MANIFEST, PodRequest};
use super::{CONTROLLER, ControllerContext, PodSignerSettings};
use crate::backend::follow::{FollowError, FollowEvent, FollowedResource, Follower};
use crate::controllers::problems::error_message;
use crate::controllers::request_feed::POLICY;

/// How long deletions are gathered before a CRL is signed.
const GATHERING_INTERVAL: Duration = Duration::from_secs(1);
/// How often the CRL is looked at: whether it is due, or has entries that have ended, or lacks what `certs revoke` has revoked.
const CHECK_INTERVAL: Duration = Duration::from_mins(10);
/// How often lines of certificates that ended long ago are dropped.
const PRUNE_INTERVAL: Duration = Duration::from_hours(1);
/// The wait after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
const CAUSE: &str = "podcertificaterequest-signing revokes certificates";
const FOLLOW_CAUSE: &str = "podcertificaterequest-signing follows pods";

/// The pods with certificates that a CRL may have to list, by their UIDs.
#[derive(Debug, Default)]
pub(super) struct TrackedPods(Mutex<HashMap<String, PodName>>);

/// Namespace and name of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PodName {
    namespace: String,
    name: String,
}

impl TrackedPods {
    fn track(&self, pod: &IndexedPod) {
        let name = PodName { namespace: pod.namespace.clone(), name: pod.name.clone() };
        lock(&self.0).insert(pod.uid.clone(), name);
    }

    fn contains(&self, uid: &str) -> bool {
        lock(&self.0).contains_key(uid)
    }

    fn forget(&self, uids: &HashSet<String>) {
        lock(&self.0).retain(|uid, _| !uids.contains(uid));
    }

    fn all(&self) -> HashMap<String, PodName> {
        lock(&self.0).clone()
    }
}

/// Records a certificate that was signed, if its signer has an index. Blocks. The pod is tracked first: an event about it may
/// come before the next instruction.
// threat: revoked-pod-certificate
pub(super) fn record(
    pods: &TrackedPods,
    request: &PodRequest,
    signer: &PodSignerSettings,
    decision: &PodDecision,
    now: UnixTime,
) -> Result<(), SignerRecordsError> {
    let (PodDecision::Issued(certificate), Some(records)) = (decision, &signer.records) else {
        return Ok(());
    };
    let (namespace, spec) = (&request.metadata.namespace, &request.spec);
    let pod = IndexedPod {
        namespace: namespace.clone(),
        name: spec.pod_name.clone(),
        uid: spec.pod_uid.clone(),
        service_account: spec.service_account_name.clone(),
        node: spec.node_name.clone(),
    };
    if records.crl.is_some() {
        pods.track(&pod);
    }
    let recorded = RecordedCertificate {
        issued: &certificate.issued,
        alt_names: certificate.names.alt_names(),
        signer: &spec.signer_name,
        pod: &pod,
    };
    records.record(recorded, &signer.authority, now)
}

/// Whether a certificate may be issued: it is in the index, or needs not be. Logs a failure once.
pub(super) fn permits(
    context: &ControllerContext,
    signer: &str,
    recorded: Result<(), SignerRecordsError>,
) -> bool {
    let (cluster, controller) = (&*context.cluster, CONTROLLER.alias());
    let cause = format!("{controller} records certificates of {signer}");
    match recorded {
        Ok(()) => {
            context.problems.ends(&cause);
            return true;
        }
        Err(problem) if context.problems.begins(&cause) => {
            error!(cluster, controller, signer, "no certificate is issued, will retry: index: {problem}");
        }
        Err(problem) => debug!(cluster, controller, signer, "index: {problem}"),
    }
    false
}

/// Revokes the certificates of deleted pods, for ever.
pub(super) async fn run(context: &ControllerContext, pods: &TrackedPods) -> Infallible {
    let signers = signers(context);
    if signers.is_empty() {
        return std::future::pending().await;
    }
    let has_crl =
        |signer: &PodSignerSettings| signer.records.as_ref().is_some_and(|records| records.crl.is_some());
    let follows_pods = signers.iter().any(has_crl);
    let revoker = Revoker { context, pods, signers };
    while !follows_pods {
        // There are indexes alone.
        let retry = revoker.write(&mut HashSet::new(), true).await;
        sleep(if retry.is_ok() { PRUNE_INTERVAL } else { RETRY_INTERVAL }).await;
    }
    while !revoker.load().await {
        sleep(RETRY_INTERVAL).await;
    }
    revoker.follow().await
}

/// The signers with an index, one for each CA.
fn signers(context: &ControllerContext) -> Vec<PodSignerSettings> {
    let mut signers: Vec<PodSignerSettings> = Vec::new();
    for signer in context.settings.pod_signers.iter().filter(|signer| signer.records.is_some()) {
        if !signers.iter().any(|known| known.records == signer.records) {
            signers.push(signer.clone());
        }
    }
    signers
}

/// Metadata of a pod.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FollowedPod {
    metadata: FollowedMetadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FollowedMetadata {
    uid: String,
}

/// A CRL or a record could not be written; the log has the reason.
struct Unwritten;

struct Revoker<'a> {
    context: &'a ControllerContext,
    pods: &'a TrackedPods,
    signers: Vec<PodSignerSettings>,
}

impl Revoker<'_> {
    /// Reads the indexes. Returns whether all could be read.
    async fn load(&self) -> bool {
        let now = self.context.clock.now();
        let mut is_complete = true;
        for signer in &self.signers {
            let Some(records) = signer.records.clone().filter(|records| records.crl.is_some()) else {
                continue;
            };
            match blocking(move || records.pods(now)).await {
                Ok(found) => found.iter().for_each(|pod| self.pods.track(pod)),
                Err(problem) => {
                    self.failed(signer, &problem);
                    is_complete = false;
                }
            }
        }
        is_complete
    }

    /// Follows the pods.
    async fn follow(&self) -> Infallible {
        let resource = FollowedResource {
            path: "/api/v1/pods".to_owned(),
            is_metadata: true,
            ..FollowedResource::default()
        };
        let mut follower = Follower::new(self.context.client.clone(), resource, POLICY);
        let mut missing: HashMap<String, PodName> = HashMap::new();
        let mut gone: HashSet<String> = HashSet::new();
        // At once: the CRL may be due, or absent.
        let (mut due, mut prune_due) = (Instant::now(), Instant::now());
        loop {
            // Only one page of a cluster is in memory at a time.
            let turn = if follower.is_listing() { self.context.lists.acquire().await.ok() } else { None };
            let event = tokio::select! {
                event = follower.next::<FollowedPod>() => event,
                () = sleep_until(due) => {
                    drop(turn);
                    let prunes = Instant::now() >= prune_due;
                    due = Instant::now() + match self.write(&mut gone, prunes).await {
                        Ok(()) if prunes => {
                            prune_due = Instant::now() + PRUNE_INTERVAL;
                            CHECK_INTERVAL
                        }
                        Ok(()) => CHECK_INTERVAL,
                        Err(Unwritten) => RETRY_INTERVAL,
                    };
                    continue;
                }
            };
            drop(turn);
            let before = gone.len();
            match event {
                // Pods of certificates that are signed from now on may be newer than the list.
                Ok(FollowEvent::ListBegins) => missing = self.pods.all(),
                Ok(FollowEvent::Page(page)) => {
                    for pod in page {
                        missing.remove(&pod.metadata.uid);
                    }
                }
                Ok(FollowEvent::Listed { .. }) => {
                    for (uid, name) in std::mem::take(&mut missing) {
                        match self.is_gone(&uid, &name).await {
                            Ok(true) => {
                                gone.insert(uid);
                            }
                            Ok(false) => {}
                            Err(problem) => {
                                self.cannot_follow(&problem);
                                follower.list_again();
                            }
                        }
                    }
                }
                Ok(FollowEvent::Deleted(pod)) if self.pods.contains(&pod.metadata.uid) => {
                    gone.insert(pod.metadata.uid);
                }
                // It may have been the end of a pod.
                Ok(FollowEvent::Skipped) => follower.list_again(),
                Ok(_) => {}
                Err(FollowError::Expired) => {}
                Err(error) => {
                    let problem = error.of_request().map_or_else(|| error.to_string(), error_message);
                    self.cannot_follow(&problem);
                }
            }
            if !follower.is_failing() {
                self.context.problems.ends(FOLLOW_CAUSE);
            }
            if before == 0 && !gone.is_empty() {
                due = due.min(Instant::now() + GATHERING_INTERVAL);
            }
        }
    }

    /// Whether a pod that a list lacks does not exist. The list may come from a cache that is behind.
    async fn is_gone(&self, uid: &str, name: &PodName) -> Result<bool, String> {
        let api = Api::<Pod>::namespaced(self.context.client.clone(), &name.namespace);
        match api.get_metadata_opt(&name.name).await {
            Ok(found) => Ok(found.is_none_or(|found| found.metadata.uid.as_deref() != Some(uid))),
            Err(error) => Err(error_message(&error)),
        }
    }

    /// Revokes the certificates of these pods, and writes the CRLs that are due. `prunes`: drops old lines, too.
    async fn write(&self, gone: &mut HashSet<String>, prunes: bool) -> Result<(), Unwritten> {
        let now = self.context.clock.now();
        let mut is_complete = true;
        for signer in &self.signers {
            let (Some(records), authority) = (signer.records.clone(), Arc::clone(&signer.authority)) else {
                continue;
            };
            let pods = gone.clone();
            let written = blocking(move || {
                let outcome = records.revoke(&authority, &pods, now)?;
                if prunes {
                    // The CRL was written before.
                    records.prune(now)?;
                }
                Ok(outcome)
            });
            match written.await {
                Ok(outcome) => self.written(signer, outcome),
                Err(problem) => {
                    self.failed(signer, &problem);
                    is_complete = false;
                }
            }
        }
        if !is_complete {
            return Err(Unwritten);
        }
        self.context.problems.ends(CAUSE);
        self.pods.forget(gone);
        gone.clear();
        Ok(())
    }

    fn written(&self, signer: &PodSignerSettings, outcome: Option<CrlOutcome>) {
        let Some(CrlOutcome { revoked, entries, is_written: true }) = outcome else { return };
        let (cluster, signer) = (&*self.context.cluster, signer.name.as_str());
        info!(cluster, signer, revoked, entries, "CRL written");
    }

    fn failed(&self, signer: &PodSignerSettings, problem: &SignerRecordsError) {
        let (cluster, controller, signer) =
            (&*self.context.cluster, CONTROLLER.alias(), signer.name.as_str());
        if self.context.problems.begins(CAUSE) {
            error!(
                cluster,
                controller, signer, "cannot revoke certificates of deleted pods, will retry: {problem}"
            );
        } else {
            debug!(cluster, controller, signer, "cannot revoke certificates: {problem}");
        }
    }

    fn cannot_follow(&self, problem: &str) {
        let (cluster, controller) = (&*self.context.cluster, CONTROLLER.alias());
        if self.context.problems.begins(FOLLOW_CAUSE) {
            error!(
                cluster,
                controller,
                "cannot follow pods, so that the certificates of deleted ones are not revoked, will retry: {problem}; the \
                 gateway needs the verbs get, list and watch on pods ({MANIFEST})"
            );
        } else {
            debug!(cluster, controller, "cannot follow pods: {problem}");
        }
    }
}

/// Runs what blocks on another thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SignerRecordsError> + Send + 'static,
) -> Result<T, SignerRecordsError> {
    spawn_blocking(work).await.unwrap_or_else(|error| Err(SignerRecordsError::of(&error)))
}
