//! What the gateway shows the backend of itself: a certificate that fits its key and is not over, a token that a header
//! can carry. What does not is refused here, where its file is known, and no error shows a secret.

use crate::authn::BearerToken;
use crate::clock::UnixTime;
use crate::pki::x509::{CertificateKeyPair, KeyPairError};

/// A credential of the gateway; either part may be missing.
#[derive(Debug, Clone, Default)]
pub(super) struct Credential {
    /// The certificate and its key.
    pub(super) certificate: Option<CertificateKeyPair>,
    /// The bearer token.
    pub(super) token: Option<BearerToken>,
}

/// Bytes, and the name of where they come from, for errors.
pub(super) struct Material {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

/// Why something is no credential.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::config) enum CredentialError {
    /// One of the two cannot be read.
    #[error("{name}: {error}")]
    Pair {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        error: KeyPairError,
    },
    /// Certificate and key are of different pairs.
    #[error("{key} is not the key of {certificate}")]
    Mismatch {
        /// The key's name.
        key: String,
        /// The certificate's name.
        certificate: String,
    },
    /// There is nothing in it.
    #[error("{0} is empty")]
    EmptyToken(String),
    /// No header can carry it, or not whole.
    #[error("{0} holds a byte that no bearer token has, such as a line break or a space")]
    Token(String),
}

impl CredentialError {
    /// What to do about it.
    pub(super) fn fix(&self) -> &'static str {
        match self {
            Self::Pair { error, .. } => error.fix(),
            Self::Mismatch { .. } => KeyPairError::Mismatch.fix(),
            Self::EmptyToken(_) | Self::Token(_) => "give a token of printable ASCII characters, on one line",
        }
    }
}

impl Credential {
    /// When its certificate is over.
    pub(super) fn expires(&self) -> Option<UnixTime> {
        let leaf = self.certificate.as_ref()?.certificates().first()?;
        // Before 1970 is long over.
        Some(UnixTime::from_secs(u64::try_from(leaf.not_after).unwrap_or(0)))
    }
}

/// A certificate with its key.
pub(super) fn client_certificate(
    certificate: Material,
    key: Material,
) -> Result<CertificateKeyPair, CredentialError> {
    CertificateKeyPair::from_pem(&certificate.bytes, &key.bytes).map_err(|error| match error {
        KeyPairError::Mismatch => CredentialError::Mismatch { key: key.name, certificate: certificate.name },
        error => {
            let name = if error.is_of_key() { key.name } else { certificate.name };
            CredentialError::Pair { name, error }
        }
    })
}

/// A bearer token.
pub(super) fn bearer_token(name: &str, text: &str) -> Result<BearerToken, CredentialError> {
    if text.is_empty() {
        return Err(CredentialError::EmptyToken(name.to_owned()));
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(CredentialError::Token(name.to_owned()));
    }
    Ok(BearerToken::new(text))
}
