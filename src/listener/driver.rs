//! The driver of a connection: polls its HTTP, and enforces timeouts, graceful shutdown and the stream reset limit.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use portcullis_http::transport::{TransportError, UncorkOnPoll};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::server::TlsStream;
use tracing::debug;

use super::RequestHandler;
use super::activity::{ActivityStream, CLOSE_TIMEOUT};
use super::connection::{Connection, DRAIN_LINGER_TIMEOUT, ShutdownPhase};
use super::http2::Http2ServerConnection;
use super::settings::ClientLimits;

/// How long an HTTP/1.1 client that sends no request, or does not read its response, can delay the shutdown.
// Go: net/http/server.go, closeIdleConns
const DRAIN_SILENCE_TIMEOUT: Duration = Duration::from_secs(5);

/// How far a connection is from its end. It only moves down this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DriverState {
    /// The connection accepts requests.
    Open,
    /// The idle timeout has expired, and the driver has begun a graceful shutdown of the connection.
    TimedOut,
    /// The server is shutting down.
    Draining {
        /// When the connection began to drain.
        since: Instant,
    },
    /// The pipeline has closed the connection: it ends after the responses in progress.
    Closing,
}

/// The driver's action when its timer fires.
enum TimerAction {
    /// Resets the timer.
    WakeAt(Instant),
    /// Closes the connection and logs the reason.
    Close(&'static str),
}

/// Called when a connection is closed because its client has exceeded the stream reset limit.
pub(super) type OnResetLimit = dyn Fn() + Send + Sync;

/// Runs one connection to its end.
pub(super) struct ConnectionDriver<'a> {
    http: Pin<Box<dyn HttpConnection>>,
    connection: &'a Connection,
    limits: ClientLimits,
    on_reset_limit: &'a OnResetLimit,
    state: DriverState,
}

impl<'a> ConnectionDriver<'a> {
    pub(super) fn new(
        http: Pin<Box<dyn HttpConnection>>,
        connection: &'a Connection,
        limits: ClientLimits,
        on_reset_limit: &'a OnResetLimit,
    ) -> Self {
        Self { http, connection, limits, on_reset_limit, state: DriverState::Open }
    }

    /// Runs until the connection has ended.
    pub(super) async fn run(mut self, mut phase: watch::Receiver<ShutdownPhase>) {
        let (peer, activity) = (self.connection.info.peer, &self.connection.activity);
        let mut timer = pin!(sleep_until(Instant::now() + self.limits.header_timeout));
        loop {
            let wake_at = tokio::select! {
                ended = poll_fn(|cx| self.http.as_mut().poll(cx)) => {
                    if let Err(error) = ended {
                        debug!(%peer, %error, "connection ended");
                    }
                    return;
                }
                reset_limit_exceeded = activity.close_requested() => {
                    if reset_limit_exceeded {
                        return self.close_for_resets().await;
                    }
                    self.close()
                }
                changed = phase.changed() => match (changed, *phase.borrow_and_update()) {
                    (Err(_), _) | (Ok(()), ShutdownPhase::Abort) => return,
                    (Ok(()), ShutdownPhase::Serving | ShutdownPhase::NotReady) => continue,
                    (Ok(()), ShutdownPhase::Draining | ShutdownPhase::EndingWatches) => self.start_draining(),
                },
                () = timer.as_mut() => match self.timer_fired(Instant::now()) {
                    TimerAction::WakeAt(at) => at,
                    TimerAction::Close(reason) => {
                        debug!(%peer, reason, "connection closed");
                        return;
                    }
                },
            };
            timer.as_mut().reset(wake_at);
        }
    }

    /// Closes the connection: the client has exceeded the stream reset limit.
    async fn close_for_resets(&mut self) {
        (self.on_reset_limit)();
        self.http.as_mut().abrupt_shutdown();
        timeout(DRAIN_LINGER_TIMEOUT, poll_fn(|cx| self.http.as_mut().poll(cx))).await.ok();
    }

    /// Starts the close that the pipeline has requested.
    fn close(&mut self) -> Instant {
        self.state = DriverState::Closing;
        self.http.as_mut().graceful_shutdown();
        Instant::now() + CLOSE_TIMEOUT
    }

    /// Starts to drain because the server shuts down. GOAWAY loses no request. HTTP/1.1 has no such signal, so its
    /// client gets `Connection: close` with its next response.
    fn start_draining(&mut self) -> Instant {
        let (now, activity) = (Instant::now(), &self.connection.activity);
        if self.connection.http2 && activity.has_served() {
            self.http.as_mut().graceful_shutdown();
        }
        if matches!(self.state, DriverState::Open | DriverState::TimedOut) {
            self.state = DriverState::Draining { since: now };
        }
        activity.note_draining();
        now + DRAIN_LINGER_TIMEOUT
    }

    fn timer_fired(&mut self, now: Instant) -> TimerAction {
        let activity = &self.connection.activity;
        // `drain` has sent GOAWAY, or the pipeline has requested the close and `run` has not seen it yet.
        if activity.is_goaway_sent() {
            self.state = DriverState::Closing;
        }
        match self.state {
            DriverState::Closing => match activity.closes_at(&self.limits) {
                _ if activity.gives_way_at().is_some_and(|at| at <= now) => {
                    TimerAction::Close("it gives way to another client's connection")
                }
                Some(at) if at <= now => TimerAction::Close("the client does not close the connection"),
                Some(at) => TimerAction::WakeAt(at),
                None => TimerAction::WakeAt(now + CLOSE_TIMEOUT),
            },
            DriverState::Draining { since } => self.drain(since, now),
            DriverState::Open | DriverState::TimedOut => self.check_deadline(now),
        }
    }

    /// One step of the drain: sends GOAWAY over HTTP/2, closes an idle HTTP/1.1 connection.
    fn drain(&mut self, since: Instant, now: Instant) -> TimerAction {
        let (activity, http2) = (&self.connection.activity, self.connection.http2);
        let is_idle = activity.deadline(&self.limits).is_some();
        if is_idle && !http2 && activity.silent_since().max(since) + DRAIN_SILENCE_TIMEOUT <= now {
            return TimerAction::Close("the client is idle and the server is shutting down");
        }
        // A client whose watch has just ended watches again on the same connection, and is told to close it then.
        let lingers_until = activity.silent_since().max(since) + DRAIN_LINGER_TIMEOUT;
        if is_idle && !http2 && lingers_until > now {
            return TimerAction::WakeAt(lingers_until);
        }
        if http2 || is_idle {
            self.http.as_mut().graceful_shutdown();
        }
        if http2 {
            activity.note_goaway();
        }
        TimerAction::WakeAt(now + DRAIN_LINGER_TIMEOUT)
    }

    /// Closes a connection whose idle or header timeout has expired. Requests do not reset the timer, so it may fire
    /// early.
    fn check_deadline(&mut self, now: Instant) -> TimerAction {
        let activity = &self.connection.activity;
        match activity.deadline(&self.limits) {
            None => TimerAction::WakeAt(now + self.limits.header_timeout),
            Some(deadline) if deadline > now => TimerAction::WakeAt(deadline),
            Some(_) if activity.in_header() => TimerAction::Close("request header timeout"),
            // hyper waits until its output is flushed, which never happens if the client does not read.
            Some(_) if self.state == DriverState::TimedOut => TimerAction::Close("the client does not read"),
            Some(_) => {
                self.state = DriverState::TimedOut;
                self.http.as_mut().graceful_shutdown();
                TimerAction::WakeAt(now + self.limits.header_timeout)
            }
        }
    }
}

/// The byte stream of a client's connection.
pub(super) type ClientStream = ActivityStream<TlsStream<TcpStream>>;

/// An HTTP/1.1 or HTTP/2 connection.
pub(super) trait HttpConnection: Send {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>>;

    /// Accepts no more requests and ends after the responses in progress.
    fn graceful_shutdown(self: Pin<&mut Self>);

    /// Ends the connection and the requests in progress, because the client exceeds a limit. HTTP/1.1 has no such
    /// limit: its requests come one at a time.
    fn abrupt_shutdown(self: Pin<&mut Self>) {}
}

impl<H: RequestHandler> HttpConnection for UncorkOnPoll<Http2ServerConnection<H>, ClientStream> {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Future::poll(self, cx).map_err(TransportError::from)
    }

    fn graceful_shutdown(self: Pin<&mut Self>) {
        self.inner().get_mut().graceful_shutdown();
    }

    fn abrupt_shutdown(self: Pin<&mut Self>) {
        self.inner().get_mut().abrupt_shutdown();
    }
}
