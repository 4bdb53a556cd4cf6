//! Loading of CA certificates and keys.

use std::path::PathBuf;
use std::time::Duration;

use secrecy::ExposeSecret as _;

use super::{AuthorityKeySource, CertificateAuthority};
use crate::issuance::alt_names::AltNames;
use crate::issuance::issue::{IssuanceRequest, IssueError};
use crate::issuance::profile::CertificateProfile;
use crate::issuance::signer::{KeyKind, PemKey, SignError, Signer, SigningAlgorithm};
use crate::issuance::testing::{NOW, YEAR, ca_params, ca_pem, date, request, strings, subject};

/// A certificate and the matching key, in PEM.
fn pair(name: &str) -> (String, String) {
    let key = PemKey::generate(KeyKind::EcdsaP256).unwrap();
    (ca_pem(&ca_params(name), &key), key.to_pem().expose_secret().to_owned())
}

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, certificate: &str, key: &str) {
        std::fs::write(self.path("crt"), certificate).unwrap();
        std::fs::write(self.path("key"), key).unwrap();
    }

    fn load(&self) -> Result<CertificateAuthority, super::AuthorityError> {
        CertificateAuthority::load(&self.path("crt"), &AuthorityKeySource::File(self.path("key")))
    }
}

#[test]
fn unusable_files_give_the_errors_of_kube_controller_manager() {
    let dir = Dir::new();
    let (crt, key) = (dir.path("crt").display().to_string(), dir.path("key").display().to_string());
    let ((one, one_key), (other, other_key)) = (pair("one"), pair("other"));
    let rsa = PemKey::generate(KeyKind::Rsa2048).unwrap().to_pem();
    let mut leaf = ca_params("leaf");
    leaf.is_ca = rcgen::IsCa::ExplicitNoCa;
    let mut no_sign = ca_params("no cert sign");
    no_sign.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
    let own_key = PemKey::from_pem(one_key.as_bytes()).unwrap();
    let not_authority = "the certificate is not a CA certificate: it needs CA:TRUE in basicConstraints, and keyCertSign in keyUsage";
    let cases = [
        ("good", one.clone(), one_key.clone(), None),
        ("text around", format!("one\n{one}two"), one_key.clone(), None),
        (
            "two certificates",
            format!("{one}{other}"),
            one_key.clone(),
            Some((format!("csr-controller::{crt}::{key}"), "expected 1 certificate, found 2")),
        ),
        (
            "another's key",
            one.clone(),
            other_key,
            Some((crt.clone(), "tls: private key does not match public key")),
        ),
        (
            "a key of another kind",
            one.clone(),
            rsa.expose_secret().to_owned(),
            Some((crt.clone(), "tls: private key does not match public key")),
        ),
        ("no certificate", String::new(), one_key.clone(), Some((crt.clone(), ""))),
        (
            "no key",
            one.clone(),
            "text".to_owned(),
            Some((crt.clone(), "tls: failed to find any PEM data in key input")),
        ),
        (
            "switched",
            one_key.clone(),
            one.clone(),
            Some((
                crt.clone(),
                "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched",
            )),
        ),
        (
            "broken",
            "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n".to_owned(),
            one_key.clone(),
            Some((crt.clone(), "x509: malformed tbs certificate")),
        ),
        ("a leaf", ca_pem(&leaf, &own_key), one_key.clone(), Some((crt.clone(), not_authority))),
        ("may not sign", ca_pem(&no_sign, &own_key), one_key.clone(), Some((crt.clone(), not_authority))),
    ];
    for (case, certificate, private, want) in cases {
        dir.write(&certificate, &private);
        let found = dir.load().map(drop).map_err(|error| error.to_string());
        let want = want.map_or(Ok(()), |(name, reason)| {
            let empty =
                format!("missing content for serving cert {:?}", format!("csr-controller::{crt}::{key}"));
            let reason = if reason.is_empty() { empty.as_str() } else { reason };
            Err(format!("error reading CA cert file {name:?}: {reason}"))
        });
        assert_eq!(found, want, "{case}");
    }
    std::fs::remove_file(dir.path("key")).unwrap();
    assert_eq!(
        dir.load().unwrap_err().to_string(),
        format!("error reading CA cert file {crt:?}: open {key}: no such file or directory")
    );
}

#[test]
fn an_authority_exposes_its_certificate_and_validity() {
    let mut params = ca_params("test-ca");
    params.not_after = date(NOW + YEAR);
    let key = PemKey::generate(KeyKind::EcdsaP384).unwrap();
    let pem = ca_pem(&params, &key);
    let authority = CertificateAuthority::new(format!("text\n{pem}").as_bytes(), Box::new(key)).unwrap();
    assert_eq!(authority.certificate_pem(), pem.replace("\r\n", "\n"));
    assert_eq!(authority.not_after(), NOW + YEAR);
    assert!(!authority.is_expired((NOW + YEAR).saturating_sub(Duration::from_secs(1))));
    assert!(authority.is_expired(NOW + YEAR));
}

#[test]
fn a_pkcs11_uri_is_not_a_path() {
    assert_eq!(
        AuthorityKeySource::parse("/a/pkcs11:b"),
        AuthorityKeySource::File(PathBuf::from("/a/pkcs11:b"))
    );
    assert_eq!(
        AuthorityKeySource::parse("pkcs11:object=a"),
        AuthorityKeySource::Pkcs11("pkcs11:object=a".to_owned())
    );
}

#[test]
fn a_pin_in_a_uri_is_never_shown() {
    let dir = Dir::new();
    dir.write("", "");
    for uri in ["pkcs11:object=a?pin-value=hunter2", "pkcs11:pin-value=hunter2;object=a"] {
        let source = AuthorityKeySource::parse(uri);
        let error = CertificateAuthority::load(&dir.path("crt"), &source).unwrap_err();
        for text in [format!("{source:?}"), format!("{error:?}"), error.to_string()] {
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
    let source = AuthorityKeySource::parse("pkcs11:object=a?module-path=/m");
    assert_eq!(format!("{source:?}"), "pkcs11:object=a?module-path=/m");
}

/// A key with wrong signatures, as faulty hardware makes them.
#[derive(Debug)]
struct Faulty(PemKey);

impl Signer for Faulty {
    fn public_key(&self) -> &[u8] {
        self.0.public_key()
    }

    fn sign(&self, algorithm: SigningAlgorithm, message: &[u8]) -> Result<Vec<u8>, SignError> {
        let mut other = message.to_vec();
        other.reverse();
        self.0.sign(algorithm, &other)
    }
}

#[test]
fn a_wrong_signature_is_never_returned() {
    let key = PemKey::generate(KeyKind::Rsa2048).unwrap();
    let pem = ca_pem(&ca_params("faulty"), &key);
    let authority = CertificateAuthority::new(pem.as_bytes(), Box::new(Faulty(key))).unwrap();
    let request = request(&subject("alice", &[]), &AltNames::default());
    let usages = strings(&["client auth"]);
    let wanted =
        IssuanceRequest { request: &request, usages: &usages, expiration: None, signing_duration: YEAR };
    let prepared = authority.prepare(&CertificateProfile::client(), &wanted, NOW).unwrap();
    let error = authority.issue(prepared).unwrap_err();
    assert!(matches!(error, IssueError::Sign(SignError::Wrong(_))), "{error:?}");
}
