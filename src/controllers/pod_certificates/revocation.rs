//! Revokes the certificates of pods that were deleted, for signers with a CRL.
//!
//! The index of a signer is the record: a certificate is in it, with the UID of its pod, before the API server gets the
//! certificate. This task follows the pods of the cluster, and keeps in memory only those with certificates. A restart reads
//! the index, and compares it with the list of pods. A list may be older than a pod, so a pod that it lacks is read once more;
//! the event of a deletion is certain. Runs on the leader alone. A failed write is repeated until it works. Each signer has its
//! own loop: its files never delay the CRLs of the others, and reading pods delays no CRL.

mod brake;

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use portcullis_system::sync::lock;
use portcullis_tools::certs::signer_records::{
    CrlOutcome, IndexedPod, IndexedPods, RecordOwner, RevocationOutcome, SignerRecords, SignerRecordsError,
};
use serde::Deserialize;
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, error, info, warn};

use super::request::MANIFEST;
use super::shares::RecordShares;
use super::{CONTROLLER, ControllerContext, PodSignerSettings};
use crate::backend::follow::{FollowError, FollowEvent, FollowedResource, Follower};
use crate::controllers::problems::error_message;
use crate::controllers::request_feed::POLICY;
use brake::Brake;

/// How long deletions are gathered before a CRL is signed.
const GATHERING_INTERVAL: Duration = Duration::from_secs(1);
/// How often the CRL is looked at: whether it is due, or has entries that have ended, or lacks what `certs revoke` has revoked.
const CHECK_INTERVAL: Duration = Duration::from_mins(10);
/// How often lines of certificates that ended long ago are dropped, and the index is measured.
const PRUNE_INTERVAL: Duration = Duration::from_hours(1);
/// How long after a revocation the records are measured.
const MEASURE_INTERVAL: Duration = Duration::from_mins(5);
/// The wait after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// How long work on files may take before the log says so.
const SLOW_INTERVAL: Duration = Duration::from_mins(1);
/// The pods that are read at a time, and how long each may take.
const CONCURRENT_READS: usize = 8;
const READ_TIMEOUT: Duration = Duration::from_secs(30);
const CAUSE: &str = "podcertificaterequest-signing revokes certificates of";
const FOREIGN_CAUSE: &str = "podcertificaterequest-signing finds foreign certificates of";
const FOLLOW_CAUSE: &str = "podcertificaterequest-signing follows pods";
const READ_CAUSE: &str = "podcertificaterequest-signing reads pods that a list lacks";

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
    /// Returns whether the pod is new.
    pub(super) fn track(&self, pod: &IndexedPod) -> bool {
        let name = PodName { namespace: pod.namespace.clone(), name: pod.name.clone() };
        lock(&self.0).insert(pod.uid.clone(), name).is_none()
    }

    fn contains(&self, uid: &str) -> bool {
        lock(&self.0).contains_key(uid)
    }

    fn forget(&self, is_done: impl Fn(&str) -> bool) {
        lock(&self.0).retain(|uid, _| !is_done(uid));
    }

    fn all(&self) -> HashMap<String, PodName> {
        lock(&self.0).clone()
    }
}

/// The pods that are gone, for each signer that has not revoked their certificates yet.
struct Deletions<'a> {
    pods: &'a TrackedPods,
    pending: Mutex<Vec<HashSet<String>>>,
    wakers: Vec<Notify>,
}

impl<'a> Deletions<'a> {
    fn new(pods: &'a TrackedPods, signers: usize) -> Self {
        let wakers = std::iter::repeat_with(Notify::new).take(signers).collect();
        Self { pods, pending: Mutex::new(vec![HashSet::new(); signers]), wakers }
    }

    fn add(&self, uid: &str) {
        for signer in lock(&self.pending).iter_mut() {
            signer.insert(uid.to_owned());
        }
        self.wakers.iter().for_each(Notify::notify_one);
    }

    fn of(&self, signer: usize) -> HashSet<String> {
        lock(&self.pending).get(signer).cloned().unwrap_or_default()
    }

    /// The signer has revoked the certificates of these pods. Those that no signer needs are forgotten.
    fn revoked(&self, signer: usize, uids: &HashSet<String>) {
        if uids.is_empty() {
            return;
        }
        let mut pending = lock(&self.pending);
        if let Some(own) = pending.get_mut(signer) {
            own.retain(|uid| !uids.contains(uid));
        }
        let is_needed = |uid: &str| pending.iter().any(|signer| signer.contains(uid));
        self.pods.forget(|uid| uids.contains(uid) && !is_needed(uid));
    }

    async fn wait(&self, signer: usize) {
        match self.wakers.get(signer) {
            Some(waker) => waker.notified().await,
            None => std::future::pending().await,
        }
    }
}

/// Revokes the certificates of deleted pods, for ever.
// threat: revoked-pod-certificate
pub(super) async fn run(
    context: &ControllerContext,
    pods: &TrackedPods,
    shares: &RecordShares,
) -> Infallible {
    let signers = signers(context);
    if signers.is_empty() {
        return std::future::pending().await;
    }
    let deletions = Deletions::new(pods, signers.len());
    let (loads, loaded) = watch::channel(0);
    let revoker = |(index, (signer, records))| SignerRevoker {
        context,
        deletions: &deletions,
        shares,
        loads: &loads,
        index,
        signer,
        records,
    };
    let revokers: Vec<SignerRevoker<'_>> = signers.into_iter().enumerate().map(revoker).collect();
    let with_crl: Vec<&SignerRecords> =
        revokers.iter().filter(|revoker| revoker.has_crl()).map(|revoker| &revoker.records).collect();
    let keeping = join_all(revokers.iter().map(SignerRevoker::keep));
    let following = async {
        match with_crl.first() {
            Some(first) => {
                let follower = PodFollower { context, deletions: &deletions, brake: Brake::new(first) };
                follower.follow(loaded, with_crl.len()).await
            }
            // There are indexes alone.
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = keeping => std::future::pending().await,
        never = following => never,
    }
}

/// The signers with an index, one for each CA.
fn signers(context: &ControllerContext) -> Vec<(PodSignerSettings, SignerRecords)> {
    let mut signers: Vec<(PodSignerSettings, SignerRecords)> = Vec::new();
    for signer in &context.settings.pod_signers {
        if let Some(records) = &signer.records
            && !signers.iter().any(|(_, known)| known == records)
        {
            signers.push((signer.clone(), records.clone()));
        }
    }
    signers
}

/// A CRL or a record could not be written; the log has the reason.
struct Unwritten;

/// What was written.
struct Wrote {
    has_revoked: bool,
}

/// What is known of an index after it was read.
struct IndexLoad {
    /// Whether all of it could be read.
    is_complete: bool,
    /// The certificates of the CA at that time: those of other keys are left out.
    issuers: Option<String>,
}

impl IndexLoad {
    const NOT_NEEDED: Self = Self { is_complete: true, issuers: None };
}

/// Revokes the certificates of one signer, and those of the other signers of its CA.
struct SignerRevoker<'a> {
    context: &'a ControllerContext,
    deletions: &'a Deletions<'a>,
    shares: &'a RecordShares,
    /// Counts the first attempts to read an index, and the later ones that have found pods.
    loads: &'a watch::Sender<usize>,
    index: usize,
    signer: PodSignerSettings,
    records: SignerRecords,
}

impl SignerRevoker<'_> {
    fn has_crl(&self) -> bool {
        self.records.crl.is_some()
    }

    /// Keeps the record and the CRL.
    async fn keep(&self) -> Infallible {
        let mut loaded = if self.has_crl() { self.load(true).await } else { IndexLoad::NOT_NEEDED };
        // At once: the CRL may be due, or absent.
        let (mut prune_due, mut measure_due) = (Instant::now(), Instant::now());
        loop {
            let prunes = Instant::now() >= prune_due;
            let written = self.write(prunes).await;
            let is_written = written.is_ok();
            if matches!(written, Ok(Wrote { has_revoked: true })) {
                measure_due = measure_due.min(Instant::now() + MEASURE_INTERVAL);
            }
            if Instant::now() >= measure_due {
                self.measure().await;
                measure_due = Instant::now() + PRUNE_INTERVAL;
            }
            if is_written && prunes {
                prune_due = Instant::now() + PRUNE_INTERVAL;
            }
            if !is_written || !loaded.is_complete {
                sleep(RETRY_INTERVAL).await;
                if !loaded.is_complete {
                    loaded = self.load(false).await;
                }
                continue;
            }
            // The operator may have put the certificate of a former key there.
            if self.has_crl() && self.issuers().await != loaded.issuers {
                loaded = self.load(false).await;
                continue;
            }
            self.context.problems.ends(&self.cause(CAUSE));
            tokio::select! {
                () = sleep(CHECK_INTERVAL) => {}
                () = self.deletions.wait(self.index) => sleep(GATHERING_INTERVAL).await,
            }
        }
    }

    /// Measures what the namespaces have of the index.
    async fn measure(&self) {
        let records = self.records.clone();
        match self.blocking(move |_| records.sizes()).await {
            Ok(sizes) => self.shares.measured(&self.records.index, sizes),
            // The next certificate cannot be recorded either, and the log says why.
            Err(problem) => debug!(cluster = &*self.context.cluster, "cannot measure the index: {problem}"),
        }
    }

    /// The certificates of the CA.
    async fn issuers(&self) -> Option<String> {
        let records = self.records.clone();
        self.blocking(move |owner| records.issuers_print(owner)).await.ok()
    }

    /// Reads the index.
    async fn load(&self, is_first: bool) -> IndexLoad {
        let issuers = self.issuers().await;
        let (now, records) = (self.context.clock.now(), self.records.clone());
        let found = self.blocking(move |owner| records.pods(owner, now)).await;
        let (mut has_new, mut is_complete) = (false, false);
        match found {
            Ok(IndexedPods { pods, foreign, problem }) => {
                for pod in &pods {
                    has_new |= self.deletions.pods.track(pod);
                }
                self.found_foreign(foreign);
                match problem {
                    Some(problem) => self.failed(&problem),
                    None => is_complete = true,
                }
            }
            Err(problem) => self.failed(&problem),
        }
        if is_first || has_new {
            self.loads.send_modify(|loads| *loads += 1);
        }
        IndexLoad { is_complete, issuers }
    }

    /// Revokes the certificates of pods that are gone, and writes the CRL if it is due. `prunes`: drops old lines, too.
    async fn write(&self, prunes: bool) -> Result<Wrote, Unwritten> {
        let (now, records, gone) =
            (self.context.clock.now(), self.records.clone(), self.deletions.of(self.index));
        let uids = gone.clone();
        let written = self.blocking(move |owner| {
            let outcome = records.revoke(owner, &uids, now)?;
            // The CRL was written before.
            let pruned = if prunes { records.prune(now) } else { Ok(()) };
            Ok((outcome, pruned))
        });
        let (outcome, pruned) = written.await.map_err(|problem| {
            self.failed(&problem);
            Unwritten
        })?;
        let (crl, problem) = match outcome {
            Some(RevocationOutcome { crl, problem }) => (Some(crl), problem),
            None => (None, None),
        };
        self.written(crl);
        let has_revoked = crl.is_some_and(|crl| crl.revoked > 0);
        if problem.is_none() {
            self.deletions.revoked(self.index, &gone);
        }
        match problem.or(pruned.err()) {
            Some(problem) => {
                self.failed(&problem);
                Err(Unwritten)
            }
            None => Ok(Wrote { has_revoked }),
        }
    }

    fn cause(&self, cause: &str) -> String {
        format!("{cause} {}", self.signer.name.as_str())
    }

    fn written(&self, crl: Option<CrlOutcome>) {
        let Some(CrlOutcome { revoked, entries, is_written: true }) = crl else { return };
        let (cluster, signer) = (&*self.context.cluster, self.signer.name.as_str());
        info!(cluster, signer, revoked, entries, "CRL written");
    }

    fn failed(&self, problem: &SignerRecordsError) {
        let (cluster, controller) = (&*self.context.cluster, CONTROLLER.alias());
        let signer = self.signer.name.as_str();
        if self.context.problems.begins(&self.cause(CAUSE)) {
            error!(
                cluster,
                controller, signer, "cannot revoke certificates of deleted pods, will retry: {problem}"
            );
        } else {
            debug!(cluster, controller, signer, "cannot revoke certificates: {problem}");
        }
    }

    fn found_foreign(&self, certificates: usize) {
        if certificates > 0 && self.context.problems.begins(&self.cause(FOREIGN_CAUSE)) {
            let (cluster, signer) = (&*self.context.cluster, self.signer.name.as_str());
            warn!(
                cluster,
                signer,
                certificates,
                index = %self.records.index.display(),
                "the index has certificates of another cluster or of another key of the CA: they are not revoked with their pods"
            );
        }
    }

    /// Runs what blocks on another thread, one at a time for each signer. Logs that it takes long, and goes on waiting.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(RecordOwner<'_>) -> Result<T, SignerRecordsError> + Send + 'static,
    ) -> Result<T, SignerRecordsError> {
        let (cluster, authority) = (Arc::clone(&self.context.cluster), Arc::clone(&self.signer.authority));
        let mut working =
            spawn_blocking(move || work(RecordOwner { cluster: &cluster, authority: &authority }));
        loop {
            if let Ok(done) = timeout(SLOW_INTERVAL, &mut working).await {
                return done.unwrap_or_else(|error| Err(SignerRecordsError::of(&error)));
            }
            let index = self.records.index.display();
            let slow = format!("{index}: the file system has not answered for {} s", SLOW_INTERVAL.as_secs());
            self.failed(&SignerRecordsError::of(&slow));
        }
    }
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

/// Finds the pods that are gone.
struct PodFollower<'a> {
    context: &'a ControllerContext,
    deletions: &'a Deletions<'a>,
    brake: Brake<'a>,
}

impl PodFollower<'_> {
    /// Follows the pods, once each of the indexes was read or has failed.
    async fn follow(mut self, mut loaded: watch::Receiver<usize>, indexes: usize) -> Infallible {
        // An index that cannot be read in this time does not delay the others: its pods are looked for later.
        drop(timeout(RETRY_INTERVAL, loaded.wait_for(|loads| *loads >= indexes)).await);
        loaded.mark_unchanged();
        let resource = FollowedResource {
            path: "/api/v1/pods".to_owned(),
            is_metadata: true,
            ..FollowedResource::default()
        };
        let mut follower = Follower::new(self.context.client.clone(), resource, POLICY);
        let (mut known, mut missing) = (0, HashMap::new());
        loop {
            // Only one page of a cluster is in memory at a time.
            let turn = if follower.is_listing() { self.context.lists.acquire().await.ok() } else { None };
            let event = tokio::select! {
                event = follower.next::<FollowedPod>() => event,
                Ok(()) = loaded.changed() => {
                    follower.list_again();
                    continue;
                }
                () = self.brake.released() => {
                    follower.list_again();
                    continue;
                }
            };
            drop(turn);
            match event {
                // Pods of certificates that are signed from now on may be newer than the list.
                Ok(FollowEvent::ListBegins) => {
                    missing = self.deletions.pods.all();
                    known = missing.len();
                }
                Ok(FollowEvent::Page(page)) => {
                    for pod in page {
                        missing.remove(&pod.metadata.uid);
                    }
                }
                Ok(FollowEvent::Listed { .. }) => {
                    let missing = std::mem::take(&mut missing);
                    if self.brake.holds(self.context, known, missing.len()).await {
                        continue;
                    }
                    match self.confirm(missing).await {
                        Ok(()) => {
                            self.brake.confirmed();
                            self.context.problems.ends(READ_CAUSE);
                        }
                        Err(problem) => {
                            self.cannot_follow(READ_CAUSE, &problem);
                            follower.list_again();
                            sleep(RETRY_INTERVAL).await;
                        }
                    }
                }
                Ok(FollowEvent::Deleted(pod)) if self.deletions.pods.contains(&pod.metadata.uid) => {
                    self.deletions.add(&pod.metadata.uid);
                }
                // It may have been the end of a pod.
                Ok(FollowEvent::Skipped) => follower.list_again(),
                Ok(_) | Err(FollowError::Expired) => {}
                Err(error) => {
                    let problem = error.of_request().map_or_else(|| error.to_string(), error_message);
                    self.cannot_follow(FOLLOW_CAUSE, &problem);
                }
            }
            if !follower.is_failing() {
                self.context.problems.ends(FOLLOW_CAUSE);
            }
        }
    }

    /// Reads the pods that a list lacks, and adds those that are gone. Ends with the first error: the rest would fail, too.
    async fn confirm(&self, missing: HashMap<String, PodName>) -> Result<(), String> {
        let reads = stream::iter(missing).map(async |(uid, name)| {
            let is_gone = self.is_gone(&uid, &name).await?;
            Ok::<_, String>(is_gone.then_some(uid))
        });
        let mut reads = std::pin::pin!(reads.buffer_unordered(CONCURRENT_READS));
        while let Some(gone) = reads.next().await {
            if let Some(uid) = gone? {
                self.deletions.add(&uid);
            }
        }
        Ok(())
    }

    /// Whether a pod that a list lacks does not exist. The list may come from a cache that is behind.
    async fn is_gone(&self, uid: &str, name: &PodName) -> Result<bool, String> {
        let api = Api::<Pod>::namespaced(self.context.client.clone(), &name.namespace);
        match timeout(READ_TIMEOUT, api.get_metadata_opt(&name.name)).await {
            Ok(Ok(found)) => Ok(found.is_none_or(|found| found.metadata.uid.as_deref() != Some(uid))),
            Ok(Err(error)) => Err(error_message(&error)),
            Err(_) => Err(format!("no response within {} s", READ_TIMEOUT.as_secs())),
        }
    }

    fn cannot_follow(&self, cause: &str, problem: &str) {
        let (cluster, controller) = (&*self.context.cluster, CONTROLLER.alias());
        if self.context.problems.begins(cause) {
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
