//! What hyper may hold of a body over HTTP/1.1. It does not say how much, but when it holds nothing: when it waits for more of a
//! body that it receives, and when it has flushed what it was to send.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::buffers::{Direction, ExchangeBuffers};

/// A body that counts while hyper may hold bytes of it that are not read.
#[derive(Debug)]
pub struct CountedHttp1Body {
    body: Incoming,
    buffers: Arc<ExchangeBuffers>,
    direction: Direction,
}

impl CountedHttp1Body {
    /// Counts this body here.
    pub(super) fn new(body: Incoming, buffers: &Arc<ExchangeBuffers>, direction: Direction) -> Self {
        buffers.note_unread_by_http1(direction, true);
        Self { body, buffers: Arc::clone(buffers), direction }
    }

    pub(super) fn body(&self) -> &Incoming {
        &self.body
    }

    pub(super) fn buffers(&self) -> &Arc<ExchangeBuffers> {
        &self.buffers
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.buffers.note_unread_by_http1(self.direction, matches!(polled, Poll::Ready(Some(_))));
        polled
    }
}

impl Drop for CountedHttp1Body {
    fn drop(&mut self) {
        self.buffers.forget(self.direction);
    }
}

/// The byte stream of a client's connection over HTTP/1.1, which records how much of a header has arrived, and when hyper has
/// written its output.
#[derive(Debug)]
pub struct Http1Stream<S> {
    stream: S,
    buffers: Arc<ExchangeBuffers>,
}

impl<S> Http1Stream<S> {
    /// Records it in `buffers`, of which all exchanges of the connection count in one after the other.
    pub fn new(stream: S, buffers: Arc<ExchangeBuffers>) -> Self {
        Self { stream, buffers }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Http1Stream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (this, before) = (self.get_mut(), buf.filled().len());
        let polled = Pin::new(&mut this.stream).poll_read(cx, buf);
        this.buffers.note_arrived(buf.filled().len().saturating_sub(before));
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Http1Stream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes the stream once it has written all that it holds.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.stream).poll_flush(cx))?;
        this.buffers.note_unsent_by_http1(Direction::Response, false);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
