//! Verifies the certificates of TLS servers as Go's `crypto/tls` does for its clients: kube-apiserver's webhooks, issuers
//! and API servers, and kubectl.
//!
//! Must never accept a certificate for another host, outside the pool, out of its validity, or without serverAuth where
//! the certificates limit their purposes. A certificate in the pool is trusted itself, whether a CA or not.

use portcullis_system::clock::UnixTime;
use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer};

use super::bundle::CaBundle;
use super::certificate::{Certificate, ParseError};
use super::host_name::HostNameError;
use super::verify::{self, PeerRole, VerifyError};

/// Maximum length of a server's chain. Go limits only the size of the message.
const MAX_CERTIFICATES: usize = 100;

/// Why a server's certificate is refused. The texts are Go's, as Kubernetes prints them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerCertError {
    /// A certificate does not parse.
    #[error("tls: failed to parse certificate from server: {0}")]
    Malformed(#[from] ParseError),
    /// A certificate has an RSA key of more than 8192 bits.
    #[error("tls: server sent certificate containing RSA key larger than 8192 bits")]
    LargeKey,
    /// The server's key is of a kind that TLS does not support.
    #[error("tls: server's certificate contains an unsupported type of public key")]
    UnsupportedKey,
    /// The chain is not trusted.
    #[error("tls: failed to verify certificate: {0}")]
    Untrusted(#[from] VerifyError),
}

impl ServerCertError {
    /// What an operator does about it.
    pub fn fix(&self) -> &'static str {
        match self {
            Self::Malformed(_) | Self::LargeKey | Self::UnsupportedKey => {
                "give the server a valid certificate with an ECDSA, Ed25519 or RSA key (2048 to 8192 bits)"
            }
            Self::Untrusted(error) => fix_of(error),
        }
    }

    /// Whether the name of the host is only in the common name, which is ignored.
    pub fn is_common_name_only(&self) -> bool {
        matches!(self, Self::Untrusted(VerifyError::HostName(HostNameError::CommonName)))
    }
}

fn fix_of(error: &VerifyError) -> &'static str {
    match error {
        VerifyError::UnknownAuthority(Some(hint)) if matches!(hint.0, VerifyError::Expired { .. }) => {
            "renew the certificate of the CA, and add it to the trusted CAs"
        }
        VerifyError::UnknownAuthority(_) => {
            "add the CA that has signed the server's certificate, or the certificate itself, to the trusted CAs: \
             certificate-authority of a kubeconfig, caBundle of a webhook, certificateAuthority or --oidc-ca-file of an \
             issuer, --issuer-certificate-authority of a login. If the CA was replaced, add the new one"
        }
        VerifyError::HostName(HostNameError::CommonName) => {
            "issue the server a certificate with the name of its host as a subject alternative name"
        }
        VerifyError::HostName(_) => {
            "connect to a name that the certificate has, set tls-server-name of the kubeconfig to one, or issue the \
             server a certificate for this name"
        }
        VerifyError::Expired { .. } => "renew the server's certificate",
        VerifyError::NotYetValid { .. } => {
            "set the clocks of both machines, or issue the server a certificate that is valid now"
        }
        VerifyError::IncompatibleUsage => {
            "issue the server a certificate for serverAuth; each CA above it that limits its extended key usages must \
             permit it too"
        }
        VerifyError::NameNotAllowed(_) => {
            "issue the certificate by a CA whose name constraints permit the names of the server"
        }
        _ => "issue the server a certificate that clients written in Go accept",
    }
}

/// The public key of a server's certificate, for the proof of possession.
pub fn public_key(certificate: &CertificateDer<'_>) -> Result<SubjectPublicKeyInfoDer<'static>, ParseError> {
    let certificate = Certificate::parse(certificate.clone().into_owned())?;
    Ok(SubjectPublicKeyInfoDer::from(certificate.spki))
}

/// Verifies the certificates of a server, its own first. `host` is the DNS name or IP address that the client connects to.
// threat: foreign-server
// go: crypto/tls/handshake_client.go, verifyServerCertificate
pub fn verify_server<'a>(
    pool: &CaBundle,
    chain: impl IntoIterator<Item = &'a CertificateDer<'a>>,
    host: &str,
    now: UnixTime,
) -> Result<(), ServerCertError> {
    let mut certificates = Vec::new();
    for der in chain {
        if certificates.len() == MAX_CERTIFICATES {
            return Err(VerifyError::TooManyCertificates.into());
        }
        let certificate = Certificate::parse(der.clone().into_owned())?;
        if !certificate.public_key.allowed_in_tls() {
            return Err(ServerCertError::LargeKey);
        }
        certificates.push(certificate);
    }
    let Some((leaf, others)) = certificates.split_first() else {
        return Err(VerifyError::UnknownAuthority(None).into());
    };
    verify::verify(PeerRole::Server { host }, pool, leaf, others, now)?;
    if leaf.public_key.usable_in_tls() { Ok(()) } else { Err(ServerCertError::UnsupportedKey) }
}

#[cfg(test)]
mod tests;
