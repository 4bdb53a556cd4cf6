//! Reads a lease and decides on the next step. Pure decisions: the caller passes the time.
// client-go: tools/leaderelection/leaderelection.go, tryAcquireOrRenew and release

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use portcullis_system::clock::UnixTime;

/// A replica that competes for a lease.
#[derive(Debug)]
pub(super) struct Candidate {
    identity: String,
    duration: i32,
    /// The last observed record, and when it changed.
    observed: Option<(LeaseSpec, Instant)>,
}

/// The next step.
#[derive(Debug, PartialEq)]
pub(super) enum LeaseAction {
    /// Another replica holds the lease.
    Wait,
    /// The lease does not exist.
    Create(LeaseSpec),
    /// The lease is ours or free: replace it, with the version that it carries.
    Replace(Box<Lease>),
}

impl Candidate {
    pub(super) fn new(identity: &str, duration: Duration) -> Self {
        // A record has whole seconds. Rounded up: other replicas must not take a lease that is still held.
        let seconds = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
        let duration = i32::try_from(seconds).unwrap_or(i32::MAX);
        Self { identity: identity.to_owned(), duration, observed: None }
    }

    /// Whether this replica is the holder in the record.
    pub(super) fn holds(&self, lease: &Lease) -> bool {
        holder(lease) == Some(&*self.identity)
    }

    /// Records a read of the lease; an unchanged record keeps the time of its last change.
    pub(super) fn observe(&mut self, lease: &Lease, now: Instant) {
        let spec = lease.spec.clone().unwrap_or_default();
        if self.observed.as_ref().is_none_or(|(observed, _)| *observed != spec) {
            self.observed = Some((spec, now));
        }
    }

    /// The next step for an observed lease.
    pub(super) fn step(&self, lease: Option<Lease>, now: Instant, wall: UnixTime) -> LeaseAction {
        let time = micro_time(wall);
        let mut next = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(self.duration),
            acquire_time: Some(time.clone()),
            renew_time: Some(time),
            lease_transitions: Some(0),
            ..LeaseSpec::default()
        };
        let Some(mut lease) = lease else { return LeaseAction::Create(next) };
        let before = lease.spec.take().unwrap_or_default();
        let is_held = before.holder_identity.as_ref().is_some_and(|holder| !holder.is_empty());
        let transitions = before.lease_transitions.unwrap_or_default();
        if before.holder_identity.as_ref() == Some(&self.identity) {
            next.acquire_time = before.acquire_time;
            next.lease_transitions = Some(transitions);
        } else if is_held && self.is_valid(now) {
            return LeaseAction::Wait;
        } else {
            next.lease_transitions = Some(transitions.saturating_add(1));
        }
        LeaseAction::Replace(Box::new(Lease { spec: Some(next), ..lease }))
    }

    /// The lease to write for its release; `None` if another replica holds it.
    pub(super) fn released(&self, mut lease: Lease, wall: UnixTime) -> Option<Lease> {
        if !self.holds(&lease) {
            return None;
        }
        let before = lease.spec.take().unwrap_or_default();
        let time = micro_time(wall);
        lease.spec = Some(LeaseSpec {
            // An empty holder marks a free lease.
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            acquire_time: Some(time.clone()),
            renew_time: Some(time),
            lease_transitions: before.lease_transitions,
            ..LeaseSpec::default()
        });
        Some(lease)
    }

    /// Whether the record changed within the lease duration.
    fn is_valid(&self, now: Instant) -> bool {
        self.observed.as_ref().is_some_and(|(spec, since)| {
            let seconds = u64::try_from(spec.lease_duration_seconds.unwrap_or_default()).unwrap_or_default();
            since.checked_add(Duration::from_secs(seconds)).is_none_or(|end| end > now)
        })
    }
}

/// A new lease.
pub(super) fn lease(name: &str, spec: LeaseSpec) -> Lease {
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    Lease { metadata, spec: Some(spec) }
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}

fn micro_time(time: UnixTime) -> MicroTime {
    let nanoseconds = i128::try_from(time.as_nanos()).unwrap_or(i128::MAX);
    MicroTime(Timestamp::from_nanosecond(nanoseconds).unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(15);
    const WALL: UnixTime = Duration::from_secs(1_700_000_000);

    fn held_by(holder: &str, renewed: u64) -> Lease {
        let spec = LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            acquire_time: Some(micro_time(WALL)),
            renew_time: Some(micro_time(WALL + Duration::from_secs(renewed))),
            lease_transitions: Some(7),
            ..LeaseSpec::default()
        };
        let mut lease = lease("controllers", spec);
        lease.metadata.resource_version = Some("42".to_owned());
        lease
    }

    /// The holder after a step, and the number of transitions.
    fn outcome(step: LeaseAction) -> Option<(String, i32)> {
        let spec = match step {
            LeaseAction::Wait => return None,
            LeaseAction::Create(spec) => spec,
            LeaseAction::Replace(lease) => {
                assert_eq!(lease.metadata.resource_version.as_deref(), Some("42"), "the version of the read");
                lease.spec.unwrap()
            }
        };
        Some((spec.holder_identity.unwrap(), spec.lease_transitions.unwrap()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_taken_when_it_is_free_or_ours_or_expired() {
        let now = Instant::now();
        let ours = |transitions| Some(("a".to_owned(), transitions));
        let cases = [
            ("no lease", None, Duration::ZERO, ours(0)),
            ("free", Some(held_by("", 0)), Duration::ZERO, ours(8)),
            ("ours", Some(held_by("a", 0)), Duration::ZERO, ours(7)),
            ("another replica's", Some(held_by("b", 0)), Duration::ZERO, None),
            (
                "another replica's, shortly before its expiry",
                Some(held_by("b", 0)),
                Duration::from_millis(14_999),
                None,
            ),
            ("another replica's, expired", Some(held_by("b", 0)), LONG, ours(8)),
        ];
        for (name, lease, later, expected) in cases {
            let mut candidate = Candidate::new("a", LONG);
            if let Some(lease) = &lease {
                candidate.observe(lease, now);
                candidate.observe(lease, now + later);
            }
            assert_eq!(outcome(candidate.step(lease, now + later, WALL)), expected, "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewed_lease_is_valid_whatever_its_holders_clock_reads() {
        let (mut candidate, now) = (Candidate::new("a", LONG), Instant::now());
        candidate.observe(&held_by("b", 0), now);
        // The holder's clock is wrong: only the change of the record counts.
        let renewed = held_by("b", 1_000_000);
        candidate.observe(&renewed, now + LONG);
        assert_eq!(
            outcome(candidate.step(Some(renewed), now + LONG * 2 - Duration::from_secs(1), WALL)),
            None
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_released_lease_is_free_at_once_and_only_the_holder_releases_it() {
        let (candidate, now) = (Candidate::new("a", LONG), Instant::now());
        assert_eq!(candidate.released(held_by("b", 0), WALL), None);
        let released = candidate.released(held_by("a", 0), WALL).unwrap();
        assert_eq!(released.metadata.resource_version.as_deref(), Some("42"));
        let mut next = Candidate::new("b", LONG);
        next.observe(&released, now);
        assert_eq!(outcome(next.step(Some(released), now, WALL)), Some(("b".to_owned(), 8)));
    }

    #[test]
    fn the_duration_in_the_record_is_rounded_up() {
        for (milliseconds, seconds) in [(1000, 1), (1001, 2), (1900, 2), (15_000, 15)] {
            let candidate = Candidate::new("a", Duration::from_millis(milliseconds));
            let LeaseAction::Create(spec) = candidate.step(None, Instant::now(), WALL) else {
                panic!("no lease exists")
            };
            assert_eq!(spec.lease_duration_seconds, Some(seconds), "{milliseconds}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_keeps_the_acquire_time() {
        let candidate = Candidate::new("a", LONG);
        let LeaseAction::Replace(lease) = candidate.step(Some(held_by("a", 0)), Instant::now(), WALL + LONG)
        else {
            panic!("the lease is ours")
        };
        let spec = lease.spec.unwrap();
        assert_eq!(
            (spec.acquire_time, spec.renew_time),
            (Some(micro_time(WALL)), Some(micro_time(WALL + LONG)))
        );
    }
}
