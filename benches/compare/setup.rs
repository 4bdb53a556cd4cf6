//! The setup that all proxies share: certificates, the client, and the backend, which has its own thread.

use std::future::ready;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{once, pending};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::aws_lc_rs::kx_group::{X25519, X25519MLKEM768};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use serde_json::json;
use testkit::client::Client;
use testkit::fake_accounts::{self, FakeAccounts};
use testkit::pki::Issued;
use testkit::self_check::{respond, user_info};
use testkit::{
    BoxedBody, BoxedError, FakeBackend, Gateway, H2, Pki, flags, full, identified, text, tls_client_by,
};

use crate::load::Connector;
use crate::programs::Programs;
use crate::proxies::ProxyKind;

/// Paths of the backend: a response of 1 KiB, one of 100 KiB, a watch without further events, and the identity of the
/// caller.
pub(crate) const SMALL: &str = "/api/v1/namespaces/team/configmaps/small";
pub(crate) const LARGE: &str = "/api/v1/namespaces/team/configmaps/large";
pub(crate) const WATCH: &str = "/api/v1/namespaces/team/pods?watch=true";
const WHOAMI: &str = "/apis/who";
/// Access reviews, all of which the backend allows.
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// How often the requests that the fake backend records are discarded.
const DISCARD_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) struct CommonSetup {
    pub(crate) pki: Arc<Pki>,
    pub(crate) backend: SocketAddr,
    /// Threads of each proxy.
    pub(crate) threads: NonZeroUsize,
    /// The gateway's command line.
    pub(crate) flags: Vec<String>,
    pub(crate) programs: Programs,
    pub(crate) tokens: Tokens,
    alice: Issued,
    front: Issued,
}

/// Tokens that the gateway accepts: two static tokens of carol, and one of a service account.
pub(crate) struct Tokens {
    pub(crate) short: String,
    /// A static token as long as a bound token.
    pub(crate) long: String,
    pub(crate) bound: String,
}

impl CommonSetup {
    pub(crate) fn new(threads: NonZeroUsize, programs: Programs) -> Self {
        let (pki, accounts) = (Arc::new(Pki::new()), FakeAccounts::new());
        let backend = start_backend(Arc::clone(&pki), Arc::clone(&accounts));
        let keys = pki.write("accounts.pub", accounts.key.public_pem());
        let accounts_flags = [
            format!("--service-account-issuer={}", fake_accounts::ISSUER),
            format!("--service-account-key-file={}", keys.display()),
        ];
        let others = flags(&pki, backend).into_iter().filter(|flag| !flag.starts_with("--workers="));
        let flags = others.chain([format!("--workers={threads}")]).chain(accounts_flags).collect();
        let tokens = Tokens {
            short: "good-token".to_owned(),
            long: "good-token".repeat(100),
            bound: accounts.token(),
        };
        let known = [&tokens.short, &tokens.long].map(|token| format!("{token},carol,7,\"a,b\"\n"));
        pki.write("tokens.csv", known.concat());
        // HAProxy requires a certificate and its key in one file.
        for name in ["gateway", "front"] {
            let read =
                |end| std::fs::read_to_string(pki.directory.path().join(format!("{name}.{end}"))).unwrap();
            pki.write(&format!("{name}.pem"), read("crt") + &read("key"));
        }
        let alice = pki.clients.leaf().cn("alice").org("a").org("b").issue();
        let front = pki.front.leaf().cn("direct").issue();
        Self { pki, backend, threads, flags, programs, tokens, alice, front }
    }

    /// Connects to a proxy with alice's certificate.
    pub(crate) fn certificate_connector(&self, proxy: SocketAddr) -> Connector {
        Connector { address: proxy, tls: tls_config(Some(&self.alice), &[X25519]) }
    }

    /// Connects with alice's certificate and a post-quantum key exchange.
    pub(crate) fn post_quantum_connector(&self, proxy: SocketAddr) -> Connector {
        Connector { address: proxy, tls: tls_config(Some(&self.alice), &[X25519MLKEM768]) }
    }

    /// Connects without a client certificate.
    pub(crate) fn token_connector(proxy: SocketAddr) -> Connector {
        Connector { address: proxy, tls: tls_config(None, &[X25519]) }
    }

    /// Connects to the backend itself, with a front-proxy certificate.
    pub(crate) fn backend_connector(&self) -> Connector {
        Connector { address: self.backend, tls: tls_config(Some(&self.front), &[X25519]) }
    }

    /// Checks that a proxy forwards the client's authenticated identity, and removes forged identity headers.
    pub(crate) async fn verify(&self, kind: ProxyKind, proxy: SocketAddr) {
        let gateway = Gateway::at(proxy, None);
        for http2 in [false, true] {
            let mut client = Client::connect(&gateway, http2, Some(&self.alice)).await;
            let forged = [("x-remote-user", "mallory"), ("x-remote-group", "system:masters")];
            let body = text(client.get(WHOAMI, &forged).await).await;
            let user: serde_json::Value = serde_json::from_str(&body).unwrap();
            let (name, groups) = match kind {
                // It has no header for a part of the subject, whose attributes are in the reverse order.
                ProxyKind::Envoy => ("O=b,O=a,CN=alice", json!(["system:authenticated"])),
                _ => ("alice", json!(["a", "b", "system:authenticated"])),
            };
            assert_eq!((&user["username"], &user["groups"]), (&json!(name), &groups), "{}", kind.name());
        }
    }
}

/// The TLS configuration for every proxy: TLS 1.3, full handshakes only, and one key exchange group.
fn tls_config(identity: Option<&Issued>, groups: &[&'static dyn SupportedKxGroup]) -> Arc<ClientConfig> {
    let provider = CryptoProvider { kx_groups: groups.to_vec(), ..default_provider() };
    let mut config = identified(tls_client_by(provider, &[&rustls::version::TLS13]), identity);
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config)
}

/// Starts a backend with canned API server responses in a thread that runs until the process exits.
fn start_backend(pki: Arc<Pki>, accounts: Arc<FakeAccounts>) -> SocketAddr {
    let (address_sender, address_receiver) = std::sync::mpsc::channel();
    let [small, large] = [1 << 10, 100 << 10].map(config_map);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let answer = move |path: &str, headers: &HeaderMap| match path {
                SMALL => json_body(full(small.clone())),
                LARGE => json_body(full(large.clone())),
                WHOAMI => json_body(full(user_info(headers, "x-remote-").to_string())),
                WATCH => idle_watch(),
                other => respond(StatusCode::NOT_FOUND, &json!({"path": other})),
            };
            let backend = FakeBackend::with_self_check(
                &pki,
                H2,
                move |request| {
                    let allowed = || respond(StatusCode::CREATED, &json!({"status": {"allowed": true}}));
                    let is_review = request.uri().path() == ACCESS_REVIEWS;
                    if is_review { Some(allowed()) } else { accounts.answer(request) }
                },
                move |request| {
                    let path = request.uri().path_and_query().map_or("", http::uri::PathAndQuery::as_str);
                    Box::pin(ready(answer(path, request.headers())))
                },
            )
            .await;
            // The last owner removes the files.
            drop(pki);
            address_sender.send(backend.address).unwrap();
            loop {
                tokio::time::sleep(DISCARD_INTERVAL).await;
                while backend.take().is_some() {}
            }
        });
    });
    address_receiver.recv().unwrap()
}

fn json_body(body: BoxedBody) -> Response<BoxedBody> {
    Response::builder().header("content-type", "application/json").body(body).unwrap()
}

/// A watch with one bookmark and no further events. Without the bookmark, nginx would not forward the response header.
fn idle_watch() -> Response<BoxedBody> {
    let bookmark = json!({
        "type": "BOOKMARK",
        "object": {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "4711"}},
    });
    let first = Frame::data(Bytes::from(format!("{bookmark}\n")));
    let events = once(ready(Ok::<_, BoxedError>(first))).chain(pending());
    let mut response = json_body(BodyExt::boxed(StreamBody::new(events)));
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// A ConfigMap of exactly `size` bytes.
fn config_map(size: usize) -> Bytes {
    let of = |data: &str| {
        let object = json!({
            "kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {"name": "small", "namespace": "team", "uid": "0f5a3c1e-8a3b-4f0e-9d55-8c2f7d1e6a90", "resourceVersion": "4711"},
            "data": {"text": data},
        });
        object.to_string()
    };
    let rest = size - of("").len();
    Bytes::from(of(&"lorem ipsum ".repeat(rest / 12 + 1)[..rest]))
}
