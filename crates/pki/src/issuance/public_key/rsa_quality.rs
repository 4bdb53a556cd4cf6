//! Checks for RSA keys that are long enough, but weak. Public web CAs make the same checks.
// boulder: goodkey/good_key.go, GoodKey, goodKeyRSA

use num_bigint::BigUint;

/// The minimum exponent with which Go verifies signatures; with 1, any attacker could sign. boulder accepts only 65537.
// go: crypto/rsa/rsa.go, checkPublicKeySize
const MIN_EXPONENT: u32 = 3;
/// A modulus with a prime factor below this is not the product of two large primes. boulder: smallPrimeInts
const MAX_SMALL_PRIME: u32 = 752;
/// boulder: fermatRounds
const FERMAT_ROUNDS: u32 = 110;
/// The moduli of Infineon's library are powers of 65537 modulo every prime up to this one (CVE-2017-15361).
// rocacheck: rocacheck.go
const MAX_ROCA_PRIME: u32 = 167;

/// A weakness of an RSA key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum RsaKeyFlaw {
    #[error("an even public exponent, or one below {MIN_EXPONENT},")]
    Exponent,
    #[error("a small prime factor")]
    SmallFactor,
    #[error("the structure of ROCA (CVE-2017-15361)")]
    Roca,
    #[error("two prime factors that are close to each other")]
    CloseFactors,
}

/// Checks a modulus and an exponent, big-endian.
pub(super) fn check(modulus: &[u8], exponent: &[u8]) -> Result<(), RsaKeyFlaw> {
    let exponent_is_odd = exponent.last().is_some_and(|last| last & 1 == 1);
    if !exponent_is_odd || BigUint::from_bytes_be(exponent) < BigUint::from(MIN_EXPONENT) {
        return Err(RsaKeyFlaw::Exponent);
    }
    if small_primes(MAX_SMALL_PRIME).any(|prime| remainder(modulus, prime) == 0) {
        return Err(RsaKeyFlaw::SmallFactor);
    }
    // A random key has this property with a probability of 2^-27.
    if small_primes(MAX_ROCA_PRIME + 1).all(|prime| is_power_of_65537(remainder(modulus, prime), prime)) {
        return Err(RsaKeyFlaw::Roca);
    }
    if has_close_factors(&BigUint::from_bytes_be(modulus)) { Err(RsaKeyFlaw::CloseFactors) } else { Ok(()) }
}

fn small_primes(below: u32) -> impl Iterator<Item = u32> {
    (2..below).filter(|number| (2..*number).take_while(|by| by * by <= *number).all(|by| number % by != 0))
}

fn remainder(modulus: &[u8], by: u32) -> u32 {
    modulus.iter().fold(0, |rest, octet| (rest * 256 + u32::from(*octet)) % by)
}

fn is_power_of_65537(residue: u32, prime: u32) -> bool {
    let generator = 65_537 % prime;
    std::iter::successors(Some(1 % prime), |power| Some(power * generator % prime).filter(|next| *next != 1))
        .any(|power| power == residue)
}

/// Fermat factorization: half the sum of close factors is only slightly larger than the square root of their product.
// boulder: goodkey/good_key.go, checkPrimeFactorsTooClose
fn has_close_factors(modulus: &BigUint) -> bool {
    let mut sum = modulus.sqrt();
    if &sum * &sum < *modulus {
        sum += 1_u32;
    }
    let mut square = &sum * &sum - modulus;
    for _ in 0..FERMAT_ROUNDS {
        if is_square(&square) {
            return true;
        }
        // (a + 1)² = a² + 2a + 1
        square += (&sum << 1_u32) + 1_u32;
        sum += 1_u32;
    }
    false
}

fn is_square(number: &BigUint) -> bool {
    // Squares have 12 of the 64 residues modulo 64; skips the expensive root for the others.
    let end = number.iter_u32_digits().next().unwrap_or_default() % 64;
    if !(0..32).any(|root: u32| root * root % 64 == end) {
        return false;
    }
    let root = number.sqrt();
    &root * &root == *number
}

#[cfg(test)]
mod tests {
    use num_bigint::BigUint;

    use super::{RsaKeyFlaw, check, has_close_factors};
    use crate::issuance::request::CertificateRequest;
    use crate::issuance::testing::openssl;

    const E: &[u8] = &[1, 0, 1];

    /// A random prime.
    fn prime(bits: &str) -> BigUint {
        openssl(&["prime", "-generate", "-bits", bits]).trim().parse().unwrap()
    }

    fn next_prime(above: &BigUint) -> BigUint {
        let mut candidate = above + 2_u32;
        while !openssl(&["prime", &candidate.to_string()]).contains("is prime") {
            candidate += 2_u32;
        }
        candidate
    }

    #[test]
    fn random_keys_pass() {
        for _ in 0..3 {
            let modulus = prime("1024") * prime("1024");
            assert_eq!(check(&modulus.to_bytes_be(), E), Ok(()), "{modulus}");
        }
    }

    #[test]
    fn a_small_factor_is_found() {
        let large = prime("2040");
        for small in [2_u32, 3, 101, 751] {
            assert_eq!(check(&(&large * small).to_bytes_be(), E), Err(RsaKeyFlaw::SmallFactor), "{small}");
        }
    }

    #[test]
    fn close_factors_are_found() {
        let first = prime("1024");
        let second = next_prime(&first);
        assert_eq!(check(&(&first * &second).to_bytes_be(), E), Err(RsaKeyFlaw::CloseFactors));
        assert_eq!(check(&(&first * &first).to_bytes_be(), E), Err(RsaKeyFlaw::CloseFactors));
        // boulder: goodkey/good_key_test.go, TestCheckPrimeFactorsTooClose
        for (one, other, close) in [(12451_u32, 12457_u32, true), (1, 1_000_003, false)] {
            assert_eq!(has_close_factors(&(BigUint::from(one) * other)), close, "{one} {other}");
        }
    }

    #[test]
    fn odd_exponents_from_three_on_pass() {
        let modulus = (prime("1024") * prime("1024")).to_bytes_be();
        for (exponent, good) in [
            (&[1, 0, 1][..], true),
            (&[1, 0, 3], true),
            (&[3], true),
            (&[1], false),
            (&[2], false),
            (&[1, 0, 2], false),
            (&[], false),
        ] {
            assert_eq!(check(&modulus, exponent).is_ok(), good, "{exponent:?}");
        }
    }

    /// Keys of faulty generators; the README next to the files describes them.
    #[test]
    fn requests_for_such_keys_are_refused() {
        const CASES: [(&str, &str); 3] = [
            (
                include_str!("../../../../../tests/signers/requests/rsa-2048-close-primes.pem"),
                "close to each other",
            ),
            (
                include_str!("../../../../../tests/signers/requests/rsa-2048-small-factor.pem"),
                "a small prime factor",
            ),
            (include_str!("../../../../../tests/signers/requests/rsa-2048-roca.pem"), "ROCA"),
        ];
        for (pem, expected) in CASES {
            let error = CertificateRequest::from_pem(pem.as_bytes()).unwrap_err();
            assert!(error.is_policy() && error.to_string().contains(expected), "{error}");
        }
    }
}
