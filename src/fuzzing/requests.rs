//! Certificate requests: what is read was signed by its own key, another reader reads the same, it can be written
//! again, and no certificate for it breaks a lint.

use std::sync::OnceLock;
use std::time::Duration;

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer as _;

use crate::pki::issuance::authority::Authority;
use crate::pki::issuance::ca::CaCertificate;
use crate::pki::issuance::issue::{IssueError, Wanted};
use crate::pki::issuance::profile::Profile;
use crate::pki::issuance::request::{CertificateRequest, armour};
use crate::pki::issuance::signer::{KeyKind, PemKey};
use crate::pki::issuance::validity::Validity;
use crate::pki::x509::name::{Reader, Subject};

/// 2026-01-01T00:00:00Z.
const NOW: Duration = Duration::new(1_767_225_600, 0);

/// The input is one request, in DER.
pub fn csr(data: &[u8]) {
    let Ok(request) = CertificateRequest::from_der(data) else { return };
    // What a key has not signed is not read: with another octet in it, it is no request any more.
    let mut other = data.to_vec();
    if let Some(octet) = other.get_mut(data.len() / 2) {
        *octet ^= 1;
    }
    if let Ok(changed) = CertificateRequest::from_der(&other) {
        assert_eq!(changed.subject(), request.subject(), "changed and still signed");
        assert_eq!(changed.public_key(), request.public_key(), "changed and still signed");
    }
    // A name that was written again is written the same the next time.
    let written = request.subject().to_der();
    let again = written.as_ref().map(|der| Subject::parse(der, Reader::Certificate));
    let Ok(Ok(again)) = again else { unreachable!("{again:?}") };
    assert_eq!(again.name.to_der(), written);
    // Another reader finds the same names, if it reads the request at all.
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
    let wanted = Wanted { request: &request, usages: &usages, expiration: None, signing_duration: day };
    match authority.prepare(&Profile::legacy_unknown(), &wanted, NOW) {
        Ok(_) => {}
        Err(IssueError::Lint(lint)) => unreachable!("{lint}"),
        Err(other) => unreachable!("{other}"),
    }
}

/// An authority that nobody else has.
fn authority() -> Option<&'static Authority> {
    static AUTHORITY: OnceLock<Option<Authority>> = OnceLock::new();
    let made = || {
        let key = PemKey::generate(KeyKind::EcdsaP256).ok()?;
        let validity = Validity { not_before: Duration::ZERO, not_after: 2 * NOW };
        let plan =
            CaCertificate { common_name: "fuzz", validity, path_length: 0, purpose: None, key_id: None };
        let certificate = armour("CERTIFICATE", &plan.self_signed(&key).ok()?.der);
        Authority::new(certificate.as_bytes(), Box::new(key)).ok()
    };
    AUTHORITY.get_or_init(made).as_ref()
}
