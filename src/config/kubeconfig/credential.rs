//! What the gateway shows the backend of itself: a certificate that fits its key and is not over, a token that a header
//! can carry. What does not is refused here, where its file is known, and no error shows a secret.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::authn::BearerToken;
use crate::clock::UnixTime;
use crate::clusters::settings::ClientCertificate;

/// A credential of the gateway; either part may be missing.
#[derive(Debug, Clone, Default)]
pub(super) struct Credential {
    /// The certificate and its key.
    pub(super) certificate: Option<ClientCertificate>,
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
    /// No certificate in it, or a broken one.
    #[error("{0} holds no PEM certificate that can be read")]
    Certificate(String),
    /// No key in it, or a broken one. The parser's words might quote it.
    #[error("{0} holds no PEM private key that can be read")]
    Key(String),
    /// A key of another algorithm.
    #[error("{0} is a key of a kind that TLS cannot use here")]
    KeyKind(String),
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
            Self::Certificate(_) => "give PEM certificates, the client's own first",
            Self::Key(_) => "give a PEM private key",
            Self::KeyKind(_) => "give an RSA, ECDSA or Ed25519 key",
            Self::Mismatch { .. } => "give the key that belongs to the certificate",
            Self::EmptyToken(_) | Self::Token(_) => "give a token of printable ASCII characters, on one line",
        }
    }
}

impl Credential {
    /// When its certificate is over.
    pub(super) fn expires(&self) -> Option<UnixTime> {
        not_after(self.certificate.as_ref()?.chain.first()?)
    }
}

/// A certificate with its key.
pub(super) fn client_certificate(
    certificate: Material,
    key: Material,
) -> Result<ClientCertificate, CredentialError> {
    let chain: Option<Vec<_>> = CertificateDer::pem_slice_iter(&certificate.bytes).map(Result::ok).collect();
    let Some(chain) = chain.filter(|chain| chain.first().and_then(not_after).is_some()) else {
        return Err(CredentialError::Certificate(certificate.name));
    };
    let Ok(parsed) = PrivateKeyDer::from_pem_slice(&key.bytes) else {
        return Err(CredentialError::Key(key.name));
    };
    let Ok(signing) = any_supported_type(&parsed) else {
        return Err(CredentialError::KeyKind(key.name));
    };
    let certified = CertifiedKey { cert: chain, key: Arc::clone(&signing), ocsp: None };
    if certified.keys_match().is_err_and(|error| {
        matches!(error, rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch))
    }) {
        return Err(CredentialError::Mismatch { key: key.name, certificate: certificate.name });
    }
    Ok(ClientCertificate { chain: certified.cert, key: parsed })
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

/// A time as Kubernetes writes it.
pub(super) fn printed(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).ok();
    let stamp = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    stamp.unwrap_or(Timestamp::MAX).to_string()
}

fn not_after(leaf: &CertificateDer<'_>) -> Option<UnixTime> {
    let (_, parsed) = x509_parser::parse_x509_certificate(leaf).ok()?;
    // Before 1970 is long over.
    Some(UnixTime::from_secs(u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0)))
}
