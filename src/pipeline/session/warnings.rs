//! Warnings of an end by a rule: a line on the user's terminal two minutes before it, or in the middle of what is shorter.
//!
//! A session whose protocol has no place for a line ends without one ([`Decoder::notice_frame`]).
//!
//! [`Decoder::notice_frame`]: portcullis_sessions::decoder::Decoder::notice_frame

use std::time::Duration;

use portcullis_go::duration::format_duration;
use portcullis_sessions::policy::SessionDecision;
use tokio::time::Instant;

/// How long before an end its warning comes.
const WARNING: Duration = Duration::from_mins(2);

/// A warning of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pipeline) enum EndWarning {
    /// Of the longest duration, which ends then.
    MaxDuration(Instant),
    /// Of a session that has been idle since the first of these times, and ends at the second.
    Idle(Instant, Instant),
}

/// The warnings that a session has had.
#[derive(Debug, Default)]
pub(super) struct EndWarnings {
    of_duration: bool,
    /// Since when the session was idle at its last warning.
    of_idle: Option<Instant>,
}

impl EndWarnings {
    /// The next warning, and when it is due. The session has passed content at `active` for the last time.
    pub(super) fn next(
        &self,
        decision: &SessionDecision,
        started: Instant,
        active: Instant,
    ) -> Option<(Instant, EndWarning)> {
        let SessionDecision { max_duration, idle_timeout, .. } = *decision;
        let end_of = |from: Instant, duration: Option<Duration>| {
            let (end, before) = (from.checked_add(duration?)?, (duration? / 2).min(WARNING));
            Some((end, end.checked_sub(before)?))
        };
        let of_duration = end_of(started, max_duration);
        let last = of_duration.map(|(end, _)| end);
        let of_idle =
            end_of(active, idle_timeout.filter(|_| idle_timeout.and_then(Self::of_idle_after).is_some()));
        let of_duration =
            of_duration.filter(|_| !self.of_duration).map(|(end, due)| (due, EndWarning::MaxDuration(end)));
        let of_idle = of_idle
            .filter(|(end, _)| self.of_idle != Some(active) && last.is_none_or(|last| *end < last))
            .map(|(end, due)| (due, EndWarning::Idle(active, end)));
        [of_duration, of_idle].into_iter().flatten().min_by_key(|(due, _)| *due)
    }

    /// How long after content the warning of an idle session comes; `None` if it has none.
    pub(super) fn of_idle_after(timeout: Duration) -> Option<Duration> {
        (timeout > WARNING).then(|| timeout.saturating_sub((timeout / 2).min(WARNING)))
    }

    /// The warning is given.
    pub(super) fn note(&mut self, warning: EndWarning) {
        match warning {
            EndWarning::MaxDuration(_) => self.of_duration = true,
            EndWarning::Idle(since, _) => self.of_idle = Some(since),
        }
    }
}

impl EndWarning {
    /// The line for the user; `None` if the session is not idle any more.
    pub(super) fn message(self, now: Instant, active: Instant) -> Option<String> {
        match self {
            Self::MaxDuration(end) => Some(format!(
                "warning: the session ends in {}: it will have taken as long as the session policy permits",
                remaining(end, now)
            )),
            Self::Idle(since, end) => (since == active)
                .then(|| format!("warning: the session ends in {} if it stays idle", remaining(end, now))),
        }
    }
}

/// The time until an end, in whole seconds from one second on: `2m`, `1m30s`, `250ms`.
fn remaining(end: Instant, now: Instant) -> String {
    let remaining = end.saturating_duration_since(now);
    let unit = if remaining < Duration::from_secs(1) { 1 } else { 1000 };
    let milliseconds = remaining.as_nanos().div_ceil(unit * 1_000_000) * unit;
    let text = format_duration(i64::try_from(milliseconds * 1_000_000).unwrap_or(i64::MAX));
    text.strip_suffix("m0s").map_or(text.clone(), |minutes| format!("{minutes}m"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: SessionDecision = SessionDecision {
        level: portcullis_sessions::policy::RecordingLevel::None,
        required: false,
        max_duration: None,
        idle_timeout: None,
        max_sessions_per_user: None,
    };

    #[tokio::test(start_paused = true)]
    async fn a_warning_comes_two_minutes_before_an_end_or_in_the_middle() {
        let seconds = Duration::from_secs;
        let started = Instant::now();
        for (max_duration, idle_timeout, expected) in [
            (None, None, None),
            (Some(3600), None, Some((3480, "2m", false))),
            (Some(240), None, Some((120, "2m", false))),
            (Some(200), None, Some((100, "1m40s", false))),
            (Some(1), None, Some((0, "500ms", false))),
            (None, Some(600), Some((480, "2m", true))),
            (None, Some(180), Some((90, "1m30s", true))),
            (None, Some(120), None),
            // The first one, and none of an end that another one precedes.
            (Some(3600), Some(600), Some((480, "2m", true))),
            (Some(600), Some(600), Some((480, "2m", false))),
            (Some(500), Some(600), Some((380, "2m", false))),
        ] {
            let [max_duration, idle_timeout] = [max_duration, idle_timeout].map(|time| time.map(seconds));
            let decision = SessionDecision { max_duration, idle_timeout, ..NONE };
            let next = EndWarnings::default().next(&decision, started, started);
            let next = next.map(|(due, warning)| {
                let (is_idle, end) = match warning {
                    EndWarning::MaxDuration(end) => (false, end),
                    EndWarning::Idle(_, end) => (true, end),
                };
                (due.duration_since(started).as_secs(), remaining(end, due), is_idle)
            });
            let expected = expected.map(|(due, remaining, is_idle)| (due, remaining.to_owned(), is_idle));
            assert_eq!(next, expected, "{decision:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_idle_time_has_a_warning_and_the_duration_one() {
        let (started, minutes) = (Instant::now(), Duration::from_mins);
        let decision =
            SessionDecision { max_duration: Some(minutes(60)), idle_timeout: Some(minutes(10)), ..NONE };
        let mut warnings = EndWarnings::default();
        let mut given = Vec::new();
        let mut active = started;
        // The user types right after each warning.
        while let Some((due, warning)) = warnings.next(&decision, started, active)
            && given.len() < 20
        {
            given.push((due.duration_since(started).as_secs() / 60, warning.message(due, active).unwrap()));
            warnings.note(warning);
            assert_eq!(warnings.next(&decision, started, active).filter(|next| next.1 == warning), None);
            active = due;
        }
        let idle = "warning: the session ends in 2m if it stays idle".to_owned();
        let last =
            "warning: the session ends in 2m: it will have taken as long as the session policy permits";
        let mut expected: Vec<_> = (1..=7).map(|number| (8 * number, idle.clone())).collect();
        expected.push((58, last.to_owned()));
        assert_eq!(given, expected);
        assert_eq!(EndWarning::Idle(started, active).message(active, active), None, "it is used again");
    }
}
