//! Subject alternative names: the kinds that a certificate keeps, their order and encoding (Go: crypto/x509,
//! `marshalSANs`).

use testkit::csr::Csr;
use testkit::pki::{oid, seq, tlv};

use crate::case::{Case, case};

const GROUP: &str = "alt_names";
const KINDS: &str = "x509.CreateCertificate: names by kind, in the order of the request";
const URIS: &str = "net/url: a URI is written as Go formats the parsed URL";

pub(crate) fn cases() -> Vec<Case> {
    let named = |name, csr: &Csr| case(GROUP, name, KINDS, csr);
    let a = || Csr::new().cn("names");
    let other = tlv(0xa0, &[oid("1.3.6.1.4.1.311.20.2.3"), tlv(0xa0, &tlv(0x0c, b"upn@example"))].concat());
    let directory = tlv(0xa4, &seq(&[]));
    let mut cases = vec![
        named("one DNS name", &a().dns("a.example.org")),
        named("kinds change places, names of a kind do not", &{
            a().uri("https://u.example/1")
                .ip("192.0.2.1")
                .email("b@example.org")
                .dns("z.example")
                .ip("2001:db8::1")
                .email("a@example.org")
                .dns("a.example")
                .uri("spiffe://a/b")
        }),
        named("duplicates stay", &a().dns("a.example").dns("a.example").ip("192.0.2.1").ip("192.0.2.1")),
        named("the case of a DNS name stays", &a().dns("A.Example.ORG")),
        named(
            "DNS names that are none",
            &a().dns("a b").dns(".lead").dns("trail.").dns("_x._y").dns("*.*").dns(""),
        ),
        named("invalid e-mail addresses", &a().email("nobody").email("@").email("a b@c")),
        named(
            "addresses of both families",
            &a().ip("10.0.0.1").ip("::1").ip("fe80::1").ip("255.255.255.255"),
        ),
        named("an IPv4 address in IPv6", &a().ip("::ffff:192.0.2.1")),
        named("all zeros", &a().ip("0.0.0.0").ip("::")),
        named("a critical extension in the request", &a().dns("a.example").critical_sans()),
        named("other kinds of names vanish", &{
            a().raw_san(other.clone()).dns("a.example").raw_san(directory.clone()).san(8, &[0x2a, 3, 4])
        }),
        named("only other kinds of names", &a().raw_san(other).raw_san(directory)),
        named("an empty list of names", &a().extension("2.5.29.17", false, &seq(&[]))),
        named("critical, because the subject is empty", &Csr::new().ip("192.0.2.1")),
        named(
            "critical, because the subject becomes empty",
            &Csr::new().text("1.3.6.1.4.1.57683.2", "x").dns("a"),
        ),
        named("a hundred names", &(0..100).fold(a(), |csr, i| csr.dns(&format!("n{i}.example")))),
        named("a node's names", &a().dns("node-1").dns("node-1.example").ip("192.0.2.7").ip("2001:db8::7")),
    ];
    for (name, uri) in [
        ("a URI with a space", "HTTPS://H.example/a b"),
        ("escapes in a URI", "https://h.example/a%2fb%7Ec%41"),
        ("a URI with a query and a fragment", "https://h.example/p?q=a b&r=%20#frag ment"),
        ("a URI with a user", "https://user:pa%20ss@h.example:8443/"),
        ("a relative URI", "a/b/../c"),
        ("an opaque URI", "urn:uuid:0b1c2d3e-0000-4000-8000-000000000000"),
        ("an empty URI", ""),
        ("a SPIFFE identity", "spiffe://trust.example/ns/a/sa/b"),
        ("a URI with an IPv6 host", "https://[2001:db8::1]:443/x"),
        ("a URI with an empty query", "https://h.example/?"),
        ("a URI with letters to escape", "https://h.example/<a>\"{b}|\\^`"),
        ("a URI with a colon in its first segment", "./a:b"),
        ("a URI with two slashes", "//h.example//x"),
        ("a URI with an empty port", "https://h.example:/x"),
        ("a URI with only a fragment", "#f"),
    ] {
        cases.push(case(GROUP, name, URIS, &a().uri(uri)));
    }
    cases
}
