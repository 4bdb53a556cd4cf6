//! Notes each check under the name of its issuer, and passes its outcome on.

use std::fmt::Display;

use crate::authn::trace::{AuthnTrace, StepOutcome};

/// Where the steps of one authenticator are noted.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepRecorder<'a> {
    /// What authenticators leave.
    pub(super) trace: &'a AuthnTrace,
    /// The name and the issuer.
    pub(super) label: &'a str,
}

impl StepRecorder<'_> {
    /// Notes a check: its error, or what was found. Neither may be a usable part of a token.
    pub(super) fn check<T, E: Display>(
        self,
        check: impl Into<String>,
        found: Result<T, E>,
        detail: impl FnOnce(&T) -> String,
    ) -> Result<T, E> {
        match &found {
            Ok(value) => self.trace.step(self.label, check, StepOutcome::Passed, || detail(value)),
            Err(error) => self.trace.step(self.label, check, StepOutcome::Failed, || error.to_string()),
        }
        found
    }

    /// Notes that there is nothing to be checked.
    pub(super) fn skip(self, check: &str, why: &str) {
        self.trace.step(self.label, check, StepOutcome::NotApplicable, || why.to_owned());
    }
}
