//! A certificate chain and its private key from PEM, parsed like Go's `tls.X509KeyPair`. TLS presents only certificates
//! that passed it: every certificate parses, and the first one matches the key.
//!
//! Stricter than Go, which parses only the first certificate and accepts RSA keys of 1024 bits.
// threat: unparsed-certificate

use std::fmt;
use std::sync::Arc;

use portcullis_go::pem;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::{CertifiedKey, SigningKey};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::certificate::{Certificate, ParseError};
use super::der::{DerReader, tag};
use super::signature::PublicKey;

/// A certificate, its intermediates and its private key.
#[derive(Clone)]
pub struct CertificateKeyPair {
    certificates: Vec<Certificate>,
    certified: Arc<CertifiedKey>,
}

/// Why a certificate and a key cannot be used as a pair. Never shows key material.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyPairError {
    /// The PEM has no certificate.
    #[error("{0}")]
    NoCertificate(String),
    /// A certificate does not parse.
    #[error("certificate {number} of {count}: {error}")]
    Certificate {
        /// Its position, from 1.
        number: usize,
        /// The number of certificates.
        count: usize,
        /// The parse error.
        error: ParseError,
    },
    /// The PEM has no private key.
    #[error("{0}")]
    NoKey(String),
    /// The private key does not parse.
    // go: crypto/tls/tls.go, parsePrivateKey
    #[error("tls: failed to parse private key")]
    Key,
    /// The private key is encrypted.
    #[error("the private key is encrypted")]
    Encrypted,
    /// The RSA key is too short for TLS.
    #[error("an RSA key of {0} bits is too weak")]
    WeakKey(usize),
    /// The key does not match the certificate.
    #[error("tls: private key does not match public key")]
    Mismatch,
}

impl KeyPairError {
    /// Whether the cause is the key, not the certificate.
    pub fn concerns_key(&self) -> bool {
        match self {
            Self::NoCertificate(_) | Self::Certificate { .. } => false,
            Self::NoKey(_) | Self::Key | Self::Encrypted | Self::WeakKey(_) | Self::Mismatch => true,
        }
    }

    /// How to fix it.
    pub fn fix(&self) -> &'static str {
        match self {
            Self::NoCertificate(_) | Self::Certificate { .. } => {
                "give PEM certificates: the leaf first, then its intermediates"
            }
            Self::NoKey(_) | Self::Key => "give a PEM private key: RSA, ECDSA or Ed25519",
            Self::Encrypted => "give the key unencrypted, readable by the gateway alone",
            Self::WeakKey(_) => "give an RSA key of 2048 to 8192 bits, or an ECDSA key",
            Self::Mismatch => "give the key that belongs to the certificate",
        }
    }
}

impl CertificateKeyPair {
    /// Parses a certificate chain and its key, and checks that they match.
    // go: crypto/tls/tls.go, X509KeyPair
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, KeyPairError> {
        let ders = certificate_blocks(certificate).map_err(KeyPairError::NoCertificate)?;
        let count = ders.len();
        let parse = |(index, der)| {
            Certificate::parse(CertificateDer::from(der)).map_err(|error| KeyPairError::Certificate {
                number: index + 1,
                count,
                error,
            })
        };
        let certificates: Vec<Certificate> =
            ders.into_iter().enumerate().map(parse).collect::<Result<_, _>>()?;
        let block = pem::private_key_block(key).map_err(KeyPairError::NoKey)?;
        let key = signing_key(block, certificates.first())?;
        let own = key.public_key().and_then(|spki| {
            let content = DerReader::new(spki.as_ref()).read(tag::SEQUENCE)?;
            PublicKey::parse(content).ok()
        });
        if own.is_none() || own.as_ref() != certificates.first().map(|leaf| &leaf.public_key) {
            return Err(KeyPairError::Mismatch);
        }
        let chain = certificates.iter().map(|certificate| certificate.der.clone()).collect();
        // Not `CertifiedKey::new`: webpki rejects some certificates that Go accepts.
        let certified = Arc::new(CertifiedKey { cert: chain, key, ocsp: None });
        Ok(Self { certificates, certified })
    }

    /// The encoded chain, leaf first.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.certified.cert
    }

    /// The parsed chain, leaf first, never empty.
    pub fn certificates(&self) -> &[Certificate] {
        &self.certificates
    }

    /// The chain and key for rustls.
    pub fn certified_key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified)
    }
}

/// Compares chains alone: the leaf has the public key, so equal chains have equal private keys.
impl PartialEq for CertificateKeyPair {
    fn eq(&self, other: &Self) -> bool {
        self.chain() == other.chain()
    }
}

impl Eq for CertificateKeyPair {}

impl fmt::Debug for CertificateKeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateKeyPair").field("chain", &self.chain().len()).finish_non_exhaustive()
    }
}

/// Parses PKCS#8, PKCS#1 or SEC 1, like Go, which tries each. `leaf` gives the size of a rejected RSA key.
fn signing_key(block: pem::Block, leaf: Option<&Certificate>) -> Result<Arc<dyn SigningKey>, KeyPairError> {
    let encrypted = block.headers || block.kind == b"ENCRYPTED PRIVATE KEY";
    let key = PrivateKeyDer::try_from(block.content).ok();
    if let Some(key) = key.and_then(|key| any_supported_type(&key).ok()) {
        return Ok(key);
    }
    if encrypted {
        return Err(KeyPairError::Encrypted);
    }
    let modulus = leaf.and_then(|leaf| match &leaf.public_key {
        PublicKey::Rsa { modulus, .. } => Some(modulus.len() * 8),
        _ => None,
    });
    Err(modulus.filter(|bits| *bits < 2048).map_or(KeyPairError::Key, KeyPairError::WeakKey))
}

/// The content of every `CERTIFICATE` block, at least one; else Go's error text.
// go: crypto/tls/tls.go, X509KeyPair
pub(crate) fn certificate_blocks(pem: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let (found, skipped): (Vec<_>, Vec<_>) =
        pem::blocks(pem).into_iter().partition(|block| block.kind == b"CERTIFICATE");
    if !found.is_empty() {
        return Ok(found.into_iter().map(|block| block.content).collect());
    }
    let skipped: Vec<String> =
        skipped.iter().map(|block| String::from_utf8_lossy(&block.kind).into_owned()).collect();
    Err(match skipped.as_slice() {
        [] => "tls: failed to find any PEM data in certificate input".to_owned(),
        [one] if one.ends_with("PRIVATE KEY") => "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched".to_owned(),
        types => format!(
            "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following types: [{}]",
            types.join(" ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use testkit::pki::{Ca, KeyKind};

    use super::*;
    use crate::issuance::testing::openssl;

    fn read(certificate: &str, key: &str) -> Result<CertificateKeyPair, String> {
        CertificateKeyPair::from_pem(certificate.as_bytes(), key.as_bytes())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn every_kind_of_key_is_read_in_every_form() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let ca = Ca::new("ca");
        for kind in KeyKind::ALL {
            let issued = ca.leaf().cn("own").key(kind).issue();
            let (certificate, key) = (issued.cert_pem() + &ca.cert_pem(), issued.key_pem());
            let pair = read(&certificate, &key).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            assert_eq!(pair.chain(), [issued.chain[0].clone(), ca.as_leaf().chain[0].clone()], "{kind:?}");
            assert_eq!(pair.certificates().len(), 2, "{kind:?}");
            // Ed25519 keys have PKCS#8 as their only format.
            if kind != KeyKind::Ed25519 {
                std::fs::write(path("pkcs8"), &key).unwrap();
                openssl(&["pkey", "-in", &path("pkcs8"), "-traditional", "-out", &path("traditional")]);
                let traditional = std::fs::read_to_string(path("traditional")).unwrap();
                assert_eq!(read(&certificate, &traditional).as_ref(), Ok(&pair), "{kind:?}");
            }
            // A key that does not match. The few RSA keys of 2048 bits are shared among tests, so use one of 3072 bits.
            let another = if kind == KeyKind::Rsa2048 { KeyKind::Rsa3072 } else { kind };
            let other = Ca::with_key("other", another).key_pem();
            let mismatch = Err("tls: private key does not match public key".to_owned());
            assert_eq!(read(&certificate, &other), mismatch, "{kind:?}");
        }
    }

    #[test]
    fn a_pair_shows_nothing_of_its_key() {
        let issued = Ca::new("ca").leaf().cn("own").issue();
        let pair = read(&issued.cert_pem(), &issued.key_pem()).unwrap();
        assert_eq!(format!("{pair:?}"), "CertificateKeyPair { chain: 1, .. }");
    }
}
