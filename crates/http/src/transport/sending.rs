//! Sends a body over HTTP/2.

#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::{Reason, SendStream};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, HeaderValue};
use http_body::{Body, Frame};
use portcullis_limits::Owner;
use portcullis_limits::byte_ledger::ByteLedger;
use tokio::time::{Instant, sleep_until, timeout};

use super::buffers::{Direction, ExchangeBuffers, SentBytes};
use super::{BodyError, ConnectionBuffers, TransportError};
use crate::limits::header_list_size;

/// A shorter end of a body may wait for the client's window without its task, and uncounted.
const MAX_UNCOUNTED_BYTES: usize = 4 << 10;
/// How long a client may read nothing at all, or the end of a response wait for it, as long as a request takes by default: what the
/// response holds beside its bytes, a place among the requests in flight above all, is free then.
const UNREAD_TIMEOUT: Duration = Duration::from_mins(1);

/// Why a body was not sent completely.
#[derive(Debug, thiserror::Error)]
pub enum SendBodyError {
    /// The body failed; the stream is reset.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// The receiver reset the stream.
    #[error("the stream was reset: {0}")]
    Reset(Reason),
    /// The stream is closed.
    #[error(transparent)]
    Closed(#[from] h2::Error),
    /// The owner of the exchange holds more memory than any other, and all hold too much; the stream is reset.
    #[error(
        "the stream was reset: its owner has the most bytes in buffers, and all have more than --max-buffered-bytes"
    )]
    Revoked,
    /// The client does not read.
    #[error("the client read nothing for {UNREAD_TIMEOUT:?}")]
    Unread,
}

/// A body that can be counted where it waits.
pub trait CountedBody: Body<Data = Bytes, Error = BodyError> + Unpin {
    /// Counts what is received of it and not read.
    fn count_in(&mut self, buffers: &Arc<ExchangeBuffers>);
}

/// Adds Content-Length if the length of the body is known and the header is absent.
pub fn set_content_length(headers: &mut HeaderMap, body: &impl Body) {
    if let Some(length) = body.size_hint().exact() {
        headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
}

/// Sends the body of a request as fast as the receiver reads it, and counts it in `buffers`. Buffers at most one frame,
/// besides h2's own buffer.
pub async fn send_body<B>(
    body: B,
    stream: SendStream<SentBytes>,
    buffers: Option<Arc<ExchangeBuffers>>,
) -> Result<(), SendBodyError>
where
    B: CountedBody,
{
    Sending { body, stream, account: RequestAccount(buffers) }.run().await
}

/// Sends the body of a response in the same way.
pub async fn send_response_body<B>(
    body: B,
    stream: SendStream<SentBytes>,
    account: ResponseAccount,
) -> Result<(), SendBodyError>
where
    B: CountedBody,
{
    Sending { body, stream, account }.run().await
}

/// Where the bytes of a body count.
trait Account {
    const DIRECTION: Direction;

    /// The reason with which a stream is reset that is given up.
    const REVOKED: Reason;

    /// What counts the exchange, if anything does yet.
    fn buffers(&self) -> Option<&Arc<ExchangeBuffers>>;

    /// A piece of the body, other than the last, is sent.
    fn begin(&mut self);

    /// The receiver does not keep up.
    fn count(&mut self, body: &mut impl CountedBody);

    /// Whether the last bytes may be left to h2, without the task of the exchange.
    fn may_leave(&self, stream: &mut SendStream<SentBytes>, length: usize) -> bool;

    /// The last bytes are left to h2.
    fn leave(&self, length: usize);
}

/// A request counts from its beginning, or never, and longer than the sending of its body.
struct RequestAccount(Option<Arc<ExchangeBuffers>>);

impl Account for RequestAccount {
    const DIRECTION: Direction = Direction::Request;
    const REVOKED: Reason = Reason::CANCEL;

    fn buffers(&self) -> Option<&Arc<ExchangeBuffers>> {
        self.0.as_ref()
    }

    fn begin(&mut self) {}

    fn count(&mut self, _: &mut impl CountedBody) {}

    fn may_leave(&self, _: &mut SendStream<SentBytes>, _: usize) -> bool {
        true
    }

    fn leave(&self, _: usize) {}
}

/// Where a response counts: in the share of its owner, once the client does not keep up.
#[derive(Debug)]
pub struct ResponseAccount {
    buffers: Option<Arc<ExchangeBuffers>>,
    is_counted: bool,
    connection: Arc<ConnectionBuffers>,
    ledger: ByteLedger,
    owner: Owner,
}

impl ResponseAccount {
    /// Of an exchange that counts in `buffers`, if it counts already.
    pub fn new(
        buffers: Option<Arc<ExchangeBuffers>>,
        connection: Arc<ConnectionBuffers>,
        ledger: ByteLedger,
        owner: Owner,
    ) -> Self {
        Self { buffers, is_counted: false, connection, ledger, owner }
    }

    /// Whether headers are to wait, because the client does not read.
    pub fn is_behind(&self) -> bool {
        self.connection.is_behind()
    }

    /// Waits until the client has read enough of what was sent before. Counts the header of this size meanwhile.
    // threat: buffered-bytes-flood, inflight-flood
    pub async fn until_client_reads(
        &mut self,
        header: usize,
        body: &mut impl CountedBody,
        mut poll_reset: impl FnMut(&mut Context<'_>) -> Poll<Result<Reason, h2::Error>>,
    ) -> Result<(), SendBodyError> {
        self.count(body);
        let buffers = Arc::clone(self.begun());
        buffers.set_header(header);
        let until = Instant::now() + UNREAD_TIMEOUT;
        while self.connection.is_behind() {
            let ended = poll_fn(|cx| {
                if buffers.poll_revoked(Self::DIRECTION, cx).is_ready() {
                    return Poll::Ready(SendBodyError::Revoked);
                }
                poll_reset(cx).map(|reset| reset.map_or_else(SendBodyError::from, SendBodyError::Reset))
            });
            tokio::select! {
                biased;
                error = ended => return Err(error),
                () = self.connection.drained() => {}
                () = sleep_until(until) => return Err(SendBodyError::Unread),
            }
        }
        buffers.set_header(0);
        Ok(())
    }

    /// A header of this size is sent. It counts for the connection until all output is written.
    pub fn note_header(&self, size: usize) {
        self.connection.give(size);
    }

    fn begun(&mut self) -> &Arc<ExchangeBuffers> {
        self.buffers.get_or_insert_default()
    }
}

impl Account for ResponseAccount {
    const DIRECTION: Direction = Direction::Response;
    const REVOKED: Reason = Reason::ENHANCE_YOUR_CALM;

    fn buffers(&self) -> Option<&Arc<ExchangeBuffers>> {
        self.buffers.as_ref()
    }

    fn begin(&mut self) {
        self.begun();
    }

    fn count(&mut self, body: &mut impl CountedBody) {
        if std::mem::replace(&mut self.is_counted, true) {
            return;
        }
        let (ledger, owner) = (self.ledger.clone(), self.owner.clone());
        let buffers = self.begun();
        buffers.register(&ledger, owner);
        body.count_in(buffers);
    }

    fn may_leave(&self, stream: &mut SendStream<SentBytes>, length: usize) -> bool {
        let before = self.buffers.as_ref().map_or(0, |buffers| buffers.unsent(Self::DIRECTION).count());
        if before + length <= MAX_UNCOUNTED_BYTES {
            return true;
        }
        // What has no window would stay for as long as the client likes. With a window, only the connection can stay behind.
        stream.reserve_capacity(length.max(1));
        stream.capacity() >= length.max(1)
    }

    fn leave(&self, length: usize) {
        let before = self.buffers.as_ref().map_or(0, |buffers| buffers.unsent(Self::DIRECTION).count());
        self.connection.give(before.saturating_add(length));
    }
}

/// A body that is being sent.
struct Sending<B, A> {
    body: B,
    stream: SendStream<SentBytes>,
    account: A,
}

type Framed = Option<Result<Frame<Bytes>, SendBodyError>>;

impl<B: CountedBody, A: Account> Sending<B, A> {
    async fn run(mut self) -> Result<(), SendBodyError> {
        let sent = self.send_frames().await;
        match &sent {
            Err(SendBodyError::Body(error)) => self.stream.send_reset(reset_reason(error)),
            Err(SendBodyError::Revoked | SendBodyError::Unread) => self.stream.send_reset(A::REVOKED),
            _ => {}
        }
        sent
    }

    async fn send_frames(&mut self) -> Result<(), SendBodyError> {
        while let Some(frame) = poll_fn(|cx| self.poll_frame(cx)).await {
            match frame?.into_data() {
                Ok(data) if self.body.is_end_stream() => return self.end(data, None).await,
                Ok(data) => {
                    if !data.is_empty() {
                        self.account.begin();
                        self.wait_for_capacity().await?;
                    }
                    self.send(data, false)?;
                }
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        return self.end(Bytes::new(), Some(trailers)).await;
                    }
                }
            }
        }
        self.end(Bytes::new(), None).await
    }

    fn send(&mut self, data: Bytes, is_last: bool) -> Result<(), SendBodyError> {
        let data = match self.account.buffers() {
            Some(buffers) if !data.is_empty() => SentBytes::counted(data, buffers.unsent(A::DIRECTION)),
            _ => SentBytes::uncounted(data),
        };
        Ok(self.stream.send_data(data, is_last)?)
    }

    /// Sends the last piece, or the trailers. It is left to h2 while the client keeps up. Else the task of the exchange waits until
    /// all is written, so that it can be given up.
    async fn end(&mut self, data: Bytes, trailers: Option<HeaderMap>) -> Result<(), SendBodyError> {
        let length = data.len() + trailers.as_ref().map_or(0, header_list_size);
        let is_left = self.account.may_leave(&mut self.stream, length);
        if is_left {
            self.account.leave(length);
        } else {
            self.account.count(&mut self.body);
        }
        match trailers {
            Some(trailers) => {
                self.stream.reserve_capacity(0);
                self.stream.send_trailers(trailers)?;
            }
            None => self.send(data, true)?,
        }
        if is_left { Ok(()) } else { self.until_written().await }
    }

    async fn until_written(&mut self) -> Result<(), SendBodyError> {
        let Some(buffers) = self.account.buffers().cloned() else { return Ok(()) };
        let written = poll_fn(|cx| {
            if buffers.unsent(A::DIRECTION).poll_written(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            self.poll_given_up(cx).map(Err)
        });
        timeout(UNREAD_TIMEOUT, written).await.unwrap_or(Err(SendBodyError::Unread))
    }

    /// The next frame of the body, or an error when the stream is given up.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Framed> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(SendBodyError::from)));
        }
        self.poll_given_up(cx).map(|error| Some(Err(error)))
    }

    /// The receiver resets the stream, or its owner has to give way.
    fn poll_given_up(&mut self, cx: &mut Context<'_>) -> Poll<SendBodyError> {
        if let Some(buffers) = self.account.buffers()
            && buffers.poll_revoked(A::DIRECTION, cx).is_ready()
        {
            return Poll::Ready(SendBodyError::Revoked);
        }
        let reset = self.stream.poll_reset(cx);
        reset.map(|reset| reset.map_or_else(SendBodyError::from, SendBodyError::Reset))
    }

    /// Waits for send capacity. Reserves only one byte, and only when there is data: reserved capacity is taken from the
    /// window of the connection, which all its streams share.
    // hyper issue 4003
    async fn wait_for_capacity(&mut self) -> Result<(), SendBodyError> {
        self.stream.reserve_capacity(1);
        if self.stream.capacity() > 0 {
            return Ok(());
        }
        self.account.count(&mut self.body);
        poll_fn(|cx| {
            if let Poll::Ready(error) = self.poll_given_up(cx) {
                return Poll::Ready(Err(error));
            }
            loop {
                match self.stream.poll_capacity(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(0))) => {}
                    Poll::Ready(Some(Ok(_))) => return Poll::Ready(Ok(())),
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error.into())),
                    Poll::Ready(None) => {
                        return Poll::Ready(Err(SendBodyError::Reset(Reason::STREAM_CLOSED)));
                    }
                }
            }
        })
        .await
    }
}

/// The reset reason for a failed body. Never `NO_ERROR`, nor `REFUSED_STREAM`, which would make the receiver retry.
fn reset_reason(error: &BodyError) -> Reason {
    let reason = match error {
        BodyError::Transport(TransportError::Http2(error)) => error.reason(),
        _ => None,
    };
    match reason {
        None | Some(Reason::NO_ERROR | Reason::REFUSED_STREAM) => Reason::INTERNAL_ERROR,
        Some(reason) => reason,
    }
}
