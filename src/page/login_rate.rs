//! How many logins may be in progress at the provider, of all clients and of one network.
// threat: page-flood

use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use crate::expiring_lru::ExpiringLru;
use crate::http::peer::client_network;
use crate::sync::lock;

/// Conversations with the provider at the same time.
const MAX_AT_ONCE: usize = 16;
/// How long a login waits for its turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);
/// Logins of a network within the period. A company may be behind one address.
const MAX_PER_NETWORK: u32 = 60;
const PERIOD: Duration = Duration::from_mins(1);
/// Networks that are counted. Beyond, the one that was seen longest ago is forgotten.
const MAX_NETWORKS: usize = 4096;

/// Bounds logins.
#[derive(Debug)]
pub(super) struct LoginRate {
    turns: Semaphore,
    networks: Mutex<ExpiringLru<IpAddr, (Instant, u32)>>,
}

/// Why a login is refused for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TooManyLogins {
    /// Of this network.
    OfNetwork,
    /// Of all.
    OfAll,
}

impl Default for LoginRate {
    fn default() -> Self {
        Self { turns: Semaphore::new(MAX_AT_ONCE), networks: Mutex::new(ExpiringLru::new(MAX_NETWORKS)) }
    }
}

impl LoginRate {
    /// Waits for a turn of a client.
    pub(super) async fn turn(&self, client: IpAddr) -> Result<SemaphorePermit<'_>, TooManyLogins> {
        self.count(client_network(client))?;
        match timeout(TURN_TIMEOUT, self.turns.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(TooManyLogins::OfAll),
        }
    }

    fn count(&self, network: IpAddr) -> Result<(), TooManyLogins> {
        let now = Instant::now();
        let mut networks = lock(&self.networks);
        let (began, count) = networks.get(&network, now).copied().unwrap_or((now, 0));
        if count >= MAX_PER_NETWORK {
            return Err(TooManyLogins::OfNetwork);
        }
        networks.put(network, (began, count + 1), 1, began + PERIOD, now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_has_its_share_and_another_one_logs_in() {
        let rate = LoginRate::default();
        for _ in 0..MAX_PER_NETWORK {
            drop(rate.turn(client("2001:db8::1")).await.unwrap());
        }
        assert_eq!(rate.turn(client("2001:db8::2")).await.unwrap_err(), TooManyLogins::OfNetwork);
        drop(rate.turn(client("192.0.2.1")).await.unwrap());
        tokio::time::advance(PERIOD).await;
        drop(rate.turn(client("2001:db8::2")).await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn logins_at_once_are_bounded_and_the_next_waits_no_longer_than_its_turn() {
        let rate = LoginRate::default();
        let mut turns = Vec::new();
        for index in 0..MAX_AT_ONCE {
            turns.push(rate.turn(IpAddr::from([10, 0, 0, u8::try_from(index).unwrap()])).await.unwrap());
        }
        let begun = Instant::now();
        assert_eq!(rate.turn(client("192.0.2.1")).await.unwrap_err(), TooManyLogins::OfAll);
        assert_eq!(begun.elapsed(), TURN_TIMEOUT);
        turns.pop();
        drop(rate.turn(client("192.0.2.1")).await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn networks_that_are_counted_are_bounded() {
        let rate = LoginRate::default();
        for index in 0..=u16::try_from(MAX_NETWORKS).unwrap() {
            let [a, b] = index.to_be_bytes();
            drop(rate.turn(IpAddr::from([10, 0, a, b])).await.unwrap());
        }
        assert_eq!(lock(&rate.networks).len(), MAX_NETWORKS);
    }
}
