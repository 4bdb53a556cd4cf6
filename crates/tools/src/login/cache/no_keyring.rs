//! In place of the keyring, in a build without the cargo feature `keyring` and on systems without one: an error.

#![cfg_attr(
    all(feature = "keyring", target_os = "linux"),
    allow(dead_code, reason = "this build has a keyring, and tests of the error alone")
)]

use std::future::Ready;

use super::store::SecretDocument;

/// Whether this build has a keyring.
pub(super) const IS_BUILT: bool = false;

/// Why there is no keyring.
#[derive(Debug, thiserror::Error)]
#[error("--credential-store=keyring: {0}; fix: {1}")]
pub(in crate::login) struct KeyringError(&'static str, &'static str);

impl KeyringError {
    pub(super) fn not_built() -> Self {
        Self(
            "this portcullis was built without the cargo feature `keyring`",
            "build it with --features keyring, or use --credential-store=file",
        )
    }

    /// Whether the flags are at fault.
    #[expect(clippy::unused_self, reason = "the keyring's errors have it")]
    pub(super) fn is_usage(&self) -> bool {
        true
    }

    /// Whether there is no keyring that could have entries.
    #[expect(clippy::unused_self, reason = "the keyring's errors have it")]
    pub(super) fn is_absent(&self) -> bool {
        true
    }

    #[cfg(test)]
    pub(super) fn of_test() -> Self {
        Self("it fails", "none: this is a test")
    }
}

/// No value: [`Keyring::open`] always fails.
#[derive(Debug, Clone, Copy)]
pub(super) enum Keyring {}

impl Keyring {
    pub(super) fn open(_may_prompt: bool) -> Result<Self, KeyringError> {
        Err(if cfg!(feature = "keyring") {
            KeyringError(
                "portcullis does not know the keyring of this system yet, only the Secret Service of Linux",
                "use --credential-store=file",
            )
        } else {
            KeyringError::not_built()
        })
    }

    pub(super) fn read(self, _name: &str) -> Ready<Result<Option<SecretDocument>, KeyringError>> {
        match self {}
    }

    pub(super) fn write(self, _name: &str, _content: &[u8]) -> Ready<Result<(), KeyringError>> {
        match self {}
    }

    pub(super) fn remove(self, _name: &str) -> Ready<Result<(), KeyringError>> {
        match self {}
    }

    pub(super) fn locked_collections(self) -> Ready<Result<Vec<String>, KeyringError>> {
        match self {}
    }

    pub(super) fn names(self) -> Ready<Result<Vec<String>, KeyringError>> {
        match self {}
    }
}
