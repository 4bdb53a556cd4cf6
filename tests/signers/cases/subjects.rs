//! Subjects: the attributes that a certificate keeps, their order and string types (Go: crypto/x509/pkix,
//! `Name.ToRDNSequence`).

use testkit::csr::Csr;
use testkit::pki::string::{BMP, IA5, NUMERIC, PRINTABLE, T61, UNIVERSAL, UTF8, VISIBLE};
use testkit::pki::{CN, O, OU, UID, attribute, oid, seq, set, tlv};

use crate::case::{Case, case};

const GROUP: &str = "subjects";
const ORDER: &str = "pkix.Name.ToRDNSequence: attributes and their order";
const STRINGS: &str = "encoding/asn1: which strings are read, and written as which";

const SERIAL: &str = "2.5.4.5";
const C: &str = "2.5.4.6";
const L: &str = "2.5.4.7";
const ST: &str = "2.5.4.8";
const STREET: &str = "2.5.4.9";
const POSTAL: &str = "2.5.4.17";
const EMAIL: &str = "1.2.840.113549.1.9.1";
const DC: &str = "0.9.2342.19200300.100.1.25";
const UID_LDAP: &str = "0.9.2342.19200300.100.1.1";

pub(crate) fn cases() -> Vec<Case> {
    let all = || {
        Csr::new()
            .text(SERIAL, "42")
            .cn("everything")
            .text(OU, "unit")
            .org("company")
            .text(POSTAL, "10115")
            .text(STREET, "Street 1")
            .text(L, "Town")
            .text(ST, "Region")
            .text(C, "DE")
    };
    let multi = Csr::new().rdn(&[
        attribute(O, UTF8, b"b"),
        attribute(CN, UTF8, b"in one RDN"),
        attribute(O, UTF8, b"a"),
    ]);
    let ordered = |name, csr: &Csr| case(GROUP, name, ORDER, csr);
    let mut cases = vec![
        ordered("a common name", &Csr::new().cn("alice")),
        ordered("every attribute that survives", &all()),
        ordered("an empty subject", &Csr::new()),
        ordered("an empty subject with names", &Csr::new().dns("a.example").email("a@example.org")),
        ordered(
            "groups keep all values in another order",
            &Csr::new().cn("a").org("o2").org("o1").org("o10"),
        ),
        ordered("a shorter group comes first", &Csr::new().cn("a").org("bbb").org("z").org("aa")),
        ordered("a group twice stays twice", &Csr::new().cn("a").org("same").org("same")),
        ordered("units, towns and regions in sets", &{
            Csr::new()
                .cn("a")
                .text(OU, "u2")
                .text(OU, "u1")
                .text(L, "l2")
                .text(L, "l1")
                .text(ST, "s2")
                .text(ST, "s1")
        }),
        ordered("several countries, streets and postal codes", &{
            Csr::new()
                .text(C, "FR")
                .text(C, "DE")
                .text(STREET, "b")
                .text(STREET, "a")
                .text(POSTAL, "2")
                .text(POSTAL, "1")
        }),
        ordered("the last of several common names", &Csr::new().cn("first").cn("last")),
        ordered(
            "the last of several serial numbers",
            &Csr::new().cn("a").text(SERIAL, "1").text(SERIAL, "2"),
        ),
        ordered("several attributes in one RDN", &multi),
        ordered(
            "the groups of a person",
            &Csr::new().cn("jane").org("dev").org("ops:night").org("system:masters2"),
        ),
        ordered("attributes that vanish", &{
            Csr::new()
                .cn("a")
                .attr(EMAIL, IA5, b"a@example.org")
                .attr(DC, IA5, b"example")
                .text(UID_LDAP, "a")
                .text(UID, "0b1c")
                .text("2.5.4.4", "Surname")
                .text("2.5.4.42", "Given")
                .text("2.5.4.12", "Title")
        }),
        ordered("only attributes that vanish", &Csr::new().attr(DC, IA5, b"example").attr(DC, IA5, b"org")),
        ordered(
            "only attributes that vanish, with names",
            &Csr::new().attr(DC, IA5, b"org").dns("b.example"),
        ),
        ordered("an empty group stays", &Csr::new().cn("a").org("")),
        ordered("an empty common name vanishes", &Csr::new().cn("").org("o")),
        ordered("an empty serial number vanishes", &Csr::new().cn("a").text(SERIAL, "")),
        ordered("a common name of 300 letters", &Csr::new().cn(&"n".repeat(300))),
        ordered("a country of three letters", &Csr::new().cn("a").text(C, "DEU")),
        ordered(
            "a hundred groups",
            &(0..100).fold(Csr::new().cn("many"), |csr, i| csr.org(&format!("group-{i}"))),
        ),
        ordered("a common name that becomes empty last", &Csr::new().cn("first").cn("")),
    ];
    for (name, tag, value) in [
        ("a common name in UTF-8 that is printable", UTF8, &b"Printable Name'()+,-./:=?"[..]),
        ("a common name with an at sign", UTF8, b"a@example.org"),
        ("a common name with a star", UTF8, b"*.example.org"),
        ("a common name with an ampersand", UTF8, b"a&b"),
        ("a common name with an underscore", UTF8, b"a_b"),
        ("a common name with umlauts", UTF8, "Jürgen Groß".as_bytes()),
        ("a common name beyond the first plane", UTF8, "ship \u{1F6A2}".as_bytes()),
        ("a common name with NUL", UTF8, b"a\0b"),
        ("a common name with a line feed", UTF8, b"a\nb"),
        ("a common name with a backslash and quotes", UTF8, b"a\\\"b;<c>#"),
        ("a printable common name", PRINTABLE, b"Plain"),
        ("a printable common name with a star", PRINTABLE, b"a*b"),
        ("a printable common name with an ampersand", PRINTABLE, b"a&b"),
        ("an IA5 common name", IA5, b"ia5"),
        ("an IA5 common name with an at sign", IA5, b"a@b"),
        ("a T61 common name", T61, b"t61"),
        ("a numeric common name", NUMERIC, b"12 34"),
        ("a BMP common name", BMP, b"\0b\0m\0p"),
        ("a BMP common name with umlauts", BMP, b"\0\xfc\0b"),
        ("a BMP common name with a terminator", BMP, b"\0b\0\0"),
        ("a universal common name vanishes", UNIVERSAL, b"\0\0\0u"),
        ("a visible common name vanishes", VISIBLE, b"visible"),
    ] {
        cases.push(case(GROUP, name, STRINGS, &Csr::new().attr(CN, tag, value).org("o")));
    }
    let odd = seq(&[set(&[seq(&[oid(CN), tlv(0x02, &[5])])]), set(&[attribute(O, UTF8, b"o")])]);
    cases.push(case(GROUP, "a number for a common name vanishes", STRINGS, &Csr::new().raw_subject(odd)));
    let empty = seq(&[set(&[]), set(&[attribute(CN, UTF8, b"a")])]);
    cases.push(case(GROUP, "an empty RDN", ORDER, &Csr::new().raw_subject(empty)));
    for (name, value) in [("T61 beyond ASCII", &b"caf\xe9"[..]), ("T61 with an at sign", b"a@b")] {
        cases.push(case(GROUP, name, STRINGS, &Csr::new().attr(CN, T61, value)));
    }
    cases
}
