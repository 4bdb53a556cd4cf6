//! Lints: the last judgement over a certificate before it is signed.
//!
//! The to-be-signed certificate is parsed back by a reader that shares no code with its builder, and every lint is run
//! over what that reader found. Each lint has a name and cites the rule it checks. There is no way around them: only
//! `check` leads to something that can be signed.

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
use crate::pki::x509::certificate::Certificate;

mod rules;

/// A lint that a certificate would not pass. This is our mistake, not the requester's: nothing is signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the certificate is not signed, as it would break {lint} ({citation}): {found}")]
pub struct LintError {
    /// The lint's name.
    pub lint: &'static str,
    /// The rule it checks: a section of an RFC, or a rule of Kubernetes.
    pub citation: &'static str,
    /// What was found instead.
    pub found: String,
}

/// What is known of a certificate from elsewhere than its encoding.
#[derive(Debug)]
pub(super) struct ExpectedCertificate<'a> {
    pub(super) algorithm: SigningAlgorithm,
    /// The authority's encoded subject.
    pub(super) issuer: &'a [u8],
    pub(super) authority: Validity,
    /// Empty if the authority has none.
    pub(super) authority_key_id: &'a [u8],
    pub(super) validity: Validity,
    /// The most that the profile lets a certificate live; `None` if it has no such rule.
    pub(super) longest: Option<Duration>,
    /// What the profile judged.
    pub(super) name: &'a Subject,
    /// What it is written again as.
    pub(super) subject: &'a [u8],
    /// What the request was verified with.
    pub(super) key: &'a StrongPublicKey,
    /// What it is written again as.
    pub(super) spki: &'a [u8],
    pub(super) alt_names: &'a AltNames,
    /// What was asked for.
    pub(super) usages: &'a CertificateUsages,
    /// What the profile signs at most; `None` if it has no such rule.
    pub(super) allowed: Option<CertificateUsages>,
    /// Whether the profile signs `cert sign` for who is no authority.
    pub(super) cert_sign: bool,
}

/// One lint.
struct Lint {
    name: &'static str,
    citation: &'static str,
    check: fn(&TbsCertificate<'_>, &ExpectedCertificate<'_>) -> Result<(), String>,
}

/// Runs every lint over an encoded to-be-signed certificate, and returns it as verifiers will read it.
// threat: request-beyond-rules
pub(super) fn check(encoded: &[u8], expected: &ExpectedCertificate<'_>) -> Result<Certificate, LintError> {
    let unread = |found: String| LintError { lint: "encoding", citation: "X.690 §10", found };
    let (rest, certificate) = TbsCertificate::from_der(encoded).map_err(|error| unread(error.to_string()))?;
    if !rest.is_empty() {
        return Err(unread("something follows the certificate".to_owned()));
    }
    for lint in rules::LINTS {
        (lint.check)(&certificate, expected).map_err(|found| LintError {
            lint: lint.name,
            citation: lint.citation,
            found,
        })?;
    }
    rules::read_as_judged(encoded, expected)
}

/// An encoding that failed, as the first lint reports it.
pub(super) fn unencodable(error: der::Error) -> LintError {
    LintError { lint: "encoding", citation: "X.690 §10", found: error.to_string() }
}

/// The one extension of a kind.
fn extension<'a, 'b>(certificate: &'b TbsCertificate<'a>, oid: &str) -> Option<&'b X509Extension<'a>> {
    certificate.extensions().iter().find(|extension| extension.oid.to_id_string() == oid)
}

fn want(holds: bool, found: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(found()) }
}

#[cfg(test)]
mod tests;
