//! Signs certificate revocation lists: complete ones of version 2, by the profile of RFC 5280 section 5.

use num_bigint::BigUint;
use portcullis_system::clock::UnixTime;
use x509_cert::der::asn1::{Any, ObjectIdentifier, OctetString, Uint};
use x509_cert::der::{self, Decode as _, Encode as _, Sequence};
use x509_cert::ext::Extension;
use x509_cert::ext::pkix::AuthorityKeyIdentifier;
use x509_cert::spki::AlgorithmIdentifierOwned;
use x509_cert::time::Time;

use super::issue::{CertificateIssuer, IssueError, sign};
use super::lint;
use super::signer::Signer;
use super::tbs::time;
use crate::x509::Crl;
use crate::x509::certificate::KEY_CRL_SIGN;
use crate::x509::crl::RevokedEntry;

/// The longest `cRLNumber`, in octets.
// RFC 5280 section 5.2.3
const MAX_NUMBER: usize = 20;

/// The fields of a CRL.
#[derive(Debug, Clone, Copy)]
pub struct CrlPlan<'a> {
    /// The CRL number, RFC 5280 section 5.2.3.
    pub number: &'a BigUint,
    /// The time of the list.
    pub this_update: UnixTime,
    /// The time by which the next list is issued.
    pub next_update: UnixTime,
    /// The revoked certificates.
    pub entries: &'a [RevokedEntry],
}

/// Why no CRL is signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignCrlError {
    /// Verifiers refuse CRLs of this CA.
    #[error(
        "the key usage of the CA certificate does not allow cRLSign, so that verifiers refuse its CRLs; revoke with a deny \
         list, or use a CA with cRLSign"
    )]
    NoCrlSign,
    /// A CRL must have an authority key identifier.
    #[error(
        "the CA certificate has no subject key identifier, which a CRL refers to (RFC 5280 section 5.2.1)"
    )]
    NoKeyId,
    /// The number is too long.
    #[error("the CRL number is longer than 20 octets")]
    Number,
    /// The CRL cannot be encoded or signed.
    #[error(transparent)]
    Sign(#[from] IssueError),
    /// The gateway would refuse it: a bug.
    #[error("the signed CRL does not verify: {0}")]
    Lint(String),
}

// RFC 5280 section 5.1
#[derive(Sequence)]
struct TbsCertList {
    version: u8,
    signature: AlgorithmIdentifierOwned,
    issuer: Any,
    this_update: Time,
    next_update: Time,
    #[asn1(optional = "true")]
    revoked: Option<Vec<RevokedSequence>>,
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT")]
    extensions: Vec<Extension>,
}

#[derive(Sequence)]
struct RevokedSequence {
    serial: Uint,
    revoked_at: Time,
    #[asn1(optional = "true")]
    extensions: Option<Vec<Extension>>,
}

impl CertificateIssuer {
    /// Checks that verifiers accept CRLs of the CA.
    pub(super) fn check_crl_sign(&self) -> Result<(), SignCrlError> {
        let usage = self.certificate.extensions.key_usage;
        if usage != 0 && usage & KEY_CRL_SIGN == 0 {
            return Err(SignCrlError::NoCrlSign);
        }
        if self.key_id.is_empty() {
            return Err(SignCrlError::NoKeyId);
        }
        Ok(())
    }

    /// Signs a CRL, and checks it as the gateway does.
    pub(super) fn sign_crl(&self, plan: &CrlPlan<'_>, key: &dyn Signer) -> Result<Vec<u8>, SignCrlError> {
        self.check_crl_sign()?;
        // A leading zero octet keeps a number positive.
        if plan.number.bits() >= u64::try_from(MAX_NUMBER * 8).unwrap_or(u64::MAX) {
            return Err(SignCrlError::Number);
        }
        let encoded = self.tbs_cert_list(plan).map_err(|error| IssueError::from(lint::unencodable(error)))?;
        let crl = sign(&encoded, self.algorithm, key, &self.key)?;
        let read = Crl::parse(&crl).map_err(|error| SignCrlError::Lint(error.to_string()))?;
        read.check_signature_from(&self.certificate)
            .map_err(|error| SignCrlError::Lint(error.to_string()))?;
        if read.entries != plan.entries || read.number.as_ref() != Some(plan.number) {
            return Err(SignCrlError::Lint("it lists other certificates".to_owned()));
        }
        Ok(crl)
    }

    fn tbs_cert_list(&self, plan: &CrlPlan<'_>) -> Result<Vec<u8>, der::Error> {
        let key_identifier = Some(OctetString::new(self.key_id.as_slice())?);
        let authority = AuthorityKeyIdentifier { key_identifier, ..AuthorityKeyIdentifier::default() };
        let number = Uint::new(&plan.number.to_bytes_be())?;
        let revoked = plan.entries.iter().map(revoked).collect::<Result<Vec<_>, _>>()?;
        TbsCertList {
            // Version 2, counted from zero.
            version: 1,
            signature: self.algorithm.identifier()?,
            issuer: Any::from_der(&self.subject)?,
            this_update: time(plan.this_update)?,
            next_update: time(plan.next_update)?,
            // RFC 5280 section 5.1.2.6: absent if there are none.
            revoked: (!revoked.is_empty()).then_some(revoked),
            extensions: vec![
                extension("2.5.29.35", authority.to_der()?)?,
                extension("2.5.29.20", number.to_der()?)?,
            ],
        }
        .to_der()
    }
}

fn revoked(entry: &RevokedEntry) -> Result<RevokedSequence, der::Error> {
    let since_1970 = UnixTime::from_secs(u64::try_from(entry.revoked_at).unwrap_or(0));
    // RFC 5280 section 5.3.1: `unspecified` is absent.
    let reason = (entry.reason != 0).then(|| extension("2.5.29.21", vec![0x0a, 1, entry.reason]));
    Ok(RevokedSequence {
        serial: Uint::new(&entry.serial)?,
        revoked_at: time(since_1970)?,
        extensions: reason.transpose()?.map(|reason| vec![reason]),
    })
}

fn extension(oid: &str, value: Vec<u8>) -> Result<Extension, der::Error> {
    let extn_id = ObjectIdentifier::new_unwrap(oid);
    Ok(Extension { extn_id, critical: false, extn_value: OctetString::new(value)? })
}
