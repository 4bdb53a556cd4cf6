//! Abuse: what it costs the abusing client, and that no other client notices. In each test other clients go on meanwhile.

mod anonymous_requests;
mod backends;
mod crowds;
mod descriptors;
mod handshakes;
mod http2_floods;
mod large_headers;
mod late_senders;
mod sharing;
mod slow_clients;
mod stalled_readers;
mod token_flood;
mod unauthenticated_connections;

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use testkit::bystanders::Bystanders;
use testkit::pki::Issued;
use testkit::{Backend, Gateway, H2, Pki, ResponseFuture, flags, full};

use crate::gateway::InProcess as _;

/// What the other clients ask for.
const CALM: &str = "/api/v1/nodes/one";

/// A gateway, its backend, and well-behaved clients.
struct GatewayWithBystanders {
    pki: Pki,
    backend: Backend,
    gateway: Arc<Gateway>,
    alice: Arc<Issued>,
    others: Bystanders,
}

impl GatewayWithBystanders {
    /// A backend that answers `200 ok` where the others ask, and elsewhere as it is told.
    async fn with(
        extra: &[&str],
        limit: impl FnOnce(&mut portcullis::config::settings::ClientLimits),
        answer: impl Fn(Request<Incoming>) -> ResponseFuture + Send + Sync + 'static,
    ) -> Self {
        let pki = Pki::new();
        let backend = Backend::start(&pki, H2, move |request: Request<Incoming>| {
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
