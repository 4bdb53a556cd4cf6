//! The controllers for certificate signing requests (CSRs), and the reads and writes that they share.
//!
//! Follows `pkg/controller/certificates`. No object stays in memory: `request_feed` delivers the names of requests that need
//! work, and the controller reads each one when it processes it. Every write carries the `resourceVersion` of the read:
//! of two concurrent writes one fails, so no request ever gets two certificates. Which request a signer may sign is decided in
//! `crates/pki/src/issuance/profile.rs`.

pub(crate) mod approving;
mod audit;
pub(crate) mod cleaning;
pub(super) mod conditions;
pub(crate) mod signing;
pub(super) mod summary;
#[cfg(test)]
pub(crate) mod testing;

use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition as Condition, CertificateSigningRequestSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{GetParams, PostParams};
use kube::core::{Request, Status};
use portcullis_go::url::path_segment;
use portcullis_system::clock::UnixTime;
use tracing::{debug, error, warn};

use super::ControllerContext;
use super::problems::error_message;
use super::queue::AttemptOutcome;
use super::request_feed::{MAX_REQUEST, RequestKey};
use super::settings::ControllerName;
use crate::backend::bounded_client::{MaxBytes, send};
use crate::backend::follow::FollowedResource;
use crate::backend::response_size::is_too_large;

/// A certificate signing request.
pub(crate) type Csr = CertificateSigningRequest;

/// The path of the collection.
pub(super) const PATH: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

pub(super) const APPROVED: &str = "Approved";
pub(super) const DENIED: &str = "Denied";
const FAILED: &str = "Failed";

/// The maximum number of `{`, `[` and `,` in a request: many small values take a hundred times the memory of their
/// text. A kubelet's request has about a hundred.
const MAX_VALUES: usize = 4_000;

/// The requests that a field selector matches.
pub(super) fn requests(field_selector: Option<String>) -> FollowedResource {
    FollowedResource { path: PATH.to_owned(), field_selector, ..FollowedResource::default() }
}

/// Reads a request; returns the outcome of the attempt if the request is gone, issued or cannot be read.
// kubernetes: pkg/controller/certificates/certificate_controller.go, syncFunc
async fn read_unissued(
    context: &ControllerContext,
    controller: ControllerName,
    key: &RequestKey,
) -> Result<Csr, AttemptOutcome> {
    let (cluster, controller) = (&*context.cluster, controller.alias());
    let cause = format!("{controller} reads");
    let at = path_segment(&key.name).map_err(|problem| {
        error!(cluster, controller, csr = &*key.name, "cannot read: {problem}");
        AttemptOutcome::Done
    })?;
    match read(context, &at).await {
        Ok(ReadCsr::Csr(csr)) => {
            context.problems.ends(&cause);
            let mut csr = Some(*csr).filter(|csr| !is_issued(csr)).ok_or(AttemptOutcome::Done)?;
            if csr.metadata.name.as_deref() != Some(&*key.name) {
                error!(cluster, controller, csr = &*key.name, "the API server returned another object");
                return Err(AttemptOutcome::Retry);
            }
            csr.metadata.managed_fields = None;
            Ok(csr)
        }
        Ok(ReadCsr::Gone) => {
            context.problems.ends(&cause);
            Err(AttemptOutcome::Done)
        }
        Ok(ReadCsr::TooLarge) => {
            context.problems.ends(&cause);
            warn!(cluster, controller, csr = &*key.name, "request skipped: too large");
            Err(AttemptOutcome::Done)
        }
        Err(error) => {
            let (problem, csr) = (error_message(&error), &*key.name);
            if context.problems.begins(&cause) {
                error!(
                    cluster,
                    controller,
                    csr,
                    "cannot read: {problem}; the gateway needs the verb get on certificatesigningrequests \
                     (deploy/rbac-controllers.yaml)"
                );
            } else {
                debug!(cluster, controller, csr, "cannot read: {problem}");
            }
            Err(AttemptOutcome::Retry)
        }
    }
}

/// The result of reading a request.
enum ReadCsr {
    Csr(Box<Csr>),
    Gone,
    /// The object would take too much memory.
    TooLarge,
}

// threat: pending-requests-flood
async fn read(context: &ControllerContext, at: &str) -> kube::Result<ReadCsr> {
    let mut request = Request::new(PATH).get(at, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
    request.extensions_mut().insert(MaxBytes(MAX_REQUEST));
    let text = match context.client.request_text(request).await {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(ReadCsr::Gone),
        Err(error) if is_too_large(&error) => return Ok(ReadCsr::TooLarge),
        text => text?,
    };
    if text.bytes().filter(|byte| b"{[,".contains(byte)).count() > MAX_VALUES {
        return Ok(ReadCsr::TooLarge);
    }
    serde_json::from_str(&text).map(ReadCsr::Csr).map_err(kube::Error::SerdeError)
}

fn conditions(csr: &Csr) -> impl Iterator<Item = &Condition> {
    csr.status.iter().flat_map(|status| status.conditions.iter().flatten())
}

/// Whether the request has a condition of this type, with any status.
// kubernetes: pkg/controller/certificates/certificate_controller_utils.go, GetCertApprovalCondition
fn has_condition(csr: &Csr, kind: &str) -> bool {
    conditions(csr).any(|condition| condition.type_ == kind)
}

/// Whether the request has a true condition of this type; an empty status counts as true.
// kubernetes: pkg/controller/certificates/certificate_controller_utils.go, HasTrueCondition
fn has_true_condition(csr: &Csr, kind: &str) -> bool {
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

/// A true condition.
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

/// Appends a condition to a request.
fn with_condition(mut csr: Csr, condition: Condition) -> Csr {
    csr.status.get_or_insert_default().conditions.get_or_insert_default().push(condition);
    csr
}

/// The subresource of a write.
#[derive(Debug, Clone, Copy)]
enum Subresource {
    Status,
    Approval,
}

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    /// The API server stored the object.
    Yes,
    /// The API server refused the write, or the controller did not send it.
    No,
    /// The API server did not answer, or failed.
    Unknown,
}

impl WriteOutcome {
    /// What has become of a write that failed.
    pub(super) fn of_error(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if (400..500).contains(&status.code) => Self::No,
            _ => Self::Unknown,
        }
    }

    /// The outcome of the attempt.
    pub(super) fn outcome(self) -> AttemptOutcome {
        if self == Self::Yes { AttemptOutcome::Done } else { AttemptOutcome::Retry }
    }
}

/// Writes a request with the version of the read.
async fn write(
    context: &ControllerContext,
    controller: ControllerName,
    subresource: Subresource,
    csr: &Csr,
) -> WriteOutcome {
    let name = csr.name_any();
    let (cluster, signer) = (&*context.cluster, &*csr.spec.signer_name);
    let at = match path_segment(&name) {
        Ok(at) => at,
        Err(problem) => {
            error!(cluster, csr = name, "cannot write: {problem}");
            return WriteOutcome::No;
        }
    };
    if csr.metadata.resource_version.is_none() {
        error!(cluster, csr = name, "cannot write: the request has no resourceVersion");
        return WriteOutcome::No;
    }
    let writing = async {
        let body = serde_json::to_vec(csr).map_err(kube::Error::SerdeError)?;
        let request =
            Request::new(PATH).replace_subresource(subresource.name(), &at, &PostParams::default(), body);
        send(&context.client, request.map_err(kube::Error::BuildRequest)?).await
    };
    let written = context.writes.track_future(writing).await;
    let (verb, alias) = (subresource.verb(), controller.alias());
    let cause = format!("{alias} writes {signer}");
    match written {
        Ok(()) => {
            context.problems.ends(&cause);
            WriteOutcome::Yes
        }
        Err(kube::Error::Api(status)) if status.code == 409 => {
            context.metrics.controllers.conflicts.with_label_values(&[cluster, alias]).inc();
            debug!(cluster, controller = alias, csr = name, "write conflict, will retry: {}", status.message);
            WriteOutcome::No
        }
        Err(problem) => {
            let message = error_message(&problem);
            let fix = match &problem {
                kube::Error::Api(status) if status.code == 403 => missing_right(status, subresource, signer),
                _ => String::new(),
            };
            if context.problems.begins(&cause) {
                error!(cluster, controller = alias, csr = name, signer, "cannot {verb}: {message}{fix}");
            } else {
                debug!(cluster, controller = alias, csr = name, signer, "cannot {verb}: {message}");
            }
            WriteOutcome::of_error(&problem)
        }
    }
}

impl Subresource {
    const fn verb(self) -> &'static str {
        match self {
            Self::Status => "sign",
            Self::Approval => "approve",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Approval => "approval",
        }
    }
}

/// The RBAC rule for the permission that the API server reports as missing.
// kubernetes: plugin/pkg/admission/certificates/{signing,approval}/admission.go
fn missing_right(status: &Status, subresource: Subresource, signer: &str) -> String {
    let verb = subresource.verb();
    let (resource, named, verb) = if status.message.contains(&format!("not permitted to {verb} requests")) {
        ("signers".to_owned(), format!("resourceNames: [{signer}], "), verb)
    } else {
        (format!("certificatesigningrequests/{}", subresource.name()), String::new(), "update")
    };
    format!(
        "; add to the gateway's role (deploy/rbac-controllers.yaml): \
         {{apiGroups: [certificates.k8s.io], resources: [{resource}], {named}verbs: [{verb}]}}"
    )
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::Response;
    use kube::client::Body;
    use serde_json::json;
    use tower::service_fn;
    use tracing::instrument::WithSubscriber as _;

    use super::*;
    use crate::backend::bounded_client::{REQUEST_TIMEOUT, bounded};
    use crate::controllers::testing::FakeCluster;

    /// A client of an API server that refuses every request with this message.
    fn refusing(message: &'static str) -> kube::Client {
        let service = service_fn(move |_: http::Request<Body>| {
            let status = json!({"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403,
                "message": message, "metadata": {}});
            let response = Response::builder().status(403).body(Body::from(status.to_string().into_bytes()));
            std::future::ready(Ok::<_, Infallible>(response.unwrap()))
        });
        kube::Client::new(service, "default")
    }

    #[tokio::test]
    async fn a_missing_permission_is_logged_once_with_the_rbac_rule_that_grants_it() {
        let cases = [
            (
                Subresource::Status,
                "csr is forbidden: user not permitted to sign requests with signerName \"s/n\"",
                "resources: [signers], resourceNames: [kubernetes.io/kube-apiserver-client-kubelet], verbs: [sign]}",
            ),
            (
                Subresource::Status,
                "csr is forbidden: User \"u\" cannot update resource \"certificatesigningrequests/status\"",
                "resources: [certificatesigningrequests/status], verbs: [update]}",
            ),
            (
                Subresource::Approval,
                "csr is forbidden: user not permitted to approve requests with signerName \"s/n\"",
                "resources: [signers], resourceNames: [kubernetes.io/kube-apiserver-client-kubelet], verbs: [approve]}",
            ),
        ];
        for (subresource, message, rule) in cases {
            let mut context = FakeCluster::new().context();
            context.client = refusing(message);
            let lines = testing::CapturedLog::default();
            let writer = lines.clone();
            let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
            let writing = async {
                for _ in 0..3 {
                    let csr = testing::Wanted::default().csr();
                    assert_eq!(
                        write(&context, ControllerName::CsrSigning, subresource, &csr).await,
                        WriteOutcome::No
                    );
                }
            };
            writing.with_subscriber(log).await;
            let text = lines.text();
            assert_eq!(text.lines().count(), 1, "{text}");
            assert!(text.contains(message) && text.contains(rule) && !text.contains("Status {"), "{text}");
        }
    }

    #[tokio::test]
    async fn a_request_that_is_large_or_takes_much_memory_is_skipped_and_not_retried() {
        let object = |filler: &str| {
            let metadata = format!(r#""name":"csr","resourceVersion":"7","annotations":{{"a":"{filler}"}}"#);
            format!(
                r#"{{"metadata":{{{metadata}}},"spec":{{"request":"","signerName":"example.com/s"}},"status":{{}}}}"#
            )
        };
        for (filler, expected) in [
            (String::new(), None),
            ("x".repeat(900_000), None),
            ("x".repeat(1_100_000), Some(AttemptOutcome::Done)),
            // Many small values, or the largest object that etcd stores.
            ("{".repeat(10_000), Some(AttemptOutcome::Done)),
            ("[".repeat(10_000), Some(AttemptOutcome::Done)),
            (",".repeat(10_000), Some(AttemptOutcome::Done)),
            (r"\u003c".repeat(3 << 19), Some(AttemptOutcome::Done)),
        ] {
            let body = object(&filler).into_bytes();
            let service = service_fn(move |_: http::Request<Body>| {
                std::future::ready(Ok::<_, Infallible>(Response::new(Body::from(body.clone()))))
            });
            let mut context = FakeCluster::new().context();
            context.client = bounded(kube::Client::new(service, "default"));
            let lines = testing::CapturedLog::default();
            let writer = lines.clone();
            let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
            let key = RequestKey::of("csr");
            let read = read_unissued(&context, ControllerName::CsrSigning, &key).with_subscriber(log).await;
            let (beginning, text) = (filler.get(..10), lines.text());
            assert_eq!(read.err(), expected, "{} × {beginning:?}: {text}", filler.len());
            assert_eq!(text.contains("request skipped: too large"), expected.is_some(), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_is_never_answered_times_out_and_its_result_is_unknown() {
        let mut context = FakeCluster::new().context();
        let silent =
            service_fn(|_: http::Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>());
        context.client = bounded(kube::Client::new(silent, "default"));
        let csr = testing::Wanted::default().csr();
        for subresource in [Subresource::Status, Subresource::Approval] {
            let begun = tokio::time::Instant::now();
            let written = write(&context, ControllerName::CsrSigning, subresource, &csr).await;
            assert_eq!(written, WriteOutcome::Unknown);
            assert_eq!(begun.elapsed(), REQUEST_TIMEOUT);
        }
        assert_eq!(context.writes.len(), 0);
    }
}
