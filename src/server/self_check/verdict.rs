//! What an answer to the self-check says of an endpoint, and what an operator can do about it.

use std::collections::BTreeMap;
use std::fmt;

use http::StatusCode;
use serde::Deserialize;

use crate::backend::endpoint::CertificateRequest;
use crate::user::IdentityMode;
use crate::user::{ANONYMOUS, GATEWAY, UserInfo};

/// An endpoint that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Accepted {
    /// Every part of an identity arrives as it is.
    Whole,
    /// Uids do not arrive.
    WithoutUid,
}

/// Why an endpoint must not be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// It does not accept the gateway's credential.
    Unauthorized(Certificate),
    /// It takes the gateway's requests for another user's: nobody's, or the gateway's own.
    SomeoneElse(String, Certificate),
    /// The gateway may not impersonate.
    MayNotImpersonate(String),
    /// The user was understood, but it may not ask.
    Forbidden,
    /// A part of the identity arrives as something else.
    Differs(Vec<&'static str>),
    /// It does not know the question.
    TooOld,
    /// It answered with something else.
    Odd(u16),
    /// This user may not read from which headers it reads identities.
    HeaderNamesForbidden(Option<String>),
}

/// What the endpoint said of client certificates in the handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Certificate {
    /// It was shown nothing that could be wrong: the gateway speaks with a token.
    None,
    /// It asked for none.
    NotAsked,
    /// It named CAs, and none of them has signed the gateway's.
    UnknownCa(String),
    /// Nothing is known to be wrong with it.
    Known(String),
}

impl Certificate {
    pub(super) fn of(asked: CertificateRequest, subject: Option<(&str, &str)>) -> Self {
        match (asked, subject) {
            (_, None) => Self::None,
            (CertificateRequest::Never, Some(_)) => Self::NotAsked,
            (CertificateRequest::ForOthers, Some((_, issuer))) => Self::UnknownCa(issuer.to_owned()),
            (CertificateRequest::ForOurs, Some((name, _))) => Self::Known(name.to_owned()),
        }
    }
}

#[derive(Deserialize)]
struct Review {
    status: ReviewStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewStatus {
    user_info: Answered,
}

#[derive(Deserialize)]
struct Answered {
    #[serde(default)]
    username: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    groups: Vec<String>,
    #[serde(default)]
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
struct Refused {
    #[serde(default)]
    message: String,
}

/// Judges the answer to a `SelfSubjectReview` that was asked as `sent`; `None` if it says nothing either way.
pub(super) fn judge(
    sent: &UserInfo,
    status: StatusCode,
    body: &[u8],
    certificate: Certificate,
) -> Option<Result<Accepted, Fault>> {
    let fault = match status {
        StatusCode::CREATED | StatusCode::OK => match serde_json::from_slice::<Review>(body) {
            Ok(review) => return Some(compare(sent, &review.status.user_info, certificate)),
            Err(_) => Fault::Odd(status.as_u16()),
        },
        StatusCode::UNAUTHORIZED => Fault::Unauthorized(certificate),
        StatusCode::FORBIDDEN => {
            let message =
                serde_json::from_slice::<Refused>(body).map(|refused| refused.message).unwrap_or_default();
            match quoted_user(&message) {
                _ if message.contains("cannot impersonate") => {
                    Fault::MayNotImpersonate(quoted_user(&message).unwrap_or_default().to_owned())
                }
                Some(user) if user == sent.name => Fault::Forbidden,
                Some(user) => Fault::SomeoneElse(user.to_owned(), certificate),
                None => Fault::Odd(status.as_u16()),
            }
        }
        StatusCode::NOT_FOUND => Fault::TooOld,
        // It is starting, overloaded or ending.
        StatusCode::TOO_MANY_REQUESTS => return None,
        status if status.is_server_error() => return None,
        status => Fault::Odd(status.as_u16()),
    };
    Some(Err(fault))
}

fn compare(sent: &UserInfo, answered: &Answered, certificate: Certificate) -> Result<Accepted, Fault> {
    if answered.username != sent.name {
        return Err(Fault::SomeoneElse(answered.username.clone(), certificate));
    }
    let uid = sent.uid.as_deref().unwrap_or_default();
    let differing: Vec<&'static str> = [
        ("groups", answered.groups != sent.groups),
        ("extra", answered.extra != sent.extra),
        ("uid", answered.uid != uid && !answered.uid.is_empty()),
    ]
    .into_iter()
    .filter_map(|(part, differs)| differs.then_some(part))
    .collect();
    match differing.as_slice() {
        [] if answered.uid == uid => Ok(Accepted::Whole),
        [] => Ok(Accepted::WithoutUid),
        _ => Err(Fault::Differs(differing)),
    }
}

/// The user that a refusal names: `… is forbidden: User "eve" cannot create resource …`.
fn quoted_user(message: &str) -> Option<&str> {
    Some(message.split_once("User \"")?.1.split_once("\" cannot")?.0)
}

impl Fault {
    /// The label of the metric.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Unauthorized(_) => "unauthorized",
            Self::SomeoneElse(..) => "someone_else",
            Self::MayNotImpersonate(_) => "may_not_impersonate",
            Self::Forbidden => "forbidden",
            Self::Differs(_) => "differs",
            Self::TooOld => "too_old",
            Self::Odd(_) => "odd",
            Self::HeaderNamesForbidden(_) => "header_names_forbidden",
        }
    }

    /// What is wrong and what to do about it.
    pub(super) fn advice(&self, identity: IdentityMode) -> String {
        let advice = Advice { fault: self, identity };
        advice.to_string()
    }
}

struct Advice<'a> {
    fault: &'a Fault,
    identity: IdentityMode,
}

const HEADER_FLAGS: &str = "--requestheader-username-headers=X-Remote-User --requestheader-uid-headers=X-Remote-Uid \
                            --requestheader-group-headers=X-Remote-Group \
                            --requestheader-extra-headers-prefix=X-Remote-Extra-";

impl fmt::Display for Advice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by_headers = self.identity == IdentityMode::RequestHeader;
        match self.fault {
            Fault::Unauthorized(certificate) if by_headers => {
                f.write_str("it does not accept the gateway (401). ")?;
                certificate_advice(f, certificate)
            }
            Fault::Unauthorized(_) => f.write_str(
                "it does not accept the gateway's credential (401): give the kubeconfig's user a valid certificate or \
                 token",
            ),
            Fault::SomeoneElse(name, certificate) if by_headers => {
                if name == ANONYMOUS {
                    f.write_str("it takes the gateway's requests for anonymous ones. ")?;
                } else {
                    write!(
                        f,
                        "it takes every request for one of {name:?}: the gateway's certificate is accepted as that of a \
                         client, and the identity headers are not read. "
                    )?;
                }
                certificate_advice(f, certificate)
            }
            Fault::SomeoneElse(name, _) => {
                write!(f, "it takes every request for one of {name:?}: the Impersonate-* headers do not reach it")
            }
            Fault::MayNotImpersonate(name) => write!(
                f,
                "the gateway's user {name:?} may not impersonate. Fix: kubectl create clusterrole portcullis-impersonator \
                 --verb=impersonate --resource=users,groups,serviceaccounts,uids.authentication.k8s.io,\
                 userextras.authentication.k8s.io/* && kubectl create clusterrolebinding portcullis-impersonator \
                 --clusterrole=portcullis-impersonator --user={name}"
            ),
            Fault::Forbidden => f.write_str(
                "it understands the gateway but its RBAC forbids SelfSubjectReviews (a young API server says so for a \
                 moment). Fix, if it stays: kubectl create clusterrolebinding portcullis-self-check \
                 --clusterrole=system:basic-user --group=system:authenticated",
            ),
            Fault::Differs(parts) => {
                write!(f, "identities arrive changed: {} not as sent. ", parts.join(" and "))?;
                if by_headers { write!(f, "Set {HEADER_FLAGS} on it") } else { f.write_str("Is there a proxy between?") }
            }
            Fault::TooOld => f.write_str(
                "it knows no SelfSubjectReview of authentication.k8s.io/v1 (404): Kubernetes 1.28 or newer is needed, \
                 and the path of the kubeconfig's server must be right",
            ),
            Fault::HeaderNamesForbidden(user) => write!(
                f,
                "the gateway may not read from which headers it reads identities, so clients could write one of them. \
                 Fix: kubectl create rolebinding portcullis-authentication-reader -n kube-system \
                 --role=extension-apiserver-authentication-reader --user={} (or apply deploy/rbac.yaml); or name them: \
                 --backend-requestheader-username-headers and so on, with the values of its --requestheader-*-headers",
                user.as_deref().unwrap_or(GATEWAY)
            ),
            Fault::Odd(code) => write!(
                f,
                "it answered a SelfSubjectReview with {code} and no review: is it a Kubernetes API server?"
            ),
        }
    }
}

fn certificate_advice(f: &mut fmt::Formatter<'_>, certificate: &Certificate) -> fmt::Result {
    match certificate {
        Certificate::None | Certificate::NotAsked => f.write_str(
            "It asks for no client certificate: set --requestheader-client-ca-file on it to the CA of the gateway's \
             certificate",
        ),
        Certificate::UnknownCa(issuer) => write!(
            f,
            "It knows no CA {issuer:?}, which signed the gateway's certificate: set --requestheader-client-ca-file on it"
        ),
        Certificate::Known(name) => write!(
            f,
            "Check on it that --requestheader-allowed-names contains {name:?}, that --requestheader-client-ca-file (not \
             only --client-ca-file) has the CA of the gateway's certificate, which must be in its time and good for \
             client authentication, and {HEADER_FLAGS}"
        ),
    }
}

#[cfg(test)]
mod tests;
