//! Encodes `TBSCertificates` and signed certificates in DER.
//!
//! General-purpose builders lose repeated organizations, and so groups; hence a builder of our own.

use std::time::Duration;

use x509_cert::der::asn1::{Any, BitString, GeneralizedTime, ObjectIdentifier, OctetString, Uint, UtcTime};
use x509_cert::der::{self, Decode as _, Encode as _, Sequence};
use x509_cert::ext::Extension;
use x509_cert::ext::pkix::{AuthorityKeyIdentifier, BasicConstraints, ExtendedKeyUsage};
use x509_cert::spki::AlgorithmIdentifierOwned;
use x509_cert::time::Time;

use super::alt_names::AltNames;
use super::usage::CertificateUsages;
use super::validity::Validity;
use crate::x509::pod_identity::POD_IDENTITY;

/// The fields of a certificate.
#[derive(Debug)]
pub(super) struct TbsFields<'a> {
    /// Big-endian.
    pub(super) serial: &'a [u8],
    pub(super) algorithm: AlgorithmIdentifierOwned,
    /// The encoded subject of the CA certificate.
    pub(super) issuer: &'a [u8],
    pub(super) validity: Validity,
    /// The encoded subject.
    pub(super) subject: &'a [u8],
    pub(super) spki: &'a [u8],
    pub(super) usages: &'a CertificateUsages,
    pub(super) basic_constraints: BasicConstraints,
    /// The subject key identifier; empty if absent.
    pub(super) key_id: &'a [u8],
    /// The subject key identifier of the CA certificate; empty if absent.
    pub(super) authority_key_id: &'a [u8],
    pub(super) alt_names: &'a AltNames,
    /// The encoded PodIdentity extension, and whether it is critical.
    pub(super) pod_identity: Option<(&'a [u8], bool)>,
}

// RFC 5280 §4.1
#[derive(Sequence)]
struct TbsCertificate {
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT")]
    version: u8,
    serial: Uint,
    signature: AlgorithmIdentifierOwned,
    issuer: Any,
    validity: ValiditySequence,
    subject: Any,
    public_key: Any,
    #[asn1(context_specific = "3", tag_mode = "EXPLICIT")]
    extensions: Vec<Extension>,
}

#[derive(Sequence)]
struct ValiditySequence {
    not_before: Time,
    not_after: Time,
}

#[derive(Sequence)]
struct SignedSequence {
    content: Any,
    algorithm: AlgorithmIdentifierOwned,
    signature: BitString,
}

impl TbsFields<'_> {
    /// Encodes the `TBSCertificate`.
    pub(super) fn to_der(&self) -> Result<Vec<u8>, der::Error> {
        TbsCertificate {
            // Version 3, counted from zero.
            version: 2,
            serial: Uint::new(self.serial)?,
            signature: self.algorithm.clone(),
            issuer: Any::from_der(self.issuer)?,
            validity: ValiditySequence {
                not_before: time(self.validity.not_before)?,
                not_after: time(self.validity.not_after)?,
            },
            subject: Any::from_der(self.subject)?,
            public_key: Any::from_der(self.spki)?,
            extensions: self.extensions()?,
        }
        .to_der()
    }

    // go: crypto/x509/x509.go, buildCertExtensions
    fn extensions(&self) -> Result<Vec<Extension>, der::Error> {
        let mut extensions = Vec::new();
        let mut add = |oid: &str, critical: bool, value: Vec<u8>| -> Result<(), der::Error> {
            let oid = ObjectIdentifier::new_unwrap(oid);
            extensions.push(Extension { extn_id: oid, critical, extn_value: OctetString::new(value)? });
            Ok(())
        };
        let key_usage = self.usages.key_usage();
        if key_usage != 0 {
            add("2.5.29.15", true, named_bits(key_usage)?)?;
        }
        let purposes = self.usages.extended();
        if !purposes.is_empty() {
            let purposes = purposes.into_iter().map(ObjectIdentifier::new_unwrap).collect();
            add("2.5.29.37", false, ExtendedKeyUsage(purposes).to_der()?)?;
        }
        add("2.5.29.19", true, self.basic_constraints.to_der()?)?;
        if !self.key_id.is_empty() {
            add("2.5.29.14", false, OctetString::new(self.key_id)?.to_der()?)?;
        }
        if !self.authority_key_id.is_empty() {
            let key_identifier = Some(OctetString::new(self.authority_key_id)?);
            let id = AuthorityKeyIdentifier { key_identifier, ..AuthorityKeyIdentifier::default() };
            add("2.5.29.35", false, id.to_der()?)?;
        }
        if !self.alt_names.is_empty() {
            // RFC 5280 §4.2.1.6: critical if and only if the subject is empty.
            add("2.5.29.17", self.subject == EMPTY_NAME, self.alt_names.to_der()?)?;
        }
        if let Some((identity, is_critical)) = self.pod_identity {
            add(POD_IDENTITY, is_critical, identity.to_vec())?;
        }
        Ok(extensions)
    }
}

/// An encoded Name without attributes.
pub(super) const EMPTY_NAME: &[u8] = &[0x30, 0];

/// Encodes a signed certificate or request: the content, the algorithm and the signature.
pub(super) fn signed(
    content: &[u8],
    algorithm: AlgorithmIdentifierOwned,
    signature: &[u8],
) -> Result<Vec<u8>, der::Error> {
    let signature = BitString::from_bytes(signature)?;
    SignedSequence { content: Any::from_der(content)?, algorithm, signature }.to_der()
}

/// Encodes as UTCTime until 2049, then as GeneralizedTime (RFC 5280 §4.1.2.5).
pub(super) fn time(since_1970: Duration) -> Result<Time, der::Error> {
    UtcTime::from_unix_duration(since_1970)
        .map(Time::UtcTime)
        .or_else(|_| GeneralizedTime::from_unix_duration(since_1970).map(Time::GeneralTime))
}

/// Encodes a BIT STRING of named bits; bit n of the number is named bit n. Omits trailing zero bits (X.690 §11.2.2).
fn named_bits(bits: u16) -> Result<Vec<u8>, der::Error> {
    let octets = bits.reverse_bits().to_be_bytes();
    let used = 16 - bits.leading_zeros();
    let length = usize::try_from(used.div_ceil(8)).unwrap_or(octets.len());
    let unused = u8::try_from(used.next_multiple_of(8) - used).unwrap_or(0);
    BitString::new(unused, octets.get(..length).unwrap_or_default())?.to_der()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use x509_cert::der::Encode as _;

    use super::{named_bits, time};

    #[test]
    fn named_bits_end_with_the_last_one() {
        const CASES: &[(u16, &[u8])] = &[
            (1, &[3, 2, 7, 0x80]),
            (0b101, &[3, 2, 5, 0b1010_0000]),
            (1 << 7, &[3, 2, 0, 1]),
            (1 << 8, &[3, 3, 7, 0, 0x80]),
            (0x1ff, &[3, 3, 7, 0xff, 0x80]),
        ];
        for (bits, want) in CASES {
            assert_eq!(named_bits(*bits).unwrap(), *want, "{bits:b}");
        }
    }

    #[test]
    fn years_have_two_digits_until_2049() {
        const CASES: &[(u64, &[u8])] = &[
            (1_767_225_600, b"\x17\x0d260101000000Z"),
            (2_524_607_999, b"\x17\x0d491231235959Z"),
            (2_524_608_000, b"\x18\x0f20500101000000Z"),
            (253_402_300_799, b"\x18\x0f99991231235959Z"),
        ];
        for (seconds, want) in CASES {
            assert_eq!(time(Duration::from_secs(*seconds)).unwrap().to_der().unwrap(), *want, "{seconds}");
        }
        assert!(time(Duration::new(253_402_300_800, 0)).is_err());
    }
}
