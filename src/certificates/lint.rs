//! Lints: the last judgement over a certificate before it is signed.

/// A lint that a certificate would not pass. This is our mistake, not the requester's: nothing is signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the certificate would break {lint} ({citation}): {found}")]
pub struct LintError {
    /// The lint's name.
    pub lint: &'static str,
    /// The rule it checks: a section of RFC 5280, or a rule of a Kubernetes signer.
    pub citation: &'static str,
    /// What was found instead.
    pub found: String,
}
