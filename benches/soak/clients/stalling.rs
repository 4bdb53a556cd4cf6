//! Clients that do not read their responses.

use std::time::Duration;

use http::Response;
use hyper::body::Incoming;
use testkit::client::Client;
use tokio::time::timeout;

use super::ClientContext;
use crate::backend::{FLOOD, LIST};

/// Unread watches: one on each of so many connections per HTTP version, and as many on a single HTTP/2 connection.
const WATCHES: usize = 20;
/// How long a client stops reading a list before it disconnects.
const HALF_READ: Duration = Duration::from_secs(5);

/// A client and its responses, whose bodies it never reads.
pub(crate) type Stalled = (Client, Vec<Response<Incoming>>);

impl ClientContext {
    /// Opens watches without reading events.
    pub(crate) async fn stall(&self) -> Vec<Stalled> {
        let mut stalled = vec![self.open_unread_watches(true, WATCHES).await];
        for http2 in [false, true] {
            for _ in 0..WATCHES {
                stalled.push(self.open_unread_watches(http2, 1).await);
            }
        }
        stalled
    }

    async fn open_unread_watches(&self, http2: bool, watches: usize) -> Stalled {
        let mut client = self.connect(http2).await;
        let mut responses = Vec::new();
        for _ in 0..watches {
            responses.push(client.get(FLOOD, &[]).await);
        }
        (client, responses)
    }

    /// Reads the beginning of a large list, waits, and disconnects.
    pub(crate) async fn abandon_list(mut self, http2: bool) {
        while self.is_running() {
            let mut client = self.connect(http2).await;
            let _rest = self.read_first_frame(&mut client, LIST).await;
            timeout(HALF_READ, self.ending.wait_for(|ending| *ending)).await.ok();
            self.count.broken_off();
        }
    }
}
