//! The two versions of HTTP as one: what the other side sends, and why it breaks off. HTTP/1.1 is hyper's; HTTP/2 is
//! spoken through `h2` itself, on both sides of the gateway, since hyper passes each message on to tasks of its own.

mod corked;
mod keep_alive;
mod receiving;
mod sending;
mod upload;

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

pub(crate) use corked::{Corked, Drained};
pub(crate) use keep_alive::KeepAlive;
pub(crate) use receiving::Receiving;
pub(crate) use sending::{send_body, set_content_length};
pub(crate) use upload::Upload;

/// Why a message could not be sent, or was not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransportError {
    /// As HTTP/1.1 has it.
    #[error(transparent)]
    Http1(#[from] hyper::Error),
    /// As HTTP/2 has it.
    #[error(transparent)]
    Http2(#[from] h2::Error),
}

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// The other side broke off.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The other side ended an HTTP/2 stream without ending its body.
    #[error("the body was cut off")]
    Cut,
    /// The request took longer than it may; the headers are out, so the connection is aborted.
    #[error("request did not complete within the allotted timeout")]
    Deadline,
}

/// A body that the other side sends.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// Over HTTP/1.1.
    Http1(hyper::body::Incoming),
    /// Over HTTP/1.1, from a client.
    Upload(Upload),
    /// Over HTTP/2.
    Http2(Receiving),
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
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Upload(upload) => upload.body().is_none_or(Body::is_end_stream),
            Self::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Upload(upload) => upload.body().map(Body::size_hint).unwrap_or_default(),
            Self::Http2(body) => body.length_left().map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}
