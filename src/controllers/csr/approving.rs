//! The controller that approves the client certificates of kubelets, if the requester may have them.
//!
//! Follows `pkg/controller/certificates/approver/sarapprove.go`. One thing is stricter: a request whose key or signature
//! is too weak is never approved, since it would never be signed.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use kube::api::PostParams;
use kube::core::Request;
use kube::{Resource as _, ResourceExt as _};
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tracing::{debug, error, info, warn};

use super::conditions::Conditions;
use super::feed::{CsrFeed, CsrSummary, RequestKey};
use super::{
    APPROVED, Csr, DENIED, MAX_REQUEST, Subresource, WriteOutcome, condition, error_message, has_condition,
    usages, with_condition, write,
};
use crate::controllers::ControllerContext;
use crate::controllers::client::MaxBytes;
use crate::controllers::queue::{AttemptOutcome, RetryPolicy};
use crate::controllers::settings::ControllerName;
use crate::controllers::worker::work;
use crate::pki::issuance::profile::{CertificateProfile, KUBELET_CLIENT};
use crate::pki::issuance::request::{CertificateRequest, RequestError};

/// How many signatures of requests are verified at once: whoever may create requests decides how many there are.
const MAX_CONCURRENT_VERIFICATIONS: usize = 2;
/// The cause of problems with reviews.
const REVIEWS: &str = "subject access reviews";

/// A kind of request that is approved if its requester may create the virtual subresource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KubeletCsrKind {
    /// A node asks for its own next certificate.
    SelfNodeClient,
    /// Somebody asks for a node.
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

    /// Which kinds a request is of, in the order in which they are tried.
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

/// Approves for as long as it is polled.
pub(crate) async fn run(context: ControllerContext) -> std::convert::Infallible {
    let forgotten = AtomicU64::new(0);
    let feed = CsrFeed {
        context: &context,
        controller: ControllerName::CsrApproving,
        signers: vec![KUBELET_CLIENT.to_owned()],
        is_wanted: is_undecided,
        forgotten: &forgotten,
    };
    let (requests, feeding) = feed.start();
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT_VERIFICATIONS));
    let handle = |key| handle(&context, &permits, key);
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

/// `permits` are the requests that may be verified at once, those included whose attempts were given up.
async fn handle(context: &ControllerContext, permits: &Arc<Semaphore>, key: RequestKey) -> AttemptOutcome {
    let csr = match super::read_unissued(context, ControllerName::CsrApproving, &key).await {
        Ok(csr) => Arc::new(csr),
        Err(outcome) => return outcome,
    };
    let cluster = &*context.cluster;
    let Ok(permit) = Arc::clone(permits).acquire_owned().await else { return AttemptOutcome::Retry };
    let judged = Arc::clone(&csr);
    // To verify a signature takes as long as the requester's choice of a key lets it take.
    let judging = spawn_blocking(move || {
        let kinds = kinds(&judged);
        drop(permit);
        kinds
    });
    let Ok(kinds) = judging.await else {
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
        match is_allowed(context, &csr.spec, *kind).await {
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
                unreviewed(context, &key, &problem);
                return AttemptOutcome::Retry;
            }
        }
    }
    if kinds.is_empty() {
        return AttemptOutcome::Done;
    }
    // The right may be given later, and there is nothing to be told by.
    debug!(cluster, csr = &*key.name, ?kinds, "recognized, but subject access review was not approved");
    AttemptOutcome::Retry
}

/// Logs, once, that the API server does not say what requesters may do.
fn unreviewed(context: &ControllerContext, key: &RequestKey, problem: &kube::Error) {
    let (cluster, csr, problem) = (&*context.cluster, &*key.name, error_message(problem));
    if context.problems.begins(REVIEWS) {
        error!(
            cluster,
            csr,
            "cannot ask who may have a certificate: {problem}; the gateway needs the verb create on \
             subjectaccessreviews.authorization.k8s.io (deploy/rbac-controllers.yaml)"
        );
    } else {
        debug!(cluster, csr, "cannot ask who may have a certificate: {problem}");
    }
}

/// What a request that nobody has decided on is.
fn kinds(csr: &Csr) -> Result<Vec<KubeletCsrKind>, RequestError> {
    if has_condition(csr, APPROVED) || has_condition(csr, DENIED) {
        return Ok(Vec::new());
    }
    let request = CertificateRequest::from_pem(&csr.spec.request.0)?;
    Ok(KubeletCsrKind::all_of(&csr.spec, &request))
}

/// Asks the API server for the requester.
// threat: own-approval
async fn is_allowed(
    context: &ControllerContext,
    spec: &CertificateSigningRequestSpec,
    kind: KubeletCsrKind,
) -> kube::Result<bool> {
    let review = serde_json::to_vec(&review(spec, kind)).map_err(kube::Error::SerdeError)?;
    let path = SubjectAccessReview::url_path(&(), None);
    let request = Request::new(path).create(&PostParams::default(), review);
    let mut request = request.map_err(kube::Error::BuildRequest)?;
    request.extensions_mut().insert(MaxBytes(2 * MAX_REQUEST));
    let reviewed: AccessReviewResponse = context.client.request(request).await?;
    context.problems.ends(REVIEWS);
    Ok(reviewed.status.is_some_and(|status| status.allowed))
}

/// What is read of the answer.
#[derive(Debug, Deserialize)]
struct AccessReviewResponse {
    status: Option<AccessReviewStatus>,
}

#[derive(Debug, Deserialize)]
struct AccessReviewStatus {
    #[serde(default)]
    allowed: bool,
}

fn review(spec: &CertificateSigningRequestSpec, kind: KubeletCsrKind) -> SubjectAccessReview {
    let attributes = ResourceAttributes {
        group: Some("certificates.k8s.io".to_owned()),
        resource: Some("certificatesigningrequests".to_owned()),
        verb: Some("create".to_owned()),
        subresource: Some(kind.subresource().to_owned()),
        version: Some("*".to_owned()),
        ..ResourceAttributes::default()
    };
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: spec.username.clone(),
            uid: spec.uid.clone(),
            groups: spec.groups.clone(),
            extra: spec.extra.clone(),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

#[cfg(test)]
mod tests {
    use kube::client::Body;
    use tower::service_fn;
    use tracing::instrument::WithSubscriber as _;

    use super::super::testing::{CapturedLog, Wanted, decided};
    use super::*;
    use crate::controllers::testing::FakeCluster;
    use crate::pki::issuance::profile::KUBELET_SERVING;

    // kubernetes: pkg/controller/certificates/approver/sarapprove_test.go, TestRecognizers: each with and without key
    // encipherment
    #[test]
    fn kinds_are_those_of_upstream() {
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
    fn what_is_decided_is_not_looked_at() {
        let csr = Wanted::default().csr();
        for decision in [APPROVED, DENIED] {
            assert!(kinds(&decided(csr.clone(), &[decision])).unwrap().is_empty(), "{decision}");
        }
        // As upstream: a failed request is approved, and never signed.
        assert_eq!(kinds(&decided(csr.clone(), &["Failed"])).unwrap().len(), 2);
        let mut broken = csr;
        broken.spec.request.0 = b"garbage".to_vec();
        assert!(!kinds(&broken).unwrap_err().is_policy(), "what cannot be read is tried again");
    }

    #[test]
    fn the_requester_is_asked_for_as_upstream_asks() {
        let mut csr = Wanted::default().csr();
        csr.spec.uid = Some("8".to_owned());
        csr.spec.groups = Some(vec!["system:bootstrappers".to_owned()]);
        csr.spec.extra = Some([("k".to_owned(), vec!["v".to_owned()])].into());
        let asked = serde_json::to_value(review(&csr.spec, KubeletCsrKind::SelfNodeClient)).unwrap();
        let expected = serde_json::json!({
            "user": "system:node:foo", "uid": "8", "groups": ["system:bootstrappers"], "extra": {"k": ["v"]},
            "resourceAttributes": {
                "group": "certificates.k8s.io", "resource": "certificatesigningrequests", "verb": "create",
                "subresource": "selfnodeclient", "version": "*",
            },
        });
        assert_eq!(asked["spec"], expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_review_that_is_never_answered_approves_nothing_and_is_asked_again() {
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
        context.client = crate::controllers::client::bounded(kube::Client::new(service, "default"));
        let lines = CapturedLog::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let permits = Arc::new(Semaphore::new(1));
        let asking = async {
            for _ in 0..3 {
                assert_eq!(handle(&context, &permits, RequestKey::of("csr")).await, AttemptOutcome::Retry);
            }
        };
        asking.with_subscriber(log).await;
        let text = lines.text();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("does not answer in time") && text.contains("subjectaccessreviews"), "{text}");
    }
}
