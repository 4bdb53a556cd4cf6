//! A body that comes over HTTP/2.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, RecvStream};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body::Frame;
use tokio_util::task::AbortOnDropHandle;

use super::{BodyError, TransportError};

/// The other side's half of a stream. What is read may be sent again at once: there is room for as much as the window
/// says, and it is not read before what came before has gone on.
#[derive(Debug)]
pub(crate) struct Receiving {
    stream: RecvStream,
    /// What is left of the length that was announced.
    left: Option<u64>,
    data_ended: bool,
    /// If this is an answer: the task that sends the body of what it answers. It may go on after the answer, and ends with
    /// whoever wanted that.
    upload: Option<AbortOnDropHandle<()>>,
}

impl Receiving {
    /// The body of a message with these headers.
    pub(crate) fn new(
        headers: &HeaderMap,
        stream: RecvStream,
        upload: Option<AbortOnDropHandle<()>>,
    ) -> Self {
        // h2 has seen to it that it is a number, and that the body has that length.
        let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let left = length.or_else(|| stream.is_end_stream().then_some(0));
        Self { stream, left, data_ended: false, upload }
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if !self.data_ended {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // It fails for more than was received alone.
                    self.stream.flow_control().release_capacity(data.len()).ok();
                    let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
                    self.left = self.left.map(|left| left.saturating_sub(length));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(self.broken_off(error).map(Err)),
                None => self.data_ended = true,
            }
        }
        Poll::Ready(match ready!(self.stream.poll_trailers(cx)) {
            Ok(trailers) => trailers.map(|trailers| Ok(Frame::trailers(trailers))),
            Err(error) => self.broken_off(error).map(Err),
        })
    }

    /// Whether the body has ended, and well.
    pub(super) fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    pub(super) fn length_left(&self) -> Option<u64> {
        self.left
    }

    /// What it means that the stream was reset. Without an error that is how a server that has answered says that it
    /// does not want the rest of an upload; the answer is whole then, but its end has come before the reset, and this is
    /// not asked. Else only a length that was announced tells whether anything is missing.
    // RFC 9113, section 8.1; h2: src/proto/streams/state.rs, recv_reset
    fn broken_off(&self, error: h2::Error) -> Option<BodyError> {
        let is_no_error = error.is_reset() && error.is_remote() && error.reason() == Some(Reason::NO_ERROR);
        match self.left {
            _ if !is_no_error => Some(TransportError::from(error).into()),
            Some(0) => None,
            _ => Some(BodyError::Cut),
        }
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        // The answer is there, and the rest of the upload may still be wanted.
        let is_whole = self.left == Some(0) || self.stream.is_end_stream();
        if let Some(upload) = self.upload.take_if(|_| is_whole) {
            upload.detach();
        }
    }
}
