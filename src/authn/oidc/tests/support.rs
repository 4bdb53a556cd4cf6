//! A test issuer with keys, and HTTP without a network.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, LazyLock, Mutex};

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair as _, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512,
    RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use portcullis_kubernetes::user::UserInfo;
use portcullis_openid::jwt::keys::JwsAlgorithm;
use portcullis_system::clock::Clock;
use serde_json::{Value, json};
use tokio::time::Duration;
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::authn::oidc::OidcAuthenticator;
use crate::authn::oidc::fetch::{DocumentFetcher, FetchedDocument};
use crate::authn::oidc::settings::{AttributeMapping, IssuerSettings, JwtAuthenticator};
use crate::authn::testing::TestRequest;
use crate::authn::{AuthnError, BearerToken, BoxFuture, TokenAuthenticator};
use crate::metrics::Metrics;

pub(super) const ISSUER: &str = "https://issuer.example";
pub(super) const CONFIGURATION: &str = "https://issuer.example/.well-known/openid-configuration";
pub(super) const KEYS: &str = "https://issuer.example/keys";
/// The time of every test request.
pub(super) const NOW: i64 = 1_700_000_000;

/// A signing key.
pub(super) enum Key {
    Rsa(RsaKeyPair),
    Ec(&'static str, EcdsaKeyPair),
}

fn rsa() -> Key {
    Key::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap())
}

fn ec(curve: &'static str, algorithm: &'static EcdsaSigningAlgorithm) -> Key {
    Key::Ec(curve, EcdsaKeyPair::generate(algorithm).unwrap())
}

pub(super) static RSA: LazyLock<Key> = LazyLock::new(rsa);
pub(super) static OTHER_RSA: LazyLock<Key> = LazyLock::new(rsa);
pub(super) static P256: LazyLock<Key> = LazyLock::new(|| ec("P-256", &ECDSA_P256_SHA256_FIXED_SIGNING));
pub(super) static P384: LazyLock<Key> = LazyLock::new(|| ec("P-384", &ECDSA_P384_SHA384_FIXED_SIGNING));
pub(super) static P521: LazyLock<Key> = LazyLock::new(|| ec("P-521", &ECDSA_P521_SHA512_FIXED_SIGNING));

impl Key {
    /// The public key as a JWK.
    pub(super) fn jwk(&self, id: &str) -> Value {
        let encode = |octets: &[u8]| URL_SAFE_NO_PAD.encode(octets);
        match self {
            Self::Rsa(pair) => {
                let der: aws_lc_rs::encoding::PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
                let (_, info) = SubjectPublicKeyInfo::from_der(der.as_ref()).unwrap();
                let Ok(PublicKey::RSA(key)) = info.parsed() else { panic!("not an RSA key") };
                let modulus = key.modulus.strip_prefix(&[0]).unwrap_or(key.modulus);
                json!({"kty": "RSA", "kid": id, "use": "sig", "n": encode(modulus), "e": encode(key.exponent)})
            }
            Self::Ec(curve, pair) => {
                let point = &pair.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                json!({"kty": "EC", "kid": id, "crv": curve, "x": encode(x), "y": encode(y)})
            }
        }
    }

    fn sign(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        let encoding: &dyn RsaEncoding = match (self, algorithm) {
            (Self::Ec(_, pair), _) => return pair.sign(&random, message).unwrap().as_ref().to_vec(),
            (_, "RS384") => &RSA_PKCS1_SHA384,
            (_, "RS512") => &RSA_PKCS1_SHA512,
            (_, "PS256") => &RSA_PSS_SHA256,
            (_, "PS384") => &RSA_PSS_SHA384,
            (_, "PS512") => &RSA_PSS_SHA512,
            _ => &RSA_PKCS1_SHA256,
        };
        let Self::Rsa(pair) = self else { unreachable!() };
        let mut signature = vec![0; pair.public_modulus_len()];
        pair.sign(encoding, &random, message, &mut signature).unwrap();
        signature
    }

    /// Signs a token with these claims.
    pub(super) fn token(&self, algorithm: &str, claims: &Value) -> String {
        self.token_of(&json!({"alg": algorithm, "kid": "key"}), claims.to_string().as_bytes())
    }

    /// Signs a token with this header and payload, which may be invalid.
    pub(super) fn token_of(&self, header: &Value, payload: &[u8]) -> String {
        let input = unsigned(header, payload);
        let signature = self.sign(header["alg"].as_str().unwrap_or_default(), input.as_bytes());
        format!("{input}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// The signing input: header and payload without a signature.
pub(super) fn unsigned(header: &Value, payload: &[u8]) -> String {
    let header = URL_SAFE_NO_PAD.encode(header.to_string());
    format!("{header}.{}", URL_SAFE_NO_PAD.encode(payload))
}

/// Fake HTTP: serves configured documents and records the requests.
#[derive(Debug, Default)]
pub(super) struct FakeWeb {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    documents: BTreeMap<String, Result<FetchedDocument, String>>,
    requests: Vec<(String, Option<String>)>,
    hung: Option<String>,
}

impl FakeWeb {
    /// Serves the discovery document of the issuer and these keys.
    pub(super) fn of_issuer(keys: &[Value]) -> Arc<Self> {
        let web = Arc::new(Self::default());
        web.serve(CONFIGURATION, &json!({"issuer": ISSUER, "jwks_uri": KEYS}).to_string());
        web.serve_keys(keys);
        web
    }

    pub(super) fn serve(&self, url: &str, body: &str) {
        self.answer(url, 200, body);
    }

    pub(super) fn serve_keys(&self, keys: &[Value]) {
        self.serve(KEYS, &json!({"keys": keys}).to_string());
    }

    pub(super) fn answer(&self, url: &str, status: u16, body: &str) {
        let answer = FetchedDocument { status, content_type: None, body: body.as_bytes().to_vec() };
        self.state.lock().unwrap().documents.insert(url.to_owned(), Ok(answer));
    }

    pub(super) fn fail(&self, url: &str, error: &str) {
        self.state.lock().unwrap().documents.insert(url.to_owned(), Err(error.to_owned()));
    }

    /// Makes requests for this document hang.
    pub(super) fn hang(&self, url: &str) {
        self.state.lock().unwrap().hung = Some(url.to_owned());
    }

    /// The number of requests for a document.
    pub(super) fn requests_for(&self, url: &str) -> usize {
        self.state.lock().unwrap().requests.iter().filter(|(requested, _)| requested == url).count()
    }

    /// The bearer tokens of the requests for a document.
    pub(super) fn bearers(&self, url: &str) -> Vec<Option<String>> {
        let requests = &self.state.lock().unwrap().requests;
        requests.iter().filter(|(requested, _)| requested == url).map(|(_, bearer)| bearer.clone()).collect()
    }
}

impl DocumentFetcher for FakeWeb {
    fn get<'a>(
        &'a self,
        url: &'a str,
        bearer: Option<&'a str>,
    ) -> BoxFuture<'a, Result<FetchedDocument, String>> {
        Box::pin(async move {
            let answer = {
                let mut state = self.state.lock().unwrap();
                state.requests.push((url.to_owned(), bearer.map(str::to_owned)));
                let missing = FetchedDocument { status: 404, content_type: None, body: Vec::new() };
                let answer = state.documents.get(url).cloned().unwrap_or(Ok(missing));
                (state.hung.as_deref() != Some(url)).then_some(answer)
            };
            match answer {
                Some(answer) => answer,
                None => pending().await,
            }
        })
    }
}

/// Settings for tokens with the audience `my-client`, RS256, and the user name in `username`.
pub(super) fn settings() -> JwtAuthenticator {
    JwtAuthenticator {
        issuer: IssuerSettings {
            url: ISSUER.to_owned(),
            discovery_url: None,
            certificate_authority: None,
            audiences: vec!["my-client".to_owned()],
        },
        algorithms: vec![JwsAlgorithm::RS256],
        claim_rules: Vec::new(),
        username: claim("username", ""),
        groups: None,
        uid: None,
        extra: Vec::new(),
        user_rules: Vec::new(),
    }
}

pub(super) fn claim(name: &str, prefix: &str) -> AttributeMapping {
    AttributeMapping::Claim { name: name.to_owned(), prefix: prefix.to_owned() }
}

/// Claims of a valid token of `jane`, with these added.
pub(super) fn claims(more: &Value) -> Value {
    let mut claims = json!({"iss": ISSUER, "aud": "my-client", "username": "jane", "exp": NOW + 3600});
    claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    claims
}

/// Claims of a valid token, with some removed.
pub(super) fn without(names: &[&str], more: &Value) -> Value {
    let mut claims = claims(more);
    claims.as_object_mut().unwrap().retain(|name, _| !names.contains(&name.as_str()));
    claims
}

/// An authenticator after one discovery attempt.
pub(super) async fn authenticator(settings: JwtAuthenticator, web: &Arc<FakeWeb>) -> Arc<OidcAuthenticator> {
    let authenticator = new(settings, web, &Metrics::new());
    authenticator.provider.initialize().await;
    authenticator
}

pub(super) fn new(
    settings: JwtAuthenticator,
    web: &Arc<FakeWeb>,
    metrics: &Metrics,
) -> Arc<OidcAuthenticator> {
    let clock = Clock::from_fn(|| Duration::from_secs(NOW.try_into().unwrap()));
    Arc::new(OidcAuthenticator::new(settings, Arc::<FakeWeb>::clone(web), &metrics.jwt, clock))
}

/// Authenticates a token.
pub(super) async fn authenticate(
    authenticator: &dyn TokenAuthenticator,
    token: &str,
) -> Result<Option<UserInfo>, AuthnError> {
    let request = TestRequest::new();
    let input = request.input();
    let verdict = authenticator.authenticate(&BearerToken::new(token), input.for_tokens()).await?;
    Ok(verdict.map(|found| (*found.user).clone()))
}

/// Authenticates a token with these claims, signed by the issuer.
pub(super) async fn authenticate_claims(
    settings: JwtAuthenticator,
    claims: &Value,
) -> Result<Option<UserInfo>, String> {
    let web = FakeWeb::of_issuer(&[RSA.jwk("key")]);
    let authenticator = authenticator(settings, &web).await;
    authenticate(&*authenticator, &RSA.token("RS256", claims)).await.map_err(|error| error.to_string())
}

/// A user with groups.
pub(super) fn user(name: &str, groups: &[&str]) -> UserInfo {
    let mut user = UserInfo::named(name);
    user.groups = groups.iter().map(|group| (*group).to_owned()).collect();
    user
}
