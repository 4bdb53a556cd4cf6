//! Servers that are refused, and those that only Go's rules accept. `tests/it/chains` compares thousands with Go.

use std::time::Duration;

use testkit::pki::{ANY_EKU, Builder, CLIENT_AUTH, Ca, Issued, KeyKind, SERVER_AUTH, SigAlg};

use super::*;

const NOW: i64 = 1_767_225_600;

fn pool(cas: &[&Ca]) -> CaBundle {
    let parse = |ca: &&Ca| Certificate::parse(ca.cert.clone()).unwrap();
    CaBundle::of(cas.iter().map(parse))
}

fn verdict_at(pool: &CaBundle, server: &Issued, host: &str, now: Duration) -> Result<(), ServerCertError> {
    verify_server(pool, &server.chain, host, now)
}

fn verdict(pool: &CaBundle, server: &Issued, host: &str) -> Result<(), ServerCertError> {
    verdict_at(pool, server, host, Duration::from_secs(NOW.unsigned_abs()))
}

fn leaf(ca: &Ca) -> Builder {
    ca.leaf().eku(&[SERVER_AUTH]).san_dns("a.test")
}

#[test]
fn a_server_is_refused_for_each_fault_with_its_fix() {
    let (root, other) = (Ca::new("root"), Ca::new("other"));
    let limited = Ca::build("limited").eku(&[CLIENT_AUTH]).issue_ca();
    let elsewhere = Ca::build("elsewhere").name_constraints(&[(2, b"b.test")], &[]).issue_ca();
    let not_ca = Ca::build("no CA").basic_constraints(false, None).issue_ca();
    let trusted = pool(&[&root, &limited, &elsewhere, &not_ca]);
    let cases = [
        ("another host", leaf(&root), "b.test", "valid for a.test, not b.test", "tls-server-name"),
        ("an address", leaf(&root), "10.0.0.1", "doesn't contain any IP SANs", "tls-server-name"),
        (
            "a common name",
            root.leaf().eku(&[SERVER_AUTH]).cn("a.test"),
            "a.test",
            "legacy Common Name",
            "subject",
        ),
        ("a client's", root.leaf().san_dns("a.test"), "a.test", "incompatible key usage", "serverAuth"),
        ("a CA for clients", leaf(&limited), "a.test", "incompatible key usage", "serverAuth"),
        ("expired", leaf(&root).expired(NOW), "a.test", "has expired", "renew"),
        ("not yet valid", leaf(&root).not_yet_valid(NOW), "a.test", "not yet valid", "clocks"),
        ("another CA", leaf(&other), "a.test", "unknown authority", "add the CA"),
        ("a broken signature", leaf(&root).corrupt_signature(), "a.test", "unknown authority", "add the CA"),
        ("SHA-1", leaf(&root).sig(SigAlg::EcdsaSha1), "a.test", "insecure algorithm", "add the CA"),
        ("constraints", leaf(&elsewhere), "a.test", "not authorized to sign for this name", "constraints"),
        ("below a leaf", leaf(&not_ca), "a.test", "unknown authority", "add the CA"),
        ("critical", leaf(&root).unknown_critical(), "a.test", "unhandled critical", "issue the server"),
    ];
    for (name, certificate, host, text, fix) in cases {
        let error = verdict(&trusted, &certificate.issue(), host).unwrap_err();
        assert!(error.to_string().contains(text), "{name}: {error}");
        assert!(error.fix().contains(fix), "{name}: {}", error.fix());
    }
    let good = leaf(&root).issue();
    assert_eq!(verdict(&trusted, &good, "a.test"), Ok(()));
    assert!(verdict(&CaBundle::of([]), &good, "a.test").is_err(), "an empty pool trusts nothing");
    assert!(verify_server(&trusted, [], "a.test", Duration::from_secs(NOW.unsigned_abs())).is_err());
}

#[test]
fn a_certificate_in_the_pool_is_trusted_also_if_it_is_a_ca() {
    let named = || Ca::build("own").san_dns("a.test");
    let other = Ca::new("other");
    for (name, own, expected) in [
        ("a CA, as of openssl req -x509", named(), true),
        ("no CA", named().basic_constraints(false, None), true),
        ("for any purpose", named().eku(&[ANY_EKU]), true),
        ("an RSA key", named().key(KeyKind::Rsa2048), true),
        ("for clients", named().eku(&[CLIENT_AUTH]), false),
        ("expired", named().expired(NOW), false),
        ("without names", Ca::build("a.test"), false),
    ] {
        let own = own.issue_ca();
        assert_eq!(verdict(&pool(&[&own]), &own.as_leaf(), "a.test").is_ok(), expected, "{name}");
        assert!(verdict(&pool(&[&other]), &own.as_leaf(), "a.test").is_err(), "{name}: outside the pool");
        let namesake = named().issue_ca();
        assert!(verdict(&pool(&[&namesake]), &own.as_leaf(), "a.test").is_err(), "{name}: a namesake");
    }
}

#[test]
fn a_certificate_ends_at_the_instant_of_its_not_after() {
    let root = Ca::new("root");
    let server = leaf(&root).validity(NOW - 10, NOW).issue();
    let end = Duration::from_secs(NOW.unsigned_abs());
    let begin = Duration::from_secs((NOW - 10).unsigned_abs());
    for (now, expected) in [
        (end, true),
        (end + Duration::from_nanos(1), false),
        (begin, true),
        (begin.saturating_sub(Duration::from_nanos(1)), false),
    ] {
        assert_eq!(verdict_at(&pool(&[&root]), &server, "a.test", now).is_ok(), expected, "{now:?}");
    }
}
