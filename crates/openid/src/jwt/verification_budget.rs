//! How much computing one token may cause. Any client can send a token that names no key, or one that names a key of which its
//! issuer publishes many.

use super::keys::{RSA_4096_COST, VerificationKey};

/// The cost of a verification by an RSA key of 4096 bits, with a token of 4 KiB.
const TYPICAL_COST: u64 = RSA_4096_COST + 16;

/// How many keys a token is compared with, and what that may cost together.
// threat: token-keys
#[derive(Debug, Clone, Copy)]
pub struct VerificationBudget {
    keys: usize,
    cost: u64,
}

impl VerificationBudget {
    /// For keys that the operator has configured.
    pub const CONFIGURED: Self = Self { keys: 100, cost: u64::MAX };

    /// For keys that an API server or an issuer publishes. It publishes which keys it likes, whose verification it does not pay.
    pub const PUBLISHED: Self = Self { keys: 8, cost: 8 * TYPICAL_COST };

    /// The first of the keys, as far as the budget goes; at least one. Each of them hashes the message of this length.
    pub(super) fn affordable<'a>(
        self,
        keys: impl Iterator<Item = &'a VerificationKey>,
        message: usize,
    ) -> impl Iterator<Item = &'a VerificationKey> {
        let mut cost = 0_u64;
        keys.take(self.keys).enumerate().map_while(move |(index, key)| {
            cost = cost.saturating_add(key.cost(message));
            (index == 0 || cost <= self.cost).then_some(key)
        })
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::{Value, json};

    use super::*;
    use crate::jwt::key_set;

    fn rsa(bits: usize, exponent: &[u8]) -> Value {
        let [n, e] = [&vec![0xff; bits / 8], exponent].map(|number| URL_SAFE_NO_PAD.encode(number));
        json!({"kty": "RSA", "n": n, "e": e})
    }

    fn ec(curve: &str, length: usize) -> Value {
        let coordinate = URL_SAFE_NO_PAD.encode(vec![1; length]);
        json!({"kty": "EC", "crv": curve, "x": coordinate, "y": coordinate})
    }

    const F4: &[u8] = &[1, 0, 1];
    const LARGEST: &[u8] = &[0x7f, 0xff, 0xff, 0xff];

    #[test]
    fn a_token_is_compared_with_as_many_published_keys_as_it_may_cost() {
        let mixed = |first: usize| -> Vec<Value> {
            let others = (0..100).map(|_| rsa(2048, F4));
            std::iter::repeat_n(rsa(8192, LARGEST), first).chain(others).collect()
        };
        let cases = [
            ("100 keys of 2048 bits", vec![rsa(2048, F4); 100], 1000, 8),
            ("100 keys of 4096 bits", vec![rsa(4096, F4); 100], 0, 8),
            ("100 keys of 8192 bits", vec![rsa(8192, F4); 100], 1000, 2),
            ("100 keys of 8192 bits with the largest exponent", vec![rsa(8192, LARGEST); 100], 1000, 1),
            ("one such key first", mixed(1), 1000, 5),
            ("100 keys on P-256", vec![ec("P-256", 32); 100], 1000, 8),
            ("100 keys on P-384", vec![ec("P-384", 48); 100], 1000, 8),
            ("100 keys on P-521", vec![ec("P-521", 66); 100], 1000, 8),
            ("a long message", vec![rsa(2048, F4); 100], 64 << 10, 7),
            ("the longest message", vec![rsa(2048, F4); 100], 1 << 20, 1),
            ("one key", vec![rsa(8192, LARGEST)], 1 << 20, 1),
            ("no keys", vec![], 1000, 0),
        ];
        let mut failed = Vec::new();
        for (name, keys, message, expected) in cases {
            let keys = key_set::read(json!({"keys": keys}).to_string().as_bytes()).unwrap();
            let count = |budget: VerificationBudget| budget.affordable(keys.iter(), message).count();
            let (published, configured) =
                (count(VerificationBudget::PUBLISHED), count(VerificationBudget::CONFIGURED));
            if published != expected || configured != keys.len().min(100) {
                failed.push(format!("{name}: {published}, and {configured} if the operator configures them"));
            }
        }
        assert!(failed.is_empty(), "{failed:#?}");
    }
}
