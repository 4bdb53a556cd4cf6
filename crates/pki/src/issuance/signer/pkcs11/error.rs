//! Failures of tokens: those that may pass, and those that remain until an operator acts.

use cryptoki::error::{Error, RvError};

use crate::issuance::signer::PrivateKeyError;

/// Why a key in a token cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenError {
    reason: String,
    /// The token may come back: it was removed, its daemon restarted, another process has it.
    may_pass: bool,
}

impl TokenError {
    /// A failure that remains until the configuration or the token changes.
    pub(super) fn refused(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), may_pass: false }
    }

    /// A failure that may pass.
    pub(super) fn absent(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), may_pass: true }
    }

    /// A failed call, with the step that it was for.
    pub(super) fn of(step: &str, error: &Error) -> Self {
        Self { reason: format!("{step}: {}", one_line(error)), may_pass: may_pass(error) }
    }

    pub(super) fn may_pass(&self) -> bool {
        self.may_pass
    }
}

impl std::fmt::Display for TokenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)
    }
}

impl From<TokenError> for PrivateKeyError {
    fn from(error: TokenError) -> Self {
        let text = format!("the key in the PKCS#11 token cannot be used: {}", error.reason);
        if error.may_pass { Self::Absent(text) } else { Self::Failed(text) }
    }
}

/// Whether the same call may succeed after the library was initialized again. Never true of a refused PIN: each attempt
/// counts.
fn may_pass(error: &Error) -> bool {
    let Error::Pkcs11(code, _) = error else { return false };
    !matches!(
        code,
        RvError::PinIncorrect
            | RvError::PinInvalid
            | RvError::PinLenRange
            | RvError::PinExpired
            | RvError::PinLocked
            | RvError::PinTooWeak
            | RvError::UserPinNotInitialized
            | RvError::UserTypeInvalid
            | RvError::UserAnotherAlreadyLoggedIn
            | RvError::UserTooManyTypes
            | RvError::ArgumentsBad
            | RvError::DataInvalid
            | RvError::DataLenRange
            | RvError::CurveNotSupported
            | RvError::MechanismInvalid
            | RvError::MechanismParamInvalid
            | RvError::KeyFunctionNotPermitted
            | RvError::KeyTypeInconsistent
            | RvError::KeySizeRange
            | RvError::FunctionNotSupported
    )
}

/// The error in one line; the texts of `cryptoki` explain every error code at length.
pub(super) fn one_line(error: &Error) -> String {
    match error {
        Error::Pkcs11(code, function) => format!("{function:?} returned {code:?}"),
        other => other.to_string(),
    }
}
