//! Clients that ask for more than they read.

use std::time::Duration;

use http::Response;
use hyper::body::Incoming;
use testkit::client::Client;
use tokio::time::timeout;

use super::Member;
use crate::backend::{FLOOD, LIST};

/// Unread watches: on each of so many connections of either version, and on one of HTTP/2.
const WATCHES: usize = 20;
/// How long a list is left half read.
const HALF_READ: Duration = Duration::from_secs(5);

/// A client and answers to it, which it never reads.
pub(crate) type Stalled = (Client, Vec<Response<Incoming>>);

impl Member {
    /// Opens watches without reading an event.
    pub(crate) async fn stall(&self) -> Vec<Stalled> {
        let mut stalled = vec![self.stall_on_one(true, WATCHES).await];
        for http2 in [false, true] {
            for _ in 0..WATCHES {
                stalled.push(self.stall_on_one(http2, 1).await);
            }
        }
        stalled
    }

    async fn stall_on_one(&self, http2: bool, watches: usize) -> Stalled {
        let mut client = self.connect(http2).await;
        let mut answers = Vec::new();
        for _ in 0..watches {
            answers.push(client.get(FLOOD, &[]).await);
        }
        (client, answers)
    }

    /// Reads the beginning of a large list, waits, and leaves.
    pub(crate) async fn stop_half_way(mut self, http2: bool) {
        while self.goes_on() {
            let mut client = self.connect(http2).await;
            let _rest = self.begin_to_read(&mut client, LIST).await;
            timeout(HALF_READ, self.ending.wait_for(|ending| *ending)).await.ok();
            self.count.broken_off();
        }
    }
}
