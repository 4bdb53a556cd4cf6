//! For each lint, a certificate that breaks its rule only.

use std::time::Duration;

use x509_cert::der::Encode as _;
use x509_cert::ext::pkix::BasicConstraints;

use super::{ExpectedCertificate, check, rules};
use crate::issuance::alt_names::AltNames;
use crate::issuance::public_key::StrongPublicKey;
use crate::issuance::signer::{KeyKind, PemKey, Signer as _, SigningAlgorithm};
use crate::issuance::subject::Subject;
use crate::issuance::tbs::TbsFields;
use crate::issuance::testing::{NOW, YEAR, element, strings, subject};
use crate::issuance::usage::{CertificateUsage, CertificateUsages};
use crate::issuance::validity::{BACKDATE, Validity};
use crate::x509::der::{DerReader, tag};

/// The elements of a `TBSCertificate`, and of its extensions.
struct TbsParts {
    fields: Vec<Vec<u8>>,
    extensions: Vec<Vec<u8>>,
}

const SERIAL: usize = 1;
const ALGORITHM: usize = 2;
const ISSUER: usize = 3;
const VALIDITY: usize = 4;
const SUBJECT: usize = 5;
const SPKI: usize = 6;

const KEY_USAGE: usize = 0;
const PURPOSES: usize = 1;
const CONSTRAINTS: usize = 2;
const KEY_ID: usize = 3;
const NAMES: usize = 4;

fn elements(mut der: DerReader<'_>) -> Vec<Vec<u8>> {
    let mut elements = Vec::new();
    while let Some(element) = der.any() {
        elements.push(element.whole.to_vec());
    }
    elements
}

impl TbsParts {
    fn split(encoded: &[u8]) -> Self {
        let mut fields = elements(DerReader::new(encoded).enter(tag::SEQUENCE).unwrap());
        let list = fields.pop().unwrap();
        let mut list = DerReader::new(&list).enter(tag::explicit(3)).unwrap();
        Self { fields, extensions: elements(list.enter(tag::SEQUENCE).unwrap()) }
    }

    fn join(mut self) -> Vec<u8> {
        let list = element(tag::SEQUENCE, &self.extensions.concat());
        self.fields.push(element(tag::explicit(3), &list));
        element(tag::SEQUENCE, &self.fields.concat())
    }

    /// Replaces octets of an extension, which must contain them.
    fn patch(&mut self, extension: usize, from: &[u8], to: &[u8]) {
        let octets = &mut self.extensions[extension];
        let at = octets.windows(from.len()).position(|window| window == from).expect("the octets are there");
        octets.splice(at..at + from.len(), to.iter().copied());
        // An element this short has a header of two octets.
        *octets = element(tag::SEQUENCE, &octets[2..]);
    }
}

/// The values of a certificate that passes every lint.
struct Good {
    issuer: Vec<u8>,
    name: Subject,
    subject: Vec<u8>,
    key: StrongPublicKey,
    spki: Vec<u8>,
    alt_names: AltNames,
    usages: CertificateUsages,
    validity: Validity,
    key_id: Vec<u8>,
}

impl Good {
    fn new() -> Self {
        let spki = PemKey::generate(KeyKind::EcdsaP256).unwrap().public_key().to_vec();
        Self {
            issuer: subject("test-ca", &[]).to_der().unwrap(),
            name: subject("alice", &["dev"]),
            subject: subject("alice", &["dev"]).to_der().unwrap(),
            key: StrongPublicKey::from_spki(&spki).unwrap(),
            spki,
            alt_names: AltNames { dns: strings(&["a.example"]), ..AltNames::default() },
            usages: vec![CertificateUsage::DigitalSignature, CertificateUsage::ClientAuth].into(),
            validity: Validity { not_before: NOW, not_after: NOW + YEAR },
            key_id: vec![7; 20],
        }
    }

    fn encoded(&self) -> Vec<u8> {
        let fields = TbsFields {
            serial: &[0x7f; 16],
            algorithm: SigningAlgorithm::EcdsaSha256.identifier().unwrap(),
            issuer: &self.issuer,
            validity: self.validity,
            subject: &self.subject,
            spki: &self.spki,
            usages: &self.usages,
            basic_constraints: BasicConstraints { ca: false, path_len_constraint: None },
            key_id: &[],
            authority_key_id: &self.key_id,
            alt_names: &self.alt_names,
            pod_identity: None,
        };
        fields.to_der().unwrap()
    }

    fn expected(&self) -> ExpectedCertificate<'_> {
        ExpectedCertificate {
            algorithm: SigningAlgorithm::EcdsaSha256,
            issuer: &self.issuer,
            authority: Validity { not_before: NOW.saturating_sub(YEAR), not_after: NOW + YEAR },
            authority_key_id: &self.key_id,
            validity: self.validity,
            max_lifetime: None,
            backdate: BACKDATE,
            name: &self.name,
            subject: &self.subject,
            key: &self.key,
            spki: &self.spki,
            alt_names: &self.alt_names,
            usages: &self.usages,
            allowed: Some(self.usages.clone()),
            cert_sign: false,
            pod_identity: None,
        }
    }

    /// The lint that the certificate breaks after the change.
    fn broken(&self, change: impl FnOnce(&mut TbsParts)) -> Option<&'static str> {
        let mut parts = TbsParts::split(&self.encoded());
        change(&mut parts);
        check(&parts.join(), &self.expected()).err().map(|error| error.lint)
    }
}

#[test]
fn a_good_certificate_passes() {
    let good = Good::new();
    assert_eq!(good.broken(|_| {}), None);
}

type Change = fn(&mut TbsParts);

#[test]
fn every_lint_finds_a_violation_of_its_rule() {
    const CASES: &[(&str, &str, Change)] = &[
        ("version", "version 2", |parts| parts.fields[0] = vec![0xa0, 3, 2, 1, 1]),
        ("serial number", "zero", |parts| parts.fields[SERIAL] = vec![2, 1, 0]),
        ("serial number", "negative", |parts| parts.fields[SERIAL] = vec![2, 1, 0x80]),
        ("serial number", "21 octets", |parts| parts.fields[SERIAL] = element(2, &[1; 21])),
        ("signature algorithm", "P-384's", |parts| {
            let other = SigningAlgorithm::EcdsaSha384.identifier().unwrap();
            parts.fields[ALGORITHM] = other.to_der().unwrap();
        }),
        ("issuer", "another", |parts| parts.fields[ISSUER] = subject("other", &[]).to_der().unwrap()),
        ("validity", "a second earlier", |parts| {
            parts.fields[VALIDITY] = element(0x30, b"\x17\x0d251231235959Z\x17\x0d270101000000Z");
        }),
        ("validity", "a second more", |parts| {
            parts.fields[VALIDITY] = element(0x30, b"\x17\x0d260101000000Z\x17\x0d270101000001Z");
        }),
        ("validity", "four digits before 2050", |parts| {
            parts.fields[VALIDITY] = element(0x30, b"\x17\x0d260101000000Z\x18\x0f20270101000000Z");
        }),
        ("subject", "another", |parts| parts.fields[SUBJECT] = subject("root", &["dev"]).to_der().unwrap()),
        ("subject", "a group more", |parts| {
            parts.fields[SUBJECT] = subject("alice", &["dev", "system:masters"]).to_der().unwrap();
        }),
        ("public key", "another", |parts| {
            parts.fields[SPKI] = PemKey::generate(KeyKind::EcdsaP256).unwrap().public_key().to_vec();
        }),
        ("unique identifiers", "the subject's", |parts| parts.fields.push(vec![0x82, 2, 0, 1])),
        ("extensions", "an unknown one", |parts| {
            parts.extensions.push(element(0x30, &[6, 3, 0x2a, 3, 4, 4, 2, 5, 0]));
        }),
        ("extensions", "in another order", |parts| parts.extensions.swap(KEY_USAGE, PURPOSES)),
        ("extensions", "twice", |parts| {
            let names = parts.extensions[NAMES].clone();
            parts.extensions.push(names);
        }),
        ("basic constraints", "an authority", |parts| {
            parts.patch(CONSTRAINTS, &[4, 2, 0x30, 0], &[4, 5, 0x30, 3, 1, 1, 0xff]);
        }),
        ("basic constraints", "not critical", |parts| parts.patch(CONSTRAINTS, &[1, 1, 0xff], &[])),
        ("basic constraints", "a path length", |parts| {
            parts.patch(CONSTRAINTS, &[4, 2, 0x30, 0], &[4, 5, 0x30, 3, 2, 1, 0]);
        }),
        ("basic constraints", "absent", |parts| drop(parts.extensions.remove(CONSTRAINTS))),
        ("key usage", "another bit", |parts| parts.patch(KEY_USAGE, &[3, 2, 7, 0x80], &[3, 2, 6, 0xc0])),
        ("key usage", "not critical", |parts| parts.patch(KEY_USAGE, &[1, 1, 0xff], &[])),
        ("key usage", "absent", |parts| drop(parts.extensions.remove(KEY_USAGE))),
        ("extended key usage", "another purpose", |parts| {
            parts.patch(PURPOSES, &[5, 5, 7, 3, 2], &[5, 5, 7, 3, 1]);
        }),
        ("extended key usage", "critical", |parts| {
            parts.patch(PURPOSES, &[6, 3, 0x55, 0x1d, 37], &[6, 3, 0x55, 0x1d, 37, 1, 1, 0xff]);
        }),
        ("extended key usage", "absent", |parts| drop(parts.extensions.remove(PURPOSES))),
        ("authority key identifier", "another", |parts| parts.patch(KEY_ID, &[7, 7], &[8, 7])),
        ("authority key identifier", "absent", |parts| drop(parts.extensions.remove(KEY_ID))),
        ("subject alternative name", "another", |parts| parts.patch(NAMES, b"a.example", b"b.example")),
        ("subject alternative name", "another kind", |parts| parts.patch(NAMES, &[0x82, 9], &[0x81, 9])),
        ("subject alternative name", "critical beside a subject", |parts| {
            parts.patch(NAMES, &[6, 3, 0x55, 0x1d, 17], &[6, 3, 0x55, 0x1d, 17, 1, 1, 0xff]);
        }),
        ("subject alternative name", "absent", |parts| drop(parts.extensions.remove(NAMES))),
        ("pod identity", "not asked for", |parts| {
            let oid = [6, 9, 0x2b, 6, 1, 4, 1, 0x83, 0xc2, 0x53, 1];
            parts.extensions.push(element(0x30, &[&oid[..], &[4, 2, 0x30, 0]].concat()));
        }),
        ("encoding", "no certificate", |parts| parts.fields.truncate(3)),
    ];
    let good = Good::new();
    let mut wrong = Vec::new();
    for (lint, name, change) in CASES {
        let found = good.broken(change);
        if found != Some(*lint) {
            wrong.push(format!("{lint}, {name}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The lints that compare with the CA or the profile have tests of their own, below.
    let others = [
        "validity of the authority",
        "lifetime of the profile",
        "cert sign without an authority",
        "usages of the profile",
    ];
    for lint in rules::LINTS {
        let shown = CASES.iter().any(|(name, ..)| *name == lint.name) || others.contains(&lint.name);
        assert!(shown, "no case breaks {}", lint.name);
        assert!(!lint.citation.is_empty());
    }
}

#[test]
fn lints_enforce_the_limits_of_the_authority_and_the_profile() {
    let good = Good::new();
    let encoded = good.encoded();
    let lint = |expected: &ExpectedCertificate<'_>| check(&encoded, expected).err().map(|error| error.lint);
    let mut expected = good.expected();
    expected.authority.not_after = good.validity.not_after.saturating_sub(Duration::from_secs(1));
    assert_eq!(lint(&expected), Some("validity of the authority"));
    let mut expected = good.expected();
    expected.authority.not_before = good.validity.not_before + Duration::from_secs(1);
    assert_eq!(lint(&expected), Some("validity of the authority"));
    let mut expected = good.expected();
    expected.allowed = Some(vec![CertificateUsage::DigitalSignature].into());
    assert_eq!(lint(&expected), Some("usages of the profile"));
    expected.allowed = Some(vec![CertificateUsage::ClientAuth].into());
    assert_eq!(lint(&expected), Some("usages of the profile"));
    expected.allowed = None;
    assert_eq!(lint(&expected), None);
    // The lifetime is counted from the time of issuance, which is after the backdated notBefore.
    expected.max_lifetime = YEAR.checked_sub(BACKDATE);
    assert_eq!(lint(&expected), None);
    expected.max_lifetime = YEAR.checked_sub(BACKDATE + Duration::from_secs(1));
    assert_eq!(lint(&expected), Some("lifetime of the profile"));
    // A certificate without extended key usage is valid for every purpose.
    let purposeless = Good { usages: vec![CertificateUsage::DigitalSignature].into(), ..Good::new() };
    let mut expected = purposeless.expected();
    expected.allowed = Some(vec![CertificateUsage::DigitalSignature, CertificateUsage::ClientAuth].into());
    let error = check(&purposeless.encoded(), &expected).unwrap_err();
    assert_eq!(error.lint, "usages of the profile");
    expected.allowed = Some(vec![CertificateUsage::DigitalSignature, CertificateUsage::Any].into());
    assert_eq!(check(&purposeless.encoded(), &expected).map(drop), Ok(()));
    // A CA without a subject key identifier puts no authority key identifier into its certificates.
    let mut expected = good.expected();
    expected.authority_key_id = &[];
    assert_eq!(lint(&expected), Some("authority key identifier"));

    let signing = Good { usages: vec![CertificateUsage::CertSign].into(), ..Good::new() };
    let encoded = signing.encoded();
    let mut expected = signing.expected();
    let error = check(&encoded, &expected).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the certificate is not signed, as it would break cert sign without an authority (RFC 5280 §4.2.1.9): \
         keyCertSign is set"
    );
    (expected.cert_sign, expected.allowed) = (true, None);
    assert_eq!(check(&encoded, &expected).map(drop), Ok(()));
}

#[test]
fn names_without_a_subject_must_be_critical() {
    let good = Good { name: Subject::default(), subject: vec![0x30, 0], ..Good::new() };
    assert_eq!(good.broken(|_| {}), None);
    assert_eq!(good.broken(|parts| parts.patch(NAMES, &[1, 1, 0xff], &[])), Some("subject alternative name"));
}

#[test]
fn a_certificate_that_go_cannot_parse_is_not_signed() {
    let names = AltNames { uris: strings(&["https://a..b/"]), ..AltNames::default() };
    let good = Good { alt_names: names, ..Good::new() };
    assert_eq!(good.broken(|_| {}), Some("readable"));
}

#[test]
fn a_certificate_with_another_identity_than_the_checked_one_is_not_signed() {
    // Simulates an encoder that loses, adds or changes a value: its output is well-formed.
    for names in [
        subject("alice", &["dev", "ops"]),
        subject("alice", &[]),
        subject("Alice", &["dev"]),
        Subject { organizational_unit: strings(&["x"]), ..subject("alice", &["dev"]) },
    ] {
        let good = Good { subject: names.to_der().unwrap(), ..Good::new() };
        assert_eq!(good.broken(|_| {}), Some("identity"), "{names}");
    }
    let group = element(0x30, &[&[6, 3, 0x55, 4, 10][..], &element(0x0c, b"dev")].concat());
    let user = element(0x30, &[&[6, 3, 0x55, 4, 3][..], &element(0x0c, b"alice")].concat());
    let uid =
        element(0x30, &[&[6, 9, 0x2b, 6, 1, 4, 1, 0x83, 0xc2, 0x53, 2][..], &element(0x0c, b"1")].concat());
    let written =
        |sets: &[&[u8]]| element(0x30, &sets.iter().flat_map(|set| element(0x31, set)).collect::<Vec<u8>>());
    let good = Good { subject: written(&[&group, &user]), ..Good::new() };
    assert_eq!(good.broken(|_| {}), None);
    let good = Good { subject: written(&[&group, &user, &uid]), ..Good::new() };
    assert_eq!(good.broken(|_| {}), Some("identity"), "a uid");
    let spki = PemKey::generate(KeyKind::EcdsaP256).unwrap().public_key().to_vec();
    let good = Good { spki, ..Good::new() };
    assert_eq!(good.broken(|_| {}), Some("identity"), "another key");
}
