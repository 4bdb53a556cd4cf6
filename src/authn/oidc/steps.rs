//! Notes each check under the name of its issuer, and passes its outcome on.

use std::fmt::Display;

use crate::authn::trace::{Check, Outcome, Remarks};

/// Where the steps of one authenticator are noted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps<'a> {
    /// What authenticators leave.
    pub(super) remarks: &'a Remarks,
    /// The name and the issuer.
    pub(super) label: &'a str,
}

impl Steps<'_> {
    /// Notes a check: its error, or what was found. Neither may be a usable part of a token.
    pub(super) fn check<T, E: Display>(
        self,
        check: impl Into<Check>,
        found: Result<T, E>,
        detail: impl FnOnce(&T) -> String,
    ) -> Result<T, E> {
        match &found {
            Ok(value) => self.remarks.step(self.label, check, Outcome::Passed, || detail(value)),
            Err(error) => self.remarks.step(self.label, check, Outcome::Failed, || error.to_string()),
        }
        found
    }

    /// Notes that there is nothing to be checked.
    pub(super) fn skip(self, check: impl Into<Check>, why: &str) {
        self.remarks.step(self.label, check, Outcome::NotApplicable, || why.to_owned());
    }
}
