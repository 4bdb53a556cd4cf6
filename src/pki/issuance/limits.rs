//! What an authority's own certificate lets it sign for: its extended key usages and its name constraints.
//!
//! Verifiers apply both to everything below the authority, so a certificate that exceeds them is signed and then
//! accepted by no verifier. A leaf can exceed neither the path length nor the basic constraints; those are checked when
//! the authority is read.

use x509_cert::der::asn1::ObjectIdentifier;

use super::usage::CertificateUsage;
use crate::pki::x509::certificate::Certificate;
use crate::pki::x509::constraints;

/// A limit that a certificate would exceed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityLimit {
    /// A purpose that the authority is not for.
    #[error(
        "its authority is not for {purpose} but for {allowed} alone: no verifier would accept it (extended key usages \
         nest, RFC 5280 §4.2.1.12)"
    )]
    Purpose {
        /// The purpose, in the words of the certificates API.
        purpose: String,
        /// The purposes of the authority.
        allowed: String,
    },
    /// A name outside of the authority's name constraints.
    #[error(
        "its authority is constrained to other names: no verifier would accept it (RFC 5280 §4.2.1.10): {0}"
    )]
    Name(String),
}

/// Checks a certificate, as a verifier reads it, against the authority that is to sign it.
// threat: authority-limits
pub(super) fn check(authority: &Certificate, certificate: &Certificate) -> Result<(), AuthorityLimit> {
    purposes(authority, certificate.extensions.extended_key_usage.purposes.iter().map(Vec::as_slice))?;
    constraints::check_chain(&[certificate, authority]).map_err(AuthorityLimit::Name)
}

/// Checks that the authority is for each of these purposes.
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

/// A purpose as the certificates API calls it, or its OID.
pub(crate) fn purpose_name(purpose: &[u8]) -> String {
    let Ok(oid) = ObjectIdentifier::from_bytes(purpose) else { return "an unreadable purpose".to_owned() };
    let known = CertificateUsage::all().iter().copied().find(|usage| usage.purpose() == Some(oid));
    known.map_or_else(|| oid.to_string(), |usage| usage.word().to_owned())
}
