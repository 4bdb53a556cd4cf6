//! The limits of a CA certificate: its extended key usages and its name constraints.
//!
//! Verifiers apply both to every certificate below the CA, and would reject a certificate that exceeds them. A leaf
//! cannot exceed the path length or the basic constraints; `authority` checks those when it loads the CA.

use x509_cert::der::asn1::ObjectIdentifier;

use super::usage::CertificateUsage;
use crate::x509::certificate::Certificate;
use crate::x509::constraints;

/// A limit of the CA certificate that a certificate would exceed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityLimit {
    /// An extended key usage that the CA certificate does not have.
    #[error(
        "the CA certificate allows {allowed}, but not {purpose}: verifiers would reject the certificate (extended \
    key usages nest, RFC 5280 §4.2.1.12)"
    )]
    Purpose {
        /// The purpose, in the words of the certificates API.
        purpose: String,
        /// The purposes of the CA certificate.
        allowed: String,
    },
    /// A name that the name constraints of the CA certificate do not allow.
    #[error(
        "the name constraints of the CA certificate do not allow a name: verifiers would reject the certificate \
    (RFC 5280 §4.2.1.10): {0}"
    )]
    Name(String),
}

/// Checks a certificate, as verifiers parse it, against the CA certificate.
// threat: authority-limits
pub(super) fn check(authority: &Certificate, certificate: &Certificate) -> Result<(), AuthorityLimit> {
    purposes(authority, certificate.extensions.extended_key_usage.purposes.iter().map(Vec::as_slice))?;
    constraints::check_chain(&[certificate, authority]).map_err(AuthorityLimit::Name)
}

/// Checks that the CA certificate allows each of these purposes.
pub(super) fn check_usages(
    authority: &Certificate,
    usages: impl IntoIterator<Item = CertificateUsage>,
) -> Result<(), AuthorityLimit> {
    let encoded: Vec<ObjectIdentifier> = usages.into_iter().filter_map(CertificateUsage::purpose).collect();
    purposes(authority, encoded.iter().map(ObjectIdentifier::as_bytes))
}

fn purposes<'a>(
    authority: &Certificate,
    mut wanted: impl Iterator<Item = &'a [u8]>,
) -> Result<(), AuthorityLimit> {
    let allowed = &authority.extensions.extended_key_usage;
    match wanted.find(|purpose| !allowed.permits(purpose)) {
        None => Ok(()),
        Some(purpose) => {
            let named: Vec<String> = allowed.purposes.iter().map(|purpose| purpose_name(purpose)).collect();
            Err(AuthorityLimit::Purpose { purpose: purpose_name(purpose), allowed: named.join(", ") })
        }
    }
}

/// The name of a purpose in the certificates API, or its OID.
pub fn purpose_name(purpose: &[u8]) -> String {
    let Ok(oid) = ObjectIdentifier::from_bytes(purpose) else { return "an unreadable purpose".to_owned() };
    let known = CertificateUsage::all().iter().copied().find(|usage| usage.purpose() == Some(oid));
    known.map_or_else(|| oid.to_string(), |usage| usage.word().to_owned())
}
