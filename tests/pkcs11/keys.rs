//! What the trials do with keys: verify signatures, issue and check certificates.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use portcullis::internal::AltNames;
use portcullis::internal::CertificateAuthority;
use portcullis::internal::CertificateProfile;
use portcullis::internal::IssuanceRequest;
use portcullis::internal::Pkcs11Key;
use portcullis::internal::Subject;
use portcullis::internal::build_request;
use portcullis::internal::{KeyKind, PemKey, Signer as _, SigningAlgorithm};

/// A certificate of a CA.
pub(crate) fn certificate(key: &rcgen::KeyPair, name: &str) -> String {
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.self_signed(key).expect("a certificate").pem()
}

/// Panics unless the signature verifies.
pub(crate) fn verify(spki: &[u8], algorithm: SigningAlgorithm, message: &[u8], signature: &[u8]) {
    use aws_lc_rs::signature as verification;
    let (_, key) = x509_parser::prelude::FromDer::from_der(spki)
        .map(|(rest, key): (_, x509_parser::x509::SubjectPublicKeyInfo<'_>)| (rest, key))
        .unwrap();
    let by: &'static dyn verification::VerificationAlgorithm = match algorithm {
        SigningAlgorithm::RsaSha256 => &verification::RSA_PKCS1_2048_8192_SHA256,
        SigningAlgorithm::EcdsaSha256 => &verification::ECDSA_P256_SHA256_ASN1,
        SigningAlgorithm::EcdsaSha384 => &verification::ECDSA_P384_SHA384_ASN1,
        SigningAlgorithm::EcdsaSha512 => &verification::ECDSA_P521_SHA512_ASN1,
        SigningAlgorithm::Ed25519 => unreachable!(),
    };
    verification::UnparsedPublicKey::new(by, &key.subject_public_key.data)
        .verify(message, signature)
        .unwrap_or_else(|_| panic!("{algorithm:?}, {}", String::from_utf8_lossy(message)));
}

/// A certificate for alice.
pub(crate) fn issue(authority: &CertificateAuthority) -> String {
    let key = PemKey::generate(KeyKind::EcdsaP256).unwrap();
    let alice = Subject { common_name: "alice".to_owned(), ..Subject::default() };
    let request = build_request(&alice, &AltNames::default(), &key).unwrap();
    let usages = ["client auth".to_owned()];
    let day = Duration::from_hours(24);
    let wanted =
        IssuanceRequest { request: &request, usages: &usages, expiration: None, signing_duration: day };
    let now = portcullis::internal::Clock::system().now();
    let prepared = authority.prepare(&CertificateProfile::client(), &wanted, now).unwrap();
    authority.issue(prepared).unwrap().pem().to_owned()
}

/// Signs, and verifies the signature.
pub(crate) fn signs(key: &Pkcs11Key, algorithm: SigningAlgorithm, message: &str) {
    let signature =
        key.sign(algorithm, message.as_bytes()).unwrap_or_else(|error| panic!("{message}: {error}"));
    verify(key.public_key(), algorithm, message.as_bytes(), &signature);
}

/// Issues a certificate, and has openssl verify it.
pub(crate) fn issues(authority: &CertificateAuthority, certificate: &Path) {
    let leaf = certificate.with_extension("leaf");
    std::fs::write(&leaf, issue(authority)).unwrap();
    let verified =
        Command::new("openssl").args(["verify", "-CAfile"]).args([certificate, &leaf]).output().unwrap();
    assert!(
        verified.status.success(),
        "{}: {}",
        certificate.display(),
        String::from_utf8_lossy(&verified.stderr)
    );
}
