//! Writes the status of a request, with the version of the read: of two gateways that write at once, one gets a conflict.
//!
//! The API server accepts one write in the life of a request: the one that adds its condition.

use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::core::{Request, Status};
use portcullis_go::time::format_since_epoch;
use portcullis_go::url::path_segment;
use portcullis_system::clock::UnixTime;
use serde_json::{Value, json};
use tracing::{debug, error};

use super::decision::{ConditionKind, PodCertificate, Refusal};
use super::request::{MANIFEST, PodRequest, RESOURCE};
use crate::backend::bounded_client::send;
use crate::controllers::ControllerContext;
use crate::controllers::api_version::ApiVersion;
use crate::controllers::csr::WriteOutcome;
use crate::controllers::problems::error_message;
use crate::controllers::settings::ControllerName;

const CONTROLLER: ControllerName = ControllerName::PodCertificateSigning;

/// The status of a request that is refused.
pub(super) fn refused(refusal: &Refusal, now: UnixTime) -> Value {
    json!({"conditions": [condition(refusal.kind, refusal.reason, &refusal.message, now)]})
}

/// The status of a request with a certificate.
pub(super) fn issued(certificate: &PodCertificate, now: UnixTime) -> Value {
    let validity = certificate.validity;
    let message = format!("serial number {}", certificate.issued.serial_hex());
    json!({
        "conditions": [condition(ConditionKind::Issued, "Issued", &message, now)],
        "certificateChain": certificate.chain,
        "notBefore": format_since_epoch(validity.not_before),
        "beginRefreshAt": format_since_epoch(validity.begin_refresh_at),
        "notAfter": format_since_epoch(validity.not_after),
    })
}

fn condition(kind: ConditionKind, reason: &str, message: &str, now: UnixTime) -> Value {
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let time = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
    json!({
        "type": kind.name(),
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": time.to_string(),
    })
}

/// Writes the status of a request.
// threat: signing-twice
pub(super) async fn write(
    context: &ControllerContext,
    version: ApiVersion,
    request: &PodRequest,
    status: Value,
) -> WriteOutcome {
    let metadata = &request.metadata;
    let (cluster, signer) = (&*context.cluster, &*request.spec.signer_name);
    let item = format!("{}/{}", metadata.namespace, metadata.name);
    let (namespace, at) = match (path_segment(&metadata.namespace), path_segment(&metadata.name)) {
        (Ok(namespace), Ok(at)) => (namespace, at),
        (Err(problem), _) | (_, Err(problem)) => {
            error!(cluster, request = item, "cannot write: {problem}");
            return WriteOutcome::No;
        }
    };
    if metadata.resource_version.is_none() {
        error!(cluster, request = item, "cannot write: the request has no resourceVersion");
        return WriteOutcome::No;
    }
    let mut object = request.object.clone();
    if let Value::Object(fields) = &mut object {
        fields.insert("status".to_owned(), status);
    }
    let writing = async {
        let body = serde_json::to_vec(&object).map_err(kube::Error::SerdeError)?;
        let collection = Request::new(version.in_namespace(&namespace, RESOURCE));
        let put = collection.replace_subresource("status", &at, &PostParams::default(), body);
        send(&context.client, put.map_err(kube::Error::BuildRequest)?).await
    };
    let written = context.writes.track_future(writing).await;
    let alias = CONTROLLER.alias();
    let cause = format!("{alias} writes {signer}");
    match written {
        Ok(()) => {
            context.problems.ends(&cause);
            WriteOutcome::Yes
        }
        Err(kube::Error::Api(status)) if status.code == 409 => {
            context.metrics.controllers.conflicts.with_label_values(&[cluster, alias]).inc();
            debug!(
                cluster,
                controller = alias,
                request = item,
                "write conflict, will retry: {}",
                status.message
            );
            WriteOutcome::No
        }
        // Deleted meanwhile, as the request of a deleted pod is.
        Err(kube::Error::Api(status)) if status.code == 404 => WriteOutcome::No,
        Err(problem) => {
            let message = error_message(&problem);
            let fix = match &problem {
                kube::Error::Api(status) => missing_right(status, signer),
                _ => String::new(),
            };
            if context.problems.begins(&cause) {
                error!(
                    cluster,
                    controller = alias,
                    request = item,
                    signer,
                    "cannot write the status of a request: {message}{fix}"
                );
            } else {
                debug!(
                    cluster,
                    controller = alias,
                    request = item,
                    signer,
                    "cannot write the status of a request: {message}"
                );
            }
            WriteOutcome::of_error(&problem)
        }
    }
}

/// The RBAC rule for the permission that the API server reports as missing.
// kubernetes: pkg/registry/certificates/podcertificaterequest/strategy.go, ValidateUpdate
fn missing_right(status: &Status, signer: &str) -> String {
    let (resource, named, verb) = if status.message.contains("is not permitted to \"sign\" for signer") {
        ("signers".to_owned(), format!("resourceNames: [{signer}], "), "sign")
    } else if status.code == 403 {
        (format!("{RESOURCE}/status"), String::new(), "update")
    } else {
        return String::new();
    };
    format!(
        "; add to the gateway's role ({MANIFEST}): \
         {{apiGroups: [certificates.k8s.io], resources: [{resource}], {named}verbs: [{verb}]}}"
    )
}
