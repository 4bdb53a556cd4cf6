//! When the certificate of a pod is valid, and when the kubelet renews it.
// kubernetes: pkg/apis/certificates/validation/validation.go, ValidatePodCertificateRequestStatusUpdate

use std::time::Duration;

use portcullis_system::clock::UnixTime;

use crate::issuance::validity::{AuthorityNotValid, Validity};

/// By how much notBefore precedes the issuance, for clients with slow clocks. The API server refuses five minutes and
/// more, as its clock reads.
const BACKDATE: Duration = Duration::from_mins(2);
/// The shortest lifetime that the API server accepts, from notBefore.
pub const MIN_LIFETIME: Duration = Duration::from_hours(1);
/// The longest `spec.maxExpirationSeconds`: 91 days.
// kubernetes: pkg/apis/certificates/types.go, MaxMaxExpirationSeconds
pub const MAX_LIFETIME: Duration = Duration::from_hours(91 * 24);

/// A random number that shortens a lifetime and moves its renewal, so that pods that start together do not renew
/// together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jitter(pub u16);

impl Jitter {
    /// A random part of a duration.
    fn part(self, of: Duration) -> Duration {
        of / (u32::from(u16::MAX) + 1) * u32::from(self.0)
    }
}

/// The times of a certificate, in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodValidity {
    /// The first second.
    pub not_before: UnixTime,
    /// When the kubelet begins to renew it.
    pub begin_refresh_at: UnixTime,
    /// The last second.
    pub not_after: UnixTime,
}

/// Why there is no valid time for a certificate. A later attempt with another CA certificate may succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodValidityError {
    /// The CA certificate is not valid now.
    #[error(transparent)]
    Authority(#[from] AuthorityNotValid),
    /// The API server accepts no certificate that lasts less than an hour.
    #[error(
        "the CA certificate is valid for less than an hour, as long as a certificate must last: renew it (portcullis \
         certs renew-ca)"
    )]
    AuthorityEnds,
}

impl PodValidity {
    /// The validity of a certificate that is issued now, for at most `max`, within that of its CA. A twentieth of the
    /// lifetime is left to chance, as far as an hour remains; so is a tenth of it for the renewal, from 60 % on.
    pub fn of(
        now: UnixTime,
        max: Duration,
        authority: Validity,
        [ending, renewal]: [Jitter; 2],
    ) -> Result<Self, PodValidityError> {
        // A CA that begins after the backdate shortens nothing: the lifetime is counted from notBefore.
        let whole = |time: UnixTime| UnixTime::from_secs(time.as_secs());
        let checked = Validity::backdated(now, max, authority, BACKDATE, Duration::ZERO)?;
        let not_before = checked.not_before;
        let latest = whole(not_before.saturating_add(max)).min(whole(authority.not_after));
        let longest = latest.saturating_sub(not_before);
        if longest < MIN_LIFETIME {
            return Err(PodValidityError::AuthorityEnds);
        }
        let spare = (longest / 20).min(longest.saturating_sub(MIN_LIFETIME));
        let lifetime = whole(longest.saturating_sub(ending.part(spare)));
        let refresh = lifetime * 3 / 5 + renewal.part(lifetime / 10);
        Ok(Self {
            not_before,
            begin_refresh_at: whole(not_before.saturating_add(refresh)),
            not_after: not_before.saturating_add(lifetime),
        })
    }

    pub(super) fn of_certificate(self) -> Validity {
        Validity { not_before: self.not_before, not_after: self.not_after }
    }
}
