//! The public keys that a joining node is told to trust: `sha256:…`, the hash of the key as it is in certificates.

use std::collections::BTreeSet;

use aws_lc_rs::digest;
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::go::hex::hex;

const FORMAT: &str = "sha256";

/// A set of pinned public keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pins(BTreeSet<String>);

/// It pins nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no hash of a public key: that is {FORMAT}: and 64 hexadecimal digits")]
pub struct NotAPin(String);

impl Pins {
    /// Reads pins, each as [`Pins::of`] prints it; upper case is as good.
    // kubeadm: util/pubkeypin/pubkeypin.go, Allow
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, NotAPin> {
        let one = |text: &str| {
            let (format, hash) = text.split_once(':')?;
            let fits = format.eq_ignore_ascii_case(FORMAT)
                && hash.len() == 2 * digest::SHA256_OUTPUT_LEN
                && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
            fits.then(|| format!("{FORMAT}:{}", hash.to_ascii_lowercase()))
        };
        let pins = texts.into_iter().map(|text| one(text).ok_or_else(|| NotAPin(text.to_owned())));
        pins.collect::<Result<_, _>>().map(Self)
    }

    /// The pin of a certificate's key; none if it is no certificate.
    // kubeadm: util/pubkeypin/pubkeypin.go, Hash
    pub fn of(certificate: &CertificateDer<'_>) -> Option<String> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let hash = digest::digest(&digest::SHA256, certificate.tbs_certificate.subject_pki.raw);
        Some(format!("{FORMAT}:{}", hex(hash.as_ref())))
    }

    /// Whether nothing is pinned.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the key of one of these is pinned.
    // kubeadm: util/pubkeypin/pubkeypin.go, CheckAny
    // threat: impersonated-cluster
    pub fn hold_any(&self, certificates: &[CertificateDer<'_>]) -> bool {
        certificates.iter().filter_map(Self::of).any(|pin| self.0.contains(&pin))
    }
}
