//! HTTP/2 keep-alive: pings a silent peer and detects a dead connection.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep, sleep};

use super::CorkedStream;

/// How long the connection may be silent before a ping, and how long the peer may take to answer it.
// apimachinery: pkg/util/net/http.go, readIdleTimeoutSeconds and pingTimeoutSeconds — of clients; servers send none
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// Sends a ping when the peer is silent, and times out without a reply.
#[derive(Debug)]
pub struct Http2KeepAlive<S> {
    corked: CorkedStream<S>,
    pings: Option<PingPong>,
    timer: Pin<Box<Sleep>>,
    /// The read count of the stream when the timer was set.
    read_count: u64,
    ping_sent: bool,
}

impl<S> Http2KeepAlive<S> {
    /// Sends pings through `pings`. Any bytes from the peer count as a reply.
    pub fn new(corked: CorkedStream<S>, pings: Option<PingPong>) -> Self {
        Self { corked, pings, timer: Box::pin(sleep(PING_INTERVAL)), read_count: 0, ping_sent: false }
    }

    /// Ready when the connection is dead. Poll it together with the connection.
    pub fn poll_dead(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let read_count = self.corked.read_count();
            let is_silent = read_count == self.read_count;
            if is_silent && self.ping_sent {
                return Poll::Ready(());
            }
            self.read_count = read_count;
            self.ping_sent = is_silent && self.send_ping(cx);
            let delay = if self.ping_sent { PING_TIMEOUT } else { PING_INTERVAL };
            self.timer.as_mut().reset(Instant::now() + delay);
        }
        Poll::Pending
    }

    /// Sends a ping. Returns false if the connection has no `PingPong`.
    fn send_ping(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(pings) = &mut self.pings else { return false };
        // h2 accepts the next ping only after the last pong was polled. A ping still in flight serves as well.
        let _pong = pings.poll_pong(cx);
        pings.send_ping(Ping::opaque()).ok();
        true
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};

    use tokio::time::timeout;

    use super::*;
    use crate::transport::Role;

    /// The time until a peer counts as dead that sends its settings and then only pongs, if `answers`. `None` if it
    /// never does.
    async fn dead_after(answers: bool) -> Option<Duration> {
        let (near, far) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let mut peer = h2::server::handshake(far).await.unwrap();
            if answers {
                peer.accept().await;
            }
            pending::<()>().await;
        });
        let corked = CorkedStream::new(near, Role::Client, 1 << 20);
        let (_sender, mut connection) = h2::client::handshake(corked.clone()).await.unwrap();
        let mut keep_alive = Http2KeepAlive::new(corked, connection.ping_pong());
        let started = Instant::now();
        let dead = poll_fn(|cx| {
            assert!(Pin::new(&mut connection).poll(cx).is_pending());
            keep_alive.poll_dead(cx)
        });
        timeout(PING_INTERVAL * 20, dead).await.ok().map(|()| started.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_answers_pings_is_never_dead() {
        assert_eq!(dead_after(true).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_answer_pings_is_dead() {
        let after = dead_after(false).await.unwrap();
        // Its settings count as activity in the first interval.
        let expected = PING_INTERVAL * 2 + PING_TIMEOUT;
        assert!((expected..expected + Duration::from_secs(1)).contains(&after), "{after:?}");
    }
}
