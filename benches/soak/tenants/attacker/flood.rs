//! Requests at a fixed rate, of which each makes an audit event.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use tokio::time::{interval, sleep};

use super::Counts;
use super::load::{Reading, connect, read};

/// Requests per second, of all connections.
const RATE: u64 = 9_700;
const CONNECTIONS: u64 = 10;
/// Requests of one connection at a time.
const BATCH: u64 = 10;
const INTERVAL: Duration = Duration::from_micros(1_000_000 * BATCH * CONNECTIONS / RATE);
const RETRY: Duration = Duration::from_millis(100);

pub(crate) fn start(gateway: SocketAddr, path: &str, token: &str, counts: &Counts) {
    for _ in 0..CONNECTIONS {
        let (path, token, counts) = (path.to_owned(), token.to_owned(), counts.clone());
        tokio::spawn(async move {
            loop {
                if let Ok(sender) = connect(gateway, Reading::Everything).await {
                    send(sender, &path, &token, &counts).await.ok();
                }
                counts.add("connection ended");
                sleep(RETRY).await;
            }
        });
    }
}

/// Sends until the connection ends.
async fn send(
    mut sender: SendRequest<Bytes>,
    path: &str,
    token: &str,
    counts: &Counts,
) -> Result<(), h2::Error> {
    let mut ticks = interval(INTERVAL);
    loop {
        ticks.tick().await;
        for _ in 0..BATCH {
            sender = sender.ready().await?;
            let (response, _) = sender.send_request(super::request(path, token), true)?;
            let counts = counts.clone();
            tokio::spawn(async move {
                let Ok(response) = response.await else { return counts.add("reset") };
                counts.add(response.status().as_str());
                read(response.into_body()).await.ok();
            });
        }
    }
}
