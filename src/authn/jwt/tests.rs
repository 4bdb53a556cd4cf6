//! Parsing and verification of tokens, and a signer for other tests.

use aws_lc_rs::encoding::{AsDer as _, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair as _, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PSS_SHA256,
    RsaEncoding, RsaKeyPair,
};
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::*;

#[test]
fn malformed_tokens_are_rejected() {
    let cases = [
        ("", Some(MalformedJwt::Parts)),
        ("a.b", Some(MalformedJwt::Parts)),
        ("e30.e30.e30.e30", Some(MalformedJwt::Parts)),
        ("e30.e30.", None),
        ("e30=.e30.", Some(MalformedJwt::Base64("header"))),
        ("e30.e31.", None),
        ("e30.W10.", Some(MalformedJwt::Json("payload"))),
        ("e30.e30.+", Some(MalformedJwt::Base64("signature"))),
        // {"kid":1}, {"kid":null}, {"a":1,"a":1}, {"kid":"a","kid":"a"}
        ("eyJraWQiOjF9.e30.", Some(MalformedJwt::Header)),
        ("eyJraWQiOm51bGx9.e30.", None),
        ("eyJhIjoxLCJhIjoxfQ.e30.", Some(MalformedJwt::Header)),
        ("eyJraWQiOiJhIiwia2lkIjoiYSJ9.e30.", Some(MalformedJwt::Header)),
    ];
    for (token, expected) in cases {
        assert_eq!(Jwt::parse(token).err(), expected, "{token:?}");
    }
}

#[test]
fn the_issuer_is_read_without_the_header_and_the_signature() {
    let of = |payload: &str| unverified_issuer(&format!("e30.{}.", URL_SAFE_NO_PAD.encode(payload)));
    assert_eq!(of(r#"{"iss":"a","iss":"b"}"#).as_deref(), Some("b"));
    for empty in ["{}", r#"{"iss":null}"#] {
        assert_eq!(of(empty).as_deref(), Some(""), "{empty}");
    }
    for none in [r#"{"iss":5}"#, r#"{"iss":"a"}{}"#, r#"["iss"]"#, "", "{\"iss\":\"\u{0}\"}"] {
        assert_eq!(of(none), None, "{none:?}");
    }
    let long =
        |length: usize| of(&format!(r#"{{"iss":"{}"}}"#, "a".repeat(length))).map(|issuer| issuer.len());
    assert_eq!((long(MAX_ISSUER_SIZE), long(MAX_ISSUER_SIZE + 1)), (Some(MAX_ISSUER_SIZE), None));
    assert_eq!(unverified_issuer("!.eyJpc3MiOiJhIn0.!").as_deref(), Some("a"));
    assert_eq!(unverified_issuer("e30.eyJpc3MiOiJhIn0.e30."), None);
}

/// Signs tokens for tests.
#[derive(Debug)]
pub(crate) struct Signer {
    key: Key,
    /// The algorithm of its signatures.
    pub(crate) algorithm: &'static str,
    /// The public key.
    pub(crate) public: VerificationKey,
}

#[derive(Debug)]
enum Key {
    Rsa(RsaKeyPair, &'static dyn RsaEncoding),
    Ecdsa(EcdsaKeyPair),
}

impl Signer {
    /// Generates a key for an algorithm.
    pub(crate) fn new(algorithm: &'static str) -> Self {
        let (key, public) = match algorithm {
            "ES256" => ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING),
            "ES384" => ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING),
            "ES512" => ecdsa(&ECDSA_P521_SHA512_FIXED_SIGNING),
            "RS256" => rsa(&RSA_PKCS1_SHA256),
            "RS384" => rsa(&RSA_PKCS1_SHA384),
            "PS256" => rsa(&RSA_PSS_SHA256),
            other => panic!("no signer for {other}"),
        };
        Self { key, algorithm, public: VerificationKey::from_spki(&public).unwrap() }
    }

    /// Both coordinates of the public point of an ECDSA key.
    pub(crate) fn point(&self) -> Vec<u8> {
        match &self.key {
            Key::Ecdsa(pair) => pair.public_key().as_ref()[1..].to_vec(),
            Key::Rsa(..) => panic!("an RSA key has no point"),
        }
    }

    /// A header with `alg` and `kid`.
    pub(crate) fn header(&self) -> String {
        format!(r#"{{"alg":"{}","kid":"{}"}}"#, self.algorithm, self.public.id())
    }

    /// Signs a token; the header and the payload need not be valid JSON.
    pub(crate) fn sign(&self, header: &str, payload: &str) -> String {
        let input = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
        let random = SystemRandom::new();
        let signature = match &self.key {
            Key::Ecdsa(pair) => pair.sign(&random, input.as_bytes()).unwrap().as_ref().to_vec(),
            Key::Rsa(pair, encoding) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(*encoding, &random, input.as_bytes(), &mut signature).unwrap();
                signature
            }
        };
        format!("{input}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

fn ecdsa(curve: &'static EcdsaSigningAlgorithm) -> (Key, Vec<u8>) {
    let pair = EcdsaKeyPair::generate(curve).unwrap();
    let public: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    let public = public.as_ref().to_vec();
    (Key::Ecdsa(pair), public)
}

fn rsa(encoding: &'static dyn RsaEncoding) -> (Key, Vec<u8>) {
    let pair = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let public: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    let public = public.as_ref().to_vec();
    (Key::Rsa(pair, encoding), public)
}

#[test]
fn an_algorithm_is_verified_only_by_a_key_of_its_type() {
    let signers = ["ES256", "ES384", "ES512", "RS256", "RS384", "PS256"].map(Signer::new);
    for signer in &signers {
        let token = signer.sign(&signer.header(), "{}");
        let jwt = Jwt::parse(&token).unwrap();
        for other in &signers {
            let same = signer.algorithm == other.algorithm;
            let verdict = jwt.is_signed_by(&other.public);
            assert_eq!(verdict, same, "{} by {}", signer.algorithm, other.algorithm);
        }
        let mut damaged = jwt.signature.clone();
        damaged[3] ^= 1;
        assert!(!Jwt { signature: damaged, ..jwt }.is_signed_by(&signer.public), "{}", signer.algorithm);
    }
}

#[test]
fn headers_with_crit_or_b64_are_not_verified() {
    let signer = Signer::new("ES256");
    let cases = [
        (r#"{"alg":"ES256"}"#, true),
        (r#"{"alg":"ES256","b64":true}"#, true),
        (r#"{"alg":"ES256","b64":false}"#, false),
        (r#"{"alg":"ES256","b64":null}"#, false),
        (r#"{"alg":"ES256","crit":["exp"],"exp":1}"#, false),
        (r#"{"alg":"ES256","crit":[]}"#, false),
        (r#"{"alg":"none"}"#, false),
        (r#"{"alg":"HS256"}"#, false),
        (r#"{"alg":"ES384"}"#, false),
        (r#"{"alg":1}"#, false),
        ("{}", false),
    ];
    for (header, expected) in cases {
        let token = signer.sign(header, "{}");
        assert_eq!(Jwt::parse(&token).unwrap().is_signed_by(&signer.public), expected, "{header}");
    }
}

#[test]
fn a_token_without_kid_is_tried_with_a_limited_number_of_keys() {
    let [own, other] = ["ES256", "ES256"].map(Signer::new);
    let of = |header: &str| own.sign(header, "{}");
    let [unnamed, named] = [of(r#"{"alg":"ES256"}"#), of(&own.header())];
    let among = |others: usize| {
        let mut keys = vec![other.public.clone(); others];
        keys.push(own.public.clone());
        [&unnamed, &named].map(|token| Jwt::parse(token).unwrap().is_signed_by_one_of(&keys))
    };
    assert_eq!(among(99), [true, true]);
    assert_eq!(among(100), [false, true]);
}
