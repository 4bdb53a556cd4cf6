//! Certificate authorities of other makes than ours.

use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose, SerialNumber};
use secrecy::ExposeSecret as _;

use super::{NOW, YEAR};
use crate::issuance::authority::CertificateAuthority;
use crate::issuance::signer::{KeyKind, PemKey};

/// Parameters of a CA certificate, valid from a year ago for eleven years.
pub(crate) fn ca_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params.serial_number = Some(SerialNumber::from(1_u64));
    params.not_before = date(NOW.saturating_sub(YEAR));
    params.not_after = date(NOW + 10 * YEAR);
    params
}

pub(crate) fn date(time: Duration) -> time::OffsetDateTime {
    time::OffsetDateTime::from_unix_timestamp(i64::try_from(time.as_secs()).unwrap()).unwrap()
}

/// A CA certificate, in PEM.
pub(crate) fn ca_pem(params: &CertificateParams, key: &PemKey) -> String {
    let key = KeyPair::from_pem(key.to_pem().expose_secret()).unwrap();
    params.self_signed(&key).unwrap().pem()
}

pub(crate) fn authority_of(params: &CertificateParams, kind: KeyKind) -> CertificateAuthority {
    let key = PemKey::generate(kind).unwrap();
    CertificateAuthority::new(ca_pem(params, &key).as_bytes(), Box::new(key)).unwrap()
}

pub(crate) fn authority(kind: KeyKind) -> CertificateAuthority {
    authority_of(&ca_params("test-ca"), kind)
}
