//! The validity of a certificate.

use std::time::Duration;

use portcullis_go::time::format_utc;
use portcullis_system::clock::UnixTime;

/// The time by which notBefore precedes the issuance, for clients with slow clocks.
// kubernetes: pkg/controller/certificates/signer/signer.go, sign
pub const BACKDATE: Duration = Duration::from_mins(5);
/// Below this lifetime, notAfter is not reduced by the backdate.
// kubernetes: pkg/controller/certificates/signer/signer.go, sign
pub const SHORT_LIFETIME: Duration = Duration::from_hours(8);
/// The minimum of a requested lifetime.
// kubernetes: pkg/controller/certificates/signer/signer.go, duration
pub(crate) const MIN_LIFETIME: Duration = Duration::from_mins(10);

/// The validity of a certificate, in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub not_before: UnixTime,
    /// The last second.
    pub not_after: UnixTime,
}

/// The CA certificate is not valid now. The texts are kube-controller-manager's where it has one.
// kubernetes: pkg/controller/certificates/authority/policies.go, apply
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityNotValid {
    /// The CA certificate is not valid yet. kube-controller-manager signs nevertheless.
    #[error("the signer is not valid yet: NotBefore={0}")]
    NotYetValid(String),
    /// The CA certificate had expired before the backdated notBefore.
    #[error("the signer has expired: NotAfter={0}")]
    Expired(String),
    /// The CA certificate expired between the backdated notBefore and now.
    #[error("refusing to sign a certificate that expired in the past: NotAfter={0}")]
    ExpiredWithinBackdate(String),
}

/// The lifetime of a certificate: the requested one, within the minimum and the maximum, or the default.
// kubernetes: pkg/controller/certificates/signer/signer.go, duration
pub(super) fn lifetime(requested: Option<Duration>, max: Duration, default: Duration) -> Duration {
    match requested {
        None => default,
        Some(requested) if requested > max => max,
        Some(requested) => requested.max(MIN_LIFETIME),
    }
}

impl Validity {
    /// The validity of a certificate issued now, within that of its CA.
    // kubernetes: pkg/controller/certificates/authority/policies.go, apply
    pub(super) fn of(now: UnixTime, lifetime: Duration, authority: Self) -> Result<Self, AuthorityNotValid> {
        Self::backdated(now, lifetime, authority, BACKDATE, SHORT_LIFETIME)
    }

    pub(super) fn backdated(
        now: UnixTime,
        lifetime: Duration,
        authority: Self,
        backdate: Duration,
        short: Duration,
    ) -> Result<Self, AuthorityNotValid> {
        let not_before = now.saturating_sub(backdate);
        let authority_end = authority.not_after;
        let end = now.saturating_add(lifetime);
        let not_after = if lifetime < short { end } else { end.saturating_sub(backdate) }.min(authority_end);
        if not_before >= authority_end {
            return Err(AuthorityNotValid::Expired(go_format(authority_end)));
        }
        if now >= authority_end {
            return Err(AuthorityNotValid::ExpiredWithinBackdate(go_format(authority_end)));
        }
        if now < authority.not_before {
            return Err(AuthorityNotValid::NotYetValid(go_format(authority.not_before)));
        }
        // The backdate must not make a certificate valid before its CA.
        let not_before = not_before.max(authority.not_before);
        let whole = |time: UnixTime| UnixTime::from_secs(time.as_secs());
        Ok(Self { not_before: whole(not_before), not_after: whole(not_after) })
    }
}

/// Formats a time like Go's `time.Time`.
fn go_format(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    format_utc(seconds).replace('T', " ").replace('Z', " +0000 UTC")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{AuthorityNotValid, Validity, lifetime};

    const NOW: Duration = Duration::new(1_767_225_600, 0);
    const MINUTE: u64 = 60;
    const HOUR: u64 = 3600;

    // kubernetes: pkg/controller/certificates/signer/signer_test.go, Test_signer_duration
    #[test]
    fn a_lifetime_is_the_requested_one_within_bounds() {
        const CASES: &[(&str, u64, Option<u64>, u64)] = &[
            ("can request shorter duration than TTL", HOUR, Some(30 * MINUTE), 30 * MINUTE),
            ("cannot request longer duration than TTL", HOUR, Some(3 * HOUR), HOUR),
            ("cannot request negative duration", HOUR, Some(0), 10 * MINUTE),
            ("cannot request duration less than 10 mins", HOUR, Some(9 * MINUTE + 59), 10 * MINUTE),
            ("can request duration of exactly 10 mins", HOUR, Some(10 * MINUTE), 10 * MINUTE),
            ("can request duration equal to the default", 13 * HOUR, Some(13 * HOUR), 13 * HOUR),
            ("can choose not to request a duration to get the default", 30 * HOUR, None, 30 * HOUR),
            ("a TTL below the minimum is kept", 5 * MINUTE, None, 5 * MINUTE),
            ("and is the longest", 5 * MINUTE, Some(7 * MINUTE), 5 * MINUTE),
            ("below both, the minimum wins", 5 * MINUTE, Some(MINUTE), 10 * MINUTE),
        ];
        for (name, ttl, requested, want) in CASES {
            let ttl = Duration::from_secs(*ttl);
            let got = lifetime(requested.map(Duration::from_secs), ttl, ttl);
            assert_eq!(got, Duration::from_secs(*want), "{name}");
        }
        let days = |days: u64| Duration::from_hours(24 * days);
        assert_eq!(lifetime(None, days(30), days(1)), days(1));
        assert_eq!(lifetime(Some(days(7)), days(30), days(1)), days(7));
    }

    /// Seconds from now: the lifetime, notAfter of the CA, backdate, short, and the expected validity.
    type Case = (&'static str, u64, i64, u64, u64, Result<(i64, i64), &'static str>);

    // kubernetes: pkg/controller/certificates/authority/authority_test.go, TestCertificateAuthority
    #[test]
    fn validities_are_backdated_and_truncated() {
        const CASES: &[Case] = &[
            ("ca info", 3600, 86_400, 0, 0, Ok((0, 3600))),
            ("backdate without short", 3600, 86_400, 300, 0, Ok((-300, 3300))),
            ("backdate without short and super small ttl", 60, 86_400, 300, 0, Ok((-300, -240))),
            ("backdate with short", 3600, 86_400, 300, 28_800, Ok((-300, 3600))),
            ("backdate with short and super small ttl", 60, 86_400, 300, 28_800, Ok((-300, 60))),
            ("backdate with short but longer ttl", 86_400, 86_400, 300, 28_800, Ok((-300, 86_100))),
            ("eight hours are not short", 28_800, 86_400, 300, 28_800, Ok((-300, 28_500))),
            ("truncate expiration", 172_800, 86_400, 0, 0, Ok((0, 86_400))),
            ("truncate by a second", 3600, 3599, 300, 28_800, Ok((-300, 3599))),
            (
                "expired ca",
                3600,
                0,
                0,
                0,
                Err("the signer has expired: NotAfter=2026-01-01 00:00:00 +0000 UTC"),
            ),
            (
                "expired ca with backdate",
                3600,
                0,
                300,
                0,
                Err(
                    "refusing to sign a certificate that expired in the past: NotAfter=2026-01-01 00:00:00 +0000 UTC",
                ),
            ),
            (
                "expired before the backdate",
                3600,
                -300,
                300,
                28_800,
                Err("the signer has expired: NotAfter=2025-12-31 23:55:00 +0000 UTC"),
            ),
            (
                "expired within the backdate",
                3600,
                -299,
                300,
                28_800,
                Err(
                    "refusing to sign a certificate that expired in the past: NotAfter=2025-12-31 23:55:01 +0000 UTC",
                ),
            ),
        ];
        let at = |offset: i64| {
            let seconds = i64::try_from(NOW.as_secs()).unwrap() + offset;
            Duration::from_secs(u64::try_from(seconds).unwrap())
        };
        for (name, lifetime, end, backdate, short, want) in CASES {
            let seconds = Duration::from_secs;
            let authority = Validity { not_before: Duration::ZERO, not_after: at(*end) };
            let got =
                Validity::backdated(NOW, seconds(*lifetime), authority, seconds(*backdate), seconds(*short));
            let got = got.map(|got| (got.not_before, got.not_after)).map_err(|error| error.to_string());
            let want = want.map(|(from, to)| (at(from), at(to))).map_err(str::to_owned);
            assert_eq!(got, want, "{name}");
        }
    }

    #[test]
    fn fractions_of_a_second_count_towards_expiry() {
        let now = NOW + Duration::from_millis(700);
        let until = |not_after| Validity { not_before: Duration::ZERO, not_after };
        let valid = Validity::of(now, Duration::from_hours(1), until(NOW + Duration::from_hours(9))).unwrap();
        assert_eq!(valid.not_before, NOW.saturating_sub(Duration::from_mins(5)));
        assert_eq!(valid.not_after, NOW + Duration::from_hours(1));
        let expired = Validity::of(now, Duration::from_hours(1), until(NOW));
        assert!(matches!(expired, Err(AuthorityNotValid::ExpiredWithinBackdate(_))), "{expired:?}");
    }

    #[test]
    fn a_certificate_is_not_valid_before_its_authority() {
        let hour = Duration::from_hours(1);
        let from = |not_before| Validity { not_before, not_after: NOW + 9 * hour };
        let minute = Duration::from_secs(MINUTE);
        for (begins, expected) in [
            (NOW.saturating_sub(hour), Some(NOW.saturating_sub(5 * minute))),
            (NOW.saturating_sub(minute), Some(NOW.saturating_sub(minute))),
            (NOW, Some(NOW)),
            (NOW + Duration::from_secs(1), None),
        ] {
            let begun = Validity::of(NOW, hour, from(begins)).map(|valid| valid.not_before);
            assert_eq!(begun.as_ref().ok(), expected.as_ref(), "{begins:?}");
        }
        let early = Validity::of(NOW, hour, from(NOW + hour)).unwrap_err().to_string();
        assert_eq!(early, "the signer is not valid yet: NotBefore=2026-01-01 01:00:00 +0000 UTC");
    }
}
