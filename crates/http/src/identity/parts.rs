//! The attributes of users as bytes, of which those of different users differ.

use std::collections::BTreeMap;

use aws_lc_rs::digest::Digest;

/// Texts, each prefixed with its length, and lists with theirs.
#[derive(Debug, Default)]
pub struct Parts(Vec<u8>);

impl Parts {
    /// No parts yet, in this memory.
    pub fn within(mut memory: Vec<u8>) -> Self {
        memory.clear();
        Self(memory)
    }

    /// Adds all attributes of a user.
    pub fn user<T: AsRef<str>>(
        &mut self,
        name: &str,
        uid: &str,
        groups: &[T],
        extra: &BTreeMap<String, Vec<T>>,
    ) {
        self.text(name);
        self.text(uid);
        self.list(groups);
        self.length(extra.len());
        for (key, values) in extra {
            self.text(key);
            self.list(values);
        }
    }

    /// Adds a text.
    pub fn text(&mut self, text: &str) {
        self.length(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }

    /// Adds a digest. All keys of a kind have digests of one algorithm, and so of one length, in the same place.
    pub fn digest(&mut self, digest: &Digest) {
        self.0.extend_from_slice(digest.as_ref());
    }

    /// All parts.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn list(&mut self, texts: &[impl AsRef<str>]) {
        self.length(texts.len());
        for text in texts {
            self.text(text.as_ref());
        }
    }

    fn length(&mut self, length: usize) {
        // No request is as long as its largest value.
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        self.0.extend_from_slice(&length.to_be_bytes());
    }
}
