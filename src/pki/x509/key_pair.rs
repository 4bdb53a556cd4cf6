//! A certificate chain and its private key, from PEM, as Go's `tls.X509KeyPair` reads them. It is the only way from a
//! file to what TLS presents: every certificate was parsed, and the first one is that of the key.
//!
//! Stricter than Go: it parses the first certificate alone, and takes RSA keys of 1024 bits.
// threat: unparsed-certificate

use std::fmt;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::{CertifiedKey, SigningKey};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::certificate::{Certificate, ParseError};
use super::der::{Der, tag};
use super::signature::PublicKey;
use crate::go::pem;

/// A certificate with its intermediates, and the private key of the first.
#[derive(Clone)]
pub struct CertificateKeyPair {
    certificates: Vec<Certificate>,
    certified: Arc<CertifiedKey>,
}

/// Why a certificate and a key make no pair. Says nothing of what is in the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyPairError {
    /// There is no certificate.
    #[error("{0}")]
    NoCertificate(String),
    /// A certificate does not parse.
    #[error("certificate {number} of {count}: {error}")]
    Certificate {
        /// Which one, from 1.
        number: usize,
        /// How many there are.
        count: usize,
        /// Why.
        error: ParseError,
    },
    /// There is no private key.
    #[error("{0}")]
    NoKey(String),
    /// The private key does not parse.
    // go: crypto/tls/tls.go, parsePrivateKey
    #[error("tls: failed to parse private key")]
    Key,
    /// The private key is encrypted.
    #[error("the private key is encrypted")]
    Encrypted,
    /// The key is one that TLS is not spoken with here.
    #[error("an RSA key of {0} bits is too weak")]
    WeakKey(usize),
    /// The key is that of another certificate.
    #[error("tls: private key does not match public key")]
    Mismatch,
}

impl KeyPairError {
    /// Whether it is about the key, not the certificate.
    pub fn is_of_key(&self) -> bool {
        match self {
            Self::NoCertificate(_) | Self::Certificate { .. } => false,
            Self::NoKey(_) | Self::Key | Self::Encrypted | Self::WeakKey(_) | Self::Mismatch => true,
        }
    }

    /// What to do about it.
    pub fn fix(&self) -> &'static str {
        match self {
            Self::NoCertificate(_) | Self::Certificate { .. } => {
                "give PEM certificates, that of the key first and then its intermediates"
            }
            Self::NoKey(_) | Self::Key => "give a PEM private key: RSA, ECDSA or Ed25519",
            Self::Encrypted => "give the key unencrypted, readable by the gateway alone",
            Self::WeakKey(_) => "give an RSA key of 2048 to 8192 bits, or an ECDSA key",
            Self::Mismatch => "give the key that belongs to the certificate",
        }
    }
}

impl CertificateKeyPair {
    /// Reads both.
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
            let content = Der::new(spki.as_ref()).read(tag::SEQUENCE)?;
            PublicKey::parse(content).ok()
        });
        if own.is_none() || own.as_ref() != certificates.first().map(|leaf| &leaf.public_key) {
            return Err(KeyPairError::Mismatch);
        }
        let chain = certificates.iter().map(|certificate| certificate.der.clone()).collect();
        // Not `CertifiedKey::new`: webpki does not read every certificate that Go reads.
        let certified = Arc::new(CertifiedKey { cert: chain, key, ocsp: None });
        Ok(Self { certificates, certified })
    }

    /// The chain, encoded; the certificate of the key is the first.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.certified.cert
    }

    /// The chain, parsed; at least one.
    pub(crate) fn certificates(&self) -> &[Certificate] {
        &self.certificates
    }

    /// What rustls presents.
    pub(crate) fn certified_key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified)
    }
}

/// Equal chains have equal keys: the first certificate holds the public half.
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

/// The key in a block: whatever of PKCS#8, PKCS#1 and SEC 1 it is, as Go tries each. `leaf` tells how weak a key is that
/// is not taken.
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

/// The content of every certificate in PEM, at least one; else why there is none.
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
    use crate::pki::issuance::testing::openssl;

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
            // Ed25519 has no form but PKCS#8.
            if kind != KeyKind::Ed25519 {
                std::fs::write(path("pkcs8"), &key).unwrap();
                openssl(&["pkey", "-in", &path("pkcs8"), "-traditional", "-out", &path("traditional")]);
                let traditional = std::fs::read_to_string(path("traditional")).unwrap();
                assert_eq!(read(&certificate, &traditional).as_ref(), Ok(&pair), "{kind:?}");
            }
            // Another's key; the few RSA keys of 2048 bits are shared among tests.
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
