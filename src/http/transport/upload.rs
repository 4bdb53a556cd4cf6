//! A client's body over HTTP/1.1, of which what is left unread can be read and discarded after the request was answered.
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

use crate::sync::lock;

/// How much of a body is read before an answer that does not need it, and for how long. hyper closes the connection
/// under a body that was not read, and a client that still sends may lose the answer to the reset that follows.
// Go: net/http/server.go, maxPostHandlerReadBytes; it waits for these bytes for ever
const MAX_DISCARDED_BYTES: usize = 256 << 10;
const DISCARD_TIMEOUT: Duration = Duration::from_millis(500);

/// The body as its reader has it. Dropped before its end, it goes to its [`Remainder`].
#[derive(Debug)]
pub(crate) struct Upload {
    body: Option<Incoming>,
    was_read: bool,
    rest: Arc<Mutex<Rest>>,
}

/// What the reader of a body has left of it.
#[derive(Debug)]
pub(crate) struct Remainder(Arc<Mutex<Rest>>);

#[derive(Debug)]
enum Rest {
    /// The reader still has the body.
    Unknown,
    Nothing,
    Dropped {
        body: Incoming,
        was_read: bool,
    },
}

impl Upload {
    pub(crate) fn new(body: Incoming) -> (Self, Remainder) {
        let rest = Arc::new(Mutex::new(Rest::Unknown));
        (Self { body: Some(body), was_read: false, rest: Arc::clone(&rest) }, Remainder(rest))
    }

    pub(super) fn body(&self) -> Option<&Incoming> {
        self.body.as_ref()
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        self.was_read = true;
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) || body.is_end_stream() {
            *lock(&self.rest) = Rest::Nothing;
        }
        Poll::Ready(frame)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let mut rest = lock(&self.rest);
        if let (Rest::Unknown, Some(body)) = (&*rest, self.body.take()) {
            *rest = Rest::Dropped { body, was_read: self.was_read };
        }
    }
}

impl Remainder {
    /// Reads what was left unread, within bounds; whether that was the end of the body. A client that waits for
    /// `100 Continue` is not told to go on.
    pub(crate) async fn discard(self, waits_for_continue: bool) -> bool {
        let rest = std::mem::replace(&mut *lock(&self.0), Rest::Nothing);
        match rest {
            Rest::Nothing => true,
            // An upload goes on while its answer comes: the client is told that the connection ends with it.
            Rest::Unknown => false,
            Rest::Dropped { was_read: false, .. } if waits_for_continue => false,
            Rest::Dropped { body, .. } => {
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
