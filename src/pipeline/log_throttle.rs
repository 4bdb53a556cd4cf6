//! How many log lines at the default verbosity one client can cause. What it causes beyond that is logged with the other
//! requests, at `-v=3`. Each address has its own share, so that one client cannot hide what another does.
// threat: log-flood

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::listener::source;

/// Lines at once, and the time after which there is one more.
const MAX_LINES: u32 = 20;
const LINE_INTERVAL: Duration = Duration::from_secs(1);
/// Addresses that are told apart; those that come when there are so many share one allowance.
const MAX_SOURCES: usize = 1024;

/// The log lines that clients may still cause.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle(Mutex<Sources>);

#[derive(Debug, Default)]
struct Sources {
    known: HashMap<IpAddr, Allowance>,
    others: Option<Allowance>,
}

#[derive(Debug)]
struct Allowance {
    /// Until when all lines so far are paid for.
    used_until: Instant,
    suppressed: u64,
}

/// A line may be written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Permit {
    /// How many lines of this client were suppressed since the last one.
    pub(super) suppressed: Option<u64>,
}

impl LogThrottle {
    /// Leave for one line about `peer`, if it has not caused too many.
    pub(super) fn permit(&self, peer: IpAddr) -> Option<Permit> {
        let now = Instant::now();
        let mut sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sources.of(source(peer), now).take(now)
    }
}

impl Sources {
    fn of(&mut self, source: IpAddr, now: Instant) -> &mut Allowance {
        if self.known.len() >= MAX_SOURCES && !self.known.contains_key(&source) {
            // One that has its whole allowance again need not be known; what it was not told is told with another's line.
            let mut untold = 0;
            self.known.retain(|_, allowance| {
                let is_kept = allowance.used_until > now;
                untold += if is_kept { 0 } else { allowance.suppressed };
                is_kept
            });
            let others = self.others.get_or_insert_with(|| Allowance::new(now));
            others.suppressed += untold;
            if self.known.len() >= MAX_SOURCES {
                return others;
            }
        }
        self.known.entry(source).or_insert_with(|| Allowance::new(now))
    }
}

impl Allowance {
    fn new(now: Instant) -> Self {
        Self { used_until: now, suppressed: 0 }
    }

    fn take(&mut self, now: Instant) -> Option<Permit> {
        let used_until = self.used_until.max(now) + LINE_INTERVAL;
        if used_until > now + LINE_INTERVAL * MAX_LINES {
            self.suppressed += 1;
            return None;
        }
        self.used_until = used_until;
        let suppressed = std::mem::take(&mut self.suppressed);
        Some(Permit { suppressed: (suppressed > 0).then_some(suppressed) })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(index: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + index).into()
    }

    #[tokio::test(start_paused = true)]
    async fn one_client_has_its_lines_and_says_how_many_were_left_out() {
        let throttle = LogThrottle::default();
        let permits = (0..100).filter(|_| throttle.permit(address(1)).is_some()).count();
        assert_eq!(permits, 20);
        assert_eq!(throttle.permit(address(2)), Some(Permit { suppressed: None }), "another is not affected");
        tokio::time::advance(LINE_INTERVAL).await;
        assert_eq!(throttle.permit(address(1)), Some(Permit { suppressed: Some(80) }));
        assert_eq!(throttle.permit(address(1)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn many_addresses_share_what_is_left() {
        let throttle = LogThrottle::default();
        for index in 0..1024 {
            assert!(throttle.permit(address(index)).is_some());
        }
        let permits = (0..1000).filter(|index| throttle.permit(address(5000 + index)).is_some()).count();
        assert_eq!(permits, 20);
        tokio::time::advance(LINE_INTERVAL * MAX_LINES).await;
        assert!(throttle.permit(address(9000)).is_some());
        assert!(throttle.0.lock().unwrap().known.len() < 10, "the others are forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_that_do_not_come_back_leave_room_for_others() {
        let throttle = LogThrottle::default();
        for index in 0..1024 {
            for _ in 0..=MAX_LINES {
                throttle.permit(address(index));
            }
        }
        tokio::time::advance(LINE_INTERVAL * MAX_LINES).await;
        let permits = (0..100).filter(|index| throttle.permit(address(5000 + index)).is_some()).count();
        assert_eq!(permits, 100);
    }
}
