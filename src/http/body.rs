//! The one body type of the data plane: bytes of our own, or a stream that is passed through frame by frame without
//! a box. What must happen when a stream ends hangs on its guards, which run when the body is dropped, however it ends.

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use crate::http::hop_by_hop::strip_hop_by_hop;
use crate::http::transport::{BodyError, Incoming};
use crate::sync::lock;

/// Something whose drop marks the end of a body: a permit, a count, a log line.
pub(crate) type EndGuard = Box<dyn std::any::Any + Send>;

/// A request or response body.
pub(crate) struct Body {
    kind: Kind,
    /// Set when the stream broke off.
    failed: Option<Arc<AtomicBool>>,
    /// What ends with it: of an answer the exchange with the client, of an upload its share in a stream.
    guard: Option<EndGuard>,
}

enum Kind {
    /// Bytes of our own, as far as they are still to be sent.
    Bytes(Option<Bytes>),
    /// A client's, on its way to the backend.
    Request(Incoming),
    /// The backend's, on its way to a client.
    Response { source: Source, deadline: Deadline },
    /// One that was read in part, or has trailers.
    Read(Box<Read>),
}

/// What was read of a body here, and what comes behind it.
struct Read {
    data: Option<Bytes>,
    rest: Option<Body>,
    trailers: Option<HeaderMap>,
}

/// The backend's stream and what is given back with it.
struct Stream {
    incoming: Incoming,
    _permit: EndGuard,
}

/// A stream, and the exchange that ends with it.
type Lent = Mutex<Option<(Stream, Option<EndGuard>)>>;

enum Source {
    Own(Option<Stream>),
    /// Lent to a watchdog, which takes it away at the deadline even if the client never reads: hyper does not
    /// poll a body while the client's window is full.
    Watched {
        shared: Arc<Lent>,
        _watchdog: AbortOnDropHandle<()>,
    },
}

/// When a body breaks off. Only one that keeps us waiting pays for a timer.
enum Deadline {
    None,
    At(Instant),
    Waiting(Instant, Pin<Box<Sleep>>),
    /// Then it ends well.
    End(BoxFuture<'static, ()>),
}

impl Body {
    fn new(kind: Kind) -> Self {
        Self { kind, failed: None, guard: None }
    }

    /// A body of our own.
    pub(crate) fn bytes(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::new(Kind::Bytes((!bytes.is_empty()).then_some(bytes)))
    }

    /// No body.
    pub(crate) fn empty() -> Self {
        Self::new(Kind::Bytes(None))
    }

    /// A client's body, passed on to the backend without its trailers: a receiver might merge them into the header, and Go
    /// ends a whole connection over HTTP/2 if they come after it has closed their stream.
    // RFC 9110, section 6.5.1; Go: net/http/h2_bundle.go, processHeaders
    // threat: shared-connection-requests, forged-identity-headers
    pub(crate) fn of_request(incoming: Incoming) -> Self {
        Self::new(Kind::Request(incoming))
    }

    /// Reads so many bytes of a body, or all of it, unless it is known to be longer. One that was read whole holds nothing
    /// any more.
    pub(crate) async fn read_up_to(mut self, most: u64) -> Result<Self, BodyError> {
        if self.is_end_stream() || self.size_hint().lower() > most {
            return Ok(self);
        }
        let mut bytes = BytesMut::new();
        while u64::try_from(bytes.len()).is_ok_and(|read| read <= most) {
            let frame = poll_fn(|cx| Pin::new(&mut self).poll_frame(cx)).await.transpose()?;
            match frame.map(Frame::into_data) {
                Some(Ok(data)) => bytes.extend_from_slice(&data),
                // Trailers are the last frame.
                Some(Err(frame)) => {
                    let (data, trailers) = (Some(bytes.freeze()), frame.into_trailers().ok());
                    return Ok(Self::new(Kind::Read(Box::new(Read { data, rest: None, trailers }))));
                }
                None => return Ok(Self::bytes(bytes)),
            }
        }
        let read = Read { data: Some(bytes.freeze()), rest: Some(self), trailers: None };
        Ok(Self::new(Kind::Read(Box::new(read))))
    }

    /// A backend's body, passed on to the client; `permit` is given back when it ends.
    pub(crate) fn of_response(incoming: Incoming, permit: EndGuard) -> Self {
        let source = Source::Own(Some(Stream { incoming, _permit: permit }));
        Self::new(Kind::Response { source, deadline: Deadline::None })
    }

    /// The same body, which breaks off at the deadline.
    #[must_use]
    pub(crate) fn until(mut self, instant: Option<Instant>) -> Self {
        match (&mut self.kind, instant) {
            (Kind::Response { deadline, .. }, Some(instant)) => *deadline = Deadline::At(instant),
            (Kind::Read(read), instant) => read.rest = read.rest.take().map(|rest| rest.until(instant)),
            _ => {}
        }
        self
    }

    /// The same body, which ends as if the backend had ended it, once `ending` is over and nothing more has come. Only
    /// for a body whose client can do without the rest: a watch. One that has a deadline keeps it.
    #[must_use]
    pub(crate) fn ending(mut self, ending: BoxFuture<'static, ()>) -> Self {
        if let Kind::Response { deadline: deadline @ Deadline::None, .. } = &mut self.kind {
            *deadline = Deadline::End(ending);
        }
        self
    }

    /// Has the flag set if the body breaks off.
    pub(crate) fn tell_failure(&mut self, failed: Arc<AtomicBool>) {
        self.failed = Some(failed);
    }

    /// The same body; the guard is dropped when it ends.
    #[must_use]
    pub(crate) fn holding(mut self, guard: EndGuard) -> Self {
        self.guard = Some(guard);
        self
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let polled = match &mut this.kind {
            Kind::Bytes(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Kind::Read(read) => match (read.data.take(), &mut read.rest) {
                (Some(data), _) => Poll::Ready(Some(Ok(Frame::data(data)))),
                (None, Some(rest)) => Pin::new(rest).poll_frame(cx),
                (None, None) => {
                    Poll::Ready(read.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
                }
            },
            // Trailers are the last frame.
            Kind::Request(incoming) => Pin::new(incoming)
                .poll_frame(cx)
                .map(|frame| frame.filter(|frame| !frame.as_ref().is_ok_and(Frame::is_trailers))),
            Kind::Response { source, deadline } => match source.poll(cx) {
                Poll::Pending => deadline.poll(cx),
                Poll::Ready(frame) => {
                    source.watch(deadline, &mut this.guard);
                    Poll::Ready(frame.map(|frame| frame.map(clean)))
                }
            },
        };
        if let (Poll::Ready(Some(Err(_))), Some(failed)) = (&polled, &this.failed) {
            failed.store(true, Ordering::Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Bytes(bytes) => bytes.is_none(),
            Kind::Read(read) => {
                let is_over = read.rest.as_ref().is_none_or(HttpBody::is_end_stream);
                read.data.is_none() && read.trailers.is_none() && is_over
            }
            Kind::Request(incoming) => incoming.is_end_stream(),
            Kind::Response { source: Source::Own(stream), .. } => {
                stream.as_ref().is_some_and(|stream| stream.incoming.is_end_stream())
            }
            Kind::Response { source: Source::Watched { shared, .. }, .. } => {
                lock(shared).as_ref().is_some_and(|(stream, _)| stream.incoming.is_end_stream())
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Bytes(bytes) => SizeHint::with_exact(
                bytes.as_ref().map_or(0, |bytes| u64::try_from(bytes.len()).unwrap_or(u64::MAX)),
            ),
            Kind::Request(incoming) => incoming.size_hint(),
            Kind::Response { source: Source::Own(Some(stream)), .. } => stream.incoming.size_hint(),
            // Only what has no known length is read in part.
            Kind::Read(_) | Kind::Response { .. } => SizeHint::default(),
        }
    }
}

/// The frame, without what is about one connection if it is trailers: over HTTP/2 that is an error.
fn clean(frame: Frame<Bytes>) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            strip_hop_by_hop(&mut trailers);
            Frame::trailers(trailers)
        }
        Err(frame) => frame,
    }
}

impl Source {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self {
            Self::Own(Some(stream)) => Pin::new(&mut stream.incoming).poll_frame(cx),
            Self::Own(None) => Poll::Ready(None),
            Self::Watched { shared, .. } => match lock(shared).as_mut() {
                Some((stream, _)) => Pin::new(&mut stream.incoming).poll_frame(cx),
                None => Poll::Ready(Some(Err(BodyError::Deadline))),
            },
        }
    }

    /// Sets the watchdog on a body of several frames that has a deadline. One that came whole needs none. The exchange
    /// ends with it, or a client that never reads would keep its connection busy for ever.
    fn watch(&mut self, deadline: &Deadline, exchange: &mut Option<EndGuard>) {
        let (Self::Own(stream), Deadline::At(instant) | Deadline::Waiting(instant, _)) =
            (&mut *self, deadline)
        else {
            return;
        };
        let instant = *instant;
        let Some(stream) = stream.take_if(|stream| !stream.incoming.is_end_stream()) else { return };
        let shared = Arc::new(Mutex::new(Some((stream, exchange.take()))));
        // The body alone keeps the stream: one that is dropped takes it along at once.
        let watched = Arc::downgrade(&shared);
        let task = tokio::spawn(async move {
            sleep_until(instant).await;
            if let Some(shared) = watched.upgrade() {
                // Dropped outside of the lock.
                let ended = lock(&shared).take();
                drop(ended);
            }
        });
        *self = Self::Watched { shared, _watchdog: AbortOnDropHandle::new(task) };
    }
}

impl Deadline {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Self::At(instant) = self {
            *self = Self::Waiting(*instant, Box::pin(sleep_until(*instant)));
        }
        match self {
            Self::None | Self::At(_) => Poll::Pending,
            Self::Waiting(_, sleep) => sleep.as_mut().poll(cx).map(|()| Some(Err(BodyError::Deadline))),
            Self::End(ending) => ending.as_mut().poll(cx).map(|()| None),
        }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.kind {
            Kind::Bytes(_) => "Body::Bytes",
            Kind::Read(_) => "Body::Read",
            Kind::Request(_) => "Body::Request",
            Kind::Response { .. } => "Body::Response",
        })
    }
}
