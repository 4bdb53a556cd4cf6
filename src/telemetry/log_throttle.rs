//! Limits the log lines that one party can cause: a client, by its network, or a tenant's cluster. Each has its own budget, so
//! that none can suppress the lines about another. Lines about requests above the limit appear at `-v=3`, with the other
//! requests.
// threat: log-flood

use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use portcullis_http::peer::client_network;
use portcullis_limits::OwnerKey;
use portcullis_limits::rate::{Rate, RateLimits};
use portcullis_system::sync::lock;
use tokio::time::Instant;

/// The lines about a client.
const CLIENT_LINES: Rate = Rate { interval: Duration::from_secs(1), burst: 20 };
/// The number of sources with their own budget; further ones share one.
const MAX_SOURCES: usize = 1024;

/// Rate-limits the log lines of each source.
#[derive(Debug)]
pub(crate) struct LogThrottle<K>(Mutex<RateLimits<K>>);

/// Rate-limits the log lines of each client.
pub(crate) type ClientLogThrottle = LogThrottle<IpAddr>;

/// Permission to write one line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LogPermit {
    /// The number of lines of this source that were suppressed since the last one.
    pub(crate) suppressed: Option<u64>,
}

impl Default for ClientLogThrottle {
    fn default() -> Self {
        Self::new(CLIENT_LINES)
    }
}

impl ClientLogThrottle {
    /// Permits a line about a client unless the budget of its network is exhausted.
    pub(crate) fn permit_client(&self, peer: IpAddr) -> Option<LogPermit> {
        self.permit(&client_network(peer))
    }
}

impl<K: OwnerKey> LogThrottle<K> {
    pub(crate) fn new(lines: Rate) -> Self {
        Self(Mutex::new(RateLimits::new(lines, MAX_SOURCES)))
    }

    /// Permits a line about `source` unless its budget is exhausted.
    pub(crate) fn permit(&self, source: &K) -> Option<LogPermit> {
        let suppressed = lock(&self.0).take(source, Instant::now())?;
        Some(LogPermit { suppressed: (suppressed > 0).then_some(suppressed) })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LINE_INTERVAL: Duration = CLIENT_LINES.interval;
    const MAX_LINES: u32 = CLIENT_LINES.burst;

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
        assert!(throttle.0.lock().unwrap().owners() < 10, "recovered budgets are removed");
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
