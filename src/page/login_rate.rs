//! How many logins may be in progress at the provider, of all clients and of one network. A login counts when it comes back
//! with the state that it began with and with a code: only then is the provider asked.
// threat: page-flood

use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use portcullis_http::peer::client_network;
use portcullis_limits::fair_limiter::{FairLimiter, Permit, Shares};
use portcullis_limits::rate::{Rate, RateLimits};
use portcullis_system::sync::lock;

/// Conversations with the provider at the same time, of all networks and of one: a provider may answer slowly to a code
/// that was made up.
const MAX_AT_ONCE: usize = 64;
const MAX_AT_ONCE_OF_NETWORK: usize = 8;
/// Logins that wait for their turn, of all networks and of one. A company may be behind one address.
const MAX_WAITING: usize = 512;
const MAX_WAITING_OF_NETWORK: usize = 64;
/// How long a login waits for its turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);
/// Logins of a network: sixty at once, and one more each second.
const RATE: Rate = Rate { interval: Duration::from_secs(1), burst: 60 };
/// Networks that are counted. Further ones share one count.
const MAX_NETWORKS: usize = 4096;

/// Bounds logins.
#[derive(Debug)]
pub(super) struct LoginRate {
    turns: FairLimiter<IpAddr>,
    networks: Mutex<RateLimits<IpAddr>>,
}

/// A login in progress.
pub(super) type LoginTurn = Permit<IpAddr>;

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
        let shares =
            Shares::new(MAX_AT_ONCE, MAX_AT_ONCE_OF_NETWORK).with_queue(MAX_WAITING, MAX_WAITING_OF_NETWORK);
        Self { turns: FairLimiter::new(shares), networks: Mutex::new(RateLimits::new(RATE, MAX_NETWORKS)) }
    }
}

impl LoginRate {
    /// Waits for a turn of a client.
    pub(super) async fn turn(&self, client: IpAddr) -> Result<LoginTurn, TooManyLogins> {
        let (network, now) = (client_network(client), Instant::now());
        if lock(&self.networks).take(&network, now).is_none() {
            return Err(TooManyLogins::OfNetwork);
        }
        let turn = self.turns.acquire(network, 1, now + TURN_TIMEOUT).await;
        turn.map_err(|_| match self.turns.in_service_of(&network) {
            MAX_AT_ONCE_OF_NETWORK.. => TooManyLogins::OfNetwork,
            _ => TooManyLogins::OfAll,
        })
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
        for _ in 0..RATE.burst {
            drop(rate.turn(client("2001:db8::1")).await.unwrap());
        }
        assert_eq!(rate.turn(client("2001:db8::2")).await.unwrap_err(), TooManyLogins::OfNetwork);
        drop(rate.turn(client("192.0.2.1")).await.unwrap());
        tokio::time::advance(RATE.interval).await;
        drop(rate.turn(client("2001:db8::2")).await.unwrap());
        assert_eq!(rate.turn(client("2001:db8::2")).await.unwrap_err(), TooManyLogins::OfNetwork);
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
        assert_eq!(lock(&rate.networks).owners(), MAX_NETWORKS);
    }
}
