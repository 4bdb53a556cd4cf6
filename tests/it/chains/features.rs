//! Every unusual property of a certificate at every position in a chain, and random combinations of them.

use std::net::IpAddr;

use testkit::pki::{
    self, ANY_EKU, Builder, CLIENT_AUTH, CN, Ca, Issued, Key, KeyKind, O, OU, SERVER_AUTH, SigAlg, UID,
    attribute, bits, boolean, integer, null, octets, oid, seq, string, time, tlv, usage,
};
use testkit::random::Rng;

use super::{Case, NOW, Peer};

type Change = fn(Builder) -> Builder;

/// Changes to any certificate, leaf or authority.
fn changes() -> Vec<(&'static str, Change)> {
    vec![
        ("plain", |b| b),
        ("expired", |b| b.expired(NOW)),
        ("not yet valid", |b| b.not_yet_valid(NOW)),
        ("ends now", |b| b.validity(pki::NOT_BEFORE, NOW)),
        ("begins now", |b| b.validity(NOW, pki::NOT_AFTER)),
        ("ended a second ago", |b| b.validity(pki::NOT_BEFORE, NOW - 1)),
        ("ends before it begins", |b| b.validity(NOW + 10, NOW - 10)),
        ("ancient", |b| b.validity(-2_000_000_000, -1)),
        ("UTC time with offset", |b| b.raw_validity(tlv(0x17, b"200101000000+0100"), time(pki::NOT_AFTER))),
        ("UTC time without seconds", |b| b.raw_validity(tlv(0x17, b"2001010000Z"), time(pki::NOT_AFTER))),
        ("UTC time without zone", |b| b.raw_validity(tlv(0x17, b"200101000000"), time(pki::NOT_AFTER))),
        ("generalized time before 2050", |b| {
            b.raw_validity(tlv(0x18, b"20200101000000Z"), time(pki::NOT_AFTER))
        }),
        ("generalized time with fraction", |b| {
            b.raw_validity(tlv(0x18, b"20200101000000.5Z"), time(pki::NOT_AFTER))
        }),
        ("February 30th", |b| b.raw_validity(tlv(0x17, b"200230000000Z"), time(pki::NOT_AFTER))),
        ("year 9999", |b| b.raw_validity(time(pki::NOT_BEFORE), tlv(0x18, b"99991231235959Z"))),
        ("version 1", |b| b.v1()),
        ("version 1, with extensions", |b| b.raw_version(None)),
        ("version 2", |b| b.raw_version(Some(integer(1)))),
        ("version 4", |b| b.raw_version(Some(integer(3)))),
        ("version 0 written out", |b| b.raw_version(Some(integer(0)))),
        ("negative version", |b| b.raw_version(Some(tlv(2, &[0xff])))),
        ("serial zero", |b| b.serial(&[0])),
        ("serial negative", |b| b.serial(&[0x80])),
        ("serial padded", |b| b.serial(&[0, 1])),
        ("serial empty", |b| b.serial(&[])),
        ("serial long", |b| b.serial(&[0x7f; 40])),
        ("no EKU", Builder::no_eku),
        ("EKU client", |b| b.eku(&[CLIENT_AUTH])),
        ("EKU server", |b| b.eku(&[SERVER_AUTH])),
        ("EKU both", |b| b.eku(&[SERVER_AUTH, CLIENT_AUTH])),
        ("EKU any", |b| b.eku(&[ANY_EKU])),
        ("EKU server and any", |b| b.eku(&[SERVER_AUTH, ANY_EKU])),
        ("EKU unknown", |b| b.eku(&["1.2.3.4"])),
        ("EKU unknown and client", |b| b.eku(&["1.2.3.4", CLIENT_AUTH])),
        ("EKU empty", |b| b.eku(&[])),
        ("no key usage", Builder::no_key_usage),
        ("key usage empty", |b| b.key_usage(0)),
        ("key usage without certSign", |b| b.key_usage(usage::DIGITAL_SIGNATURE | usage::CRL_SIGN)),
        ("key usage certSign alone", |b| b.key_usage(usage::CERT_SIGN)),
        ("key usage all", |b| b.key_usage(0x1ff)),
        ("no basic constraints", Builder::no_basic_constraints),
        ("CA false", |b| b.basic_constraints(false, None)),
        ("CA true", |b| b.basic_constraints(true, None)),
        ("path length 0", |b| b.path_len(0)),
        ("path length 1", |b| b.path_len(1)),
        ("path length 7", |b| b.path_len(7)),
        ("path length huge", |b| b.path_len(u64::MAX)),
        ("path length without CA", |b| b.basic_constraints(false, Some(0))),
        ("CA default written out", |b| {
            b.no_basic_constraints().extension("2.5.29.19", true, seq(&[boolean(false)]))
        }),
        ("CA as a wrong boolean", |b| {
            b.no_basic_constraints().extension("2.5.29.19", true, seq(&[tlv(1, &[1])]))
        }),
        ("unknown critical", Builder::unknown_critical),
        ("unknown, not critical", |b| b.extension("1.2.3.4.5", false, null())),
        ("duplicate extension", |b| b.extension("2.5.29.15", true, bits(&[0x80]))),
        ("duplicate unknown extension", |b| {
            b.extension("1.2.3", false, null()).extension("1.2.3", false, null())
        }),
        ("AIA", |b| {
            b.extension(
                "1.3.6.1.5.5.7.1.1",
                false,
                seq(&[seq(&[oid("1.3.6.1.5.5.7.48.1"), tlv(0x86, b"http://a")])]),
            )
        }),
        ("AIA critical", |b| b.extension("1.3.6.1.5.5.7.1.1", true, seq(&[]))),
        ("AIA malformed", |b| b.extension("1.3.6.1.5.5.7.1.1", false, null())),
        ("CRL distribution point", |b| {
            let name = tlv(0xa0, &tlv(0xa0, &tlv(0x86, b"http://crl")));
            b.extension("2.5.29.31", false, seq(&[seq(&[name])]))
        }),
        ("CRL distribution point malformed", |b| {
            b.extension("2.5.29.31", false, seq(&[seq(&[tlv(0xa0, b"")])]))
        }),
        ("CRL distribution point critical", |b| b.extension("2.5.29.31", true, seq(&[seq(&[])]))),
        ("no SKID", |b| b.skid(None)),
        ("SKID empty", |b| b.skid(Some(b""))),
        ("SKID other", |b| b.skid(Some(b"other"))),
        ("SKID critical", |b| b.skid(None).extension("2.5.29.14", true, octets(b"x"))),
        ("no AKID", |b| b.akid(None)),
        ("AKID other", |b| b.akid(Some(b"other"))),
        ("AKID critical", |b| b.akid(None).extension("2.5.29.35", true, seq(&[tlv(0x80, b"x")]))),
        ("AKID without id", |b| b.akid(None).extension("2.5.29.35", false, seq(&[]))),
        ("AKID with issuer", |b| {
            b.akid(None).extension("2.5.29.35", false, seq(&[tlv(0xa1, b""), tlv(0x82, b"1")]))
        }),
        ("SAN", |b| {
            b.san_dns("a.example")
                .san_email("a@example")
                .san_uri("spiffe://td/x")
                .san_ip(IpAddr::from([10, 0, 0, 1]))
        }),
        ("SAN email high byte", |b| b.san(1, b"\xe9@x")),
        ("SAN dns odd", |b| b.san_dns("..")),
        ("SAN ip of five octets", |b| b.san(7, &[1, 2, 3, 4, 5])),
        ("SAN other name", |b| b.san(3, b"x")),
        ("SAN empty, critical", |b| b.extension("2.5.29.17", true, seq(&[]))),
        ("SAN other name, critical", |b| b.extension("2.5.29.17", true, seq(&[tlv(0xa0, b"")]))),
        ("SAN critical", |b| b.extension("2.5.29.17", true, seq(&[tlv(0x82, b"a.b")]))),
        ("wrong signature", Builder::corrupt_signature),
        ("signature label MD5", |b| b.sig(SigAlg::RsaMd5)),
        ("signature label SHA-1 RSA", |b| b.sig(SigAlg::RsaSha1)),
        ("signature label SHA-1 ECDSA", |b| b.sig(SigAlg::EcdsaSha1)),
        ("signature label DSA", |b| b.sig(SigAlg::DsaSha256)),
        ("signature label RSA", |b| b.sig(SigAlg::RsaSha256)),
        ("signature label PSS", |b| b.sig(SigAlg::PssSha256)),
        ("signature label ECDSA-384", |b| b.sig(SigAlg::EcdsaSha384)),
        ("signature label Ed25519", |b| b.sig(SigAlg::Ed25519)),
        ("signature label unknown", |b| b.sig(SigAlg::Unknown)),
        ("algorithms differ", |b| {
            b.raw_algorithms(SigAlg::EcdsaSha256.identifier(), SigAlg::EcdsaSha384.identifier())
        }),
        ("algorithm with parameters", |b| {
            let odd = seq(&[oid("1.2.840.10045.4.3.2"), null()]);
            b.raw_algorithms(odd.clone(), odd)
        }),
        ("RSA-2048 key", |b| b.key(KeyKind::Rsa2048)),
        ("P-384 key", |b| b.key(KeyKind::P384)),
        ("P-521 key", |b| b.key(KeyKind::P521)),
        ("Ed25519 key", |b| b.key(KeyKind::Ed25519)),
        ("key unknown", |b| b.raw_spki(seq(&[seq(&[oid("1.2.3.4")]), bits(b"key")]))),
        ("key X25519", |b| b.raw_spki(seq(&[seq(&[oid("1.3.101.110")]), bits(&[9; 32])]))),
        ("key Ed25519 short", |b| b.raw_spki(seq(&[seq(&[oid("1.3.101.112")]), bits(&[9; 31])]))),
        ("key Ed25519 with parameters", |b| {
            b.raw_spki(seq(&[seq(&[oid("1.3.101.112"), null()]), bits(&[9; 32])]))
        }),
        ("key RSA without NULL", |b| {
            let key = Key::pooled(KeyKind::Rsa2048, 0);
            b.raw_spki(seq(&[seq(&[oid("1.2.840.113549.1.1.1")]), bits(key.public())]))
        }),
        ("key RSA tiny", |b| {
            let key = seq(&[integer(3233), integer(17)]);
            b.raw_spki(seq(&[seq(&[oid("1.2.840.113549.1.1.1"), null()]), bits(&key)]))
        }),
        ("key RSA negative", |b| {
            let key = seq(&[tlv(2, &[0x80]), integer(17)]);
            b.raw_spki(seq(&[seq(&[oid("1.2.840.113549.1.1.1"), null()]), bits(&key)]))
        }),
        ("key RSA exponent zero", |b| {
            let key = seq(&[integer(3233), integer(0)]);
            b.raw_spki(seq(&[seq(&[oid("1.2.840.113549.1.1.1"), null()]), bits(&key)]))
        }),
        ("key RSA exponent of 8 octets", |b| {
            let key = seq(&[integer(3233), tlv(2, &[0x7f, 0, 0, 0, 0, 0, 0, 1])]);
            b.raw_spki(seq(&[seq(&[oid("1.2.840.113549.1.1.1"), null()]), bits(&key)]))
        }),
        ("key RSA exponent of 9 octets", |b| {
            let key = seq(&[integer(3233), tlv(2, &[1, 0, 0, 0, 0, 0, 0, 0, 1])]);
            b.raw_spki(seq(&[seq(&[oid("1.2.840.113549.1.1.1"), null()]), bits(&key)]))
        }),
        ("key RSA exponent huge", |b| {
            let key = seq(&[integer(3233), tlv(2, &[0, 0x80, 0, 0, 0, 0, 0, 0, 0])]);
            b.raw_spki(seq(&[seq(&[oid("1.2.840.113549.1.1.1"), null()]), bits(&key)]))
        }),
        ("key RSA of 9000 bits", |b| {
            let key = seq(&[tlv(2, &[0x7f; 1125]), integer(65537)]);
            b.raw_spki(seq(&[seq(&[oid("1.2.840.113549.1.1.1"), null()]), bits(&key)]))
        }),
        ("key off the curve", |b| {
            let point = [&[4][..], &[1; 64]].concat();
            b.raw_spki(seq(&[seq(&[oid("1.2.840.10045.2.1"), oid("1.2.840.10045.3.1.7")]), bits(&point)]))
        }),
        ("key compressed", |b| {
            let key = Key::pooled(KeyKind::P256, 0);
            let point = [&[2 + (key.public()[64] & 1)][..], &key.public()[1..33]].concat();
            b.raw_spki(seq(&[seq(&[oid("1.2.840.10045.2.1"), oid("1.2.840.10045.3.1.7")]), bits(&point)]))
        }),
        ("key on an unknown curve", |b| {
            b.raw_spki(seq(&[seq(&[oid("1.2.840.10045.2.1"), oid("1.3.132.0.10")]), bits(&[4; 65])]))
        }),
        ("key DSA", |b| {
            let parameters = seq(&[integer(23), integer(11), integer(2)]);
            b.raw_spki(seq(&[seq(&[oid("1.2.840.10040.4.1"), parameters]), bits(&integer(5))]))
        }),
        ("key DSA of zero", |b| {
            let parameters = seq(&[integer(23), integer(0), integer(2)]);
            b.raw_spki(seq(&[seq(&[oid("1.2.840.10040.4.1"), parameters]), bits(&integer(5))]))
        }),
        ("policy", |b| b.extension("2.5.29.32", true, seq(&[seq(&[oid("1.2.3")])]))),
        ("policy twice", |b| {
            b.extension("2.5.29.32", false, seq(&[seq(&[oid("1.2.3")]), seq(&[oid("1.2.3")])]))
        }),
        ("requires an explicit policy", |b| b.extension("2.5.29.36", true, seq(&[tlv(0x80, &[0])]))),
        ("inhibits any policy", |b| b.extension("2.5.29.54", true, integer(0))),
        ("freshest CRL, critical", |b| b.extension("2.5.29.46", true, seq(&[]))),
        ("name constraints", |b| b.name_constraints(&[(2, b"example")], &[])),
        ("name constraints empty", |b| b.name_constraints(&[], &[])),
        ("name constraints of directory names", |b| b.name_constraints(&[(4, b"")], &[])),
        ("name constraints bad mask", |b| b.name_constraints(&[(7, &[10, 0, 0, 0, 255, 0, 255, 0])], &[])),
    ]
}

/// Changes to the subject of a leaf.
fn subjects() -> Vec<(&'static str, Change)> {
    vec![
        ("no CN", |b| b.org("g")),
        ("nothing", |b| b),
        ("two CN", |b| b.cn("first").cn("last")),
        ("CN then empty CN", |b| b.cn("first").cn("")),
        ("groups repeated", |b| b.cn("u").org("b").org("a").org("b").org("")),
        ("multi-valued", |b| {
            let (cn, o) = (attribute(CN, string::UTF8, b"u"), attribute(O, string::UTF8, b"g"));
            b.rdn(&[o.clone(), cn, o])
        }),
        ("empty RDN", |b| b.rdn(&[]).cn("u")),
        ("uid", |b| b.cn("u").uid("42")),
        ("uid empty", |b| b.cn("u").uid("")),
        ("two uids", |b| b.cn("u").uid("a").uid("b")),
        ("uid without CN", |b| b.uid("42")),
        ("printable", |b| b.attr(CN, string::PRINTABLE, b"user").attr(O, string::PRINTABLE, b"g:h")),
        ("printable with *", |b| b.attr(CN, string::PRINTABLE, b"*&")),
        ("printable with @", |b| b.attr(CN, string::PRINTABLE, b"a@b")),
        ("printable with @ in OU", |b| b.cn("u").attr(OU, string::PRINTABLE, b"a@b")),
        ("ia5", |b| b.attr(CN, string::IA5, b"a@b")),
        ("ia5 high", |b| b.attr(CN, string::IA5, b"\xe9")),
        ("t61", |b| b.attr(CN, string::T61, b"jos\xe9")),
        ("bmp", |b| b.attr(CN, string::BMP, b"\0j\0\xe9")),
        ("bmp terminated", |b| b.attr(O, string::BMP, b"\0j\0\0").cn("u")),
        ("bmp odd", |b| b.attr(CN, string::BMP, b"\0j\0")),
        ("bmp surrogate", |b| b.attr(CN, string::BMP, b"\xd8\0\xdc\0")),
        ("bmp noncharacter", |b| b.attr(CN, string::BMP, b"\xfd\xd0")),
        ("universal CN", |b| b.attr(CN, string::UNIVERSAL, b"\0\0\0u")),
        ("universal O", |b| b.cn("u").attr(O, string::UNIVERSAL, b"\0\0\0g")),
        ("universal OU", |b| b.cn("u").attr(OU, string::UNIVERSAL, b"\0\0\0g")),
        ("visible", |b| b.attr(CN, string::VISIBLE, b"u")),
        ("numeric", |b| b.attr(CN, string::NUMERIC, b"12 3")),
        ("numeric with letters", |b| b.attr(CN, string::NUMERIC, b"12a")),
        ("integer", |b| b.cn("u").attr(UID, 0x02, b"\x01")),
        ("octet string O", |b| b.cn("u").attr(O, 0x04, b"g")),
        ("utf8 broken", |b| b.attr(CN, string::UTF8, b"\xff")),
        ("utf8 with NUL and newline", |b| b.attr(CN, string::UTF8, b"a\0\nb")),
        ("utf8 beyond the BMP", |b| b.attr(CN, string::UTF8, "\u{1f600}".as_bytes())),
        ("a name that is not a sequence", |b| b.raw_subject(null())),
        ("attribute without value", |b| b.rdn(&[seq(&[oid(CN)])])),
        ("attribute with more than a value", |b| b.rdn(&[seq(&[oid(CN), tlv(0x0c, b"u"), null()])])),
        ("attribute with a huge arc", |b| b.cn("u").attr("1.2.4294967296", string::UTF8, b"x")),
    ]
}

/// Every change, at the leaf, an intermediate and the root.
pub(super) fn features(peer: Peer) -> Vec<Case> {
    let root = Ca::new("root");
    let middle = root.intermediate("middle");
    let mut cases = Vec::new();
    let mut add = |name: String, roots: &[&Ca], issued: &Issued| {
        let case = Case::new(name, roots, issued);
        // Unchanged, in reverse order, and a second later.
        cases.push(Case { time: case.time + 1, name: format!("{}, later", case.name), ..case.clone() });
        cases.push(Case { nanos: 1, name: format!("{}, a moment later", case.name), ..case.clone() });
        cases.push(case);
    };
    for (name, change) in changes() {
        for (place, ca) in [("root", &root), ("middle", &middle)] {
            let leaf = change(peer.leaf(ca).cn("u").org("g")).issue();
            add(format!("leaf below {place}: {name}"), &[&root], &leaf);
        }
        let altered = change(peer.named(Ca::build("altered"))).issue_ca();
        add(format!("root: {name}"), &[&altered], &peer.leaf(&altered).cn("u").issue());
        add(
            format!("root over intermediate: {name}"),
            &[&altered],
            &peer.leaf(&altered.intermediate("m")).cn("u").issue(),
        );
        add(format!("root as leaf: {name}"), &[&altered], &altered.as_leaf());
        let altered = change(peer.named(root.build_intermediate("altered"))).issue_ca();
        add(format!("intermediate: {name}"), &[&root], &peer.leaf(&altered).cn("u").issue());
        add(
            format!("upper intermediate: {name}"),
            &[&root],
            &peer.leaf(&altered.intermediate("m")).cn("u").issue(),
        );
        add(format!("intermediate as a root: {name}"), &[&altered], &peer.leaf(&altered).cn("u").issue());
        add(format!("intermediate as leaf: {name}"), &[&root], &altered.as_leaf());
        let alone =
            change(peer.named(Ca::build("self-signed")).no_basic_constraints().eku(&[peer.purpose()]))
                .issue_ca();
        add(format!("self-signed leaf, trusted: {name}"), &[&root, &alone], &alone.as_leaf());
        add(format!("self-signed leaf, unknown: {name}"), &[&root], &alone.as_leaf());
    }
    for (name, change) in subjects() {
        add(format!("subject: {name}"), &[&root], &change(peer.leaf(&root)).issue());
        let odd = change(Ca::build("").raw_subject(seq(&[]))).issue_ca();
        add(format!("empty issuer: {name}"), &[&odd], &peer.leaf(&odd).cn("u").issue());
    }
    cases
}

/// Signature algorithms, and random pairs of changes.
pub(super) fn combinations(peer: Peer, rng: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in KeyKind::ALL {
        for algorithm in [
            SigAlg::RsaSha256,
            SigAlg::RsaSha384,
            SigAlg::RsaSha512,
            SigAlg::PssSha256,
            SigAlg::PssSha384,
            SigAlg::PssSha512,
            SigAlg::EcdsaSha256,
            SigAlg::EcdsaSha384,
            SigAlg::EcdsaSha512,
            SigAlg::Ed25519,
        ] {
            let root = Ca::build("root").key(kind).sig(algorithm).issue_ca();
            let leaf = peer.leaf(&root).cn("u").sig(algorithm).issue();
            cases.push(Case::new(format!("{kind:?} {algorithm:?}"), &[&root], &leaf));
        }
    }
    // Ed25519 has no parameters, not even NULL.
    let root = Ca::with_key("root", KeyKind::Ed25519);
    let identifier = seq(&[oid("1.3.101.112"), null()]);
    let leaf = peer.leaf(&root).cn("u").raw_algorithms(identifier.clone(), identifier).issue();
    cases.push(Case::new("Ed25519 with NULL", &[&root], &leaf));
    // RSA-PSS, whose parameters can be encoded in many ways.
    let root = Ca::with_key("root", KeyKind::Rsa2048);
    let sha256 = || oid("2.16.840.1.101.3.4.2.1");
    let mgf = |hash: Vec<u8>| tlv(0xa1, &seq(&[oid("1.2.840.113549.1.1.8"), hash]));
    let hash = |hash: Vec<u8>| tlv(0xa0, &hash);
    let salt = |salt| tlv(0xa2, &integer(salt));
    let bare = || seq(&[sha256()]);
    let full = || seq(&[sha256(), null()]);
    let signed = |identifier: Vec<u8>| {
        let leaf = peer.leaf(&root).cn("u").sig(SigAlg::PssSha256);
        leaf.raw_algorithms(identifier.clone(), identifier).issue()
    };
    for (name, parameters) in [
        ("plain", vec![hash(full()), mgf(full()), salt(32)]),
        ("without NULL", vec![hash(bare()), mgf(bare()), salt(32)]),
        ("one NULL", vec![hash(full()), mgf(bare()), salt(32)]),
        ("odd hash parameters", vec![hash(seq(&[sha256(), integer(1)])), mgf(full()), salt(32)]),
        ("trailer", vec![hash(full()), mgf(full()), salt(32), tlv(0xa3, &integer(1))]),
        ("other trailer", vec![hash(full()), mgf(full()), salt(32), tlv(0xa3, &integer(2))]),
        ("salt of 20", vec![hash(full()), mgf(full()), salt(20)]),
        ("default salt", vec![hash(full()), mgf(full())]),
        ("default mask", vec![hash(full()), salt(32)]),
        ("defaults", vec![]),
        ("mask SHA-1", vec![hash(full()), mgf(seq(&[oid("1.3.14.3.2.26"), null()])), salt(32)]),
        ("hash SHA-1", vec![hash(seq(&[oid("1.3.14.3.2.26")])), mgf(full()), salt(20)]),
        ("other mask function", vec![hash(full()), tlv(0xa1, &seq(&[oid("1.2.3"), full()])), salt(32)]),
        ("mask without hash", vec![hash(full()), tlv(0xa1, &seq(&[oid("1.2.840.113549.1.1.8")])), salt(32)]),
        ("another order", vec![salt(32), hash(full()), mgf(full())]),
        ("more after the mask's hash", {
            let mask = tlv(0xa1, &seq(&[oid("1.2.840.113549.1.1.8"), full(), null()]));
            vec![hash(full()), mask, salt(32)]
        }),
        ("more after the trailer", vec![hash(full()), mgf(full()), salt(32), tlv(0xa3, &integer(1)), null()]),
        (
            "more in the wrapper of the hash",
            vec![tlv(0xa0, &[full(), null()].concat()), mgf(full()), salt(32)],
        ),
        ("more in the wrapper of the trailer", {
            let trailer = tlv(0xa3, &[integer(1), null()].concat());
            vec![hash(full()), mgf(full()), salt(32), trailer]
        }),
        ("more after the bare hash", vec![hash(seq(&[sha256(), null(), integer(1)])), mgf(bare()), salt(32)]),
        ("integer padded", vec![hash(full()), mgf(full()), tlv(0xa2, &tlv(2, &[0, 32]))]),
        ("more after the hash", vec![hash(seq(&[sha256(), null(), null()])), mgf(full()), salt(32)]),
        ("more after the salt", vec![hash(full()), mgf(full()), tlv(0xa2, &[integer(32), null()].concat())]),
        ("more at the end", vec![hash(full()), mgf(full()), salt(32), null()]),
    ] {
        let identifier = seq(&[oid("1.2.840.113549.1.1.10"), seq(&parameters)]);
        let leaf = signed(identifier);
        cases.push(Case::new(format!("PSS {name}"), &[&root], &leaf));
    }
    for (name, parameters) in [("none", Vec::new()), ("null", null())] {
        let identifier = seq(&[oid("1.2.840.113549.1.1.10"), parameters]);
        let leaf = signed(identifier);
        cases.push(Case::new(format!("PSS parameters {name}"), &[&root], &leaf));
    }
    let (changes, subjects) = (changes(), subjects());
    for index in 0..1200 {
        let mut names = Vec::new();
        let mut alter = |rng: &mut Rng, mut builder: Builder, place: &str| {
            // One change per certificate on average, since more would mask each other.
            while rng.one_in(2) {
                let (name, change) = rng.pick(&changes);
                names.push(format!("{place}: {name}"));
                builder = change(builder);
            }
            builder
        };
        let mut ca = alter(rng, Ca::build("root"), "root").issue_ca();
        let root = ca.clone();
        for depth in 0..rng.below(4) {
            ca = alter(rng, ca.build_intermediate(&format!("m{depth}")), "intermediate").issue_ca();
        }
        let leaf = if rng.one_in(3) {
            (rng.pick(&subjects).1)(peer.leaf(&ca))
        } else {
            peer.leaf(&ca).cn("u").org("g")
        };
        let leaf = alter(rng, leaf, "leaf").issue();
        let mut case = Case::new(format!("{index}: {}", names.join(", ")), &[&root], &leaf);
        if rng.one_in(4) && case.chain.len() > 2 {
            case.chain[1..].reverse();
        }
        cases.push(case);
    }
    cases
}
