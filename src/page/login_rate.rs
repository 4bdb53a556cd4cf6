//! How many logins may be in progress at the provider, of all clients and of one network.
// threat: page-flood

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use portcullis_http::peer::client_network;
use portcullis_system::expiring_lru::ExpiringLru;
use portcullis_system::sync::lock;

/// Conversations with the provider at the same time, of all networks and of one: a provider may answer slowly to a code
/// that was made up.
const MAX_AT_ONCE: usize = 64;
const MAX_AT_ONCE_OF_NETWORK: usize = 8;
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
    networks: Mutex<ExpiringLru<IpAddr, NetworkLogins>>,
}

/// The logins of a network within the period.
#[derive(Debug, Clone)]
struct NetworkLogins {
    began: Instant,
    count: u32,
    turns: Arc<Semaphore>,
}

/// A login in progress.
#[derive(Debug)]
pub(super) struct LoginTurn<'a> {
    _of_network: OwnedSemaphorePermit,
    _of_all: SemaphorePermit<'a>,
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
    pub(super) async fn turn(&self, client: IpAddr) -> Result<LoginTurn<'_>, TooManyLogins> {
        let (deadline, turns) = (Instant::now() + TURN_TIMEOUT, self.count(client_network(client))?);
        // First that of the network: a login that waits for its own network takes nothing from the others.
        let Ok(Ok(of_network)) = timeout_at(deadline, turns.acquire_owned()).await else {
            return Err(TooManyLogins::OfNetwork);
        };
        let Ok(Ok(of_all)) = timeout_at(deadline, self.turns.acquire()).await else {
            return Err(TooManyLogins::OfAll);
        };
        Ok(LoginTurn { _of_network: of_network, _of_all: of_all })
    }

    fn count(&self, network: IpAddr) -> Result<Arc<Semaphore>, TooManyLogins> {
        let now = Instant::now();
        let mut networks = lock(&self.networks);
        let mut logins = networks.get(&network, now).cloned().unwrap_or_else(|| NetworkLogins {
            began: now,
            count: 0,
            turns: Arc::new(Semaphore::new(MAX_AT_ONCE_OF_NETWORK)),
        });
        if logins.count >= MAX_PER_NETWORK {
            return Err(TooManyLogins::OfNetwork);
        }
        logins.count += 1;
        let (turns, until) = (Arc::clone(&logins.turns), logins.began + PERIOD);
        networks.put(network, logins, 1, until, now);
        Ok(turns)
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
    async fn a_network_has_its_share_of_the_logins_at_once() {
        let rate = LoginRate::default();
        let mut turns = Vec::new();
        for _ in 0..MAX_AT_ONCE_OF_NETWORK {
            turns.push(rate.turn(client("192.0.2.1")).await.unwrap());
        }
        assert_eq!(rate.turn(client("192.0.2.1")).await.unwrap_err(), TooManyLogins::OfNetwork);
        drop(rate.turn(client("192.0.2.2")).await.unwrap());
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
