//! What a verdict is remembered under: neither the token nor anything it could be guessed from.

use std::fmt;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;

use super::super::{Audience, BearerToken};

/// Stands for a token and the audiences it was judged for. Without the secret of its cache nobody can make one, so it
/// needs no protection against chosen collisions either.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key([u8; 32]);

impl Key {
    /// A number that is spread evenly.
    pub(super) fn spread(&self) -> usize {
        let [first, second, ..] = self.0;
        usize::from(u16::from_le_bytes([first, second]))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// Makes the keys of one cache.
#[derive(Debug)]
pub(super) struct Keys(hmac::Key);

impl Keys {
    /// Keys that no other cache has.
    pub(super) fn random() -> Self {
        #[expect(clippy::expect_used, reason = "without random numbers there is no TLS either")]
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).expect("random numbers");
        Self(key)
    }

    /// The key of a token and audiences. Every part has its length before it: `a` for `bc` is not `ab` for `c`.
    // apiserver: pkg/authentication/token/cache/cached_token_authenticator.go, keyFunc
    pub(super) fn key(&self, token: &BearerToken, audiences: &[Audience]) -> Key {
        let mut context = hmac::Context::with_key(&self.0);
        let mut part = |text: &str| {
            context.update(&text.len().to_be_bytes());
            context.update(text.as_bytes());
        };
        part(token.expose());
        for audience in audiences {
            part(&audience.0);
        }
        let mut key = [0; 32];
        let tag = context.sign();
        // A tag of HMAC-SHA-256 is as long.
        key.iter_mut().zip(tag.as_ref()).for_each(|(to, from)| *to = *from);
        Key(key)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::audiences_of;
    use super::*;

    #[test]
    fn different_questions_have_different_keys() {
        const QUESTIONS: &[(&str, &[&str])] = &[
            ("", &[]),
            ("a", &[]),
            ("ab", &[]),
            ("a", &["b"]),
            ("a", &["b", "c"]),
            ("a", &["c", "b"]),
            ("a", &["bc"]),
            ("ab", &["c"]),
            ("a", &[""]),
            ("a", &["", ""]),
        ];
        let keys = Keys::random();
        let key = |(token, audiences): &(&str, &[&str])| {
            keys.key(&BearerToken::new(*token), &audiences_of(audiences))
        };
        for (index, one) in QUESTIONS.iter().enumerate() {
            for other in &QUESTIONS[..index] {
                assert!(key(one) != key(other), "{one:?} and {other:?}");
            }
            assert!(key(one) == key(one), "{one:?}");
        }
    }

    #[test]
    fn each_cache_has_keys_of_its_own() {
        let key = || Keys::random().key(&BearerToken::new("token"), &[]);
        assert!(key() != key());
    }
}
