//! From a request to a certificate: what is wanted, what may be signed, and what was issued.

use std::time::Duration;

use super::lint::LintError;
use super::profile::Refusal;
use super::request::{CertificateRequest, RequestError};
use super::signer::SignError;
use super::subject::Subject;
use super::usage::UnknownUsages;
use super::validity::{ExpiredAuthority, Validity};
use crate::clock::UnixTime;

/// What somebody asks an authority for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The request.
    pub request: &'a CertificateRequest,
    /// `spec.usages`.
    pub usages: &'a [String],
    /// `spec.expirationSeconds`.
    pub expiration: Option<Duration>,
    /// `--cluster-signing-duration`: the life of a certificate that asks for none, and the longest one.
    pub signing_duration: Duration,
}

/// A certificate that passed its profile and every lint, and is not yet signed. There is no other way to a signature:
/// it cannot be made by hand, copied, or used twice.
#[must_use = "nothing has been signed yet"]
#[derive(Debug)]
pub struct Prepared {
    pub(super) tbs: Vec<u8>,
    pub(super) subject: Subject,
    pub(super) validity: Validity,
}

/// Why nothing was issued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IssueError {
    /// A rule of the profile: the requester's fault, for ever.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The request itself.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Usages that the API does not know.
    #[error(transparent)]
    Usages(#[from] UnknownUsages),
    /// The authority has ended.
    #[error(transparent)]
    Expired(#[from] ExpiredAuthority),
    /// A lint: our fault; never signed.
    #[error(transparent)]
    Lint(#[from] LintError),
    /// The certificate was prepared for another authority.
    #[error("the certificate was prepared for another authority")]
    OtherAuthority,
    /// The key did not sign.
    #[error(transparent)]
    Sign(#[from] SignError),
}

/// A signed certificate.
#[derive(Debug, Clone)]
pub struct Issued {
    pub(super) der: Vec<u8>,
    pub(super) pem: String,
    pub(super) serial: Vec<u8>,
    pub(super) subject: Subject,
    pub(super) validity: Validity,
}

impl Issued {
    /// One PEM block, with a line feed at its end.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The encoded certificate.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// The serial number in lower-case hexadecimal digits, two for each octet.
    pub fn serial_hex(&self) -> String {
        self.serial.iter().map(|octet| format!("{octet:02x}")).collect()
    }

    /// The first second of its life.
    pub fn not_before(&self) -> UnixTime {
        self.validity.not_before
    }

    /// The last second of its life.
    pub fn not_after(&self) -> UnixTime {
        self.validity.not_after
    }

    /// Whom it names.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }
}
