//! An issuer with keys of its own, and HTTP without a network.

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
use serde_json::{Value, json};
use tokio::time::Duration;
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::authn::jwt::keys::Algorithm;
use crate::authn::oidc::OidcAuthenticator;
use crate::authn::oidc::fetch::{Fetch, Fetched};
use crate::authn::oidc::settings::{Issuer, JwtAuthenticator, Mapping};
use crate::authn::testing::TestRequest;
use crate::authn::{AuthnError, BearerToken, BoxFuture, TokenAuthenticator};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::user::UserInfo;

pub(super) const ISSUER: &str = "https://issuer.example";
pub(super) const CONFIGURATION: &str = "https://issuer.example/.well-known/openid-configuration";
pub(super) const KEYS: &str = "https://issuer.example/keys";
/// The time of every request of the tests.
pub(super) const NOW: i64 = 1_700_000_000;

/// A key that signs.
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
    /// As key sets have it.
    pub(super) fn jwk(&self, id: &str) -> Value {
        let encode = |octets: &[u8]| URL_SAFE_NO_PAD.encode(octets);
        match self {
            Self::Rsa(pair) => {
                let der: aws_lc_rs::encoding::PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
                let (_, info) = SubjectPublicKeyInfo::from_der(der.as_ref()).unwrap();
                let Ok(PublicKey::RSA(key)) = info.parsed() else { panic!("no RSA key") };
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

    /// A token with these claims.
    pub(super) fn token(&self, algorithm: &str, claims: &Value) -> String {
        self.token_of(&json!({"alg": algorithm, "kid": "key"}), claims.to_string().as_bytes())
    }

    /// A token with this header and payload, whatever they are.
    pub(super) fn token_of(&self, header: &Value, payload: &[u8]) -> String {
        let input = unsigned(header, payload);
        let signature = self.sign(header["alg"].as_str().unwrap_or_default(), input.as_bytes());
        format!("{input}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// What is signed.
pub(super) fn unsigned(header: &Value, payload: &[u8]) -> String {
    let header = URL_SAFE_NO_PAD.encode(header.to_string());
    format!("{header}.{}", URL_SAFE_NO_PAD.encode(payload))
}

/// HTTP that knows a few documents and counts how often each was asked for.
#[derive(Debug, Default)]
pub(super) struct Web {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    documents: BTreeMap<String, Result<Fetched, String>>,
    asked: Vec<(String, Option<String>)>,
    hung: Option<String>,
}

impl Web {
    /// The issuer with its configuration and these keys.
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
        let answer = Fetched { status, content_type: None, body: body.as_bytes().to_vec() };
        self.state.lock().unwrap().documents.insert(url.to_owned(), Ok(answer));
    }

    pub(super) fn fail(&self, url: &str, error: &str) {
        self.state.lock().unwrap().documents.insert(url.to_owned(), Err(error.to_owned()));
    }

    /// From now on there is no answer for this document.
    pub(super) fn hang(&self, url: &str) {
        self.state.lock().unwrap().hung = Some(url.to_owned());
    }

    /// How often a document was asked for.
    pub(super) fn asked(&self, url: &str) -> usize {
        self.state.lock().unwrap().asked.iter().filter(|(asked, _)| asked == url).count()
    }

    /// The bearer tokens that a document was asked for with.
    pub(super) fn bearers(&self, url: &str) -> Vec<Option<String>> {
        let asked = &self.state.lock().unwrap().asked;
        asked.iter().filter(|(asked, _)| asked == url).map(|(_, bearer)| bearer.clone()).collect()
    }
}

impl Fetch for Web {
    fn get<'a>(&'a self, url: &'a str, bearer: Option<&'a str>) -> BoxFuture<'a, Result<Fetched, String>> {
        Box::pin(async move {
            let answer = {
                let mut state = self.state.lock().unwrap();
                state.asked.push((url.to_owned(), bearer.map(str::to_owned)));
                let missing = Fetched { status: 404, content_type: None, body: Vec::new() };
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

/// Tokens of the issuer for `my-client`, RS256, with a user name in `username`.
pub(super) fn settings() -> JwtAuthenticator {
    JwtAuthenticator {
        issuer: Issuer {
            url: ISSUER.to_owned(),
            discovery_url: None,
            certificate_authority: None,
            audiences: vec!["my-client".to_owned()],
        },
        algorithms: vec![Algorithm::RS256],
        claim_rules: Vec::new(),
        username: claim("username", ""),
        groups: None,
        uid: None,
        extra: Vec::new(),
        user_rules: Vec::new(),
    }
}

pub(super) fn claim(name: &str, prefix: &str) -> Mapping {
    Mapping::Claim { name: name.to_owned(), prefix: prefix.to_owned() }
}

/// Claims of a good token of `jane`, and these.
pub(super) fn claims(more: &Value) -> Value {
    let mut claims = json!({"iss": ISSUER, "aud": "my-client", "username": "jane", "exp": NOW + 3600});
    claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    claims
}

/// Claims of a good token, without some.
pub(super) fn without(names: &[&str], more: &Value) -> Value {
    let mut claims = claims(more);
    claims.as_object_mut().unwrap().retain(|name, _| !names.contains(&name.as_str()));
    claims
}

/// An authenticator that has found its configuration, if it can be found.
pub(super) async fn authenticator(settings: JwtAuthenticator, web: &Arc<Web>) -> Arc<OidcAuthenticator> {
    let authenticator = new(settings, web, &Metrics::new());
    authenticator.provider.initialize().await;
    authenticator
}

pub(super) fn new(settings: JwtAuthenticator, web: &Arc<Web>, metrics: &Metrics) -> Arc<OidcAuthenticator> {
    let clock = Clock::from_fn(|| Duration::from_secs(NOW.try_into().unwrap()));
    Arc::new(OidcAuthenticator::new(settings, Arc::<Web>::clone(web), &metrics.jwt, clock))
}

/// What is made of a token.
pub(super) async fn judge(
    authenticator: &dyn TokenAuthenticator,
    token: &str,
) -> Result<Option<UserInfo>, AuthnError> {
    let request = TestRequest::new();
    let input = request.input();
    let verdict = authenticator.authenticate(&BearerToken::new(token), input.for_tokens()).await?;
    Ok(verdict.map(|found| (*found.user).clone()))
}

/// What is made of a token with these claims, that the issuer has signed.
pub(super) async fn judge_claims(
    settings: JwtAuthenticator,
    claims: &Value,
) -> Result<Option<UserInfo>, String> {
    let web = Web::of_issuer(&[RSA.jwk("key")]);
    let authenticator = authenticator(settings, &web).await;
    judge(&*authenticator, &RSA.token("RS256", claims)).await.map_err(|error| error.to_string())
}

/// A user with groups.
pub(super) fn user(name: &str, groups: &[&str]) -> UserInfo {
    let mut user = UserInfo::named(name);
    user.groups = groups.iter().map(|group| (*group).to_owned()).collect();
    user
}
