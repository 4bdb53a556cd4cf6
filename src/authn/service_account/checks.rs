//! Notes each check of a token: for whoever asks why, and, where it refuses, in the log.

use std::fmt::Display;

use crate::authn::AuthnError;
use crate::authn::trace::{AuthnTrace, StepOutcome};

/// Where one authenticator notes its checks.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckRecorder<'a> {
    /// The authenticator.
    pub(super) name: &'static str,
    /// What it leaves.
    pub(super) trace: &'a AuthnTrace,
}

impl CheckRecorder<'_> {
    /// It is as it must be.
    pub(super) fn pass(self, check: &str, detail: impl FnOnce() -> String) {
        self.trace.step(self.name, check, StepOutcome::Passed, detail);
    }

    /// There is nothing to be checked, or the token is not for this authenticator.
    pub(super) fn skip(self, check: &str, why: impl Display) {
        self.trace.step(self.name, check, StepOutcome::NotApplicable, || why.to_string());
    }

    /// The token is refused. `text` is kube-apiserver's, which has the same for several reasons; `why` tells them apart.
    pub(super) fn refuse(self, check: &str, why: impl Display, text: impl Into<String>) -> AuthnError {
        tracing::debug!(authenticator = self.name, check, %why, "token refused");
        self.trace.step(self.name, check, StepOutcome::Failed, || why.to_string());
        AuthnError::Invalid(text.into())
    }

    /// The token is refused for what it says.
    pub(super) fn invalid(self, check: &str, text: impl Into<String>) -> AuthnError {
        let text = text.into();
        self.refuse(check, &text, text.as_str())
    }

    /// The token could not be checked.
    pub(super) fn unavailable(self, check: &str, text: impl Into<String>) -> AuthnError {
        let text = text.into();
        self.trace.step(self.name, check, StepOutcome::Failed, || format!("could not be checked: {text}"));
        AuthnError::Unavailable(text)
    }
}
