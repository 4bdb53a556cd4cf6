//! Bootstrap tokens: a public ID and a secret, `abcdef.0123456789abcdef`.

use std::fmt;

use secrecy::{ExposeSecret as _, SecretString};

const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;
const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
/// Random bytes from this value on are rejected: modulo 36, they would make the first letters likelier.
const UNBIASED_BYTES: u8 = 252;
/// The prefix of the Secret's name; the token ID follows.
const NAME_PREFIX: &str = "bootstrap-token-";

/// The public ID of a token: six characters of `a-z` and `0-9`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId(String);

/// The secret of a token: sixteen characters of `a-z` and `0-9`. Its `Debug` output omits it.
#[derive(Clone)]
pub struct TokenSecret(SecretString);

/// A bootstrap token.
#[derive(Debug, Clone)]
pub struct BootstrapToken {
    /// The public ID.
    pub id: TokenId,
    /// The secret.
    pub secret: TokenSecret,
}

/// The text does not have the format of a bootstrap token. The error omits the text, which may be a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a bootstrap token of the form [a-z0-9]{{6}}.[a-z0-9]{{16}}")]
pub struct MalformedToken;

/// The random number generator failed.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the random number generator failed")]
pub struct RandomnessError;

impl TokenId {
    /// Parses an ID.
    // cluster-bootstrap: token/api/types.go, BootstrapTokenIDPattern
    pub fn parse(text: &str) -> Option<Self> {
        fits(text, ID_LENGTH).then(|| Self(text.to_owned()))
    }

    /// The ID in the name of a Secret.
    // cluster-bootstrap: util/secrets/secrets.go, ParseName
    pub(crate) fn of_secret(name: &str) -> Option<Self> {
        Self::parse(name.strip_prefix(NAME_PREFIX)?)
    }

    /// The name of the token's Secret.
    // cluster-bootstrap: token/util/helpers.go, BootstrapTokenSecretName
    pub fn secret_name(&self) -> String {
        format!("{NAME_PREFIX}{}", self.0)
    }

    /// The ID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TokenSecret {
    /// The secret as text, for signing and for its owner.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSecret")
    }
}

impl BootstrapToken {
    /// Parses a token; does not trim whitespace.
    // cluster-bootstrap: token/api/types.go, BootstrapTokenPattern
    pub fn parse(text: &str) -> Result<Self, MalformedToken> {
        let (id, secret) = split(text).ok_or(MalformedToken)?;
        Ok(Self { id: TokenId(id.to_owned()), secret: TokenSecret(secret.into()) })
    }

    /// Generates a random token.
    // cluster-bootstrap: token/util/helpers.go, GenerateBootstrapToken
    pub fn generate() -> Result<Self, RandomnessError> {
        let mut random = || {
            let mut bytes = [0; 64];
            aws_lc_rs::rand::fill(&mut bytes).map_err(|_| RandomnessError)?;
            Ok(bytes)
        };
        let id = draw(ID_LENGTH, &mut random)?;
        let secret = draw(SECRET_LENGTH, &mut random)?;
        Ok(Self { id: TokenId(id), secret: TokenSecret(secret.into()) })
    }

    /// The whole token, for its owner.
    pub fn expose(&self) -> SecretString {
        format!("{}.{}", self.id, self.secret.expose()).into()
    }
}

/// The ID and the secret of a token; `None` if the text does not have its format.
pub fn split(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    (fits(id, ID_LENGTH) && fits(secret, SECRET_LENGTH)).then_some((id, secret))
}

fn fits(part: &str, length: usize) -> bool {
    part.len() == length && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// Draws `length` letters with a uniform distribution.
fn draw(
    length: usize,
    random: &mut impl FnMut() -> Result<[u8; 64], RandomnessError>,
) -> Result<String, RandomnessError> {
    let mut drawn = String::with_capacity(length);
    while drawn.len() < length {
        let letters = random()?.into_iter().filter_map(letter);
        drawn.extend(letters.take(length - drawn.len()));
    }
    Ok(drawn)
}

/// The letter of a random byte; `None` for bytes that would bias the distribution.
fn letter(byte: u8) -> Option<char> {
    let index = usize::from(byte) % ALPHABET.len();
    (byte < UNBIASED_BYTES).then(|| ALPHABET.get(index).copied().map(char::from)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_one_format() {
        // cluster-bootstrap: token/util/helpers_test.go and util/tokens/tokens_test.go
        for (text, is_one) in [
            ("abcdef.1234567890123456", true),
            ("123456.aabbccddeeffgghh", true),
            ("abc123.xyz4567890abcdef", true),
            ("", false),
            (".", false),
            ("1234567890123456789012", false),
            ("12345.1234567890123456", false),
            (".1234567890123456", false),
            ("123456.", false),
            ("123456:1234567890.123456", false),
            ("abcdef:1234567890123456", false),
            ("Abcdef.1234567890123456", false),
            ("ABCDEF.ABCDEF0123456789", false),
            ("abcdef.123456789012345", false),
            ("abcdef.12345678901234567", false),
            ("abcdef.123456789012345-", false),
            ("abcdef.1234567890123456.", false),
            ("abcdef.1234567890123456\n", false),
            (" abcdef.1234567890123456", false),
            ("äbcde.1234567890123456", false),
        ] {
            let token = BootstrapToken::parse(text);
            assert_eq!(token.is_ok(), is_one, "{text:?}");
            if let Ok(token) = token {
                assert_eq!(token.expose().expose_secret(), text);
            }
        }
    }

    #[test]
    fn a_secret_is_named_after_its_token() {
        // cluster-bootstrap: util/secrets/secrets_test.go, TestParseSecretName
        for (name, id) in [
            ("bootstrap-token-abc123", Some("abc123")),
            ("bootstrap-token-zzz999", Some("zzz999")),
            ("", None),
            ("bootstrap-token-", None),
            ("bootstrap-token-ABC123", None),
            ("bootstrap-token-abc1234", None),
            ("bootstrap-token-abc12", None),
            ("bootstrap-token-abc123\n", None),
            ("abc123", None),
            ("xbootstrap-token-abc123", None),
        ] {
            let found = TokenId::of_secret(name);
            assert_eq!(found.as_ref().map(TokenId::as_str), id, "{name:?}");
            if let Some(found) = found {
                assert_eq!(found.secret_name(), name);
            }
        }
    }

    #[test]
    fn every_letter_is_as_likely_as_any_other() {
        let mut times = [0; 256];
        for letter in (0..=u8::MAX).filter_map(letter) {
            times[usize::try_from(u32::from(letter)).unwrap()] += 1;
        }
        for letter in 0..=u8::MAX {
            let expected = if ALPHABET.contains(&letter) { 7 } else { 0 };
            assert_eq!(times[usize::from(letter)], expected, "{:?}", char::from(letter));
        }
    }

    #[test]
    fn biased_bytes_are_drawn_again() {
        let mut rounds = 0;
        let mut random = || {
            rounds += 1;
            let mut bytes = [u8::MAX; 64];
            bytes[63] = 9 + rounds;
            Ok(bytes)
        };
        assert_eq!(draw(6, &mut random).unwrap(), "abcdef");
        assert!(draw(1, &mut || Err(RandomnessError)).is_err());
    }

    #[test]
    fn generated_tokens_are_tokens_and_differ() {
        let [one, other] = [BootstrapToken::generate().unwrap(), BootstrapToken::generate().unwrap()];
        assert!(BootstrapToken::parse(one.expose().expose_secret()).is_ok());
        assert_ne!(one.secret.expose(), other.secret.expose());
    }

    #[test]
    fn debug_and_display_omit_the_secret() {
        let token = BootstrapToken::parse("abcdef.1234567890123456").unwrap();
        let shown = format!("{token:?} {:?} {}", token.secret, token.id);
        assert!(shown.contains("abcdef") && !shown.contains("1234567890123456"), "{shown}");
    }
}
