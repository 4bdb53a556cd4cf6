//! The one map from internal errors to what a client sees. Exhaustive: a new error does not compile until someone
//! chooses its answer. The cause goes to the log, never to the client.

use crate::authn::AuthnError;
use crate::backend::pool::SendError;
use crate::cluster::router::NoRoute;
use crate::http::status::{Reason, Status};
use crate::pipeline::forward::{ForwardError, PrepareError};
use crate::request::credentials::UnknownImpersonateHeader;
use crate::request::deadline::BadTimeout;
use crate::request::wellformed::MalformedRequest;
use crate::user::UnencodableIdentity;

/// Seconds after which a client may try again when the backend is away.
const RETRY_AFTER: u32 = 1;

/// Why a request is answered by the gateway.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Malformed(#[from] MalformedRequest),
    #[error(transparent)]
    NoRoute(#[from] NoRoute),
    #[error("no RequestInfo: {}", .0.message)]
    RequestInfo(Box<Status>),
    #[error(transparent)]
    BadTimeout(#[from] BadTimeout),
    #[error("unable to authenticate the request: {0}")]
    Unauthenticated(#[from] AuthnError),
    #[error(transparent)]
    UnknownImpersonateHeader(#[from] UnknownImpersonateHeader),
    #[error(transparent)]
    UnencodableIdentity(#[from] UnencodableIdentity),
    #[error("impersonation is not available with identity mode impersonate")]
    ImpersonationUnavailable,
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    Forward(#[from] ForwardError),
    #[error("the server is shutting down")]
    ShuttingDown,
    #[error("handling the request panicked")]
    Panic,
}

impl Refusal {
    /// What the client sees of a request that could be read. `audit_id` lets an operator find the cause in the log.
    pub(super) fn status(&self, audit_id: &str) -> Status {
        match self {
            Self::Malformed(malformed) => Status::bad_request(malformed.to_string()),
            Self::NoRoute(NoRoute::Misdirected) => Status::misdirected(),
            Self::NoRoute(NoRoute::NotFound) => Status::not_found(),
            Self::RequestInfo(status) => (**status).clone(),
            Self::BadTimeout(bad) => bad.clone().into(),
            Self::Unauthenticated(_) | Self::UnencodableIdentity(_) => Status::unauthorized(),
            Self::UnknownImpersonateHeader(unknown) => Status::bad_impersonation(unknown.to_string()),
            Self::ImpersonationUnavailable => Status {
                nosniff: true,
                ..Status::new(
                    Reason::Forbidden,
                    "forbidden: this gateway passes identities to its backend by impersonation and does not authorise \
                     another",
                )
            },
            Self::Prepare(PrepareError::HeaderTooLarge) => {
                Self::Malformed(MalformedRequest::HeaderTooLarge).status(audit_id)
            }
            Self::Prepare(PrepareError::DotSegment) => Status::bad_request(
                "the path has a dot segment, which is not passed on to an API server whose URL has a path",
            ),
            Self::Forward(error) => forward_status(error, audit_id),
            Self::ShuttingDown => Status::shutting_down_try_later(),
            Self::Panic => Status::panicked(),
        }
    }
}

/// What the client sees of a request that the backend did not answer.
fn forward_status(error: &ForwardError, audit_id: &str) -> Status {
    let unavailable = |message| Status::service_unavailable(message, Some(RETRY_AFTER));
    match error {
        ForwardError::Send(SendError::NotTrusted) => unavailable(
            "no usable backend: the API server has not passed the identity self-check; try again later",
        ),
        ForwardError::Send(SendError::Connect(_)) => {
            unavailable("the API server behind this gateway is unreachable, try again later")
        }
        ForwardError::Send(SendError::NotProcessed(_)) => {
            unavailable("the API server behind this gateway did not take the request, try again later")
        }
        ForwardError::Send(SendError::Busy) => Status::too_many_requests(RETRY_AFTER),
        ForwardError::Send(SendError::Broken(_))
        | ForwardError::RefusedIdentity
        | ForwardError::UnaskedSwitch
        | ForwardError::AnswerTooLarge
        | ForwardError::Answer(_) => Status::bad_gateway(audit_id),
        ForwardError::RequestBody(_) => Status::bad_request("the request body is malformed or incomplete"),
        ForwardError::Timeout => Status::timeout(),
    }
}

impl ForwardError {
    /// The label of the metric of backend errors; `None` if the backend is not at fault.
    pub(super) fn backend_cause(&self) -> Option<&'static str> {
        match self {
            Self::Send(SendError::Connect(_)) => Some("connect"),
            Self::Send(SendError::NotTrusted) => Some("not_trusted"),
            Self::Send(SendError::NotProcessed(_)) => Some("not_processed"),
            Self::Send(SendError::Broken(_)) | Self::Answer(_) => Some("broken"),
            Self::Timeout => Some("timeout"),
            Self::RefusedIdentity => Some("refused_identity"),
            Self::UnaskedSwitch => Some("unasked_switch"),
            Self::AnswerTooLarge => Some("answer_too_large"),
            Self::Send(SendError::Busy) | Self::RequestBody(_) => None,
        }
    }
}
