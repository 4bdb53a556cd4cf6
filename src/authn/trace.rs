//! What authenticators leave beside their verdict: warnings for the client, annotations for the audit log, and, for
//! somebody who asks why, each step they took.

mod check;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use check::Check;

/// Filled while a credential is judged.
#[derive(Debug, Default)]
pub struct Remarks {
    noted: Mutex<Noted>,
    traced: bool,
}

/// What was left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Noted {
    /// Sent to the client as `Warning` headers, in order.
    pub warnings: Vec<String>,
    /// For the audit log.
    pub annotations: BTreeMap<String, String>,
    /// What was looked at; empty unless somebody asked.
    pub steps: Vec<Step>,
}

/// One thing that an authenticator looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The authenticator, as its `name()` has it; with a number or an issuer behind it where there are several.
    pub authenticator: String,
    /// What was looked at: a claim, a rule, a lookup.
    pub check: Check,
    /// What came of it.
    pub outcome: Outcome,
    /// For people. Never a token or a part of one that could be used.
    pub detail: String,
}

/// What came of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// As it must be.
    Passed,
    /// The credential is refused for it.
    Failed,
    /// It could not be checked, and the credential is refused.
    Unavailable,
    /// Not a credential for this authenticator, or nothing to be checked.
    NotApplicable,
}

impl Remarks {
    /// Remarks that keep the steps too.
    pub fn traced() -> Self {
        Self { traced: true, ..Self::default() }
    }

    /// Adds a warning for the client; a text that is already there is not repeated.
    pub fn warn(&self, text: &str) {
        let mut noted = self.noted();
        if !noted.warnings.iter().any(|known| known == text) {
            noted.warnings.push(text.to_owned());
        }
    }

    /// Adds an annotation for the audit log; the first value of a key stays.
    // apiserver: pkg/audit/context.go, addAuditAnnotationLocked
    pub fn annotate(&self, key: &str, value: impl Into<String>) {
        self.noted().annotations.entry(key.to_owned()).or_insert_with(|| value.into());
    }

    /// Notes a step, if anybody wants to know.
    pub fn step(
        &self,
        authenticator: &str,
        check: impl Into<Check>,
        outcome: Outcome,
        detail: impl FnOnce() -> String,
    ) {
        if self.traced {
            let (authenticator, check) = (authenticator.to_owned(), check.into());
            self.noted().steps.push(Step { authenticator, check, outcome, detail: detail() });
        }
    }

    /// Whether steps are kept.
    pub fn is_traced(&self) -> bool {
        self.traced
    }

    /// Adds what was left elsewhere: by a lookup that several requests share, or when its outcome was remembered.
    pub fn replay(&self, noted: &Noted) {
        noted.warnings.iter().for_each(|text| self.warn(text));
        for (key, value) in &noted.annotations {
            self.annotate(key, value);
        }
        self.noted().steps.extend(noted.steps.iter().cloned());
    }

    /// Everything so far, taken out.
    pub fn take(&self) -> Noted {
        std::mem::take(&mut *self.noted())
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
