//! Records the certificates of pods in the indexes of their signers and in the certificate log, before the API server gets them.
//!
//! All signers of a cluster share its workers. An index that cannot be written must not keep the others waiting: each index has one
//! writer at a time, a bounded wait for it, and after a failure a pause in which nothing is signed for it. The pause also bounds
//! what a failure adds to the certificate log, which only grows, and to the index: the index is written first, and one attempt
//! after each pause tries both.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_system::clock::UnixTime;
use portcullis_system::sync::lock;
use portcullis_tools::certs::signer_records::{
    IndexedPod, RecordOwner, RecordedCertificate, SignerRecords, SignerRecordsError,
};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};
use tracing::{debug, error};

use super::decision::{PodCertificate, PodDecision, Refusal};
use super::request::PodRequest;
use super::revocation::TrackedPods;
use super::shares::RecordShares;
use super::{CONTROLLER, ControllerContext, PodSignerSettings};
use crate::controllers::settings::SigningLog;
use crate::controllers::signing_log::{LogAttempt, LogDetails, LogVerdict};
use crate::controllers::worker::WORKERS;

/// How long a certificate waits for its line in the index.
const RECORD_TIMEOUT: Duration = Duration::from_secs(10);
/// The first pause after a failure, and the longest.
const MIN_PAUSE: Duration = Duration::from_secs(10);
const MAX_PAUSE: Duration = Duration::from_mins(1);

/// The records of a cluster's signers.
pub(super) struct Recording {
    pub(super) pods: TrackedPods,
    pub(super) shares: RecordShares,
    gates: HashMap<PathBuf, IndexGate>,
    /// Appends to the certificate log.
    logging: Arc<Semaphore>,
}

impl Recording {
    pub(super) fn new(context: &ControllerContext) -> Self {
        let records = context.settings.pod_signers.iter().filter_map(|signer| signer.records.as_ref());
        let gates = records.map(|records| (records.index.clone(), IndexGate::default())).collect();
        Self {
            pods: TrackedPods::default(),
            shares: RecordShares::new(context),
            gates,
            logging: Arc::new(Semaphore::new(WORKERS)),
        }
    }

    fn gate(&self, signer: &PodSignerSettings) -> Option<&IndexGate> {
        self.gates.get(&signer.records.as_ref()?.index)
    }

    /// Whether a certificate of the signer may be signed for a pod of this namespace: it could be recorded, as far as is known.
    pub(super) fn admits(
        &self,
        context: &ControllerContext,
        signer: &PodSignerSettings,
        namespace: &str,
    ) -> bool {
        // First: an attempt that the gate admits may be the only one for a while.
        self.shares.admits(context, signer, namespace)
            && self.gate(signer).is_none_or(|gate| gate.admits(Instant::now()))
    }
}

/// What is known of an index.
#[derive(Debug)]
struct IndexGate {
    /// The writer. It keeps the permit until it ends, even if its attempt has timed out: a file system that does not answer must not
    /// block more and more threads.
    writing: Arc<Semaphore>,
    state: Mutex<GateState>,
}

impl Default for IndexGate {
    fn default() -> Self {
        Self { writing: Arc::new(Semaphore::new(1)), state: Mutex::default() }
    }
}

#[derive(Debug, Default)]
struct GateState {
    /// The pauses since the last success.
    failures: u32,
    /// The end of the pause.
    not_before: Option<Instant>,
    /// Whether an attempt after a pause is under way.
    is_probing: bool,
}

impl IndexGate {
    /// Whether an attempt may begin: always without a failure, and else one after each pause.
    fn admits(&self, now: Instant) -> bool {
        let mut state = lock(&self.state);
        if state.failures == 0 {
            return true;
        }
        if state.not_before.is_some_and(|not_before| now < not_before) {
            return false;
        }
        // In case that the attempt never gets as far as to the index.
        (state.is_probing, state.not_before) = (true, Some(now + MIN_PAUSE));
        true
    }

    /// Begins a pause. Attempts that were under way when it began prolong none.
    fn failed(&self, now: Instant) {
        let mut state = lock(&self.state);
        if state.failures == 0 || state.is_probing {
            let pause = MIN_PAUSE.saturating_mul(1 << state.failures.min(8)).min(MAX_PAUSE);
            state.failures += 1;
            (state.is_probing, state.not_before) = (false, Some(now + pause));
        }
    }

    fn succeeded(&self) {
        *lock(&self.state) = GateState::default();
    }

    /// Whether attempts that are under way can be given up.
    fn is_paused(&self) -> bool {
        let state = lock(&self.state);
        state.failures > 0 && !state.is_probing
    }
}

/// Records the certificate that was signed, if the decision is one and its signer has an index, and logs it. Returns the decision;
/// `None` if it may not be issued now.
pub(super) async fn record(
    context: &ControllerContext,
    recording: &Recording,
    signer: &PodSignerSettings,
    (request, decision): (&Arc<PodRequest>, PodDecision),
    now: UnixTime,
) -> Option<PodDecision> {
    let PodDecision::Issued(certificate) = decision else { return Some(decision) };
    let certificate = Arc::new(*certificate);
    let gate = recording.gate(signer);
    if let (Some(gate), Some(records)) = (gate, &signer.records) {
        let pod = indexed(request);
        // First: an event about the pod may come before the next instruction.
        if records.crl.is_some() {
            recording.pods.track(&pod);
        }
        let written = write(context, gate, (records, signer), (pod, &certificate), now);
        let recorded = timeout(RECORD_TIMEOUT, written).await.unwrap_or_else(|_| {
            let problem = format!("was not written within {} s", RECORD_TIMEOUT.as_secs());
            Some(Err(SignerRecordsError::of(&format!("{}: {problem}", records.index.display()))))
        });
        let recorded = recorded?;
        match &recorded {
            Ok(size) => {
                recording.shares.add(&records.index, &request.metadata.namespace, *size);
            }
            Err(_) => gate.failed(Instant::now()),
        }
        if !permits(context, signer.name.as_str(), recorded) {
            return None;
        }
    }
    let verdict = match &context.settings.log {
        Some(log) => {
            let attempt = append(context, recording, log, (request, &certificate), now).await?;
            attempt.verdict(context, CONTROLLER)
        }
        None => LogVerdict::Issue,
    };
    match verdict {
        LogVerdict::Retry => {
            // The index has the certificate already, and would have one more with each attempt.
            if let Some(gate) = gate {
                gate.failed(Instant::now());
            }
            None
        }
        LogVerdict::Refuse(problem) => {
            Some(PodDecision::Refused(Refusal::failed("CertificateTooLarge", problem)))
        }
        LogVerdict::Issue => {
            if let Some(gate) = gate {
                gate.succeeded();
            }
            Arc::into_inner(certificate).map(|certificate| PodDecision::Issued(Box::new(certificate)))
        }
    }
}

fn indexed(request: &PodRequest) -> IndexedPod {
    let (namespace, spec) = (&request.metadata.namespace, &request.spec);
    IndexedPod {
        namespace: namespace.clone(),
        name: spec.pod_name.clone(),
        uid: spec.pod_uid.clone(),
        service_account: spec.service_account_name.clone(),
        node: spec.node_name.clone(),
    }
}

/// Writes the line, and returns its size; `None` if the index has failed while others were being written.
async fn write(
    context: &ControllerContext,
    gate: &IndexGate,
    (records, signer): (&SignerRecords, &PodSignerSettings),
    (pod, certificate): (IndexedPod, &Arc<PodCertificate>),
    now: UnixTime,
) -> Option<Result<u64, SignerRecordsError>> {
    let permit = Arc::clone(&gate.writing).acquire_owned().await.ok()?;
    if gate.is_paused() {
        return None;
    }
    let (records, authority) = (records.clone(), Arc::clone(&signer.authority));
    let (certificate, cluster) = (Arc::clone(certificate), Arc::clone(&context.cluster));
    let name = signer.name.as_str().to_owned();
    let writing = spawn_blocking(move || {
        let recorded = RecordedCertificate {
            issued: &certificate.issued,
            alt_names: certificate.names.alt_names(),
            signer: &name,
            pod: &pod,
        };
        let written = records.record(recorded, RecordOwner { cluster: &cluster, authority: &authority }, now);
        drop((permit, certificate));
        written
    });
    Some(writing.await.unwrap_or_else(|error| Err(SignerRecordsError::of(&error))))
}

/// Whether a certificate may be issued: it is in the index. Logs a failure once.
fn permits(context: &ControllerContext, signer: &str, recorded: Result<u64, SignerRecordsError>) -> bool {
    let (cluster, controller) = (&*context.cluster, CONTROLLER.alias());
    let cause = format!("{controller} records certificates of {signer}");
    match recorded {
        Ok(_) => {
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

/// Logs the certificate.
async fn append(
    context: &ControllerContext,
    recording: &Recording,
    log: &SigningLog,
    (request, certificate): (&Arc<PodRequest>, &Arc<PodCertificate>),
    now: UnixTime,
) -> Option<LogAttempt> {
    let permit = Arc::clone(&recording.logging).acquire_owned().await.ok()?;
    let (log, cluster) = (log.clone(), Arc::clone(&context.cluster));
    let (request, certificate) = (Arc::clone(request), Arc::clone(certificate));
    let appending = spawn_blocking(move || {
        let (metadata, spec) = (&request.metadata, &request.spec);
        let details = LogDetails {
            cluster: &cluster,
            signer_name: &spec.signer_name,
            request: &format!("{}/{}", metadata.namespace, metadata.name),
            uid: &metadata.uid,
            requester: &format!("system:serviceaccount:{}:{}", metadata.namespace, spec.service_account_name),
        };
        let attempt = log.append(certificate.issued.der(), &details, now);
        drop((permit, certificate));
        attempt
    });
    let attempt = appending.await.ok();
    if attempt.is_none() {
        context.metrics.panics.inc();
        error!(cluster = &*context.cluster, "logging a certificate panicked");
    }
    attempt
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECONDS: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn one_attempt_after_each_pause_and_pauses_that_grow() {
        let (gate, begin) = (IndexGate::default(), Instant::now());
        let at = |seconds| begin + SECONDS(seconds);
        assert!(gate.admits(begin) && gate.admits(begin));
        // Five attempts that were under way.
        (0..5).for_each(|_| gate.failed(begin));
        assert!(gate.is_paused());
        assert!(!gate.admits(at(9)));
        assert!(gate.admits(at(10)) && !gate.is_paused());
        assert!(!gate.admits(at(11)), "one at a time");
        gate.failed(at(12));
        assert!(!gate.admits(at(31)));
        // It ends before it gets to the index.
        assert!(gate.admits(at(32)));
        assert!(!gate.admits(at(41)) && gate.admits(at(42)));
        gate.failed(at(42));
        assert!(!gate.admits(at(81)) && gate.admits(at(82)));
        gate.failed(at(82));
        assert!(!gate.admits(at(141)) && gate.admits(at(142)), "a minute at most");
        gate.succeeded();
        assert!(gate.admits(at(142)) && gate.admits(at(142)));
    }
}
