//! Certificate requests: a parsed request is signed by its own key, another parser agrees, its names round-trip, and
//! certificates for it pass every lint.

use std::sync::OnceLock;
use std::time::Duration;

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer as _;

use portcullis_go::pem::encode_pem;
use portcullis_pki::issuance::authority::CertificateAuthority;
use portcullis_pki::issuance::ca::CaCertificate;
use portcullis_pki::issuance::issue::{IssuanceRequest, IssueError};
use portcullis_pki::issuance::profile::CertificateProfile;
use portcullis_pki::issuance::request::CertificateRequest;
use portcullis_pki::issuance::signer::{KeyKind, PemKey};
use portcullis_pki::issuance::validity::Validity;
use portcullis_pki::x509::name::{CertificateSubject, NameDecoder};

/// 2026-01-01T00:00:00Z.
const NOW: Duration = Duration::new(1_767_225_600, 0);

/// The input is one request, in DER.
pub fn csr(data: &[u8]) {
    let Ok(request) = CertificateRequest::from_der(data) else { return };
    // A modified octet within the signed part invalidates the signature.
    let mut other = data.to_vec();
    if let Some(octet) = other.get_mut(data.len() / 2) {
        *octet ^= 1;
    }
    if let Ok(changed) = CertificateRequest::from_der(&other) {
        assert_eq!(changed.subject(), request.subject(), "changed and still signed");
        assert_eq!(changed.public_key(), request.public_key(), "changed and still signed");
    }
    // Encoding and parsing a name again yields the same encoding.
    let written = request.subject().to_der();
    let again = written.as_ref().map(|der| CertificateSubject::parse(der, NameDecoder::Certificate));
    let Ok(Ok(again)) = again else { unreachable!("{again:?}") };
    assert_eq!(again.name.to_der(), written);
    // x509-parser finds the same names, if it accepts the request.
    if let Ok((_, parsed)) = X509CertificationRequest::from_der(data) {
        let names =
            parsed.requested_extensions().into_iter().flatten().find_map(|extension| match extension {
                ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
                _ => None,
            });
        let dns: Vec<&str> = names
            .into_iter()
            .flatten()
            .filter_map(|name| if let GeneralName::DNSName(name) = name { Some(*name) } else { None })
            .collect();
        assert_eq!(request.alt_names().dns, dns);
    }
    let Some(authority) = authority() else { return };
    let usages = ["client auth".to_owned()];
    let day = Duration::from_hours(24);
    let wanted =
        IssuanceRequest { request: &request, usages: &usages, expiration: None, signing_duration: day };
    match authority.prepare(&CertificateProfile::legacy_unknown(), &wanted, NOW) {
        Ok(_) => {}
        Err(IssueError::Lint(lint)) => unreachable!("{lint}"),
        Err(other) => unreachable!("{other}"),
    }
}

/// A CA with a fresh key.
fn authority() -> Option<&'static CertificateAuthority> {
    static AUTHORITY: OnceLock<Option<CertificateAuthority>> = OnceLock::new();
    let made = || {
        let key = PemKey::generate(KeyKind::EcdsaP256).ok()?;
        let validity = Validity { not_before: Duration::ZERO, not_after: 2 * NOW };
        let plan =
            CaCertificate { common_name: "fuzz", validity, path_length: 0, purpose: None, key_id: None };
        let certificate = encode_pem("CERTIFICATE", &plan.self_signed(&key).ok()?.der);
        CertificateAuthority::new(certificate.as_bytes(), Box::new(key)).ok()
    };
    AUTHORITY.get_or_init(made).as_ref()
}
