//! The controller that signs approved requests.
//!
//! Follows `pkg/controller/certificates/signer/signer.go`. What a request breaks of its signer's rules becomes a Failed
//! condition, for good; everything else is tried again. One thing is stricter than there: a request whose key or
//! signature is too weak fails for good, too.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use kube::ResourceExt as _;
use tokio::task::spawn_blocking;
use tracing::{error, info, warn};

use super::{
    APPROVED, Csr, DENIED, FAILED, Subresource, condition, has, has_true, usages, with_condition, write,
};
use crate::certificates::issue::{IssueError, Issued, Wanted};
use crate::certificates::request::CertificateRequest;
use crate::clock::{UnixTime, rfc3339};
use crate::controllers::Context;
use crate::controllers::queue::{Outcome, Pace};
use crate::controllers::settings::{Controllers, Name, SignerSettings};
use crate::controllers::worker::{Key, work};

/// The reason of a Failed condition.
const REASON: &str = "SignerValidationFailure";

/// What is to be done about a request.
#[derive(Debug)]
enum Verdict {
    /// It is not approved, has failed, or is another signer's.
    NotOurs,
    /// It breaks a rule.
    Refused(String),
    /// It has its certificate.
    Issued(Box<Issued>),
    /// It could not be signed now.
    Later(String),
}

/// Signs for as long as it is polled.
pub(crate) async fn run(context: Context) -> std::convert::Infallible {
    let _expirations = Expirations::show(&context);
    let (store, changes) = super::requests(&context);
    work(&context, Name::CsrSigning, Pace::CERTIFICATES, changes, |key| handle(&context, &store, key)).await
}

async fn handle(context: &Context, store: &kube::runtime::reflector::Store<Csr>, key: Key) -> Outcome {
    let Some(csr) = super::unsigned(store, &key) else { return Outcome::Done };
    let (settings, now) = (Arc::clone(&context.settings), context.clock.now());
    let judged = Arc::clone(&csr);
    // The key may be in an HSM. A signature whose controller is gone is forgotten: only what follows here writes.
    let Ok(verdict) = spawn_blocking(move || verdict(&judged, &settings, now)).await else {
        context.metrics.panics.inc();
        error!(cluster = &*context.cluster, csr = %key, "signing panicked");
        return Outcome::Retry;
    };
    let spec = &csr.spec;
    let (cluster, signer) = (&*context.cluster, spec.signer_name.as_str());
    let requester = spec.username.as_deref().unwrap_or_default();
    let metrics = &context.metrics.controllers;
    match verdict {
        Verdict::NotOurs => Outcome::Done,
        Verdict::Later(problem) => {
            error!(cluster, csr = %key, signer, requester, "not signed, tried again later: {problem}");
            Outcome::Retry
        }
        Verdict::Refused(message) => {
            let failed = condition(FAILED, REASON, &message, Some(now));
            let failed = with_condition(Csr::clone(&csr), failed);
            let outcome = write(context, Name::CsrSigning, Subresource::Status, &failed).await;
            if outcome == Outcome::Done {
                metrics.refused.with_label_values(&[cluster, signer]).inc();
                warn!(cluster, csr = %key, signer, requester, reason = message, "certificate refused");
            }
            outcome
        }
        Verdict::Issued(issued) => {
            let mut signed = Csr::clone(&csr);
            let certificate = ByteString(issued.pem().as_bytes().to_vec());
            signed.status.get_or_insert_default().certificate = Some(certificate);
            let outcome = write(context, Name::CsrSigning, Subresource::Status, &signed).await;
            if outcome == Outcome::Done {
                metrics.signed.with_label_values(&[cluster, signer]).inc();
                info!(
                    cluster,
                    csr = %key,
                    uid = csr.uid().unwrap_or_default(),
                    signer,
                    requester,
                    subject = %issued.subject(),
                    serial = issued.serial_hex(),
                    not_after = rfc3339(issued.not_after()),
                    "certificate issued"
                );
            }
            outcome
        }
    }
}

/// Judges and signs one request. Blocks.
fn verdict(csr: &Csr, settings: &Controllers, now: UnixTime) -> Verdict {
    if !has(csr, APPROVED) || has(csr, DENIED) || has_true(csr, FAILED) {
        return Verdict::NotOurs;
    }
    let Some(signer) = settings.signers.iter().find(|signer| signer.name() == csr.spec.signer_name) else {
        return Verdict::NotOurs;
    };
    match issue(csr, signer, settings.signing_duration, now) {
        Ok(issued) => Verdict::Issued(Box::new(issued)),
        Err(IssueError::Refused(refusal)) => Verdict::Refused(refusal.to_string()),
        Err(IssueError::Request(error)) if error.is_policy() => Verdict::Refused(error.to_string()),
        Err(IssueError::Request(error)) => {
            Verdict::Later(format!("unable to parse csr {:?}: {error}", csr.name_any()))
        }
        Err(error) => Verdict::Later(format!("error auto signing csr: {error}")),
    }
}

fn issue(
    csr: &Csr,
    signer: &SignerSettings,
    signing_duration: Duration,
    now: UnixTime,
) -> Result<Issued, IssueError> {
    let request = CertificateRequest::from_pem(&csr.spec.request.0)?;
    let wanted = Wanted {
        request: &request,
        usages: usages(&csr.spec),
        // What is negative is as short as can be.
        expiration: csr
            .spec
            .expiration_seconds
            .map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or_default())),
        signing_duration,
    };
    let prepared = signer.authority.prepare(&signer.profile, &wanted, now)?;
    signer.authority.issue(prepared)
}

/// The ends of all authorities, shown for as long as they sign.
struct Expirations<'a>(&'a Context);

impl<'a> Expirations<'a> {
    fn show(context: &'a Context) -> Self {
        for signer in &context.settings.signers {
            let end = i64::try_from(signer.authority.not_after().as_secs()).unwrap_or(i64::MAX);
            let labels = [&*context.cluster, signer.name()];
            context.metrics.controllers.authority_expiration.with_label_values(&labels).set(end);
        }
        Self(context)
    }
}

impl Drop for Expirations<'_> {
    fn drop(&mut self) {
        let Self(context) = self;
        for signer in &context.settings.signers {
            let labels = [&*context.cluster, signer.name()];
            context.metrics.controllers.authority_expiration.remove_label_values(&labels).ok();
        }
    }
}
