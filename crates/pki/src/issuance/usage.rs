//! Key usages and extended key usages, by their names in the certificates API. [`super::profile`] decides which of them a
//! request may have.
//!
//! The names come only from `spec.usages`, never from the PKCS#10 request. Several names may stand for one bit.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use x509_cert::der::asn1::ObjectIdentifier;

use portcullis_go::quote::Quoted;

/// A usage of `certificates.k8s.io/v1`, which defines a closed set; ordered by name.
// api: certificates/v1/types.go, KeyUsage
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CertificateUsage {
    /// `any`
    Any,
    /// `cert sign`
    CertSign,
    /// `client auth`
    ClientAuth,
    /// `code signing`
    CodeSigning,
    /// `content commitment`
    ContentCommitment,
    /// `crl sign`
    CrlSign,
    /// `data encipherment`
    DataEncipherment,
    /// `decipher only`
    DecipherOnly,
    /// `digital signature`
    DigitalSignature,
    /// `email protection`
    EmailProtection,
    /// `encipher only`
    EncipherOnly,
    /// `ipsec end system`
    IpsecEndSystem,
    /// `ipsec tunnel`
    IpsecTunnel,
    /// `ipsec user`
    IpsecUser,
    /// `key agreement`
    KeyAgreement,
    /// `key encipherment`
    KeyEncipherment,
    /// `microsoft sgc`
    MicrosoftSgc,
    /// `netscape sgc`
    NetscapeSgc,
    /// `ocsp signing`
    OcspSigning,
    /// `s/mime`, another name of `email protection`
    Smime,
    /// `server auth`
    ServerAuth,
    /// `signing`, another name of `digital signature`
    Signing,
    /// `timestamping`
    Timestamping,
}

/// The encoding of a usage in a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UsageEncoding {
    /// A bit of keyUsage, with its number in RFC 5280 §4.2.1.3.
    KeyUsage(u8),
    /// A purpose of extKeyUsage: its value in Go's enumeration, by which purposes are sorted, and its OID.
    // go: crypto/x509/x509.go, ExtKeyUsage
    Extended(u8, &'static str),
}

use UsageEncoding::{Extended, KeyUsage};

/// Ordered by name, as [`CertificateUsage`] is.
const TABLE: [(CertificateUsage, &str, UsageEncoding); 23] = [
    (CertificateUsage::Any, "any", Extended(0, "2.5.29.37.0")),
    (CertificateUsage::CertSign, "cert sign", KeyUsage(5)),
    (CertificateUsage::ClientAuth, "client auth", Extended(2, "1.3.6.1.5.5.7.3.2")),
    (CertificateUsage::CodeSigning, "code signing", Extended(3, "1.3.6.1.5.5.7.3.3")),
    (CertificateUsage::ContentCommitment, "content commitment", KeyUsage(1)),
    (CertificateUsage::CrlSign, "crl sign", KeyUsage(6)),
    (CertificateUsage::DataEncipherment, "data encipherment", KeyUsage(3)),
    (CertificateUsage::DecipherOnly, "decipher only", KeyUsage(8)),
    (CertificateUsage::DigitalSignature, "digital signature", KeyUsage(0)),
    (CertificateUsage::EmailProtection, "email protection", Extended(4, "1.3.6.1.5.5.7.3.4")),
    (CertificateUsage::EncipherOnly, "encipher only", KeyUsage(7)),
    (CertificateUsage::IpsecEndSystem, "ipsec end system", Extended(5, "1.3.6.1.5.5.7.3.5")),
    (CertificateUsage::IpsecTunnel, "ipsec tunnel", Extended(6, "1.3.6.1.5.5.7.3.6")),
    (CertificateUsage::IpsecUser, "ipsec user", Extended(7, "1.3.6.1.5.5.7.3.7")),
    (CertificateUsage::KeyAgreement, "key agreement", KeyUsage(4)),
    (CertificateUsage::KeyEncipherment, "key encipherment", KeyUsage(2)),
    (CertificateUsage::MicrosoftSgc, "microsoft sgc", Extended(10, "1.3.6.1.4.1.311.10.3.3")),
    (CertificateUsage::NetscapeSgc, "netscape sgc", Extended(11, "2.16.840.1.113730.4.1")),
    (CertificateUsage::OcspSigning, "ocsp signing", Extended(9, "1.3.6.1.5.5.7.3.9")),
    (CertificateUsage::Smime, "s/mime", Extended(4, "1.3.6.1.5.5.7.3.4")),
    (CertificateUsage::ServerAuth, "server auth", Extended(1, "1.3.6.1.5.5.7.3.1")),
    (CertificateUsage::Signing, "signing", KeyUsage(0)),
    (CertificateUsage::Timestamping, "timestamping", Extended(8, "1.3.6.1.5.5.7.3.8")),
];

static ALL: LazyLock<Vec<CertificateUsage>> =
    LazyLock::new(|| TABLE.iter().map(|(usage, ..)| *usage).collect());

impl CertificateUsage {
    /// All usages, ordered by name.
    pub fn all() -> &'static [Self] {
        &ALL
    }

    /// The name in the certificates API.
    pub fn word(self) -> &'static str {
        TABLE.iter().find(|(usage, ..)| *usage == self).map_or("", |(_, word, _)| word)
    }

    /// Whether the usage is a purpose of extKeyUsage, not a bit of keyUsage.
    pub fn is_extended(self) -> bool {
        matches!(self.place(), Extended(..))
    }

    /// The OID of a purpose; `None` for `any` and for bits of keyUsage.
    pub(super) fn purpose(self) -> Option<ObjectIdentifier> {
        match self.place() {
            Extended(_, oid) if self != Self::Any => ObjectIdentifier::new(oid).ok(),
            Extended(..) | KeyUsage(_) => None,
        }
    }

    // kubernetes: pkg/controller/certificates/authority/policies.go, keyUsageDict and extKeyUsageDict
    pub(super) fn place(self) -> UsageEncoding {
        TABLE.iter().find(|(usage, ..)| *usage == self).map_or(KeyUsage(0), |(.., place)| *place)
    }
}

impl fmt::Display for CertificateUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for CertificateUsage {
    type Err = UnknownUsages;

    fn from_str(word: &str) -> Result<Self, UnknownUsages> {
        TABLE
            .iter()
            .find(|(_, known, _)| *known == word)
            .map(|(usage, ..)| *usage)
            .ok_or_else(|| UnknownUsages(vec![word.to_owned()]))
    }
}

/// Names that are not usages, in their original order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unrecognized usage values: [{}]", quoted(.0))]
pub struct UnknownUsages(pub Vec<String>);

fn quoted(words: &[String]) -> String {
    words.iter().map(|word| Quoted(word).to_string()).collect::<Vec<_>>().join(" ")
}

/// The usages of a request, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CertificateUsages(Vec<CertificateUsage>);

impl CertificateUsages {
    /// Parses `spec.usages`; the error lists every unknown name.
    // kubernetes: pkg/controller/certificates/authority/policies.go, keyUsagesFromStrings
    pub(crate) fn parse(words: &[String]) -> Result<Self, UnknownUsages> {
        let (known, unknown): (Vec<_>, Vec<_>) =
            words.iter().map(|word| word.parse()).partition(Result::is_ok);
        let unknown: Vec<String> =
            unknown.into_iter().filter_map(Result::err).flat_map(|UnknownUsages(words)| words).collect();
        if !unknown.is_empty() {
            return Err(UnknownUsages(unknown));
        }
        Ok(Self(known.into_iter().filter_map(Result::ok).collect()))
    }

    /// The usages, in order.
    #[cfg(test)]
    pub(crate) fn as_slice(&self) -> &[CertificateUsage] {
        &self.0
    }

    /// The bits of keyUsage; bit n of the number is bit n of RFC 5280.
    pub(super) fn key_usage(&self) -> u16 {
        self.0.iter().fold(0, |bits, usage| match usage.place() {
            KeyUsage(bit) => bits | 1 << bit,
            Extended(..) => bits,
        })
    }

    /// The OIDs of extKeyUsage, without duplicates, in Go's order.
    pub(super) fn extended(&self) -> Vec<&'static str> {
        let places: BTreeSet<(u8, &'static str)> = self
            .0
            .iter()
            .filter_map(|usage| match usage.place() {
                Extended(rank, oid) => Some((rank, oid)),
                KeyUsage(_) => None,
            })
            .collect();
        places.into_iter().map(|(_, oid)| oid).collect()
    }
}

impl From<Vec<CertificateUsage>> for CertificateUsages {
    fn from(usages: Vec<CertificateUsage>) -> Self {
        Self(usages)
    }
}
