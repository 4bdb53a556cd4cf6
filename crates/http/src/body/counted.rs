//! Where a body counts while it waits, and in whose share.

use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http_body::Frame;
use portcullis_limits::Owner;
use portcullis_system::sync::lock;

use super::{Body, BodyKind, ResponseSource};
use crate::transport::{BodyError, CountedBody, Direction, ExchangeBuffers};

impl Body {
    /// Names the owner in whose share a response counts.
    #[must_use]
    pub fn with_owner(mut self, owner: Option<Owner>) -> Self {
        self.owner = owner;
        self
    }

    /// Takes the owner in whose share a response counts.
    pub fn take_owner(&mut self) -> Option<Owner> {
        self.owner.take()
    }

    /// Where the exchange of a request counts, if it does.
    pub fn buffers(&self) -> Option<Arc<ExchangeBuffers>> {
        match &self.kind {
            BodyKind::Request(incoming) => incoming.buffers().cloned(),
            BodyKind::Replayed(body) => body.buffers(),
            BodyKind::Read(read) => read.rest.as_ref()?.buffers(),
            BodyKind::Bytes(_) | BodyKind::Response { .. } => None,
        }
    }

    /// Counts what hyper may hold of a request, which is sent over HTTP/1.1, if the exchange counts.
    pub fn count_over_http1(&mut self) {
        self.http1 = self.buffers().map(|buffers| (buffers, Direction::Request));
    }

    /// Counts what is held of a response that is sent over HTTP/1.1.
    pub fn count_response_over_http1(&mut self, buffers: &Arc<ExchangeBuffers>) {
        self.count_in(buffers);
        self.http1 = Some((Arc::clone(buffers), Direction::Response));
    }
}

/// hyper has polled a body that it sends. Of a response it is known when all is written; of a request, only that hyper asks for
/// more than there is.
pub(super) fn note_polled_by_http1(
    buffers: &ExchangeBuffers,
    direction: Direction,
    polled: &Poll<Option<Result<Frame<Bytes>, BodyError>>>,
) {
    let has_piece = matches!(polled, Poll::Ready(Some(Ok(_))));
    if has_piece || direction == Direction::Request {
        buffers.note_unsent_by_http1(direction, has_piece);
    }
}

impl CountedBody for Body {
    fn count_in(&mut self, buffers: &Arc<ExchangeBuffers>) {
        match &mut self.kind {
            BodyKind::Response { source: ResponseSource::Own(Some(stream)), .. } => {
                stream.incoming.count_in(buffers, Direction::Response);
            }
            BodyKind::Response { source: ResponseSource::Watched { shared, .. }, .. } => {
                if let Some((stream, _)) = lock(shared).as_mut() {
                    stream.incoming.count_in(buffers, Direction::Response);
                }
            }
            BodyKind::Read(read) => {
                if let Some(rest) = &mut read.rest {
                    rest.count_in(buffers);
                }
            }
            BodyKind::Response { .. } | BodyKind::Bytes(_) | BodyKind::Request(_) | BodyKind::Replayed(_) => {
            }
        }
    }
}
