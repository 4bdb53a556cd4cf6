//! A client's body over HTTP/1.1. The unread rest can be read and discarded after the response.
// threat: unread-request-bodies

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::timeout;

use portcullis_system::sync::lock;

use super::buffers::{Direction, ExchangeBuffers};

/// How much of an unread body is discarded before the response, and for how long. hyper closes the connection if the
/// body was not read, and a client that is still sending may lose the response to the following TCP reset.
// Go: net/http/server.go, maxPostHandlerReadBytes; it waits for these bytes without a timeout
const MAX_DISCARDED_BYTES: usize = 256 << 10;
const DISCARD_TIMEOUT: Duration = Duration::from_millis(500);

/// The body for its reader. If dropped before its end, it moves to its [`UnreadBody`].
#[derive(Debug)]
pub struct Http1Upload {
    body: Option<Incoming>,
    was_read: bool,
    rest: Arc<Mutex<UnreadState>>,
    /// Where it counts while hyper may hold bytes that are not read.
    buffers: Arc<ExchangeBuffers>,
}

/// The rest of a body that its reader has dropped.
#[derive(Debug)]
pub struct UnreadBody(Arc<Mutex<UnreadState>>);

#[derive(Debug)]
enum UnreadState {
    /// The reader still has the body.
    Unknown,
    Nothing,
    Dropped {
        body: Incoming,
        was_read: bool,
    },
}

impl Http1Upload {
    /// Wraps the body of a request, which counts in `buffers`; the second part tells how it was read.
    pub fn new(body: Incoming, buffers: &Arc<ExchangeBuffers>) -> (Self, UnreadBody) {
        let rest = Arc::new(Mutex::new(UnreadState::Unknown));
        buffers.note_unread_by_http1(Direction::Request, true);
        let buffers = Arc::clone(buffers);
        (Self { body: Some(body), was_read: false, rest: Arc::clone(&rest), buffers }, UnreadBody(rest))
    }

    pub(super) fn buffers(&self) -> &Arc<ExchangeBuffers> {
        &self.buffers
    }

    pub(super) fn body(&self) -> Option<&Incoming> {
        self.body.as_ref()
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        self.was_read = true;
        let polled = Pin::new(&mut *body).poll_frame(cx);
        self.buffers.note_unread_by_http1(Direction::Request, matches!(polled, Poll::Ready(Some(_))));
        let frame = ready!(polled);
        if !matches!(frame, Some(Ok(_))) || body.is_end_stream() {
            *lock(&self.rest) = UnreadState::Nothing;
        }
        Poll::Ready(frame)
    }
}

impl Drop for Http1Upload {
    fn drop(&mut self) {
        self.buffers.forget(Direction::Request);
        let mut rest = lock(&self.rest);
        if let (UnreadState::Unknown, Some(body)) = (&*rest, self.body.take()) {
            *rest = UnreadState::Dropped { body, was_read: self.was_read };
        }
    }
}

impl UnreadBody {
    /// Discards the rest of the body, within limits. Returns whether it reached the end. Does not read the body of a
    /// client that waits for `100 Continue`: reading would make hyper send it.
    pub async fn discard(self, waits_for_continue: bool) -> bool {
        let rest = std::mem::replace(&mut *lock(&self.0), UnreadState::Nothing);
        match rest {
            UnreadState::Nothing => true,
            // The upload continues during the response, so the response closes the connection.
            UnreadState::Unknown => false,
            UnreadState::Dropped { was_read: false, .. } if waits_for_continue => false,
            UnreadState::Dropped { body, .. } => {
                Box::pin(timeout(DISCARD_TIMEOUT, discard(body))).await.unwrap_or(false)
            }
        }
    }
}

async fn discard(mut body: Incoming) -> bool {
    let mut left = MAX_DISCARDED_BYTES;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        let length = frame.data_ref().map_or(0, Bytes::len);
        let Some(rest) = left.checked_sub(length) else { return false };
        left = rest;
    }
    true
}
