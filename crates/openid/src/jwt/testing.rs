//! A signer of tokens.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "only tests use it")]

use aws_lc_rs::encoding::{AsDer as _, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair as _, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PSS_SHA256,
    RsaEncoding, RsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::keys::VerificationKey;

/// Signs tokens for tests.
#[derive(Debug)]
pub struct Signer {
    key: Key,
    /// The algorithm of its signatures.
    pub algorithm: &'static str,
    /// The public key.
    pub public: VerificationKey,
}

#[derive(Debug)]
enum Key {
    Rsa(RsaKeyPair, &'static dyn RsaEncoding),
    Ecdsa(EcdsaKeyPair),
}

impl Signer {
    /// Generates a key for an algorithm.
    pub fn new(algorithm: &'static str) -> Self {
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
    pub fn point(&self) -> Vec<u8> {
        match &self.key {
            Key::Ecdsa(pair) => pair.public_key().as_ref()[1..].to_vec(),
            Key::Rsa(..) => panic!("an RSA key has no point"),
        }
    }

    /// A header with `alg` and `kid`.
    pub fn header(&self) -> String {
        format!(r#"{{"alg":"{}","kid":"{}"}}"#, self.algorithm, self.public.id())
    }

    /// Signs a token; the header and the payload need not be valid JSON.
    pub fn sign(&self, header: &str, payload: &str) -> String {
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
