//! Certificate signing requests: what their conditions say, and how they are written back.
//!
//! Follows `pkg/controller/certificates`. Every write carries the `resourceVersion` that was read: of two writers one is
//! refused, so no request ever gets two certificates.

pub(crate) mod approving;
pub(crate) mod cleaning;
pub(crate) mod signing;
#[cfg(test)]
mod testing;

use std::sync::Arc;

use futures_util::Stream;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition as Condition, CertificateSigningRequestSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::runtime::reflector::Store;
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use tracing::{debug, error};

use super::Context;
use super::queue::Outcome;
use super::settings::Name;
use super::worker::{Key, watch};
use crate::clock::UnixTime;
use crate::escape::path_segment;

/// A request.
pub(crate) type Csr = CertificateSigningRequest;

const APPROVED: &str = "Approved";
const DENIED: &str = "Denied";
const FAILED: &str = "Failed";

/// All requests, and the names of those that change.
fn requests(context: &Context) -> (Store<Csr>, impl Stream<Item = Key> + Send + use<>) {
    watch(context, "certificatesigningrequests", Api::all(context.client.clone()), watcher::Config::default())
}

/// The request of this name, if it is still there and has no certificate.
// kubernetes: pkg/controller/certificates/certificate_controller.go, syncFunc
fn unsigned(store: &Store<Csr>, key: &Key) -> Option<Arc<Csr>> {
    key.within(store).filter(|csr| !is_issued(csr))
}

fn conditions(csr: &Csr) -> impl Iterator<Item = &Condition> {
    csr.status.iter().flat_map(|status| status.conditions.iter().flatten())
}

/// Whether there is a condition of this type; its status does not matter.
// kubernetes: pkg/controller/certificates/certificate_controller_utils.go, GetCertApprovalCondition
fn has(csr: &Csr, kind: &str) -> bool {
    conditions(csr).any(|condition| condition.type_ == kind)
}

/// Whether there is a condition of this type that is true; an empty status is.
// kubernetes: pkg/controller/certificates/certificate_controller_utils.go, HasTrueCondition
fn has_true(csr: &Csr, kind: &str) -> bool {
    conditions(csr)
        .any(|condition| condition.type_ == kind && matches!(condition.status.as_str(), "" | "True"))
}

fn is_issued(csr: &Csr) -> bool {
    let certificate = csr.status.as_ref().and_then(|status| status.certificate.as_ref());
    certificate.is_some_and(|certificate| !certificate.0.is_empty())
}

fn usages(spec: &CertificateSigningRequestSpec) -> &[String] {
    spec.usages.as_deref().unwrap_or_default()
}

/// A condition that is true.
fn condition(kind: &str, reason: &str, message: &str, updated: Option<UnixTime>) -> Condition {
    Condition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_update_time: updated.map(|time| {
            let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
            Time(Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX))
        }),
        last_transition_time: None,
    }
}

/// The request with one more condition.
fn with_condition(mut csr: Csr, condition: Condition) -> Csr {
    csr.status.get_or_insert_default().conditions.get_or_insert_default().push(condition);
    csr
}

/// Where a request is written.
#[derive(Debug, Clone, Copy)]
enum Subresource {
    Status,
    Approval,
}

/// Writes a request under the version it was read with. Says what is left to do about it.
async fn write(context: &Context, controller: Name, subresource: Subresource, csr: &Csr) -> Outcome {
    let api = Api::<Csr>::all(context.client.clone());
    let (name, params) = (csr.name_any(), PostParams::default());
    let at = match path_segment(&name) {
        Ok(at) => at,
        Err(problem) => {
            error!(cluster = &*context.cluster, csr = name, "cannot write: {problem}");
            return Outcome::Done;
        }
    };
    let written = match subresource {
        _ if csr.metadata.resource_version.is_none() => {
            error!(cluster = &*context.cluster, csr = name, "a request without a version is never written");
            return Outcome::Retry;
        }
        Subresource::Status => api.replace_status(&at, &params, csr).await,
        Subresource::Approval => api.replace_subresource("approval", &at, &params, csr).await,
    };
    let (cluster, controller) = (&*context.cluster, controller.alias());
    match written {
        Ok(_) => Outcome::Done,
        Err(kube::Error::Api(status)) if status.code == 409 => {
            context.metrics.controllers.conflicts.with_label_values(&[cluster, controller]).inc();
            debug!(cluster, controller, csr = name, "somebody else was faster: {status}");
            Outcome::Retry
        }
        Err(problem) => {
            error!(cluster, controller, csr = name, subresource = ?subresource, "cannot write: {problem}");
            Outcome::Retry
        }
    }
}
