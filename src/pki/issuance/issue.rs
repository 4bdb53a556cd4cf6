//! From a request to a certificate: what is wanted, what may be signed, and what was issued.

use std::time::Duration;

use aws_lc_rs::rand;
use x509_cert::ext::pkix::BasicConstraints;

use super::limits::{self, AuthorityLimit};
use super::lint::{self, Expected, LintError};
use super::profile::{Profile, Refusal};
use super::public_key::PublicKey;
use super::request::{CertificateRequest, RequestError, armour};
use super::signer::{SignError, SignatureAlgorithm, Signer};
use super::subject::Subject;
use super::tbs::{self, Fields};
use super::usage::{UnknownUsages, Usages};
use super::validity::{self, AuthorityNotValid, Validity};
use crate::clock::UnixTime;
use crate::go::hex::hex;
use crate::pki::x509::certificate::Certificate;

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

/// A certificate that passed its profile and every lint, and is not yet signed. There is no other way from a
/// request to a signature, and one leads to one signature.
///
/// It cannot be used twice:
///
/// ```compile_fail,E0382
/// use portcullis::certificates::{authority::Authority, issue::Prepared};
/// fn twice(authority: &Authority, prepared: Prepared) {
///     authority.issue(prepared).unwrap();
///     authority.issue(prepared).unwrap();
/// }
/// ```
///
/// Nor can it be copied:
///
/// ```compile_fail,E0599
/// use portcullis::certificates::issue::Prepared;
/// fn copied(prepared: Prepared) -> (Prepared, Prepared) {
///     (prepared.clone(), prepared)
/// }
/// ```
///
/// Nor made by hand:
///
/// ```compile_fail,E0451
/// use portcullis::certificates::issue::Prepared;
/// fn made(other: Prepared) -> Prepared {
///     Prepared { encoded: vec![0x30, 0], ..other }
/// }
/// ```
///
/// All that can be done with it is this:
///
/// ```
/// use portcullis::certificates::{authority::Authority, issue::{IssueError, Issued, Prepared}};
/// fn once(authority: &Authority, prepared: Prepared) -> Result<Issued, IssueError> {
///     authority.issue(prepared)
/// }
/// ```
#[must_use = "nothing has been signed yet"]
#[derive(Debug)]
pub struct Prepared {
    /// The to-be-signed certificate.
    encoded: Vec<u8>,
    /// Whose certificate it was prepared for.
    authority: Fingerprint,
    serial: [u8; SERIAL],
    subject: Subject,
    validity: Validity,
}

/// SHA-256 of an authority's certificate.
pub(super) type Fingerprint = [u8; 32];

/// How many random octets a serial number has.
// kubernetes: pkg/controller/certificates/authority/authority.go, serialNumberLimit
const SERIAL: usize = 16;

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
    /// The authority has ended, or has not begun.
    #[error(transparent)]
    NotValid(#[from] AuthorityNotValid),
    /// The certificate exceeds what the authority may sign for.
    #[error("the certificate is not signed: {0}")]
    Limit(#[from] AuthorityLimit),
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

/// What of an authority goes into the certificates it signs.
#[derive(Debug)]
pub(super) struct Issuer {
    /// Its certificate, whose limits hold for all below it.
    pub(super) certificate: Certificate,
    pub(super) fingerprint: Fingerprint,
    pub(super) algorithm: SignatureAlgorithm,
    /// The encoded subject.
    pub(super) subject: Vec<u8>,
    pub(super) validity: Validity,
    /// Empty if there is none.
    pub(super) key_id: Vec<u8>,
    pub(super) key: PublicKey,
}

impl Issuer {
    /// Checks the request against the profile, builds the certificate and runs every lint over it.
    // kubernetes: pkg/controller/certificates/signer/signer.go, handle, sign — in this order
    // threat: request-beyond-rules
    pub(super) fn prepare(
        &self,
        profile: &Profile,
        wanted: &Wanted<'_>,
        now: UnixTime,
    ) -> Result<Prepared, IssueError> {
        let request = wanted.request;
        profile.check(request, wanted.usages)?;
        let (longest, usual) = profile.durations(wanted.signing_duration);
        let life = validity::life(wanted.expiration, longest, usual);
        // Here a profile is stronger than the shortest life.
        let life = profile.max_duration().map_or(life, |longest| life.min(longest));
        let usages = Usages::parse(wanted.usages)?;
        let validity = Validity::of(now, life, self.validity)?;
        let subject = request.subject().to_der().map_err(lint::unencodable)?;
        let serial = new_serial()?;
        // go: crypto/x509/x509.go, CreateCertificate — who has the authority's own name gets no identifier of it
        let authority_key_id = if subject == self.subject { &[] } else { self.key_id.as_slice() };
        let encoded = Fields {
            serial: &serial,
            algorithm: self.algorithm.identifier().map_err(lint::unencodable)?,
            issuer: &self.subject,
            validity,
            subject: &subject,
            spki: request.public_key().spki(),
            usages: &usages,
            basic_constraints: BasicConstraints { ca: false, path_len_constraint: None },
            key_id: &[],
            authority_key_id,
            alt_names: request.alt_names(),
        }
        .to_der()
        .map_err(lint::unencodable)?;
        let expected = Expected {
            algorithm: self.algorithm,
            issuer: &self.subject,
            authority: self.validity,
            authority_key_id: &self.key_id,
            validity,
            longest: profile.max_duration(),
            name: request.subject(),
            subject: &subject,
            key: request.public_key(),
            spki: request.public_key().spki(),
            alt_names: request.alt_names(),
            usages: &usages,
            allowed: profile.allowed_usages().map(|usages| Vec::from_iter(usages).into()),
            cert_sign: profile.signs_cert_sign(),
        };
        let read = lint::check(&encoded, &expected)?;
        limits::check(&self.certificate, &read)?;
        let subject = request.subject().clone();
        Ok(Prepared { encoded, authority: self.fingerprint, serial, subject, validity })
    }

    /// Signs what was prepared for this authority, and looks at the signature before anybody else does.
    pub(super) fn issue(&self, prepared: Prepared, key: &dyn Signer) -> Result<Issued, IssueError> {
        let Prepared { encoded, authority, serial, subject, validity } = prepared;
        if authority != self.fingerprint {
            return Err(IssueError::OtherAuthority);
        }
        let der = sign(&encoded, self.algorithm, key, &self.key)?;
        let pem = armour("CERTIFICATE", &der);
        Ok(Issued { der, pem, serial, subject, validity })
    }
}

/// Signs what is encoded, and looks at the signature before anybody else does.
pub(super) fn sign(
    encoded: &[u8],
    algorithm: SignatureAlgorithm,
    key: &dyn Signer,
    public: &PublicKey,
) -> Result<Vec<u8>, IssueError> {
    let signature = key.sign(algorithm, encoded)?;
    // A fault while signing can give the key away (Boneh, DeMillo, Lipton 1997).
    public
        .key()
        .verify(algorithm.verified_as(), encoded, &signature)
        .map_err(|error| SignError::Wrong(error.to_string()))?;
    let algorithm = algorithm.identifier().map_err(lint::unencodable)?;
    Ok(tbs::signed(encoded, algorithm, &signature).map_err(lint::unencodable)?)
}

/// A random serial number; two of one issuer must not be equal.
// RFC 5280 §4.1.2.2
pub(crate) fn new_serial() -> Result<[u8; SERIAL], SignError> {
    let mut serial = [0; SERIAL];
    rand::fill(&mut serial)
        .map_err(|_| SignError::Failed("unable to generate a serial number".to_owned()))?;
    Ok(serial)
}

/// A signed certificate.
#[derive(Debug, Clone)]
pub struct Issued {
    der: Vec<u8>,
    pem: String,
    serial: [u8; SERIAL],
    subject: Subject,
    validity: Validity,
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
        hex(&self.serial)
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
