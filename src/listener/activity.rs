//! Tracks the requests and the bytes of a connection, and computes its timeouts: 32 s from the first byte of a request
//! to the end of its header, 90 s between requests. hyper has one timer for both, which would close an idle keep-alive
//! connection after 32 s, so a wrapper around the byte stream measures the times.
//!
//! After GOAWAY a connection stays open for 1 s after its last response, and longer only while its client still reads.
// Go: net/http Server.ReadHeaderTimeout and IdleTimeout as pkg/server/secure_serving.go sets them
// threat: ignored-goaway

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use portcullis_system::sync::lock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep};

use super::linger::LingeringClose;
use super::settings::ClientLimits;
use crate::listener::reset_limiter::StreamResetLimiter;

/// How long a connection stays open after GOAWAY and its last response, and after each write that follows.
// Go: net/http/h2_bundle.go, goAwayTimeout
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a client that has closed its side may wait for its response. hyper takes the end of the stream for a
/// disconnect and drops the request, so the end is withheld for this time.
const HALF_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the requests of a connection that gives way to another one may go on.
const GIVE_WAY_TIMEOUT: Duration = Duration::from_secs(5);

/// The activity of a connection, shared by its byte stream, its requests and its driver.
#[derive(Debug)]
pub(super) struct ConnectionActivity {
    opened: Instant,
    /// The last change between idle and busy, in milliseconds since `opened`.
    last_change: AtomicU64,
    /// The number of requests in progress.
    requests: AtomicU32,
    /// Whether a request header has begun to arrive, or the first one is due. HTTP/2 frames do not set it.
    header_pending: AtomicBool,
    is_http1: bool,
    /// Whether the connection refuses new streams.
    refuses_requests: AtomicBool,
    /// Whether the client was sent GOAWAY: the connection is closed after the requests in progress.
    goaway_sent: AtomicBool,
    /// Whether the server drains.
    draining: AtomicBool,
    /// The last write after GOAWAY or during the drain, in milliseconds since `opened`.
    last_write: AtomicU64,
    /// Whether the connection is a tunnel, whose bytes are not HTTP.
    upgraded: AtomicBool,
    /// Whether the request in progress has a body, after which its client may close its side.
    has_body: AtomicBool,
    resets: Mutex<StreamResetLimiter>,
    /// The number of streams that the client may reset at once.
    reset_burst: u32,
    close_requested: Notify,
    reset_limit_exceeded: AtomicBool,
    /// Until when its requests may go on after it has given way to another one, in milliseconds since `opened`; 0: it has not.
    gives_way_at: AtomicU64,
    gave_way: Notify,
}

impl ConnectionActivity {
    /// The activity of a new connection. The timeout of its first header has begun, as in Go.
    pub(super) fn new(is_http1: bool, limits: &ClientLimits) -> Arc<Self> {
        Arc::new(Self {
            opened: Instant::now(),
            last_change: AtomicU64::new(0),
            requests: AtomicU32::new(0),
            header_pending: AtomicBool::new(true),
            is_http1,
            refuses_requests: AtomicBool::new(false),
            goaway_sent: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            last_write: AtomicU64::new(0),
            upgraded: AtomicBool::new(false),
            has_body: AtomicBool::new(false),
            resets: Mutex::default(),
            // A client may cancel all of its streams, open them again and cancel them again.
            reset_burst: limits.http2_max_streams.saturating_mul(2),
            close_requested: Notify::new(),
            reset_limit_exceeded: AtomicBool::new(false),
            gives_way_at: AtomicU64::new(0),
            gave_way: Notify::new(),
        })
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn mark(&self) {
        self.last_change.store(self.elapsed(), Ordering::Relaxed);
    }

    fn note_write(&self) {
        if self.is_goaway_sent() || self.draining.load(Ordering::Relaxed) {
            self.last_write.store(self.elapsed(), Ordering::Relaxed);
        }
    }

    /// Records whether the request that begins has a body.
    pub(super) fn note_body(&self, has_body: bool) {
        self.has_body.store(has_body, Ordering::Relaxed);
    }

    /// Whether a request with a body is in progress.
    fn is_answering_body(&self) -> bool {
        self.has_body.load(Ordering::Relaxed) && self.requests.load(Ordering::Relaxed) > 0
    }

    /// Records that the connection is a tunnel from now on.
    pub(super) fn note_upgrade(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
    }

    /// Refuses new streams and requests the close of the connection.
    pub(super) fn close(&self) {
        self.refuses_requests.store(true, Ordering::Relaxed);
        self.note_goaway();
        self.request_close();
    }

    /// Closes the connection in favour of another one: it refuses new requests, and those in progress end within
    /// [`GIVE_WAY_TIMEOUT`]. A tunnel ends at once.
    pub(super) fn give_way(&self) {
        let timeout = u64::try_from(GIVE_WAY_TIMEOUT.as_millis()).unwrap_or(u64::MAX);
        self.gives_way_at.store(self.elapsed().saturating_add(timeout), Ordering::Release);
        self.gave_way.notify_waiters();
        self.close();
    }

    /// Completes when the connection gives way.
    pub(super) fn gave_way(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        let activity = Arc::clone(self);
        async move {
            let mut notified = pin!(activity.gave_way.notified());
            // Before the look, so that none is missed between the two.
            notified.as_mut().enable();
            if activity.gives_way_at().is_none() {
                notified.await;
            }
        }
    }

    /// When the connection is closed whatever its requests do.
    pub(super) fn gives_way_at(&self) -> Option<Instant> {
        let at = self.gives_way_at.load(Ordering::Acquire);
        (at > 0).then(|| self.opened + Duration::from_millis(at))
    }

    /// Whether no request is in progress, and the connection is no tunnel.
    pub(super) fn is_idle(&self) -> bool {
        self.requests.load(Ordering::Relaxed) == 0 && !self.upgraded.load(Ordering::Relaxed)
    }

    /// Records that the client is sent GOAWAY.
    pub(super) fn note_goaway(&self) {
        self.goaway_sent.store(true, Ordering::Relaxed);
    }

    /// Records that the server drains.
    pub(super) fn note_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// The time of the last recorded change or write.
    pub(super) fn silent_since(&self) -> Instant {
        let last = self.last_change.load(Ordering::Relaxed).max(self.last_write.load(Ordering::Relaxed));
        self.opened + Duration::from_millis(last)
    }

    /// Whether the connection closes at [`ConnectionActivity::closes_at`].
    pub(super) fn is_goaway_sent(&self) -> bool {
        self.goaway_sent.load(Ordering::Relaxed)
    }

    /// Whether the connection refuses new streams.
    pub(super) fn refuses_requests(&self) -> bool {
        self.refuses_requests.load(Ordering::Relaxed)
    }

    /// The time at which a connection after GOAWAY is closed; `None` while a request is in progress.
    pub(super) fn closes_at(&self, limits: &ClientLimits) -> Option<Instant> {
        if self.requests.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let since = self.last_change.load(Ordering::Relaxed);
        let at = |millis| self.opened + Duration::from_millis(millis);
        let last = at(since.max(self.last_write.load(Ordering::Relaxed)));
        Some((last + CLOSE_TIMEOUT).min(at(since) + limits.header_timeout))
    }

    fn note_read(&self) {
        if self.is_http1
            && self.requests.load(Ordering::Relaxed) == 0
            && !self.header_pending.swap(true, Ordering::Relaxed)
        {
            self.mark();
        }
    }

    /// Registers a request; the connection is busy until the guard is dropped.
    pub(super) fn begin_request(self: &Arc<Self>) -> RequestGuard {
        RequestGuard { accepted: self.accept_request(), has_response: false }
    }

    /// Registers a request that is accepted and not begun; the connection is busy until the guard is dropped.
    pub(super) fn accept_request(self: &Arc<Self>) -> AcceptedRequest {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.header_pending.store(false, Ordering::Relaxed);
        AcceptedRequest(Arc::clone(self))
    }

    /// Whether an HTTP/2 connection has received a request.
    pub(super) fn has_served(&self) -> bool {
        !self.header_pending.load(Ordering::Relaxed)
    }

    /// Requests the close of the connection from its driver.
    fn request_close(&self) {
        self.close_requested.notify_one();
    }

    /// Waits until the close is requested. Returns true if the client has exceeded the stream reset limit.
    pub(super) async fn close_requested(&self) -> bool {
        self.close_requested.notified().await;
        self.reset_limit_exceeded.load(Ordering::Relaxed)
    }

    /// Records the end of a request. Only over HTTP/2 can a client cancel a request and keep the connection.
    fn note_request_end(&self, has_response: bool) {
        let mut resets = lock(&self.resets);
        if has_response {
            resets.record_response();
        } else if resets.record_reset(self.opened.elapsed(), self.reset_burst) {
            self.reset_limit_exceeded.store(true, Ordering::Relaxed);
            self.request_close();
        }
    }

    /// The time at which the header timeout or the idle timeout expires; `None` while a request is in progress.
    pub(super) fn deadline(&self, limits: &ClientLimits) -> Option<Instant> {
        if self.requests.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let header_pending = self.header_pending.load(Ordering::Relaxed);
        let timeout = if header_pending { limits.header_timeout } else { limits.idle_timeout };
        Some(self.opened + Duration::from_millis(self.last_change.load(Ordering::Relaxed)) + timeout)
    }

    /// Whether a header is incomplete.
    pub(super) fn in_header(&self) -> bool {
        self.requests.load(Ordering::Relaxed) == 0 && self.header_pending.load(Ordering::Relaxed)
    }
}

/// Guards a request in progress, until its response has ended.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    accepted: AcceptedRequest,
    has_response: bool,
}

impl RequestGuard {
    /// Records that the request has a response. Without one, the client has cancelled it.
    pub(crate) fn note_response(&mut self) {
        self.has_response = true;
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.accepted.0.note_request_end(self.has_response);
    }
}

/// Guards a request that is accepted: the connection is busy.
#[derive(Debug)]
pub(super) struct AcceptedRequest(Arc<ConnectionActivity>);

impl Drop for AcceptedRequest {
    fn drop(&mut self) {
        if self.0.requests.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.mark();
        }
    }
}

/// A byte stream that records reads and writes, delays the end of the client's side, and lingers on close.
#[derive(Debug)]
pub(super) struct ActivityStream<S> {
    stream: S,
    activity: Arc<ConnectionActivity>,
    /// Whether the client has closed its side.
    is_at_end: bool,
    /// Withholds that from hyper.
    half_close_timer: Option<Pin<Box<Sleep>>>,
    linger: Option<LingeringClose>,
}

impl<S> ActivityStream<S> {
    pub(super) fn new(stream: S, activity: Arc<ConnectionActivity>) -> Self {
        Self { stream, activity, is_at_end: false, half_close_timer: None, linger: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ActivityStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.is_at_end {
            let before = buf.filled().len();
            match ready!(Pin::new(&mut this.stream).poll_read(cx, buf)) {
                // The client closed its side of TCP without `close_notify`; HTTP still detects a truncated body.
                Err(error)
                    if error.kind() == io::ErrorKind::UnexpectedEof && this.activity.is_answering_body() => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(()) if buf.filled().len() > before => {
                    this.activity.note_read();
                    return Poll::Ready(Ok(()));
                }
                Ok(()) if buf.remaining() == 0 => return Poll::Ready(Ok(())),
                Ok(()) => {}
            }
            this.is_at_end = true;
        }
        if !this.activity.is_answering_body() {
            return Poll::Ready(Ok(()));
        }
        let timer = this.half_close_timer.get_or_insert_with(|| Box::pin(sleep(HALF_CLOSE_TIMEOUT)));
        timer.as_mut().poll(cx).map(Ok)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ActivityStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.activity.note_write();
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        }
        // GOAWAY names the last processed stream, and a tunnel's bytes must not be discarded.
        if !this.activity.is_http1 || this.is_at_end || this.activity.upgraded.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        this.linger.get_or_insert_with(LingeringClose::new).poll(&mut this.stream, cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test(start_paused = true)]
    async fn a_header_has_32_seconds_and_an_idle_connection_90() {
        let opened = Instant::now();
        let limits = ClientLimits::default();
        let activity = ConnectionActivity::new(true, &limits);
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = ActivityStream::new(server, Arc::clone(&activity));
        assert_eq!(
            activity.deadline(&limits),
            Some(opened + limits.header_timeout),
            "the first header is due at once"
        );

        let request = activity.begin_request();
        assert_eq!(activity.deadline(&limits), None, "a request in progress has no timeout here");
        tokio::time::advance(Duration::from_secs(200)).await;
        drop(request);
        assert_eq!(activity.deadline(&limits), Some(opened + Duration::from_secs(200) + limits.idle_timeout));

        tokio::time::advance(Duration::from_mins(1)).await;
        client.write_all(b"G").await.unwrap();
        server.read_u8().await.unwrap();
        let begun = opened + Duration::from_secs(260);
        assert_eq!(
            activity.deadline(&limits),
            Some(begun + limits.header_timeout),
            "the first byte starts the header timeout"
        );

        tokio::time::advance(Duration::from_secs(10)).await;
        client.write_all(b"E").await.unwrap();
        server.read_u8().await.unwrap();
        assert_eq!(
            activity.deadline(&limits),
            Some(begun + limits.header_timeout),
            "further bytes do not extend it"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn after_goaway_a_connection_has_a_second_after_each_write_and_32_in_all() {
        let limits = ClientLimits::default();
        let activity = ConnectionActivity::new(false, &limits);
        let (_client, server) = tokio::io::duplex(1024);
        let mut server = ActivityStream::new(server, Arc::clone(&activity));
        let request = activity.begin_request();
        activity.close();
        assert_eq!(activity.closes_at(&limits), None, "a request is in progress");
        drop(request);
        let response_end = Instant::now();
        assert_eq!(activity.closes_at(&limits), Some(response_end + CLOSE_TIMEOUT));
        for second in 1..40 {
            tokio::time::advance(Duration::from_secs(1)).await;
            server.write_all(b"x").await.unwrap();
            let expected = response_end + Duration::from_secs(second + 1).min(limits.header_timeout);
            assert_eq!(activity.closes_at(&limits), Some(expected), "the client still reads");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_half_close_after_a_body_is_withheld_until_the_response_or_for_a_second() {
        for (has_body, has_response, after) in
            [(false, false, Duration::ZERO), (true, true, Duration::ZERO), (true, false, HALF_CLOSE_TIMEOUT)]
        {
            let activity = ConnectionActivity::new(true, &ClientLimits::default());
            let (client, server) = tokio::io::duplex(64);
            let mut server = ActivityStream::new(server, Arc::clone(&activity));
            activity.note_body(has_body);
            let request = activity.begin_request();
            drop(client);
            let request = (!has_response).then_some(request);
            let started = Instant::now();
            assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
            // tokio's timers have a precision of 1 ms.
            let took = started.elapsed();
            assert!(
                (after..=after + Duration::from_millis(1)).contains(&took),
                "{has_body}, {has_response}: {took:?}"
            );
            drop(request);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn http2_frames_do_not_count_as_headers() {
        let opened = Instant::now();
        let limits = ClientLimits::default();
        let activity = ConnectionActivity::new(false, &limits);
        drop(activity.begin_request());
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = ActivityStream::new(server, Arc::clone(&activity));
        client.write_all(b"p").await.unwrap();
        server.read_u8().await.unwrap();
        assert_eq!(activity.deadline(&limits), Some(opened + limits.idle_timeout));
    }
}
