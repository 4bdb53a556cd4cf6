//! The driver of a connection: it polls the connection's HTTP and decides when a connection ends that does not end by
//! itself.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::server::TlsStream;
use tracing::{debug, info};

use super::Handler;
use super::activity::{ActivityStream, CLOSE_TIMEOUT};
use super::connection::{Connection, DRAIN_LINGER_TIMEOUT, ShutdownPhase};
use super::http2::Http2;
use super::settings::Limits;
use crate::http::transport::{TransportError, UncorkOnPoll};
use crate::metrics::Metrics;

/// How long an HTTP/1.1 client that sends no request, or does not read its answer, can delay the shutdown.
// Go: net/http/server.go, closeIdleConns
const DRAIN_SILENCE_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a connection is on the way to its end. It moves down this list and never up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Requests are served.
    Open,
    /// The idle timeout has passed: the client was sent the end, and may not have read it.
    TimedOut,
    /// The server is shutting down.
    Draining {
        /// When the shutdown began for this connection.
        since: Instant,
    },
    /// The pipeline has closed the connection: it ends after the answers in progress.
    Closing,
}

/// What the driver does after its timer has fired.
enum Next {
    /// Fires the timer again at this time.
    WakeAt(Instant),
    /// Ends the connection, for this reason.
    End(&'static str),
}

/// Serves one connection to its end.
pub(super) struct Driver<'a> {
    serving: Pin<Box<dyn Serving>>,
    connection: &'a Connection,
    limits: Limits,
    metrics: &'a Metrics,
    state: State,
}

impl<'a> Driver<'a> {
    pub(super) fn new(
        serving: Pin<Box<dyn Serving>>,
        connection: &'a Connection,
        limits: Limits,
        metrics: &'a Metrics,
    ) -> Self {
        Self { serving, connection, limits, metrics, state: State::Open }
    }

    /// Serves until the connection has ended.
    pub(super) async fn run(mut self, mut phase: watch::Receiver<ShutdownPhase>) {
        let (peer, activity) = (self.connection.info.peer, &self.connection.activity);
        let mut timer = pin!(sleep_until(Instant::now() + self.limits.header_timeout));
        loop {
            let wake_at = tokio::select! {
                ended = poll_fn(|cx| self.serving.as_mut().poll(cx)) => {
                    if let Err(error) = ended {
                        debug!(%peer, %error, "connection ended");
                    }
                    return;
                }
                reset_limit_exceeded = activity.ending() => {
                    if reset_limit_exceeded {
                        return self.end_for_resets().await;
                    }
                    self.close()
                }
                changed = phase.changed() => match (changed, *phase.borrow_and_update()) {
                    (Err(_), _) | (Ok(()), ShutdownPhase::Abort) => return,
                    (Ok(()), ShutdownPhase::Serving | ShutdownPhase::NotReady) => continue,
                    (Ok(()), ShutdownPhase::Draining | ShutdownPhase::EndingWatches) => self.start_draining(),
                },
                () = timer.as_mut() => match self.timer_fired(Instant::now()) {
                    Next::WakeAt(at) => at,
                    Next::End(reason) => {
                        debug!(%peer, reason, "connection closed");
                        return;
                    }
                },
            };
            timer.as_mut().reset(wake_at);
        }
    }

    /// The client has reset too many streams (HTTP/2 rapid reset).
    async fn end_for_resets(&mut self) {
        let peer = self.connection.info.peer;
        self.metrics.connections.reset_limit_closed.inc();
        info!(%peer, "connection closed: client exceeded the stream reset limit (HTTP/2 rapid reset)");
        self.serving.as_mut().calm_down();
        timeout(DRAIN_LINGER_TIMEOUT, poll_fn(|cx| self.serving.as_mut().poll(cx))).await.ok();
    }

    /// The pipeline closes the connection.
    fn close(&mut self) -> Instant {
        self.state = State::Closing;
        self.serving.as_mut().graceful_shutdown();
        Instant::now() + CLOSE_TIMEOUT
    }

    /// The server shuts down. GOAWAY loses no request; HTTP/1.1 has nothing like it, so its client learns of the end with
    /// its next answer.
    fn start_draining(&mut self) -> Instant {
        let (now, activity) = (Instant::now(), &self.connection.activity);
        if self.connection.http2 && activity.has_served() {
            self.serving.as_mut().graceful_shutdown();
        }
        if matches!(self.state, State::Open | State::TimedOut) {
            self.state = State::Draining { since: now };
        }
        activity.note_draining();
        now + DRAIN_LINGER_TIMEOUT
    }

    fn timer_fired(&mut self, now: Instant) -> Next {
        let activity = &self.connection.activity;
        // The signal of it may not have been polled yet.
        if activity.is_ending() {
            self.state = State::Closing;
        }
        match self.state {
            State::Closing => match activity.closes_at(&self.limits) {
                Some(at) if at <= now => Next::End("the client does not close the connection"),
                Some(at) => Next::WakeAt(at),
                None => Next::WakeAt(now + CLOSE_TIMEOUT),
            },
            State::Draining { since } => self.drain(since, now),
            State::Open | State::TimedOut => self.check_deadline(now),
        }
    }

    /// Ends a connection without a request in progress.
    fn drain(&mut self, since: Instant, now: Instant) -> Next {
        let (activity, http2) = (&self.connection.activity, self.connection.http2);
        let is_idle = activity.deadline(&self.limits).is_some();
        if is_idle && !http2 && activity.silent_since().max(since) + DRAIN_SILENCE_TIMEOUT <= now {
            return Next::End("the client is silent, and the server shuts down");
        }
        if http2 || is_idle {
            self.serving.as_mut().graceful_shutdown();
        }
        if http2 {
            activity.note_goodbye();
        }
        Next::WakeAt(now + DRAIN_LINGER_TIMEOUT)
    }

    /// Ends a connection whose idle or header timeout has passed. Requests do not reset the timer, so it may fire early.
    fn check_deadline(&mut self, now: Instant) -> Next {
        let activity = &self.connection.activity;
        match activity.deadline(&self.limits) {
            None => Next::WakeAt(now + self.limits.header_timeout),
            Some(deadline) if deadline > now => Next::WakeAt(deadline),
            Some(_) if activity.in_header() => Next::End("the request header took too long"),
            // hyper waits until all it has written has left, which never happens if the client does not read.
            Some(_) if self.state == State::TimedOut => Next::End("the client does not read"),
            Some(_) => {
                self.state = State::TimedOut;
                self.serving.as_mut().graceful_shutdown();
                Next::WakeAt(now + self.limits.header_timeout)
            }
        }
    }
}

/// The bytes of a connection.
pub(super) type Stream = ActivityStream<TlsStream<TcpStream>>;

/// The two kinds of connection as one.
pub(super) trait Serving: Send {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>>;

    /// Takes no more requests and ends once those in progress are answered.
    fn graceful_shutdown(self: Pin<&mut Self>);

    /// Takes no more requests and ends, because the client asks too much. Nothing over HTTP/1.1, which asks for one
    /// thing at a time.
    fn calm_down(self: Pin<&mut Self>) {}
}

impl<H: Handler> Serving for UncorkOnPoll<Http2<H>, Stream> {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Future::poll(self, cx).map_err(TransportError::from)
    }

    fn graceful_shutdown(self: Pin<&mut Self>) {
        self.inner().get_mut().graceful_shutdown();
    }

    fn calm_down(self: Pin<&mut Self>) {
        self.inner().get_mut().calm_down();
    }
}
