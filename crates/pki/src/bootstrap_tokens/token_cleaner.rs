//! Decides which bootstrap tokens to delete, and when.

use std::time::Duration;

use portcullis_go::time::Time;
use portcullis_system::clock::UnixTime;

use super::secret::TokenData;

/// The action of the token cleaner for a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum CleanupAction {
    /// Delete the Secret: the token has expired, or its expiration does not parse.
    Delete,
    /// Check again after this time, when the token expires.
    KeepFor(Duration),
    /// Check again when the Secret changes: the token never expires.
    Keep,
}

/// The action for a token. Considers the expiration alone, even if the Secret is otherwise invalid.
// kube-controller-manager: pkg/controller/bootstrap/tokencleaner.go, evalSecret
pub fn cleanup_action(token: &TokenData<'_>, now: UnixTime) -> CleanupAction {
    match token.expiration().map(|end| end.map(|end: Time| end.remaining(now))) {
        Ok(None) => CleanupAction::Keep,
        Ok(Some(Some(remaining))) => CleanupAction::KeepFor(remaining),
        Ok(Some(None)) | Err(_) => CleanupAction::Delete,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_deleted_when_they_expire() {
        // 2023-11-14T22:13:20Z
        let now = Duration::from_secs(1_700_000_000);
        for (expiration, expected) in [
            (None, CleanupAction::Keep),
            (Some(""), CleanupAction::Keep),
            (Some("2023-11-14T21:13:20Z"), CleanupAction::Delete),
            (Some("2023-11-14T22:13:20Z"), CleanupAction::Delete),
            (Some("2023-11-14T22:13:20.000000001Z"), CleanupAction::KeepFor(Duration::from_nanos(1))),
            (Some("2023-11-14T23:13:20Z"), CleanupAction::KeepFor(Duration::from_hours(1))),
            (Some("2023-11-15T00:13:20+01:00"), CleanupAction::KeepFor(Duration::from_hours(1))),
            (Some("1969-11-14T22:13:20Z"), CleanupAction::Delete),
            (Some("2033-11-14"), CleanupAction::Delete),
            (Some("2033-11-14 22:13:20Z"), CleanupAction::Delete),
            (Some("2033-11-14T22:13:20"), CleanupAction::Delete),
            (Some("2033-11-14T22:13:20z"), CleanupAction::Delete),
            (Some("2033-11-14T22:13:20Z\n"), CleanupAction::Delete),
            (Some("garbage"), CleanupAction::Delete),
        ] {
            // Without ID and secret: the type of the Secret alone makes it a token.
            let data = expiration.map(|text| ("expiration", text.as_bytes())).into_iter().collect();
            assert_eq!(cleanup_action(&data, now), expected, "{expiration:?}");
        }
        let binary = [("expiration", &b"\xff"[..])].into_iter().collect();
        assert_eq!(cleanup_action(&binary, now), CleanupAction::Delete);
    }
}
