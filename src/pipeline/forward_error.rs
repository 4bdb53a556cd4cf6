//! The reasons why a request is not forwarded, or has no usable response. `error_map` has the responses to them.
//! That a 401 of the backend is a fault of the gateway, and never the client's response, is decided by `check_response` in `forward.rs`.

use http::header::HeaderName;
use portcullis_http::transport::BodyError;

use crate::backend::pool::SendError;

/// The reason why a request cannot be forwarded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrepareError {
    /// With the identity headers, the header is larger than the backend accepts.
    #[error("the request header is larger than the backend accepts")]
    HeaderTooLarge,
    /// The path could escape the backend's path prefix.
    #[error("the path has a dot segment, which could escape the path prefix of the backend's URL")]
    DotSegment,
    /// The backend would take a header that asks for a user to be one that says who the client is.
    #[error(
        "the backend reads identities from {0}, so it cannot decide on impersonations; set --impersonation=gateway"
    )]
    ImpersonationAsIdentity(HeaderName),
}

/// The reason why a prepared request has no usable response from the backend.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForwardError {
    /// No connection is available, or it broke.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The deadline of the request has passed.
    #[error("the backend did not answer within the allotted timeout")]
    Timeout,
    /// The backend answered 401 before it read the identity headers: it may no longer accept the gateway.
    #[error(
        "the backend answered 401 before it read the identity headers; the self-check checks whether it still accepts \
         the gateway"
    )]
    RefusedIdentity,
    /// The backend switched to a protocol that the client did not request.
    #[error("the backend switched to a protocol that the client did not request")]
    UnaskedSwitch,
    /// The client's body broke off or is malformed.
    #[error("the request body broke off: {0}")]
    RequestBody(#[source] BodyError),
    /// The header of the response is larger than clients accept, or a body that the gateway reads exceeds its limit.
    #[error("the backend's response is too large")]
    ResponseTooLarge,
    /// The TokenReview in the response has an encoding that the gateway cannot read, so that the deny list cannot be applied.
    #[error("the backend's TokenReview cannot be read, to compare it with the credential deny list")]
    UnreadableReview,
    /// A body that the gateway reads broke off.
    #[error("the backend's response broke off: {0}")]
    ResponseBody(#[source] BodyError),
}

impl ForwardError {
    /// The `cause` label of `portcullis_backend_errors_total`; `None` if the backend is not at fault.
    pub(super) fn backend_cause(&self) -> Option<&'static str> {
        match self {
            Self::Send(SendError::Connect(_)) => Some("connect"),
            Self::Send(SendError::NotTrusted) => Some("not_trusted"),
            Self::Send(SendError::NotProcessed(_)) => Some("not_processed"),
            Self::Send(SendError::Broken(_)) | Self::ResponseBody(_) => Some("broken"),
            Self::Send(SendError::TooManyInformational) => Some("informational_responses"),
            Self::Send(SendError::Silent) => Some("silent"),
            Self::Send(SendError::Overloaded) => Some("overloaded"),
            Self::Send(SendError::NoPlace) => Some("no_connection_left"),
            Self::Timeout => Some("timeout"),
            Self::RefusedIdentity => Some("refused_identity"),
            Self::UnaskedSwitch => Some("unrequested_switch"),
            Self::ResponseTooLarge => Some("response_too_large"),
            Self::UnreadableReview => Some("unreadable_review"),
            Self::Send(SendError::Busy) | Self::RequestBody(_) => None,
        }
    }
}
