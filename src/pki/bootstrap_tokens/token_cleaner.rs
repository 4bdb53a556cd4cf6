//! Which token goes, and when.

use std::time::Duration;

use super::secret::TokenData;
use crate::clock::UnixTime;
use crate::go::rfc3339::Rfc3339Time;

/// What is to be done about a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Fate {
    /// It has ended, or nobody can tell when it will: it is deleted.
    Delete,
    /// It is looked at again in this time.
    KeepFor(Duration),
    /// It never ends: it is looked at again when it changes.
    Keep,
}

/// What is to be done about a token, whatever else is wrong with its Secret.
// kube-controller-manager: pkg/controller/bootstrap/tokencleaner.go, evalSecret
pub fn fate(token: &TokenData<'_>, now: UnixTime) -> Fate {
    match token.expiration().map(|end| end.map(|end: Rfc3339Time| end.remaining(now))) {
        Ok(None) => Fate::Keep,
        Ok(Some(Some(remaining))) => Fate::KeepFor(remaining),
        Ok(Some(None)) | Err(_) => Fate::Delete,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_go_when_they_end() {
        // 2023-11-14T22:13:20Z
        let now = Duration::from_secs(1_700_000_000);
        for (expiration, expected) in [
            (None, Fate::Keep),
            (Some(""), Fate::Keep),
            (Some("2023-11-14T21:13:20Z"), Fate::Delete),
            (Some("2023-11-14T22:13:20Z"), Fate::Delete),
            (Some("2023-11-14T22:13:20.000000001Z"), Fate::KeepFor(Duration::from_nanos(1))),
            (Some("2023-11-14T23:13:20Z"), Fate::KeepFor(Duration::from_hours(1))),
            (Some("2023-11-15T00:13:20+01:00"), Fate::KeepFor(Duration::from_hours(1))),
            (Some("1969-11-14T22:13:20Z"), Fate::Delete),
            (Some("2033-11-14"), Fate::Delete),
            (Some("2033-11-14 22:13:20Z"), Fate::Delete),
            (Some("2033-11-14T22:13:20"), Fate::Delete),
            (Some("2033-11-14T22:13:20z"), Fate::Delete),
            (Some("2033-11-14T22:13:20Z\n"), Fate::Delete),
            (Some("garbage"), Fate::Delete),
        ] {
            // Neither id nor secret: the type alone makes it a token.
            let data = expiration.map(|text| ("expiration", text.as_bytes())).into_iter().collect();
            assert_eq!(fate(&data, now), expected, "{expiration:?}");
        }
        let binary = [("expiration", &b"\xff"[..])].into_iter().collect();
        assert_eq!(fate(&binary, now), Fate::Delete);
    }
}
