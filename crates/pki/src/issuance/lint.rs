//! Lints: the last check of a certificate before signing.
//!
//! Parses the to-be-signed certificate with a parser that shares no code with the builder, and runs every lint on the
//! result. Each lint has a name and cites its rule. No caller can skip them: only `check` leads to a certificate that
//! can be signed.

use std::time::Duration;

use x509_cert::der;
use x509_parser::certificate::TbsCertificate;
use x509_parser::extensions::X509Extension;
use x509_parser::prelude::FromDer as _;

use super::alt_names::AltNames;
use super::public_key::StrongPublicKey;
use super::signer::SigningAlgorithm;
use super::subject::Subject;
use super::usage::CertificateUsages;
use super::validity::Validity;
use crate::x509::certificate::Certificate;
use crate::x509::pod_identity::PodIdentity;

mod rules;

/// A failed lint: a bug in the gateway, not an error of the requester. The certificate is not signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the certificate is not signed, as it would break {lint} ({citation}): {found}")]
pub struct LintError {
    /// The lint's name.
    pub lint: &'static str,
    /// The source of its rule: a section of an RFC, or a file of Kubernetes.
    pub citation: &'static str,
    /// The value in the certificate.
    pub found: String,
}

/// The values that a certificate must have, from sources other than its encoding.
#[derive(Debug)]
pub(super) struct ExpectedCertificate<'a> {
    pub(super) algorithm: SigningAlgorithm,
    /// The encoded subject of the CA.
    pub(super) issuer: &'a [u8],
    pub(super) authority: Validity,
    /// The subject key identifier of the CA; empty if absent.
    pub(super) authority_key_id: &'a [u8],
    pub(super) validity: Validity,
    /// The maximum lifetime of the profile; `None` if unlimited.
    pub(super) max_lifetime: Option<Duration>,
    /// What of the validity the maximum lifetime does not count.
    pub(super) backdate: Duration,
    /// The subject that the profile checked.
    pub(super) name: &'a Subject,
    /// Its encoding.
    pub(super) subject: &'a [u8],
    /// The public key of the request.
    pub(super) key: &'a StrongPublicKey,
    /// Its encoding.
    pub(super) spki: &'a [u8],
    pub(super) alt_names: &'a AltNames,
    /// The requested usages.
    pub(super) usages: &'a CertificateUsages,
    /// The usages that the profile allows; `None` if it allows all.
    pub(super) allowed: Option<CertificateUsages>,
    /// Whether the profile allows `cert sign` in leaf certificates.
    pub(super) cert_sign: bool,
    /// The pod that the certificate is bound to, and whether its extension is critical.
    pub(super) pod_identity: Option<(&'a PodIdentity, bool)>,
}

/// One lint.
struct Lint {
    name: &'static str,
    citation: &'static str,
    check: fn(&TbsCertificate<'_>, &ExpectedCertificate<'_>) -> Result<(), String>,
}

/// Runs every lint on an encoded `TBSCertificate`, and returns the certificate as verifiers will parse it.
// threat: request-beyond-rules
pub(super) fn check(encoded: &[u8], expected: &ExpectedCertificate<'_>) -> Result<Certificate, LintError> {
    let unparsable = |found: String| LintError { lint: "encoding", citation: "X.690 §10", found };
    let (rest, certificate) =
        TbsCertificate::from_der(encoded).map_err(|error| unparsable(error.to_string()))?;
    if !rest.is_empty() {
        return Err(unparsable("trailing data after the certificate".to_owned()));
    }
    for lint in rules::LINTS {
        (lint.check)(&certificate, expected).map_err(|found| LintError {
            lint: lint.name,
            citation: lint.citation,
            found,
        })?;
    }
    rules::check_identity(encoded, expected)
}

/// An encoding error, as an error of the first lint.
pub(super) fn unencodable(error: der::Error) -> LintError {
    LintError { lint: "encoding", citation: "X.690 §10", found: error.to_string() }
}

/// The extension with this OID.
fn extension<'a, 'b>(certificate: &'b TbsCertificate<'a>, oid: &str) -> Option<&'b X509Extension<'a>> {
    certificate.extensions().iter().find(|extension| extension.oid.to_id_string() == oid)
}

fn ensure(holds: bool, found: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(found()) }
}

#[cfg(test)]
mod tests;
