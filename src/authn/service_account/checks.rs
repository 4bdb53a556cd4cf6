//! Records the checks of a token in the authentication trace, and refusals in the debug log.

use std::fmt::Display;

use crate::authn::AuthnError;
use crate::authn::trace::{AuthnTrace, Check, StepOutcome};

/// Records the checks of one authenticator.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckRecorder<'a> {
    /// The name of the authenticator.
    pub(super) name: &'static str,
    /// The trace of the request.
    pub(super) trace: &'a AuthnTrace,
}

impl CheckRecorder<'_> {
    /// Records a check that succeeded.
    pub(super) fn pass(self, check: Check, detail: impl FnOnce() -> String) {
        self.trace.step(self.name, check, StepOutcome::Passed, detail);
    }

    /// Records a check without input, or a token for another authenticator.
    pub(super) fn skip(self, check: Check, why: impl Display) {
        self.trace.step(self.name, check, StepOutcome::NotApplicable, || why.to_string());
    }

    /// Refuses the token with kube-apiserver's message `text`, which covers several causes; `why` is the specific one.
    pub(super) fn refuse(self, check: Check, why: impl Display, text: impl Into<String>) -> AuthnError {
        tracing::debug!(authenticator = self.name, %check, %why, "token refused");
        self.trace.step(self.name, check, StepOutcome::Failed, || why.to_string());
        AuthnError::Invalid(text.into())
    }

    /// Refuses the token with one text for the client and the trace.
    pub(super) fn invalid(self, check: Check, text: impl Into<String>) -> AuthnError {
        let text = text.into();
        self.refuse(check, &text, text.as_str())
    }

    /// Refuses the token because a check could not be made.
    pub(super) fn unavailable(self, check: Check, text: impl Into<String>) -> AuthnError {
        let text = text.into();
        self.trace
            .step(self.name, check, StepOutcome::Unavailable, || format!("could not be checked: {text}"));
        AuthnError::Unavailable(text)
    }
}
