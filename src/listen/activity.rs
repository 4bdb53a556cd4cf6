//! Whether a connection is busy, and when one that is not must be closed: 32 s from the first byte of a request to
//! the end of its header, 90 s between requests. hyper has one timer for both, which would cut an idle keep-alive
//! connection after 32 s; so the time is kept here, by a wrapper around the bytes.
// Go: net/http Server.ReadHeaderTimeout and IdleTimeout as pkg/server/secure_serving.go sets them

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::allowance::Allowance;
use super::settings::Limits;

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
    taken_back: Mutex<Allowance>,
    /// Requests that may be taken back at once.
    most_taken_back: u32,
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
            taken_back: Mutex::default(),
            // All streams at once, and once more after they were asked for again.
            most_taken_back: limits.http2_max_streams.saturating_mul(2),
            ending: Notify::new(),
            abused: AtomicBool::new(false),
        })
    }

    fn mark(&self) {
        let elapsed = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.since.store(elapsed, Ordering::Relaxed);
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
    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.reading.store(false, Ordering::Relaxed);
        Busy { activity: Arc::clone(self), answered: false }
    }

    /// Whether an HTTP/2 connection has carried a request.
    pub(super) fn has_served(&self) -> bool {
        !self.reading.load(Ordering::Relaxed)
    }

    /// Asks the connection to end.
    pub(super) fn end(&self) {
        self.ending.notify_one();
    }

    /// Waits until the connection is asked to end. Whether it must do so at once, because its client abuses it.
    pub(super) async fn ending(&self) -> bool {
        self.ending.notified().await;
        self.abused.load(Ordering::Relaxed)
    }

    /// A request is over. Only over HTTP/2 may a client take one back and keep the connection.
    fn note_end(&self, answered: bool) {
        let mut allowance = self.taken_back.lock().unwrap_or_else(PoisonError::into_inner);
        if answered {
            allowance.regain();
        } else if allowance.exceeded(self.opened.elapsed(), self.most_taken_back) {
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
pub(crate) struct Busy {
    activity: Arc<Activity>,
    answered: bool,
}

impl Busy {
    /// The request has an answer; before, only its client can have ended it.
    pub(crate) fn note_answer(&mut self) {
        self.answered = true;
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.activity.note_end(self.answered);
        if self.activity.requests.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.activity.mark();
        }
    }
}

/// A byte stream that tells when a request begins to arrive.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    activity: Arc<Activity>,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, activity: Arc<Activity>) -> Self {
        Self { stream, activity }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if buf.filled().len() > before {
            self.activity.bytes_arrived();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
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

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
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
        let mut server = Watched::new(server, Arc::clone(&activity));
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
    async fn http2_frames_do_not_count_as_headers() {
        let opened = Instant::now();
        let limits = Limits::default();
        let activity = Activity::new(false, &limits);
        drop(activity.begin());
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = Watched::new(server, Arc::clone(&activity));
        client.write_all(b"p").await.unwrap();
        server.read_u8().await.unwrap();
        assert_eq!(activity.deadline(&limits), Some(opened + limits.idle_timeout));
    }
}
