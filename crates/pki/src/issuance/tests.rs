//! End-to-end tests of issuance: other libraries parse and verify the certificates.

use std::net::IpAddr;
use std::time::Duration;

use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use x509_parser::prelude::FromDer as _;

use super::alt_names::AltNames;
use super::authority::CertificateAuthority;
use super::issue::{IssuanceRequest, IssueError};
use super::profile::CertificateProfile;
use super::request;
use super::signer::{KeyKind, PemKey};
use super::subject::Subject;
use super::testing::{
    KINDS, NOW, YEAR, authority, authority_of, ca_params, date, issue, openssl, request, strings, subject,
};

mod properties;

fn every_name() -> AltNames {
    AltNames {
        dns: strings(&["a.example", "*.b.example", "a.example"]),
        emails: strings(&["a@example.com"]),
        ips: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
        uris: strings(&["spiffe://cluster.local/ns/a/sa/b"]),
    }
}

#[test]
fn every_kind_of_authority_signs_every_kind_of_key() {
    for authority_kind in KINDS {
        let authority = authority(authority_kind);
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(path("ca.crt"), authority.certificate_pem()).unwrap();
        for kind in KINDS {
            let key = PemKey::generate(kind).unwrap();
            let request = request::build(&subject("alice", &["dev", "ops"]), &every_name(), &key).unwrap();
            let usages = ["digital signature", "client auth"];
            let issued =
                issue(&authority, &CertificateProfile::kube_apiserver_client(), &request, &usages).unwrap();
            std::fs::write(path("leaf.crt"), issued.pem()).unwrap();
            let at = NOW.as_secs().to_string();
            let verified = openssl(&[
                "verify",
                "-x509_strict",
                "-attime",
                &at,
                "-purpose",
                "sslclient",
                "-CAfile",
                &path("ca.crt"),
                &path("leaf.crt"),
            ]);
            assert!(verified.trim_end().ends_with(": OK"), "{authority_kind:?} {kind:?}: {verified}");
            let ca = CertificateDer::from_pem_slice(authority.certificate_pem().as_bytes()).unwrap();
            let anchor = webpki::anchor_from_trusted_cert(&ca).unwrap();
            let leaf = CertificateDer::from(issued.der().to_vec());
            webpki::EndEntityCert::try_from(&leaf)
                .unwrap()
                .verify_for_usage(
                    webpki::ALL_VERIFICATION_ALGS,
                    &[anchor],
                    &[],
                    rustls_pki_types::UnixTime::since_unix_epoch(NOW),
                    webpki::KeyUsage::client_auth(),
                    None,
                    None,
                )
                .unwrap_or_else(|error| panic!("{authority_kind:?} {kind:?}: {error}"));
        }
    }
}

#[test]
fn a_certificate_equals_that_of_kube_controller_manager() {
    let authority = authority(KeyKind::EcdsaP256);
    let request = request(&subject("alice", &["ops", "dev", "dev"]), &every_name());
    let usages = [
        "key encipherment",
        "server auth",
        "client auth",
        "signing",
        "s/mime",
        "email protection",
        "signing",
    ];
    let issued = issue(&authority, &CertificateProfile::legacy_unknown(), &request, &usages).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("leaf.crt");
    std::fs::write(&path, issued.pem()).unwrap();
    let text = openssl(&["x509", "-in", path.to_str().unwrap(), "-noout", "-text", "-nameopt", "RFC2253"]);
    let (_, extensions) = text.split_once("X509v3 extensions:").unwrap();
    let lines: Vec<&str> =
        extensions.lines().map(str::trim).take_while(|l| !l.starts_with("Signature")).collect();
    let (_, ca) = x509_parser::pem::parse_x509_pem(authority.certificate_pem().as_bytes()).unwrap();
    let ca = ca.parse_x509().unwrap();
    let id = ca.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        x509_parser::extensions::ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0),
        _ => None,
    });
    let id: Vec<String> = id.unwrap().iter().map(|octet| format!("{octet:02X}")).collect();
    assert_eq!(
        lines.join("\n").trim(),
        format!(
            "X509v3 Key Usage: critical\nDigital Signature, Key Encipherment\n\
             X509v3 Extended Key Usage:\n\
             TLS Web Server Authentication, TLS Web Client Authentication, E-mail Protection\n\
             X509v3 Basic Constraints: critical\nCA:FALSE\n\
             X509v3 Authority Key Identifier:\n{}\n\
             X509v3 Subject Alternative Name:\n\
             DNS:a.example, DNS:*.b.example, DNS:a.example, email:a@example.com, IP Address:192.0.2.1, \
             IP Address:2001:DB8:0:0:0:0:0:1, URI:spiffe://cluster.local/ns/a/sa/b",
            id.join(":")
        )
    );
    assert!(text.contains("Subject: CN=alice,O=ops+O=dev+O=dev"), "{text}");
    assert!(text.contains("Version: 3 (0x2)"), "{text}");
    assert!(text.contains("Not Before: Dec 31 23:55:00 2025 GMT"), "{text}");
    assert!(text.contains("Not After : Dec 31 23:55:00 2026 GMT"), "{text}");
    assert_eq!(issued.not_before(), NOW.saturating_sub(Duration::from_mins(5)));
    assert_eq!(issued.not_after(), (NOW + YEAR).saturating_sub(Duration::from_mins(5)));
    assert_eq!(issued.subject().common_name, "alice");
    let (_, leaf) = x509_parser::certificate::X509Certificate::from_der(issued.der()).unwrap();
    let serial = leaf.raw_serial_as_string().replace(':', "");
    assert_eq!(serial.strip_prefix("00").filter(|s| s.len() == 32).unwrap_or(&serial), issued.serial_hex());
    let other = issue(&authority, &CertificateProfile::legacy_unknown(), &request, &usages).unwrap();
    assert_ne!(other.serial_hex(), issued.serial_hex());
}

fn extension_of(der: &[u8], oid: &str) -> Option<(bool, Vec<u8>)> {
    let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(der).unwrap();
    let found = certificate.extensions().iter().find(|extension| extension.oid.to_id_string() == oid);
    found.map(|extension| (extension.critical, extension.value.to_vec()))
}

#[test]
fn alternative_names_are_critical_only_without_a_subject() {
    let authority = authority(KeyKind::EcdsaP256);
    let profile = CertificateProfile::legacy_unknown();
    // An empty CN is omitted; an empty O is encoded.
    let cases = [
        ("a subject", subject("alice", &[]), Some(false)),
        ("no subject", Subject::default(), Some(true)),
        ("an empty organization", subject("", &[""]), Some(false)),
    ];
    for (name, subject, critical) in cases {
        let issued = issue(&authority, &profile, &request(&subject, &every_name()), &["any"]).unwrap();
        assert_eq!(extension_of(issued.der(), "2.5.29.17").map(|(critical, _)| critical), critical, "{name}");
    }
    let issued =
        issue(&authority, &profile, &request(&Subject::default(), &AltNames::default()), &[]).unwrap();
    assert_eq!(extension_of(issued.der(), "2.5.29.17"), None);
    assert_eq!(extension_of(issued.der(), "2.5.29.15"), None, "no usage, no key usage");
    assert_eq!(extension_of(issued.der(), "2.5.29.37"), None);
    assert_eq!(extension_of(issued.der(), "2.5.29.19"), Some((true, vec![0x30, 0])));
}

#[test]
fn an_ipv4_mapped_address_becomes_ipv4() {
    let names = AltNames { ips: vec!["::ffff:192.0.2.1".parse::<IpAddr>().unwrap()], ..AltNames::default() };
    let request = request(&subject("a", &[]), &names);
    assert_eq!(request.alt_names().ips, ["192.0.2.1".parse::<IpAddr>().unwrap()]);
    let issued =
        issue(&authority(KeyKind::EcdsaP256), &CertificateProfile::serving(), &request, &["server auth"])
            .unwrap();
    let (_, value) = extension_of(issued.der(), "2.5.29.17").unwrap();
    assert_eq!(value, [0x30, 6, 0x87, 4, 192, 0, 2, 1]);
}

#[test]
fn an_authority_without_a_key_identifier_issues_certificates_without_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    openssl(&[
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "3650",
        "-subj",
        "/CN=plain",
        "-addext",
        "subjectKeyIdentifier=none",
        "-keyout",
        &path("key"),
        "-out",
        &path("crt"),
    ]);
    let (crt, key) = (std::fs::read(path("crt")).unwrap(), std::fs::read(path("key")).unwrap());
    let plain = CertificateAuthority::new(&crt, Box::new(PemKey::from_pem(&key).unwrap())).unwrap();
    let alice = request(&subject("alice", &[]), &AltNames::default());
    // The CA certificate by openssl is valid from now on.
    let usages = strings(&["client auth"]);
    let wanted =
        IssuanceRequest { request: &alice, usages: &usages, expiration: None, signing_duration: YEAR };
    let prepared = plain.prepare(&CertificateProfile::client(), &wanted, plain.not_before()).unwrap();
    let issued = plain.issue(prepared).unwrap();
    assert_eq!(extension_of(issued.der(), "2.5.29.35"), None);
    let issued =
        issue(&authority(KeyKind::EcdsaP256), &CertificateProfile::client(), &alice, &["client auth"])
            .unwrap();
    assert!(extension_of(issued.der(), "2.5.29.35").is_some());
    // A certificate with the name of its CA has no authority key identifier either.
    let mut params = ca_params("");
    params.distinguished_name = rcgen::DistinguishedName::new();
    let name = rcgen::DnValue::PrintableString("namesake".try_into().unwrap());
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let namesake = request(&subject("namesake", &[]), &AltNames::default());
    let own = authority_of(&params, KeyKind::EcdsaP256);
    let issued = issue(&own, &CertificateProfile::client(), &namesake, &["client auth"]).unwrap();
    assert_eq!(extension_of(issued.der(), "2.5.29.35"), None);
}

#[test]
fn an_expired_authority_is_accepted_and_signs_nothing() {
    let mut params = ca_params("ended");
    params.not_after = date(NOW.saturating_sub(Duration::from_mins(2)));
    let authority = authority_of(&params, KeyKind::EcdsaP256);
    assert!(authority.is_expired(NOW));
    let request = request(&subject("alice", &[]), &AltNames::default());
    let refused = issue(&authority, &CertificateProfile::client(), &request, &["client auth"]).unwrap_err();
    assert!(matches!(refused, IssueError::NotValid(_)), "{refused:?}");
    assert_eq!(
        refused.to_string(),
        "refusing to sign a certificate that expired in the past: NotAfter=2025-12-31 23:58:00 +0000 UTC"
    );
    params.not_after = date(NOW.saturating_sub(Duration::from_hours(1)));
    let authority = authority_of(&params, KeyKind::EcdsaP256);
    let refused = issue(&authority, &CertificateProfile::client(), &request, &["client auth"]).unwrap_err();
    assert_eq!(refused.to_string(), "the signer has expired: NotAfter=2025-12-31 23:00:00 +0000 UTC");
}

#[test]
fn a_lifetime_ends_with_that_of_the_authority() {
    let mut params = ca_params("short");
    params.not_after = date(NOW + Duration::from_hours(3));
    let authority = authority_of(&params, KeyKind::EcdsaP256);
    let request = request(&subject("alice", &[]), &AltNames::default());
    let issued = issue(&authority, &CertificateProfile::client(), &request, &["client auth"]).unwrap();
    assert_eq!(issued.not_after(), NOW + Duration::from_hours(3));
    assert_eq!(authority.not_after(), issued.not_after());
}

#[test]
fn only_the_authority_that_prepared_a_certificate_signs_it() {
    let (own, other) = (authority(KeyKind::EcdsaP256), authority(KeyKind::EcdsaP256));
    let request = request(&subject("alice", &[]), &AltNames::default());
    let usages = strings(&["client auth"]);
    let wanted =
        IssuanceRequest { request: &request, usages: &usages, expiration: None, signing_duration: YEAR };
    let prepared = || own.prepare(&CertificateProfile::client(), &wanted, NOW).unwrap();
    assert_eq!(other.issue(prepared()).unwrap_err(), IssueError::OtherAuthority);
    assert!(own.issue(prepared()).is_ok());
}

#[test]
fn unknown_usages_are_not_a_profile_violation() {
    let request = request(&subject("alice", &[]), &AltNames::default());
    let authority = authority(KeyKind::EcdsaP256);
    let refused =
        issue(&authority, &CertificateProfile::legacy_unknown(), &request, &["client auth", "x", "y\"z"])
            .unwrap_err();
    assert!(matches!(refused, IssueError::Usages(_)), "{refused:?}");
    assert_eq!(refused.to_string(), r#"unrecognized usage values: ["x" "y\"z"]"#);
}

/// The case, the CA, a DNS name, usages, and whether the limits of the CA certificate allow them.
type Case = (&'static str, CertificateAuthority, &'static str, &'static [&'static str], bool);

#[test]
fn a_certificate_beyond_the_limits_of_its_authority_is_not_signed() {
    use rcgen::{ExtendedKeyUsagePurpose, GeneralSubtree, NameConstraints};
    let limited = |purposes: Vec<ExtendedKeyUsagePurpose>, domain: Option<&str>| {
        let mut params = ca_params("limited");
        params.extended_key_usages = purposes;
        params.name_constraints = domain.map(|domain| NameConstraints {
            permitted_subtrees: vec![GeneralSubtree::DnsName(domain.to_owned())],
            excluded_subtrees: Vec::new(),
        });
        authority_of(&params, KeyKind::EcdsaP256)
    };
    let (client, server) = (ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth);
    let named = |name: &str| AltNames { dns: strings(&[name]), ..AltNames::default() };
    let cases: [Case; 9] = [
        ("no limit", limited(vec![], None), "a.test", &["server auth"], true),
        ("its purpose", limited(vec![client.clone()], None), "a.test", &["client auth"], true),
        ("another purpose", limited(vec![client.clone()], None), "a.test", &["server auth"], false),
        ("one of two", limited(vec![client.clone()], None), "a.test", &["client auth", "server auth"], false),
        (
            "both",
            limited(vec![client.clone(), server], None),
            "a.test",
            &["client auth", "server auth"],
            true,
        ),
        ("any", limited(vec![ExtendedKeyUsagePurpose::Any], None), "a.test", &["server auth"], true),
        ("no purpose", limited(vec![client], None), "a.test", &["signing"], true),
        ("a name within", limited(vec![], Some("test")), "a.test", &["server auth"], true),
        ("a name outside", limited(vec![], Some("example")), "a.test", &["server auth"], false),
    ];
    for (case, authority, name, usages, good) in cases {
        let request = request(&subject("a", &[]), &named(name));
        let issued = issue(&authority, &CertificateProfile::legacy_unknown(), &request, usages);
        match issued {
            Ok(_) => assert!(good, "{case}"),
            Err(IssueError::Limit(limit)) => assert!(!good, "{case}: {limit}"),
            Err(other) => panic!("{case}: {other}"),
        }
    }
}
