//! What is the same for every proxy: certificates, the client, and the backend, which has a thread of its own.

use std::future::ready;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
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
    Backend, BoxedBody, BoxedError, Gateway, H2, Pki, flags, full, identified, text, tls_client_by,
};

use crate::load::Door;

/// What the backend answers with 1 KiB, with 100 KiB, with a header and then nothing, and with who it was asked by.
pub(crate) const SMALL: &str = "/api/v1/namespaces/team/configmaps/small";
pub(crate) const LARGE: &str = "/api/v1/namespaces/team/configmaps/large";
pub(crate) const WATCH: &str = "/api/v1/namespaces/team/pods?watch=true";
const WHO: &str = "/apis/who";

/// What the backend keeps for tests is thrown away this often.
const FORGET: Duration = Duration::from_millis(50);

pub(crate) struct CommonSetup {
    pub(crate) pki: Arc<Pki>,
    pub(crate) backend: SocketAddr,
    /// How many each proxy has.
    pub(crate) threads: NonZeroUsize,
    /// The gateway's.
    pub(crate) flags: Vec<String>,
    /// The program of another build of the gateway.
    pub(crate) baseline: Option<PathBuf>,
    pub(crate) tokens: Tokens,
    alice: Issued,
    front: Issued,
}

/// Of carol, as the gateway knows her, and of a service account.
pub(crate) struct Tokens {
    pub(crate) short: String,
    /// As long as a bound token, and as little known of its holder as by a short one.
    pub(crate) long: String,
    pub(crate) bound: String,
}

impl CommonSetup {
    pub(crate) fn new(threads: NonZeroUsize, baseline: Option<PathBuf>) -> Self {
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
        // HAProxy wants a certificate and its key in one file.
        for name in ["gateway", "front"] {
            let read =
                |end| std::fs::read_to_string(pki.directory.path().join(format!("{name}.{end}"))).unwrap();
            pki.write(&format!("{name}.pem"), read("crt") + &read("key"));
        }
        let alice = pki.clients.leaf().cn("alice").org("a").org("b").issue();
        let front = pki.front.leaf().cn("direct").issue();
        Self { pki, backend, threads, flags, baseline, tokens, alice, front }
    }

    /// What alice sees of a proxy.
    pub(crate) fn by_certificate(&self, proxy: SocketAddr) -> Door {
        Door { address: proxy, tls: settings(Some(&self.alice), &[X25519]) }
    }

    /// What alice sees of one that can do this.
    pub(crate) fn post_quantum(&self, proxy: SocketAddr) -> Door {
        Door { address: proxy, tls: settings(Some(&self.alice), &[X25519MLKEM768]) }
    }

    /// What those who have a token see of one.
    pub(crate) fn by_token(proxy: SocketAddr) -> Door {
        Door { address: proxy, tls: settings(None, &[X25519]) }
    }

    /// The backend itself, by a certificate that it takes.
    pub(crate) fn direct(&self) -> Door {
        Door { address: self.backend, tls: settings(Some(&self.front), &[X25519]) }
    }

    /// Checks that a proxy does what is compared: the backend gets the identity of the client from it, and not from the client.
    pub(crate) async fn verify(&self, name: &str, proxy: SocketAddr) {
        let known = Gateway::at(proxy, None);
        for http2 in [false, true] {
            let mut client = Client::connect(&known, http2, Some(&self.alice)).await;
            let forged = [("x-remote-user", "mallory"), ("x-remote-group", "system:masters")];
            let said = text(client.get(WHO, &forged).await).await;
            let who: serde_json::Value = serde_json::from_str(&said).unwrap();
            let groups = json!(["a", "b", "system:authenticated"]);
            assert_eq!((&who["username"], &who["groups"]), (&json!("alice"), &groups), "{name}");
        }
    }
}

/// TLS 1.3, always with a full handshake, and one key exchange: the same for every proxy.
fn settings(identity: Option<&Issued>, groups: &[&'static dyn SupportedKxGroup]) -> Arc<ClientConfig> {
    let provider = CryptoProvider { kx_groups: groups.to_vec(), ..default_provider() };
    let mut config = identified(tls_client_by(provider, &[&rustls::version::TLS13]), identity);
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config)
}

/// A backend that answers as an API server would, without the work; it ends with the process.
fn start_backend(pki: Arc<Pki>, accounts: Arc<FakeAccounts>) -> SocketAddr {
    let (tell, told) = std::sync::mpsc::channel();
    let [small, large] = [1 << 10, 100 << 10].map(config_map);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let answer = move |path: &str, headers: &HeaderMap| match path {
                SMALL => json_body(full(small.clone())),
                LARGE => json_body(full(large.clone())),
                WHO => json_body(full(user_info(headers, "x-remote-").to_string())),
                WATCH => silence(),
                other => respond(StatusCode::NOT_FOUND, &json!({"path": other})),
            };
            let backend = Backend::with_self_check(
                &pki,
                H2,
                move |request| accounts.answer(request),
                move |request| {
                    let path = request.uri().path_and_query().map_or("", http::uri::PathAndQuery::as_str);
                    Box::pin(ready(answer(path, request.headers())))
                },
            )
            .await;
            // The last who has it removes the files.
            drop(pki);
            tell.send(backend.address).unwrap();
            loop {
                tokio::time::sleep(FORGET).await;
                while backend.take().is_some() {}
            }
        });
    });
    told.recv().unwrap()
}

fn json_body(body: BoxedBody) -> Response<BoxedBody> {
    Response::builder().header("content-type", "application/json").body(body).unwrap()
}

/// A watch that says where it begins, and then nothing: without a word nginx keeps even the header.
fn silence() -> Response<BoxedBody> {
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

/// An object of exactly so many bytes.
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
