//! Sealed values: what the page knows of a browser is in the browser's cookies, encrypted and authenticated.
//!
//! A value is bound to its purpose and to its scope (the page's origin, and its client at the provider), and has an end
//! inside. AES-256-GCM with random nonces: a key
//! seals far fewer than the 2³² values for which they are safe.
// threat: page-forged-cookie

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use portcullis_system::clock::UnixTime;
use secrecy::ExposeSecret as _;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::config::page_settings::CookieKey;

/// What a sealed value is for. A value of one purpose is none of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A login that has begun.
    Login,
    /// The session of a user.
    Session,
}

impl Purpose {
    fn label(self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::Session => "session",
        }
    }
}

/// The key of the sealed values. Replicas have the same.
pub(super) struct SealingKey(RandomizedNonceKey);

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealingKey")
    }
}

/// A value and its end.
#[derive(Serialize, Deserialize)]
struct Ending<T> {
    until: u64,
    value: T,
}

/// The key cannot be used, or the system has no random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the cryptographic library refuses the cookie key")]
pub(crate) struct UnusableKey;

impl SealingKey {
    /// A random key, for this process alone.
    pub(super) fn random() -> Result<Self, UnusableKey> {
        let mut bytes = [0; 32];
        rand::fill(&mut bytes).map_err(|_| UnusableKey)?;
        RandomizedNonceKey::new(&AES_256_GCM, &bytes).map(Self).map_err(|_| UnusableKey)
    }

    /// A configured key.
    pub(super) fn of(key: &CookieKey) -> Result<Self, UnusableKey> {
        RandomizedNonceKey::new(&AES_256_GCM, key.0.expose_secret()).map(Self).map_err(|_| UnusableKey)
    }

    /// Seals a value until a time.
    pub(super) fn seal(
        &self,
        purpose: Purpose,
        scope: &str,
        value: &impl Serialize,
        until: UnixTime,
    ) -> Result<String, UnusableKey> {
        let ending = Ending { until: until.as_secs(), value };
        let mut text = serde_json::to_vec(&ending).map_err(|_| UnusableKey)?;
        let bound_to = Aad::from(bound_to(purpose, scope));
        let nonce = self.0.seal_in_place_append_tag(bound_to, &mut text).map_err(|_| UnusableKey)?;
        let mut sealed = nonce.as_ref().to_vec();
        sealed.append(&mut text);
        Ok(URL_SAFE_NO_PAD.encode(sealed))
    }

    /// The value; `None` if it was not sealed with this key for this purpose and scope, or has ended.
    pub(super) fn open<T: DeserializeOwned>(
        &self,
        purpose: Purpose,
        scope: &str,
        sealed: &str,
        now: UnixTime,
    ) -> Option<T> {
        let sealed = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (nonce, text) = sealed.split_at_checked(NONCE_LEN)?;
        let (nonce, mut text) = (Nonce::try_assume_unique_for_key(nonce).ok()?, text.to_vec());
        let text = self.0.open_in_place(nonce, Aad::from(bound_to(purpose, scope)), &mut text).ok()?;
        let ending: Ending<T> = serde_json::from_slice(text).ok()?;
        (now.as_secs() < ending.until).then_some(ending.value)
    }
}

/// The associated data of a value.
fn bound_to(purpose: Purpose, scope: &str) -> Vec<u8> {
    format!("portcullis page 1\n{}\n{scope}", purpose.label()).into_bytes()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use secrecy::SecretBox;

    use super::*;

    const SCOPE: &str = "https://clusters.test";
    const NOW: UnixTime = Duration::from_hours(500_000);

    fn open(key: &SealingKey, sealed: &str) -> Option<String> {
        key.open(Purpose::Session, SCOPE, sealed, NOW)
    }

    #[test]
    fn a_value_opens_only_as_it_was_sealed() {
        let key = SealingKey::random().unwrap();
        let until = NOW + Duration::from_mins(10);
        let sealed = key.seal(Purpose::Session, SCOPE, &"alice", until).unwrap();
        assert_eq!(open(&key, &sealed).as_deref(), Some("alice"));
        assert!(!sealed.contains("alice"));
        let other: Option<String> = key.open(Purpose::Login, SCOPE, &sealed, NOW);
        assert_eq!(other, None, "another purpose");
        let other: Option<String> = key.open(Purpose::Session, "https://other.test", &sealed, NOW);
        assert_eq!(other, None, "another scope");
        let later: Option<String> = key.open(Purpose::Session, SCOPE, &sealed, until);
        assert_eq!(later, None, "ended");
        assert_eq!(open(&SealingKey::random().unwrap(), &sealed), None, "another key");
        let other: Option<u64> = key.open(Purpose::Session, SCOPE, &sealed, NOW);
        assert_eq!(other, None, "another type");
    }

    #[test]
    fn no_changed_byte_is_accepted() {
        let key = SealingKey::random().unwrap();
        let until = NOW + Duration::from_mins(10);
        let sealed = key.seal(Purpose::Session, SCOPE, &"alice", until).unwrap();
        let bytes = URL_SAFE_NO_PAD.decode(&sealed).unwrap();
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 1;
            assert_eq!(open(&key, &URL_SAFE_NO_PAD.encode(changed)), None, "byte {index}");
            assert_eq!(open(&key, &URL_SAFE_NO_PAD.encode(&bytes[..index])), None, "cut at {index}");
        }
        for text in ["", "=", "not base64!", "AAAA"] {
            assert_eq!(open(&key, text), None, "{text}");
        }
    }

    #[test]
    fn two_seals_of_a_value_differ_and_replicas_open_both() {
        let configured = || SealingKey::of(&CookieKey(SecretBox::new(Box::new([7; 32])))).unwrap();
        let (one, other) = (configured(), configured());
        let until = NOW + Duration::from_mins(10);
        let seals: Vec<_> =
            (0..2).map(|_| one.seal(Purpose::Session, SCOPE, &"alice", until).unwrap()).collect();
        assert_ne!(seals[0], seals[1]);
        for sealed in &seals {
            assert_eq!(open(&other, sealed).as_deref(), Some("alice"));
        }
    }
}
