//! JSON Web Tokens in the compact serialization (RFC 7515, RFC 7519): parsing and signature verification.
//!
//! Claims are unverified until [`Jwt::is_signed_by`] returns true; the authenticators
//! decide which claims they trust. Before verification the module keeps a few header fields and the issuer only and
//! never builds the claim set: any client can send a large unsigned one.

pub mod key_file;
pub mod key_set;
pub mod keys;
pub mod members;
mod verification_budget;
mod web_key;

use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use rustls_pki_types::CertificateDer;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use keys::{JwsAlgorithm, VerificationKey};
use portcullis_go::json::JsonObject;
use portcullis_pki::x509::certificate::Certificate;
pub use verification_budget::VerificationBudget;

/// Maximum size of the encoded header: room for a certificate chain in `x5c`.
const MAX_HEADER_SIZE: usize = 64 << 10;

/// Maximum size of an issuer: it stays in memory with the token, which may wait for keys.
const MAX_ISSUER_SIZE: usize = 64 << 10;

/// Decodes base64url without padding as Go does: bits beyond the last whole byte are ignored.
// Go: encoding/base64, RawURLEncoding
const BASE64_URL: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

/// Decodes the base64 of certificates as Go does.
// Go: encoding/base64, StdEncoding
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// A parsed token. Nothing in it is verified.
pub struct Jwt<'a> {
    header: JoseHeader,
    payload: Vec<u8>,
    issuer: Option<String>,
    signing_input: &'a str,
    signature: Vec<u8>,
}

/// The header fields that verification needs.
#[derive(Debug, Default)]
struct JoseHeader {
    algorithm: Option<String>,
    key_id: Option<String>,
    /// `crit` is present, or `b64` is not `true` (RFC 7797): such a token never verifies.
    is_extended: bool,
}

/// Why a text is not a JSON Web Token in the compact serialization.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MalformedJwt {
    /// The token does not have exactly three parts.
    #[error("not three parts separated by dots")]
    Parts,
    /// A part is not base64url without padding.
    #[error("the {0} is not base64url without padding")]
    Base64(&'static str),
    /// A part is not a JSON object.
    #[error("the {0} is not a JSON object")]
    Json(&'static str),
    /// The header has duplicate members, a member of the wrong type, an embedded key, or is too large.
    #[error("the header is not well-formed")]
    Header,
}

impl<'a> Jwt<'a> {
    /// Parses a token.
    pub fn parse(token: &'a str) -> Result<Self, MalformedJwt> {
        let [header, claims, signature] = parts(token)?;
        let (signing_input, _) = token.rsplit_once('.').ok_or(MalformedJwt::Parts)?;
        if header.len() > MAX_HEADER_SIZE {
            return Err(MalformedJwt::Header);
        }
        let decode =
            |text: &str, part| BASE64_URL.decode(text.as_bytes()).map_err(|_| MalformedJwt::Base64(part));
        let header = decode(header, "header")?;
        let payload = decode(claims, "payload")?;
        Ok(Self {
            header: JoseHeader::read(&header)?,
            issuer: issuer_in(&payload)?,
            payload,
            signing_input,
            signature: decode(signature, "signature")?,
        })
    }

    /// The decoded payload: a JSON object.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The claims. Call this after the signature is verified.
    pub fn claims(&self) -> Result<Map<String, Value>, MalformedJwt> {
        let claims = serde_json::from_slice::<JsonObject>(&self.payload);
        claims.map(|JsonObject(claims)| claims).map_err(|_| MalformedJwt::Json("payload"))
    }

    /// The unverified `iss` claim: empty if absent, `None` if it is not a string.
    pub fn issuer(&self) -> Option<&str> {
        self.issuer.as_deref()
    }

    /// `alg` in the header.
    pub fn algorithm(&self) -> Option<&str> {
        self.header.algorithm.as_deref()
    }

    /// `kid` in the header, unless absent or empty.
    pub fn key_id(&self) -> Option<&str> {
        self.header.key_id.as_deref().filter(|id| !id.is_empty())
    }

    /// Whether one of the keys verifies the signature. Tries the keys with the ID in `kid`, or all keys without `kid`, of the
    /// type that `alg` needs, as far as the budget goes.
    pub fn is_signed_by_one_of(&self, keys: &[VerificationKey], budget: VerificationBudget) -> bool {
        let Some(algorithm) = self.algorithm().and_then(JwsAlgorithm::named) else { return false };
        let named = |key: &&VerificationKey| self.key_id().is_none_or(|id| key.id() == id);
        let keys = keys.iter().filter(named).filter(|key| key.fits(algorithm));
        budget.affordable(keys, self.signing_input.len()).any(|key| self.is_signed_by(key))
    }

    /// Whether the key verifies the signature with the algorithm in `alg`. Critical extensions and unencoded payloads
    /// (RFC 7797) are not supported.
    pub(crate) fn is_signed_by(&self, key: &VerificationKey) -> bool {
        let algorithm = self.algorithm().and_then(JwsAlgorithm::named);
        !self.header.is_extended
            && algorithm.is_some_and(|algorithm| {
                key.has_signed(algorithm, self.signing_input.as_bytes(), &self.signature)
            })
    }
}

impl JoseHeader {
    /// Rejects a header that go-jose cannot read, and one with an embedded key.
    // go-jose: jws.go and shared.go, rawHeader.sanitized
    fn read(json: &[u8]) -> Result<Self, MalformedJwt> {
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
            // No issuer needs an embedded key, and go-jose's checks of one would need a parser for every key type.
            "jwk" => is_well_formed &= member.get() == "null",
            "b64" => header.is_extended |= member.get() != "true",
            "crit" => header.is_extended = true,
            _ => {}
        };
        members::read(json, each).map_err(|_| MalformedJwt::Json("header"))?;
        is_well_formed &= members::check_unambiguous(json).is_ok();
        if is_well_formed { Ok(header) } else { Err(MalformedJwt::Header) }
    }
}

/// Whether the values parse as certificates. Their content is not trusted or used.
// go-jose: shared.go, parseCertificateChain
fn is_chain(certificates: Vec<String>) -> bool {
    certificates.into_iter().all(|certificate| {
        let der = BASE64.decode(certificate).map(CertificateDer::from);
        der.is_ok_and(|der| Certificate::parse(der).is_ok())
    })
}

/// The unverified issuer of a token: empty if `iss` is absent; `None` if it is not a string, or if the token does not
/// have three parts with a JSON object as the payload. The header and the signature are not read.
// threat: large-tokens
pub fn unverified_issuer(token: &str) -> Option<String> {
    let [_, payload, _] = parts(token).ok()?;
    issuer_in(&BASE64_URL.decode(payload).ok()?).ok()?.filter(|issuer| issuer.len() <= MAX_ISSUER_SIZE)
}

/// Splits a token into header, payload and signature.
fn parts(token: &str) -> Result<[&str; 3], MalformedJwt> {
    let (signed, signature) = token.rsplit_once('.').ok_or(MalformedJwt::Parts)?;
    let (header, payload) = signed.split_once('.').ok_or(MalformedJwt::Parts)?;
    if payload.contains('.') { Err(MalformedJwt::Parts) } else { Ok([header, payload, signature]) }
}

/// The last `iss` in a payload, in any spelling that Go matches to the name; `None` if one of them is not a string.
// apiserver: plugin/pkg/authenticator/token/oidc/oidc.go, untrustedIssuer; pkg/serviceaccount/jwt.go, hasCorrectIssuer
fn issuer_in(payload: &[u8]) -> Result<Option<String>, MalformedJwt> {
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
    members::read(payload, each).map_err(|_| MalformedJwt::Json("payload"))?;
    Ok(issuer.ok())
}

/// Omits the payload and the signature.
impl std::fmt::Debug for Jwt<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jwt").field("header", &self.header).finish_non_exhaustive()
    }
}

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
