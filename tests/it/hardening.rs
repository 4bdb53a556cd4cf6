//! Abuse: limits on the abusing client, while other clients send requests without delay or failure.

mod anonymous_requests;
mod backends;
mod buffered_bytes;
mod crowds;
mod descriptors;
mod handshakes;
mod http2_floods;
mod hung_endpoints;
mod large_headers;
mod late_senders;
mod sharing;
mod slow_clients;
mod stalled_readers;
mod tenant_connections;
mod token_flood;
mod unauthenticated_connections;

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use testkit::bystanders::Bystanders;
use testkit::pki::Issued;
use testkit::{FakeBackend, Gateway, H2, Pki, ResponseFuture, flags, full};

use crate::gateway::InProcess as _;

/// The path that the well-behaved clients request.
const CALM: &str = "/api/v1/nodes/one";

/// A gateway, its backend, and well-behaved clients.
struct GatewayWithBystanders {
    pki: Pki,
    backend: FakeBackend,
    gateway: Arc<Gateway>,
    alice: Arc<Issued>,
    others: Bystanders,
}

impl GatewayWithBystanders {
    /// Starts a backend that answers `200 ok` on [`CALM`] and calls `answer` for other paths.
    async fn with(
        extra: &[&str],
        limit: impl FnOnce(&mut portcullis::internal::ClientLimits),
        answer: impl Fn(Request<Incoming>) -> ResponseFuture + Send + Sync + 'static,
    ) -> Self {
        let pki = Pki::new();
        let backend = FakeBackend::start(&pki, H2, move |request: Request<Incoming>| {
            if request.uri().path() == CALM {
                return Box::pin(async { Response::new(full("ok")) });
            }
            answer(request)
        })
        .await;
        let mut flags = flags(&pki, backend.address);
        flags.extend(extra.iter().map(ToString::to_string));
        let gateway = Arc::new(Gateway::limited(flags, limit));
        let alice = Arc::new(pki.clients.leaf().cn("alice").issue());
        let bob = Arc::new(pki.clients.leaf().cn("bob").issue());
        let others = Bystanders::start(&gateway, &bob, CALM).await;
        Self { pki, backend, gateway, alice, others }
    }
}
