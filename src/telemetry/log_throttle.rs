//! Limits the log lines that one party can cause: a client, by its network, or a tenant's cluster. Each has its own budget, so
//! that none can suppress the lines about another. Lines about requests above the limit appear at `-v=3`, with the other
//! requests.
// threat: log-flood

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use portcullis_http::peer::client_network;
use portcullis_system::sync::lock;

/// The burst of lines, and the interval after which one more is permitted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LineLimits {
    pub(crate) burst: u32,
    pub(crate) interval: Duration,
}

/// Those of a client.
const CLIENT_LIMITS: LineLimits = LineLimits { burst: 20, interval: Duration::from_secs(1) };
/// The number of sources with their own budget; further ones share one.
const MAX_SOURCES: usize = 1024;

/// Rate-limits the log lines of each source.
#[derive(Debug)]
pub(crate) struct LogThrottle<K> {
    limits: LineLimits,
    budgets: Mutex<SourceBudgets<K>>,
}

/// Rate-limits the log lines of each client.
pub(crate) type ClientLogThrottle = LogThrottle<IpAddr>;

#[derive(Debug)]
struct SourceBudgets<K> {
    own: HashMap<K, LineBudget>,
    /// Shared by the sources that are not in `own`.
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
    /// The number of lines of this source that were suppressed since the last one.
    pub(crate) suppressed: Option<u64>,
}

impl Default for ClientLogThrottle {
    fn default() -> Self {
        Self::new(CLIENT_LIMITS)
    }
}

impl ClientLogThrottle {
    /// Permits a line about a client unless the budget of its network is exhausted.
    pub(crate) fn permit_client(&self, peer: IpAddr) -> Option<LogPermit> {
        self.permit(client_network(peer))
    }
}

impl<K: Hash + Eq> LogThrottle<K> {
    pub(crate) fn new(limits: LineLimits) -> Self {
        let budgets = SourceBudgets { own: HashMap::new(), shared: None };
        Self { limits, budgets: Mutex::new(budgets) }
    }

    /// Permits a line about `source` unless its budget is exhausted.
    pub(crate) fn permit(&self, source: K) -> Option<LogPermit> {
        let now = Instant::now();
        lock(&self.budgets).of(source, now).take(self.limits, now)
    }
}

impl<K: Hash + Eq> SourceBudgets<K> {
    fn of(&mut self, source: K, now: Instant) -> &mut LineBudget {
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

    fn take(&mut self, limits: LineLimits, now: Instant) -> Option<LogPermit> {
        let used_until = self.used_until.max(now) + limits.interval;
        if used_until > now + limits.interval * limits.burst {
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

    const LINE_INTERVAL: Duration = CLIENT_LIMITS.interval;
    const MAX_LINES: u32 = CLIENT_LIMITS.burst;

    fn address(index: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + index).into()
    }

    #[tokio::test(start_paused = true)]
    async fn one_client_has_a_budget_and_its_suppressed_lines_are_counted() {
        let throttle = ClientLogThrottle::default();
        let permits = (0..100).filter(|_| throttle.permit_client(address(1)).is_some()).count();
        assert_eq!(permits, 20);
        assert_eq!(
            throttle.permit_client(address(2)),
            Some(LogPermit { suppressed: None }),
            "another is not affected"
        );
        tokio::time::advance(LINE_INTERVAL).await;
        assert_eq!(throttle.permit_client(address(1)), Some(LogPermit { suppressed: Some(80) }));
        assert_eq!(throttle.permit_client(address(1)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_beyond_the_limit_share_one_budget() {
        let throttle = ClientLogThrottle::default();
        for index in 0..1024 {
            assert!(throttle.permit_client(address(index)).is_some());
        }
        let permits =
            (0..1000).filter(|index| throttle.permit_client(address(5000 + index)).is_some()).count();
        assert_eq!(permits, 20);
        tokio::time::advance(LINE_INTERVAL * MAX_LINES).await;
        assert!(throttle.permit_client(address(9000)).is_some());
        assert!(throttle.budgets.lock().unwrap().own.len() < 10, "recovered budgets are removed");
    }

    #[tokio::test(start_paused = true)]
    async fn idle_addresses_give_their_place_to_others() {
        let throttle = ClientLogThrottle::default();
        for index in 0..1024 {
            for _ in 0..=MAX_LINES {
                throttle.permit_client(address(index));
            }
        }
        tokio::time::advance(LINE_INTERVAL * MAX_LINES).await;
        let permits =
            (0..100).filter(|index| throttle.permit_client(address(5000 + index)).is_some()).count();
        assert_eq!(permits, 100);
    }
}
