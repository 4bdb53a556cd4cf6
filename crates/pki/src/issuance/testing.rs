//! CAs and requests for tests.

#![allow(
    missing_docs,
    missing_debug_implementations,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "only tests use it"
)]

use std::process::Command;
use std::time::Duration;

use x509_cert::der::asn1::Any;
use x509_cert::der::{Encode as _, Tag};

use super::alt_names::AltNames;
use super::authority::CertificateAuthority;
use super::issue::{IssuanceRequest, IssueError, IssuedCertificate};
use super::profile::CertificateProfile;
use super::request::{self, CertificateRequest};
use super::signer::{KeyKind, PemKey, Signer as _};
use super::subject::Subject;
use super::tbs;

#[cfg(test)]
mod authorities;
#[cfg(test)]
pub(crate) use authorities::{authority, authority_of, ca_params, ca_pem, date};

/// 2026-01-01T00:00:00Z.
pub const NOW: Duration = Duration::new(1_767_225_600, 0);

pub const YEAR: Duration = Duration::from_hours(8760);

pub const KINDS: [KeyKind; 5] =
    [KeyKind::Rsa2048, KeyKind::EcdsaP256, KeyKind::EcdsaP384, KeyKind::EcdsaP521, KeyKind::Ed25519];

pub fn subject(common_name: &str, organizations: &[&str]) -> Subject {
    Subject {
        common_name: common_name.to_owned(),
        organization: strings(organizations),
        ..Subject::default()
    }
}

pub fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

pub fn request(subject: &Subject, alt_names: &AltNames) -> CertificateRequest {
    request::build(subject, alt_names, &PemKey::generate(KeyKind::EcdsaP256).unwrap()).unwrap()
}

/// Prepares and signs a certificate for a year.
pub fn issue(
    authority: &CertificateAuthority,
    profile: &CertificateProfile,
    request: &CertificateRequest,
    usages: &[&str],
) -> Result<IssuedCertificate, IssueError> {
    let usages = strings(usages);
    let wanted = IssuanceRequest { request, usages: &usages, expiration: None, signing_duration: YEAR };
    authority.issue(authority.prepare(profile, &wanted, NOW)?)
}

/// A DER element.
pub fn element(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut element = Any::new(Tag::OctetString, content).unwrap().to_der().unwrap();
    element[0] = kind;
    element
}

/// A request with any subject and attributes, even malformed ones, signed by its key.
pub fn raw_request(subject: &[u8], attributes: &[u8], key: &PemKey) -> Vec<u8> {
    let attributes = element(0xa0, attributes);
    let info = element(0x30, &[&[2, 1, 0], subject, key.public_key(), &attributes].concat());
    let signature = key.sign(key.algorithm(), &info).unwrap();
    tbs::signed(&info, key.algorithm().identifier().unwrap(), &signature).unwrap()
}

/// Runs openssl and returns its output.
pub fn openssl(arguments: &[&str]) -> String {
    let output = Command::new("openssl").args(arguments).output().expect("openssl is on the PATH");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}
