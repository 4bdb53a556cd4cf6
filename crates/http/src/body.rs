//! The body type of the data plane: bytes, or a stream that is forwarded frame by frame without boxing. Guards attached
//! to a body run when it is dropped, however it ends.

mod counted;
mod events;
mod last_step;
mod replay;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use futures_util::future::{Shared, select};
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use portcullis_limits::Owner;
use portcullis_system::sync::lock;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

pub use events::EventTracker;
pub use last_step::LastStep;
pub use replay::{REPLAY_SHARES, Replay};

use counted::note_polled_by_http1;
use last_step::HeldEnd;
use replay::ReplayedBody;

use crate::hop_by_hop::strip_hop_by_hop;
use crate::transport::{BodyError, Direction, ExchangeBuffers, Incoming};

/// A guard whose drop marks the end of a body: a permit, a count, a log line.
pub type EndGuard = Box<dyn std::any::Any + Send + Sync>;

/// Sees the bytes of a body as they pass. It is dropped when the body ends.
pub trait BodyObserver: Send + Sync {
    /// These bytes have passed.
    fn observe(&mut self, data: &Bytes);
}

/// Completes when a body is to end.
pub type BodyEnd = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// A request or response body. Other threads may look at it, as they do at the request that it belongs to.
pub struct Body {
    kind: BodyKind,
    /// Set when the stream fails.
    failed: Option<Arc<AtomicBool>>,
    /// Dropped at the end: for a response the exchange with the client, for a request its share of the HTTP/2 stream.
    guard: Option<EndGuard>,
    /// `None` for almost every body.
    watchers: Option<Box<Watchers>>,
    /// In whose share it counts, for a response.
    owner: Option<Owner>,
    /// Where it counts while hyper may hold bytes of it that are not written, if it is sent over HTTP/1.1.
    http1: Option<(Arc<ExchangeBuffers>, Direction)>,
}

/// What looks at a body while it passes.
#[derive(Default)]
struct Watchers {
    observer: Option<Box<dyn BodyObserver>>,
    revocation: Option<Revocation>,
    events: Option<EventTracker>,
    end: Option<HeldEnd>,
}

/// When the client may receive no more of a body.
struct Revocation {
    end: Shared<BodyEnd>,
    /// Set when `end` has completed: the body ends at the end of a line, or at this time.
    last: Option<Pin<Box<Sleep>>>,
}

/// How long a body that never pauses may go on to the end of its line.
const LINE_TIMEOUT: Duration = Duration::from_secs(1);
/// How much longer a client may take to read it.
const STALL_TIMEOUT: Duration = Duration::from_secs(1);

enum BodyKind {
    /// The bytes that are still to be sent.
    Bytes(Option<Bytes>),
    /// A request body from a client.
    Request(Incoming),
    /// A response body from the backend.
    Response { source: ResponseSource, deadline: BodyDeadline },
    /// A body that was read in part, or that has trailers.
    Read(Box<BufferedBody>),
    /// A request body that can be sent again.
    Replayed(Box<ReplayedBody>),
}

/// The buffered beginning of a body, and its rest.
struct BufferedBody {
    data: Option<Bytes>,
    rest: Option<Body>,
    trailers: Option<HeaderMap>,
}

/// The backend's stream, and the permit released with it.
struct BackendStream {
    incoming: Incoming,
    _permit: EndGuard,
}

/// A stream, and the guard of the exchange that ends with it.
type SharedStream = Mutex<Option<(BackendStream, Option<EndGuard>)>>;

enum ResponseSource {
    Own(Option<BackendStream>),
    /// Shared with a watchdog, which drops it at the deadline even if the client never reads: hyper does not poll a
    /// body while the client's window is full.
    Watched {
        shared: Arc<SharedStream>,
        _watchdog: AbortOnDropHandle<()>,
    },
}

/// When a body ends early. The timer is created only once the body has to wait.
enum BodyDeadline {
    None,
    At(Instant),
    Waiting(Instant, Pin<Box<Sleep>>),
    /// Ends the body without an error when the future completes.
    End(BodyEnd),
}

impl Body {
    fn new(kind: BodyKind) -> Self {
        Self { kind, failed: None, guard: None, watchers: None, owner: None, http1: None }
    }

    /// A body of these bytes.
    pub fn bytes(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::new(BodyKind::Bytes((!bytes.is_empty()).then_some(bytes)))
    }

    /// An empty body.
    pub fn empty() -> Self {
        Self::new(BodyKind::Bytes(None))
    }

    /// A client's body, forwarded to the backend without its trailers: a server might merge them into the headers, and
    /// Go closes the whole HTTP/2 connection if they arrive after it has closed their stream.
    // RFC 9110, section 6.5.1; Go: net/http/h2_bundle.go, processHeaders
    // threat: shared-connection-requests, forged-identity-headers
    pub fn from_client(incoming: Incoming) -> Self {
        Self::new(BodyKind::Request(incoming))
    }

    /// Buffers a body until more than `limit` bytes or all of it are read. Does nothing if it is known to be longer. A
    /// body that is read whole releases its guards and its stream.
    pub async fn read_up_to(mut self, limit: u64) -> Result<Self, BodyError> {
        if self.is_end_stream() || self.size_hint().lower() > limit {
            return Ok(self);
        }
        let mut bytes = BytesMut::new();
        while u64::try_from(bytes.len()).is_ok_and(|read| read <= limit) {
            let frame = poll_fn(|cx| Pin::new(&mut self).poll_frame(cx)).await.transpose()?;
            match frame.map(Frame::into_data) {
                Some(Ok(data)) => bytes.extend_from_slice(&data),
                // Trailers are the last frame.
                Some(Err(frame)) => {
                    let (data, trailers) = (Some(bytes.freeze()), frame.into_trailers().ok());
                    return Ok(Self::new(BodyKind::Read(Box::new(BufferedBody {
                        data,
                        rest: None,
                        trailers,
                    }))));
                }
                None => return Ok(Self::bytes(bytes)),
            }
        }
        let read = BufferedBody { data: Some(bytes.freeze()), rest: Some(self), trailers: None };
        Ok(Self::new(BodyKind::Read(Box::new(read))))
    }

    /// The whole body, if it is here and has no trailers.
    pub fn whole(&self) -> Option<&Bytes> {
        match &self.kind {
            BodyKind::Bytes(bytes) => bytes.as_ref(),
            _ => None,
        }
    }

    /// A backend's body, forwarded to the client. Drops `permit` when it ends.
    pub fn from_backend(incoming: Incoming, permit: EndGuard) -> Self {
        let source = ResponseSource::Own(Some(BackendStream { incoming, _permit: permit }));
        Self::new(BodyKind::Response { source, deadline: BodyDeadline::None })
    }

    /// Makes the body fail at the deadline.
    #[must_use]
    pub fn with_deadline(mut self, instant: Option<Instant>) -> Self {
        match (&mut self.kind, instant) {
            (BodyKind::Response { deadline, .. }, Some(instant)) => *deadline = BodyDeadline::At(instant),
            (BodyKind::Read(read), instant) => {
                read.rest = read.rest.take().map(|rest| rest.with_deadline(instant));
            }
            _ => {}
        }
        self
    }

    /// Ends the body without an error when `ending` completes and no frame is ready, or an end that was set before. Only for
    /// watches, whose clients resume them. A body with a deadline keeps the deadline.
    #[must_use]
    pub fn end_when(mut self, ending: BodyEnd) -> Self {
        if let BodyKind::Response { deadline, .. } = &mut self.kind {
            *deadline = match std::mem::replace(deadline, BodyDeadline::None) {
                BodyDeadline::None => BodyDeadline::End(ending),
                BodyDeadline::End(other) => BodyDeadline::End(Box::pin(select(other, ending).map(drop))),
                deadline => deadline,
            };
        }
        self
    }

    /// The same between two events, after `ending` has completed.
    #[must_use]
    pub fn end_between_events(mut self, ending: BodyEnd, events: EventTracker) -> Self {
        let is_between = events.is_between();
        self.watchers.get_or_insert_default().events = Some(events);
        self.end_when(Box::pin(async move {
            ending.await;
            // No waker: the rest of an event wakes the body, which then polls this again.
            let between = |_: &mut Context<'_>| {
                if is_between.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending }
            };
            poll_fn(between).await;
        }))
    }

    /// Ends the body without an error soon after `end` completes, also if there is always more to read: after a frame
    /// that ends with a line, as the events of a watch do. A client that reads nothing meanwhile gets an error.
    #[must_use]
    pub fn revoke_when(mut self, end: BodyEnd) -> Self {
        let revocation = Revocation { end: end.shared(), last: None };
        self.watchers.get_or_insert_default().revocation = Some(revocation);
        self
    }

    /// Registers a flag to set if the body fails.
    pub fn set_failure_flag(&mut self, failed: Arc<AtomicBool>) {
        self.failed = Some(failed);
    }

    /// Sets the observer of the bytes that pass from here on.
    pub fn set_observer(&mut self, observer: Box<dyn BodyObserver>) {
        self.watchers.get_or_insert_default().observer = Some(observer);
    }

    /// Does a step before the end of the body is passed on, after all else that looks at the body.
    #[must_use]
    pub fn with_last_step(mut self, step: LastStep) -> Self {
        let length = self.size_hint().exact();
        self.watchers.get_or_insert_default().end = Some(HeldEnd::new(step, length));
        self
    }

    fn held_end(&mut self) -> Option<&mut HeldEnd> {
        self.watchers.as_mut()?.end.as_mut()
    }

    /// Attaches a guard, which is dropped when the body ends.
    #[must_use]
    pub fn with_guard(mut self, guard: EndGuard) -> Self {
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
        if let Some(held) = this.held_end().and_then(|end| end.poll_held(cx)) {
            return held;
        }
        let polled = this.poll_passing(cx);
        if this.held_end().is_none() {
            return polled;
        }
        // Takes the lock of an HTTP/2 connection.
        let is_end_stream = this.is_at_end();
        match this.held_end() {
            Some(end) => end.pass(polled, is_end_stream, cx),
            None => polled,
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_to_come = |watchers: &Watchers| watchers.end.as_ref().is_some_and(HeldEnd::is_to_come);
        self.is_at_end() && !self.watchers.as_deref().is_some_and(is_to_come)
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.size_left();
        let held = self
            .watchers
            .as_deref()
            .and_then(|watchers| watchers.end.as_ref())
            .map_or(0, HeldEnd::held_bytes);
        match left.exact() {
            Some(exact) if held > 0 => SizeHint::with_exact(exact.saturating_add(held)),
            _ => left,
        }
    }
}

impl Body {
    fn poll_passing(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self;
        let mut revocation = this.watchers.as_mut().and_then(|watchers| watchers.revocation.as_mut());
        let is_revoked = revocation.as_mut().map(|revocation| revocation.poll(cx));
        if is_revoked == Some(Revoked::Now) {
            this.kind = BodyKind::Bytes(None);
            return Poll::Ready(None);
        }
        let polled = match &mut this.kind {
            BodyKind::Bytes(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            BodyKind::Read(read) => match (read.data.take(), &mut read.rest) {
                (Some(data), rest) => {
                    // The rest is polled only once the client has read this.
                    if let Some(Self { kind: BodyKind::Response { source, deadline }, .. }) = rest {
                        source.watch(deadline, &mut this.guard);
                    }
                    Poll::Ready(Some(Ok(Frame::data(data))))
                }
                (None, Some(rest)) => Pin::new(rest).poll_frame(cx),
                (None, None) => {
                    Poll::Ready(read.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
                }
            },
            BodyKind::Replayed(body) => body.poll_frame(cx),
            // Trailers are the last frame.
            BodyKind::Request(incoming) => Pin::new(incoming)
                .poll_frame(cx)
                .map(|frame| frame.filter(|frame| !frame.as_ref().is_ok_and(Frame::is_trailers))),
            BodyKind::Response { source, deadline } => match source.poll(cx) {
                Poll::Pending => deadline.poll(cx),
                Poll::Ready(frame) => {
                    source.watch(deadline, &mut this.guard);
                    if let Some(revocation) = revocation {
                        source.watch_until(&mut this.guard, revocation.stall());
                    }
                    Poll::Ready(frame.map(|frame| frame.map(strip_trailers)))
                }
            },
        };
        if is_revoked == Some(Revoked::AtEndOfLine) && is_end_of_line(&polled) {
            // Also drops the stream to the backend.
            this.kind = BodyKind::Bytes(None);
            if polled.is_pending() {
                return Poll::Ready(None);
            }
        }
        if let Some((buffers, direction)) = &this.http1 {
            note_polled_by_http1(buffers, *direction, &polled);
        }
        if let (Poll::Ready(Some(Err(_))), Some(failed)) = (&polled, &this.failed) {
            failed.store(true, Ordering::Relaxed);
        }
        if let (Poll::Ready(Some(Ok(frame))), Some(watchers)) = (&polled, &mut this.watchers)
            && let Some(data) = frame.data_ref()
        {
            if let Some(events) = &mut watchers.events {
                events.pass(data);
            }
            if let Some(observer) = &mut watchers.observer {
                observer.observe(data);
            }
        }
        polled
    }

    /// Whether nothing more is to be polled.
    fn is_at_end(&self) -> bool {
        match &self.kind {
            BodyKind::Bytes(bytes) => bytes.is_none(),
            BodyKind::Read(read) => {
                let is_over = read.rest.as_ref().is_none_or(HttpBody::is_end_stream);
                read.data.is_none() && read.trailers.is_none() && is_over
            }
            BodyKind::Request(incoming) => incoming.is_end_stream(),
            BodyKind::Replayed(body) => body.is_end_stream(),
            BodyKind::Response { source: ResponseSource::Own(stream), .. } => {
                stream.as_ref().is_some_and(|stream| stream.incoming.is_end_stream())
            }
            BodyKind::Response { source: ResponseSource::Watched { shared, .. }, .. } => {
                lock(shared).as_ref().is_some_and(|(stream, _)| stream.incoming.is_end_stream())
            }
        }
    }

    /// The size of what is still to be polled.
    fn size_left(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Bytes(bytes) => SizeHint::with_exact(
                bytes.as_ref().map_or(0, |bytes| u64::try_from(bytes.len()).unwrap_or(u64::MAX)),
            ),
            BodyKind::Request(incoming) => incoming.size_hint(),
            BodyKind::Replayed(body) => body.size_hint(),
            BodyKind::Response { source: ResponseSource::Own(Some(stream)), .. } => {
                stream.incoming.size_hint()
            }
            // The length of a partly buffered body is unknown.
            BodyKind::Read(_) | BodyKind::Response { .. } => SizeHint::default(),
        }
    }
}

/// Whether a revoked body goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Revoked {
    No,
    AtEndOfLine,
    Now,
}

impl Revocation {
    /// Completes when a client that does not read has had its time.
    fn stall(&self) -> impl Future<Output = ()> + use<> {
        let end = self.end.clone();
        async move {
            end.await;
            sleep(LINE_TIMEOUT + STALL_TIMEOUT).await;
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Revoked {
        if self.last.is_none() && self.end.poll_unpin(cx).is_ready() {
            self.last = Some(Box::pin(sleep(LINE_TIMEOUT)));
        }
        let Some(last) = &mut self.last else { return Revoked::No };
        if last.as_mut().poll(cx).is_ready() { Revoked::Now } else { Revoked::AtEndOfLine }
    }
}

/// Whether a body may end here: it pauses, or a line has ended.
fn is_end_of_line(polled: &Poll<Option<Result<Frame<Bytes>, BodyError>>>) -> bool {
    match polled {
        Poll::Pending => true,
        Poll::Ready(Some(Ok(frame))) => frame.data_ref().is_some_and(|data| data.ends_with(b"\n")),
        Poll::Ready(_) => false,
    }
}

/// Removes hop-by-hop headers from trailers: HTTP/2 forbids them.
fn strip_trailers(frame: Frame<Bytes>) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            strip_hop_by_hop(&mut trailers);
            Frame::trailers(trailers)
        }
        Err(frame) => frame,
    }
}

impl ResponseSource {
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

    /// Starts the watchdog for a body with a deadline, unless it is complete. The watchdog also drops the exchange, or
    /// a client that never reads would keep its connection busy forever.
    fn watch(&mut self, deadline: &BodyDeadline, exchange: &mut Option<EndGuard>) {
        let (Self::Own(_), BodyDeadline::At(instant) | BodyDeadline::Waiting(instant, _)) =
            (&*self, deadline)
        else {
            return;
        };
        let instant = *instant;
        self.watch_until(exchange, sleep_until(instant));
    }

    /// Drops the stream when `end` completes, unless it is complete already.
    fn watch_until(
        &mut self,
        exchange: &mut Option<EndGuard>,
        end: impl Future<Output = ()> + Send + 'static,
    ) {
        let Self::Own(stream) = self else { return };
        let Some(stream) = stream.take_if(|stream| !stream.incoming.is_end_stream()) else { return };
        let shared = Arc::new(Mutex::new(Some((stream, exchange.take()))));
        // Only the body owns the stream, so that dropping the body drops the stream at once.
        let watched = Arc::downgrade(&shared);
        let task = tokio::spawn(async move {
            end.await;
            if let Some(shared) = watched.upgrade() {
                // Drops outside the lock.
                let ended = lock(&shared).take();
                drop(ended);
            }
        });
        *self = Self::Watched { shared, _watchdog: AbortOnDropHandle::new(task) };
    }
}

impl BodyDeadline {
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
            BodyKind::Bytes(_) => "Body::Bytes",
            BodyKind::Replayed(_) => "Replayed",
            BodyKind::Read(_) => "Body::Read",
            BodyKind::Request(_) => "Body::Request",
            BodyKind::Response { .. } => "Body::Response",
        })
    }
}
