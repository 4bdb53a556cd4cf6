//! Reloads: the configuration file changes, in every second round with SIGHUP. The change shows in a header of responses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::time::{MissedTickBehavior, interval_at, sleep, timeout};

use super::ClientContext;
use crate::tenants::connection::SharedConnection;
use crate::tenants::figures::RELOAD_TIMEOUT;

const RELOAD_INTERVAL: Duration = Duration::from_secs(10);
/// The first reload, from the start of the clients.
const FIRST_RELOAD: Duration = Duration::from_secs(4);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

impl ClientContext {
    pub(super) async fn reload_regularly(mut self) {
        let connection = SharedConnection::new(self.site.address(), Some(&self.site.alice));
        let mut ticks = interval_at((Instant::now() + FIRST_RELOAD).into(), RELOAD_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut round = 0;
        while self.tick(&mut ticks).await {
            round += 1;
            let started = Instant::now();
            let expected = self.site.change_configuration(round);
            if round.is_multiple_of(2) {
                self.site.process.signal(Signal::HUP);
            }
            let effective = timeout(RELOAD_TIMEOUT, until_effective(&connection, &expected)).await;
            self.outcomes.reloaded(effective.is_ok().then(|| started.elapsed()));
        }
    }
}

async fn until_effective(connection: &Arc<SharedConnection>, expected: &str) {
    loop {
        if let Ok(response) = connection.get("/own/api", &[]).await
            && response.headers().get("strict-transport-security").is_some_and(|value| value == expected)
        {
            return;
        }
        sleep(POLL_INTERVAL).await;
    }
}
