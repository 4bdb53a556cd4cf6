//! Floods of stream resets and of silent connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use testkit::frames::{self, CANCEL};
use tokio::io::{AsyncWriteExt as _, copy, sink, split};
use tokio::net::TcpSocket;
use tokio::sync::watch;
use tokio::time::timeout;

use super::flooded_gateway::FloodedGateway;

/// Streams per batch of resets: fewer than the h2 crate's own limit.
const RESET_BATCH: u32 = 10;
/// The source address of silent connections; well-behaved clients have another.
const FLOOD_SOURCE: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 66)), 0);
/// Silent connections of one client, and how often it opens another.
const SILENT_CONNECTIONS: usize = 100;
const PAUSE: Duration = Duration::from_millis(5);

/// Opens and resets streams as fast as possible, on one connection after another. Returns their number.
pub(crate) async fn reset_streams(subject: Arc<FloodedGateway>, end: watch::Receiver<bool>) -> u64 {
    let mut reset_count = 0;
    while !*end.borrow() {
        let stream = subject.process.gateway.frames(Some(&subject.alice), 65_535).await;
        let (mut read, mut write) = split(stream);
        let reading = tokio::spawn(async move { copy(&mut read, &mut sink()).await });
        let mut next = 1;
        while !*end.borrow() {
            let ids = (next..).step_by(2).take(usize::try_from(RESET_BATCH).unwrap());
            let requests: Vec<u8> = ids.clone().flat_map(|id| frames::request(id, "/api")).collect();
            let resets: Vec<u8> = ids.flat_map(|id| frames::reset(id, CANCEL)).collect();
            let sent = async {
                write.write_all(&requests).await?;
                write.flush().await?;
                write.write_all(&resets).await?;
                write.flush().await
            };
            if sent.await.is_err() {
                break;
            }
            reset_count += u64::from(RESET_BATCH);
            next += 2 * RESET_BATCH;
        }
        reading.abort();
    }
    reset_count
}

/// Opens connections without sending a byte. Returns their number.
pub(crate) async fn open_silent_connections(
    subject: Arc<FloodedGateway>,
    mut end: watch::Receiver<bool>,
) -> u64 {
    let mut opened = 0;
    let mut silent = std::collections::VecDeque::new();
    while timeout(PAUSE, end.wait_for(|ending| *ending)).await.is_err() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(FLOOD_SOURCE).unwrap();
        let Ok(Ok(stream)) = timeout(10 * PAUSE, socket.connect(subject.process.gateway.address)).await
        else {
            continue;
        };
        opened += 1;
        silent.push_back(stream);
        if silent.len() > SILENT_CONNECTIONS {
            silent.pop_front();
        }
    }
    opened
}
