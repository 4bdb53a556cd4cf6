//! A common interface to HTTP/1.1 and HTTP/2: incoming bodies and errors. HTTP/1.1 uses hyper. HTTP/2 uses `h2`
//! directly, on both sides of the gateway, because hyper would pass each message through further tasks.

mod corked;
mod keep_alive;
mod receiving;
mod sending;
mod upload;

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

pub use corked::{CorkedStream, UncorkOnPoll};
pub use keep_alive::Http2KeepAlive;
pub use receiving::Http2Body;
pub use sending::{send_body, set_content_length};
pub use upload::Http1Upload;

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
    /// Over HTTP/1.1, from a client.
    Upload(Http1Upload),
    /// Over HTTP/2.
    Http2(Http2Body),
    /// The body of a request that the gateway makes itself.
    Whole(Option<Bytes>),
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
            Self::Upload(body) => body.poll_frame(cx).map_err(|error| TransportError::from(error).into()),
            Self::Http2(body) => body.poll_frame(cx),
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Upload(upload) => upload.body().is_none_or(Body::is_end_stream),
            Self::Http2(body) => body.is_end_stream(),
            Self::Whole(bytes) => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Upload(upload) => upload.body().map(Body::size_hint).unwrap_or_default(),
            Self::Http2(body) => body.length_left().map_or_else(SizeHint::default, SizeHint::with_exact),
            Self::Whole(bytes) => {
                let length = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(length).unwrap_or(u64::MAX))
            }
        }
    }
}
