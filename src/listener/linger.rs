//! The lingering close of an HTTP/1.1 connection: after the server has closed its side, it reads and discards the
//! client's bytes for a while. A close with unread bytes would send a reset, which could overtake the response.
// RFC 9112, section 9.6; Go: net/http/server.go, closeWriteAndWait, which waits 500 ms without reading
// threat: unread-request-bodies

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// The largest request body that kube-apiserver accepts is 3 MiB.
const MAX_LINGER_BYTES: usize = 4 << 20;
/// The limits on the client's silence and on the lingering close as a whole.
const LINGER_SILENCE_TIMEOUT: Duration = Duration::from_millis(500);
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads and discards until the client closes its side or a limit is reached.
#[derive(Debug)]
pub(super) struct LingeringClose {
    left: usize,
    deadline: Instant,
    timer: Pin<Box<Sleep>>,
}

impl LingeringClose {
    pub(super) fn new() -> Self {
        Self {
            left: MAX_LINGER_BYTES,
            deadline: Instant::now() + LINGER_TIMEOUT,
            timer: Box::pin(sleep(LINGER_SILENCE_TIMEOUT)),
        }
    }

    /// Becomes ready when the connection may be closed.
    pub(super) fn poll<S: AsyncRead + Unpin>(&mut self, stream: &mut S, cx: &mut Context<'_>) -> Poll<()> {
        let mut buffer = [0; 8192];
        loop {
            let mut buffer = ReadBuf::new(&mut buffer);
            match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
                Poll::Pending => return self.timer.as_mut().poll(cx),
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => return Poll::Ready(()),
                Poll::Ready(Ok(())) => {}
            }
            let Some(left) = self.left.checked_sub(buffer.filled().len()) else { return Poll::Ready(()) };
            self.left = left;
            let now = Instant::now();
            if now >= self.deadline {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(self.deadline.min(now + LINGER_SILENCE_TIMEOUT));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncWriteExt as _;
    use tokio::time::interval;

    use super::*;

    /// The duration and the bytes read when the client sends a chunk at each interval.
    async fn lingers(chunk: usize, every: Duration) -> (Duration, usize) {
        let (mut client, mut server) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let mut ticks = interval(every);
            loop {
                ticks.tick().await;
                if client.write_all(&vec![0; chunk]).await.is_err() {
                    return;
                }
            }
        });
        let (started, mut linger) = (Instant::now(), LingeringClose::new());
        poll_fn(|cx| linger.poll(&mut server, cx)).await;
        (started.elapsed(), MAX_LINGER_BYTES - linger.left)
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_after_silence_time_or_bytes() {
        let milli = Duration::from_millis;
        let (took, read) = lingers(1, Duration::from_hours(1)).await;
        assert!(took < LINGER_SILENCE_TIMEOUT + milli(10) && read == 1, "a silent client: {took:?}, {read}");
        let (took, read) = lingers(1, milli(100)).await;
        assert!((LINGER_TIMEOUT..LINGER_TIMEOUT + milli(200)).contains(&took), "a slow client: {took:?}");
        assert!(read < 60, "{read}");
        let (took, read) = lingers(60_000, milli(1)).await;
        assert!(took < milli(500), "a fast client: {took:?}");
        assert!(read > MAX_LINGER_BYTES - 10_000, "{read}");
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_when_the_client_closes_the_connection() {
        let (client, mut server) = tokio::io::duplex(16);
        drop(client);
        let (started, mut linger) = (Instant::now(), LingeringClose::new());
        poll_fn(|cx| linger.poll(&mut server, cx)).await;
        assert_eq!(started.elapsed(), Duration::ZERO);
    }
}
