//! Notes each check of a token: for whoever asks why, and, where it refuses, in the log.

use std::fmt::Display;

use crate::authn::AuthnError;
use crate::authn::trace::{Check, Outcome, Remarks};

/// Where one authenticator notes its checks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Checks<'a> {
    /// The authenticator.
    pub(super) name: &'static str,
    /// What it leaves.
    pub(super) remarks: &'a Remarks,
}

impl Checks<'_> {
    /// It is as it must be.
    pub(super) fn pass(self, check: impl Into<Check>, detail: impl FnOnce() -> String) {
        self.remarks.step(self.name, check, Outcome::Passed, detail);
    }

    /// There is nothing to be checked, or the token is not for this authenticator.
    pub(super) fn skip(self, check: impl Into<Check>, why: impl Display) {
        self.remarks.step(self.name, check, Outcome::NotApplicable, || why.to_string());
    }

    /// The token is refused. `text` is kube-apiserver's, which has the same for several reasons; `why` tells them apart.
    pub(super) fn refuse(
        self,
        check: impl Into<Check>,
        why: impl Display,
        text: impl Into<String>,
    ) -> AuthnError {
        let check = check.into();
        tracing::debug!(authenticator = self.name, %check, %why, "token refused");
        self.remarks.step(self.name, check, Outcome::Failed, || why.to_string());
        AuthnError::Invalid(text.into())
    }

    /// The token is refused for what it says.
    pub(super) fn invalid(self, check: impl Into<Check>, text: impl Into<String>) -> AuthnError {
        let text = text.into();
        self.refuse(check, &text, text.as_str())
    }

    /// The token could not be checked.
    pub(super) fn unavailable(self, check: impl Into<Check>, text: impl Into<String>) -> AuthnError {
        let text = text.into();
        self.remarks.step(self.name, check, Outcome::Unavailable, || format!("could not be checked: {text}"));
        AuthnError::Unavailable(text)
    }
}
