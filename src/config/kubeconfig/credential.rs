//! The credential that the gateway presents to the backend: a certificate that matches its key, a token that a header
//! can carry. Rejects any other here, where the file is known. No error shows a secret.

use portcullis_pki::x509::{CertificateKeyPair, KeyPairError};
use portcullis_system::clock::UnixTime;

use crate::authn::BearerToken;

/// A credential of the gateway. Either part may be missing.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientCredential {
    /// The certificate and its key.
    pub(super) certificate: Option<CertificateKeyPair>,
    /// The bearer token.
    pub(super) token: Option<BearerToken>,
}

/// The content of a field or file, and its name for errors.
pub(super) struct NamedContent {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

/// Why a credential cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::config) enum CredentialError {
    /// The certificate or the key cannot be parsed.
    #[error("{name}: {error}")]
    Pair {
        /// The name of the certificate or key.
        name: String,
        /// The cause.
        #[source]
        error: KeyPairError,
    },
    /// The key does not match the certificate.
    #[error("{key} is not the key of {certificate}")]
    Mismatch {
        /// The name of the key.
        key: String,
        /// The name of the certificate.
        certificate: String,
    },
    /// The token is empty.
    #[error("{0} is empty")]
    EmptyToken(String),
    /// The token has a byte that the `Authorization` header cannot carry.
    #[error("{0} has a byte that is not allowed in a bearer token, such as a line break or a space")]
    Token(String),
}

impl CredentialError {
    /// How to fix it.
    pub(super) fn fix(&self) -> &'static str {
        match self {
            Self::Pair { error, .. } => error.fix(),
            Self::Mismatch { .. } => KeyPairError::Mismatch.fix(),
            Self::EmptyToken(_) | Self::Token(_) => "give a token of printable ASCII characters, on one line",
        }
    }
}

impl ClientCredential {
    /// The notAfter time of its certificate.
    pub(super) fn expires(&self) -> Option<UnixTime> {
        let leaf = self.certificate.as_ref()?.certificates().first()?;
        // A time before 1970 counts as expired.
        Some(UnixTime::from_secs(u64::try_from(leaf.not_after).unwrap_or(0)))
    }
}

/// Parses a certificate and its key, and checks that they match.
pub(super) fn client_certificate(
    certificate: NamedContent,
    key: NamedContent,
) -> Result<CertificateKeyPair, CredentialError> {
    CertificateKeyPair::from_pem(&certificate.bytes, &key.bytes).map_err(|error| match error {
        KeyPairError::Mismatch => CredentialError::Mismatch { key: key.name, certificate: certificate.name },
        error => {
            let name = if error.concerns_key() { key.name } else { certificate.name };
            CredentialError::Pair { name, error }
        }
    })
}

/// Checks a bearer token.
pub(super) fn bearer_token(name: &str, text: &str) -> Result<BearerToken, CredentialError> {
    if text.is_empty() {
        return Err(CredentialError::EmptyToken(name.to_owned()));
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(CredentialError::Token(name.to_owned()));
    }
    Ok(BearerToken::new(text))
}
