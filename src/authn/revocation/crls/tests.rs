//! Which CRLs are accepted, and what they revoke.

use portcullis_pki::x509::CaBundle;
use testkit::crl::CrlBuilder;
use testkit::pki::{Ca, Issued, NOT_AFTER, integer, usage};

use super::*;
use crate::authn::x509::UnverifiedChain;

const NOW: u64 = 1_800_000_000;
const AT: i64 = 1_800_000_000;

fn now() -> UnixTime {
    UnixTime::from_secs(NOW)
}

fn bundle(authorities: &[&Ca]) -> CaBundle {
    let pem: String = authorities.iter().map(|ca| ca.cert_pem()).collect();
    CaBundle::from_pem(pem.as_bytes()).unwrap()
}

fn load(files: &[(&str, Vec<u8>)], authorities: &[&Ca]) -> Result<ClientCrls, Vec<String>> {
    let files: Vec<_> = files.iter().map(|(name, content)| (PathBuf::from(name), content.clone())).collect();
    let bundle = bundle(authorities);
    let authorities: Vec<_> = bundle.certificates().iter().collect();
    let told = |error: CrlFileError| format!("{}: {error}", error.file.display());
    ClientCrls::load(&files, &[], &authorities, CrlFailurePolicy::Fail, now())
        .map_err(|errors| errors.into_iter().map(told).collect())
}

/// The error of one file with this content.
fn refusal(content: impl Into<Vec<u8>>, authorities: &[&Ca]) -> String {
    load(&[("f", content.into())], authorities).expect_err("refused").join("\n")
}

fn path(authorities: &[&Ca], issued: &Issued) -> CertificatePath {
    let chain = UnverifiedChain::new(issued.chain.clone());
    let verified = chain.verify(&bundle(authorities), now()).unwrap();
    (**verified.path()).clone()
}

#[test]
fn each_certificate_of_a_chain_is_checked() {
    let root = Ca::new("root");
    let middle = root.intermediate("middle");
    let [alice, bob] = ["alice", "bob"].map(|name| middle.leaf().cn(name).issue());
    let other = Ca::new("other");
    let carl = other.leaf().cn("carl").issue();
    let all = [&root, &middle, &other];
    let of = |crl: CrlBuilder| load(&[("f", crl.pem().into_bytes())], &all).unwrap();
    let revoked = |crls: &ClientCrls, authorities: &[&Ca], issued: &Issued| {
        crls.check(&path(authorities, issued), now()).err().map(|revoked| revoked.text().to_owned())
    };

    let of_leaf = of(CrlBuilder::new(&middle).revoke(alice.leaf()));
    let text = revoked(&of_leaf, &[&root], &alice).unwrap();
    assert!(text.ends_with("is revoked by the CRL of CN=middle"), "{text}");
    assert_eq!(revoked(&of_leaf, &[&root], &bob), None);
    assert_eq!(revoked(&of_leaf, &[&other], &carl), None, "there is no CRL of its CA");

    // An intermediate; also one that is a trust anchor itself.
    let of_middle = of(CrlBuilder::new(&root).revoke(&middle.cert));
    for authorities in [&[&root][..], &[&middle], &[&root, &middle]] {
        assert!(revoked(&of_middle, authorities, &alice).is_some());
    }
    assert_eq!(revoked(&of_middle, &[&other], &carl), None);
    // The same serial number of another issuer.
    let same = Ca::new("same");
    let dave = same.leaf().serial(&[7]).cn("dave").issue();
    assert_eq!(revoked(&of(CrlBuilder::new(&root).entry(integer(7), &[])), &[&same], &dave), None);
}

#[test]
fn every_reason_revokes() {
    let ca = Ca::new("ca");
    let alice = ca.leaf().cn("alice").issue();
    for reason in [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 99] {
        let crl = CrlBuilder::new(&ca).revoke_for(alice.leaf(), reason).der();
        let crls = load(&[("f", crl)], &[&ca]).unwrap();
        assert!(crls.check(&path(&[&ca], &alice), now()).is_err(), "{reason}");
    }
    let crl = CrlBuilder::new(&ca).revoke_for(alice.leaf(), 8).der();
    assert!(refusal(crl, &[&ca]).contains("removeFromCRL is for delta CRLs only"));
}

#[test]
fn a_stale_crl_fails_closed_unless_it_is_ignored() {
    let ca = Ca::new("ca");
    let [alice, bob] = ["alice", "bob"].map(|name| ca.leaf().cn(name).issue());
    let crl = CrlBuilder::new(&ca).revoke(alice.leaf()).times(AT - 100, Some(AT)).der();
    let bundle = bundle(&[&ca]);
    let authorities: Vec<_> = bundle.certificates().iter().collect();
    let files = [(PathBuf::from("f"), crl)];
    let cases = [
        (CrlFailurePolicy::Fail, 0, &bob, None),
        (CrlFailurePolicy::Fail, 1, &bob, Some(RevocationSource::StaleCrl)),
        (CrlFailurePolicy::Fail, 1, &alice, Some(RevocationSource::Crl)),
        (CrlFailurePolicy::Ignore, 1, &bob, None),
        (CrlFailurePolicy::Ignore, 1, &alice, Some(RevocationSource::Crl)),
    ];
    for (policy, later, issued, expected) in cases {
        let crls = ClientCrls::load(&files, &[], &authorities, policy, now()).unwrap();
        let at = now() + Duration::from_secs(later);
        let found = crls.check(&path(&[&ca], issued), at).err().map(|revoked| revoked.source());
        assert_eq!(found, expected, "{policy:?} {later}");
    }
}

#[test]
fn a_crl_must_be_of_a_configured_ca() {
    let ca = Ca::new("ca");
    let other = Ca::build("other").org("Example").issue_ca();
    let pem = |ca: &Ca| CrlBuilder::new(ca).pem();
    let error = refusal(pem(&ca) + &pem(&other), &[&ca]);
    assert_eq!(
        error,
        "f: CRL 2 (issuer O=Example,CN=other): the issuer is none of the client or front-proxy CAs"
    );
    // The same name, another key.
    assert!(refusal(pem(&Ca::new("ca")), &[&ca]).contains("x509: ECDSA verification failure"));
    assert!(refusal(CrlBuilder::new(&ca).corrupt_signature().pem(), &[&ca]).contains("verification failure"));
    let weak = Ca::build("ca").key_usage(usage::CERT_SIGN).issue_ca();
    let error = refusal(pem(&weak), &[&weak]);
    assert!(error.contains("cRLSign: x509: invalid signature: parent certificate cannot sign"), "{error}");
    // One of two CAs of a name.
    assert!(load(&[("f", pem(&ca).into_bytes())], &[&Ca::new("ca"), &ca]).is_ok());
}

#[test]
fn times_are_checked_when_a_crl_is_loaded() {
    let ca = Ca::new("ca");
    let crl = |this_update: i64, next_update| CrlBuilder::new(&ca).times(this_update, next_update).der();
    assert!(
        load(&[("f", crl(AT + 299, Some(AT + 1000)))], &[&ca]).is_ok(),
        "the clock of the CA may be fast"
    );
    assert!(
        refusal(crl(AT + 301, Some(AT + 1000)), &[&ca])
            .contains("thisUpdate 2027-01-15T08:05:01Z is in the future")
    );
    assert!(refusal(crl(AT, None), &[&ca]).contains("no nextUpdate"));
    assert!(load(&[("f", crl(AT - 10, Some(AT - 5)))], &[&ca]).is_ok(), "a stale CRL is no error");
}

#[test]
fn of_two_crls_by_one_key_the_one_with_the_higher_number_counts() {
    let ca = Ca::new("ca");
    let alice = ca.leaf().cn("alice").issue();
    let old = CrlBuilder::new(&ca).number(Some(9)).der();
    let new = CrlBuilder::new(&ca).number(Some(10)).revoke(alice.leaf()).der();
    for files in [[("f", old.clone()), ("g", new.clone())], [("f", new.clone()), ("g", old.clone())]] {
        let crls = load(&files, &[&ca]).unwrap();
        assert_eq!(crls.lists().len(), 1);
        assert!(crls.check(&path(&[&ca], &alice), now()).is_err());
    }
    assert!(load(&[("f", new.clone()), ("g", new.clone())], &[&ca]).is_ok(), "the same CRL twice");
    for number in [Some(10), None] {
        let other = CrlBuilder::new(&ca).number(number).der();
        let error = load(&[("f", new.clone()), ("g", other)], &[&ca]).unwrap_err();
        assert_eq!(
            error,
            [
                "g: CRL 1 (issuer CN=ca): another CRL of this issuer has the same number, or one of them has none: remove one"
            ]
        );
    }
    // A CA with a new key may have a CRL of each key, and both count for all of its certificates.
    let renewed = Ca::new("ca");
    let bob = renewed.leaf().cn("bob").issue();
    let of_new_key = CrlBuilder::new(&renewed).revoke(alice.leaf()).der();
    let of_old_key = CrlBuilder::new(&ca).revoke(bob.leaf()).der();
    let crls = load(&[("f", of_new_key), ("g", of_old_key)], &[&ca, &renewed]).unwrap();
    assert_eq!(crls.lists().len(), 2);
    assert!(crls.check(&path(&[&ca, &renewed], &alice), now()).is_err());
    assert!(crls.check(&path(&[&ca, &renewed], &bob), now()).is_err());
}

#[test]
fn files_are_pem_or_der_and_nothing_in_them_is_passed_over() {
    let ca = Ca::new("ca");
    let pem = CrlBuilder::new(&ca).pem();
    assert!(load(&[("f", CrlBuilder::new(&ca).der())], &[&ca]).is_ok());
    assert!(load(&[("f", format!("a comment\n{pem}\nand another\n").into_bytes())], &[&ca]).is_ok());
    assert_eq!(refusal("", &[&ca]), "f: neither PEM (X509 CRL) nor DER");
    assert_eq!(refusal("garbage", &[&ca]), "f: neither PEM (X509 CRL) nor DER");
    assert_eq!(
        refusal(pem.clone() + &ca.cert_pem(), &[&ca]),
        "f: PEM block 2 is a \"CERTIFICATE\", not an X509 CRL"
    );
    // Go's reader passes over these.
    let damaged = pem.replacen("-----\nMI", "-----\n!!", 1);
    assert_ne!(damaged, pem);
    for content in [pem.clone() + &damaged, damaged.clone(), pem.replace("-----END X509 CRL-----\n", "")] {
        assert_eq!(refusal(content, &[&ca]), "f: a PEM block is damaged");
    }
    let trailing = [CrlBuilder::new(&ca).der(), b"\n".to_vec()].concat();
    assert_eq!(refusal(trailing, &[&ca]), "f: CRL 1: malformed CRL: trailing data");
    assert!(refusal([0x30, 0x03, 1, 2, 3], &[&ca]).starts_with("f: CRL 1: malformed CRL"));
    // All errors at once.
    let errors = load(&[("f", b"x".to_vec()), ("g", b"x".to_vec())], &[&ca]).unwrap_err();
    assert_eq!(errors.len(), 2);
}

#[test]
fn crls_that_do_not_list_all_certificates_are_refused() {
    let ca = Ca::new("ca");
    let with = |id: &str, content: &[u8]| CrlBuilder::new(&ca).extension(id, true, content.to_vec()).der();
    for (crl, problem) in [
        (with("2.5.29.27", &integer(1)), "a delta CRL lists only changes"),
        (with("2.5.29.28", &[0x30, 3, 0x84, 1, 0xff]), "an indirect CRL"),
        (with("2.5.29.28", &[0x30, 3, 0x81, 1, 0xff]), "covers only a part of the certificates"),
        (with("1.2.3.4", &[5, 0]), "a critical extension that is not supported: 1.2.3.4"),
    ] {
        let error = refusal(crl, &[&ca]);
        assert!(error.contains(problem), "{error}");
    }
}

/// The parts of an issuingDistributionPoint, the complete URLs, what the error says of it, and whether it may be complete.
type LimitCase<'a> = (&'a [&'a [u8]], &'a [&'a str], &'a str, bool);

#[test]
fn a_crl_with_a_url_is_complete_if_the_operator_says_so() {
    const URL: &[u8] = b"https://ca.example/1.0/crl";
    let ca = Ca::new("ca");
    let (alice, bob) = (ca.leaf().cn("alice").issue(), ca.leaf().cn("bob").issue());
    let element = |tag: u8, content: &[u8]| [&[tag, u8::try_from(content.len()).unwrap()], content].concat();
    // distributionPoint, fullName, uniformResourceIdentifier, as step-ca writes it.
    let name = element(0xa0, &element(0xa0, &element(0x86, URL)));
    let with = |parts: &[&[u8]]| {
        let point = element(0x30, &parts.concat());
        let crl = CrlBuilder::new(&ca).revoke(alice.leaf()).extension("2.5.29.28", true, point);
        vec![(PathBuf::from("f"), crl.der())]
    };
    let bundle = bundle(&[&ca]);
    let authorities: Vec<_> = bundle.certificates().iter().collect();
    let load = |parts: &[&[u8]], complete: &[&str]| {
        let complete: Vec<String> = complete.iter().map(|url| (*url).to_owned()).collect();
        ClientCrls::load(&with(parts), &complete, &authorities, CrlFailurePolicy::Fail, now())
    };
    let url = std::str::from_utf8(URL).unwrap();
    let crls = load(&[&name], &["https://other.example/crl", url]).unwrap();
    assert!(crls.check(&path(&[&ca], &alice), now()).is_err());
    assert!(crls.check(&path(&[&ca], &bob), now()).is_ok());
    assert!(load(&[&name, &[0x81, 1, 0], &[0x84, 1, 0]], &[url]).is_ok(), "flags that say false");
    let no_name: &[u8] = &[];
    let relative = element(0xa0, &element(0xa1, &[]));
    let cases: [LimitCase<'_>; 7] = [
        (&[&name], &[], "\"https://ca.example/1.0/crl\"", true),
        (&[&name], &["https://ca.example/1.0/CRL"], "\"https://ca.example/1.0/crl\"", true),
        (&[&name, &[0x81, 1, 0xff]], &[url], "onlyContainsUserCerts", false),
        (&[&name, &[0x82, 1, 0xff]], &[url], "onlyContainsCACerts", false),
        (&[&name, &[0x83, 2, 4, 0x40]], &[url], "onlySomeReasons", false),
        (&[no_name], &[url], "no name", false),
        (&[&relative], &[url], "a name relative to the issuer", false),
    ];
    for (parts, complete, read, may_be_complete) in cases {
        let errors = load(parts, complete).unwrap_err();
        let error = errors[0].to_string();
        assert!(error.contains("covers only a part") && error.contains(read), "{error}");
        assert_eq!(errors[0].may_be_complete, may_be_complete, "{error}");
    }
}

#[test]
fn a_crl_is_not_replaced_by_an_older_one() {
    let (ca, renewed) = (Ca::new("ca"), Ca::new("ca"));
    let both = [&ca, &renewed];
    let crl = |number, age| {
        let crl = CrlBuilder::new(&ca).number(number).times(AT - age, Some(AT + 1000)).der();
        load(&[("f", crl)], &both).unwrap()
    };
    // Numbers and ages in seconds of the new and of the old one.
    for (new, old, is_older) in [
        ((Some(9), 10), (Some(10), 20), true),
        ((Some(10), 10), (Some(10), 10), false),
        ((Some(10), 20), (Some(10), 10), true),
        ((Some(10), 10), (Some(10), 20), false),
        ((Some(11), 20), (Some(10), 10), false),
        ((None, 20), (Some(10), 10), true),
        ((None, 10), (None, 20), false),
        ((Some(1), 20), (None, 10), true),
    ] {
        let checked = crl(new.0, new.1).check_replaces(&crl(old.0, old.1));
        assert_eq!(checked.is_err(), is_older, "{new:?} {old:?}");
    }
    let error = crl(Some(9), 10).check_replaces(&crl(Some(10), 5)).unwrap_err().to_string();
    let expected = "f: the CRL of CN=ca (number 9, of 2027-01-15T07:59:50Z) is older than the one in use (number 10, of \
                    2027-01-15T07:59:55Z)";
    assert!(error.starts_with(expected), "{error}");
    // One by another key of the issuer, and no list at all, replace nothing.
    let of_new_key = load(&[("f", CrlBuilder::new(&renewed).number(Some(1)).der())], &both).unwrap();
    assert!(of_new_key.check_replaces(&crl(Some(10), 5)).is_ok());
    assert!(ClientCrls::default().check_replaces(&crl(Some(10), 5)).is_ok());
}

#[test]
fn serial_numbers_are_compared_as_numbers() {
    let ca = Ca::new("ca");
    for serial in [&[0][..], &[1], &[0x7f], &[0, 0x80], &[0, 0xff, 0xff], &[0x7f; 20]] {
        let alice = ca.leaf().cn("alice").serial(serial).issue();
        let crl = CrlBuilder::new(&ca).revoke(alice.leaf()).times(AT, Some(NOT_AFTER)).der();
        let crls = load(&[("f", crl)], &[&ca]).unwrap();
        assert!(crls.check(&path(&[&ca], &alice), now()).is_err(), "{serial:?}");
        let other = ca.leaf().cn("alice").serial(&[2]).issue();
        assert!(crls.check(&path(&[&ca], &other), now()).is_ok(), "{serial:?}");
    }
}
