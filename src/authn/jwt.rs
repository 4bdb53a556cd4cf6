//! JSON Web Tokens in the compact serialisation (RFC 7515, RFC 7519): taken apart once, verified key by key.
//!
//! What a token says is unverified until [`Jwt::is_signed_by`] was asked; who trusts which claims is the business of
//! [`super::service_account`] and [`super::oidc`]. Before that nothing is kept of it but a few texts: a claim set that
//! anybody made up is not worth the memory that its members would take.

pub mod key_file;
pub mod key_set;
pub mod keys;
pub(crate) mod members;

use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use rustls_pki_types::CertificateDer;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::go::json::JsonObject;
use crate::pki::x509::certificate::Certificate;
use keys::{Algorithm, PublicKey};

/// The longest header, encoded: room for a chain of certificates.
const LONGEST_HEADER: usize = 64 << 10;

/// The longest issuer that is looked at: it is kept with the token, which may wait.
const LONGEST_ISSUER: usize = 64 << 10;

/// How many keys a token is verified by: anybody can make up one that names none.
const MOST_TRIED: usize = 100;

/// As Go reads base64url without padding: bits beyond the last whole byte are ignored.
// Go: encoding/base64, RawURLEncoding
const BASE64_URL: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

/// As Go reads base64 of certificates.
// Go: encoding/base64, StdEncoding
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// A token that was taken apart. Nothing in it is verified.
pub struct Jwt<'a> {
    header: Header,
    payload: Vec<u8>,
    issuer: Option<String>,
    signing_input: &'a str,
    signature: Vec<u8>,
}

/// What is read of a header.
#[derive(Debug, Default)]
struct Header {
    algorithm: Option<String>,
    key_id: Option<String>,
    /// It says that something else was signed than it seems, or that something must be understood.
    is_extended: bool,
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
    /// A name comes twice in the header, what it stands for is of another type, or there is too much of it.
    #[error("the header is not well-formed")]
    Header,
}

impl<'a> Jwt<'a> {
    /// Takes a token apart.
    pub fn parse(token: &'a str) -> Result<Self, Malformed> {
        let [header, claims, signature] = parts(token)?;
        let (signing_input, _) = token.rsplit_once('.').ok_or(Malformed::Parts)?;
        if header.len() > LONGEST_HEADER {
            return Err(Malformed::Header);
        }
        let decode =
            |text: &str, part| BASE64_URL.decode(text.as_bytes()).map_err(|_| Malformed::Base64(part));
        let header = decode(header, "header")?;
        let payload = decode(claims, "payload")?;
        Ok(Self {
            header: Header::read(&header)?,
            issuer: issuer_of(&payload)?,
            payload,
            signing_input,
            signature: decode(signature, "signature")?,
        })
    }

    /// What was signed, decoded: a JSON object.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The claims, for who has verified them.
    pub fn claims(&self) -> Result<Map<String, Value>, Malformed> {
        let claims = serde_json::from_slice::<JsonObject>(&self.payload);
        claims.map(|JsonObject(claims)| claims).map_err(|_| Malformed::Json("payload"))
    }

    /// Who says to have issued it, unverified: empty if nobody does, nothing if it is no text.
    pub fn issuer(&self) -> Option<&str> {
        self.issuer.as_deref()
    }

    /// The algorithm the header names.
    pub fn algorithm(&self) -> Option<&str> {
        self.header.algorithm.as_deref()
    }

    /// The key the header names, if it names one.
    pub fn key_id(&self) -> Option<&str> {
        self.header.key_id.as_deref().filter(|id| !id.is_empty())
    }

    /// Whether one of the keys has signed it: the one it names, or any of the first hundred if it names none.
    pub fn is_signed_by_one_of(&self, keys: &[PublicKey]) -> bool {
        let named = |key: &&PublicKey| self.key_id().is_none_or(|id| key.id() == id);
        keys.iter().filter(named).take(MOST_TRIED).any(|key| self.is_signed_by(key))
    }

    /// Whether the key has signed it, by the algorithm of the header. No critical extension is understood, and no
    /// payload that is not encoded (RFC 7797).
    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        let algorithm = self.algorithm().and_then(Algorithm::named);
        !self.header.is_extended
            && algorithm.is_some_and(|algorithm| {
                key.has_signed(algorithm, self.signing_input.as_bytes(), &self.signature)
            })
    }
}

impl Header {
    /// Refuses one that Go's library cannot read, and one with a key in it.
    // go-jose: jws.go and shared.go, rawHeader.sanitized
    fn read(json: &[u8]) -> Result<Self, Malformed> {
        let mut is_well_formed = true;
        let mut header = Self::default();
        let text = |member: &RawValue| members::value::<String>(member);
        let each = |name: &str, member: &RawValue| match name {
            "alg" => header.algorithm = text(member).ok().flatten(),
            "kid" => match text(member) {
                Ok(id) => header.key_id = id,
                Err(_) => is_well_formed = false,
            },
            "nonce" => is_well_formed &= text(member).is_ok(),
            "x5c" => is_well_formed &= members::value(member).is_ok_and(|chain| chain.is_none_or(is_chain)),
            // No issuer needs one, and to judge it would take all that is known of keys.
            "jwk" => is_well_formed &= member.get() == "null",
            "b64" => header.is_extended |= member.get() != "true",
            "crit" => header.is_extended = true,
            _ => {}
        };
        members::read(json, each).map_err(|_| Malformed::Json("header"))?;
        is_well_formed &= members::check_unambiguous(json).is_ok();
        if is_well_formed { Ok(header) } else { Err(Malformed::Header) }
    }
}

/// Whether these are certificates. Nothing is believed of them.
// go-jose: shared.go, parseCertificateChain
fn is_chain(certificates: Vec<String>) -> bool {
    certificates.into_iter().all(|certificate| {
        let der = BASE64.decode(certificate).map(CertificateDer::from);
        der.is_ok_and(|der| Certificate::parse(der).is_ok())
    })
}

/// The issuer that a token names, unverified: empty if it names none, nothing if that is no text, or if it is no JSON Web
/// Token as far as its payload tells. Of the rest only the number of its parts is looked at.
// threat: large-tokens
pub(crate) fn issuer(token: &str) -> Option<String> {
    let [_, payload, _] = parts(token).ok()?;
    issuer_of(&BASE64_URL.decode(payload).ok()?).ok()?.filter(|issuer| issuer.len() <= LONGEST_ISSUER)
}

/// The three parts of a token.
fn parts(token: &str) -> Result<[&str; 3], Malformed> {
    let (signed, signature) = token.rsplit_once('.').ok_or(Malformed::Parts)?;
    let (header, payload) = signed.split_once('.').ok_or(Malformed::Parts)?;
    if payload.contains('.') { Err(Malformed::Parts) } else { Ok([header, payload, signature]) }
}

/// The issuer in a payload: the last one, by any spelling that Go takes for its name, unless one of them is no text.
// apiserver: plugin/pkg/authenticator/token/oidc/oidc.go, untrustedIssuer; pkg/serviceaccount/jwt.go, hasCorrectIssuer
fn issuer_of(payload: &[u8]) -> Result<Option<String>, Malformed> {
    let mut issuer = Ok(String::new());
    let each = |name: &str, member: &RawValue| {
        if members::is_field(name, "iss")
            && let Ok(before) = &mut issuer
        {
            match members::value(member) {
                Ok(Some(text)) => *before = text,
                Ok(None) => {}
                Err(error) => issuer = Err(error),
            }
        }
    };
    members::read(payload, each).map_err(|_| Malformed::Json("payload"))?;
    Ok(issuer.ok())
}

/// Shows nothing that could be used.
impl std::fmt::Debug for Jwt<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jwt").field("header", &self.header).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
