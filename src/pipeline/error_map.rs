//! The one map from internal errors to the responses that clients see. It is exhaustive: a new error does not compile
//! without a response. The cause goes to the log, never to the client. That a 401 of the backend is a fault of the gateway is
//! decided by `check_response` in `forward.rs`.

use std::borrow::Cow;

use http::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use portcullis_audit::sink::NotStored;
use portcullis_http::identity::UnencodableIdentity;
use portcullis_http::loop_detection::ForwardingLoop;
use portcullis_kubernetes::status::{Cause, Details, NO_USABLE_BACKEND, Reason, Status};

use crate::authn::AuthnError;
use crate::authn::revocation::Revoked;
use crate::authz::impersonation::{BadImpersonation, ImpersonationError};
use crate::authz::{AccessRefusal, ReviewError};
use crate::backend::pool::SendError;
use crate::cluster::router::RouteError;
use crate::limits::LimitExceeded;
use crate::listener::TooManyConnections;
use crate::pipeline::forward_error::{ForwardError, PrepareError};
use crate::pipeline::session::SessionRefusal;
use crate::request::credentials::UnknownImpersonateHeader;
use crate::request::deadline::BadTimeout;
use crate::request::wellformed::MalformedRequest;
use crate::sessions::TooManySessions;

/// The `Retry-After` of a response when the backend is unavailable.
const RETRY_AFTER_SECONDS: u32 = 1;
/// The same when a user has as many sessions as permitted: sessions take longer.
const SESSION_RETRY_AFTER_SECONDS: u32 = 10;

/// The reason why the gateway refuses a request, or cannot return the backend's response.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Malformed(#[from] MalformedRequest),
    #[error(transparent)]
    Loop(#[from] ForwardingLoop),
    #[error(transparent)]
    RouteError(#[from] RouteError),
    #[error("no RequestInfo: {}", .0.message)]
    RequestInfo(Box<Status>),
    #[error(transparent)]
    BadTimeout(#[from] BadTimeout),
    #[error("unable to authenticate the request: {0}")]
    Unauthenticated(#[from] AuthnError),
    #[error("the client's credential has ended before the API server responded")]
    CredentialEnded,
    #[error(transparent)]
    UnknownImpersonateHeader(#[from] UnknownImpersonateHeader),
    #[error(transparent)]
    UnencodableIdentity(#[from] UnencodableIdentity),
    #[error(transparent)]
    BadImpersonation(#[from] BadImpersonation),
    #[error("the impersonated user cannot be forwarded: {0}")]
    UnencodableImpersonation(#[source] UnencodableIdentity),
    #[error("the impersonated user is revoked: {0}")]
    RevokedImpersonation(#[source] Revoked),
    #[error(transparent)]
    Impersonation(#[from] ImpersonationError),
    #[error("{NotStored}")]
    AuditNotStored(Box<Status>),
    #[error("too many requests in flight: {0}")]
    TooManyRequests(#[from] LimitExceeded),
    #[error(transparent)]
    TooManyConnections(#[from] TooManyConnections),
    #[error("buffers hold more than --max-buffered-bytes, and those of this owner the most")]
    TooManyBufferedBytes,
    #[error(
        "buffers hold more than --max-buffered-bytes, and those of this owner the most; the API server may have done the request"
    )]
    GivenUpAfterSending,
    #[error(transparent)]
    Access(#[from] AccessRefusal),
    #[error("not admitted: {}", .0.message.as_deref().unwrap_or_default())]
    NotAdmitted(Box<meta::Status>),
    #[error("the API server of the resource has no such method")]
    MethodNotAllowed,
    #[error("{0}")]
    BadRequest(Cow<'static, str>),
    #[error("admission webhooks or policies match the request: {0}")]
    UnreadableForAdmission(String),
    #[error(transparent)]
    Session(#[from] SessionRefusal),
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    Forward(#[from] ForwardError),
    #[error("the server is shutting down")]
    ShuttingDown,
    #[error("handling the request panicked")]
    Panic,
}

/// The response to a refused request.
pub(super) enum RefusalResponse<'a> {
    /// A `Status`, as kube-apiserver's handlers send it.
    Status(Status),
    /// The `Status` with which admission refuses a request.
    Denial(&'a meta::Status),
    /// A code with plain text, as Go's server sends it before any handler runs. It closes an HTTP/1.1 connection.
    Bare(StatusCode, &'static str),
}

impl Refusal {
    /// The deadline of the request has passed.
    pub(super) fn timeout() -> Self {
        Self::Forward(ForwardError::Timeout)
    }

    /// Whether the deadline of the request has passed.
    pub(super) fn is_timeout(&self) -> bool {
        matches!(self, Self::Forward(ForwardError::Timeout))
    }

    /// The response to the client. `audit_id` lets an operator find the cause in the log.
    pub(super) fn response(&self, audit_id: &str) -> RefusalResponse<'_> {
        RefusalResponse::Status(match self {
            Self::Malformed(malformed) => return malformed_response(*malformed),
            Self::Prepare(PrepareError::HeaderTooLarge) => {
                return malformed_response(MalformedRequest::HeaderTooLarge);
            }
            Self::NotAdmitted(status) => return RefusalResponse::Denial(status),
            Self::Loop(forwarding_loop) => Status::loop_detected(forwarding_loop.to_string()),
            Self::RouteError(RouteError::Misdirected | RouteError::PageHost) => Status::misdirected(),
            Self::RouteError(RouteError::NotFound) => Status::not_found(),
            Self::RequestInfo(status)
            | Self::Impersonation(ImpersonationError::Forbidden(status))
            | Self::Access(AccessRefusal::Forbidden { status, .. } | AccessRefusal::Failed(status))
            | Self::AuditNotStored(status) => (**status).clone(),
            Self::MethodNotAllowed => Status::method_not_allowed(),
            Self::BadRequest(message) => Status::bad_request(message.as_ref()),
            Self::UnreadableForAdmission(_) => Status::bad_request(self.to_string()),
            Self::BadTimeout(bad) => Status::bad_request(bad.to_string()),
            Self::Unauthenticated(_) | Self::CredentialEnded | Self::UnencodableIdentity(_) => {
                Status::unauthorized()
            }
            Self::UnknownImpersonateHeader(unknown) => Status::bad_impersonation(unknown.to_string()),
            Self::BadImpersonation(bad) => Status::bad_impersonation(bad.to_string()),
            Self::UnencodableImpersonation(cause) => Status::bad_impersonation(cause.to_string()),
            Self::TooManyRequests(_) | Self::TooManyConnections(_) | Self::TooManyBufferedBytes => {
                Status::too_many_requests(RETRY_AFTER_SECONDS)
            }
            Self::RevokedImpersonation(_) => Status {
                nosniff: true,
                ..Status::new(
                    Reason::Forbidden,
                    "forbidden: the user or credential to impersonate is on this gateway's deny list",
                )
            },
            Self::Impersonation(ImpersonationError::Undecided(error)) => {
                undecided_impersonation_status(error)
            }
            Self::Access(AccessRefusal::Undecided(error)) => undecided_status(error),
            Self::Prepare(PrepareError::DotSegment) => Status::bad_request(
                "the path has a dot segment, which could escape the path prefix of the API server's URL",
            ),
            Self::Prepare(error @ PrepareError::ImpersonationAsIdentity(_)) => {
                Status::new(Reason::InternalError, error.to_string())
            }
            Self::Session(refusal) => session_status(refusal),
            Self::Forward(error) => forward_status(error, audit_id),
            // Clients repeat any request after 429.
            Self::GivenUpAfterSending => Status::bad_gateway(audit_id),
            Self::ShuttingDown => Status::shutting_down_try_later(),
            Self::Panic => Status::panicked(),
        })
    }
}

/// The response to a malformed request. Some errors have no text.
// Go: net/http/server.go, readRequest and conn.serve
fn malformed_response(malformed: MalformedRequest) -> RefusalResponse<'static> {
    let (code, text) = match malformed {
        MalformedRequest::NoHost => {
            (StatusCode::BAD_REQUEST, "400 Bad Request: missing required Host header")
        }
        MalformedRequest::BadHost => (StatusCode::BAD_REQUEST, "400 Bad Request: malformed Host header"),
        MalformedRequest::BadHeaderName => (StatusCode::BAD_REQUEST, "400 Bad Request: invalid header name"),
        MalformedRequest::HostMismatch => {
            (StatusCode::BAD_REQUEST, "400 Bad Request: Host header differs from the request target")
        }
        MalformedRequest::Connect => (StatusCode::BAD_REQUEST, "400 Bad Request: CONNECT is not supported"),
        MalformedRequest::ManyHosts | MalformedRequest::BadEscape | MalformedRequest::BadTarget => {
            (StatusCode::BAD_REQUEST, "400 Bad Request")
        }
        MalformedRequest::TransferCoding => (StatusCode::NOT_IMPLEMENTED, "Unsupported transfer encoding"),
        MalformedRequest::HeaderTooLarge => {
            (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "431 Request Header Fields Too Large")
        }
        MalformedRequest::Expectation => (StatusCode::EXPECTATION_FAILED, ""),
    };
    RefusalResponse::Bare(code, text)
}

/// The response to a request whose attributes no access review can carry.
const TOO_LARGE: &str = "the user and the selectors of the request are too long for an access review";

/// The response to a request that the gateway's own authorizers cannot decide now. It is refused.
fn undecided_status(error: &ReviewError) -> Status {
    match error {
        ReviewError::Overloaded => Status::too_many_requests(RETRY_AFTER_SECONDS),
        ReviewError::TooLarge => Status::bad_request(TOO_LARGE),
        ReviewError::Unavailable(_)
        | ReviewError::Forbidden(_)
        | ReviewError::Unusable(_)
        | ReviewError::Webhook { .. } => Status::service_unavailable(
            "this gateway cannot authorize the request now, try again later",
            Some(RETRY_AFTER_SECONDS),
        ),
    }
}

/// The response to a request about which the authorizer says nothing. It is refused, and may be sent again if that can
/// help.
fn undecided_impersonation_status(error: &ReviewError) -> Status {
    match error {
        ReviewError::Overloaded => Status::too_many_requests(RETRY_AFTER_SECONDS),
        ReviewError::TooLarge => Status::bad_request(TOO_LARGE),
        ReviewError::Unavailable(_) => Status::service_unavailable(
            "the API server behind this gateway does not answer access reviews, try again later",
            Some(RETRY_AFTER_SECONDS),
        ),
        ReviewError::Forbidden(_) | ReviewError::Unusable(_) | ReviewError::Webhook { .. } => Status {
            nosniff: true,
            ..Status::new(
                Reason::Forbidden,
                "forbidden: this gateway cannot check whether the user may impersonate; its log says why",
            )
        },
    }
}

/// The response to a session that the session policy does not permit. The cause of a failure is in the log.
// apimachinery: pkg/api/errors/errors.go, NewTooManyRequests and NewInternalError
fn session_status(refusal: &SessionRefusal) -> Status {
    match refusal {
        SessionRefusal::TooMany(TooManySessions { most }) => {
            let message =
                format!("the session policy permits each user {most} sessions at a time, end one first");
            let details = Details { retry_after_seconds: SESSION_RETRY_AFTER_SECONDS, ..Details::default() };
            Status { details: Some(details), ..Status::new(Reason::TooManyRequests, message) }
        }
        SessionRefusal::UnreadableProtocol => Status::bad_request(
            "the session must be recorded, and the gateway cannot read one of the protocols that the client offers",
        ),
        SessionRefusal::NotRecorded(_) => {
            let cause = "the session must be recorded, and cannot be: the log of the gateway says why";
            let causes = vec![Cause { message: cause.to_owned(), ..Cause::default() }];
            Status {
                details: Some(Details { causes, ..Details::default() }),
                ..Status::new(Reason::InternalError, format!("Internal error occurred: {cause}"))
            }
        }
    }
}

/// The response to a request that has no usable response from the backend.
fn forward_status(error: &ForwardError, audit_id: &str) -> Status {
    let unavailable = |message| Status::service_unavailable(message, Some(RETRY_AFTER_SECONDS));
    match error {
        ForwardError::Send(SendError::NotTrusted) => unavailable(NO_USABLE_BACKEND),
        ForwardError::Send(SendError::Connect(_) | SendError::Silent) => {
            unavailable("the API server behind this gateway is unreachable, try again later")
        }
        ForwardError::Send(SendError::NotProcessed(_)) => {
            unavailable("the API server behind this gateway did not process the request, try again later")
        }
        ForwardError::Send(SendError::Overloaded) => unavailable(
            "the API servers behind this gateway have too many requests in progress, try again later",
        ),
        ForwardError::Send(SendError::NoPlace) => unavailable(
            "this gateway has no further connection to the API servers of the cluster, try again later",
        ),
        ForwardError::Send(SendError::Busy) => Status::too_many_requests(RETRY_AFTER_SECONDS),
        ForwardError::Send(SendError::Broken(_) | SendError::TooManyInformational)
        | ForwardError::RefusedIdentity
        | ForwardError::UnaskedSwitch
        | ForwardError::ResponseTooLarge
        | ForwardError::UnreadableReview
        | ForwardError::ResponseBody(_) => Status::bad_gateway(audit_id),
        ForwardError::RequestBody(_) => Status::bad_request("the request body is malformed or incomplete"),
        ForwardError::Timeout => Status::timeout(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::Method;

    use super::*;
    use crate::request::deadline::deadline;
    use crate::request::info::RequestInfo;

    #[test]
    fn an_invalid_timeout_is_a_bad_request_without_nosniff() {
        let info = RequestInfo::parse(&Method::GET, "/", None).unwrap();
        let bad = deadline(&info, Some("timeout=5"), Duration::from_mins(1)).unwrap_err();
        let RefusalResponse::Status(status) = Refusal::from(bad).response("id") else {
            panic!("a Status is expected")
        };
        assert_eq!((status.code, status.nosniff), (StatusCode::BAD_REQUEST, false));
        assert!(
            status.message.starts_with("invalid timeout specified in the request URL - "),
            "{}",
            status.message
        );
    }
}
