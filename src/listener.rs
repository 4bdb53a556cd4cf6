//! From a socket to requests: accept, TLS handshake, connection facts, HTTP/1.1 or HTTP/2, idle times, drain.
//!
//! Nothing here judges who the client is. What a request is answered with is the [`Handler`]'s, one for all
//! connections.

mod acceptor;
mod activity;
mod connection;
mod date;
mod driver;
mod http1;
mod http2;
mod http_on_tls_port;
mod linger;
mod possession;
mod reset_limiter;
pub(crate) mod settings;
pub(crate) mod tls;
mod unauthenticated_quota;
mod watches;
mod worker;

use std::future::Future;
use std::sync::Arc;

use http::{Request, Response};

pub(crate) use acceptor::{ConnectionLimiter, Listener, accept_into, accept_the_rest, raise_file_limit};
pub(crate) use activity::RequestGuard;
pub(crate) use connection::{Connection, ShutdownPhase, ShutdownSignals};
pub(crate) use unauthenticated_quota::{UnauthenticatedQuota, source};
pub(crate) use watches::WatchTermination;
pub(crate) use worker::Worker;

use crate::http::body::Body;
use crate::http::transport::Incoming;

/// Answers requests.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Notes a request, and answers it in what is returned, which is dropped when the client goes away first.
    fn handle(
        self: &Arc<Self>,
        connection: Arc<Connection>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Body>> + Send + use<Self>;
}
