//! Certificates of certificate authorities: roots that sign themselves, and intermediates below them.
//!
//! An operator makes them by hand (`certs init`, `certs renew-ca`, `dev`); no request leads here.

use aws_lc_rs::digest;
use rustls_pki_types::CertificateDer;
use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::der::asn1::{Any, ObjectIdentifier};
use x509_cert::der::{self, Decode as _, Encode as _, Tag};
use x509_cert::ext::pkix::BasicConstraints;
use x509_cert::spki::SubjectPublicKeyInfoRef;

use super::alt_names::AltNames;
use super::issue::{IssueError, new_serial, sign};
use super::lint;
use super::public_key::StrongPublicKey;
use super::signer::{SignError, Signer, SigningAlgorithm};
use super::tbs::TbsFields;
use super::usage::CertificateUsage;
use super::validity::Validity;
use crate::x509::certificate::Certificate;

/// The fields of a CA certificate.
#[derive(Debug, Clone, Copy)]
pub struct CaCertificate<'a> {
    /// The common name of the subject.
    pub common_name: &'a str,
    /// The time in which the certificate is valid.
    pub validity: Validity,
    /// `pathLenConstraint`.
    pub path_length: u8,
    /// The extended key usage; `None` omits the extension.
    pub purpose: Option<CertificateUsage>,
    /// The subject key identifier; `None` derives it from the key.
    pub key_id: Option<&'a [u8]>,
}

/// The certificate that signs, and its key.
#[derive(Debug, Clone, Copy)]
pub struct CaIssuer<'a> {
    /// The certificate of the issuer.
    pub certificate: &'a Certificate,
    /// The key of the issuer.
    pub key: &'a dyn Signer,
}

impl CaCertificate<'_> {
    /// The certificate of a root authority.
    pub fn self_signed(&self, key: &dyn Signer) -> Result<Certificate, IssueError> {
        let name = self.name()?;
        self.sign(key.public_key(), &name, &[], key)
    }

    /// The certificate of an intermediate authority, for the key `spki`.
    pub fn signed_by(&self, spki: &[u8], issuer: CaIssuer<'_>) -> Result<Certificate, IssueError> {
        let CaIssuer { certificate, key } = issuer;
        self.sign(spki, &certificate.raw_subject, &certificate.extensions.subject_key_id, key)
    }

    /// The encoded subject: the common name alone, as a UTF8String (RFC 5280 section 4.1.2.4).
    pub fn name(&self) -> Result<Vec<u8>, IssueError> {
        Ok(common_name(self.common_name).map_err(lint::unencodable)?)
    }

    fn sign(
        &self,
        spki: &[u8],
        issuer: &[u8],
        authority_key_id: &[u8],
        key: &dyn Signer,
    ) -> Result<Certificate, IssueError> {
        let failed = |reason: &str| SignError::Failed(reason.to_owned());
        let public = StrongPublicKey::from_spki(key.public_key()).map_err(|bad| failed(&bad.to_string()))?;
        let algorithm = SigningAlgorithm::of(public.key()).ok_or_else(|| failed("the key cannot sign"))?;
        // RFC 5280 section 4.2.1.3: only the usages of a CA.
        let usages: Vec<_> =
            [CertificateUsage::CertSign, CertificateUsage::CrlSign].into_iter().chain(self.purpose).collect();
        let encoded = TbsFields {
            serial: &new_serial()?,
            algorithm: algorithm.identifier().map_err(lint::unencodable)?,
            issuer,
            validity: self.validity,
            subject: &self.name()?,
            spki,
            usages: &usages.into(),
            basic_constraints: BasicConstraints { ca: true, path_len_constraint: Some(self.path_length) },
            key_id: &match self.key_id {
                Some(key_id) => key_id.to_vec(),
                None => key_id(spki).map_err(lint::unencodable)?,
            },
            authority_key_id,
            alt_names: &AltNames::default(),
            pod_identity: None,
        };
        let encoded = encoded.to_der().map_err(lint::unencodable)?;
        let der = sign(&encoded, algorithm, key, &public)?;
        let read = Certificate::parse(CertificateDer::from(der));
        Ok(read.map_err(|error| SignError::Wrong(error.to_string()))?)
    }
}

fn common_name(name: &str) -> Result<Vec<u8>, der::Error> {
    let value = Any::new(Tag::Utf8String, name.as_bytes())?;
    let attribute = AttributeTypeAndValue { oid: ObjectIdentifier::new_unwrap("2.5.4.3"), value }.to_der()?;
    let set = Any::new(Tag::Set, attribute)?.to_der()?;
    Any::new(Tag::Sequence, set)?.to_der()
}

/// RFC 7093 section 2, method 1: the first 160 bits of the SHA-256 of the key.
// go: crypto/x509/x509.go, CreateCertificate
fn key_id(spki: &[u8]) -> Result<Vec<u8>, der::Error> {
    let spki = SubjectPublicKeyInfoRef::from_der(spki)?;
    let hash = digest::digest(&digest::SHA256, spki.subject_public_key.raw_bytes());
    Ok(hash.as_ref().get(..20).unwrap_or_default().to_vec())
}

#[cfg(test)]
mod tests {
    use portcullis_go::pem::encode_pem;

    use super::*;
    use crate::issuance::authority::CertificateAuthority;
    use crate::issuance::signer::{KeyKind, PemKey};
    use crate::issuance::testing::{KINDS, NOW, YEAR, openssl};
    use crate::x509::certificate::KEY_CERT_SIGN;

    fn plan(common_name: &str, path_length: u8) -> CaCertificate<'_> {
        let validity = Validity { not_before: NOW, not_after: NOW + YEAR };
        CaCertificate { common_name, validity, path_length, purpose: None, key_id: None }
    }

    #[test]
    fn openssl_and_our_reader_believe_roots_and_intermediates() {
        for kind in KINDS {
            let [root_key, key] = [kind, KeyKind::EcdsaP256].map(|kind| PemKey::generate(kind).unwrap());
            let root = plan("root", 1).self_signed(&root_key).unwrap();
            let below = CaCertificate { purpose: Some(CertificateUsage::ClientAuth), ..plan("below", 0) };
            let issuer = CaIssuer { certificate: &root, key: &root_key };
            let below = below.signed_by(key.public_key(), issuer).unwrap();
            assert_eq!(below.extensions.authority_key_id, root.extensions.subject_key_id);
            assert_eq!(below.extensions.key_usage & KEY_CERT_SIGN, KEY_CERT_SIGN);
            assert!(below.extensions.extended_key_usage.client_auth, "{kind:?}");
            assert_eq!(root.extensions.subject_key_id.len(), 20);
            let [root_pem, below_pem] = [&root, &below].map(|one| encode_pem("CERTIFICATE", &one.der));
            let authority = CertificateAuthority::new(below_pem.as_bytes(), Box::new(key)).unwrap();
            assert_eq!(authority.not_after(), NOW + YEAR);
            let dir = tempfile::tempdir().unwrap();
            for (name, pem) in [("root", root_pem), ("below", below_pem)] {
                std::fs::write(dir.path().join(name), pem).unwrap();
            }
            let file = |name: &str| dir.path().join(name).display().to_string();
            let at = NOW.as_secs() + 5;
            let said = openssl(&[
                "verify",
                "-x509_strict",
                "-attime",
                &at.to_string(),
                "-CAfile",
                &file("root"),
                &file("below"),
            ]);
            assert!(said.contains(": OK"), "{kind:?}");
        }
    }

    #[test]
    fn names_are_encoded_as_in_cas_that_earlier_versions_made() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, "a root CA");
        let earlier = Certificate::parse(params.self_signed(&key).unwrap().der().clone()).unwrap();
        assert_eq!(plan("a root CA", 1).name().unwrap(), earlier.raw_subject);
    }
}
