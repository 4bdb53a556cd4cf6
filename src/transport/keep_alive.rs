//! Whether the other side of an HTTP/2 connection is still there.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep, sleep};

use super::Corked;

/// How long nothing may be heard before the other side is asked, and how long it may take to answer.
// apiserver: pkg/server/secure_serving.go; apimachinery: pkg/util/net/http.go, readIdleTimeout and pingTimeout
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
