//! Random tokens with unusual JSON: claims of the test, random header members, and a valid signature.

mod parts;

use std::collections::BTreeMap;
use std::fmt::Debug;

use aws_lc_rs::encoding::{AsDer as _, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use portcullis::internal::VerificationKey;
use serde_json::{Value, json};
use testkit::pki::Ca;
use testkit::random::Rng;

pub(crate) use parts::{DATES, VALUES};

/// Declared differences: ids of `docs/conformance.md`.
pub(crate) const SPELLING: &str = "D-token-spelling";
pub(crate) const HEADER: &str = "D-token-header";
pub(crate) const DATES_BEYOND: &str = "D-token-dates";

/// Makes tokens that one key has signed.
pub(crate) struct TokenMint {
    key: EcdsaKeyPair,
    key_id: String,
    certificate: String,
    pub(crate) rng: Rng,
}

pub(crate) struct RandomToken {
    pub(crate) text: String,
    /// The header and the claims.
    pub(crate) shown: String,
    /// The ids of the differences for which only we may refuse the token.
    pub(crate) declared: Vec<&'static str>,
}

impl TokenMint {
    /// A new key with the key id of service-account tokens.
    pub(crate) fn new(seed: u64) -> Self {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let certificate = STANDARD.encode(Ca::new("some CA").cert);
        let key_id = VerificationKey::from_spki(&spki(&key)).unwrap().id().to_owned();
        Self { key, key_id, certificate, rng: Rng(seed) }
    }

    /// The public key, as a member of a key set.
    pub(crate) fn jwk(&self) -> Value {
        let point = &self.key.public_key().as_ref()[1..];
        let (x, y) = point.split_at(32);
        let [x, y] = [x, y].map(|number| URL_SAFE_NO_PAD.encode(number));
        json!({"kty": "EC", "kid": self.key_id, "crv": "P-256", "x": x, "y": y})
    }

    /// The public key, as DER.
    pub(crate) fn spki(&self) -> Vec<u8> {
        spki(&self.key)
    }

    /// A header of members in random order, most of them valid.
    fn header(&mut self) -> String {
        let mut members = vec!["\"alg\": \"ES256\""];
        if !self.rng.one_in(4) {
            members.push("\"kid\": \"{kid}\"");
        }
        if self.rng.one_in(40) {
            members.clear();
        }
        if self.rng.one_in(3) {
            for _ in 0..=self.rng.below(2) {
                members.push(*self.rng.pick(parts::HEADER_MEMBERS));
            }
        }
        let jwk = self.jwk().to_string();
        format!("{{{}}}", self.rng.shuffled(members).join(", "))
            .replace("{jwk}", &jwk)
            .replace("{kid}", &self.key_id)
            .replace("{x5c}", &self.certificate)
    }

    /// The members as an object in random order, or, rarely, another JSON value.
    pub(crate) fn claims(&mut self, members: Vec<String>) -> String {
        let members = self.rng.shuffled(members);
        match self.rng.below(60) {
            0 => format!("{{{}}} ", members.join(",\n\t ")),
            1 => format!("{{{}}} {{}}", members.join(",")),
            2 => format!("[{{{}}}]", members.join(",")),
            3 => format!("{{{},}}", members.join(",")),
            4 => "null".to_owned(),
            5 => format!("{{{}, \"deep\": {}{}}}", members.join(","), "[".repeat(200), "]".repeat(200)),
            _ => format!("{{{}}}", members.join(", ")),
        }
    }

    /// A token with these claims, which may be invalid JSON.
    pub(crate) fn token(&mut self, claims: &str) -> RandomToken {
        let header = self.header();
        let mut bytes = claims.as_bytes().to_vec();
        if self.rng.one_in(60) {
            let at = self.rng.below(bytes.len());
            bytes[at] = 0xFF;
        }
        let input = format!("{}.{}", URL_SAFE_NO_PAD.encode(&header), URL_SAFE_NO_PAD.encode(&bytes));
        let signature = self.key.sign(&SystemRandom::new(), input.as_bytes()).unwrap();
        let mut text = format!("{input}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()));
        let mut spare = false;
        match self.rng.below(60) {
            // Unused bits after the last byte of the signature.
            0 => {
                let last = u8::try_from(text.pop().unwrap()).unwrap();
                text.push(char::from(if last == b'A' { b'B' } else { b'A' }));
            }
            1 => text.push_str("=="),
            2 => text.push('A'),
            3 => text.push('\n'),
            4 => text.insert(text.rfind('.').unwrap(), '\t'),
            5 => text.insert(5, ' '),
            6 => text.push('.'),
            // Unused bits after the last byte of the header, or of the claims.
            7 => spare = flip_spare_bit(&mut text, 0),
            8 => spare = flip_spare_bit(&mut text, 1),
            _ => {}
        }
        let any = |text: &str, parts: &[&str]| parts.iter().any(|part| text.contains(part));
        let mut declared = Vec::new();
        if any(claims, &["\\ud8", "\\udc", "e400", "e999", "[[[[[[[[[[["])
            || bytes.contains(&0xFF)
            || any(&text, &["\n", "\t", " "])
            || spare
        {
            declared.push(SPELLING);
        }
        if any(&header, &["\"jwk\": {", "\"crit\": ", "\"b64\": ", "\\ud8"]) {
            declared.push(HEADER);
        }
        // Go's dates end 62,135,596,800 s before the last number.
        if claims.contains("9223372036854775807") {
            declared.push(DATES_BEYOND);
        }
        let shown = format!("{header} . {}", String::from_utf8_lossy(&bytes));
        RandomToken { text, shown, declared }
    }
}

fn spki(key: &EcdsaKeyPair) -> Vec<u8> {
    let der: PublicKeyX509Der<'_> = key.public_key().as_der().unwrap();
    der.as_ref().to_vec()
}

/// Flips an unused bit in the base64 of this part, if there is one.
fn flip_spare_bit(text: &mut String, part: usize) -> bool {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let parts: Vec<&str> = text.split('.').collect();
    let end = parts[..=part].iter().map(|part| part.len() + 1).sum::<usize>() - 1;
    let is_whole = parts[part].len().is_multiple_of(4);
    if !is_whole {
        let digit = DIGITS.iter().position(|digit| *digit == text.as_bytes()[end - 1]).unwrap();
        text.replace_range(end - 1..end, &char::from(DIGITS[digit ^ 1]).to_string());
    }
    !is_whole
}

/// The results for all tokens.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    accepted: usize,
    refused: usize,
    /// The number of tokens that only we refused, by the id of the difference.
    declared: BTreeMap<&'static str, usize>,
    failures: Vec<String>,
}

impl Comparison {
    /// Compares our verdict on a token with Kubernetes', which is the identity if it accepts the token.
    pub(crate) fn add<T: PartialEq + Debug>(
        &mut self,
        token: &RandomToken,
        ours: &Result<Option<T>, String>,
        theirs: Option<&T>,
        answer: &Value,
    ) {
        match (ours, theirs) {
            (Ok(Some(ours)), Some(theirs)) if ours == theirs => self.accepted += 1,
            (Ok(None) | Err(_), None) => self.refused += 1,
            (Ok(None) | Err(_), Some(_)) if !token.declared.is_empty() => {
                token.declared.iter().for_each(|id| *self.declared.entry(id).or_default() += 1);
            }
            _ => self.failures.push(format!("{}\n  ours:   {ours:?}\n  theirs: {answer}", token.shown)),
        }
    }

    pub(crate) fn assert_no_failures(&self, seed: u64) {
        let shown = &self.failures[..self.failures.len().min(30)];
        assert!(shown.is_empty(), "seed {seed}: {} differ\n{}", self.failures.len(), shown.join("\n"));
    }

    /// Fails unless many tokens were accepted, many were refused, and each id occurred.
    pub(crate) fn assert_meaningful(&self, ids: &[&str]) {
        let Self { accepted, refused, declared, .. } = self;
        let all = accepted + refused + declared.values().sum::<usize>();
        eprintln!("{accepted} tokens let in, {refused} refused, stricter here by declaration: {declared:?}");
        assert!(*accepted > all / 8 && *refused > all / 8, "{accepted} accepted, {refused} refused");
        // Fewer inputs may not cover every id.
        for id in ids {
            assert!(all < 9_000 || declared.contains_key(id), "no longer stricter: {id}");
        }
    }
}
