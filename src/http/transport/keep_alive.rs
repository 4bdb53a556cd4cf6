//! Whether the other side of an HTTP/2 connection is still there.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep, sleep};

use super::Corked;

/// How long nothing may be heard before the other side is asked, and how long it may take to answer.
// apimachinery: pkg/util/net/http.go, readIdleTimeoutSeconds and pingTimeoutSeconds — of clients; its servers ask nobody
const SILENCE: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(15);

/// Asks a silent peer whether it is there.
pub(crate) struct KeepAlive<S> {
    corked: Corked<S>,
    pings: Option<PingPong>,
    timer: Pin<Box<Sleep>>,
    /// What was heard when the timer was set.
    heard: u64,
    is_asked: bool,
}

impl<S> KeepAlive<S> {
    /// Asks through `pings`, and listens to all that comes by.
    pub(crate) fn new(corked: Corked<S>, pings: Option<PingPong>) -> Self {
        Self { corked, pings, timer: Box::pin(sleep(SILENCE)), heard: 0, is_asked: false }
    }

    /// Ready once the peer is taken to be gone. To be polled with its connection.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let heard = self.corked.times_heard();
            let is_silent = heard == self.heard;
            if is_silent && self.is_asked {
                return Poll::Ready(());
            }
            self.heard = heard;
            self.is_asked = is_silent && self.ask(cx);
            let patience = if self.is_asked { PATIENCE } else { SILENCE };
            self.timer.as_mut().reset(Instant::now() + patience);
        }
        Poll::Pending
    }

    /// Whether there is a way to ask.
    fn ask(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(pings) = &mut self.pings else { return false };
        // An answer stands in the way of the next question until it is looked at; a question that still waits for its
        // answer is as good as another.
        let _answered = pings.poll_pong(cx);
        pings.send_ping(Ping::opaque()).ok();
        true
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};

    use tokio::time::timeout;

    use super::*;

    /// How long it takes until a peer is taken to be gone that says its settings and then only what it is asked for, if
    /// that; nothing if it never is.
    async fn gone_after(answers: bool) -> Option<Duration> {
        let (near, far) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let mut peer = h2::server::handshake(far).await.unwrap();
            if answers {
                peer.accept().await;
            }
            pending::<()>().await;
        });
        let corked = Corked::new(near);
        let (_sender, mut connection) = h2::client::handshake(corked.clone()).await.unwrap();
        let mut keep_alive = KeepAlive::new(corked, connection.ping_pong());
        let started = Instant::now();
        let gone = poll_fn(|cx| {
            assert!(Pin::new(&mut connection).poll(cx).is_pending());
            keep_alive.poll_gone(cx)
        });
        timeout(SILENCE * 20, gone).await.ok().map(|()| started.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_answers_is_there_however_long_it_says_nothing_else() {
        assert_eq!(gone_after(true).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_answer_is_gone() {
        let after = gone_after(false).await.unwrap();
        // It has said its settings, so it is silent from the second time on.
        let expected = SILENCE * 2 + PATIENCE;
        assert!((expected..expected + Duration::from_secs(1)).contains(&after), "{after:?}");
    }
}
