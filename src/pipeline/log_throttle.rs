//! Limits the warnings and errors that one client can cause; lines above the limit appear at `-v=3`, with the other
//! requests. Each client network has its own budget, so that one client cannot suppress the lines about another.
// threat: log-flood

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use portcullis_http::peer::client_network;
use portcullis_system::sync::lock;

/// The burst of lines, and the interval after which one more is permitted.
const MAX_LINES: u32 = 20;
const LINE_INTERVAL: Duration = Duration::from_secs(1);
/// The number of networks with their own budget; further ones share one.
const MAX_SOURCES: usize = 1024;

/// Rate-limits the log lines of each client.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle(Mutex<SourceBudgets>);

#[derive(Debug, Default)]
struct SourceBudgets {
    own: HashMap<IpAddr, LineBudget>,
    /// Shared by the networks that are not in `own`.
    shared: Option<LineBudget>,
}

/// A leaky bucket of log lines.
#[derive(Debug)]
struct LineBudget {
    /// When the bucket will be empty.
    used_until: Instant,
    suppressed: u64,
}

/// Permission to write one line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LogPermit {
    /// The number of lines of this client that were suppressed since the last one.
    pub(crate) suppressed: Option<u64>,
}

impl LogThrottle {
    /// Permits a line about `peer` unless its budget is exhausted.
    pub(crate) fn permit(&self, peer: IpAddr) -> Option<LogPermit> {
        let now = Instant::now();
        let mut sources = lock(&self.0);
        sources.of(client_network(peer), now).take(now)
    }
}

impl SourceBudgets {
    fn of(&mut self, source: IpAddr, now: Instant) -> &mut LineBudget {
        if self.own.len() >= MAX_SOURCES && !self.own.contains_key(&source) {
            // Recovered budgets are removed. The next line of the shared budget reports their suppressed lines.
            let mut unreported = 0;
            self.own.retain(|_, budget| {
                let is_kept = budget.used_until > now;
                unreported += if is_kept { 0 } else { budget.suppressed };
                is_kept
            });
            let shared = self.shared.get_or_insert_with(|| LineBudget::new(now));
            shared.suppressed += unreported;
            if self.own.len() >= MAX_SOURCES {
                return shared;
            }
        }
        self.own.entry(source).or_insert_with(|| LineBudget::new(now))
    }
}

impl LineBudget {
    fn new(now: Instant) -> Self {
        Self { used_until: now, suppressed: 0 }
    }

    fn take(&mut self, now: Instant) -> Option<LogPermit> {
        let used_until = self.used_until.max(now) + LINE_INTERVAL;
        if used_until > now + LINE_INTERVAL * MAX_LINES {
            self.suppressed += 1;
            return None;
        }
        self.used_until = used_until;
        let suppressed = std::mem::take(&mut self.suppressed);
        Some(LogPermit { suppressed: (suppressed > 0).then_some(suppressed) })
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
    async fn one_client_has_a_budget_and_its_suppressed_lines_are_counted() {
        let throttle = LogThrottle::default();
        let permits = (0..100).filter(|_| throttle.permit(address(1)).is_some()).count();
        assert_eq!(permits, 20);
        assert_eq!(
            throttle.permit(address(2)),
            Some(LogPermit { suppressed: None }),
            "another is not affected"
        );
        tokio::time::advance(LINE_INTERVAL).await;
        assert_eq!(throttle.permit(address(1)), Some(LogPermit { suppressed: Some(80) }));
        assert_eq!(throttle.permit(address(1)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_beyond_the_limit_share_one_budget() {
        let throttle = LogThrottle::default();
        for index in 0..1024 {
            assert!(throttle.permit(address(index)).is_some());
        }
        let permits = (0..1000).filter(|index| throttle.permit(address(5000 + index)).is_some()).count();
        assert_eq!(permits, 20);
        tokio::time::advance(LINE_INTERVAL * MAX_LINES).await;
        assert!(throttle.permit(address(9000)).is_some());
        assert!(throttle.0.lock().unwrap().own.len() < 10, "recovered budgets are removed");
    }

    #[tokio::test(start_paused = true)]
    async fn idle_addresses_give_their_place_to_others() {
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
