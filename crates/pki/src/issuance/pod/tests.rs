//! What certificates of pods contain, and what the API server would say of their times.

use std::time::Duration;

use proptest::prelude::*;
use rustls_pki_types::CertificateDer;

use super::*;
use crate::issuance::alt_names::AltNames;
use crate::issuance::issue::IssuedCertificate;
use crate::issuance::request;
use crate::issuance::signer::{KeyKind, PemKey, Signer as _};
use crate::issuance::subject::Subject;
use crate::issuance::testing::{NOW, YEAR, authority, authority_of, ca_params, date, strings, subject};
use crate::issuance::validity::Validity;
use crate::x509::certificate::Certificate;

const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

fn profile() -> PodCertificateProfile {
    PodCertificateProfile {
        usages: [CertificateUsage::DigitalSignature, CertificateUsage::ClientAuth].into(),
        key_types: PodKeyType::ALL.into(),
        max_duration: 24 * HOUR,
        identity: None,
    }
}

fn stub(key: &PemKey) -> Vec<u8> {
    // Names that a request must not get.
    let names = AltNames { dns: strings(&["kubernetes.default.svc"]), ..AltNames::default() };
    request::build(&subject("system:admin", &["system:masters"]), &names, key).unwrap().der().to_vec()
}

fn issue(authority: &CertificateAuthority, key: &PodKey, names: &PodNames) -> IssuedCertificate {
    let validity = PodValidity::of(NOW, 24 * HOUR, authority.validity(), [Jitter(0); 2]).unwrap();
    authority.issue(authority.prepare_pod(&profile(), key, names, validity).unwrap()).unwrap()
}

#[test]
fn a_certificate_has_the_key_of_the_request_and_none_of_its_names() {
    let authority = authority(KeyKind::EcdsaP256);
    let uris = strings(&["spiffe://example.com/ns/a/sa/b"]);
    let names =
        PodNames::new(Some("web".to_owned()), strings(&["team-a"]), strings(&["web.a.svc"]), uris.clone())
            .unwrap();
    for kind in
        [KeyKind::EcdsaP256, KeyKind::EcdsaP384, KeyKind::EcdsaP521, KeyKind::Ed25519, KeyKind::Rsa3072]
    {
        let own = PemKey::generate(kind).unwrap();
        for key in [PodKey::from_stub_request(&stub(&own)), PodKey::from_pkix(own.public_key())] {
            let issued = issue(&authority, &key.unwrap(), &names);
            let read = Certificate::parse(CertificateDer::from(issued.der().to_vec())).unwrap();
            assert_eq!(read.spki, own.public_key(), "{kind:?}");
            let expected = Subject {
                common_name: "web".to_owned(),
                organization: strings(&["team-a"]),
                ..Subject::default()
            };
            assert_eq!(read.subject.name, expected);
            let text = x509_names(issued.der());
            assert_eq!(text, "DNSName(\"web.a.svc\") URI(\"spiffe://example.com/ns/a/sa/b\")");
        }
    }
}

/// The alternative names, as another parser reads them.
fn x509_names(der: &[u8]) -> String {
    use x509_parser::prelude::FromDer as _;
    let (_, read) = x509_parser::certificate::X509Certificate::from_der(der).unwrap();
    let names = read.subject_alternative_name().unwrap().map(|names| names.value.general_names.clone());
    names.unwrap_or_default().iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_type_of_a_key_has_the_name_that_volumes_use() {
    let cases = [
        (KeyKind::Ed25519, Some("ED25519")),
        (KeyKind::EcdsaP256, Some("ECDSAP256")),
        (KeyKind::EcdsaP384, Some("ECDSAP384")),
        (KeyKind::EcdsaP521, Some("ECDSAP521")),
        (KeyKind::Rsa2048, None),
        (KeyKind::Rsa3072, Some("RSA3072")),
        (KeyKind::Rsa4096, Some("RSA4096")),
    ];
    for (kind, expected) in cases {
        let key = PodKey::from_pkix(PemKey::generate(kind).unwrap().public_key()).unwrap();
        assert_eq!(key.key_type().map(PodKeyType::name), expected, "{kind:?}");
        if let Some(name) = expected {
            assert_eq!(name.parse(), Ok(key.key_type().unwrap()));
        }
    }
    assert!("ECDSA".parse::<PodKeyType>().is_err());
}

#[test]
fn a_stub_request_needs_a_signature_of_its_own_key() {
    let key = PemKey::generate(KeyKind::EcdsaP256).unwrap();
    let mut der = stub(&key);
    assert!(PodKey::from_stub_request(&der).is_ok());
    let last = der.len() - 1;
    der[last] ^= 1;
    assert!(PodKey::from_stub_request(&der).is_err());
    assert!(PodKey::from_stub_request(&[]).is_err());
    assert!(PodKey::from_pkix(&[0x30, 0]).is_err());
}

#[test]
fn names_that_kubernetes_reserves_or_parsers_dispute_are_refused() {
    type Names =
        (Option<&'static str>, &'static [&'static str], &'static [&'static str], &'static [&'static str]);
    let cases: [(Names, Option<&str>); 17] = [
        ((Some("web"), &["team-a"], &["web.a.svc"], &["spiffe://example.com/a"]), None),
        ((None, &[], &[], &["spiffe://example.com/a"]), None),
        ((None, &["team-a"], &[], &[]), None),
        ((None, &[], &[], &[]), Some("the certificate would have no name")),
        (
            (Some("system:admin"), &[], &[], &[]),
            Some("common name \"system:admin\" is not allowed: Kubernetes reserves"),
        ),
        ((Some("kubeadm:x"), &[], &[], &[]), Some("Kubernetes reserves")),
        ((Some("web"), &["team-a", "system:masters"], &[], &[]), Some("organization \"system:masters\"")),
        ((Some(""), &[], &[], &[]), Some("it is empty")),
        ((Some("web "), &[], &[], &[]), Some("whitespace")),
        ((None, &["a\u{200b}"], &[], &[]), Some("invisible")),
        ((None, &[], &["*.a.svc"], &[]), Some("it is a wildcard")),
        ((None, &[], &["a..svc"], &[]), Some("each label")),
        ((None, &[], &["10.0.0.1"], &[]), Some("it is an IP address")),
        ((None, &[], &[""], &[]), Some("DNS name \"\" is not allowed: it is empty")),
        ((None, &[], &[], &["spiffe://example.com/a/../b"]), Some("URI \"spiffe://example.com/a/../b\"")),
        ((None, &[], &[], &["spiffe://a b/c"]), Some("normal form")),
        ((None, &[], &[], &["/ns/a"]), Some("normal form")),
    ];
    for ((common_name, organizations, dns, uris), expected) in cases {
        let common_name = common_name.map(str::to_owned);
        let found = PodNames::new(common_name, strings(organizations), strings(dns), strings(uris));
        let problem = found.err().map(|error| error.to_string());
        match expected {
            None => assert_eq!(problem, None),
            Some(expected) => assert!(
                problem.as_ref().is_some_and(|text| text.contains(expected)),
                "{expected}: {problem:?}"
            ),
        }
    }
    let many = vec!["a".to_owned(); 65];
    let error = PodNames::new(None, Vec::new(), many, Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "DNS name: 65 names, more than 64");
    let together: Vec<String> =
        (10..19).map(|at| format!("spiffe://example.com/{at}{}", "a".repeat(2000))).collect();
    let error = PodNames::new(None, Vec::new(), Vec::new(), together).unwrap_err();
    assert_eq!(error.to_string(), "the names have 18207 bytes together, more than 16384");
    let long = format!("spiffe://example.com/{}", "a".repeat(3000));
    let error = PodNames::new(None, Vec::new(), Vec::new(), vec![long]).unwrap_err().to_string();
    assert!(error.contains("longer than 2048 bytes") && error.len() < 250, "{error}");
}

/// What the API server says of the times of a certificate, written from the documentation of the type.
// api: certificates/v1/types.go — notBefore, beginRefreshAt, notAfter, maxExpirationSeconds
fn objection(times: PodValidity, now: Duration, max_expiration: Duration) -> Option<&'static str> {
    let PodValidity { not_before, begin_refresh_at, not_after } = times;
    let lifetime = not_after.checked_sub(not_before)?;
    [
        (not_before + 5 * MINUTE <= now || now + 5 * MINUTE <= not_before, "notBefore is five minutes away"),
        (lifetime < HOUR, "shorter than an hour"),
        (lifetime > max_expiration, "longer than permitted"),
        (begin_refresh_at < not_before + 10 * MINUTE, "renewed too early"),
        (begin_refresh_at + 10 * MINUTE > not_after, "renewed too late"),
    ]
    .into_iter()
    .find_map(|(holds, text)| holds.then_some(text))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn the_api_server_accepts_the_times_of_every_certificate(
        max_seconds in 3600_u64..=7_862_400,
        millis in 0_u64..1000,
        begun in -400_i64..400,
        ends in 0_u64..30_000_000,
        jitters in any::<[u16; 2]>(),
    ) {
        let now = NOW + Duration::from_millis(millis);
        let max = Duration::from_secs(max_seconds);
        let at = |offset: i64| Duration::from_secs(NOW.as_secs().checked_add_signed(offset).unwrap());
        let authority = Validity { not_before: at(begun), not_after: NOW + Duration::from_secs(ends) };
        match PodValidity::of(now, max, authority, jitters.map(Jitter)) {
            Ok(times) => {
                prop_assert_eq!(objection(times, now, max), None, "{:?}", times);
                prop_assert!(times.not_before >= authority.not_before && times.not_after <= authority.not_after);
                prop_assert!([times.not_before, times.begin_refresh_at, times.not_after].iter().all(|time| time.subsec_nanos() == 0));
                // No more than a twentieth is left to chance.
                let lifetime = times.not_after.saturating_sub(times.not_before);
                let longest = max.min(authority.not_after.saturating_sub(times.not_before));
                prop_assert!(lifetime + longest / 20 + Duration::from_secs(1) >= longest, "{:?} of {:?}", lifetime, longest);
            }
            // Only if the CA does not last for an hour, or has not begun.
            Err(_) => prop_assert!(begun > 0 || ends < 3600),
        }
    }
}

#[test]
fn a_lifetime_is_what_request_and_authority_permit() {
    let from = |not_before, not_after| Validity { not_before, not_after };
    let long = from(NOW.saturating_sub(YEAR), NOW + YEAR);
    let times = |max, authority, jitters: [u16; 2]| {
        let times = PodValidity::of(NOW, max, authority, jitters.map(Jitter));
        times.map(|times| {
            let of = |time: Duration| {
                i64::try_from(time.as_secs()).unwrap() - i64::try_from(NOW.as_secs()).unwrap()
            };
            [of(times.not_before), of(times.begin_refresh_at), of(times.not_after)]
        })
    };
    assert_eq!(times(HOUR, long, [0, 0]), Ok([-120, 2040, 3480]));
    assert_eq!(times(HOUR, long, [u16::MAX, u16::MAX]), Ok([-120, 2399, 3480]), "an hour remains");
    assert_eq!(times(10 * HOUR, long, [0, 0]), Ok([-120, 21_480, 35_880]));
    let [_, _, end] = times(10 * HOUR, long, [u16::MAX, 0]).unwrap();
    assert!((34_080..34_090).contains(&end), "a twentieth less: {end}");
    let ends = from(NOW.saturating_sub(YEAR), NOW + 2 * HOUR);
    assert_eq!(times(10 * HOUR, ends, [0, 0]), Ok([-120, 4272, 7200]));
    let ends = from(NOW.saturating_sub(YEAR), NOW + 57 * MINUTE);
    assert_eq!(times(10 * HOUR, ends, [0, 0]), Err(PodValidityError::AuthorityEnds));
    let ended = times(10 * HOUR, from(Duration::ZERO, NOW.saturating_sub(HOUR)), [0, 0]).unwrap_err();
    assert!(ended.to_string().starts_with("the signer has expired"), "{ended}");
    let begins = times(HOUR, from(NOW.saturating_sub(MINUTE), NOW + YEAR), [0, 0]);
    assert_eq!(begins, Ok([-60, 2100, 3540]), "never before its authority");
}

#[test]
fn the_chain_of_an_intermediate_goes_on_with_it() {
    let root = authority(KeyKind::EcdsaP256);
    assert_eq!(root.chain_above(), "");
    let mut params = ca_params("intermediate");
    params.not_after = date(NOW + YEAR);
    let key = rcgen::KeyPair::generate().unwrap();
    let above = rcgen::KeyPair::generate().unwrap();
    let issuer = rcgen::Issuer::new(ca_params("root"), &above);
    let pem = params.signed_by(&key, &issuer).unwrap().pem();
    let signer = PemKey::from_pem(key.serialize_pem().as_bytes()).unwrap();
    let intermediate = CertificateAuthority::new(pem.as_bytes(), Box::new(signer)).unwrap();
    assert_eq!(intermediate.chain_above(), intermediate.certificate_pem());
}

#[test]
fn an_authority_for_another_purpose_is_not_fit() {
    let mut params = ca_params("servers");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let servers = authority_of(&params, KeyKind::EcdsaP256);
    let error = servers.is_fit_for_pods(&profile()).unwrap_err().to_string();
    assert!(error.starts_with("the CA certificate allows server auth, but not client auth"), "{error}");
    assert_eq!(authority(KeyKind::EcdsaP256).is_fit_for_pods(&profile()), Ok(()));
}

fn identity() -> PodIdentity {
    let [namespace, namespace_uid, service_account_name, service_account_uid] =
        ["a", "ns-uid", "web", "sa-uid"].map(str::to_owned);
    let [pod_name, pod_uid, node_name, node_uid] = ["web-0", "pod-uid", "n1", "node-uid"].map(str::to_owned);
    PodIdentity {
        namespace,
        namespace_uid,
        service_account_name,
        service_account_uid,
        pod_name,
        pod_uid,
        node_name,
        node_uid,
    }
}

#[test]
fn the_extension_is_written_if_the_profile_asks_for_it_and_only_then() {
    let authority = authority(KeyKind::EcdsaP256);
    let key = PodKey::from_stub_request(&stub(&PemKey::generate(KeyKind::EcdsaP256).unwrap())).unwrap();
    let plain = PodNames::new(None, Vec::new(), strings(&["a.example"]), Vec::new()).unwrap();
    let bound = PodNames::of_service_account(identity()).unwrap();
    let validity = PodValidity::of(NOW, 24 * HOUR, authority.validity(), [Jitter(0); 2]).unwrap();
    let issued = |mode, names: &PodNames| {
        let profile = PodCertificateProfile { identity: mode, ..profile() };
        authority.prepare_pod(&profile, &key, names, validity).and_then(|prepared| authority.issue(prepared))
    };
    for mode in [PodIdentityMode::Critical, PodIdentityMode::NonCritical] {
        let certificate = issued(Some(mode), &bound).unwrap();
        let read = Certificate::parse(CertificateDer::from(certificate.der().to_vec())).unwrap();
        assert_eq!(PodIdentity::of_certificate(&read), Ok(identity()), "{mode}");
        assert_eq!(read.extensions.unhandled_critical, mode.is_critical());
        assert_eq!(certificate.subject().common_name, "system:serviceaccount:a:web");
        assert!(issued(Some(mode), &plain).is_err(), "{mode}: names of a template");
        assert_eq!(mode.name().parse(), Ok(mode));
    }
    assert!(issued(None, &bound).is_err());
    let read = issued(None, &plain).unwrap();
    let read = Certificate::parse(CertificateDer::from(read.der().to_vec())).unwrap();
    assert_eq!(read.extensions.pod_identity, None);
    for part in ["", "a:b"] {
        let broken = PodIdentity { service_account_name: part.to_owned(), ..identity() };
        assert!(PodNames::of_service_account(broken).is_err(), "{part:?}");
    }
}
