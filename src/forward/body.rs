//! The one body type of the data plane: bytes of our own, or a stream that is passed through frame by frame without
//! a box. What must happen when a stream ends hangs on its guards, which run when the body is dropped, however it ends.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};

/// Something whose drop marks the end of a body: a permit, a count, a log line.
pub(crate) type EndGuard = Box<dyn std::any::Any + Send>;

/// A request or response body.
pub(crate) enum Body {
    /// Bytes of our own.
    Bytes {
        /// What is still to be sent.
        bytes: Option<Bytes>,
        /// What ends with it.
        end: Ends,
    },
    /// A stream from the other side.
    Streaming {
        /// The stream.
        incoming: Incoming,
        /// When it breaks off.
        deadline: Deadline,
        /// What ends with it.
        end: Ends,
    },
}

/// When a body breaks off. Only one that keeps us waiting pays for a timer.
pub(crate) enum Deadline {
    /// It may last as long as it likes.
    None,
    /// Not waited for yet.
    At(Instant),
    /// Being waited for.
    Waiting(Pin<Box<Sleep>>),
}

/// What is dropped with the body; at most the backend's stream and the client's exchange.
#[derive(Default)]
pub(crate) struct Ends {
    /// Set when the stream broke off.
    failed: Option<Arc<AtomicBool>>,
    stream: Option<EndGuard>,
    exchange: Option<EndGuard>,
}

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// The other side broke off.
    #[error(transparent)]
    Hyper(#[from] hyper::Error),
    /// The request took longer than it may; the headers are out, so the connection is aborted.
    #[error("request did not complete within the allotted timeout")]
    Deadline,
}

impl Body {
    /// A body of our own.
    pub(crate) fn bytes(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::Bytes { bytes: (!bytes.is_empty()).then_some(bytes), end: Ends::default() }
    }

    /// No body.
    pub(crate) fn empty() -> Self {
        Self::Bytes { bytes: None, end: Ends::default() }
    }

    /// A body that is passed through.
    pub(crate) fn streaming(incoming: Incoming) -> Self {
        Self::Streaming { incoming, deadline: Deadline::None, end: Ends::default() }
    }

    /// The same body, which breaks off at the deadline.
    #[must_use]
    pub(crate) fn until(self, instant: Option<Instant>) -> Self {
        match self {
            Self::Streaming { incoming, end, .. } => {
                Self::Streaming { incoming, deadline: instant.map_or(Deadline::None, Deadline::At), end }
            }
            bytes @ Self::Bytes { .. } => bytes,
        }
    }

    /// The same body; the flag is set if it breaks off.
    #[must_use]
    pub(crate) fn telling_failure(mut self, failed: Arc<AtomicBool>) -> Self {
        self.ends().failed = Some(failed);
        self
    }

    /// The same body; the backend's stream is given back when it ends.
    #[must_use]
    pub(crate) fn holding_stream(mut self, guard: EndGuard) -> Self {
        self.ends().stream = Some(guard);
        self
    }

    /// The same body; the exchange with the client is over when it ends.
    #[must_use]
    pub(crate) fn holding_exchange(mut self, guard: EndGuard) -> Self {
        self.ends().exchange = Some(guard);
        self
    }

    fn ends(&mut self) -> &mut Ends {
        match self {
            Self::Bytes { end, .. } | Self::Streaming { end, .. } => end,
        }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Bytes { bytes, .. } => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Streaming { incoming, deadline, end } => match Pin::new(incoming).poll_frame(cx) {
                Poll::Ready(Some(Err(error))) => {
                    if let Some(failed) = &end.failed {
                        failed.store(true, Ordering::Relaxed);
                    }
                    Poll::Ready(Some(Err(error.into())))
                }
                Poll::Ready(frame) => Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from))),
                Poll::Pending => {
                    ready!(deadline.poll(cx));
                    Poll::Ready(Some(Err(BodyError::Deadline)))
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Bytes { bytes, .. } => bytes.is_none(),
            Self::Streaming { incoming, .. } => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Bytes { bytes, .. } => SizeHint::with_exact(
                bytes.as_ref().map_or(0, |bytes| u64::try_from(bytes.len()).unwrap_or(u64::MAX)),
            ),
            Self::Streaming { incoming, .. } => incoming.size_hint(),
        }
    }
}

impl Deadline {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Self::At(instant) = self {
            *self = Self::Waiting(Box::pin(sleep_until(*instant)));
        }
        match self {
            Self::None | Self::At(_) => Poll::Pending,
            Self::Waiting(sleep) => sleep.as_mut().poll(cx),
        }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Bytes { .. } => "Body::Bytes",
            Self::Streaming { .. } => "Body::Streaming",
        })
    }
}

impl std::fmt::Debug for Ends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ends")
    }
}
