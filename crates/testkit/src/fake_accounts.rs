//! A fake API server with service accounts: lists, watches without events, and signing keys.

use crate::now;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::ready;
use futures_util::stream::once;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};

use crate::issuer::{SigningKey, key_set};
use crate::messages::BoxedBody;
use crate::self_check::{self, respond};

/// The issuer of the tokens.
pub const ISSUER: &str = "https://accounts.test";
const ACCOUNT: &str = "builder";
const POD: &str = "builder-7d9c8b6f5-x2x4z";
const KEYS: &str = "/openid/v1/jwks";

/// A cluster with one namespace, one service account in it, and pods that run as it.
pub struct FakeAccounts {
    /// The key that signs the tokens.
    pub key: SigningKey,
    made: AtomicU64,
    asked: AtomicUsize,
    keys_asked: AtomicUsize,
}

impl FakeAccounts {
    /// A cluster with a new key.
    pub fn new() -> Arc<Self> {
        let zero = AtomicUsize::default;
        Arc::new(Self {
            key: SigningKey::new("accounts"),
            made: AtomicU64::new(0),
            asked: zero(),
            keys_asked: zero(),
        })
    }

    /// A token of the pod as a kubelet gets it, about 1 KB; each token is different.
    pub fn token(&self) -> String {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let claims = json!({
            "iss": ISSUER, "aud": [ISSUER], "sub": "system:serviceaccount:team:builder",
            "iat": now(), "nbf": now(), "exp": now() + 3600,
            "jti": format!("0f5a3c1e-8a3b-4f0e-9d55-{number:012}"),
            "kubernetes.io": {
                "namespace": "team",
                "serviceaccount": {"name": ACCOUNT, "uid": uid("serviceaccounts", ACCOUNT)},
                "pod": {"name": POD, "uid": uid("pods", POD)},
                "node": {"name": "node-1.region-a.example.com", "uid": uid("nodes", "node-1")},
                "warnafter": now() + 3600,
            },
        });
        // No `kid`, since the key has different ids in a key file and in the published key set.
        self.key.sign_as(&json!({"alg": "ES256"}), &claims)
    }

    /// The number of reads of single objects, and of the keys.
    pub fn asked(&self) -> (usize, usize) {
        (self.asked.load(Ordering::SeqCst), self.keys_asked.load(Ordering::SeqCst))
    }

    /// The response to the gateway's own request; `None` for forwarded requests.
    pub fn answer<B>(&self, request: &Request<B>) -> Option<Response<BoxedBody>> {
        let other = self_check::answer(request)?;
        if request.method() != http::Method::GET {
            return Some(other);
        }
        let path = request.uri().path();
        if path == KEYS {
            self.keys_asked.fetch_add(1, Ordering::SeqCst);
            return Some(respond(StatusCode::OK, &key_set(&[&self.key])));
        }
        let (resource, version) = match path {
            "/api/v1/serviceaccounts" | "/api/v1/pods" | "/api/v1/nodes" | "/api/v1/secrets" => {
                (path.rsplit('/').next()?, "v1")
            }
            _ => {
                // The self-check asks for other things at the same time: the version, and the names of headers.
                if ["serviceaccounts", "pods", "nodes", "secrets"].iter().any(|of| is_of(path, of)) {
                    self.asked.fetch_add(1, Ordering::SeqCst);
                }
                return Some(other);
            }
        };
        let query = request.uri().query().unwrap_or_default();
        if query.contains("watch=true") {
            // A watch without events that ends cleanly, so that the gateway knows that no event was lost.
            let seconds = query.split('&').find_map(|pair| pair.strip_prefix("timeoutSeconds="));
            let time = Duration::from_secs(seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or(290));
            let end = once(tokio::time::sleep(time)).filter_map(|()| ready(None));
            let silence = StreamBody::new(end.map(Ok::<Frame<Bytes>, Infallible>));
            return Some(Response::new(silence.map_err(|never| match never {}).boxed()));
        }
        let items: Vec<Value> = match resource {
            "serviceaccounts" => vec![object(resource, ACCOUNT)],
            "pods" => vec![object(resource, POD)],
            _ => Vec::new(),
        };
        let list = json!({"kind": "List", "apiVersion": version, "metadata": {"resourceVersion": "1"}, "items": items});
        Some(respond(StatusCode::OK, &list))
    }
}

/// Whether a path is that of an object of a resource.
fn is_of(path: &str, resource: &str) -> bool {
    path.rsplit('/').nth(1) == Some(resource)
}

fn object(resource: &str, name: &str) -> Value {
    json!({"metadata": {"namespace": "team", "name": name, "uid": uid(resource, name), "resourceVersion": "1"}})
}

/// A string of the length of a UID.
fn uid(resource: &str, name: &str) -> String {
    format!("{:x<8}-0000-4000-8000-{:0<12}", &resource[..resource.len().min(8)], &name[..name.len().min(7)])
}
