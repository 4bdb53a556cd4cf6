//! The tokens of the cases: valid and invalid JSON Web Tokens, signed at the start of a case.
//!
//! Strings in a token may contain the placeholders `{issuer}`, the address of the issuers, `{uid:NAME}`, the UID of a
//! fixture, `{kid:NAME}` of a key, `{made:NAME}`, a token in a fixture, and `{unique}`. A string that is only `{now}`,
//! `{now+SECONDS}` or `{now-SECONDS}` becomes a number.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{self, EcdsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Map, Value, json};
use testkit::now;
use testkit::pki::{Key, KeyKind, SigAlg};

/// The keys by name. No issuer publishes the `strange` keys.
const KEYS: &[(&str, KeyKind)] = &[
    ("accounts", KeyKind::P256),
    ("accounts-rsa", KeyKind::Rsa2048),
    ("accounts-p384", KeyKind::P384),
    ("accounts-p521", KeyKind::P521),
    ("accounts-private", KeyKind::Rsa2048),
    ("issuer-rsa", KeyKind::Rsa2048),
    ("issuer-rsa2", KeyKind::Rsa2048),
    ("issuer-p256", KeyKind::P256),
    ("issuer-p384", KeyKind::P384),
    ("issuer-p521", KeyKind::P521),
    ("issuer-ed25519", KeyKind::Ed25519),
    ("rotated", KeyKind::Rsa2048),
    ("strange", KeyKind::Rsa2048),
    ("strange-p256", KeyKind::P256),
];

/// The keys and values to sign tokens.
#[derive(Debug)]
pub(crate) struct Mint {
    keys: BTreeMap<&'static str, Arc<Key>>,
    /// `https://127.0.0.1:PORT`.
    pub(crate) issuer: String,
    uids: Mutex<BTreeMap<String, String>>,
    /// Tokens that are signed only once.
    table: BTreeMap<String, Jwt>,
    made: Mutex<BTreeMap<String, String>>,
}

/// A token before it is signed.
#[derive(Clone, Debug)]
pub(crate) enum Token {
    /// Text that is sent without change.
    Text(String),
    Jwt(Jwt),
}

#[derive(Clone, Debug)]
pub(crate) struct Jwt {
    header: Map<String, Value>,
    claims: Claims,
    key: &'static str,
    twist: fn(String) -> String,
}

#[derive(Clone, Debug)]
enum Claims {
    Object(Map<String, Value>),
    /// Arbitrary text in place of the claims.
    Raw(String),
}

/// A token with these claims, signed with this key and its default algorithm.
pub(crate) fn jwt(key: &'static str, claims: Value) -> Jwt {
    let Value::Object(claims) = claims else { panic!("claims are an object") };
    Jwt { header: Map::new(), claims: Claims::Object(claims), key, twist: |text| text }
}

impl Jwt {
    /// Adds or replaces claims.
    pub(crate) fn with(mut self, claims: Value) -> Self {
        match (&mut self.claims, claims) {
            (Claims::Object(have), Value::Object(new)) => have.extend(new),
            (_, other) => panic!("claims are an object: {other}"),
        }
        self
    }

    pub(crate) fn without(mut self, claim: &str) -> Self {
        if let Claims::Object(claims) = &mut self.claims {
            claims.remove(claim).expect("the claim was there");
        }
        self
    }

    /// Replaces the claims by this text.
    pub(crate) fn raw(mut self, claims: &str) -> Self {
        self.claims = Claims::Raw(claims.to_owned());
        self
    }

    pub(crate) fn key(mut self, key: &'static str) -> Self {
        self.key = key;
        self
    }

    pub(crate) fn alg(self, algorithm: &str) -> Self {
        self.head("alg", json!(algorithm))
    }

    /// Sets a header parameter. `kid` is the key's by default, and null removes it.
    pub(crate) fn head(mut self, name: &str, value: Value) -> Self {
        self.header.insert(name.to_owned(), value);
        self
    }

    /// Changes the signed token.
    pub(crate) fn twist(mut self, twist: fn(String) -> String) -> Self {
        self.twist = twist;
        self
    }
}

impl Token {
    /// The text, or the claimed issuer, with its placeholders.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Text(text) => format!("the token {text}"),
            Self::Jwt(Jwt { claims: Claims::Object(claims), .. }) => format!("a token of {}", claims["iss"]),
            Self::Jwt(_) => "a token".to_owned(),
        }
    }
}

impl From<Jwt> for Token {
    fn from(jwt: Jwt) -> Self {
        Self::Jwt(jwt)
    }
}

impl From<&str> for Token {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl Mint {
    pub(crate) fn new(issuer: String, table: BTreeMap<String, Jwt>) -> Self {
        // RSA keys take long to generate: in parallel.
        let keys = std::thread::scope(|scope| {
            let making: Vec<_> =
                KEYS.iter().map(|(name, kind)| (*name, scope.spawn(|| Key::generate(*kind)))).collect();
            making.into_iter().map(|(name, key)| (name, key.join().expect("a key"))).collect()
        });
        Self { keys, issuer, uids: Mutex::default(), table, made: Mutex::default() }
    }

    pub(crate) fn key(&self, name: &str) -> &Arc<Key> {
        self.keys.get(name).unwrap_or_else(|| panic!("there is no key called {name}"))
    }

    /// The key ID that kube-apiserver derives from a key: the digest of its `SubjectPublicKeyInfo`.
    pub(crate) fn kid(&self, name: &str) -> String {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &self.key(name).spki());
        URL_SAFE_NO_PAD.encode(digest)
    }

    /// Stores the UID of a created object, as `<resource>/<name>`.
    pub(crate) fn remember(&self, object: &str, uid: &str) {
        self.uids.lock().expect("no panic while held").insert(object.to_owned(), uid.to_owned());
    }

    /// The JSON Web Key of a key, with its name as `kid`.
    pub(crate) fn jwk(&self, name: &str) -> Value {
        let key = self.key(name);
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let mut jwk = match key.kind {
            KeyKind::Rsa2048 | KeyKind::Rsa3072 => {
                let (modulus, exponent) = rsa_numbers(key.public());
                json!({"kty": "RSA", "n": encode(&modulus), "e": encode(&exponent)})
            }
            KeyKind::Ed25519 => json!({"kty": "OKP", "crv": "Ed25519", "x": encode(key.public())}),
            kind => {
                let point = key.public().get(1..).unwrap_or_default();
                let (x, y) = point.split_at(point.len() / 2);
                let curve = match kind {
                    KeyKind::P256 => "P-256",
                    KeyKind::P384 => "P-384",
                    _ => "P-521",
                };
                json!({"kty": "EC", "crv": curve, "x": encode(x), "y": encode(y)})
            }
        };
        jwk["kid"] = json!(self.kid(name));
        jwk["use"] = json!("sig");
        jwk
    }

    /// Replaces the placeholders of a text.
    pub(crate) fn fill(&self, text: &str) -> String {
        let text = text.replace("{issuer}", &self.issuer);
        let text = each(text, "{uid:", |object| {
            let uids = self.uids.lock().expect("no panic while held");
            uids.get(object).unwrap_or_else(|| panic!("the fixtures have no {object}")).clone()
        });
        let text = each(text, "{kid:", |name| self.kid(name));
        each(text, "{made:", |name| {
            if let Some(made) = self.made.lock().expect("no panic while held").get(name) {
                return made.clone();
            }
            let jwt = self.table.get(name).unwrap_or_else(|| panic!("the fixtures have no token {name}"));
            let made = self.mint(&Token::Jwt(jwt.clone()), "", "");
            self.made.lock().expect("no panic while held").entry(name.to_owned()).or_insert(made).clone()
        })
    }

    /// The signed token.
    pub(crate) fn mint(&self, token: &Token, unique: &str, side: &str) -> String {
        let fill = |text: &str| self.fill(&text.replace("{unique}", unique).replace("{side}", side));
        let jwt = match token {
            Token::Text(text) => return fill(text),
            Token::Jwt(jwt) => jwt,
        };
        let claims = match &jwt.claims {
            Claims::Raw(text) => fill(text),
            Claims::Object(claims) => fill_value(&Value::Object(claims.clone()), &fill).to_string(),
        };
        let key = self.key(jwt.key);
        let mut header = jwt.header.clone();
        header.entry("alg").or_insert_with(|| json!(own_algorithm(key.kind)));
        header.entry("kid").or_insert_with(|| json!(self.kid(jwt.key)));
        let algorithm = header["alg"].as_str().unwrap_or_default().to_owned();
        header.retain(|_, value| !value.is_null());
        let header = fill_value(&Value::Object(header), &fill).to_string();
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature = sign(key, &algorithm, signed.as_bytes());
        (jwt.twist)(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// Replaces every placeholder with this prefix by the value of the name in it.
fn each(mut text: String, begins: &str, value: impl Fn(&str) -> String) -> String {
    while let Some((before, rest)) = text.split_once(begins) {
        let (name, after) = rest.split_once('}').expect("a closed placeholder");
        text = format!("{before}{}{after}", value(name));
    }
    text
}

fn own_algorithm(kind: KeyKind) -> &'static str {
    match kind {
        KeyKind::Rsa2048 | KeyKind::Rsa3072 => "RS256",
        KeyKind::P256 => "ES256",
        KeyKind::P384 => "ES384",
        KeyKind::P521 => "ES512",
        KeyKind::Ed25519 => "EdDSA",
    }
}

/// Signs with the algorithm if the key supports it. `HS256` uses the public key as secret (algorithm confusion attack).
fn sign(key: &Key, algorithm: &str, message: &[u8]) -> Vec<u8> {
    let fixed = match key.kind {
        KeyKind::P256 => &signature::ECDSA_P256_SHA256_FIXED_SIGNING,
        KeyKind::P384 => &signature::ECDSA_P384_SHA384_FIXED_SIGNING,
        KeyKind::P521 => &signature::ECDSA_P521_SHA512_FIXED_SIGNING,
        KeyKind::Rsa2048 | KeyKind::Rsa3072 | KeyKind::Ed25519 => {
            let algorithm = match algorithm {
                "none" => return Vec::new(),
                "HS256" => {
                    let secret = testkit::pki::pem("PUBLIC KEY", &key.spki());
                    let secret = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret.as_bytes());
                    return aws_lc_rs::hmac::sign(&secret, message).as_ref().to_vec();
                }
                "RS384" => SigAlg::RsaSha384,
                "RS512" => SigAlg::RsaSha512,
                "PS256" => SigAlg::PssSha256,
                "PS384" => SigAlg::PssSha384,
                "PS512" => SigAlg::PssSha512,
                _ => SigAlg::RsaSha256,
            };
            return key.sign(algorithm, message);
        }
    };
    let PrivateKeyDer::Pkcs8(pkcs8) = key.pkcs8() else { panic!("keys are PKCS#8") };
    let pair = EcdsaKeyPair::from_pkcs8(fixed, pkcs8.secret_pkcs8_der()).expect("own key");
    pair.sign(&SystemRandom::new(), message).expect("an ECDSA signature").as_ref().to_vec()
}

/// Modulus and exponent of a PKCS#1 public key.
fn rsa_numbers(der: &[u8]) -> (Vec<u8>, Vec<u8>) {
    use x509_parser::der_parser::asn1_rs::{FromDer, Integer, Sequence};
    let (_, sequence) = Sequence::from_der(der).expect("an RSA key");
    let (rest, modulus) = Integer::from_der(&sequence.content).expect("a modulus");
    let (_, exponent) = Integer::from_der(rest).expect("an exponent");
    let number = |integer: Integer<'_>| {
        integer.as_ref().iter().copied().skip_while(|byte| *byte == 0).collect::<Vec<_>>()
    };
    (number(modulus), number(exponent))
}

fn fill_value(value: &Value, fill: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => match relative_time(text) {
            Some(seconds) => json!(seconds),
            None => json!(fill(text)),
        },
        Value::Array(values) => values.iter().map(|value| fill_value(value, fill)).collect(),
        Value::Object(members) => {
            members.iter().map(|(name, value)| (fill(name), fill_value(value, fill))).collect()
        }
        other => other.clone(),
    }
}

/// The Unix time of `{now}`, `{now+60}` or `{now-60}`.
fn relative_time(text: &str) -> Option<i64> {
    let offset = text.strip_prefix("{now")?.strip_suffix('}')?;
    let offset: i64 = if offset.is_empty() { 0 } else { offset.parse().ok()? };
    Some(now() + offset)
}
