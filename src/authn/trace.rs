//! Side output of authenticators: warnings for the client, annotations for the audit log, and, for `portcullis
//! explain`, the checks that each authenticator made.

mod check;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use portcullis_system::sync::lock;

pub(crate) use check::Check;

/// Collects a [`TraceRecord`] while authenticators check a credential.
#[derive(Debug, Default)]
pub struct AuthnTrace {
    record: Mutex<TraceRecord>,
    keeps_steps: bool,
}

/// The content of an [`AuthnTrace`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceRecord {
    /// Sent to the client as `Warning` headers, in order.
    pub warnings: Vec<String>,
    /// Annotations for the audit log.
    pub annotations: BTreeMap<String, String>,
    /// The checks in order; empty unless the trace keeps steps.
    pub steps: Vec<TraceStep>,
}

/// One check of an authenticator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceStep {
    /// The authenticator's `name()`, followed by an index or an issuer where several share the name.
    pub authenticator: String,
    /// The claim, rule or object read that was checked.
    pub check: Check,
    /// The result.
    pub outcome: StepOutcome,
    /// Explanation for the operator. Never contains a token or a usable part of one.
    pub detail: String,
}

/// Result of a [`TraceStep`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepOutcome {
    /// The check succeeded.
    Passed,
    /// The check failed, and with it the credential.
    Failed,
    /// The check could not be made, and the credential is refused.
    Unavailable,
    /// The credential is not for this authenticator, or the check has no input.
    NotApplicable,
}

impl AuthnTrace {
    /// A trace that also keeps the steps.
    pub fn with_steps() -> Self {
        Self { keeps_steps: true, ..Self::default() }
    }

    /// Adds a warning for the client, unless the same text is present.
    pub fn warn(&self, text: &str) {
        let mut record = self.record();
        if !record.warnings.iter().any(|present| present == text) {
            record.warnings.push(text.to_owned());
        }
    }

    /// Adds an annotation for the audit log; the first value of a key stays.
    // apiserver: pkg/audit/context.go, addAuditAnnotationLocked
    pub fn annotate(&self, key: &str, value: impl Into<String>) {
        self.record().annotations.entry(key.to_owned()).or_insert_with(|| value.into());
    }

    /// Adds a step; without [`Self::keeps_steps`] it does nothing and never calls `detail`.
    pub fn step(
        &self,
        authenticator: &str,
        check: Check,
        outcome: StepOutcome,
        detail: impl FnOnce() -> String,
    ) {
        if self.keeps_steps {
            let (authenticator, check) = (authenticator.to_owned(), check);
            self.record().steps.push(TraceStep { authenticator, check, outcome, detail: detail() });
        }
    }

    /// Whether the trace keeps steps.
    pub fn keeps_steps(&self) -> bool {
        self.keeps_steps
    }

    /// Adds the record of a token check that several requests share, or of a cached verdict.
    pub fn merge(&self, other: &TraceRecord) {
        other.warnings.iter().for_each(|text| self.warn(text));
        for (key, value) in &other.annotations {
            self.annotate(key, value);
        }
        self.record().steps.extend(other.steps.iter().cloned());
    }

    /// Takes the record out and leaves an empty one.
    pub fn take(&self) -> TraceRecord {
        std::mem::take(&mut *self.record())
    }

    fn record(&self) -> MutexGuard<'_, TraceRecord> {
        lock(&self.record)
    }
}
