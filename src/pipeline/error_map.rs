//! The one map from internal errors to what a client sees. Exhaustive: a new error does not compile until someone
//! chooses its answer. The cause goes to the log, never to the client.

use crate::authn::AuthnError;
use crate::backend::pool::SendError;
use crate::cluster::router::NoRoute;
use crate::http::status::{Reason, Status};
use crate::pipeline::forward::ForwardError;
use crate::request::credentials::UnknownImpersonateHeader;
use crate::request::deadline::BadTimeout;
use crate::request::wellformed::MalformedRequest;

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
            Self::Unauthenticated(_) | Self::Forward(ForwardError::UnencodableIdentity(_)) => {
                Status::unauthorized()
            }
            Self::UnknownImpersonateHeader(unknown) => Status::bad_impersonation(unknown.to_string()),
            Self::Forward(ForwardError::Impersonation) => Status {
                nosniff: true,
                ..Status::new(
                    Reason::Forbidden,
                    "forbidden: this gateway passes identities to its backend by impersonation and does not authorise \
                     another",
                )
            },
            Self::Forward(ForwardError::Send(SendError::NotTrusted)) => Status::service_unavailable(
                "the API server behind this gateway has not been seen to take identities from it, try again later",
                Some(RETRY_AFTER),
            ),
            Self::Forward(ForwardError::Send(SendError::Connect(_))) => Status::service_unavailable(
                "the API server behind this gateway is unreachable, try again later",
                Some(RETRY_AFTER),
            ),
            Self::Forward(
                ForwardError::Send(SendError::Broken(_))
                | ForwardError::RefusedIdentity
                | ForwardError::UnaskedSwitch
                | ForwardError::AnswerTooLarge
                | ForwardError::Answer(_)
                | ForwardError::Target(_),
            ) => Status::bad_gateway(audit_id),
            Self::Forward(ForwardError::Send(SendError::NotProcessed(_))) => Status::service_unavailable(
                "the API server behind this gateway did not take the request, try again later",
                Some(RETRY_AFTER),
            ),
            Self::Forward(ForwardError::Send(SendError::Busy)) => Status::too_many_requests(RETRY_AFTER),
            Self::Forward(ForwardError::HeaderTooLarge) => {
                Self::Malformed(MalformedRequest::HeaderTooLarge).status(audit_id)
            }
            Self::Forward(ForwardError::DotSegment) => Status::bad_request(
                "the path has a dot segment, which is not passed on to an API server whose URL has a path",
            ),
            Self::Forward(ForwardError::RequestBody(_)) => {
                Status::bad_request("the request body is malformed or incomplete")
            }
            Self::Forward(ForwardError::Timeout) => Status::timeout(),
            Self::ShuttingDown => Status::shutting_down_try_later(),
            Self::Panic => Status::panicked(),
        }
    }

    /// Whether the gateway has no answer from a backend, for whatever reason but a client's.
    pub(super) fn is_of_backend(&self) -> bool {
        self.backend_cause().is_some() || matches!(self, Self::Forward(ForwardError::Target(_)))
    }

    /// The label of the metric of backend errors, if the backend is at fault.
    pub(super) fn backend_cause(&self) -> Option<&'static str> {
        match self {
            Self::Forward(ForwardError::Send(SendError::Connect(_))) => Some("connect"),
            Self::Forward(ForwardError::Send(SendError::NotTrusted)) => Some("not_trusted"),
            Self::Forward(ForwardError::Send(SendError::NotProcessed(_))) => Some("not_processed"),
            Self::Forward(ForwardError::Send(SendError::Broken(_)) | ForwardError::Answer(_)) => {
                Some("broken")
            }
            Self::Forward(ForwardError::Timeout) => Some("timeout"),
            Self::Forward(ForwardError::RefusedIdentity) => Some("refused_identity"),
            Self::Forward(ForwardError::UnaskedSwitch) => Some("unasked_switch"),
            Self::Forward(ForwardError::AnswerTooLarge) => Some("answer_too_large"),
            Self::Forward(
                ForwardError::UnencodableIdentity(_)
                | ForwardError::Send(SendError::Busy)
                | ForwardError::Impersonation
                | ForwardError::HeaderTooLarge
                | ForwardError::RequestBody(_)
                | ForwardError::DotSegment
                | ForwardError::Target(_),
            )
            | Self::Malformed(_)
            | Self::NoRoute(_)
            | Self::RequestInfo(_)
            | Self::BadTimeout(_)
            | Self::Unauthenticated(_)
            | Self::UnknownImpersonateHeader(_)
            | Self::ShuttingDown
            | Self::Panic => None,
        }
    }
}
