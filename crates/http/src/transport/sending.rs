//! Sends a body over HTTP/2.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, HeaderValue};
use http_body::{Body, Frame};

use super::{BodyError, TransportError};

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
}

/// Adds Content-Length if the length of the body is known and the header is absent.
pub fn set_content_length(headers: &mut HeaderMap, body: &impl Body) {
    if let Some(length) = body.size_hint().exact() {
        headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
}

/// Sends a body as fast as the receiver reads it. Buffers at most one frame, besides h2's own buffer.
pub async fn send_body<B>(mut body: B, mut stream: SendStream<Bytes>) -> Result<(), SendBodyError>
where
    B: Body<Data = Bytes, Error = BodyError> + Unpin,
{
    while let Some(frame) = poll_fn(|cx| poll_frame(&mut body, &mut stream, cx)).await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => {
                if let SendBodyError::Body(error) = &error {
                    stream.send_reset(reset_reason(error));
                }
                return Err(error);
            }
        };
        match frame.into_data() {
            Ok(data) => {
                let is_last = body.is_end_stream();
                // The last frame may wait in h2's buffer.
                if !data.is_empty() && !is_last {
                    wait_for_capacity(&mut stream).await?;
                }
                stream.send_data(data, is_last)?;
                if is_last {
                    return Ok(());
                }
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    stream.reserve_capacity(0);
                    return Ok(stream.send_trailers(trailers)?);
                }
            }
        }
    }
    Ok(stream.send_data(Bytes::new(), true)?)
}

type Framed = Option<Result<Frame<Bytes>, SendBodyError>>;

/// The next frame of a body, or an error when the receiver resets the stream.
fn poll_frame<B>(body: &mut B, stream: &mut SendStream<Bytes>, cx: &mut Context<'_>) -> Poll<Framed>
where
    B: Body<Data = Bytes, Error = BodyError> + Unpin,
{
    if let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) {
        return Poll::Ready(frame.map(|frame| frame.map_err(SendBodyError::from)));
    }
    poll_reset(stream, cx).map(|error| Some(Err(error)))
}

fn poll_reset(stream: &mut SendStream<Bytes>, cx: &mut Context<'_>) -> Poll<SendBodyError> {
    stream.poll_reset(cx).map(|reset| reset.map_or_else(SendBodyError::from, SendBodyError::Reset))
}

/// Waits for send capacity. Reserves only one byte, and only when there is data: reserved capacity is taken from the
/// window of the connection, which all its streams share.
// hyper issue 4003
async fn wait_for_capacity(stream: &mut SendStream<Bytes>) -> Result<(), SendBodyError> {
    stream.reserve_capacity(1);
    if stream.capacity() > 0 {
        return Ok(());
    }
    poll_fn(|cx| {
        if let Poll::Ready(error) = poll_reset(stream, cx) {
            return Poll::Ready(Err(error));
        }
        loop {
            match stream.poll_capacity(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(0))) => {}
                Poll::Ready(Some(Ok(_))) => return Poll::Ready(Ok(())),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error.into())),
                Poll::Ready(None) => return Poll::Ready(Err(SendBodyError::Reset(Reason::STREAM_CLOSED))),
            }
        }
    })
    .await
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
