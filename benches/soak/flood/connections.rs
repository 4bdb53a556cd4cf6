//! Connections that are nothing but a burden.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use testkit::frames::{self, CANCEL};
use tokio::io::{AsyncWriteExt as _, copy, sink, split};
use tokio::net::TcpSocket;
use tokio::sync::watch;
use tokio::time::timeout;

use super::flooded_gateway::FloodedGateway;

/// Requests that are taken back together: fewer than h2 itself takes for abuse.
const TAKEN_BACK: u32 = 10;
/// Where silent connections come from: not from where honest clients are.
const ELSEWHERE: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 66)), 0);
/// How many of them one client holds, and how often it opens another.
const SILENT: usize = 100;
const PAUSE: Duration = Duration::from_millis(5);

/// Takes requests back as fast as they can be sent, on one connection after another; how many.
pub(crate) async fn take_back(subject: Arc<FloodedGateway>, end: watch::Receiver<bool>) -> u64 {
    let mut taken_back = 0;
    while !*end.borrow() {
        let stream = subject.process.gateway.frames(Some(&subject.alice), 65_535).await;
        let (mut read, mut write) = split(stream);
        let reading = tokio::spawn(async move { copy(&mut read, &mut sink()).await });
        let mut next = 1;
        while !*end.borrow() {
            let ids = (next..).step_by(2).take(usize::try_from(TAKEN_BACK).unwrap());
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
            taken_back += u64::from(TAKEN_BACK);
            next += 2 * TAKEN_BACK;
        }
        reading.abort();
    }
    taken_back
}

/// Opens connections and says nothing, not even a handshake; how many.
pub(crate) async fn say_nothing(subject: Arc<FloodedGateway>, mut end: watch::Receiver<bool>) -> u64 {
    let mut opened = 0;
    let mut silent = std::collections::VecDeque::new();
    while timeout(PAUSE, end.wait_for(|ending| *ending)).await.is_err() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(ELSEWHERE).unwrap();
        let Ok(Ok(stream)) = timeout(10 * PAUSE, socket.connect(subject.process.gateway.address)).await
        else {
            continue;
        };
        opened += 1;
        silent.push_back(stream);
        if silent.len() > SILENT {
            silent.pop_front();
        }
    }
    opened
}
