//! Evaluates the response to the self-check, and describes each failure with its cause and fix.

use std::fmt;

use http::StatusCode;
use portcullis_http::identity::IdentityMode;
use portcullis_kubernetes::reviews::{ReviewedUser, reviewed_user};
use portcullis_kubernetes::status::NO_USABLE_BACKEND;
use portcullis_kubernetes::user::{ANONYMOUS, GATEWAY, UserInfo};
use portcullis_system::text::shortened;
use serde::Deserialize;

use crate::backend::cluster_identity::OtherCluster;
use crate::backend::endpoint::ClientCertificateRequest;

/// The characters of a name that are kept of what an API server answers. It may be the tenant's own, and its names are in the
/// log and in the status of the cluster.
// threat: tenant-log-flood
const MAX_NAME_LENGTH: usize = 256;

/// How an endpoint accepts identities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AcceptedIdentity {
    /// Every part arrives unchanged.
    Complete,
    /// Every part except the UID arrives.
    WithoutUid,
}

/// Why an endpoint failed its self-check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SelfCheckFailure {
    /// The API server rejects the gateway's credential.
    Unauthorized(CertificateFinding),
    /// Requests run as this other user: anonymous, or the gateway's own.
    OtherUser(String, CertificateFinding),
    /// The gateway's user, of this name, is not permitted to impersonate.
    ImpersonationForbidden(String),
    /// The API server accepts the identity, but its RBAC forbids the review.
    ReviewForbidden,
    /// These parts of the identity arrive changed.
    IdentityChanged(Vec<&'static str>),
    /// The API server does not serve the review API.
    ReviewNotFound,
    /// The response, of this status, is not a review.
    UnexpectedResponse(u16),
    /// This user is not permitted to read the names of the identity headers.
    HeaderNamesForbidden(Option<String>),
    /// The endpoint belongs to another cluster than those trusted before.
    OtherCluster(OtherCluster),
    /// The endpoint is this gateway, or leads back to it.
    ForwardingLoop,
}

/// The result of the TLS handshake for the gateway's client certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CertificateFinding {
    /// The gateway has no client certificate: it uses a token.
    NotUsed,
    /// The API server did not request a client certificate.
    NotRequested,
    /// The API server named CAs, and this issuer of the gateway's certificate is not among them.
    UnknownCa(String),
    /// The handshake shows no fault of the certificate with this common name.
    Plausible(String),
}

impl CertificateFinding {
    pub(super) fn of(request: ClientCertificateRequest, subject: Option<(&str, &str)>) -> Self {
        match (request, subject) {
            (_, None) => Self::NotUsed,
            (ClientCertificateRequest::NotSent, Some(_)) => Self::NotRequested,
            (ClientCertificateRequest::OtherCas, Some((_, issuer))) => Self::UnknownCa(issuer.to_owned()),
            (ClientCertificateRequest::OurCa, Some((name, _))) => Self::Plausible(name.to_owned()),
        }
    }
}

#[derive(Deserialize)]
struct StatusMessage {
    #[serde(default)]
    message: String,
}

/// Evaluates the response to a `SelfSubjectReview` as `sent`; `None` if it proves nothing either way.
pub(super) fn evaluate(
    sent: &UserInfo,
    status: StatusCode,
    body: &[u8],
    certificate: CertificateFinding,
) -> Option<Result<AcceptedIdentity, SelfCheckFailure>> {
    let failure = match status {
        StatusCode::CREATED | StatusCode::OK => match reviewed_user(body) {
            Ok(user) => return Some(compare(sent, &user, certificate)),
            Err(_) => SelfCheckFailure::UnexpectedResponse(status.as_u16()),
        },
        StatusCode::UNAUTHORIZED => SelfCheckFailure::Unauthorized(certificate),
        StatusCode::FORBIDDEN => {
            let message = serde_json::from_slice::<StatusMessage>(body)
                .map(|refused| refused.message)
                .unwrap_or_default();
            match quoted_user(&message) {
                user if message.contains("cannot impersonate") => {
                    SelfCheckFailure::ImpersonationForbidden(short_name(user.unwrap_or_default()))
                }
                Some(user) if user == sent.name => SelfCheckFailure::ReviewForbidden,
                Some(user) => SelfCheckFailure::OtherUser(short_name(user), certificate),
                None => SelfCheckFailure::UnexpectedResponse(status.as_u16()),
            }
        }
        StatusCode::NOT_FOUND => SelfCheckFailure::ReviewNotFound,
        StatusCode::LOOP_DETECTED => SelfCheckFailure::ForwardingLoop,
        // The API server is starting, overloaded or shutting down.
        StatusCode::TOO_MANY_REQUESTS => return None,
        status if status.is_server_error() => return None,
        status => SelfCheckFailure::UnexpectedResponse(status.as_u16()),
    };
    Some(Err(failure))
}

/// Whether a server error is that of a gateway which has no usable backend itself.
pub(super) fn is_unavailable_gateway(body: &[u8]) -> bool {
    serde_json::from_slice::<StatusMessage>(body).is_ok_and(|refused| refused.message == NO_USABLE_BACKEND)
}

fn compare(
    sent: &UserInfo,
    received: &ReviewedUser,
    certificate: CertificateFinding,
) -> Result<AcceptedIdentity, SelfCheckFailure> {
    if received.username != sent.name {
        return Err(SelfCheckFailure::OtherUser(short_name(&received.username), certificate));
    }
    let uid = sent.uid.as_deref().unwrap_or_default();
    let differing: Vec<&'static str> = [
        ("groups", received.groups != sent.groups),
        ("extra", received.extra != sent.extra),
        ("uid", received.uid != uid && !received.uid.is_empty()),
    ]
    .into_iter()
    .filter_map(|(part, differs)| differs.then_some(part))
    .collect();
    match differing.as_slice() {
        [] if received.uid == uid => Ok(AcceptedIdentity::Complete),
        [] => Ok(AcceptedIdentity::WithoutUid),
        _ => Err(SelfCheckFailure::IdentityChanged(differing)),
    }
}

fn short_name(name: &str) -> String {
    shortened(name, MAX_NAME_LENGTH)
}

/// The user that a 403 names: `… is forbidden: User "eve" cannot create resource …`.
fn quoted_user(message: &str) -> Option<&str> {
    Some(message.split_once("User \"")?.1.split_once("\" cannot")?.0)
}

impl SelfCheckFailure {
    /// The value of the metric's `result` label.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Unauthorized(_) => "unauthorized",
            Self::OtherUser(..) => "other_user",
            Self::ImpersonationForbidden(_) => "impersonation_forbidden",
            Self::ReviewForbidden => "forbidden",
            Self::IdentityChanged(_) => "identity_changed",
            Self::ReviewNotFound => "review_not_found",
            Self::UnexpectedResponse(_) => "unexpected_response",
            Self::HeaderNamesForbidden(_) => "header_names_forbidden",
            Self::OtherCluster(_) => "other_cluster",
            Self::ForwardingLoop => "forwarding_loop",
        }
    }

    /// The cause and the fix, for the log.
    pub(super) fn diagnosis(&self, identity: IdentityMode) -> String {
        Diagnosis { failure: self, identity }.to_string()
    }
}

struct Diagnosis<'a> {
    failure: &'a SelfCheckFailure,
    identity: IdentityMode,
}

const HEADER_FLAGS: &str = "--requestheader-username-headers=X-Remote-User --requestheader-uid-headers=X-Remote-Uid \
                            --requestheader-group-headers=X-Remote-Group \
                            --requestheader-extra-headers-prefix=X-Remote-Extra-";

impl fmt::Display for Diagnosis<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by_headers = self.identity == IdentityMode::RequestHeader;
        match self.failure {
            SelfCheckFailure::Unauthorized(certificate) if by_headers => {
                f.write_str("the API server does not accept the gateway's client certificate (401). ")?;
                certificate_diagnosis(f, certificate)
            }
            SelfCheckFailure::Unauthorized(_) => f.write_str(
                "the API server does not accept the gateway's credential (401). Fix: give the kubeconfig's user a \
                 valid certificate or token",
            ),
            SelfCheckFailure::OtherUser(name, certificate) if by_headers => {
                if name == ANONYMOUS {
                    f.write_str("the API server treats the gateway's requests as anonymous. ")?;
                } else {
                    write!(
                        f,
                        "every request runs as user {name:?}: the API server accepts the gateway's certificate as that \
                         of a client, and ignores the identity headers. "
                    )?;
                }
                certificate_diagnosis(f, certificate)
            }
            SelfCheckFailure::OtherUser(name, _) => write!(
                f,
                "every request runs as user {name:?}: the Impersonate-* headers do not reach the API server. Fix: look \
                 for a proxy in between that removes them"
            ),
            SelfCheckFailure::ImpersonationForbidden(name) => write!(
                f,
                "the gateway's user {name:?} is not permitted to impersonate. Fix: put it into the subjects of \
                 deploy/rbac-impersonate.yaml, then kubectl apply -f deploy/rbac-impersonate.yaml"
            ),
            SelfCheckFailure::ReviewForbidden => f.write_str(
                "the API server accepts the identity, but its RBAC forbids SelfSubjectReviews (normal for a moment \
                 after its start). Fix, if it persists: apply deploy/rbac.yaml; or kubectl create clusterrolebinding \
                 portcullis-self-check --clusterrole=system:basic-user --group=system:authenticated",
            ),
            SelfCheckFailure::IdentityChanged(parts) => {
                write!(f, "identities arrive changed: {} not as sent. ", parts.join(" and "))?;
                if by_headers {
                    write!(f, "Fix: set {HEADER_FLAGS} on the API server")
                } else {
                    f.write_str("Fix: look for a proxy in between that changes the Impersonate-* headers")
                }
            }
            SelfCheckFailure::ReviewNotFound => f.write_str(
                "the API server has no SelfSubjectReview of authentication.k8s.io/v1 (404). Fix: use Kubernetes 1.28 \
                 or newer, and check the path of the kubeconfig's server",
            ),
            SelfCheckFailure::HeaderNamesForbidden(user) => write!(
                f,
                "the gateway is not permitted to read the names of the API server's identity headers, so clients could \
                 set one of them. Fix: kubectl create rolebinding portcullis-authentication-reader -n kube-system \
                 --role=extension-apiserver-authentication-reader --user={} (or apply deploy/rbac.yaml); or name them: \
                 --backend-requestheader-username-headers and so on, with the values of the API server's \
                 --requestheader-*-headers",
                user.as_deref().unwrap_or(GATEWAY)
            ),
            SelfCheckFailure::OtherCluster(OtherCluster { object, expected, found, .. }) => write!(
                f,
                "the endpoint belongs to another cluster: its {} has UID {found:?}, that of the other endpoints \
                 {expected:?}. Fix: give each cluster an entry of its own, whose endpoints are API servers with the same \
                 etcd. If this one is right and the others were wrong or are gone, restart the gateway",
                object.name()
            ),
            SelfCheckFailure::ForwardingLoop => f.write_str(
                "requests to the endpoint come back to this gateway (508): its address is the gateway's own, or that of a \
                 gateway or load balancer before it. Fix: set the server of the kubeconfig (or endpoints) to the \
                 addresses of the API servers themselves",
            ),
            SelfCheckFailure::UnexpectedResponse(code) => write!(
                f,
                "the response to a SelfSubjectReview has HTTP status {code} and is not a review. Fix: check that the \
                 kubeconfig's server is a Kubernetes API server"
            ),
        }
    }
}

fn certificate_diagnosis(f: &mut fmt::Formatter<'_>, certificate: &CertificateFinding) -> fmt::Result {
    match certificate {
        CertificateFinding::NotUsed | CertificateFinding::NotRequested => f.write_str(
            "It requests no client certificate. Fix: set --requestheader-client-ca-file on the API server to the CA of \
             the gateway's certificate",
        ),
        CertificateFinding::UnknownCa(issuer) => write!(
            f,
            "It does not trust CA {issuer:?}, the issuer of the gateway's certificate. Fix: set \
             --requestheader-client-ca-file on the API server to that CA"
        ),
        CertificateFinding::Plausible(name) => write!(
            f,
            "Fix: check on the API server that --requestheader-allowed-names contains {name:?}, that \
             --requestheader-client-ca-file (not only --client-ca-file) has the CA of the gateway's certificate, that \
             the certificate has not expired and permits client authentication, and {HEADER_FLAGS}"
        ),
    }
}

#[cfg(test)]
mod tests;
