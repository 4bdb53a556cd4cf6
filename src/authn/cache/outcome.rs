//! The result of a check, as the cache stores it.

use std::mem::size_of;

use portcullis_http::identity::TEXT_OVERHEAD;
use portcullis_system::clock::UnixTime;

use super::super::{AuthnError, AuthnVerdict};
use super::key::CacheKey;
use crate::authn::trace::TraceRecord;

/// Result of a check.
#[derive(Debug)]
pub(super) struct CheckOutcome {
    pub(super) verdict: AuthnVerdict,
    pub(super) record: TraceRecord,
}

impl CheckOutcome {
    /// An error without a trace record.
    pub(super) fn of(error: AuthnError) -> Self {
        Self { verdict: Err(error), record: TraceRecord::default() }
    }

    /// Whether the credential of a success has not expired.
    pub(super) fn holds_at(&self, now: UnixTime) -> bool {
        match &self.verdict {
            Ok(Some(found)) => found.expires.is_none_or(|expires| now < expires),
            Ok(None) | Err(_) => true,
        }
    }

    /// Approximate memory of a stored outcome: its texts and the overhead of each.
    pub(super) fn weight(&self) -> usize {
        let text = |text: &String| TEXT_OVERHEAD + text.len();
        let verdict = match &self.verdict {
            Ok(Some(found)) => {
                found.user.weight() + found.audiences.iter().map(|audience| text(&audience.0)).sum::<usize>()
            }
            Ok(None) => 0,
            Err(error) => text(&error.to_string()),
        };
        let record = self.record.warnings.iter().map(text).sum::<usize>()
            + self.record.annotations.iter().map(|(key, value)| text(key) + text(value)).sum::<usize>();
        size_of::<CacheKey>() + size_of::<Self>() + 304 + verdict + record
    }
}
