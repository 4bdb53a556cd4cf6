//! The authenticator and the front-proxy verifier, after kube-apiserver's `x509_test.go`; memoized verdicts and their
//! duration. `tests/it/chains.rs` compares the verification rules with Go's.

use std::sync::Arc;
use std::time::Duration;

use portcullis_pki::x509::{BundleError, CaBundle};
use rustls_pki_types::CertificateDer;
use testkit::pki::{self, Builder, CN, Ca, Issued, SERVER_AUTH, SigAlg, bits, null, oid, seq, string, tlv};

use super::{
    ChainOwner, FrontProxyVerifier, PodIdentities, UnverifiedChain, VerdictMemo, X509Authenticator,
    parse_chain_for_handshake, parse_for_handshake,
};
use crate::authn::trace::AuthnTrace;
use crate::authn::{AuthnError, AuthnInput, AuthnVerdict, ConnInfo, RequestAuthenticator};
use crate::request::credentials::Credentials;

/// 2026-01-01T00:00:00Z.
const NOW: i64 = 1_767_225_600;

fn at(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap())
}

fn bundle(cas: &[&Ca]) -> Arc<CaBundle> {
    let pem: String = cas.iter().map(|ca| ca.cert_pem()).collect();
    Arc::new(CaBundle::from_pem(pem.as_bytes()).unwrap())
}

fn connection(chain: Vec<CertificateDer<'static>>) -> ConnInfo {
    ConnInfo::new(([127, 0, 0, 1], 1).into(), None, UnverifiedChain::new(chain))
}

/// Calls `body` with a request over `conn`.
fn request<T>(conn: &ConnInfo, generation: u64, now: Duration, body: impl FnOnce(&AuthnInput<'_>) -> T) -> T {
    let (credentials, trace) = (Credentials::default(), AuthnTrace::default());
    let input = AuthnInput {
        conn,
        credentials: &credentials,
        path: "/",
        audiences: &[],
        generation,
        now,
        trace: &trace,
    };
    body(&input)
}

fn authenticate(roots: &[&Ca], chain: Vec<CertificateDer<'static>>, now: i64) -> AuthnVerdict {
    let authenticator = X509Authenticator::new(bundle(roots), PodIdentities::Ignored);
    assert_eq!(authenticator.name(), "x509");
    request(&connection(chain), 1, at(now), |input| {
        futures_util::FutureExt::now_or_never(authenticator.authenticate(input))
    })
    .expect("verification does not wait")
}

#[test]
fn the_subject_is_the_user() {
    let root = Ca::new("root");
    let middle = root.intermediate("middle");
    let user = |issued: Issued| {
        let found = authenticate(&[&root], issued.chain, NOW).unwrap().expect("a user");
        assert_eq!(found.method, crate::authn::AuthnMethod::X509);
        assert!(found.audiences.is_empty());
        found.user
    };
    let alice = user(root.leaf().cn("alice").org("b").org("a").org("b").uid("42").issue());
    assert_eq!(alice.name, "alice");
    assert_eq!(alice.groups, ["b", "a", "b", "system:authenticated"]);
    assert_eq!(alice.uid.as_deref(), Some("42"));
    assert_eq!(alice.extra.len(), 1);
    let credential = &alice.extra["authentication.kubernetes.io/credential-id"];
    assert!(credential[0].starts_with("X509SHA256=") && credential[0].len() == 11 + 64, "{credential:?}");

    assert_eq!(user(middle.leaf().cn("bob").issue()).name, "bob");
    assert_eq!(user(root.leaf().cn("first").cn("last").issue()).name, "last");
    let jose = user(root.leaf().attr(CN, string::T61, b"jos\xe9").issue());
    assert_eq!((jose.name.as_str(), jose.uid.as_deref(), jose.groups.len()), ("josé", None, 1));
    assert_eq!(user(root.as_leaf()).name, "root", "a CA may present itself");
    assert_eq!(user(root.leaf().cn("v1").v1().issue()).name, "v1");
}

#[test]
fn a_certificate_without_a_name_is_no_opinion() {
    let root = Ca::new("root");
    assert_eq!(authenticate(&[&root], Vec::new(), NOW), Ok(None), "no certificate");
    assert_eq!(authenticate(&[&root], root.leaf().org("g").issue().chain, NOW), Ok(None), "no common name");
    assert_eq!(
        authenticate(&[&root], root.leaf().cn("a").cn("").issue().chain, NOW),
        Ok(None),
        "empty common name"
    );
    // The UID is not read then.
    assert_eq!(authenticate(&[&root], root.leaf().uid("").issue().chain, NOW), Ok(None));
}

#[test]
fn an_invalid_certificate_is_an_error_that_identifies_it() {
    type Change = fn(Builder) -> Builder;
    const CASES: &[(&str, Change, &str)] = &[
        (
            "expired",
            |leaf| leaf.expired(NOW),
            "SN=7, SKID=, AKID=AB:CD failed: x509: certificate has expired or is not yet valid: current time \
             2026-01-01T00:00:00Z is after 2025-12-31T23:00:00Z",
        ),
        (
            "future",
            |leaf| leaf.not_yet_valid(NOW),
            "x509: certificate has expired or is not yet valid: current time 2026-01-01T00:00:00Z is before \
             2026-01-01T01:00:00Z",
        ),
        ("server", |leaf| leaf.eku(&[SERVER_AUTH]), "x509: certificate specifies an incompatible key usage"),
        ("unknown critical", Builder::unknown_critical, "x509: unhandled critical extension"),
        (
            "forged",
            Builder::corrupt_signature,
            "x509: certificate signed by unknown authority (possibly because of \"x509: ECDSA verification failure\" \
             while trying to verify candidate authority certificate \"root\")",
        ),
        ("SHA-1", |leaf| leaf.sig(SigAlg::EcdsaSha1), "insecure algorithm ECDSA-SHA1"),
        ("empty uid", |leaf| leaf.uid(""), "UID cannot be an empty string"),
        ("two uids", |leaf| leaf.uid("a").uid("b"), "expected 1 UID, but found multiple: [a b]"),
        (
            "a group that does not parse",
            |leaf| leaf.attr(pki::O, string::UNIVERSAL, b"\0\0\0g"),
            "failed: x509: invalid RDNSequence: invalid attribute value",
        ),
    ];
    let root = Ca::build("root").skid(Some(&[0xab, 0xcd])).issue_ca();
    for (name, change, want) in CASES {
        let leaf = change(root.leaf().cn("u").serial(&[7])).issue();
        match authenticate(&[&root], leaf.chain, NOW) {
            Err(AuthnError::Invalid(text)) => assert!(text.contains(want), "{name}: {text}"),
            other => panic!("{name}: {other:?}"),
        }
    }
    let stranger = Ca::new("root").leaf().cn("u").issue();
    assert!(authenticate(&[&root], stranger.chain, NOW).is_err());
    let serial =
        Ca::new("x").leaf().cn("u").serial(&[0x72, 0xab, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]).issue();
    let Err(AuthnError::Invalid(text)) = authenticate(&[&root], serial.chain, NOW) else { panic!("refused") };
    assert!(text.starts_with("verifying certificate SN=2115255797078950591710, SKID=, AKID="), "{text}");
}

#[test]
fn expired_intermediates_and_roots_are_refused() {
    let root = Ca::new("root");
    let expired = root.build_intermediate("middle").expired(NOW).issue_ca();
    let leaf = expired.leaf().cn("u").issue();
    assert!(authenticate(&[&root], leaf.chain.clone(), NOW).is_err());
    assert!(authenticate(&[&root], leaf.chain, NOW - 7200).is_ok());
    let old_root = Ca::build("root").expired(NOW).issue_ca();
    assert!(
        authenticate(&[&old_root], old_root.leaf().cn("u").issue().chain, NOW).is_err(),
        "roots expire as well"
    );
}

#[test]
fn a_front_proxy_is_recognized_by_its_ca_and_name() {
    let (root, users) = (Ca::new("proxies"), Ca::new("users"));
    let verify = |chain: Vec<CertificateDer<'static>>, names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let verifier = FrontProxyVerifier::new(bundle(&[&root]), names, PodIdentities::Ignored);
        request(&connection(chain), 1, at(NOW), |input| verifier.verify(input).map(|chain| chain.is_some()))
    };
    let proxy = root.leaf().cn("proxy").issue().chain;
    assert_eq!(verify(Vec::new(), &[]), Ok(false));
    assert_eq!(verify(proxy.clone(), &[]), Ok(true));
    assert_eq!(verify(proxy.clone(), &["other", "proxy"]), Ok(true));
    assert_eq!(
        verify(proxy, &["other"]),
        Err(AuthnError::Invalid("x509: subject with cn=proxy is not in the allowed list".into()))
    );
    assert_eq!(
        verify(users.leaf().cn("proxy").issue().chain, &["proxy"]),
        // Unlike the authenticator's error, without the certificate's identifier.
        Err(AuthnError::Invalid("x509: certificate signed by unknown authority".into()))
    );
    assert!(verify(root.leaf().cn("proxy").expired(NOW).issue().chain, &[]).is_err());
    assert_eq!(
        verify(root.leaf().issue().chain, &[]),
        Ok(true),
        "an empty list of names allows a certificate without one"
    );
}

#[test]
fn a_verdict_lasts_until_something_changes() {
    let (root, other) = (Ca::new("root"), Ca::new("other"));
    let (trusted, foreign) = (bundle(&[&root]), bundle(&[&other]));
    let leaf = root.leaf().cn("u").validity(NOW - 100, NOW + 100).issue();
    let conn = connection(leaf.chain);
    let judge = |bundle: &CaBundle, generation, now| {
        request(&conn, generation, now, |input| input.conn.verdicts.verify(input, ChainOwner::User, bundle))
    };

    let first = judge(&trusted, 1, at(NOW)).unwrap();
    assert_eq!((first.valid_from(), first.valid_until()), (at(NOW - 100), at(NOW + 100)));
    assert!(Arc::ptr_eq(&first, &judge(&trusted, 1, at(NOW + 100)).unwrap()), "memoized to the last second");
    assert!(
        first.user().unwrap().unwrap().is_shared_with(&first.user().unwrap().unwrap()),
        "the user is memoized as well"
    );

    let refused = judge(&foreign, 1, at(NOW)).unwrap_err();
    assert!(
        Arc::ptr_eq(&refused, &judge(&foreign, 1, at(NOW)).unwrap_err()),
        "refusals are memoized as well"
    );
    assert!(Arc::ptr_eq(&first, &judge(&trusted, 1, at(NOW)).unwrap()), "each bundle has its own verdict");

    let second = judge(&trusted, 2, at(NOW)).unwrap();
    assert!(!Arc::ptr_eq(&first, &second), "another generation verifies again");

    let late = at(NOW + 100) + Duration::from_nanos(1);
    assert!(judge(&trusted, 2, late).unwrap_err().error.contains(" is after "));
    assert!(judge(&trusted, 2, at(NOW - 101)).unwrap_err().error.contains(" is before "));
    assert!(judge(&trusted, 2, at(NOW - 100)).is_ok(), "a corrected clock restores the verdict");
}

#[test]
fn a_refusal_ends_when_a_certificate_becomes_valid() {
    let root = Ca::new("root");
    let middle = root.build_intermediate("middle").validity(NOW + 50, NOW + 90).issue_ca();
    let conn = connection(middle.leaf().cn("u").issue().chain);
    let trusted = bundle(&[&root]);
    let judge = |now| {
        request(&conn, 1, now, |input| input.conn.verdicts.verify(input, ChainOwner::User, &trusted).is_ok())
    };
    for (seconds, good) in [(0, false), (49, false), (50, true), (90, true), (91, false), (89, true)] {
        assert_eq!(judge(at(NOW + seconds)), good, "{seconds}");
    }
}

#[test]
fn the_number_of_verdicts_is_bounded() {
    let root = Ca::new("root");
    let conn = connection(root.leaf().cn("u").issue().chain);
    for index in 0..40 {
        let trusted = bundle(&[&root, &Ca::new(&index.to_string())]);
        request(&conn, 1, at(NOW), |input| {
            assert!(input.conn.verdicts.verify(input, ChainOwner::User, &trusted).is_ok());
        });
    }
    assert_eq!(conn.verdicts.lock().len(), VerdictMemo::CAPACITY);
    request(&conn, 2, at(NOW), |input| {
        assert!(input.conn.verdicts.verify(input, ChainOwner::User, &bundle(&[&root])).is_ok());
    });
    assert_eq!(conn.verdicts.lock().len(), 1, "verdicts of an old generation are dropped");
}

#[test]
fn bundles_list_subjects_and_detect_overlaps() {
    let (a, b, c) = (Ca::new("a"), Ca::new("b"), Ca::new("c"));
    let (ab, bc) = (bundle(&[&a, &b, &a]), bundle(&[&b, &c]));
    let subjects: Vec<Vec<u8>> = ab.subjects().iter().map(|name| name.as_ref().to_vec()).collect();
    assert_eq!(subjects, [a.subject.clone(), b.subject.clone()]);
    assert!(ab.shares_certificate_with(&bc));
    assert!(!bundle(&[&a]).shares_certificate_with(&bc));
    let renewed = Ca::build("b").with_key(Arc::clone(&b.key)).issue_ca();
    assert!(!bundle(&[&renewed]).shares_certificate_with(&bc), "certificates count, not names or keys");

    assert_eq!(CaBundle::from_pem(b"").unwrap_err(), BundleError::NoCertificates);
    assert_eq!(
        BundleError::NoCertificates.to_string(),
        "data does not contain any valid RSA or ECDSA certificates"
    );
    assert!(matches!(
        CaBundle::from_pem(pki::pem("CERTIFICATE", b"x").as_bytes()).unwrap_err(),
        BundleError::Malformed(_)
    ));
}

#[test]
fn the_handshake_refuses_what_go_cannot_parse() {
    type Change = fn(Builder) -> Builder;
    const CASES: &[(&str, Change, bool)] = &[
        ("plain", |b| b, true),
        ("expired", |b| b.expired(NOW), true),
        ("version 1", Builder::v1, true),
        ("unknown critical extension", Builder::unknown_critical, true),
        ("negative serial", |b| b.serial(&[0xff]), false),
        ("version 4", |b| b.raw_version(Some(pki::integer(3))), false),
        ("two extensions alike", |b| b.extension("2.5.29.15", true, bits(&[0x80])), false),
        ("a name that does not parse", |b| b.attr(pki::OU, string::PRINTABLE, b"@"), false),
        ("unknown key", |b| b.raw_spki(seq(&[seq(&[oid("1.2.3")]), bits(b"k")])), false),
        ("a malformed extension", |b| b.extension("2.5.29.32", false, null()), false),
        ("a bad address", |b| b.san(7, &[1]), false),
    ];
    let root = Ca::new("root");
    let good = root.leaf().cn("u").issue();
    for (name, change, want) in CASES {
        let leaf = change(root.leaf().cn("u")).issue();
        assert_eq!(parse_for_handshake(leaf.leaf()).is_ok(), *want, "{name}");
        // An unknown key type is refused only at the leaf.
        let as_intermediate = parse_chain_for_handshake(good.leaf(), std::slice::from_ref(leaf.leaf()));
        assert_eq!(as_intermediate.is_ok(), *want || *name == "unknown key", "{name} as an intermediate");
    }
    assert_eq!(parse_for_handshake(good.leaf()).unwrap().as_ref(), good.private.spki());
    let huge = seq(&[tlv(2, &[0x7f; 1125]), pki::integer(65537)]);
    let huge = root.leaf().raw_spki(seq(&[seq(&[oid("1.2.840.113549.1.1.1"), null()]), bits(&huge)])).issue();
    assert!(parse_for_handshake(huge.leaf()).is_err());
    assert!(parse_chain_for_handshake(good.leaf(), &huge.chain).is_err());
}

#[test]
fn an_empty_chain_does_not_verify() {
    let root = Ca::new("root");
    assert!(UnverifiedChain::default().is_empty());
    assert!(UnverifiedChain::default().verify(&bundle(&[&root]), at(NOW)).is_err());
    assert_eq!(UnverifiedChain::default().leaf_not_after(), None);
    let chain = UnverifiedChain::new(root.leaf().validity(1, 2).issue().chain);
    assert_eq!(chain.leaf_not_after(), Some(2));
}

proptest::proptest! {
    /// Parsing never panics.
    #[test]
    fn arbitrary_bytes_are_refused(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
        let refused = parse_for_handshake(&CertificateDer::from(bytes));
        proptest::prop_assert!(refused.is_err());
    }
}
