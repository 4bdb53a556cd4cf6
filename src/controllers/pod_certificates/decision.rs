//! The decision about a request: a pure function of the request, its objects, the settings of its signer and the time.
//!
//! What the documentation of the type asks of signers is all here (`api: certificates/v1/types.go`). A condition is final,
//! and a kubelet gives the pod no certificate after one: so only the request, the pod or the rules cause one. Whatever
//! may be repaired meanwhile, such as a CA that has expired, is retried.

use portcullis_cel::Bindings;
use portcullis_pki::issuance::issue::{IssueError, IssuedCertificate};
use portcullis_pki::issuance::pod::{Jitter, PodKey, PodNames, PodValidity};
use portcullis_pki::issuance::request::RequestError;
use portcullis_pki::x509::pod_identity::PodIdentity;
use portcullis_system::clock::UnixTime;

use super::checks::{CheckedObjects, check_objects};
use super::objects::{RequestObjects, field};
use super::request::{PodRequest, RequestSpec};
use crate::controllers::settings::PodSignerSettings;

/// The maximum length of a message; the API server's is 32,768 bytes.
const MAX_MESSAGE: usize = 2000;

/// The type of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConditionKind {
    Issued,
    /// The request violates a rule.
    Denied,
    /// The signer cannot issue the certificate.
    Failed,
}

impl ConditionKind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Issued => "Issued",
            Self::Denied => "Denied",
            Self::Failed => "Failed",
        }
    }
}

/// Why a request gets no certificate. Final.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) kind: ConditionKind,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn denied(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(ConditionKind::Denied, reason, message.into())
    }

    pub(super) fn failed(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(ConditionKind::Failed, reason, message.into())
    }

    fn new(kind: ConditionKind, reason: &'static str, mut message: String) -> Self {
        if message.len() > MAX_MESSAGE {
            message.truncate(message.floor_char_boundary(MAX_MESSAGE));
            message.push('…');
        }
        Self { kind, reason, message }
    }
}

/// A certificate that was signed, and not yet written.
#[derive(Debug, Clone)]
pub(super) struct PodCertificate {
    pub(super) issued: IssuedCertificate,
    pub(super) names: PodNames,
    pub(super) validity: PodValidity,
    /// The certificate and those above it, in PEM.
    pub(super) chain: String,
}

/// The decision about a request.
#[derive(Debug)]
pub(super) enum PodDecision {
    Refused(Refusal),
    /// Signing failed, and is retried.
    Later(String),
    Issued(Box<PodCertificate>),
}

/// Checks and signs a request for this signer. Blocks.
pub(super) fn decide(
    request: &PodRequest,
    objects: &RequestObjects,
    signer: &PodSignerSettings,
    now: UnixTime,
    jitters: [Jitter; 2],
) -> PodDecision {
    match issue(request, objects, signer, now, jitters) {
        Ok(certificate) => PodDecision::Issued(Box::new(certificate)),
        Err(NotIssued::Refused(refusal)) => PodDecision::Refused(refusal),
        Err(NotIssued::Later(problem)) => PodDecision::Later(problem),
    }
}

enum NotIssued {
    Refused(Refusal),
    Later(String),
}

impl From<Refusal> for NotIssued {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

fn issue(
    request: &PodRequest,
    objects: &RequestObjects,
    signer: &PodSignerSettings,
    now: UnixTime,
    jitters: [Jitter; 2],
) -> Result<PodCertificate, NotIssued> {
    let checked = check_objects(request, objects, now)?;
    let key = check_key(&request.spec, signer)?;
    check_annotations(&request.spec, signer)?;
    let bindings = bindings(request, checked);
    signer.rules.check(&bindings).map_err(|message| Refusal::denied("NotPermitted", message))?;
    let names = match signer.profile.identity {
        Some(_) => identity(request, checked)
            .and_then(|identity| PodNames::of_service_account(identity).map_err(|error| error.to_string())),
        None => signer.rules.names(&bindings),
    };
    let names = names.map_err(|message| Refusal::failed("InvalidName", message))?;
    let max = request.spec.max_expiration().min(signer.profile.max_duration);
    let authority = &signer.authority;
    let validity = PodValidity::of(now, max, authority.validity(), jitters)
        .map_err(|error| NotIssued::Later(error.to_string()))?;
    let prepared = authority.prepare_pod(&signer.profile, &key, &names, validity);
    let issued = prepared.and_then(|prepared| authority.issue(prepared)).map_err(|error| match error {
        IssueError::Limit(limit) => NotIssued::Refused(Refusal::failed("InvalidName", limit.to_string())),
        // It depends on the key and the names alone: another attempt ends in the same way.
        error @ IssueError::Lint(_) => NotIssued::Refused(Refusal::failed("InvalidName", error.to_string())),
        error => NotIssued::Later(error.to_string()),
    })?;
    let chain = format!("{}{}", issued.pem(), authority.chain_above());
    Ok(PodCertificate { issued, names, validity, chain })
}

/// The identity of the pod, of the objects as the API server has them: they have the names and UIDs of the request.
// threat: pod-certificate-identity
fn identity(request: &PodRequest, objects: CheckedObjects<'_>) -> Result<PodIdentity, String> {
    let CheckedObjects { pod, service_account, node, namespace } = objects;
    let namespace = namespace.ok_or("the namespace was not read")?;
    let text = |object, name: &str| field(object, &["metadata", name]).to_owned();
    let identity = PodIdentity {
        namespace: text(pod, "namespace"),
        namespace_uid: text(namespace, "uid"),
        service_account_name: text(service_account, "name"),
        service_account_uid: text(service_account, "uid"),
        pod_name: text(pod, "name"),
        pod_uid: text(pod, "uid"),
        node_name: text(node, "name"),
        node_uid: text(node, "uid"),
    };
    let own = &request.metadata.namespace;
    let of_objects =
        [identity.namespace.clone(), text(service_account, "namespace"), text(namespace, "name")];
    if of_objects.iter().any(|found| found != own) {
        return Err("the objects are not in the namespace of the request".to_owned());
    }
    Ok(identity)
}

/// The key of the request, of a type that the signer accepts.
fn check_key(spec: &RequestSpec, signer: &PodSignerSettings) -> Result<PodKey, Refusal> {
    let given = |bytes: &Option<k8s_openapi::ByteString>| {
        bytes.as_ref().map(|bytes| bytes.0.clone()).filter(|bytes| !bytes.is_empty())
    };
    let key = match (given(&spec.stub_request), given(&spec.pkix_public_key)) {
        (Some(stub), None) => PodKey::from_stub_request(&stub),
        (None, Some(spki)) => PodKey::from_pkix(&spki),
        (None, None) => return Err(Refusal::failed("InvalidRequest", "the request has no public key")),
        (Some(_), Some(_)) => {
            return Err(Refusal::failed("InvalidRequest", "the request has two public keys"));
        }
    };
    let accepted = || format!("this signer accepts {}", signer.profile.key_type_names());
    let key = key.map_err(|error| match &error {
        RequestError::WeakKey(_) => Refusal::denied("UnsupportedKeyType", format!("{error}; {}", accepted())),
        _ => Refusal::failed("InvalidRequest", error.to_string()),
    })?;
    if key.key_type().is_some_and(|key_type| signer.profile.key_types.contains(&key_type)) {
        return Ok(key);
    }
    let message = format!("keys of the type {} are not accepted: {}", key.public_key(), accepted());
    Err(Refusal::denied("UnsupportedKeyType", message))
}

/// A signer must refuse annotations that it does not know.
fn check_annotations(spec: &RequestSpec, signer: &PodSignerSettings) -> Result<(), Refusal> {
    let known = &signer.rules.user_annotations;
    let Some(unknown) = spec.user_annotations().find(|key| !known.contains(*key)) else { return Ok(()) };
    let accepted = if known.is_empty() {
        "this signer accepts no annotations".to_owned()
    } else {
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        format!("this signer accepts {}", known.join(", "))
    };
    let message = format!("the annotation {unknown:?} is not known: {accepted}");
    Err(Refusal::denied("InvalidUnverifiedUserAnnotations", message))
}

fn bindings(request: &PodRequest, objects: CheckedObjects<'_>) -> Bindings {
    let CheckedObjects { pod, service_account, node, namespace } = objects;
    let bindings = Bindings::default()
        .with("request", &request.object)
        .with("pod", pod)
        .with("serviceAccount", service_account)
        .with("node", node);
    match namespace {
        Some(namespace) => bindings.with("namespaceObject", namespace),
        None => bindings,
    }
}
