//! The members of a JSON Web Key (RFC 7517), read as kube-apiserver's library reads them: other members may have any value.
// go-jose v2.6.3: jwk.go, JSONWebKey.UnmarshalJSON; encoding.go, byteBuffer

use base64::Engine as _;
use serde_json::{Map, Value};

use super::BASE64_URL;
use super::keys::{UnsupportedKey, UnusableKey};

/// Members that are text.
const TEXTS: [&str; 7] = ["use", "kty", "kid", "crv", "alg", "x5t", "x5t#S256"];
/// Members that are numbers, in base64url.
const NUMBERS: [&str; 11] = ["k", "x", "y", "n", "e", "d", "p", "q", "dp", "dq", "qi"];
/// The lengths of `x5t` and `x5t#S256`: of the digest, or of its text in hexadecimal.
const THUMBPRINTS: [(&str, usize); 2] = [("x5t", 20), ("x5t#S256", 32)];

/// A public key of a key set.
#[derive(Debug)]
pub(super) struct WebKey<'a>(&'a Map<String, Value>);

impl<'a> WebKey<'a> {
    /// Reads a key; fails if a member has a value that it cannot have, and for a private key.
    pub(super) fn read(key: &'a Value) -> Result<Self, UnusableKey> {
        let key = Self(key.as_object().ok_or(UnsupportedKey::Unknown)?);
        let is_text = |name: &&str| matches!(key.0.get(*name), None | Some(Value::Null | Value::String(_)));
        if let Some(name) = TEXTS.iter().find(|name| !is_text(name)) {
            return Err(UnusableKey::Member(name));
        }
        for name in NUMBERS {
            key.number(name)?;
        }
        if key.0.get("d").is_some_and(|private| !private.is_null()) {
            return Err(UnusableKey::Private);
        }
        for (name, length) in THUMBPRINTS {
            let decoded = BASE64_URL.decode(unwrapped(key.text(name)));
            let is_valid = decoded.is_ok_and(|decoded| match decoded.len() {
                0 => true,
                hexadecimal if hexadecimal == 2 * length => decoded.iter().all(u8::is_ascii_hexdigit),
                other => other == length,
            });
            if !is_valid {
                return Err(UnusableKey::Member(name));
            }
        }
        Ok(key)
    }

    /// A member that is text; empty if it is absent.
    pub(super) fn text(&self, name: &str) -> &'a str {
        self.0.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// A number, big-endian, as long as the key says it; empty if it is absent.
    pub(super) fn number(&self, name: &'static str) -> Result<Vec<u8>, UnusableKey> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::String(text)) => {
                BASE64_URL.decode(unwrapped(text)).map_err(|_| UnusableKey::Member(name))
            }
            Some(_) => Err(UnusableKey::Member(name)),
        }
    }

    /// A number without the zeros with which some issuers begin it, as Java's `BigInteger` writes it.
    // RFC 7518, section 6.3.1.1: no such zeros; go-jose reads any number of them
    pub(super) fn integer(&self, name: &'static str) -> Result<Vec<u8>, UnusableKey> {
        let number = self.number(name)?;
        let zeros = number.iter().take_while(|byte| **byte == 0).count();
        Ok(number.get(zeros..).unwrap_or_default().to_vec())
    }
}

/// Base64 without the line ends that Go skips.
// Go: encoding/base64, decodeQuantum
fn unwrapped(text: &str) -> String {
    text.chars().filter(|letter| !matches!(letter, '\r' | '\n')).collect()
}
