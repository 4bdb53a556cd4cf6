//! The client side of the proxy: sockets, TLS handshakes, HTTP/1.1 and HTTP/2, timeouts, connection limits, draining.
//!
//! This module never authenticates a client and never decides a response: it passes each request, with the facts about
//! its connection, to the [`RequestHandler`].

mod acceptor;
mod activity;
mod connection;
mod connection_quota;
mod date;
mod driver;
mod handshake_failure;
mod http1;
mod http2;
mod http_on_tls_port;
mod linger;
mod possession;
pub(crate) mod proxy_protocol;
mod reset_limiter;
pub(crate) mod settings;
pub(crate) mod tls;
mod watches;
mod worker;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use http::{Request, Response};

pub(crate) use acceptor::{ConnectionLimiter, Listener, accept_into, drain_backlog};
pub(crate) use activity::RequestGuard;
pub(crate) use connection::{
    Connection, ConnectionOrigin, ShutdownPhase, ShutdownSignals, TooManyConnections,
};
pub(crate) use connection_quota::ConnectionQuota;
pub(crate) use http_on_tls_port::accept_tls;
pub(crate) use watches::WatchTermination;
pub(crate) use worker::Worker;

use portcullis_http::body::Body;
use portcullis_http::transport::Incoming;
use portcullis_limits::byte_ledger::ByteLedger;

/// Responds to requests; all connections share one.
pub(crate) trait RequestHandler: Send + Sync + 'static {
    /// Records a request and returns the future of its response. The future is dropped if the client disconnects first.
    fn handle(
        self: &Arc<Self>,
        connection: Arc<Connection>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Body>> + Send + use<Self>;

    /// Where the bytes that streams and connections hold count.
    fn ledger(&self) -> &ByteLedger;

    /// The connection of this client is closed: it has exceeded the stream reset limit.
    fn note_reset_limit(&self, peer: SocketAddr);
}
