//! Tokens whose verification takes long, and the keys for that.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use testkit::{fake_accounts, now};
use uuid::Uuid;

/// Keys of a key set, and the bytes of each modulus: 8192 bits.
const KEYS: usize = 100;
const MODULUS: usize = 1024;
/// The largest exponent of 32 bits.
const EXPONENT: [u8; 4] = [0xff; 4];

/// A key set of made-up RSA keys.
pub(crate) fn key_set() -> Value {
    let keys = (0..KEYS).map(|number| {
        let mut modulus = random(MODULUS);
        modulus[0] |= 0x80;
        modulus[MODULUS - 1] |= 1;
        json!({"kty": "RSA", "use": "sig", "alg": "RS256", "kid": number.to_string(),
            "n": URL_SAFE_NO_PAD.encode(modulus), "e": URL_SAFE_NO_PAD.encode(EXPONENT)})
    });
    json!({"keys": keys.collect::<Vec<_>>()})
}

/// A service-account token without a key ID that none of the keys has signed. Each is different.
pub(crate) fn made_up() -> String {
    let claims = json!({"iss": fake_accounts::ISSUER, "aud": [fake_accounts::ISSUER], "exp": now() + 3600,
        "sub": "system:serviceaccount:team:builder"});
    let mut signature = random(MODULUS);
    // Less than each modulus, so that it is not refused before the exponentiation.
    signature[0] = 0;
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.{}", part(&json!({"alg": "RS256"})), part(&claims), URL_SAFE_NO_PAD.encode(signature))
}

fn random(length: usize) -> Vec<u8> {
    std::iter::repeat_with(|| Uuid::new_v4().into_bytes()).flatten().take(length).collect()
}
