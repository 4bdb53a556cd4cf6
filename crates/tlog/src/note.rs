//! Signed notes: a text, and below it lines with signatures over it.
//!
//! Follows c2sp.org/signed-note, with Ed25519 (type 1) alone. Signatures of other keys and types are ignored, as witnesses
//! add them.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_go::pem;
use secrecy::zeroize::Zeroizing;

/// The signature type of Ed25519.
const ED25519_TYPE: u8 = 1;
/// The maximum size of a note: a checkpoint with the signatures of many witnesses has a few KiB.
const MAX_NOTE: usize = 64 * 1024;
/// The beginning of a signature line: an em dash and a space.
const DASH: &str = "\u{2014} ";

/// Why a note or a key is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoteError {
    /// The text has another form.
    #[error("is not a signed note")]
    Malformed,
    /// No signature of the key.
    #[error("has no signature of the key {0}")]
    Unsigned(String),
    /// The key's signature is over another text.
    #[error("has a wrong signature of the key {0}")]
    WrongSignature(String),
    /// The verifier key has another form.
    #[error("is not a verifier key: NAME+HASH+KEY, as `portcullis certs log init` writes it")]
    NotVerifier,
    /// The private key has another form.
    #[error("is not an Ed25519 private key in PEM (PKCS#8)")]
    NotKey,
    /// The name cannot be in a note.
    #[error("the name {0:?} is not usable: it must not be empty, and have no spaces and no plus sign")]
    Name(String),
}

/// The public key of a log, with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verifier {
    name: String,
    key: [u8; 32],
}

/// The private key of a log.
pub struct NoteSigner {
    pair: Ed25519KeyPair,
    verifier: Verifier,
}

impl Verifier {
    /// Parses `NAME+HASH+KEY`.
    pub fn parse(text: &str) -> Result<Self, NoteError> {
        let mut parts = text.trim_ascii_end().splitn(3, '+');
        let (Some(name), Some(hash), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(NoteError::NotVerifier);
        };
        let key = STANDARD.decode(key).map_err(|_| NoteError::NotVerifier)?;
        let Some((&ED25519_TYPE, key)) = key.split_first() else { return Err(NoteError::NotVerifier) };
        let key = key.try_into().map_err(|_| NoteError::NotVerifier)?;
        let verifier = Self { name: checked(name)?, key };
        if u32::from_str_radix(hash, 16) != Ok(verifier.id()) || hash.len() != 8 {
            return Err(NoteError::NotVerifier);
        }
        Ok(verifier)
    }

    /// The name of the log.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The first octets of the hash of name and key.
    fn id(&self) -> u32 {
        let text = [self.name.as_bytes(), b"\n", &[ED25519_TYPE], &self.key].concat();
        let hash = digest(&SHA256, &text);
        hash.as_ref().first_chunk().map_or(0, |id| u32::from_be_bytes(*id))
    }

    /// The text of a note that this key has signed.
    pub fn open<'a>(&self, note: &'a [u8]) -> Result<&'a str, NoteError> {
        let note = Some(note).filter(|note| note.len() <= MAX_NOTE).ok_or(NoteError::Malformed)?;
        let note = std::str::from_utf8(note).map_err(|_| NoteError::Malformed)?;
        if note.chars().any(|char| char < ' ' && char != '\n') {
            return Err(NoteError::Malformed);
        }
        let (_, signatures) = note.rsplit_once("\n\n").ok_or(NoteError::Malformed)?;
        let text = note.strip_suffix(signatures).and_then(|text| text.strip_suffix('\n'));
        let text = text.ok_or(NoteError::Malformed)?;
        let mut is_signed = false;
        for line in signatures.strip_suffix('\n').ok_or(NoteError::Malformed)?.split('\n') {
            let line = line.strip_prefix(DASH).and_then(|line| line.split_once(' '));
            let (name, signature) = line.ok_or(NoteError::Malformed)?;
            let signature = STANDARD.decode(signature).map_err(|_| NoteError::Malformed)?;
            let (id, signature) = signature.split_first_chunk::<4>().ok_or(NoteError::Malformed)?;
            checked(name).map_err(|_| NoteError::Malformed)?;
            if name != self.name || u32::from_be_bytes(*id) != self.id() {
                continue;
            }
            let key = UnparsedPublicKey::new(&ED25519, self.key);
            if key.verify(text.as_bytes(), signature).is_err() {
                return Err(NoteError::WrongSignature(self.name.clone()));
            }
            is_signed = true;
        }
        if is_signed { Ok(text) } else { Err(NoteError::Unsigned(self.name.clone())) }
    }
}

impl fmt::Display for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = STANDARD.encode([&[ED25519_TYPE][..], &self.key].concat());
        write!(f, "{}+{:08x}+{key}", self.name, self.id())
    }
}

/// The name of a key, if it may have this one.
fn checked(name: &str) -> Result<String, NoteError> {
    let is_bad = |char: char| char.is_whitespace() || char == '+' || char.is_control();
    if name.is_empty() || name.contains(is_bad) {
        return Err(NoteError::Name(name.to_owned()));
    }
    Ok(name.to_owned())
}

impl NoteSigner {
    /// A new key in PEM.
    pub fn generate() -> Result<Zeroizing<String>, NoteError> {
        let pair = Ed25519KeyPair::generate().map_err(|_| NoteError::NotKey)?;
        let document = pair.to_pkcs8v1().map_err(|_| NoteError::NotKey)?;
        Ok(Zeroizing::new(pem::encode_pem("PRIVATE KEY", document.as_ref())))
    }

    /// Reads a key in PEM, for the log of this name.
    pub fn from_pem(name: &str, pem: &[u8]) -> Result<Self, NoteError> {
        let (block, _) = pem::decode(pem).ok_or(NoteError::NotKey)?;
        if block.kind != b"PRIVATE KEY" {
            return Err(NoteError::NotKey);
        }
        let content = Zeroizing::new(block.content);
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&content).map_err(|_| NoteError::NotKey)?;
        let key = pair.public_key().as_ref().try_into().map_err(|_| NoteError::NotKey)?;
        Ok(Self { pair, verifier: Verifier { name: checked(name)?, key } })
    }

    /// The public key.
    pub fn verifier(&self) -> &Verifier {
        &self.verifier
    }

    /// The note with this text, which ends with a line feed.
    pub fn sign(&self, text: &str) -> String {
        let signature = self.pair.sign(text.as_bytes());
        let line = STANDARD.encode([&self.verifier.id().to_be_bytes()[..], signature.as_ref()].concat());
        format!("{text}\n{DASH}{} {line}\n", self.verifier.name)
    }
}

impl fmt::Debug for NoteSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NoteSigner").field("verifier", &self.verifier).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signer(name: &str) -> NoteSigner {
        NoteSigner::from_pem(name, NoteSigner::generate().unwrap().as_bytes()).unwrap()
    }

    // golang.org/x/mod/sumdb/note, the example of its documentation
    const VERIFIER: &str = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";
    const NOTE: &str = "If you think cryptography is the answer to your problem,\n\
        then you don't know what your problem is.\n\n\
        \u{2014} PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n";

    #[test]
    fn the_example_of_the_specification_verifies() {
        let verifier = Verifier::parse(VERIFIER).unwrap();
        assert_eq!((verifier.name(), verifier.to_string().as_str()), ("PeterNeumann", VERIFIER));
        let text = verifier.open(NOTE.as_bytes()).unwrap();
        assert!(text.starts_with("If you think") && text.ends_with("problem is.\n"), "{text:?}");
    }

    #[test]
    fn what_is_signed_verifies_with_the_key_alone() {
        let (own, other) = (signer("example.com/log"), signer("example.com/log"));
        let note = own.sign("a\n\nb\n");
        assert_eq!(own.verifier().open(note.as_bytes()), Ok("a\n\nb\n"));
        let unsigned = NoteError::Unsigned("example.com/log".to_owned());
        assert_eq!(other.verifier().open(note.as_bytes()), Err(unsigned));
        // With the signature of a witness.
        let both = note.clone() + other.sign("a\n\nb\n").rsplit_once("\n\n").unwrap().1;
        assert_eq!(own.verifier().open(both.as_bytes()), Ok("a\n\nb\n"));
        let changed = note.replacen('a', "c", 1);
        let wrong = NoteError::WrongSignature("example.com/log".to_owned());
        assert_eq!(own.verifier().open(changed.as_bytes()), Err(wrong));
    }

    #[test]
    fn other_forms_are_refused() {
        let own = signer("log");
        let note = own.sign("a\n");
        let cases = [
            String::new(),
            "a\n".to_owned(),
            note.trim_end().to_owned(),
            note.replace(DASH, "- "),
            note.replace("a\n", "a\tb\n"),
            note.clone() + "x",
            "x".repeat(MAX_NOTE) + &note,
        ];
        for note in cases {
            assert_eq!(own.verifier().open(note.as_bytes()), Err(NoteError::Malformed), "{note:?}");
        }
        assert_eq!(own.verifier().open(b"\xff\n\n\xe2\x80\x94 log AAAAAAA=\n"), Err(NoteError::Malformed));
        for text in
            ["", "log", "log+00000000+AQ==", &VERIFIER.replace("c74f20a3", "c74f20a4"), "a b+00000000+x"]
        {
            assert!(Verifier::parse(text).is_err(), "{text}");
        }
        for name in ["", "a b", "a+b", "a\n"] {
            let pem = NoteSigner::generate().unwrap();
            assert!(
                matches!(NoteSigner::from_pem(name, pem.as_bytes()), Err(NoteError::Name(_))),
                "{name:?}"
            );
        }
        for pem in ["", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
            assert!(matches!(NoteSigner::from_pem("log", pem.as_bytes()), Err(NoteError::NotKey)), "{pem}");
        }
    }

    #[test]
    fn the_private_key_is_not_printed() {
        let text = format!("{:?}", signer("log"));
        assert!(text.starts_with("NoteSigner { verifier: Verifier") && text.ends_with(".. }"), "{text}");
    }
}
