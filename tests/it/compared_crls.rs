//! Certificate revocation lists, compared with Go's `x509.ParseRevocationList` and `CheckSignatureFrom`: lists that Go
//! makes, lists with odd parts, and damage, with and without a new signature.
//!
//! We may refuse what Go accepts, for the reasons in `STRICTER`; never the reverse. A list that both accept has the same
//! content, and the same verdict on its signature.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis::internal::{CaBundle, Crl};
use serde_json::{Value, json};
use testkit::crl::CrlBuilder;
use testkit::go_program::GoProgram;
use testkit::pki::{self, Ca, KeyKind, SigAlg, integer, oid, seq, tlv};
use testkit::random::{Rng, inputs, seed};

/// Beginnings of our errors about lists that Go accepts, and the reasons.
const STRICTER: &[(&str, &str)] = &[
    ("the CRL has no nextUpdate", "it would never become stale; RFC 5280 demands the field"),
    ("the CRL has a nextUpdate before its thisUpdate", "it is never valid"),
    ("a delta CRL", "Go leaves it to its caller"),
    ("an indirect CRL", "Go leaves it to its caller"),
    ("the CRL covers only a part", "Go leaves it to its caller"),
    ("malformed CRL: issuingDistributionPoint", "Go does not read it"),
    ("the CRL has a critical extension", "Go leaves it to its caller"),
    ("the CRL has the extension", "RFC 5280 section 4.2: an extension appears once"),
    ("the entry for serial number", "negative numbers, removeFromCRL, critical extensions, odd reasons"),
    ("malformed CRL: trailing data", "Go ignores what follows"),
    ("malformed CRL: negative CRL number", "RFC 5280 section 5.2.3"),
    ("malformed CRL: malformed ASN.1 DER value for INTEGER", "serial numbers of more than 20 octets"),
    ("malformed CRL: malformed ASN.1 DER value for UTCTime", "offsets, no seconds, years before 1970"),
    ("malformed CRL: malformed ASN.1 DER value for GeneralizedTime", "offsets, years before 1970"),
    ("malformed CRL: invalid tag number", "parts that Go does not look at"),
    ("malformed CRL: malformed OID", "x509-cert reads identifiers of names by X.690"),
    ("malformed CRL: unknown/unsupported ASN.1 DER tag", "parts that Go does not look at"),
    ("malformed CRL: unexpected ASN.1 DER tag", "parts that Go does not look at"),
    ("malformed CRL: ASN.1 ", "parts that Go does not look at; unordered sets"),
    ("x509: malformed crl number", "Go ignores what follows the number"),
];

/// A list, and the CA whose key is tried.
struct Case {
    name: String,
    crl: Vec<u8>,
    ca: Vec<u8>,
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect::<Vec<_>>().concat()
}

fn encoded(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// What is read of a list, in the form of the Go program.
fn ours(case: &Case) -> Result<Value, String> {
    let crl = Crl::parse(&case.crl).map_err(|error| error.to_string())?;
    let bundle = CaBundle::from_pem(pki::pem("CERTIFICATE", &case.ca).as_bytes()).unwrap();
    let entries: Vec<Value> = crl
        .entries
        .iter()
        .map(|entry| {
            let digits = hex(&entry.serial);
            let digits = digits.trim_start_matches('0');
            json!({
                "serial": if digits.is_empty() { "0" } else { digits },
                "time": entry.revoked_at,
                "reason": entry.reason,
            })
        })
        .collect();
    Ok(json!({
        "parse": "",
        "signature": crl.check_signature(&bundle).err().map(|error| error.to_string()).unwrap_or_default(),
        "issuer": hex(&crl.issuer),
        "number": crl.number.as_ref().map(ToString::to_string).unwrap_or_default(),
        "thisUpdate": crl.this_update,
        "nextUpdate": crl.next_update,
        "entries": entries,
    }))
}

/// Lists that Go makes.
fn made(go: &GoProgram) -> Vec<Case> {
    let text = String::from_utf8(go.run(&["-make"], b"")).unwrap();
    let bytes = |value: &Value| STANDARD.decode(value.as_str().unwrap()).unwrap();
    let questions = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    questions
        .map(|question| Case {
            name: format!("made by Go: {}", question["name"]),
            crl: bytes(&question["crl"]),
            ca: bytes(&question["ca"]),
        })
        .collect()
}

/// Lists with one odd part each.
fn odd(ca: &Ca) -> Vec<(&'static str, CrlBuilder)> {
    let new = || CrlBuilder::new(ca);
    let serial = || integer(7);
    let utc = |text: &str| tlv(0x17, text.as_bytes());
    let general = |text: &str| tlv(0x18, text.as_bytes());
    let point = |content: &[u8]| seq(&[content.to_vec()]);
    let reason = |code: &[u8]| vec![("2.5.29.21", false, code.to_vec())];
    vec![
        ("empty", new()),
        ("an empty list", new().empty_list()),
        ("an entry", new().entry(serial(), &[])),
        ("version 1", new().version(None)),
        ("version 3", new().version(Some(integer(2)))),
        ("version 1, written", new().version(Some(integer(0)))),
        ("no nextUpdate", new().times(1_767_225_600, None)),
        ("nextUpdate first", new().times(1_767_225_600, Some(1_767_225_599))),
        ("equal times", new().times(1_767_225_600, Some(1_767_225_600))),
        ("a time without seconds", new().raw_times(utc("2601010000Z"), Some(utc("2701010000Z")))),
        ("a time with an offset", new().raw_times(utc("260101000000+0100"), Some(utc("270101000000Z")))),
        (
            "a GeneralizedTime before 2050",
            new().raw_times(general("20260101000000Z"), Some(general("20270101000000Z"))),
        ),
        (
            "a fraction of a second",
            new().raw_times(general("20260101000000.5Z"), Some(general("20270101000000Z"))),
        ),
        ("a time before 1970", new().raw_times(utc("600101000000Z"), Some(utc("270101000000Z")))),
        ("no number", new().number(None)),
        ("number 0", new().number(Some(0))),
        ("a negative number", new().raw_number(tlv(2, &[0xff]))),
        ("a padded number", new().raw_number(tlv(2, &[0, 1]))),
        ("a number and more", new().raw_number([integer(1), integer(2)].concat())),
        ("a number that is text", new().raw_number(tlv(0x0c, b"1"))),
        ("two numbers", new().extension("2.5.29.20", false, integer(2))),
        ("no authority key identifier", new().no_akid()),
        (
            "a critical authority key identifier",
            new().no_akid().extension("2.5.29.35", true, seq(&[tlv(0x80, b"a")])),
        ),
        ("an odd authority key identifier", new().no_akid().extension("2.5.29.35", false, b"a".to_vec())),
        ("a delta CRL", new().extension("2.5.29.27", true, integer(1))),
        ("a delta CRL, not critical", new().extension("2.5.29.27", false, integer(1))),
        ("an indirect CRL", new().extension("2.5.29.28", true, point(&tlv(0x84, &[0xff])))),
        ("a CRL of users", new().extension("2.5.29.28", true, point(&tlv(0x81, &[0xff])))),
        (
            "a CRL of a distribution point",
            new().extension("2.5.29.28", false, point(&tlv(0xa0, &tlv(0xa0, &tlv(0x86, b"u"))))),
        ),
        ("an unknown critical extension", new().extension("1.2.3.4", true, vec![5, 0])),
        ("an unknown extension", new().extension("1.2.3.4", false, vec![5, 0])),
        ("a freshest CRL", new().extension("2.5.29.46", false, seq(&[]))),
        ("serial number 0", new().entry(integer(0), &[])),
        ("a negative serial number", new().entry(tlv(2, &[0x80]), &[])),
        ("a padded serial number", new().entry(tlv(2, &[0, 1]), &[])),
        ("a serial number of 20 octets", new().entry(tlv(2, &[0x7f; 20]), &[])),
        ("a serial number of 21 octets", new().entry(tlv(2, &[&[0][..], &[0xff; 20]].concat()), &[])),
        ("a serial number of 30 octets", new().entry(tlv(2, &[0x7f; 30]), &[])),
        ("the same entry twice", new().entry(serial(), &[]).entry(serial(), &[])),
        ("a reason", new().entry(serial(), &reason(&[0x0a, 1, 1]))),
        ("the reason unspecified", new().entry(serial(), &reason(&[0x0a, 1, 0]))),
        ("the reason certificateHold", new().entry(serial(), &reason(&[0x0a, 1, 6]))),
        ("the reason removeFromCRL", new().entry(serial(), &reason(&[0x0a, 1, 8]))),
        ("an unknown reason", new().entry(serial(), &reason(&[0x0a, 1, 99]))),
        ("a negative reason", new().entry(serial(), &reason(&[0x0a, 1, 0xff]))),
        ("a large reason", new().entry(serial(), &reason(&[0x0a, 2, 1, 0]))),
        ("a reason that is a number", new().entry(serial(), &reason(&[2, 1, 1]))),
        ("no reason in the extension", new().entry(serial(), &reason(&[]))),
        ("a critical reason", new().entry(serial(), &[("2.5.29.21", true, vec![0x0a, 1, 1])])),
        ("a certificate issuer", new().entry(serial(), &[("2.5.29.29", true, seq(&[]))])),
        ("an invalidity date", new().entry(serial(), &[("2.5.29.24", false, general("20260101000000Z"))])),
        ("an unknown critical entry extension", new().entry(serial(), &[("1.2.3.4", true, vec![5, 0])])),
        ("an unknown entry extension", new().entry(serial(), &[("1.2.3.4", false, vec![5, 0])])),
        ("an entry without a time", new().raw_entry(seq(&[serial()]))),
        ("an entry with more", new().raw_entry(seq(&[serial(), utc("260101000000Z"), seq(&[]), integer(1)]))),
        ("an empty entry", new().raw_entry(seq(&[]))),
        ("an empty issuer", new().issuer(seq(&[]))),
        ("an odd issuer", new().issuer(seq(&[tlv(0x31, &seq(&[oid("2.5.4.3"), tlv(0x1c, b"\0\0\0a")]))]))),
        ("an issuer that is no name", new().issuer(tlv(0x30, b"a"))),
        ("a wrong signature", new().corrupt_signature()),
        ("SHA-1", new().sig(SigAlg::EcdsaSha1)),
        ("an unknown algorithm", new().sig(SigAlg::Unknown)),
        ("another algorithm outside", new().outer_algorithm(SigAlg::EcdsaSha384.identifier())),
        ("an algorithm of RSA", new().sig(SigAlg::RsaSha256)),
    ]
}

/// Odd lists, and CAs that may not sign lists.
fn variants(rng: &mut Rng) -> Vec<Case> {
    let ca = Ca::new("ca");
    let case = |name: &str, crl: Vec<u8>, ca: &Ca| Case { name: name.to_owned(), crl, ca: ca.cert.to_vec() };
    let mut cases: Vec<Case> = odd(&ca).into_iter().map(|(name, crl)| case(name, crl.der(), &ca)).collect();
    let plain = || CrlBuilder::new(&ca).entry(integer(7), &[]).der();
    cases.push(case("trailing data", [plain(), vec![5, 0]].concat(), &ca));
    cases.push(case("cut off", plain()[..60].to_vec(), &ca));
    cases.push(case("nothing", Vec::new(), &ca));
    cases.push(case("another CA", plain(), &Ca::new("ca")));
    let authorities = [
        ("no cRLSign", Ca::build("ca").key_usage(pki::usage::CERT_SIGN)),
        ("cRLSign alone", Ca::build("ca").key_usage(pki::usage::CRL_SIGN)),
        ("no key usage", Ca::build("ca").no_key_usage()),
        ("not a CA", Ca::build("ca").basic_constraints(false, None)),
        ("no basic constraints", Ca::build("ca").no_basic_constraints()),
        ("version 1", Ca::build("ca").v1()),
    ];
    for (name, authority) in authorities {
        let authority = authority.issue_ca();
        cases.push(case(name, CrlBuilder::new(&authority).entry(integer(7), &[]).der(), &authority));
    }
    let algorithms =
        [SigAlg::RsaSha256, SigAlg::RsaSha384, SigAlg::RsaSha512, SigAlg::PssSha256, SigAlg::PssSha512];
    for kind in KeyKind::ALL {
        let authority = Ca::with_key("ca", kind);
        cases.push(case("each key", CrlBuilder::new(&authority).der(), &authority));
        if kind == KeyKind::Rsa2048 {
            for algorithm in algorithms {
                cases.push(case("RSA", CrlBuilder::new(&authority).sig(algorithm).der(), &authority));
            }
        }
    }
    // Random combinations of two odd parts cannot be built from two builders; damage reaches further.
    let sources: Vec<Vec<u8>> = odd(&ca).into_iter().map(|(_, crl)| crl.der()).collect();
    for index in 0..inputs(6000) {
        cases.push(case(&format!("damage {index}"), damaged(rng, rng_pick(&sources, index)), &ca));
    }
    cases
}

fn rng_pick(sources: &[Vec<u8>], index: usize) -> Vec<u8> {
    sources[index % sources.len()].clone()
}

/// Changed, removed and added bytes.
fn damaged(rng: &mut Rng, mut crl: Vec<u8>) -> Vec<u8> {
    for _ in 0..=rng.below(2) {
        let at = rng.below(crl.len());
        match rng.below(5) {
            0 => crl[at] ^= 1 << rng.below(8),
            1 => crl[at] = rng.byte(),
            2 => {
                crl[at] =
                    *rng.pick(&[0x00, 0x02, 0x04, 0x05, 0x0a, 0x17, 0x18, 0x30, 0x31, 0x80, 0xa0, 0xff]);
            }
            3 => drop(crl.remove(at)),
            _ => crl.insert(at, rng.byte()),
        }
    }
    crl
}

#[test]
fn lists_are_read_as_by_go() {
    let Some(go) = GoProgram::build("crls") else { return };
    let mut rng = Rng(seed());
    let cases: Vec<Case> = made(&go).into_iter().chain(variants(&mut rng)).collect();
    let question = |case: &Case| json!({"crl": encoded(&case.crl), "ca": encoded(&case.ca)});
    let show = |case: &Case| format!("{}: {}", case.name, encoded(&case.crl));
    let words = go.compare("lists", &cases, question, show, |case, theirs| {
        let is_read = theirs["parse"] == "";
        match (ours(case), is_read) {
            (Ok(mut ours), true) => {
                // Go accepts SHA-1 in CRLs, we in none.
                if ours["signature"].as_str().is_some_and(|error| error.contains("insecure algorithm")) {
                    ours["signature"] = theirs["signature"].clone();
                }
                if ours == *theirs { Ok("both accept") } else { Err(format!("{ours}\nGo: {theirs}")) }
            }
            (Ok(ours), false) => Err(format!("only we accept: {ours}\nGo: {theirs}")),
            (Err(_), false) => Ok("both refuse"),
            (Err(error), true) => match STRICTER.iter().find(|(beginning, _)| error.starts_with(beginning)) {
                Some((beginning, _)) => Ok(*beginning),
                None => Err(format!("only Go accepts: {error}")),
            },
        }
    });
    assert!(words.count("both accept") > 100 && words.count("both refuse") > 100, "{words:?}");
}
