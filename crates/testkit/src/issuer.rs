//! A fake issuer of JSON Web Tokens whose responses the test controls, and its signing keys.

use std::sync::{Arc, Mutex};

use aws_lc_rs::digest;
use aws_lc_rs::encoding::{AsDer as _, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Request, Response};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::fake_backend::FakeBackend;
use crate::messages::{BoxedBody, ResponseFuture, full};
use crate::test_pki::Pki;

/// The path of the discovery document.
pub const CONFIGURATION: &str = "/.well-known/openid-configuration";
/// The path of the keys.
pub const KEYS: &str = "/keys";

/// A key for ES256.
pub struct SigningKey {
    /// Its `kid`.
    pub id: String,
    pair: EcdsaKeyPair,
}

impl SigningKey {
    /// A new key.
    pub fn new(id: &str) -> Self {
        Self { id: id.to_owned(), pair: EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap() }
    }

    /// A new key whose id is derived from it, as for service-account keys.
    pub fn of_service_accounts() -> Self {
        let key = Self::new("");
        let der: PublicKeyX509Der<'_> = key.pair.public_key().as_der().unwrap();
        let id = URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, der.as_ref()));
        Self { id, ..key }
    }

    /// The public key in PEM, as in a file of service-account keys.
    pub fn public_pem(&self) -> String {
        let der: PublicKeyX509Der<'_> = self.pair.public_key().as_der().unwrap();
        crate::pki::pem("PUBLIC KEY", der.as_ref())
    }

    fn jwk(&self) -> Value {
        let point = &self.pair.public_key().as_ref()[1..];
        let coordinate = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        json!({
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.id,
            "x": coordinate(&point[..32]), "y": coordinate(&point[32..]),
        })
    }

    /// A token with these claims.
    pub fn sign(&self, claims: &Value) -> String {
        self.sign_as(&json!({"alg": "ES256", "kid": self.id}), claims)
    }

    /// A token with any header.
    pub fn sign_as(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(header), part(claims));
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// A key set of these keys.
pub fn key_set(keys: &[&SigningKey]) -> Value {
    json!({"keys": keys.iter().map(|key| key.jwk()).collect::<Vec<_>>()})
}

type Answer = Arc<dyn Fn(&str) -> ResponseFuture + Send + Sync>;

/// An issuer that serves its discovery document and its keys until a test changes the responses.
pub struct Issuer {
    /// Its issuer URL.
    pub url: String,
    /// The server of the issuer.
    pub server: FakeBackend,
    answer: Arc<Mutex<Answer>>,
}

impl Issuer {
    /// An issuer on a new port.
    pub async fn start(pki: &Pki, keys: &[&SigningKey]) -> Self {
        Self::at(pki, TcpListener::bind("127.0.0.1:0").await.unwrap(), keys)
    }

    /// An issuer on this port.
    pub fn at(pki: &Pki, listener: TcpListener, keys: &[&SigningKey]) -> Self {
        let url = format!("https://{}", listener.local_addr().unwrap());
        let answer = Arc::new(Mutex::new(good(&url, &url, keys)));
        let current = Arc::clone(&answer);
        let server = FakeBackend::without_client_auth(pki, listener, move |request: Request<Incoming>| {
            let answer = Arc::clone(&current.lock().unwrap());
            answer(request.uri().path())
        });
        Self { url, server, answer }
    }

    /// Serves the discovery document of `issuer`, with these keys, from now on.
    pub fn is(&self, issuer: &str, keys: &[&SigningKey]) {
        *self.answer.lock().unwrap() = good(issuer, &self.url, keys);
    }

    /// Calls `answer` for requests for `path` from now on; other responses do not change.
    pub fn answers(&self, path: &'static str, answer: impl Fn() -> ResponseFuture + Send + Sync + 'static) {
        let before = Arc::clone(&self.answer.lock().unwrap());
        *self.answer.lock().unwrap() =
            Arc::new(move |requested| if requested == path { answer() } else { before(requested) });
    }
}

fn good(issuer: &str, url: &str, keys: &[&SigningKey]) -> Answer {
    let configuration = json!({"issuer": issuer, "jwks_uri": format!("{url}{KEYS}")}).to_string();
    let keys = key_set(keys).to_string();
    Arc::new(move |path| {
        let (status, body) = match path {
            CONFIGURATION => (200, configuration.clone()),
            KEYS => (200, keys.clone()),
            _ => (404, "{}".to_owned()),
        };
        let response = respond(status, "application/json", body);
        Box::pin(async { response })
    })
}

/// A response with this content.
pub fn respond(status: u16, content_type: &str, body: impl Into<bytes::Bytes>) -> Response<BoxedBody> {
    Response::builder().status(status).header("content-type", content_type).body(full(body)).unwrap()
}
