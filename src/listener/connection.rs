//! One connection: handshake, facts, HTTP/1.1 or HTTP/2 by ALPN, idle times, graceful end. And the worker threads that
//! carry connections, each a runtime of its own.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::HeaderValue;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::debug;

use super::Handler;
use super::activity::{Activity, ActivityStream, RequestGuard};
use super::driver::{Driver, Serving};
use super::http1;
use super::http2::Http2;
use super::settings::Limits;
use super::watches::WatchTermination;
use crate::authn::ConnInfo;
use crate::authn::x509::{UnverifiedChain, VerdictMemo};
use crate::http::transport::{CorkedStream, UncorkOnPoll};
use crate::listener::http_on_tls_port::expect_tls;
use crate::listener::unauthenticated_quota::QuotaSlot;
use crate::metrics::Metrics;

/// How far the server is on its way down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ShutdownPhase {
    /// Not at all.
    Serving,
    /// It says so, and serves on.
    NotReady,
    /// Connections end when their requests have.
    Draining,
    /// Watches end now.
    EndingWatches,
    /// Connections end now.
    Abort,
}

/// The server's shutdown as its connections see it.
#[derive(Debug, Clone)]
pub(crate) struct ShutdownSignals {
    /// How far it is.
    pub(crate) phase: watch::Receiver<ShutdownPhase>,
    /// When each watch ends.
    pub(crate) watches: Arc<WatchTermination>,
}

/// How long a connection that carries no request is kept while the server drains: what its client has just sent is
/// answered, and not lost.
pub(super) const DRAIN_LINGER_TIMEOUT: Duration = Duration::from_secs(1);

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
    drain: watch::Receiver<ShutdownPhase>,
    watches: Arc<WatchTermination>,
    /// Its place among those that nobody has proven to be somebody on.
    slot: Mutex<Option<QuotaSlot>>,
}

impl Connection {
    /// Marks a request as begun; the connection is not idle until the value is dropped.
    pub(crate) fn begin_request(&self) -> RequestGuard {
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
    pub(crate) fn note_authenticated(&self) {
        let slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(slot);
    }

    /// Whether the server drains, so that the client had better go elsewhere with its next request.
    pub(crate) fn is_draining(&self) -> bool {
        *self.drain.borrow() >= ShutdownPhase::Draining
    }

    /// Completes when a watch is to end because the server shuts down.
    pub(crate) fn watch_end(&self) -> BoxFuture<'static, ()> {
        let (drain, watches) = (self.drain.clone(), Arc::clone(&self.watches));
        Box::pin(async move {
            reached(drain.clone(), ShutdownPhase::Draining).await;
            // Boxed: a watch needs this at its end alone.
            Box::pin(async move {
                let Some(end) = watches.next() else {
                    return reached(drain, ShutdownPhase::EndingWatches).await;
                };
                tokio::select! {
                    () = reached(drain, ShutdownPhase::EndingWatches) => {}
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
async fn reached(mut drain: watch::Receiver<ShutdownPhase>, step: ShutdownPhase) {
    if drain.wait_for(|phase| *phase >= step).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// A count of one open connection.
#[derive(Debug)]
pub(crate) struct Open(Arc<OpenCount>);

#[derive(Debug, Default)]
pub(super) struct OpenCount {
    pub(super) count: AtomicUsize,
    pub(super) changed: Notify,
}

impl Open {
    pub(super) fn new(count: &Arc<OpenCount>) -> Self {
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

/// A connection that was accepted.
pub(super) struct Accepted<S> {
    pub(super) stream: S,
    pub(super) peer: SocketAddr,
    pub(super) slot: QuotaSlot,
    pub(super) open: Open,
}

impl Accepted<std::net::TcpStream> {
    /// The connection, known to the runtime that this is called in.
    pub(super) fn register(self) -> io::Result<Accepted<TcpStream>> {
        let Self { stream, peer, slot, open } = self;
        Ok(Accepted { stream: TcpStream::from_std(stream)?, peer, slot, open })
    }
}

impl Accepted<TcpStream> {
    pub(super) async fn serve<H: Handler>(
        self,
        tls: Arc<ServerConfig>,
        handler: Arc<H>,
        limits: Limits,
        metrics: Arc<Metrics>,
        ShutdownSignals { phase: drain, watches }: ShutdownSignals,
    ) {
        let Self { stream, peer, slot, open } = self;
        let given_up = slot.given_up();
        // Boxed, so that the handshake's state is gone once the connection serves.
        let handshake = async { TlsAcceptor::from(tls).accept(expect_tls(stream).await?).await };
        let handshake = Box::pin(timeout(limits.header_timeout, handshake));
        let mut ending = drain.clone();
        let handshake = tokio::select! {
            handshake = handshake => handshake,
            // A server that ends waits a moment for those that have begun.
            () = async {
                ending.wait_for(|phase| *phase >= ShutdownPhase::Draining).await.ok();
                sleep(DRAIN_LINGER_TIMEOUT).await;
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
            slot: Mutex::new(Some(slot)),
        };
        let connection = Arc::new(connection);
        let serving = serving(stream, &connection, handler, limits);
        // A task of its own: what the handshake took is not kept as long as the connection.
        tokio::spawn(async move {
            tokio::select! {
                () = Driver::new(serving, &connection, limits, &metrics).run(drain) => {}
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
    let stream = ActivityStream::new(stream, Arc::clone(&connection.activity));
    if connection.http2 {
        let corked = CorkedStream::new(stream);
        let serving = Http2::new(corked.clone(), handler, Arc::clone(connection), limits);
        return Box::pin(UncorkOnPoll::new(serving, corked));
    }
    Box::pin(http1::serve(stream, Arc::clone(connection), handler))
}
