//! Property tests: no request gets a certificate beyond its profile.

use std::net::IpAddr;
use std::sync::LazyLock;
use std::time::Duration;

use proptest::prelude::*;
use rustls_pki_types::CertificateDer;

use crate::issuance::authority::CertificateAuthority;
use crate::issuance::issue::IssuanceRequest;
use crate::issuance::profile::{CertificateProfile, CustomRules};
use crate::issuance::request::CertificateRequest;
use crate::issuance::signer::{KeyKind, PemKey};
use crate::issuance::testing::{
    NOW, authority_of, ca_params, date, element, raw_request, strings, subject as named,
};
use crate::issuance::usage::{CertificateUsage, CertificateUsages};
use crate::x509::certificate::Certificate;

/// The notAfter time of the CA, before that of many requests.
const END: Duration = Duration::from_secs(NOW.as_secs() + 30 * 86_400);

static AUTHORITY: LazyLock<CertificateAuthority> = LazyLock::new(|| {
    let mut params = ca_params("properties");
    params.not_after = date(END);
    authority_of(&params, KeyKind::EcdsaP256)
});
static KEY: LazyLock<PemKey> = LazyLock::new(|| PemKey::generate(KeyKind::Ed25519).unwrap());

fn custom() -> CertificateProfile {
    let rules = CustomRules {
        common_names: vec!["team-*".parse().unwrap()],
        organizations: vec!["*".parse().unwrap()],
        dns_names: vec!["*.example".parse().unwrap()],
        ip_ranges: vec!["10.0.0.0/8".parse().unwrap()],
        allowed_usages: [CertificateUsage::ClientAuth, CertificateUsage::DigitalSignature].into(),
        max_duration: Some(Duration::from_hours(48)),
        ..CustomRules::default()
    };
    CertificateProfile::custom(&"example.com/team".parse().unwrap(), rules)
}

/// Subjects: often with the attributes that profiles check, in any string type, well-formed or not.
fn subject() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![
        4 => prop::sample::select(vec!["system:nodes", "system:node:a", "team-a", "system:masters", "dev", ""])
            .prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..12),
    ];
    let kind = prop::sample::select(vec![3_u8, 3, 10, 10, 10, 5, 6, 11, 42]);
    let string = prop::sample::select(vec![0x0c_u8, 0x0c, 0x13, 0x16, 0x14, 0x1e, 0x1c, 4, 0x30]);
    let attribute = (kind, string, value).prop_map(|(kind, string, value)| {
        element(0x30, &[element(6, &[0x55, 4, kind]), element(string, &value)].concat())
    });
    let rdn = prop::collection::vec(attribute, 1..3).prop_map(|set| element(0x31, &set.concat()));
    let any = prop::collection::vec(rdn, 0..5).prop_map(|rdns| element(0x30, &rdns.concat()));
    let known = [named("system:node:a", &["system:nodes"]), named("team-a", &["dev", "ops"])];
    prop_oneof![3 => any, 2 => prop::sample::select(known.map(|name| name.to_der().unwrap()).to_vec())]
}

/// Requested extensions: names of every kind, the CA bit, usages, and random octets.
fn attributes() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![
        3 => prop::sample::select(vec!["a.example", "b", "spiffe://a/b", "HTTPS://h/a b", "10.0.0.1"])
            .prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 4..=4),
        1 => prop::collection::vec(any::<u8>(), 0..20),
    ];
    let name = (prop::sample::select(vec![0x82_u8, 0x82, 0x87, 0x81, 0x86, 0x88]), name)
        .prop_map(|(kind, name)| element(kind, &name));
    let names = prop::collection::vec(name, 0..4).prop_map(|names| element(0x30, &names.concat()));
    let extension = prop_oneof![
        3 => names.prop_map(|names| (17, names)),
        3 => Just((17, element(0x30, &element(0x82, b"a.example")))),
        1 => Just((19, vec![0x30, 3, 1, 1, 0xff])),
        1 => Just((15, vec![3, 2, 1, 6])),
        1 => Just((37, vec![0x30, 6, 6, 4, 0x55, 0x1d, 0x25, 0])),
        1 => (0..60_u8, prop::collection::vec(any::<u8>(), 0..20)),
    ];
    let extension = (extension, any::<bool>()).prop_map(|((oid, value), critical)| {
        let critical = if critical { element(1, &[0xff]) } else { Vec::new() };
        element(0x30, &[element(6, &[0x55, 0x1d, oid]), critical, element(4, &value)].concat())
    });
    prop::collection::vec(extension, 0..4).prop_map(|list| {
        let oid = element(6, &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 14]);
        element(0x30, &[oid, element(0x31, &element(0x30, &list.concat()))].concat())
    })
}

fn usages() -> impl Strategy<Value = Vec<String>> {
    let any: Vec<&str> = CertificateUsage::all().iter().map(|usage| usage.word()).chain(["x", ""]).collect();
    prop_oneof![
        3 => prop::sample::select(vec![
            vec!["client auth", "digital signature"],
            vec!["client auth", "digital signature", "key encipherment"],
            vec!["server auth", "digital signature"],
            vec!["client auth"],
        ]),
        2 => prop::collection::vec(prop::sample::select(any), 0..6),
    ]
    .prop_map(|words| strings(&words))
}

fn profiles() -> [CertificateProfile; 8] {
    [
        CertificateProfile::kube_apiserver_client(),
        CertificateProfile::kubelet_client(),
        CertificateProfile::kubelet_serving(),
        CertificateProfile::legacy_unknown(),
        CertificateProfile::client(),
        CertificateProfile::serving(),
        CertificateProfile::front_proxy(),
        custom(),
    ]
}

/// A second implementation of the profiles' rules, on the certificate.
fn within(profile: &CertificateProfile, certificate: &Certificate, asked: &[String]) -> bool {
    let name = &certificate.subject.name;
    let names = &certificate.extensions.names;
    let purposes = &certificate.extensions.extended_key_usage;
    let none_but = |words: &[&str]| asked.iter().all(|asked| words.contains(&asked.as_str()));
    let is_node = name.organization == ["system:nodes"] && name.common_name.starts_with("system:node:");
    let client = || none_but(&["client auth", "digital signature", "key encipherment"]);
    match profile.signer_name() {
        "kubernetes.io/kube-apiserver-client" => client() && purposes.client_auth,
        "kubernetes.io/kube-apiserver-client-kubelet" => {
            client() && purposes.client_auth && is_node && names.is_empty()
        }
        "kubernetes.io/kubelet-serving" => {
            none_but(&["server auth", "digital signature", "key encipherment"])
                && is_node
                && !(names.dns.is_empty() && names.ips.is_empty())
                && names.emails.is_empty()
                && names.uris.is_empty()
                && !purposes.client_auth
        }
        "client" | "front-proxy" => client() && purposes.client_auth && !name.common_name.is_empty(),
        "serving" => !(purposes.client_auth || names.dns.is_empty() && names.ips.is_empty()),
        "example.com/team" => {
            let in_ten = |octets: &Vec<u8>| matches!(octets.as_slice(), [10, ..]) && octets.len() == 4;
            none_but(&["client auth", "digital signature"])
                && (name.common_name.is_empty() || name.common_name.starts_with("team-"))
                && !name.organization.iter().any(|group| group == "system:masters")
                && name.country.is_empty()
                && name.serial_number.is_empty()
                && names.dns.iter().all(|name| name.ends_with(".example"))
                && names.ips.iter().all(in_ten)
                && names.emails.is_empty()
                && names.uris.is_empty()
                && certificate.not_after <= i64::try_from(NOW.as_secs()).unwrap() + 48 * 3600
        }
        _ => true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn no_request_gets_more_than_its_profile(
        subject in subject(),
        attributes in prop_oneof![Just(Vec::new()), attributes()],
        usages in usages(),
        expiration in prop::option::of(0_u64..100_000_000),
        signing_duration in 600_u64..100_000_000,
    ) {
        let Ok(request) = CertificateRequest::from_der(&raw_request(&subject, &attributes, &KEY)) else {
            return Ok(());
        };
        for profile in profiles() {
            let wanted = IssuanceRequest {
                request: &request,
                usages: &usages,
                expiration: expiration.map(Duration::from_secs),
                signing_duration: Duration::from_secs(signing_duration),
            };
            let Ok(prepared) = AUTHORITY.prepare(&profile, &wanted, NOW) else { continue };
            let issued = AUTHORITY.issue(prepared).unwrap();
            let certificate = Certificate::parse(CertificateDer::from(issued.der().to_vec())).unwrap();
            let extensions = &certificate.extensions;
            // Never a CA.
            prop_assert!(extensions.basic_constraints.is_some_and(|bits| !bits.is_ca));
            // Never longer than the CA.
            prop_assert!(certificate.not_after <= i64::try_from(END.as_secs()).unwrap());
            // Never a usage that was not requested.
            let asked = CertificateUsages::parse(&usages).unwrap();
            prop_assert_eq!(extensions.key_usage, asked.key_usage());
            prop_assert_eq!(extensions.extended_key_usage.client_auth, asked.as_slice().contains(&CertificateUsage::ClientAuth));
            prop_assert_eq!(extensions.extended_key_usage.any, asked.as_slice().contains(&CertificateUsage::Any));
            prop_assert!(profile.signer_name() == "kubernetes.io/legacy-unknown" || extensions.key_usage & (1 << 5) == 0);
            // Never beyond the profile.
            prop_assert!(within(&profile, &certificate, &usages), "{}: {certificate:?}", profile.signer_name());
            // The subject, names and key are those of the request.
            let name = &certificate.subject.name;
            let mut groups = request.subject().organization.clone();
            groups.sort_by_key(|group| (group.len(), group.clone()));
            let mut found = name.organization.clone();
            found.sort_by_key(|group| (group.len(), group.clone()));
            prop_assert_eq!(found, groups);
            prop_assert_eq!(&name.common_name, &request.subject().common_name);
            let names = request.alt_names();
            prop_assert_eq!(&extensions.names.dns, &names.dns);
            prop_assert_eq!(&extensions.names.emails, &names.emails);
            let ips: Vec<Vec<u8>> = names.ips.iter().map(|ip| match ip {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            }).collect();
            prop_assert_eq!(&extensions.names.ips, &ips);
            let uris: Vec<&String> = extensions.names.uris.iter().map(|(written, _)| written).collect();
            prop_assert_eq!(uris, names.uris.iter().collect::<Vec<_>>());
            prop_assert_eq!(&certificate.spki, request.public_key().spki());
        }
    }

    #[test]
    fn random_octets_are_rejected_without_a_panic(octets in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(CertificateRequest::from_der(&octets).is_err());
        prop_assert!(CertificateRequest::from_pem(&octets).is_err());
    }
}

/// The generators above reach both outcomes of every profile.
#[test]
fn the_generators_reach_both_outcomes() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut issued = std::collections::BTreeMap::new();
    for _ in 0..1500 {
        let subject = subject().new_tree(&mut runner).unwrap().current();
        let attributes = prop_oneof![Just(Vec::new()), attributes()].new_tree(&mut runner).unwrap().current();
        let usages = usages().new_tree(&mut runner).unwrap().current();
        let Ok(request) = CertificateRequest::from_der(&raw_request(&subject, &attributes, &KEY)) else {
            continue;
        };
        let day = Duration::from_hours(24);
        let wanted =
            IssuanceRequest { request: &request, usages: &usages, expiration: None, signing_duration: day };
        for profile in profiles() {
            let outcome = AUTHORITY.prepare(&profile, &wanted, NOW).is_ok();
            *issued.entry((profile.signer_name().to_owned(), outcome)).or_insert(0) += 1;
        }
    }
    for profile in profiles() {
        for outcome in [true, false] {
            let count = issued.get(&(profile.signer_name().to_owned(), outcome)).copied().unwrap_or(0);
            assert!(count > 3 || profile.signer_name() == "kubernetes.io/legacy-unknown", "{issued:?}");
        }
    }
}
