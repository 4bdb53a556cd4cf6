//! A common interface to HTTP/1.1 and HTTP/2: incoming bodies and errors. HTTP/1.1 uses hyper. HTTP/2 uses `h2`
//! directly, on both sides of the gateway, because hyper would pass each message through further tasks.

mod buffers;
mod connection_buffers;
mod corked;
mod header_blocks;
mod http1_buffers;
mod keep_alive;
mod receiving;
mod sending;
mod upload;
mod windows;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

pub use buffers::{Direction, ExchangeBuffers, SentBytes};
pub use connection_buffers::{ConnectionBuffers, UploadGuard};
pub use corked::{CorkedStream, UncorkOnPoll};
pub use header_blocks::Role;
pub use http1_buffers::{CountedHttp1Body, Http1Stream};
pub use keep_alive::Http2KeepAlive;
pub use receiving::Http2Body;
pub use sending::{
    CountedBody, ResponseAccount, SendBodyError, send_body, send_response_body, set_content_length,
};
pub use upload::Http1Upload;
pub use windows::StreamWindows;

/// Why a message could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// An error of HTTP/1.1.
    #[error(transparent)]
    Http1(#[from] hyper::Error),
    /// An error of HTTP/2.
    #[error(transparent)]
    Http2(#[from] h2::Error),
}

/// Why a body failed.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The connection or stream failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The peer ended an HTTP/2 stream before the end of the body.
    #[error("the body was cut off")]
    Cut,
    /// The request timed out after the headers were sent, so the connection is aborted.
    #[error("request did not complete within the allotted timeout")]
    Deadline,
}

/// An incoming body.
#[derive(Debug)]
pub enum Incoming {
    /// Over HTTP/1.1.
    Http1(hyper::body::Incoming),
    /// Over HTTP/1.1, counted.
    CountedHttp1(Box<CountedHttp1Body>),
    /// Over HTTP/1.1, from a client.
    Upload(Http1Upload),
    /// Over HTTP/2.
    Http2(Http2Body),
    /// The body of a request that the gateway makes itself.
    Whole(Option<Bytes>),
}

impl Incoming {
    /// Counts what is received and not read.
    pub fn count_in(&mut self, buffers: &Arc<ExchangeBuffers>, direction: Direction) {
        match std::mem::replace(self, Self::Whole(None)) {
            Self::Http1(body) if !body.is_end_stream() => {
                *self = Self::CountedHttp1(Box::new(CountedHttp1Body::new(body, buffers, direction)));
            }
            Self::Http2(mut body) => {
                body.count_in(buffers, direction);
                *self = Self::Http2(body);
            }
            other => *self = other,
        }
    }

    /// Where the exchange counts, if it does.
    pub fn buffers(&self) -> Option<&Arc<ExchangeBuffers>> {
        match self {
            Self::Http1(_) | Self::Whole(_) => None,
            Self::CountedHttp1(body) => Some(body.buffers()),
            Self::Upload(upload) => Some(upload.buffers()),
            Self::Http2(body) => body.buffers(),
        }
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Http1(body) => {
                Pin::new(body).poll_frame(cx).map_err(|error| TransportError::from(error).into())
            }
            Self::CountedHttp1(body) => {
                body.poll_frame(cx).map_err(|error| TransportError::from(error).into())
            }
            Self::Upload(body) => body.poll_frame(cx).map_err(|error| TransportError::from(error).into()),
            Self::Http2(body) => body.poll_frame(cx),
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::CountedHttp1(body) => body.body().is_end_stream(),
            Self::Upload(upload) => upload.body().is_none_or(Body::is_end_stream),
            Self::Http2(body) => body.is_end_stream(),
            Self::Whole(bytes) => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::CountedHttp1(body) => body.body().size_hint(),
            Self::Upload(upload) => upload.body().map(Body::size_hint).unwrap_or_default(),
            Self::Http2(body) => body.length_left().map_or_else(SizeHint::default, SizeHint::with_exact),
            Self::Whole(bytes) => {
                let length = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(length).unwrap_or(u64::MAX))
            }
        }
    }
}
