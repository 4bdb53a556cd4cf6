//! Whether a connection is busy, and when one that is not must be closed: 32 s from the first byte of a request to
//! the end of its header, 90 s between requests. hyper has one timer for both, which would cut an idle keep-alive
//! connection after 32 s; so the time is kept here, by a wrapper around the bytes.
//!
//! A connection that is to close has 1 s after its last answer, longer only while its client reads what is left of it.
// Go: net/http Server.ReadHeaderTimeout and IdleTimeout as pkg/server/secure_serving.go sets them
// threat: ignored-goaway

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep};

use super::linger::Linger;
use super::settings::Limits;
use crate::listener::reset_limiter::StreamResetLimiter;

/// How long a connection that is to close is kept after its last answer, and after each write that follows.
// Go: net/http/h2_bundle.go, goAwayTimeout
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a client may wait for its answer after it has closed its own side. hyper takes the end of the stream for the
/// end of the client, and drops the answer.
const HALF_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// What a connection is doing. Shared by its bytes, its requests and its driver.
#[derive(Debug)]
pub(super) struct Activity {
    opened: Instant,
    /// Milliseconds from `opened` to the last change.
    since: AtomicU64,
    requests: AtomicU32,
    /// Whether a header has begun to arrive. HTTP/2 frames are not headers: there only requests count.
    reading: AtomicBool,
    watch_bytes: bool,
    /// Whether it takes no more requests.
    closing: AtomicBool,
    /// Whether it is closed after the requests in progress, whatever its client does.
    ending_soon: AtomicBool,
    /// Whether the server ends.
    leaving: AtomicBool,
    /// Milliseconds from `opened` to the last write, once the connection or the server is to end.
    written: AtomicU64,
    /// Whether it is a tunnel now, whose bytes are not HTTP.
    upgraded: AtomicBool,
    /// Whether the request in progress has a body, behind which its client may close its side.
    has_body: AtomicBool,
    resets: Mutex<StreamResetLimiter>,
    /// Requests that may be taken back at once.
    max_resets: u32,
    ending: Notify,
    abused: AtomicBool,
}

impl Activity {
    /// A connection that was just opened: its first header is due, as in Go.
    pub(super) fn new(watch_bytes: bool, limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            opened: Instant::now(),
            since: AtomicU64::new(0),
            requests: AtomicU32::new(0),
            reading: AtomicBool::new(true),
            watch_bytes,
            closing: AtomicBool::new(false),
            ending_soon: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            written: AtomicU64::new(0),
            upgraded: AtomicBool::new(false),
            has_body: AtomicBool::new(false),
            resets: Mutex::default(),
            // All streams at once, and once more after they were asked for again.
            max_resets: limits.http2_max_streams.saturating_mul(2),
            ending: Notify::new(),
            abused: AtomicBool::new(false),
        })
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn mark(&self) {
        self.since.store(self.elapsed(), Ordering::Relaxed);
    }

    fn bytes_left(&self) {
        if self.is_ending() || self.leaving.load(Ordering::Relaxed) {
            self.written.store(self.elapsed(), Ordering::Relaxed);
        }
    }

    /// Whether the request that begins has a body.
    pub(super) fn note_body(&self, has_body: bool) {
        self.has_body.store(has_body, Ordering::Relaxed);
    }

    /// Whether a request with a body is in progress.
    fn is_answering_body(&self) -> bool {
        self.has_body.load(Ordering::Relaxed) && self.requests.load(Ordering::Relaxed) > 0
    }

    /// The connection is a tunnel from now on.
    pub(super) fn note_upgrade(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
    }

    /// Takes no more requests, and asks the connection to end.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        self.note_goodbye();
        self.end();
    }

    /// The client was told that the connection ends.
    pub(super) fn note_goodbye(&self) {
        self.ending_soon.store(true, Ordering::Relaxed);
    }

    /// The server ends.
    pub(super) fn note_draining(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Since when nothing has come or gone, as far as that is watched.
    pub(super) fn silent_since(&self) -> Instant {
        let last = self.since.load(Ordering::Relaxed).max(self.written.load(Ordering::Relaxed));
        self.opened + Duration::from_millis(last)
    }

    /// Whether the connection ends at [`Activity::closes_at`].
    pub(super) fn is_ending(&self) -> bool {
        self.ending_soon.load(Ordering::Relaxed)
    }

    /// Whether the connection takes no more requests.
    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// When a connection that ends is closed, whatever its client does; `None` while a request is in progress.
    pub(super) fn closes_at(&self, limits: &Limits) -> Option<Instant> {
        if self.requests.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let since = self.since.load(Ordering::Relaxed);
        let at = |millis| self.opened + Duration::from_millis(millis);
        let last = at(since.max(self.written.load(Ordering::Relaxed)));
        Some((last + CLOSE_TIMEOUT).min(at(since) + limits.header_timeout))
    }

    fn bytes_arrived(&self) {
        if self.watch_bytes
            && self.requests.load(Ordering::Relaxed) == 0
            && !self.reading.swap(true, Ordering::Relaxed)
        {
            self.mark();
        }
    }

    /// A request has arrived; the connection is busy until the value is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> RequestGuard {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.reading.store(false, Ordering::Relaxed);
        RequestGuard { activity: Arc::clone(self), answered: false }
    }

    /// Whether an HTTP/2 connection has carried a request.
    pub(super) fn has_served(&self) -> bool {
        !self.reading.load(Ordering::Relaxed)
    }

    /// Asks the connection to end.
    fn end(&self) {
        self.ending.notify_one();
    }

    /// Waits until the connection is asked to end. Whether it must do so at once, because its client abuses it.
    pub(super) async fn ending(&self) -> bool {
        self.ending.notified().await;
        self.abused.load(Ordering::Relaxed)
    }

    /// A request is over. Only over HTTP/2 may a client take one back and keep the connection.
    fn note_end(&self, answered: bool) {
        let mut allowance = self.resets.lock().unwrap_or_else(PoisonError::into_inner);
        if answered {
            allowance.regain();
        } else if allowance.exceeded(self.opened.elapsed(), self.max_resets) {
            self.abused.store(true, Ordering::Relaxed);
            self.end();
        }
    }

    /// When the connection is to be closed if nothing changes; `None` while it is busy.
    pub(super) fn deadline(&self, limits: &Limits) -> Option<Instant> {
        if self.requests.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let reading = self.reading.load(Ordering::Relaxed);
        let timeout = if reading { limits.header_timeout } else { limits.idle_timeout };
        Some(self.opened + Duration::from_millis(self.since.load(Ordering::Relaxed)) + timeout)
    }

    /// Whether a header has begun to arrive and not ended.
    pub(super) fn in_header(&self) -> bool {
        self.requests.load(Ordering::Relaxed) == 0 && self.reading.load(Ordering::Relaxed)
    }
}

/// A request in progress, until its response has ended.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    activity: Arc<Activity>,
    answered: bool,
}

impl RequestGuard {
    /// The request has an answer; before, only its client can have ended it.
    pub(crate) fn note_answer(&mut self) {
        self.answered = true;
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.activity.note_end(self.answered);
        if self.activity.requests.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.activity.mark();
        }
    }
}

/// A byte stream that tells when a request begins to arrive, and reads on for a while when it ends.
#[derive(Debug)]
pub(super) struct ActivityStream<S> {
    stream: S,
    activity: Arc<Activity>,
    /// Whether the client has closed its side, and when that is told to the reader.
    is_at_end: bool,
    half_closed: Option<Pin<Box<Sleep>>>,
    linger: Option<Linger>,
}

impl<S> ActivityStream<S> {
    pub(super) fn new(stream: S, activity: Arc<Activity>) -> Self {
        Self { stream, activity, is_at_end: false, half_closed: None, linger: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ActivityStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.is_at_end {
            let before = buf.filled().len();
            match ready!(Pin::new(&mut this.stream).poll_read(cx, buf)) {
                // TLS has no end when the client closes its side of TCP alone; HTTP knows what is missing.
                Err(error)
                    if error.kind() == io::ErrorKind::UnexpectedEof && this.activity.is_answering_body() => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(()) if buf.filled().len() > before => {
                    this.activity.bytes_arrived();
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
        let timer = this.half_closed.get_or_insert_with(|| Box::pin(sleep(HALF_CLOSE_TIMEOUT)));
        timer.as_mut().poll(cx).map(Ok)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ActivityStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.activity.bytes_left();
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
        // HTTP/2 says which requests were not processed, and a tunnel's bytes are not ours to discard.
        if !this.activity.watch_bytes || this.is_at_end || this.activity.upgraded.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        this.linger.get_or_insert_with(Linger::new).poll(&mut this.stream, cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test(start_paused = true)]
    async fn a_header_has_32_seconds_and_an_idle_connection_90() {
        let opened = Instant::now();
        let limits = Limits::default();
        let activity = Activity::new(true, &limits);
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = ActivityStream::new(server, Arc::clone(&activity));
        assert_eq!(
            activity.deadline(&limits),
            Some(opened + limits.header_timeout),
            "the first header is due at once"
        );

        let busy = activity.begin();
        assert_eq!(activity.deadline(&limits), None, "a request in progress may take as long as it likes");
        tokio::time::advance(Duration::from_secs(200)).await;
        drop(busy);
        assert_eq!(activity.deadline(&limits), Some(opened + Duration::from_secs(200) + limits.idle_timeout));

        tokio::time::advance(Duration::from_mins(1)).await;
        client.write_all(b"G").await.unwrap();
        server.read_u8().await.unwrap();
        let begun = opened + Duration::from_secs(260);
        assert_eq!(
            activity.deadline(&limits),
            Some(begun + limits.header_timeout),
            "the first byte starts the header's time"
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
    async fn a_connection_that_closes_has_a_second_after_its_last_write_and_32_in_all() {
        let limits = Limits::default();
        let activity = Activity::new(false, &limits);
        let (_client, server) = tokio::io::duplex(1024);
        let mut server = ActivityStream::new(server, Arc::clone(&activity));
        let request = activity.begin();
        activity.close();
        assert_eq!(activity.closes_at(&limits), None, "a request is in progress");
        drop(request);
        let answered = Instant::now();
        assert_eq!(activity.closes_at(&limits), Some(answered + CLOSE_TIMEOUT));
        for second in 1..40 {
            tokio::time::advance(Duration::from_secs(1)).await;
            server.write_all(b"x").await.unwrap();
            let expected = answered + Duration::from_secs(second + 1).min(limits.header_timeout);
            assert_eq!(activity.closes_at(&limits), Some(expected), "the client reads on");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_client_that_waits_for_its_answer_is_told_after_it_or_a_second() {
        for (has_body, answered, after) in
            [(false, false, Duration::ZERO), (true, true, Duration::ZERO), (true, false, HALF_CLOSE_TIMEOUT)]
        {
            let activity = Activity::new(true, &Limits::default());
            let (client, server) = tokio::io::duplex(64);
            let mut server = ActivityStream::new(server, Arc::clone(&activity));
            activity.note_body(has_body);
            let request = activity.begin();
            drop(client);
            let request = (!answered).then_some(request);
            let started = Instant::now();
            assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
            // A timer of tokio's has a precision of 1 ms.
            let took = started.elapsed();
            assert!(
                (after..=after + Duration::from_millis(1)).contains(&took),
                "{has_body}, {answered}: {took:?}"
            );
            drop(request);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn http2_frames_do_not_count_as_headers() {
        let opened = Instant::now();
        let limits = Limits::default();
        let activity = Activity::new(false, &limits);
        drop(activity.begin());
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = ActivityStream::new(server, Arc::clone(&activity));
        client.write_all(b"p").await.unwrap();
        server.read_u8().await.unwrap();
        assert_eq!(activity.deadline(&limits), Some(opened + limits.idle_timeout));
    }
}
