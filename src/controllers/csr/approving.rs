//! The controller that approves requests for kubelet client certificates, if the requester is authorized.
//!
//! Follows `pkg/controller/certificates/approver/sarapprove.go`. One rule is stricter: a request whose key or signature
//! is too weak is never approved, since it would never be signed.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReviewSpec};
use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use kube::ResourceExt as _;
use portcullis_pki::issuance::profile::{CertificateProfile, KUBELET_CLIENT};
use portcullis_pki::issuance::request::{CertificateRequest, RequestError};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tracing::{debug, error, info, warn};

use super::conditions::Conditions;
use super::summary::CsrSummary;
use super::{
    APPROVED, Csr, DENIED, PATH, Subresource, WriteOutcome, condition, has_condition, usages, with_condition,
    write,
};
use crate::authz::{AccessReviewer, NO_TRACE, ReviewError};
use crate::controllers::ControllerContext;
use crate::controllers::queue::{AttemptOutcome, RetryPolicy};
use crate::controllers::request_feed::{RequestFeed, RequestKey};
use crate::controllers::settings::ControllerName;
use crate::controllers::worker::work;

/// The maximum number of concurrent signature verifications: clients that may create requests control the load.
const MAX_CONCURRENT_VERIFICATIONS: usize = 2;
/// The cause of problems with subject access reviews.
const REVIEWS: &str = "subject access reviews";

/// A kind of kubelet request. The requester must be allowed to create its virtual subresource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KubeletCsrKind {
    /// A node requests its own next certificate.
    SelfNodeClient,
    /// Any client requests a certificate for a node.
    NodeClient,
}

impl KubeletCsrKind {
    const fn subresource(self) -> &'static str {
        match self {
            Self::SelfNodeClient => "selfnodeclient",
            Self::NodeClient => "nodeclient",
        }
    }

    const fn message(self) -> &'static str {
        match self {
            Self::SelfNodeClient => {
                "Auto approving self kubelet client certificate after SubjectAccessReview."
            }
            Self::NodeClient => "Auto approving kubelet client certificate after SubjectAccessReview.",
        }
    }

    /// The kinds that match a request, in the order in which the controller tries them.
    fn all_of(spec: &CertificateSigningRequestSpec, request: &CertificateRequest) -> Vec<Self> {
        let is_kubelets = spec.signer_name == KUBELET_CLIENT
            && CertificateProfile::kubelet_client().check(request, usages(spec)).is_ok();
        if !is_kubelets {
            return Vec::new();
        }
        let is_own = spec.username.as_deref().unwrap_or_default() == request.subject().common_name;
        if is_own { vec![Self::SelfNodeClient, Self::NodeClient] } else { vec![Self::NodeClient] }
    }
}

/// Runs the controller.
pub(crate) async fn run(context: ControllerContext) -> std::convert::Infallible {
    let forgotten = AtomicU64::new(0);
    let feed = RequestFeed {
        context: &context,
        controller: ControllerName::CsrApproving,
        path: PATH,
        signers: vec![KUBELET_CLIENT.to_owned()],
        is_wanted: is_undecided,
        forgotten: &forgotten,
        absent: None,
    };
    let (requests, feeding) = feed.start();
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT_VERIFICATIONS));
    let reviewer = AccessReviewer::with_client(context.client.clone(), &Handle::current(), &context.caches);
    let handle = |key| handle(&context, &permits, &reviewer, key);
    let working =
        work(&context, ControllerName::CsrApproving, RetryPolicy::CERTIFICATES, requests, &forgotten, handle);
    tokio::select! {
        never = working => never,
        never = feeding => match never {},
    }
}

fn is_undecided(summary: &CsrSummary) -> bool {
    let Conditions { approved, denied, .. } = summary.conditions();
    !approved.is_there && !denied.is_there && !summary.is_issued()
}

/// Processes a request. A verification holds one of `permits` until it ends, even if its attempt has timed out.
async fn handle(
    context: &ControllerContext,
    permits: &Arc<Semaphore>,
    reviewer: &AccessReviewer,
    key: RequestKey,
) -> AttemptOutcome {
    let csr = match super::read_unissued(context, ControllerName::CsrApproving, &key).await {
        Ok(csr) => Arc::new(csr),
        Err(outcome) => return outcome,
    };
    let cluster = &*context.cluster;
    let Ok(permit) = Arc::clone(permits).acquire_owned().await else { return AttemptOutcome::Retry };
    let checked = Arc::clone(&csr);
    // The requester chooses the key, and so the duration of the verification.
    let checking = spawn_blocking(move || {
        let kinds = kinds(&checked);
        drop(permit);
        kinds
    });
    let Ok(kinds) = checking.await else {
        context.metrics.panics.inc();
        error!(cluster, csr = &*key.name, "reading the request panicked");
        return AttemptOutcome::Retry;
    };
    let kinds = match kinds {
        Ok(kinds) => kinds,
        Err(problem) if problem.is_policy() => {
            warn!(cluster, csr = &*key.name, "not approved: {problem}");
            return AttemptOutcome::Done;
        }
        Err(problem) => {
            error!(cluster, csr = &*key.name, "unable to parse csr {:?}: {problem}", csr.name_any());
            return AttemptOutcome::Retry;
        }
    };
    for kind in &kinds {
        match is_allowed(context, reviewer, &csr.spec, *kind).await {
            Ok(true) => {
                if context.writes.is_closed() {
                    return AttemptOutcome::Retry;
                }
                let approved = condition(APPROVED, "AutoApproved", kind.message(), None);
                let approved = with_condition(Csr::clone(&csr), approved);
                let written =
                    write(context, ControllerName::CsrApproving, Subresource::Approval, &approved).await;
                if written == WriteOutcome::Yes {
                    let requester = csr.spec.username.as_deref().unwrap_or_default();
                    info!(
                        cluster,
                        csr = &*key.name,
                        requester,
                        kind = kind.subresource(),
                        "request approved"
                    );
                }
                return written.outcome();
            }
            Ok(false) => {}
            Err(problem) => {
                log_review_failure(context, &key, &problem);
                return AttemptOutcome::Retry;
            }
        }
    }
    if kinds.is_empty() {
        return AttemptOutcome::Done;
    }
    // An administrator may grant the permission later, and no event would report it.
    debug!(cluster, csr = &*key.name, ?kinds, "recognized, but subject access review was not approved");
    AttemptOutcome::Retry
}

/// Logs once that the API server does not answer subject access reviews.
fn log_review_failure(context: &ControllerContext, key: &RequestKey, problem: &ReviewError) {
    let (cluster, csr) = (&*context.cluster, &*key.name);
    if context.problems.begins(REVIEWS) {
        error!(
            cluster,
            csr,
            "cannot create a SubjectAccessReview: {problem}; the gateway needs the verb create on \
             subjectaccessreviews.authorization.k8s.io (deploy/rbac-controllers.yaml)"
        );
    } else {
        debug!(cluster, csr, "cannot create a SubjectAccessReview: {problem}");
    }
}

/// The kinds that match a pending request.
fn kinds(csr: &Csr) -> Result<Vec<KubeletCsrKind>, RequestError> {
    if has_condition(csr, APPROVED) || has_condition(csr, DENIED) {
        return Ok(Vec::new());
    }
    let request = CertificateRequest::from_pem(&csr.spec.request.0)?;
    Ok(KubeletCsrKind::all_of(&csr.spec, &request))
}

/// Asks the API server whether the requester is allowed to create the virtual subresource.
// threat: own-approval
async fn is_allowed(
    context: &ControllerContext,
    reviewer: &AccessReviewer,
    spec: &CertificateSigningRequestSpec,
    kind: KubeletCsrKind,
) -> Result<bool, ReviewError> {
    let requester = spec.username.as_deref().unwrap_or_default();
    let decision = reviewer.decide(requester, &access_review(spec, kind), &NO_TRACE).await?;
    context.problems.ends(REVIEWS);
    Ok(decision.status.allowed)
}

fn access_review(spec: &CertificateSigningRequestSpec, kind: KubeletCsrKind) -> SubjectAccessReviewSpec {
    let attributes = ResourceAttributes {
        group: Some("certificates.k8s.io".to_owned()),
        resource: Some("certificatesigningrequests".to_owned()),
        verb: Some("create".to_owned()),
        subresource: Some(kind.subresource().to_owned()),
        version: Some("*".to_owned()),
        ..ResourceAttributes::default()
    };
    SubjectAccessReviewSpec {
        user: spec.username.clone(),
        uid: spec.uid.clone(),
        groups: spec.groups.clone(),
        extra: spec.extra.clone(),
        resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use kube::client::Body;
    use portcullis_pki::issuance::profile::KUBELET_SERVING;
    use tower::service_fn;
    use tracing::instrument::WithSubscriber as _;

    use super::super::testing::{CapturedLog, Wanted, decided};
    use super::*;
    use crate::backend::bounded_client::bounded;
    use crate::controllers::testing::FakeCluster;

    // kubernetes: pkg/controller/certificates/approver/sarapprove_test.go, TestRecognizers: each with and without key
    // encipherment
    #[test]
    fn kinds_match_kube_controller_manager() {
        let (own, both) = (
            vec![KubeletCsrKind::NodeClient],
            vec![KubeletCsrKind::SelfNodeClient, KubeletCsrKind::NodeClient],
        );
        let good = Wanted::default;
        let mut more = good();
        more.usages.push("server auth");
        let cases = [
            ("a node's own", good(), both),
            ("no node", Wanted { common_name: "mike", ..good() }, Vec::new()),
            ("no organisation", Wanted { organizations: &[], ..good() }, Vec::new()),
            ("another organisation", Wanted { organizations: &["system:master"], ..good() }, Vec::new()),
            ("a usage too many", more, Vec::new()),
            ("another signer", Wanted { signer: "example.com/not-correct", ..good() }, Vec::new()),
            ("the serving signer", Wanted { signer: KUBELET_SERVING, ..good() }, Vec::new()),
            ("for a node", Wanted { requester: "joe", ..good() }, own.clone()),
            ("for another node", Wanted { common_name: "system:node:bar", ..good() }, own),
        ];
        for (name, mut wanted, expected) in cases {
            assert_eq!(kinds(&wanted.csr()).unwrap(), expected, "{name}");
            wanted.usages.insert(0, "key encipherment");
            assert_eq!(kinds(&wanted.csr()).unwrap(), expected, "{name}, with key encipherment");
        }
    }

    #[test]
    fn a_decided_request_has_no_kinds() {
        let csr = Wanted::default().csr();
        for decision in [APPROVED, DENIED] {
            assert!(kinds(&decided(csr.clone(), &[decision])).unwrap().is_empty(), "{decision}");
        }
        // As in kube-controller-manager: a failed request is approved, and never signed.
        assert_eq!(kinds(&decided(csr.clone(), &["Failed"])).unwrap().len(), 2);
        let mut broken = csr;
        broken.spec.request.0 = b"garbage".to_vec();
        assert!(!kinds(&broken).unwrap_err().is_policy(), "an unreadable request is retried");
    }

    #[test]
    fn the_review_is_kube_controller_managers() {
        let mut csr = Wanted::default().csr();
        csr.spec.uid = Some("8".to_owned());
        csr.spec.groups = Some(vec!["system:bootstrappers".to_owned()]);
        csr.spec.extra = Some([("k".to_owned(), vec!["v".to_owned()])].into());
        let sent = serde_json::to_value(access_review(&csr.spec, KubeletCsrKind::SelfNodeClient)).unwrap();
        let expected = serde_json::json!({
            "user": "system:node:foo", "uid": "8", "groups": ["system:bootstrappers"], "extra": {"k": ["v"]},
            "resourceAttributes": {
                "group": "certificates.k8s.io", "resource": "certificatesigningrequests", "verb": "create",
                "subresource": "selfnodeclient", "version": "*",
            },
        });
        assert_eq!(sent, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_review_that_is_never_answered_approves_nothing_and_is_retried() {
        let csr = Wanted::default().csr();
        let service = service_fn(move |request: http::Request<Body>| {
            let held = serde_json::to_vec(&csr).unwrap();
            async move {
                if request.method() != http::Method::GET {
                    assert!(request.uri().path().contains("subjectaccessreviews"), "{}", request.uri());
                    std::future::pending::<()>().await;
                }
                Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(held)))
            }
        });
        let mut context = FakeCluster::new().context();
        context.client = bounded(kube::Client::new(service, "default"));
        let lines = CapturedLog::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let permits = Arc::new(Semaphore::new(1));
        let reviewer =
            AccessReviewer::with_client(context.client.clone(), &Handle::current(), &context.caches);
        let attempts = async {
            for _ in 0..3 {
                assert_eq!(
                    handle(&context, &permits, &reviewer, RequestKey::of("csr")).await,
                    AttemptOutcome::Retry
                );
            }
        };
        attempts.with_subscriber(log).await;
        let text = lines.text();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(
            text.contains("no answer to an access review") && text.contains("subjectaccessreviews"),
            "{text}"
        );
    }
}
