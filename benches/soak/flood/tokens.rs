//! Invalid tokens.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use testkit::fake_accounts;
use testkit::now;
use uuid::Uuid;

use super::flooded_gateway::FloodedGateway;

const LARGE: usize = 64 << 10;

/// A generator of invalid tokens in several formats.
#[derive(Clone)]
pub(crate) struct InvalidTokens {
    issuer: String,
    made: usize,
}

impl InvalidTokens {
    /// A generator that begins with format number `first`.
    pub(crate) fn new(subject: &FloodedGateway, first: usize) -> Self {
        Self { issuer: subject.issuer.url.clone(), made: first }
    }

    /// A token of the next format.
    pub(crate) fn next_token(&mut self) -> String {
        self.made += 1;
        let id = Uuid::new_v4().simple().to_string();
        let of = |issuer: &str| json!({"iss": issuer, "aud": "subject", "sub": id, "exp": now() + 3600});
        match self.made % 7 {
            0 => id,
            1 => format!("{}.{}", &id[..6], &id[16..]),
            2 => jwt(&json!({"alg": "ES256", "kid": id}), &of(&self.issuer)),
            3 => jwt(&json!({"alg": "ES256", "kid": "k"}), &of(&self.issuer)),
            4 => jwt(&json!({"alg": "ES256", "kid": "k"}), &of("https://elsewhere.test")),
            5 => jwt(&json!({"alg": "ES256"}), &of(fake_accounts::ISSUER)),
            _ => id.repeat(LARGE / id.len()),
        }
    }
}

/// A well-formed JSON Web Token with a random signature.
fn jwt(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signature: Vec<u8> = (0..4).flat_map(|_| Uuid::new_v4().into_bytes()).collect();
    format!("{}.{}.{}", part(header), part(claims), URL_SAFE_NO_PAD.encode(signature))
}
