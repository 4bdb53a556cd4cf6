//! The hash chain over the objects of a session.
//!
//! The hash of a link is SHA-256 over: the text `portcullis session link v1`, a line feed, the hash of the link before (32
//! zero bytes for the first one), the SHA-256 of the object, and the object's name.

use aws_lc_rs::digest::{Context, SHA256, digest};
use portcullis_go::hex::hex;
use serde::{Deserialize, Serialize};

use super::ObjectName;

const DOMAIN: &[u8] = b"portcullis session link v1\n";

/// The hash of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChainHash([u8; 32]);

/// A link as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The object's name.
    pub object: String,
    /// Its size.
    pub size: u64,
    /// Its SHA-256.
    pub sha256: String,
    /// The hash of the link before.
    pub previous: String,
    /// The hash of this link.
    pub link: String,
}

impl ChainHash {
    /// The hash of the link of an object that follows this link.
    #[must_use]
    pub fn next(self, object: &ObjectName, content: &[u8]) -> Self {
        let mut context = Context::new(&SHA256);
        context.update(DOMAIN);
        context.update(&self.0);
        context.update(digest(&SHA256, content).as_ref());
        context.update(object.to_string().as_bytes());
        // SHA-256 has 32 bytes.
        Self(context.finish().as_ref().try_into().unwrap_or_default())
    }

    /// The hash with these hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        let mut hash = Self::default();
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (index, octet) in hash.0.iter_mut().enumerate() {
            *octet = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
        }
        Some(hash)
    }

    /// The hash as hexadecimal digits.
    pub fn to_hex(self) -> String {
        hex(&self.0)
    }
}

impl Link {
    /// The link of an object that follows the link with the hash `previous`.
    pub fn new(previous: ChainHash, object: &ObjectName, content: &[u8]) -> Self {
        Self {
            object: object.to_string(),
            size: u64::try_from(content.len()).unwrap_or(u64::MAX),
            sha256: hex(digest(&SHA256, content).as_ref()),
            previous: previous.to_hex(),
            link: previous.next(object, content).to_hex(),
        }
    }

    /// The line that is stored.
    pub fn to_line(&self) -> Vec<u8> {
        // Strings and a number have no error.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}
