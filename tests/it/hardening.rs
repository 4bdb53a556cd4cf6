//! Abuse: what it costs the one who does it, and that nobody else notices. In each test other clients go on meanwhile.

mod backends;
mod crowds;
mod descriptors;
mod floods;
mod handshakes;
mod headers;
mod sharing;
mod slow;
mod unauthenticated;
mod unread;

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;

use crate::pki::Issued;
use crate::support::others::Others;
use crate::support::{Answering, Backend, Gateway, H2, Pki, flags, full};

/// What the other clients ask for.
const CALM: &str = "/api/v1/nodes/one";

/// A gateway, its backend and everybody else.
struct Scene {
    pki: Pki,
    backend: Backend,
    gateway: Arc<Gateway>,
    alice: Arc<Issued>,
    others: Others,
}

impl Scene {
    /// A backend that answers `200 ok` where the others ask, and elsewhere as it is told.
    async fn with(
        extra: &[&str],
        limit: impl FnOnce(&mut portcullis::config::settings::ClientLimits),
        answer: impl Fn(Request<Incoming>) -> Answering + Send + Sync + 'static,
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
        let others = Others::start(&gateway, &bob, CALM).await;
        Self { pki, backend, gateway, alice, others }
    }
}
