//! The steps from a request to a certificate: check, build, lint, sign.

use std::time::Duration;

use aws_lc_rs::rand;
use portcullis_go::hex::hex;
use portcullis_go::pem::encode_pem;
use portcullis_system::clock::UnixTime;
use x509_cert::ext::pkix::BasicConstraints;

use super::alt_names::AltNames;
use super::limits::{self, AuthorityLimit};
use super::lint::{self, ExpectedCertificate, LintError};
use super::profile::{CertificateProfile, ProfileViolation};
use super::public_key::StrongPublicKey;
use super::request::{CertificateRequest, RequestError};
use super::signer::{SignError, Signer, SigningAlgorithm};
use super::subject::Subject;
use super::tbs::{self, TbsFields};
use super::usage::{CertificateUsages, UnknownUsages};
use super::validity::{self, AuthorityNotValid, Validity};
use crate::x509::certificate::Certificate;
use crate::x509::pod_identity::PodIdentity;

/// A certificate request, with the parameters of its `CertificateSigningRequest`.
#[derive(Debug, Clone, Copy)]
pub struct IssuanceRequest<'a> {
    /// The certificate request.
    pub request: &'a CertificateRequest,
    /// `spec.usages`.
    pub usages: &'a [String],
    /// `spec.expirationSeconds`.
    pub expiration: Option<Duration>,
    /// `--cluster-signing-duration`: the default and the maximum lifetime.
    pub signing_duration: Duration,
}

/// An unsigned certificate that passed its profile and every lint. Signing requires one, and consumes it.
///
/// It cannot be used twice:
///
/// ```compile_fail,E0382
/// use portcullis_pki::issuance::authority::CertificateAuthority;
/// use portcullis_pki::issuance::issue::PreparedCertificate;
/// fn twice(authority: &CertificateAuthority, prepared: PreparedCertificate) {
///     authority.issue(prepared).unwrap();
///     authority.issue(prepared).unwrap();
/// }
/// ```
///
/// It cannot be cloned:
///
/// ```compile_fail,E0599
/// use portcullis_pki::issuance::issue::PreparedCertificate;
/// fn copied(prepared: PreparedCertificate) -> (PreparedCertificate, PreparedCertificate) {
///     (prepared.clone(), prepared)
/// }
/// ```
///
/// It cannot be constructed elsewhere:
///
/// ```compile_fail,E0451
/// use portcullis_pki::issuance::issue::PreparedCertificate;
/// fn made(other: PreparedCertificate) -> PreparedCertificate {
///     PreparedCertificate { encoded: vec![0x30, 0], ..other }
/// }
/// ```
///
/// A CA signs it:
///
/// ```
/// use portcullis_pki::issuance::authority::CertificateAuthority;
/// use portcullis_pki::issuance::issue::{IssueError, IssuedCertificate, PreparedCertificate};
/// fn once(authority: &CertificateAuthority, prepared: PreparedCertificate) -> Result<IssuedCertificate, IssueError> {
///     authority.issue(prepared)
/// }
/// ```
#[must_use = "nothing has been signed yet"]
#[derive(Debug)]
pub struct PreparedCertificate {
    /// The encoded `TBSCertificate`.
    encoded: Vec<u8>,
    /// The CA that prepared it.
    authority: CertificateFingerprint,
    serial: [u8; SERIAL_LENGTH],
    subject: Subject,
    validity: Validity,
}

/// SHA-256 of a CA certificate.
pub(super) type CertificateFingerprint = [u8; 32];

/// The number of random octets of a serial number.
// kubernetes: pkg/controller/certificates/authority/authority.go, serialNumberLimit
const SERIAL_LENGTH: usize = 16;

/// Why no certificate was issued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IssueError {
    /// The profile rejects the request. The requester's error: a retry cannot succeed.
    #[error(transparent)]
    Refused(#[from] ProfileViolation),
    /// The request is malformed, or violates the key policy.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The request has usages that the certificates API does not define.
    #[error(transparent)]
    Usages(#[from] UnknownUsages),
    /// The CA certificate has expired, or is not valid yet.
    #[error(transparent)]
    NotValid(#[from] AuthorityNotValid),
    /// The certificate exceeds the limits of the CA certificate.
    #[error("the certificate is not signed: {0}")]
    Limit(#[from] AuthorityLimit),
    /// The certificate fails a lint: a bug in the gateway.
    #[error(transparent)]
    Lint(#[from] LintError),
    /// Another CA prepared the certificate.
    #[error("the certificate was prepared for another authority")]
    OtherAuthority,
    /// The key failed to sign.
    #[error(transparent)]
    Sign(#[from] SignError),
}

/// The contents of a certificate, which its profile has checked.
#[derive(Debug)]
pub(super) struct CertificateContents<'a> {
    pub(super) subject: &'a Subject,
    pub(super) alt_names: &'a AltNames,
    pub(super) key: &'a StrongPublicKey,
    pub(super) usages: CertificateUsages,
    /// The usages that the profile allows; `None` if it allows all.
    pub(super) allowed_usages: Option<CertificateUsages>,
    /// Whether the profile allows `cert sign` in leaf certificates.
    pub(super) allows_cert_sign: bool,
    pub(super) validity: Validity,
    /// The maximum lifetime of the profile; `None` if unlimited.
    pub(super) max_lifetime: Option<Duration>,
    /// What of the validity the maximum lifetime does not count.
    pub(super) backdate: Duration,
    /// The pod that the certificate is bound to, and whether its extension is critical.
    pub(super) pod_identity: Option<(&'a PodIdentity, bool)>,
}

/// The properties of a CA that its certificates depend on.
#[derive(Debug)]
pub(super) struct CertificateIssuer {
    /// The CA certificate, whose limits apply to all certificates below it.
    pub(super) certificate: Certificate,
    pub(super) fingerprint: CertificateFingerprint,
    pub(super) algorithm: SigningAlgorithm,
    /// The encoded subject.
    pub(super) subject: Vec<u8>,
    pub(super) validity: Validity,
    /// The subject key identifier; empty if absent.
    pub(super) key_id: Vec<u8>,
    pub(super) key: StrongPublicKey,
}

impl CertificateIssuer {
    /// Checks the request against the profile, builds the certificate and runs every lint over it.
    // kubernetes: pkg/controller/certificates/signer/signer.go, handle, sign — in this order
    // threat: request-beyond-rules
    pub(super) fn prepare(
        &self,
        profile: &CertificateProfile,
        wanted: &IssuanceRequest<'_>,
        now: UnixTime,
    ) -> Result<PreparedCertificate, IssueError> {
        let request = wanted.request;
        profile.check(request, wanted.usages)?;
        let (max, default) = profile.durations(wanted.signing_duration);
        let lifetime = validity::lifetime(wanted.expiration, max, default);
        // The maximum of a profile overrides the minimum lifetime.
        let lifetime = profile.max_duration().map_or(lifetime, |max| lifetime.min(max));
        self.build(&CertificateContents {
            subject: request.subject(),
            alt_names: request.alt_names(),
            key: request.public_key(),
            usages: CertificateUsages::parse(wanted.usages)?,
            allowed_usages: profile.allowed_usages().map(|usages| Vec::from_iter(usages).into()),
            allows_cert_sign: profile.signs_cert_sign(),
            validity: Validity::of(now, lifetime, self.validity)?,
            max_lifetime: profile.max_duration(),
            backdate: validity::BACKDATE,
            pod_identity: None,
        })
    }

    /// Builds a certificate with contents that were checked, and runs every lint over it.
    pub(super) fn build(
        &self,
        contents: &CertificateContents<'_>,
    ) -> Result<PreparedCertificate, IssueError> {
        let CertificateContents { subject: name, alt_names, key, usages, validity, .. } = contents;
        let subject = name.to_der().map_err(lint::unencodable)?;
        let serial = new_serial()?;
        let pod_identity = match contents.pod_identity {
            Some((identity, is_critical)) => {
                Some((identity.to_der().map_err(lint::unencodable)?, is_critical))
            }
            None => None,
        };
        // go: crypto/x509/x509.go, CreateCertificate — a certificate with the CA's name has no authority key identifier
        let authority_key_id = if subject == self.subject { &[] } else { self.key_id.as_slice() };
        let encoded = TbsFields {
            serial: &serial,
            algorithm: self.algorithm.identifier().map_err(lint::unencodable)?,
            issuer: &self.subject,
            validity: *validity,
            subject: &subject,
            spki: key.spki(),
            usages,
            basic_constraints: BasicConstraints { ca: false, path_len_constraint: None },
            key_id: &[],
            authority_key_id,
            alt_names,
            pod_identity: pod_identity
                .as_ref()
                .map(|(encoded, is_critical)| (encoded.as_slice(), *is_critical)),
        }
        .to_der()
        .map_err(lint::unencodable)?;
        let expected = ExpectedCertificate {
            algorithm: self.algorithm,
            issuer: &self.subject,
            authority: self.validity,
            authority_key_id: &self.key_id,
            validity: *validity,
            max_lifetime: contents.max_lifetime,
            backdate: contents.backdate,
            name,
            subject: &subject,
            key,
            spki: key.spki(),
            alt_names,
            usages,
            allowed: contents.allowed_usages.clone(),
            cert_sign: contents.allows_cert_sign,
            pod_identity: contents.pod_identity,
        };
        let read = lint::check(&encoded, &expected)?;
        limits::check(&self.certificate, &read)?;
        let subject = Subject::clone(name);
        Ok(PreparedCertificate { encoded, authority: self.fingerprint, serial, subject, validity: *validity })
    }

    /// Signs a certificate that this CA prepared, and verifies the signature.
    pub(super) fn issue(
        &self,
        prepared: PreparedCertificate,
        key: &dyn Signer,
    ) -> Result<IssuedCertificate, IssueError> {
        let PreparedCertificate { encoded, authority, serial, subject, validity } = prepared;
        if authority != self.fingerprint {
            return Err(IssueError::OtherAuthority);
        }
        let der = sign(&encoded, self.algorithm, key, &self.key)?;
        let pem = encode_pem("CERTIFICATE", &der);
        Ok(IssuedCertificate { der, pem, serial, subject, validity })
    }
}

/// Signs an encoded `TBSCertificate` and verifies the signature.
pub(super) fn sign(
    encoded: &[u8],
    algorithm: SigningAlgorithm,
    key: &dyn Signer,
    public: &StrongPublicKey,
) -> Result<Vec<u8>, IssueError> {
    let signature = key.sign(algorithm, encoded)?;
    // A faulty signature can reveal the private key (Boneh, DeMillo, Lipton 1997).
    public
        .key()
        .verify(algorithm.verified_as(), encoded, &signature)
        .map_err(|error| SignError::Wrong(error.to_string()))?;
    let algorithm = algorithm.identifier().map_err(lint::unencodable)?;
    Ok(tbs::signed(encoded, algorithm, &signature).map_err(lint::unencodable)?)
}

/// A random serial number. Serial numbers of one issuer must be unique.
// RFC 5280 §4.1.2.2
pub(crate) fn new_serial() -> Result<[u8; SERIAL_LENGTH], SignError> {
    let mut serial = [0; SERIAL_LENGTH];
    rand::fill(&mut serial)
        .map_err(|_| SignError::Failed("unable to generate a serial number".to_owned()))?;
    Ok(serial)
}

/// A signed certificate.
#[derive(Debug, Clone)]
pub struct IssuedCertificate {
    der: Vec<u8>,
    pem: String,
    serial: [u8; SERIAL_LENGTH],
    subject: Subject,
    validity: Validity,
}

impl IssuedCertificate {
    /// The certificate as one PEM block, with a trailing newline.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The encoded certificate.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// The serial number in lower-case hexadecimal, two digits for each octet.
    pub fn serial_hex(&self) -> String {
        hex(&self.serial)
    }

    /// The notBefore time.
    pub fn not_before(&self) -> UnixTime {
        self.validity.not_before
    }

    /// The notAfter time.
    pub fn not_after(&self) -> UnixTime {
        self.validity.not_after
    }

    /// The subject.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }
}
