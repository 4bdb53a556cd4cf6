//! One connection: handshake, facts, HTTP/1.1 or HTTP/2 by ALPN, idle times, graceful end. And the worker threads that
//! carry connections, each a runtime of its own.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::HeaderValue;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::{debug, info, warn};

use super::Handler;
use super::activity::{Activity, Busy, CLOSE_TIMEOUT, Watched};
use super::http1;
use super::http2::Http2;
use super::settings::Limits;
use super::watches::WatchTermination;
use crate::authn::ConnInfo;
use crate::authn::x509::{UnverifiedChain, VerdictMemo};
use crate::http::transport::{CorkedStream, TransportError, UncorkOnPoll};
use crate::listener::http_on_tls_port::expect_tls;
use crate::listener::unauthenticated_quota::Newcomer;
use crate::metrics::Metrics;

/// Go's limit of a request's header, with its slack.
// Go: net/http DefaultMaxHeaderBytes
pub(crate) const MAX_HEADER_BYTES: usize = (1 << 20) + 4096;

/// How far the server is on its way down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Drain {
    /// Not at all.
    Serving,
    /// It says so, and serves on.
    Leaving,
    /// Connections end when their requests have.
    Draining,
    /// Watches end now.
    EndingWatches,
    /// Connections end now.
    Abort,
}

/// The server's shutdown as its connections see it.
#[derive(Debug, Clone)]
pub(crate) struct Draining {
    /// How far it is.
    pub(crate) phase: watch::Receiver<Drain>,
    /// When each watch ends.
    pub(crate) watches: Arc<WatchTermination>,
}

/// How long a connection that carries no request is kept while the server drains: what its client has just sent is
/// answered, and not lost.
const LINGER: Duration = Duration::from_secs(1);
/// How long an HTTP/1.1 client that sends no request, or reads no answer, can keep the server from ending.
// Go: net/http/server.go, closeIdleConns
const SILENT_AT_SHUTDOWN: Duration = Duration::from_secs(5);

/// A client's connection, as its requests see it.
#[derive(Debug)]
pub(crate) struct Connection {
    /// What is known of the client.
    pub(crate) info: ConnInfo,
    /// The client's address, as a header has it.
    pub(crate) address: HeaderValue,
    /// Whether it speaks HTTP/2.
    pub(crate) http2: bool,
    /// When the client's certificate ends, in seconds since 1970.
    pub(crate) certificate_ends: Option<i64>,
    pub(super) activity: Arc<Activity>,
    open: Open,
    drain: watch::Receiver<Drain>,
    watches: Arc<WatchTermination>,
    /// Its place among those that nobody has proven to be somebody on.
    newcomer: Mutex<Option<Newcomer>>,
}

impl Connection {
    /// Marks a request as begun; the connection is not idle until the value is dropped.
    pub(crate) fn begin_request(&self) -> Busy {
        self.activity.begin()
    }

    /// Ends an HTTP/2 connection once the requests in progress are answered: GOAWAY, and no request more.
    pub(crate) fn close_gracefully(&self) {
        self.activity.close();
    }

    /// Whether new requests are refused.
    pub(super) fn is_closing(&self) -> bool {
        self.activity.is_closing()
    }

    /// Somebody has proven who he is: the connection need not make room for others any more.
    pub(crate) fn note_known(&self) {
        let newcomer = self.newcomer.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(newcomer);
    }

    /// Whether the server drains, so that the client had better go elsewhere with its next request.
    pub(crate) fn is_leaving(&self) -> bool {
        *self.drain.borrow() >= Drain::Draining
    }

    /// Completes when a watch is to end because the server shuts down.
    pub(crate) fn watch_end(&self) -> BoxFuture<'static, ()> {
        let (drain, watches) = (self.drain.clone(), Arc::clone(&self.watches));
        Box::pin(async move {
            reached(drain.clone(), Drain::Draining).await;
            // Boxed: a watch needs this at its end alone.
            Box::pin(async move {
                let Some(end) = watches.next() else { return reached(drain, Drain::EndingWatches).await };
                tokio::select! {
                    () = reached(drain, Drain::EndingWatches) => {}
                    () = sleep_until(end) => {}
                }
            })
            .await;
        })
    }

    /// Keeps the connection counted as open, for a tunnel that outlives its HTTP.
    pub(crate) fn keep_open(&self) -> Open {
        self.open.clone()
    }
}

/// Waits until the server has come to this step of its shutdown; for ever if it is gone.
async fn reached(mut drain: watch::Receiver<Drain>, step: Drain) {
    if drain.wait_for(|phase| *phase >= step).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// A count of one open connection.
#[derive(Debug)]
pub(crate) struct Open(Arc<OpenCount>);

#[derive(Debug, Default)]
struct OpenCount {
    count: AtomicUsize,
    changed: Notify,
}

impl Open {
    fn new(count: &Arc<OpenCount>) -> Self {
        count.count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Clone for Open {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.changed.notify_one();
        }
    }
}

/// A thread that carries connections.
#[derive(Debug)]
pub(crate) struct Worker {
    sender: mpsc::UnboundedSender<Accepted<std::net::TcpStream>>,
    open: Arc<OpenCount>,
    thread: std::thread::JoinHandle<()>,
}

impl Worker {
    /// Starts a thread. `terms` are those of each new connection.
    pub(crate) fn start<H: Handler>(
        name: String,
        handler: Arc<H>,
        terms: impl Fn() -> (Arc<ServerConfig>, Limits) + Send + 'static,
        metrics: Arc<Metrics>,
        shutdown: Draining,
    ) -> io::Result<Self> {
        let (sender, mut receiver) = mpsc::unbounded_channel::<Accepted<std::net::TcpStream>>();
        let open = Arc::new(OpenCount::default());
        let counted = Arc::clone(&open);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = async move {
            let aborted = async |mut drain: watch::Receiver<Drain>| {
                drain.wait_for(|phase| *phase == Drain::Abort).await.ok();
            };
            let mut aborting = pin!(aborted(shutdown.phase.clone()));
            loop {
                let accepted = tokio::select! {
                    received = receiver.recv() => match received { Some(received) => received, None => break },
                    () = &mut aborting => return,
                };
                let Ok(connection) = accepted.register() else {
                    continue;
                };
                let metrics = Arc::clone(&metrics);
                let (tls, limits) = terms();
                tokio::spawn(connection.serve(tls, Arc::clone(&handler), limits, metrics, shutdown.clone()));
            }
            // No more connections come; the runtime, and every task on it, goes when the last one has ended.
            while counted.count.load(Ordering::Relaxed) > 0 {
                tokio::select! {
                    () = counted.changed.notified() => {}
                    () = &mut aborting => return,
                }
            }
        };
        let thread = std::thread::Builder::new().name(name).spawn(move || runtime.block_on(run))?;
        Ok(Self { sender, open, thread })
    }

    /// Gives the worker a connection. It counts from now on, or all that come at once would go to one worker.
    pub(super) fn hand_over(&self, stream: std::net::TcpStream, peer: SocketAddr, newcomer: Newcomer) {
        let accepted = Accepted { stream, peer, newcomer, open: Open::new(&self.open) };
        if self.sender.send(accepted).is_err() {
            warn!(%peer, "the worker has ended, connection dropped");
        }
    }

    /// How many connections and tunnels it carries.
    pub(super) fn open_connections(&self) -> usize {
        self.open.count.load(Ordering::Relaxed)
    }

    /// Waits for the thread; it ends when its connections have, or at [`Drain::Abort`].
    pub(crate) fn join(self) {
        drop(self.sender);
        if self.thread.join().is_err() {
            warn!("a worker thread panicked");
        }
    }
}

struct Accepted<S> {
    stream: S,
    peer: SocketAddr,
    newcomer: Newcomer,
    open: Open,
}

impl Accepted<std::net::TcpStream> {
    /// The connection, known to the runtime that this is called in.
    fn register(self) -> io::Result<Accepted<TcpStream>> {
        let Self { stream, peer, newcomer, open } = self;
        Ok(Accepted { stream: TcpStream::from_std(stream)?, peer, newcomer, open })
    }
}

impl Accepted<TcpStream> {
    async fn serve<H: Handler>(
        self,
        tls: Arc<ServerConfig>,
        handler: Arc<H>,
        limits: Limits,
        metrics: Arc<Metrics>,
        Draining { phase: drain, watches }: Draining,
    ) {
        let Self { stream, peer, newcomer, open } = self;
        let given_up = newcomer.given_up();
        // Boxed, so that the handshake's state is gone once the connection serves.
        let handshake = async { TlsAcceptor::from(tls).accept(expect_tls(stream).await?).await };
        let handshake = Box::pin(timeout(limits.header_timeout, handshake));
        let mut ending = drain.clone();
        let handshake = tokio::select! {
            handshake = handshake => handshake,
            // A server that ends waits a moment for those that have begun.
            () = async {
                ending.wait_for(|phase| *phase >= Drain::Draining).await.ok();
                sleep(LINGER).await;
            } => return,
            () = given_up.notified() => return,
        };
        let stream = match handshake {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                metrics.connections.tls_handshake_errors.inc();
                debug!(%peer, %error, "TLS handshake failed");
                return;
            }
            Err(_) => {
                metrics.connections.tls_handshake_errors.inc();
                debug!(%peer, "TLS handshake took too long");
                return;
            }
        };
        let (_, session) = stream.get_ref();
        let http2 = session.alpn_protocol() == Some(b"h2");
        let chain = session.peer_certificates().unwrap_or_default().to_vec();
        let info = ConnInfo {
            peer: SocketAddr::new(peer.ip().to_canonical(), peer.port()),
            server_name: session.server_name().map(str::to_owned),
            peer_chain: UnverifiedChain::new(chain),
            verdicts: VerdictMemo::default(),
        };
        let connection = Connection {
            certificate_ends: info.peer_chain.leaf_not_after(),
            // An address has no bytes that a header could not have.
            address: HeaderValue::try_from(info.peer.ip().to_string())
                .unwrap_or_else(|_| HeaderValue::from_static("")),
            info,
            http2,
            activity: Activity::new(!http2, &limits),
            open,
            drain: drain.clone(),
            watches,
            newcomer: Mutex::new(Some(newcomer)),
        };
        let connection = Arc::new(connection);
        let serving = serving(stream, &connection, handler, limits);
        // A task of its own: what the handshake took is not kept as long as the connection.
        tokio::spawn(async move {
            tokio::select! {
                () = drive(serving, &connection, limits, &metrics, drain) => {}
                () = given_up.notified() => debug!(%peer, "connection given up for others"),
            }
        });
    }
}

/// Answers the requests of a connection.
fn serving<H: Handler>(
    stream: TlsStream<TcpStream>,
    connection: &Arc<Connection>,
    handler: Arc<H>,
    limits: Limits,
) -> Pin<Box<dyn Serving>> {
    let stream = Watched::new(stream, Arc::clone(&connection.activity));
    if connection.http2 {
        let corked = CorkedStream::new(stream);
        let serving = Http2::new(corked.clone(), handler, Arc::clone(connection), limits);
        return Box::pin(UncorkOnPoll::new(serving, corked));
    }
    Box::pin(http1::serve(stream, Arc::clone(connection), handler))
}

/// Serves a connection to its end.
async fn drive(
    mut serving: Pin<Box<dyn Serving>>,
    connection: &Connection,
    limits: Limits,
    metrics: &Metrics,
    mut drain: watch::Receiver<Drain>,
) {
    let peer = connection.info.peer;
    let activity = Arc::clone(&connection.activity);
    let mut timer = pin!(sleep_until(tokio::time::Instant::now() + limits.header_timeout));
    let mut asked_to_end = false;
    let mut leaving = false;
    let mut left_at = tokio::time::Instant::now();
    loop {
        tokio::select! {
            ended = poll_fn(|cx| serving.as_mut().poll(cx)) => {
                if let Err(error) = ended {
                    debug!(%peer, %error, "connection ended");
                }
                return;
            }
            abused = activity.ending() => {
                if abused {
                    metrics.connections.reset_limit_closed.inc();
                    info!(%peer, "too many requests were taken back, connection ended");
                    serving.as_mut().calm_down();
                    timeout(LINGER, poll_fn(|cx| serving.as_mut().poll(cx))).await.ok();
                    return;
                }
                serving.as_mut().graceful_shutdown();
                timer.as_mut().reset(tokio::time::Instant::now() + CLOSE_TIMEOUT);
            }
            changed = drain.changed() => match (changed, *drain.borrow_and_update()) {
                (Err(_), _) | (Ok(()), Drain::Abort) => return,
                (Ok(()), Drain::Serving | Drain::Leaving) => {}
                (Ok(()), Drain::Draining | Drain::EndingWatches) => {
                    // GOAWAY loses no request. HTTP/1.1 has nothing like it, so its client is told with the next answer.
                    if connection.http2 && activity.has_served() {
                        serving.as_mut().graceful_shutdown();
                    }
                    if !leaving {
                        left_at = tokio::time::Instant::now();
                    }
                    leaving = true;
                    activity.note_leaving();
                    timer.as_mut().reset(tokio::time::Instant::now() + LINGER);
                }
            },
            () = timer.as_mut() => {
                let now = tokio::time::Instant::now();
                if activity.is_ending() {
                    match activity.closes_at(&limits) {
                        Some(at) if at <= now => {
                            debug!(%peer, "the client does not close the connection");
                            return;
                        }
                        Some(at) => timer.as_mut().reset(at),
                        None => timer.as_mut().reset(now + CLOSE_TIMEOUT),
                    }
                    continue;
                }
                match activity.deadline(&limits) {
                    Some(_)
                        if leaving
                            && !connection.http2
                            && activity.silent_since().max(left_at) + SILENT_AT_SHUTDOWN <= now =>
                    {
                        debug!(%peer, "the client is silent, and the server ends");
                        return;
                    }
                    idle if leaving => {
                        if connection.http2 || idle.is_some() {
                            serving.as_mut().graceful_shutdown();
                        }
                        if connection.http2 {
                            activity.note_goodbye();
                        }
                        timer.as_mut().reset(now + LINGER);
                    }
                    Some(deadline) if deadline <= now && activity.in_header() => {
                        debug!(%peer, "the request header took too long");
                        return;
                    }
                    // hyper waits for what it has written to leave, which is for ever if the client does not read.
                    Some(deadline) if deadline <= now && asked_to_end => {
                        debug!(%peer, "the client does not read");
                        return;
                    }
                    Some(deadline) if deadline <= now => {
                        asked_to_end = true;
                        serving.as_mut().graceful_shutdown();
                        timer.as_mut().reset(now + limits.header_timeout);
                    }
                    // Looked at again when it may have become due; requests do not touch the timer.
                    Some(deadline) => timer.as_mut().reset(deadline),
                    None => timer.as_mut().reset(now + limits.header_timeout),
                }
            }
        }
    }
}

/// The bytes of a connection.
pub(super) type Stream = Watched<TlsStream<TcpStream>>;

/// The two kinds of connection as one.
pub(super) trait Serving: Send {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>>;

    /// Takes no more requests and ends once those in progress are answered.
    fn graceful_shutdown(self: Pin<&mut Self>);

    /// Takes no more requests and ends, because the client asks too much. Nothing over HTTP/1.1, which asks for one
    /// thing at a time.
    fn calm_down(self: Pin<&mut Self>) {}
}

impl<H: Handler> Serving for UncorkOnPoll<Http2<H>, Stream> {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Future::poll(self, cx).map_err(TransportError::from)
    }

    fn graceful_shutdown(self: Pin<&mut Self>) {
        self.inner().get_mut().graceful_shutdown();
    }

    fn calm_down(self: Pin<&mut Self>) {
        self.inner().get_mut().calm_down();
    }
}
