//! A secret that is part of a document.

use std::fmt;

use secrecy::zeroize::Zeroize as _;
use serde::{Deserialize, Serialize};

/// A secret in a document. Never shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretText(String);

impl SecretText {
    /// Copies a text.
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The secret.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl Drop for SecretText {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText")
    }
}
