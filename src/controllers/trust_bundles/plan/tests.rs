use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, date_time_ymd};

use super::*;

const PUBLISHER: &str = "kube-system/portcullis-controllers";
const SIGNER: &str = "example.com/service";
/// 2030-01-01T00:00:00Z.
const NOW: UnixTime = Duration::from_hours(525_960);
const DAY: Duration = Duration::from_hours(24);

/// The certificate of a new CA that is valid until the beginning of this year.
pub(in crate::controllers::trust_bundles) fn anchor(name: &str, year: i32) -> TrustAnchor {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(year, 1, 1));
    let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
    TrustAnchor::of(&Certificate::parse(certificate.der().clone()).unwrap())
}

pub(in crate::controllers::trust_bundles) fn signer(anchors: &[&TrustAnchor], days: u32) -> PublishedSigner {
    PublishedSigner {
        name: SIGNER.to_owned(),
        anchors: anchors.iter().copied().cloned().collect(),
        max_lifetime: Some(DAY * days),
    }
}

/// The bundle after a plan that writes one.
fn written(planned: (BundlePlan, Option<Duration>)) -> (TrustBundle, Option<Duration>) {
    match planned {
        (BundlePlan::Create(bundle) | BundlePlan::Replace(bundle), next) => (*bundle, next),
        (other, _) => panic!("{other:?}"),
    }
}

/// The names of the CAs in a bundle.
fn names(bundle: &TrustBundle) -> Vec<String> {
    let certificates = authorities(bundle.spec.trust_bundle.as_bytes()).into_iter();
    certificates.map(|der| Certificate::parse(der).unwrap().label()).collect()
}

fn created(signer: &PublishedSigner) -> TrustBundle {
    written(plan(None, Some(signer), PUBLISHER, NOW)).0
}

#[test]
fn a_bundle_is_created_once_and_then_kept() {
    let bundle = created(&signer(&[&anchor("a", 2040)], 90));
    assert_eq!(bundle.metadata.name.as_deref(), Some("example.com:service:portcullis"));
    assert_eq!((bundle.spec.signer_name.as_str(), names(&bundle)), (SIGNER, vec!["a".to_owned()]));
    assert!(bundle.is_managed());
    assert_eq!(bundle.annotation(super::PUBLISHER), Some(PUBLISHER));
    let same = anchor("a", 2040);
    let one = signer(&[&same], 90);
    let bundle = created(&one);
    assert_eq!(plan(Some(&bundle), Some(&one), PUBLISHER, NOW + DAY), (BundlePlan::Keep, None));
    // Labels and annotations of others stay.
    let mut labelled = bundle.clone();
    TrustBundle::set(&mut labelled.metadata.labels, "team", "a");
    assert_eq!(plan(Some(&labelled), Some(&one), PUBLISHER, NOW), (BundlePlan::Keep, None));
    // A change of the content is undone.
    let mut changed = bundle.clone();
    changed.spec.trust_bundle = String::new();
    assert_eq!(written(plan(Some(&changed), Some(&one), PUBLISHER, NOW)).0, bundle);
}

#[test]
fn a_former_ca_stays_until_the_last_certificate_signed_under_it_has_expired() {
    let (old, new) = (anchor("old", 2040), anchor("new", 2041));
    let bundle = created(&signer(&[&old], 90));
    let rotated = signer(&[&new], 90);
    let (bundle, next) = written(plan(Some(&bundle), Some(&rotated), PUBLISHER, NOW + DAY));
    assert_eq!(names(&bundle), ["new", "old"]);
    let needed = DAY * 90 + MARGIN;
    assert_eq!(next, Some(needed));
    let end = NOW + DAY + needed;
    assert_eq!(
        plan(Some(&bundle), Some(&rotated), PUBLISHER, end.saturating_sub(Duration::from_secs(1))),
        (BundlePlan::Keep, Some(Duration::from_secs(1)))
    );
    let (bundle, next) = written(plan(Some(&bundle), Some(&rotated), PUBLISHER, end));
    assert_eq!((names(&bundle), next), (vec!["new".to_owned()], None));
}

#[test]
fn the_longest_lifetime_since_a_ca_is_in_use_counts() {
    let (old, new) = (anchor("old", 2040), anchor("new", 2041));
    let bundle = created(&signer(&[&old], 90));
    // Shortened, with the same CA: the annotation does not get shorter.
    let shorter = signer(&[&old], 1);
    assert_eq!(plan(Some(&bundle), Some(&shorter), PUBLISHER, NOW), (BundlePlan::Keep, None));
    let (_, next) = written(plan(Some(&bundle), Some(&signer(&[&new], 1)), PUBLISHER, NOW));
    assert_eq!(next, Some(DAY * 90 + MARGIN));
    // Made longer: the annotation follows.
    let (bundle, _) = written(plan(Some(&bundle), Some(&signer(&[&old], 100)), PUBLISHER, NOW));
    let (_, next) = written(plan(Some(&bundle), Some(&signer(&[&new], 1)), PUBLISHER, NOW));
    assert_eq!(next, Some(DAY * 100 + MARGIN));
}

#[test]
fn no_ca_stays_longer_than_it_is_valid() {
    // A day before the end of the old CA.
    let (old, new) = (anchor("old", 2031), anchor("new", 2041));
    let bundle = created(&signer(&[&old], 365));
    let now = NOW + DAY * 364;
    let (_, next) = written(plan(Some(&bundle), Some(&signer(&[&new], 365)), PUBLISHER, now));
    assert_eq!(next, Some(DAY));
}

#[test]
fn a_rotation_that_is_reverted_shortens_nothing() {
    let (old, new) = (anchor("old", 2040), anchor("new", 2041));
    let (one, other) = (signer(&[&old], 90), signer(&[&new], 10));
    let bundle = created(&one);
    let (bundle, _) = written(plan(Some(&bundle), Some(&other), PUBLISHER, NOW));
    let (bundle, _) = written(plan(Some(&bundle), Some(&signer(&[&old], 10)), PUBLISHER, NOW + DAY));
    assert_eq!(names(&bundle), ["old", "new"]);
    let (_, next) = written(plan(Some(&bundle), Some(&other), PUBLISHER, NOW + DAY));
    assert_eq!(next, Some(DAY * 89 + MARGIN * 2), "what was signed with 90 days is valid as long as before");
}

#[test]
fn the_bundle_of_a_signer_that_is_gone_is_deleted_when_no_certificate_needs_it() {
    let bundle = created(&signer(&[&anchor("old", 2040)], 90));
    let (bundle, next) = written(plan(Some(&bundle), None, PUBLISHER, NOW));
    assert_eq!((names(&bundle), next), (vec!["old".to_owned()], Some(DAY * 90 + MARGIN)));
    let end = NOW + DAY * 90 + MARGIN;
    assert_eq!(plan(Some(&bundle), None, PUBLISHER, end), (BundlePlan::Delete, None));
    assert_eq!(plan(None, None, PUBLISHER, end), (BundlePlan::Keep, None));
}

#[test]
fn without_a_readable_annotation_each_ca_stays_until_it_expires() {
    let (old, new) = (anchor("old", 2031), anchor("new", 2041));
    let mut bundle = created(&signer(&[&old], 1));
    for text in ["{", "{\"x\": {\"untill\": 1}}", "[]"] {
        TrustBundle::set(&mut bundle.metadata.annotations, ANCHORS, text);
        let (written, next) = written(plan(Some(&bundle), Some(&signer(&[&new], 1)), PUBLISHER, NOW));
        assert_eq!((names(&written), next), (vec!["new".to_owned(), "old".to_owned()], Some(DAY * 365)));
    }
    // Another program signs, so the lifetime is not known.
    let serving = PublishedSigner { max_lifetime: None, ..signer(&[&old], 1) };
    let (_, next) = written(plan(Some(&created(&serving)), Some(&signer(&[&new], 1)), PUBLISHER, NOW));
    assert_eq!(next, Some(DAY * 365));
}

#[test]
fn an_unreadable_annotation_shortens_nothing_for_a_ca_that_is_in_use() {
    let (old, new) = (anchor("old", 2031), anchor("new", 2041));
    let mut bundle = created(&signer(&[&old], 90));
    for text in ["{", "{}"] {
        TrustBundle::set(&mut bundle.metadata.annotations, ANCHORS, text);
        // First the lifetime gets shorter, then the CA is replaced.
        let shorter = written(plan(Some(&bundle), Some(&signer(&[&old], 1)), PUBLISHER, NOW)).0;
        let (rotated, next) = written(plan(Some(&shorter), Some(&signer(&[&new], 1)), PUBLISHER, NOW + DAY));
        assert_eq!((names(&rotated), next), (vec!["new".to_owned(), "old".to_owned()], Some(DAY * 364)));
    }
}

#[test]
fn a_certificate_that_another_client_adds_is_removed() {
    let (own, other) = (anchor("own", 2040), anchor("other", 2040));
    let one = signer(&[&own], 90);
    let mut bundle = created(&one);
    bundle.spec.trust_bundle += &encode_pem("CERTIFICATE", &other.der);
    assert_eq!(names(&written(plan(Some(&bundle), Some(&one), PUBLISHER, NOW)).0), ["own"]);
}

#[test]
fn a_bundle_of_another_publisher_is_not_touched() {
    type Edit = fn(&mut TrustBundle);
    let one = signer(&[&anchor("own", 2040)], 90);
    let cases: [(&str, Edit, &str); 5] = [
        (
            "no label",
            |bundle| bundle.metadata.labels = None,
            "it has no label app.kubernetes.io/managed-by=portcullis",
        ),
        (
            "another label",
            |bundle| TrustBundle::set(&mut bundle.metadata.labels, "app.kubernetes.io/managed-by", "helm"),
            "it has no label app.kubernetes.io/managed-by=portcullis",
        ),
        (
            "no annotation",
            |bundle| bundle.metadata.annotations = None,
            "it has no annotation portcullis.dev/publisher",
        ),
        (
            "another lease",
            |bundle| TrustBundle::set(&mut bundle.metadata.annotations, super::PUBLISHER, "a/b"),
            "gateways with the lease a/b publish it, and this gateway has kube-system/portcullis-controllers",
        ),
        (
            "another signer",
            |bundle| bundle.spec.signer_name = "example.com/x".to_owned(),
            "its signer is \"example.com/x\"",
        ),
    ];
    for (name, edit, why) in cases {
        let mut bundle = created(&one);
        edit(&mut bundle);
        let refused = (BundlePlan::NotOurs(why.to_owned()), None);
        assert_eq!(plan(Some(&bundle), Some(&one), PUBLISHER, NOW), refused, "{name}");
        // Nor is it deleted when no certificate needs it.
        let far = NOW + DAY * 10_000;
        assert!(matches!(plan(Some(&bundle), None, PUBLISHER, far).0, BundlePlan::NotOurs(_)), "{name}");
    }
}

#[test]
fn what_does_not_fit_changes_nothing() {
    let mut large = anchor("large", 2040);
    large.der = vec![0; MAX_TRUST_BUNDLE];
    let planned = plan(None, Some(&signer(&[&large], 90)), PUBLISHER, NOW).0;
    assert!(matches!(planned, BundlePlan::TooLarge(bytes) if bytes > MAX_TRUST_BUNDLE), "{planned:?}");
}

#[test]
fn two_certificates_of_a_ca_with_one_key_are_two_anchors() {
    let (old, renewed) = (anchor("ca", 2035), anchor("ca", 2040));
    let bundle = created(&signer(&[&old, &renewed, &old], 90));
    assert_eq!(authorities(bundle.spec.trust_bundle.as_bytes()).len(), 2);
}
