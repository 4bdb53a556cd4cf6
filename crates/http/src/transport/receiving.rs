//! Receives a body over HTTP/2.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, RecvStream};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body::Frame;
use tokio_util::task::AbortOnDropHandle;

use super::buffers::{Direction, ExchangeBuffers};
use super::{BodyError, TransportError};

/// A body received on an HTTP/2 stream. Releases flow-control capacity for each frame as soon as it is read: a frame is
/// read only after the previous one was forwarded, so memory stays within one window.
#[derive(Debug)]
pub struct Http2Body {
    stream: RecvStream,
    /// The rest of the announced length.
    left: Option<u64>,
    data_ended: bool,
    /// For a response: the task that sends the request body. It may continue after the response, and is aborted if the
    /// response is dropped early.
    upload: Option<AbortOnDropHandle<()>>,
    /// Where what is not read counts.
    counted: Option<(Arc<ExchangeBuffers>, Direction)>,
    /// Set when all of the body has arrived.
    arrived: Option<Arc<AtomicBool>>,
}

impl Http2Body {
    /// The body of a message with these headers.
    pub fn new(headers: &HeaderMap, stream: RecvStream, upload: Option<AbortOnDropHandle<()>>) -> Self {
        // h2 has validated the number, and enforces the length.
        let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let left = length.or_else(|| stream.is_end_stream().then_some(0));
        Self { stream, left, data_ended: false, upload, counted: None, arrived: None }
    }

    /// Registers a flag to set once all of the body has arrived, and was looked at.
    #[must_use]
    pub fn with_arrival_flag(mut self, arrived: Option<Arc<AtomicBool>>) -> Self {
        self.arrived = arrived;
        self
    }

    fn note_arrival(&mut self) {
        if let Some(arrived) = self.arrived.take_if(|_| self.data_ended || self.stream.is_end_stream()) {
            arrived.store(true, Ordering::Relaxed);
        }
    }

    /// Counts what is received and not read.
    pub fn count_in(&mut self, buffers: &Arc<ExchangeBuffers>, direction: Direction) {
        buffers.receive(direction, self.stream.flow_control().clone());
        self.counted = Some((Arc::clone(buffers), direction));
    }

    /// Where what is not read counts, if it does.
    pub(crate) fn buffers(&self) -> Option<&Arc<ExchangeBuffers>> {
        self.counted.as_ref().map(|(buffers, _)| buffers)
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if !self.data_ended {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // Fails only for more than was received.
                    self.stream.flow_control().release_capacity(data.len()).ok();
                    let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
                    self.left = self.left.map(|left| left.saturating_sub(length));
                    self.note_arrival();
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(self.reset_error(error).map(Err)),
                None => {
                    self.data_ended = true;
                    self.note_arrival();
                }
            }
        }
        Poll::Ready(match ready!(self.stream.poll_trailers(cx)) {
            Ok(trailers) => trailers.map(|trailers| Ok(Frame::trailers(trailers))),
            Err(error) => self.reset_error(error).map(Err),
        })
    }

    /// Whether the body is complete.
    pub(super) fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    pub(super) fn length_left(&self) -> Option<u64> {
        self.left
    }

    /// The error of a reset stream, or `None` if the body is complete. A server that has answered resets the stream
    /// with `NO_ERROR` to refuse the rest of an upload; h2 then reports the end of the body before the reset. In any
    /// other case only an announced length shows whether data is missing.
    // RFC 9113, section 8.1; h2: src/proto/streams/state.rs, recv_reset
    fn reset_error(&self, error: h2::Error) -> Option<BodyError> {
        let is_no_error = error.is_reset() && error.is_remote() && error.reason() == Some(Reason::NO_ERROR);
        match self.left {
            _ if !is_no_error => Some(TransportError::from(error).into()),
            Some(0) => None,
            _ => Some(BodyError::Cut),
        }
    }
}

impl Drop for Http2Body {
    fn drop(&mut self) {
        if let Some((buffers, direction)) = &self.counted {
            buffers.forget(*direction);
        }
        self.note_arrival();
        // The response is complete, but the server may still read the rest of the request.
        let is_whole = self.left == Some(0) || self.stream.is_end_stream();
        if let Some(upload) = self.upload.take_if(|_| is_whole) {
            upload.detach();
        }
    }
}
