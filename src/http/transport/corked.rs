//! Byte streams whose writes are gathered as long as the task that makes them runs, and go out together when it waits. An
//! HTTP/2 connection writes frame by frame; without this, each would be a TLS record and a system call.
//!
//! A [`Drained`] sends what is gathered after each step of a future, which must be the only one that writes: once there is
//! one, flushing does nothing any more.

use std::cell::RefCell;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use crate::sync::lock;

/// As much is gathered before a writer has to wait.
const GATHERED: usize = 64 * 1024;
/// Empty buffers that a thread keeps. A connection has one only while it has something to write.
const SPARE: usize = 16;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// One of the ends of a byte stream at which writes are gathered; all ends are the same stream.
#[derive(Debug)]
pub(crate) struct Corked<S>(Arc<Mutex<State<S>>>);

#[derive(Debug)]
struct State<S> {
    stream: S,
    /// Whether a [`Drained`] sends what is gathered; until then it goes out when it is flushed.
    is_drained: bool,
    gathered: Vec<u8>,
    /// How much of it has gone out.
    sent: usize,
    /// Why nothing more goes out. It is the reader who is told, once there is nothing more to read: what was said last
    /// is why, as a rule.
    broken: Option<io::ErrorKind>,
    /// Who waits for the first bytes of the peer.
    waiting: Option<oneshot::Sender<()>>,
    /// How often the peer was heard, in passing.
    heard: u64,
}

impl<S> Corked<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self(Arc::new(Mutex::new(State {
            stream,
            is_drained: false,
            gathered: Vec::new(),
            sent: 0,
            broken: None,
            waiting: None,
            heard: 0,
        })))
    }

    /// Changes whenever the peer says something.
    pub(super) fn times_heard(&self) -> u64 {
        self.state().heard
    }

    /// Ends when the peer has said something, or with an error when it never will.
    pub(crate) fn heard(&self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.state().waiting = Some(sender);
        receiver
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        lock(&self.0)
    }
}

impl<S> Clone for Corked<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: AsyncWrite + Unpin> State<S> {
    /// Takes what there is room for.
    fn gather(&mut self, bytes: &[u8]) -> usize {
        if self.gathered.capacity() == 0 {
            let spare = BUFFERS.with_borrow_mut(Vec::pop);
            self.gathered = spare.unwrap_or_else(|| Vec::with_capacity(GATHERED));
        }
        let taken = bytes.get(..GATHERED.saturating_sub(self.gathered.len())).unwrap_or(bytes);
        self.gathered.extend_from_slice(taken);
        taken.len()
    }

    /// Waits until there is room.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.gathered.len() < GATHERED { Poll::Ready(()) } else { self.poll_drain(cx) }
    }

    /// Sends all that is gathered; an error is kept for the reader.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.gathered.capacity() == 0 {
            return Poll::Ready(());
        }
        if self.broken.is_none() {
            self.broken = ready!(self.poll_send(cx)).err().map(|error| error.kind());
            if self.broken.is_some() {
                cx.waker().wake_by_ref();
            }
        }
        self.sent = 0;
        self.gathered.clear();
        let buffer = std::mem::take(&mut self.gathered);
        BUFFERS.with_borrow_mut(|spare| {
            if spare.len() < SPARE {
                spare.push(buffer);
            }
        });
        Poll::Ready(())
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.gathered.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.sent += written,
            }
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Corked<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let mut state = self.state();
        let polled = Pin::new(&mut state.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            state.heard = state.heard.wrapping_add(1);
            if let Some(waiting) = state.waiting.take() {
                waiting.send(()).ok();
            }
        }
        match state.broken {
            Some(kind) if polled.is_pending() => Poll::Ready(Err(kind.into())),
            _ => polled,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Corked<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.state();
        ready!(state.poll_room(cx));
        Poll::Ready(Ok(state.gather(buf)))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.state();
        ready!(state.poll_room(cx));
        Poll::Ready(Ok(bufs.iter().map(|buf| state.gather(buf)).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state();
        if state.is_drained {
            return Poll::Ready(Ok(()));
        }
        ready!(state.poll_drain(cx));
        Poll::Ready(state.broken.map_or(Ok(()), |kind| Err(kind.into())))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state();
        ready!(state.poll_drain(cx));
        Pin::new(&mut state.stream).poll_shutdown(cx)
    }
}

pin_project! {
    /// A future after each step of which what was gathered goes out.
    pub(crate) struct Drained<F, S> {
        #[pin]
        future: F,
        corked: Corked<S>,
    }
}

impl<F, S> Drained<F, S> {
    pub(crate) fn new(future: F, corked: Corked<S>) -> Self {
        corked.state().is_drained = true;
        Self { future, corked }
    }

    /// The future itself.
    pub(crate) fn inner(self: Pin<&mut Self>) -> Pin<&mut F> {
        self.project().future
    }
}

impl<F: Future, S: AsyncWrite + Unpin> Future for Drained<F, S> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let polled = this.future.poll(cx);
        // If it has to wait, the task is woken when there is room again.
        let _sent = this.corked.state().poll_drain(cx);
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// What becomes of a write: so many bytes are taken, there is no room, or the stream is broken.
    type Fate = Poll<io::Result<usize>>;

    /// Keeps what is written to it at once apart.
    #[derive(Debug, Default)]
    struct Sink {
        fates: VecDeque<Fate>,
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
            let taken = ready!(self.fates.pop_front().unwrap_or(Poll::Ready(Ok(usize::MAX))))?;
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

    fn corked(fates: impl IntoIterator<Item = Fate>) -> Corked<Sink> {
        Corked::new(Sink { fates: fates.into_iter().collect(), ..Sink::default() })
    }

    fn written(corked: &Corked<Sink>) -> Vec<Vec<u8>> {
        std::mem::take(&mut corked.state().stream.writes)
    }

    /// Writes each of these and flushes, in one step, and then waits for ever.
    fn writing<'a>(corked: &Corked<Sink>, texts: &'a [&'a str]) -> impl Future<Output = ()> + 'a {
        let mut stream = corked.clone();
        let future = async move {
            for text in texts {
                stream.write_all(text.as_bytes()).await.unwrap();
                stream.flush().await.unwrap();
            }
            std::future::pending::<()>().await;
        };
        Drained::new(future, corked.clone())
    }

    #[test]
    fn what_is_written_in_one_step_goes_out_at_once() {
        let corked = corked([]);
        assert!(writing(&corked, &["a", "b", "c"]).now_or_never().is_none());
        assert_eq!(written(&corked), [b"abc"]);
        let state = corked.state();
        assert_eq!((state.stream.flushes, state.gathered.capacity()), (1, 0), "nothing is kept");
    }

    #[test]
    fn what_has_no_room_goes_out_in_order_later() {
        let corked = corked([Poll::Ready(Ok(2)), Poll::Pending]);
        let mut writing = Box::pin(writing(&corked, &["abc", "de"]));
        assert!(writing.as_mut().now_or_never().is_none());
        assert_eq!(written(&corked), [b"ab"]);
        assert!(writing.as_mut().now_or_never().is_none());
        assert_eq!(written(&corked), [b"cde"]);
    }

    #[test]
    fn a_writer_waits_when_too_much_is_gathered() {
        let corked = corked([Poll::Pending, Poll::Pending]);
        let long = "x".repeat(GATHERED + 1);
        let texts = [long.as_str()];
        let mut writing = Box::pin(writing(&corked, &texts));
        assert!(writing.as_mut().now_or_never().is_none());
        assert_eq!(corked.state().gathered.len(), GATHERED);
        assert!(writing.as_mut().now_or_never().is_none());
        assert_eq!(written(&corked).concat().len(), GATHERED + 1);
    }

    #[tokio::test]
    async fn a_broken_stream_is_an_error_of_who_reads_when_nothing_is_left_to_read() {
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
        assert_eq!(Drained::new(future, corked.clone()).await, (*b"why", io::ErrorKind::BrokenPipe));
        assert!(written(&corked).is_empty());
        corked.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn the_end_of_a_stream_waits_for_what_was_written() {
        let corked = corked([]);
        let mut stream = corked.clone();
        stream.write_all(b"a").await.unwrap();
        stream.shutdown().await.unwrap();
        assert_eq!(written(&corked), [b"a"]);
    }
}
