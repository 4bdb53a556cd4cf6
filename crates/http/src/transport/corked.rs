//! Byte streams that buffer writes while a task runs and send them together when it waits. `h2` writes frame by frame;
//! without the buffer, each frame would be a TLS record and a system call.
//!
//! An [`UncorkOnPoll`] sends the buffer after each poll of a future, which must be the only writer. From then on,
//! flushing the stream does nothing.

use std::cell::RefCell;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use portcullis_system::sync::lock;

use super::connection_buffers::ConnectionBuffers;
use super::header_blocks::{HeaderBlocks, Role};

/// The size of the buffer; a writer waits when it is full.
const MAX_BUFFERED_BYTES: usize = 64 * 1024;
/// The number of empty buffers that a thread keeps. A connection has a buffer only while it has data to write.
const MAX_SPARE_BUFFERS: usize = 16;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A handle to a byte stream with buffered writes. All clones are the same stream.
#[derive(Debug)]
pub struct CorkedStream<S>(Arc<Mutex<CorkState<S>>>);

#[derive(Debug)]
struct CorkState<S> {
    stream: S,
    /// Whether an [`UncorkOnPoll`] sends the buffer; else flushing does.
    has_uncorker: bool,
    buffered: Vec<u8>,
    /// The number of buffered bytes already sent.
    sent: usize,
    /// The write error. The reader receives it once nothing is left to read, since the peer's last message usually has
    /// the cause.
    write_error: Option<io::ErrorKind>,
    /// Notified of the peer's next bytes.
    read_waiter: Option<oneshot::Sender<()>>,
    /// The number of reads that returned bytes.
    read_count: u64,
    /// Whether the writer has more, for which there was no room.
    is_blocked: bool,
    header_blocks: HeaderBlocks,
    buffers: Arc<ConnectionBuffers>,
}

impl<S> CorkedStream<S> {
    /// Wraps the stream of an HTTP/2 connection that accepts header lists of this size; nothing is collected before the first
    /// poll of its connection.
    pub fn new(stream: S, role: Role, max_header_list: usize) -> Self {
        Self(Arc::new(Mutex::new(CorkState {
            stream,
            has_uncorker: false,
            buffered: Vec::new(),
            sent: 0,
            write_error: None,
            read_waiter: None,
            read_count: 0,
            is_blocked: false,
            header_blocks: HeaderBlocks::new(role),
            buffers: ConnectionBuffers::new(max_header_list),
        })))
    }

    /// What the connection holds beside its streams.
    pub fn buffers(&self) -> Arc<ConnectionBuffers> {
        Arc::clone(&self.state().buffers)
    }

    /// The number of reads that returned bytes; changes whenever the peer sends.
    pub(super) fn read_count(&self) -> u64 {
        self.state().read_count
    }

    /// Resolves when the peer's next bytes arrive, or with an error when the stream is dropped.
    pub fn next_read(&self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.state().read_waiter = Some(sender);
        receiver
    }

    fn state(&self) -> MutexGuard<'_, CorkState<S>> {
        lock(&self.0)
    }
}

impl<S> Clone for CorkedStream<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: AsyncWrite + Unpin> CorkState<S> {
    /// Buffers as many bytes as there is room for.
    fn buffer(&mut self, bytes: &[u8]) -> usize {
        if self.buffered.capacity() == 0 {
            let spare = BUFFERS.with_borrow_mut(Vec::pop);
            self.buffered = spare.unwrap_or_else(|| Vec::with_capacity(MAX_BUFFERED_BYTES));
        }
        let taken = bytes.get(..MAX_BUFFERED_BYTES.saturating_sub(self.buffered.len())).unwrap_or(bytes);
        self.buffered.extend_from_slice(taken);
        taken.len()
    }

    /// Waits until the buffer has room.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let polled =
            if self.buffered.len() < MAX_BUFFERED_BYTES { Poll::Ready(()) } else { self.poll_drain(cx) };
        self.is_blocked = polled.is_pending();
        polled
    }

    /// Sends the whole buffer. Keeps an error for the reader.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.buffered.capacity() == 0 {
            return Poll::Ready(());
        }
        if self.write_error.is_none() {
            self.write_error = ready!(self.poll_send(cx)).err().map(|error| error.kind());
            if self.write_error.is_some() {
                cx.waker().wake_by_ref();
            }
        }
        self.sent = 0;
        self.buffered.clear();
        let buffer = std::mem::take(&mut self.buffered);
        BUFFERS.with_borrow_mut(|spare| {
            if spare.len() < MAX_SPARE_BUFFERS {
                spare.push(buffer);
            }
        });
        Poll::Ready(())
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.buffered.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.sent += written,
            }
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CorkedStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let mut guard = self.state();
        let state = &mut *guard;
        if state.header_blocks.needs_pause() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let polled = Pin::new(&mut state.stream).poll_read(cx, buf);
        if let Some(read) = buf.filled().get(before..).filter(|read| !read.is_empty()) {
            state.buffers.note_header_block(state.header_blocks.pass(read));
            state.read_count = state.read_count.wrapping_add(1);
            if let Some(waiter) = state.read_waiter.take() {
                waiter.send(()).ok();
            }
        }
        match state.write_error {
            Some(kind) if polled.is_pending() => Poll::Ready(Err(kind.into())),
            _ => polled,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CorkedStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.state();
        ready!(state.poll_room(cx));
        Poll::Ready(Ok(state.buffer(buf)))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.state();
        ready!(state.poll_room(cx));
        Poll::Ready(Ok(bufs.iter().map(|buf| state.buffer(buf)).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state();
        if state.has_uncorker {
            return Poll::Ready(Ok(()));
        }
        ready!(state.poll_drain(cx));
        Poll::Ready(state.write_error.map_or(Ok(()), |kind| Err(kind.into())))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state();
        ready!(state.poll_drain(cx));
        Pin::new(&mut state.stream).poll_shutdown(cx)
    }
}

pin_project! {
    /// A future that sends the buffer of a stream after each poll.
    pub struct UncorkOnPoll<F, S> {
        #[pin]
        future: F,
        corked: CorkedStream<S>,
    }
}

impl<F, S> UncorkOnPoll<F, S> {
    /// Wraps the future of a connection and the stream that it writes to.
    pub fn new(future: F, corked: CorkedStream<S>) -> Self {
        corked.state().has_uncorker = true;
        Self { future, corked }
    }

    /// The inner future.
    pub fn inner(self: Pin<&mut Self>) -> Pin<&mut F> {
        self.project().future
    }
}

impl<F: Future, S: AsyncWrite + Unpin> Future for UncorkOnPoll<F, S> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let polled = this.future.poll(cx);
        let mut state = this.corked.state();
        // If the stream is not writable, the task wakes when it is.
        if state.poll_drain(cx).is_ready() && !state.is_blocked {
            state.buffers.note_drained();
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// The result of a write: the number of bytes taken, pending, or an error.
    type WriteResult = Poll<io::Result<usize>>;

    /// Records each write.
    #[derive(Debug, Default)]
    struct Sink {
        results: VecDeque<WriteResult>,
        writes: Vec<Vec<u8>>,
        flushes: usize,
        readable: &'static [u8],
    }

    impl AsyncRead for Sink {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            match std::mem::take(&mut self.readable) {
                [] => Poll::Pending,
                bytes => {
                    buf.put_slice(bytes);
                    Poll::Ready(Ok(()))
                }
            }
        }
    }

    impl AsyncWrite for Sink {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            let taken = ready!(self.results.pop_front().unwrap_or(Poll::Ready(Ok(usize::MAX))))?;
            let taken = taken.min(buf.len());
            self.writes.push(buf[..taken].to_vec());
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.flushes += 1;
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn corked(results: impl IntoIterator<Item = WriteResult>) -> CorkedStream<Sink> {
        let sink = Sink { results: results.into_iter().collect(), ..Sink::default() };
        CorkedStream::new(sink, Role::Client, 1 << 20)
    }

    fn written(corked: &CorkedStream<Sink>) -> Vec<Vec<u8>> {
        std::mem::take(&mut corked.state().stream.writes)
    }

    /// Writes and flushes each text in one poll, then waits forever.
    fn writing<'a>(corked: &CorkedStream<Sink>, texts: &'a [&'a str]) -> impl Future<Output = ()> + 'a {
        let mut stream = corked.clone();
        let future = async move {
            for text in texts {
                stream.write_all(text.as_bytes()).await.unwrap();
                stream.flush().await.unwrap();
            }
            std::future::pending::<()>().await;
        };
        UncorkOnPoll::new(future, corked.clone())
    }

    #[test]
    fn writes_of_one_poll_are_sent_together() {
        let corked = corked([]);
        assert!(writing(&corked, &["a", "b", "c"]).now_or_never().is_none());
        assert_eq!(written(&corked), [b"abc"]);
        let state = corked.state();
        assert_eq!((state.stream.flushes, state.buffered.capacity()), (1, 0), "the buffer must be released");
    }

    #[test]
    fn a_partial_write_continues_in_order() {
        let corked = corked([Poll::Ready(Ok(2)), Poll::Pending]);
        let mut writing = Box::pin(writing(&corked, &["abc", "de"]));
        assert!(writing.as_mut().now_or_never().is_none());
        assert_eq!(written(&corked), [b"ab"]);
        assert!(writing.as_mut().now_or_never().is_none());
        assert_eq!(written(&corked), [b"cde"]);
    }

    #[test]
    fn a_writer_waits_for_a_full_buffer() {
        let corked = corked([Poll::Pending, Poll::Pending]);
        let long = "x".repeat(MAX_BUFFERED_BYTES + 1);
        let texts = [long.as_str()];
        let mut writing = Box::pin(writing(&corked, &texts));
        assert!(writing.as_mut().now_or_never().is_none());
        assert_eq!(corked.state().buffered.len(), MAX_BUFFERED_BYTES);
        assert!(writing.as_mut().now_or_never().is_none());
        assert_eq!(written(&corked).concat().len(), MAX_BUFFERED_BYTES + 1);
    }

    #[tokio::test]
    async fn the_reader_receives_a_write_error_after_the_last_byte() {
        let mut corked = corked([Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))]);
        corked.state().stream.readable = b"why";
        let mut stream = corked.clone();
        let future = async move {
            stream.write_all(b"a").await.unwrap();
            tokio::task::yield_now().await;
            stream.write_all(b"b").await.unwrap();
            let mut read = [0; 3];
            stream.read_exact(&mut read).await.unwrap();
            (read, stream.read_u8().await.unwrap_err().kind())
        };
        assert_eq!(UncorkOnPoll::new(future, corked.clone()).await, (*b"why", io::ErrorKind::BrokenPipe));
        assert!(written(&corked).is_empty());
        corked.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn shutdown_sends_the_buffer_first() {
        let corked = corked([]);
        let mut stream = corked.clone();
        stream.write_all(b"a").await.unwrap();
        stream.shutdown().await.unwrap();
        assert_eq!(written(&corked), [b"a"]);
    }
}
