//! Records the checks of one issuer in the authentication trace.

use std::fmt::Display;

use crate::authn::trace::{AuthnTrace, Check, StepOutcome};

/// Records checks under the label of one authenticator and passes their results on.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepRecorder<'a> {
    /// The trace of the request.
    pub(super) trace: &'a AuthnTrace,
    /// The authenticator's name and issuer.
    pub(super) label: &'a str,
}

impl StepRecorder<'_> {
    /// Records a check: the error, or the detail of the value. Neither may contain a usable part of a token.
    pub(super) fn check<T, E: Display>(
        self,
        check: Check,
        found: Result<T, E>,
        detail: impl FnOnce(&T) -> String,
    ) -> Result<T, E> {
        match &found {
            Ok(value) => self.trace.step(self.label, check, StepOutcome::Passed, || detail(value)),
            Err(error) => self.trace.step(self.label, check, StepOutcome::Failed, || error.to_string()),
        }
        found
    }

    /// Records a check without input.
    pub(super) fn skip(self, check: Check, why: &str) {
        self.trace.step(self.label, check, StepOutcome::NotApplicable, || why.to_owned());
    }
}
