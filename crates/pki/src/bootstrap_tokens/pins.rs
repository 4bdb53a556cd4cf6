//! Public key pins, by which a joining node trusts a cluster CA: `sha256:` and the hash of the `SubjectPublicKeyInfo`.

use std::collections::BTreeSet;

use aws_lc_rs::digest;
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use portcullis_go::hex::hex;

const FORMAT: &str = "sha256";

/// A set of pinned public keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublicKeyPins(BTreeSet<String>);

/// The text is not a pin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a public key hash: write {FORMAT}: and 64 hexadecimal digits")]
pub struct InvalidPin(String);

impl PublicKeyPins {
    /// Parses pins in the format of [`PublicKeyPins::of`], case-insensitively.
    // kubeadm: util/pubkeypin/pubkeypin.go, Allow
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidPin> {
        let one = |text: &str| {
            let (format, hash) = text.split_once(':')?;
            let fits = format.eq_ignore_ascii_case(FORMAT)
                && hash.len() == 2 * digest::SHA256_OUTPUT_LEN
                && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
            fits.then(|| format!("{FORMAT}:{}", hash.to_ascii_lowercase()))
        };
        let pins = texts.into_iter().map(|text| one(text).ok_or_else(|| InvalidPin(text.to_owned())));
        pins.collect::<Result<_, _>>().map(Self)
    }

    /// The pin of a certificate's public key; `None` if the certificate does not parse.
    // kubeadm: util/pubkeypin/pubkeypin.go, Hash
    pub fn of(certificate: &CertificateDer<'_>) -> Option<String> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let hash = digest::digest(&digest::SHA256, certificate.tbs_certificate.subject_pki.raw);
        Some(format!("{FORMAT}:{}", hex(hash.as_ref())))
    }

    /// Whether the set has no pin.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the public key of one of the certificates is pinned.
    // kubeadm: util/pubkeypin/pubkeypin.go, CheckAny
    // threat: impersonated-cluster
    pub(crate) fn match_any(&self, certificates: &[CertificateDer<'_>]) -> bool {
        certificates.iter().filter_map(Self::of).any(|pin| self.0.contains(&pin))
    }
}
