//! The controller that signs requests for certificates of pods.
//!
//! Kubernetes serves the API and has no signer for it (`certificates.k8s.io` `PodCertificateRequest`, v1 since 1.37, v1beta1
//! since 1.35). A request has no approval: the signer decides, by the rules of its operator (`rules`) and by what it reads of
//! the pod, its service account and its node (`checks`). Every write carries the `resourceVersion` of the read, so no
//! request ever gets two certificates. Nothing in a request but its key may get into a certificate unchecked.

mod audit;
mod checks;
mod decision;
mod objects;
mod recording;
mod request;
mod revocation;
pub(crate) mod rules;
mod served;
mod shares;
mod status;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use aws_lc_rs::rand;
use portcullis_pki::issuance::pod::Jitter;
use tokio::sync::{Notify, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{debug, error, warn};

use super::ControllerContext;
use super::api_version::ApiVersion;
use super::csr::WriteOutcome;
use super::expiration::ExpirationGauges;
use super::problems::error_message;
use super::queue::{AttemptOutcome, RetryPolicy};
use super::request_feed::{RequestFeed, RequestKey};
use super::settings::{ControllerName, PodSignerSettings};
use super::worker::{WORKERS, work};
use audit::PodAuditLine;
use decision::{PodCertificate, PodDecision, Refusal, decide};
use objects::ReadObject;
use recording::Recording;
use request::{MANIFEST, PodRequest, PodRequestSummary, RESOURCE};

const CONTROLLER: ControllerName = ControllerName::PodCertificateSigning;
/// The wait before the versions are read again after one is gone.
const ABSENT_BACKOFF: Duration = Duration::from_secs(10);

/// Runs the controller.
pub(crate) async fn run(context: ControllerContext) -> Infallible {
    let signers = &context.settings.pod_signers;
    let ends = signers.iter().map(|signer| (signer.name.as_str(), signer.authority.not_after()));
    let _expirations = ExpirationGauges::show(&context, ends);
    let permits = Arc::new(Semaphore::new(WORKERS));
    let recording = Recording::new(&context);
    tokio::select! {
        never = sign_all(&context, &permits, &recording) => never,
        never = revocation::run(&context, &recording.pods, &recording.shares) => never,
    }
}

/// Signs requests in whichever version the API server serves.
async fn sign_all(
    context: &ControllerContext,
    permits: &Arc<Semaphore>,
    recording: &Recording,
) -> Infallible {
    loop {
        // An upgrade of the API server may end a version.
        let version = served::version(context).await;
        let absent = Notify::new();
        tokio::select! {
            never = sign(context, version, (permits, recording), &absent) => match never {},
            () = absent.notified() => {}
        }
        // An API server that announces the requests and does not serve them must not be asked in a loop.
        sleep(ABSENT_BACKOFF).await;
    }
}

/// Signs the requests of one version of the API.
async fn sign(
    context: &ControllerContext,
    version: ApiVersion,
    shared: (&Arc<Semaphore>, &Recording),
    absent: &Notify,
) -> Infallible {
    let forgotten = AtomicU64::new(0);
    let path = version.collection(RESOURCE);
    let signers = context.settings.pod_signers.iter().map(|signer| signer.name.as_str().to_owned()).collect();
    let feed = RequestFeed {
        context,
        controller: CONTROLLER,
        path: &path,
        signers,
        is_wanted: PodRequestSummary::is_pending,
        forgotten: &forgotten,
        absent: Some(absent),
    };
    let (requests, feeding) = feed.start();
    let handle = |key| handle(context, version, shared, key);
    let working = work(context, CONTROLLER, RetryPolicy::CERTIFICATES, requests, &forgotten, handle);
    tokio::select! {
        never = working => never,
        never = feeding => match never {},
    }
}

/// Processes a request. A signature holds one of `permits` until it ends, even if its attempt has timed out: a PKCS#11
/// token that does not answer must not block more and more threads.
// threat: signing-twice
async fn handle(
    context: &ControllerContext,
    version: ApiVersion,
    (permits, recording): (&Arc<Semaphore>, &Recording),
    key: RequestKey,
) -> AttemptOutcome {
    let request = match read_pending(context, version, &key).await {
        Ok(request) => Arc::new(request),
        Err(outcome) => return outcome,
    };
    let signers = &context.settings.pod_signers;
    let Some(signer) = signers.iter().find(|signer| signer.name.as_str() == request.spec.signer_name) else {
        return AttemptOutcome::Done;
    };
    if !recording.admits(context, signer, &request.metadata.namespace) {
        return AttemptOutcome::Retry;
    }
    let with_namespace = signer.profile.identity.is_some() || signer.rules.uses_namespace();
    let objects = objects::read_objects(context, &request, with_namespace).await;
    let objects = match objects {
        Ok(objects) => objects,
        Err(error) => return cannot_read(context, &key, "the objects of a request", &error),
    };
    read_works(context, "the objects of a request");
    let Ok(permit) = Arc::clone(permits).acquire_owned().await else { return AttemptOutcome::Retry };
    let Some(jitters) = jitters() else { return AttemptOutcome::Retry };
    let (signing, now): (PodSignerSettings, _) = (signer.clone(), context.clock.now());
    let checked = Arc::clone(&request);
    // Expressions take time, and the key may be in an HSM. Only this future writes: once it is dropped, the signature is
    // lost.
    let deciding = spawn_blocking(move || {
        let decision = decide(&checked, &objects, &signing, now, jitters);
        drop(permit);
        decision
    });
    let Ok(decision) = deciding.await else {
        context.metrics.panics.inc();
        error!(cluster = &*context.cluster, request = &*key.name, "signing panicked");
        return AttemptOutcome::Retry;
    };
    if context.writes.is_closed() {
        // The replica is stopping: the next leader signs the request.
        return AttemptOutcome::Retry;
    }
    let recorded = recording::record(context, recording, signer, (&request, decision), now).await;
    let Some(decision) = recorded else { return AttemptOutcome::Retry };
    if context.writes.is_closed() {
        return AttemptOutcome::Retry;
    }
    match decision {
        PodDecision::Later(problem) => {
            let (cluster, signer) = (&*context.cluster, &*request.spec.signer_name);
            error!(cluster, request = &*key.name, signer, "signing failed, will retry: {problem}");
            AttemptOutcome::Retry
        }
        PodDecision::Refused(refusal) => refuse(context, version, &request, &refusal).await,
        PodDecision::Issued(certificate) => issue(context, version, &key, &request, &certificate).await,
    }
}

async fn refuse(
    context: &ControllerContext,
    version: ApiVersion,
    request: &PodRequest,
    refusal: &Refusal,
) -> AttemptOutcome {
    let (cluster, signer) = (&*context.cluster, &*request.spec.signer_name);
    let status = status::refused(refusal, context.clock.now());
    let written = status::write(context, version, request, status).await;
    if written == WriteOutcome::Yes {
        context.metrics.controllers.refused.with_label_values(&[cluster, signer]).inc();
        warn!(
            cluster,
            request = format!("{}/{}", request.metadata.namespace, request.metadata.name),
            signer,
            pod = request.spec.pod_name,
            condition = refusal.kind.name(),
            reason = refusal.reason,
            // A field, because fields are escaped: values of the pod may be in it.
            why = refusal.message,
            "certificate refused"
        );
    }
    written.outcome()
}

async fn issue(
    context: &ControllerContext,
    version: ApiVersion,
    key: &RequestKey,
    request: &PodRequest,
    certificate: &PodCertificate,
) -> AttemptOutcome {
    // A key in a token may have taken its time, and the pod may be gone since.
    // threat: pod-certificate-deleted-pod
    match objects::read_pod(context, request).await {
        Ok(pod) => {
            if let Err(refusal) = checks::check_pod(request, &pod, context.clock.now()) {
                return refuse(context, version, request, &refusal).await;
            }
        }
        Err(error) => return cannot_read(context, key, "the objects of a request", &error),
    }
    if context.writes.is_closed() {
        return AttemptOutcome::Retry;
    }
    let (cluster, signer) = (&*context.cluster, &*request.spec.signer_name);
    let status = status::issued(certificate, context.clock.now());
    let line = PodAuditLine::begin(cluster, request, certificate);
    let written = status::write(context, version, request, status).await;
    if written == WriteOutcome::Yes {
        context.metrics.controllers.signed.with_label_values(&[cluster, signer]).inc();
    }
    line.end(written);
    written.outcome()
}

/// Reads a request; returns the outcome of the attempt if the request is gone, decided or cannot be read.
async fn read_pending(
    context: &ControllerContext,
    version: ApiVersion,
    key: &RequestKey,
) -> Result<PodRequest, AttemptOutcome> {
    const WHAT: &str = "a request";
    let cluster = &*context.cluster;
    let (namespace, name) = key.name.split_once('/').ok_or(AttemptOutcome::Done)?;
    let namespace = portcullis_go::url::path_segment(namespace).map_err(|_| AttemptOutcome::Done)?;
    let object = match objects::read(context, &version.in_namespace(&namespace, RESOURCE), name).await {
        Ok(ReadObject::Found(object)) => object,
        Ok(ReadObject::Gone) => return Err(AttemptOutcome::Done),
        Ok(ReadObject::TooLarge) => {
            warn!(cluster, request = &*key.name, "request skipped: too large");
            return Err(AttemptOutcome::Done);
        }
        Err(error) => return Err(cannot_read(context, key, WHAT, &error)),
    };
    let unreadable = |error| cannot_read(context, key, WHAT, &kube::Error::SerdeError(error));
    let mut request = PodRequest::parse(object).map_err(unreadable)?;
    if request.is_decided() {
        return Err(AttemptOutcome::Done);
    }
    if version == ApiVersion::V1 && !request.has_key() {
        // v1 does not show the key that a kubelet of 1.35 has written by v1beta1.
        let older =
            objects::read(context, &ApiVersion::V1Beta1.in_namespace(&namespace, RESOURCE), name).await;
        match older.map_err(|error| cannot_read(context, key, WHAT, &error))? {
            ReadObject::Found(object) => {
                request.take_key(PodRequest::parse(object).map_err(unreadable)?);
            }
            ReadObject::Gone | ReadObject::TooLarge => {}
        }
    }
    read_works(context, WHAT);
    Ok(request)
}

/// Logs a failed read once.
fn cannot_read(
    context: &ControllerContext,
    key: &RequestKey,
    what: &'static str,
    error: &kube::Error,
) -> AttemptOutcome {
    let (cluster, controller, problem) = (&*context.cluster, CONTROLLER.alias(), error_message(error));
    if context.problems.begins(&read_cause(what)) {
        error!(
            cluster,
            controller,
            request = &*key.name,
            "cannot read {what}: {problem}; the gateway needs the verb get on podcertificaterequests, pods, \
             serviceaccounts, nodes and namespaces ({MANIFEST})"
        );
    } else {
        debug!(cluster, controller, request = &*key.name, "cannot read {what}: {problem}");
    }
    AttemptOutcome::Retry
}

fn read_works(context: &ControllerContext, what: &'static str) {
    context.problems.ends(&read_cause(what));
}

fn read_cause(what: &str) -> String {
    format!("{} reads {what}", CONTROLLER.alias())
}

/// Random numbers for the times of a certificate.
fn jitters() -> Option<[Jitter; 2]> {
    let mut bytes = [0; 4];
    rand::fill(&mut bytes).ok()?;
    let [a, b, c, d] = bytes;
    Some([Jitter(u16::from_be_bytes([a, b])), Jitter(u16::from_be_bytes([c, d]))])
}
