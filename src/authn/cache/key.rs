//! Cache keys: a keyed hash, from which neither the token nor a part of it can be recovered.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;

use super::super::{Audience, BearerToken};

/// HMAC of a token and the requested audiences. A client without the cache's secret cannot compute one, so a part of it is its
/// hash: [`SecretKeyHash`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct CacheKey([u8; 32]);

impl Hash for CacheKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from_le_bytes(self.0.last_chunk().copied().unwrap_or_default()));
    }
}

/// Hashes a [`CacheKey`], and nothing else, without the cost of a hash with a secret.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SecretKeyHash(u64);

impl BuildHasher for SecretKeyHash {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self::default()
    }
}

impl Hasher for SecretKeyHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, part: u64) {
        self.0 = part;
    }

    /// No key has such parts. Should one have, it counts, however poorly it is spread.
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }
}

impl fmt::Debug for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CacheKey")
    }
}

/// Computes the keys of one cache.
#[derive(Debug)]
pub(super) struct CacheKeyHasher(hmac::Key);

impl CacheKeyHasher {
    /// Uses a fresh random secret.
    pub(super) fn random() -> Self {
        #[expect(clippy::expect_used, reason = "without random numbers there is no TLS either")]
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).expect("random numbers");
        Self(key)
    }

    /// The key of a token and audiences. Each part is prefixed with its length, so that `a` with `bc` differs from `ab`
    /// with `c`.
    // apiserver: pkg/authentication/token/cache/cached_token_authenticator.go, keyFunc
    pub(super) fn key(&self, token: &BearerToken, audiences: &[Audience]) -> CacheKey {
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
        // An HMAC-SHA-256 tag has 32 bytes.
        key.iter_mut().zip(tag.as_ref()).for_each(|(to, from)| *to = *from);
        CacheKey(key)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::audiences_of;
    use super::*;

    #[test]
    fn different_inputs_have_different_keys() {
        const INPUTS: &[(&str, &[&str])] = &[
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
        let hasher = CacheKeyHasher::random();
        let key = |(token, audiences): &(&str, &[&str])| {
            hasher.key(&BearerToken::new(*token), &audiences_of(audiences))
        };
        for (index, one) in INPUTS.iter().enumerate() {
            for other in &INPUTS[..index] {
                assert!(key(one) != key(other), "{one:?} and {other:?}");
            }
            assert!(key(one) == key(one), "{one:?}");
        }
    }

    /// Shards take the upper half of the hash, and maps the lower bits and the upper ones: all must differ.
    #[test]
    fn keys_are_spread_over_their_hashes() {
        let hasher = CacheKeyHasher::random();
        let hashes: Vec<u64> = (0..4096)
            .map(|token| {
                SecretKeyHash::default().hash_one(hasher.key(&BearerToken::new(token.to_string()), &[]))
            })
            .collect();
        for shift in [0, 28, 32, 57] {
            let mut buckets = [0; 16];
            for hash in &hashes {
                buckets[usize::try_from((hash >> shift) % 16).unwrap()] += 1;
            }
            assert!(buckets.iter().all(|count| (128..384).contains(count)), "{shift}: {buckets:?}");
        }
    }

    #[test]
    fn each_cache_has_its_own_keys() {
        let key = || CacheKeyHasher::random().key(&BearerToken::new("token"), &[]);
        assert!(key() != key());
    }
}
