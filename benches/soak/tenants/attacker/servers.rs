//! The attacker's API servers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use testkit::body::endless;
use testkit::fake_accounts::FakeAccounts;
use testkit::self_check::respond;
use testkit::{BoxedBody, FakeBackend, H1, H2, Pki, ResponseFuture, full};

use super::raw_server::{self, RawAnswer};
use super::tokens;
use crate::tenants::attack::Attack;
use crate::tenants::site::{HELD, forget_requests};

/// API servers of one tenant, of which a Secret may have 16.
const MANY: usize = 16;
const KEYS: &str = "/openid/v1/jwks";
/// The path of the self-check.
pub(crate) const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
/// In the path of a request whose body is not read.
pub(crate) const UNREAD: &str = "unread";
/// The path of a response with large headers: together less than a mebibyte, which is the most that the gateway passes on.
pub(crate) const LARGE_HEADERS: &str = "/api/v1/namespaces/large-headers";
const LARGE_HEADER: usize = 64_000;
const LARGE_HEADER_COUNT: usize = 15;

pub(crate) struct Servers {
    backend: Option<Arc<FakeBackend>>,
    raw: Vec<SocketAddr>,
    self_checks: Arc<AtomicU64>,
}

impl Servers {
    pub(crate) async fn start(attack: Attack, pki: &Pki) -> Self {
        let mut servers = Self { backend: None, raw: Vec::new(), self_checks: Arc::default() };
        let raw = match attack {
            Attack::EndlessHeaders => Some((RawAnswer::EndlessHeaders, 1)),
            Attack::Informational => Some((RawAnswer::Informational, 1)),
            Attack::ClosingEndpoints => Some((RawAnswer::CloseWhenIdle, MANY)),
            Attack::OtherUsers => Some((RawAnswer::OtherUser, MANY)),
            _ => None,
        };
        if let Some((answer, count)) = raw {
            for _ in 0..count {
                servers.raw.push(raw_server::start(pki, answer, &servers.self_checks).await);
            }
            return servers;
        }
        servers.backend = Some(backend(attack, pki, &servers.self_checks).await);
        servers
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.backend.iter().map(|backend| backend.address).chain(self.raw.iter().copied()).collect()
    }

    /// What they have counted.
    pub(crate) fn text(&self) -> String {
        let self_checks = self.self_checks.load(Ordering::Relaxed);
        let connections = self.backend.as_ref().map(|backend| backend.connections());
        let connections = connections.map(|count| format!(", {count} connections"));
        format!("API servers: {self_checks} self-checks{}", connections.unwrap_or_default())
    }
}

async fn backend(attack: Attack, pki: &Pki, self_checks: &Arc<AtomicU64>) -> Arc<FakeBackend> {
    let alpn = if attack == Attack::Descriptors { H1 } else { H2 };
    let (accounts, keys) = (FakeAccounts::new(), tokens::key_set());
    let checks = Arc::clone(self_checks);
    let own = move |request: &Request<Incoming>| {
        let path = request.uri().path();
        checks.fetch_add(u64::from(path == REVIEWS), Ordering::Relaxed);
        match attack {
            Attack::KeySet if path == KEYS => Some(respond(StatusCode::OK, &keys)),
            _ => accounts.answer(request),
        }
    };
    let backend = Arc::new(FakeBackend::with_self_check(pki, alpn, own, answer).await);
    forget_requests(&backend);
    backend
}

/// The answer to a request of a user.
fn answer(request: Request<Incoming>) -> ResponseFuture {
    Box::pin(async move {
        let target = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        match target.as_str() {
            held if held.contains(HELD) => std::future::pending().await,
            unread if unread.contains(UNREAD) => {
                // Keeps the body, without reading it.
                let _body = request.into_body();
                std::future::pending().await
            }
            LARGE_HEADERS => with_large_headers(),
            "/api/v1/pods" | "/api/v1/pods?watch=true" => Response::new(endless().0),
            _ => Response::new(full("ok")),
        }
    })
}

fn with_large_headers() -> Response<BoxedBody> {
    static VALUE: Bytes = Bytes::from_static(&[b'x'; LARGE_HEADER]);
    let mut response = Response::new(full("ok"));
    for _ in 0..LARGE_HEADER_COUNT {
        let value = HeaderValue::from_maybe_shared(VALUE.clone()).unwrap();
        response.headers_mut().append("x-large", value);
    }
    response
}
