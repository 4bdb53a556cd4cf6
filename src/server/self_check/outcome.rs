//! The outcome of a self-check: which of them cost an endpoint its trust, and their texts.

use portcullis_http::identity::IdentityMode;
use portcullis_system::text::shortened;

use super::verdict::{AcceptedIdentity, SelfCheckFailure};
use crate::backend::endpoint::ConnectError;
use crate::backend::pool::SendError;
use crate::backend::probe::ProbeError;

/// The most characters of the cause of an outcome that are logged and shown. An API server may choose parts of it.
// threat: tenant-log-flood
const MAX_CAUSE_LENGTH: usize = 2048;

/// The outcome of one check.
pub(super) enum CheckOutcome {
    Passed(AcceptedIdentity),
    Failed(SelfCheckFailure),
    /// The endpoint cannot be reached, and must pass another check.
    Unreachable(ConnectError),
    /// No evidence either way: the API server is starting, overloaded or shutting down.
    Inconclusive(String),
}

impl CheckOutcome {
    /// The value of the metric's `result` label.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Passed(AcceptedIdentity::Complete) => "ok",
            Self::Passed(AcceptedIdentity::WithoutUid) => "uid_missing",
            Self::Failed(failure) => failure.label(),
            Self::Unreachable(_) => "unreachable",
            Self::Inconclusive(_) => "inconclusive",
        }
    }

    /// Why the check has not passed.
    pub(super) fn cause(&self, identity: IdentityMode) -> Option<String> {
        let cause = match self {
            Self::Passed(_) => return None,
            Self::Failed(failure) => failure.diagnosis(identity),
            Self::Unreachable(error) => error.to_string(),
            Self::Inconclusive(cause) => cause.clone(),
        };
        Some(shortened(&cause, MAX_CAUSE_LENGTH))
    }

    /// Whether an endpoint that has passed before, and was trusted since, stays so. A refused review is the decision of an
    /// administrator, and says nothing about the identity; it is no evidence for an endpoint that has not passed either.
    pub(super) fn keeps_trust(&self) -> bool {
        matches!(self, Self::Inconclusive(_) | Self::Failed(SelfCheckFailure::ReviewForbidden))
    }
}

impl From<ProbeError> for CheckOutcome {
    // threat: local-shortage
    fn from(error: ProbeError) -> Self {
        match error {
            // What this machine lacks proves nothing about the endpoint.
            error if error.is_of_this_machine() => Self::Inconclusive(error.to_string()),
            ProbeError::Send(SendError::Connect(error)) => Self::Unreachable(error),
            error => Self::Inconclusive(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::self_check::verdict::CertificateFinding;

    #[test]
    fn what_an_api_server_says_is_cut() {
        let cause = CheckOutcome::Inconclusive("x".repeat(1 << 20)).cause(IdentityMode::Impersonate).unwrap();
        assert_eq!(cause.chars().count(), MAX_CAUSE_LENGTH + 1);
        let other =
            SelfCheckFailure::OtherUser("u".repeat(256), CertificateFinding::Plausible("p".repeat(64)));
        for failure in [SelfCheckFailure::HeaderNamesForbidden(None), other] {
            let cause = CheckOutcome::Failed(failure).cause(IdentityMode::RequestHeader).unwrap();
            assert!(!cause.ends_with('…'), "the fix is whole: {cause}");
        }
    }

    #[test]
    fn what_this_machine_lacks_costs_an_endpoint_no_trust() {
        let (address, cause) = (|| "192.0.2.1:6443".to_owned(), || "Too many open files".to_owned());
        let local = ConnectError::Local { address: address(), cause: cause() };
        let refused = ConnectError::Tcp { address: address(), cause: cause() };
        let outcome = |error: ConnectError| CheckOutcome::from(ProbeError::Send(SendError::Connect(error)));
        assert!(matches!(outcome(local), CheckOutcome::Inconclusive(cause) if cause.contains("open files")));
        assert!(matches!(outcome(refused), CheckOutcome::Unreachable(_)));
        assert!(matches!(CheckOutcome::from(ProbeError::Timeout), CheckOutcome::Inconclusive(_)));
    }
}
