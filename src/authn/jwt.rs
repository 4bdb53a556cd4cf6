//! JSON Web Tokens in the compact serialisation (RFC 7515, RFC 7519): taken apart once, verified key by key.
//!
//! What a token says is unverified until [`Jwt::is_signed_by`] was asked; who trusts which claims is the business of
//! [`super::service_account`] and [`super::oidc`].

pub mod key_file;
pub mod key_set;
pub mod keys;

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use keys::{Algorithm, PublicKey};

/// As Go reads base64url without padding: bits beyond the last whole byte are ignored.
// Go: encoding/base64, RawURLEncoding
const BASE64_URL: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

/// A token that was taken apart. Nothing in it is verified.
pub struct Jwt<'a> {
    header: Map<String, Value>,
    payload: Vec<u8>,
    claims: Map<String, Value>,
    signing_input: &'a str,
    signature: Vec<u8>,
}

/// It is no JSON Web Token in the compact serialisation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// There are not exactly three parts.
    #[error("not three parts separated by dots")]
    Parts,
    /// A part is not base64url without padding.
    #[error("the {0} is not base64url without padding")]
    Base64(&'static str),
    /// A part is no JSON object.
    #[error("the {0} is no JSON object")]
    Json(&'static str),
    /// A name comes twice in the header, or what it stands for is of another type.
    #[error("the header is not well-formed")]
    Header,
}

impl<'a> Jwt<'a> {
    /// Takes a token apart.
    pub fn parse(token: &'a str) -> Result<Self, Malformed> {
        let (signing_input, signature) = token.rsplit_once('.').ok_or(Malformed::Parts)?;
        let (header, claims) = signing_input.split_once('.').ok_or(Malformed::Parts)?;
        if claims.contains('.') {
            return Err(Malformed::Parts);
        }
        let decode =
            |text: &str, part| BASE64_URL.decode(text.as_bytes()).map_err(|_| Malformed::Base64(part));
        let header = decode(header, "header")?;
        let payload = decode(claims, "payload")?;
        let object = |json, part| serde_json::from_slice(json).map_err(|_| Malformed::Json(part));
        Ok(Self {
            header: well_formed(object(&header, "header")?, &header)?,
            claims: object(&payload, "payload")?,
            payload,
            signing_input,
            signature: decode(signature, "signature")?,
        })
    }

    /// What was signed, decoded: JSON, of which the claims were read.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The claims, unverified.
    pub fn claims(&self) -> &Map<String, Value> {
        &self.claims
    }

    /// The claims alone, for who has verified them.
    pub fn into_claims(self) -> Map<String, Value> {
        self.claims
    }

    /// A claim that is text.
    pub fn text(&self, claim: &str) -> Option<&str> {
        self.claims.get(claim)?.as_str()
    }

    /// The header, unverified.
    pub fn header(&self) -> &Map<String, Value> {
        &self.header
    }

    /// The algorithm the header names.
    pub fn algorithm(&self) -> Option<&str> {
        self.header.get("alg")?.as_str()
    }

    /// The key the header names, if it names one.
    pub fn key_id(&self) -> Option<&str> {
        self.header.get("kid")?.as_str().filter(|id| !id.is_empty())
    }

    /// Whether one of the keys has signed it: the one it names, or any if it names none.
    pub fn is_signed_by_one_of(&self, keys: &[PublicKey]) -> bool {
        let named = |key: &&PublicKey| self.key_id().is_none_or(|id| key.id() == id);
        keys.iter().filter(named).any(|key| self.is_signed_by(key))
    }

    /// Whether the key has signed it, by the algorithm of the header. No critical extension is understood, and no
    /// payload that is not encoded (RFC 7797).
    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        let algorithm = self.algorithm().and_then(Algorithm::named);
        !self.header.contains_key("crit")
            && self.header.get("b64").is_none_or(|encoded| *encoded == Value::Bool(true))
            && algorithm.is_some_and(|algorithm| {
                key.has_signed(algorithm, self.signing_input.as_bytes(), &self.signature)
            })
    }
}

/// The header, unless a name comes twice in it or the key is not named by a text.
// go-jose: jws.go and shared.go, rawHeader
fn well_formed(header: Map<String, Value>, json: &[u8]) -> Result<Map<String, Value>, Malformed> {
    let names: Entries = serde_json::from_slice(json).map_err(|_| Malformed::Header)?;
    let key_id = header.get("kid").is_none_or(|id| id.is_string() || id.is_null());
    if names.0 == header.len() && key_id { Ok(header) } else { Err(Malformed::Header) }
}

/// How many entries there are in an object, those of the same name each counted.
struct Entries(usize);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(object: D) -> Result<Self, D::Error> {
        struct Counter;

        impl<'de> Visitor<'de> for Counter {
            type Value = Entries;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut count = 0;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Entries(count))
            }
        }

        object.deserialize_map(Counter)
    }
}

/// Shows nothing that could be used.
impl std::fmt::Debug for Jwt<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jwt").field("header", &self.header).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
