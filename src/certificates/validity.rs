//! How long a certificate lives.

use std::time::Duration;

use crate::clock::UnixTime;

/// How far a certificate begins in the past, for clocks that are behind.
// kubernetes: pkg/controller/certificates/signer/signer.go, sign
pub const BACKDATE: Duration = Duration::from_mins(5);
/// A certificate that lives shorter than this is not cut by the backdate at its end.
// kubernetes: pkg/controller/certificates/signer/signer.go, sign
pub const SHORT: Duration = Duration::from_hours(8);
/// The shortest life that is given.
// kubernetes: pkg/controller/certificates/signer/signer.go, duration
pub const MINIMUM: Duration = Duration::from_mins(10);

/// When a certificate is valid; both ends belong to it. Whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub not_before: UnixTime,
    /// The last second.
    pub not_after: UnixTime,
}

/// The authority has ended. The texts are kube-controller-manager's.
// kubernetes: pkg/controller/certificates/authority/policies.go, apply
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpiredAuthority {
    /// It had ended before the certificate would begin.
    #[error("the signer has expired: NotAfter={0}")]
    BeforeStart(String),
    /// It ended within the backdated span.
    #[error("refusing to sign a certificate that expired in the past: NotAfter={0}")]
    BeforeNow(String),
}
