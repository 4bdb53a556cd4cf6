//! Client certificate chains, judged by us and by Go's `crypto/x509`: thousands of them, and the verdicts, the users
//! and the texts must be the same.
//!
//! The chains are a product of features, seeded random combinations, and damage: bytes of certificates changed with
//! and without a new signature over them. The few places where we are stricter are listed in `STRICTER`; being
//! more lenient is never allowed. Set `PORTCULLIS_SEED` to try other random chains.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis::authn::x509::{BundleError, CaBundle, UnverifiedChain, parse_for_handshake};
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};

use crate::pki::{
    self, ANY_EKU, Builder, CLIENT_AUTH, CN, Ca, Issued, Key, KeyKind, O, OU, SERVER_AUTH, SigAlg, UID,
    attribute, bits, boolean, integer, null, octets, oid, seq, string, time, tlv, usage,
};

/// 2026-01-01T00:00:00Z.
const NOW: i64 = 1_767_225_600;

/// Where we refuse and Go does not: a part of our error, and the reason.
const STRICTER: &[(&str, &str)] = &[
    (
        "RSA keys below 2048 and above 8192 bits",
        "an RSA modulus that short can be factored; longer ones cost time",
    ),
    (
        "P-224 keys are not supported",
        "aws-lc-rs has no P-224, and no TLS client can present it",
    ),
    (
        "too many certificates",
        "more than a hundred certificates are an attack, not a chain",
    ),
    (
        "IP address",
        "an excluded range also excludes IPv4-mapped addresses, and ranges written with host bits",
    ),
];

/// One chain against one bundle.
#[derive(Debug, Clone)]
struct Case {
    name: String,
    roots: Vec<CertificateDer<'static>>,
    chain: Vec<CertificateDer<'static>>,
    time: i64,
    nanos: u32,
}

impl Case {
    fn new(name: impl Into<String>, roots: &[&Ca], issued: &Issued) -> Self {
        Self {
            name: name.into(),
            roots: roots.iter().map(|ca| ca.cert.clone()).collect(),
            chain: issued.chain.clone(),
            time: NOW,
            nanos: 0,
        }
    }
}

// ---- the judges -------------------------------------------------------------------------------------------------

/// What a judge says.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    BadRoots,
    Unparsable,
    Refused,
    User {
        name: String,
        groups: Vec<String>,
        uid: Result<Option<String>, String>,
        serial: String,
    },
}

#[derive(Debug)]
struct Answer {
    outcome: Outcome,
    error: String,
    handshake: bool,
}

fn ours(case: &Case) -> Answer {
    let pem: String = case
        .roots
        .iter()
        .map(|root| pki::pem("CERTIFICATE", root))
        .collect();
    let answer = |outcome, error: String, handshake| Answer {
        outcome,
        error,
        handshake,
    };
    let bundle = match CaBundle::from_pem(pem.as_bytes()) {
        Ok(bundle) => bundle,
        Err(error) => return answer(Outcome::BadRoots, error.to_string(), false),
    };
    let parsed = case.chain.iter().try_for_each(|certificate| {
        portcullis::authn::x509::parse_chain_for_handshake(certificate, &[])
            .map(drop)
            .or_else(|error| {
                // Keys that cannot be used in a handshake parse all the same.
                if error.to_string().starts_with("tls: ") {
                    Ok(())
                } else {
                    Err(error)
                }
            })
    });
    let handshake = parsed.is_ok() && parse_for_handshake(&case.chain[0]).is_ok();
    let now = Duration::new(u64::try_from(case.time).unwrap(), case.nanos);
    let verdict = bundle.verify(&UnverifiedChain::new(case.chain.clone()), now);
    if let Err(error) = parsed {
        assert_eq!(
            verdict.expect_err("a chain that does not parse").to_string(),
            error.to_string()
        );
        return answer(Outcome::Unparsable, error.to_string(), false);
    }
    match verdict {
        Err(error) => answer(Outcome::Refused, error.to_string(), handshake),
        Ok(chain) => {
            assert!(
                chain.valid_from() <= now && now <= chain.valid_until(),
                "{}",
                case.name
            );
            let outcome = Outcome::User {
                name: chain.common_name().to_owned(),
                groups: chain.organizations().to_vec(),
                uid: chain
                    .uid()
                    .map(|uid| uid.map(str::to_owned))
                    .map_err(|error| error.to_string()),
                serial: chain.serial().to_owned(),
            };
            answer(outcome, String::new(), handshake)
        }
    }
}

fn theirs(value: &Value) -> Answer {
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let outcome = match value["verdict"].as_str().unwrap() {
        "roots" => Outcome::BadRoots,
        "parse" => Outcome::Unparsable,
        "refused" => Outcome::Refused,
        "ok" => Outcome::User {
            name: text("cn"),
            groups: serde_json::from_value(value["orgs"].clone()).unwrap_or_default(),
            uid: match (text("uid"), text("uidError")) {
                (uid, error) if error.is_empty() => Ok(Some(uid).filter(|uid| !uid.is_empty())),
                (_, error) => Err(error),
            },
            serial: text("serial"),
        },
        other => panic!("{other}"),
    };
    Answer {
        outcome,
        error: text("error"),
        handshake: value["handshake"].as_bool().unwrap(),
    }
}

/// Builds the Go program; `None` without Go.
fn go_program() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-chains");
    let mut build = Command::new("go");
    build
        .args(["build", "-o"])
        .arg(&program)
        .arg("./chains")
        .current_dir(root.join("tests/backend"));
    match build.status() {
        Ok(status) => {
            assert!(status.success(), "tests/backend/chains does not build");
            Some(program)
        }
        Err(error) => {
            assert!(
                std::env::var_os("PORTCULLIS_REQUIRE_TWIN").is_none_or(|value| value != "1"),
                "Go is required here: {error}"
            );
            None
        }
    }
}

fn ask(program: &Path, questions: &[Value]) -> Vec<Value> {
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the Go program starts");
    let mut stdin = child.stdin.take().unwrap();
    let lines: Vec<String> = questions.iter().map(Value::to_string).collect();
    let writer = std::thread::spawn(move || {
        for line in lines {
            writeln!(stdin, "{line}").expect("the Go program reads");
        }
    });
    let answers: Vec<Value> = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .collect();
    writer.join().unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(answers.len(), questions.len());
    answers
}

fn question(case: &Case) -> Value {
    let list = |certificates: &[CertificateDer<'_>]| -> Vec<String> {
        certificates
            .iter()
            .map(|certificate| STANDARD.encode(certificate))
            .collect()
    };
    json!({"roots": list(&case.roots), "chain": list(&case.chain), "time": case.time, "nanos": case.nanos})
}

#[test]
fn every_chain_is_judged_as_go_judges_it() {
    let Some(program) = go_program() else {
        eprintln!("SKIPPED: chains are not compared with crypto/x509, because there is no `go` here");
        return;
    };
    let seed = std::env::var("PORTCULLIS_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1);
    let mut rng = Rng(seed);
    let mut groups: BTreeMap<&str, Vec<Case>> = BTreeMap::new();
    groups.insert("1 features", features());
    groups.insert("2 combinations", combinations(&mut rng));
    groups.insert("3 paths", paths(&mut rng));
    groups.insert("4 name constraints", name_constraints(&mut rng));
    groups.insert("5 policies", policies(&mut rng));
    groups.insert("6 URIs", uris(&mut rng));
    groups.insert("7 damaged bytes", damaged_bytes(&mut rng));
    groups.insert("8 damaged structure, signed again", damaged_structure(&mut rng));
    groups.insert("9 made by Go", made_by_go(&program));

    let (mut total, mut failures) = (0, Vec::new());
    let mut stricter: BTreeMap<&str, usize> = BTreeMap::new();
    for (group, cases) in &groups {
        let questions: Vec<Value> = cases.iter().map(question).collect();
        let answers = ask(&program, &questions);
        let (mut users, mut unparsable, mut texts) = (0, 0, 0);
        for (case, value) in cases.iter().zip(&answers) {
            let (we, go) = (ours(case), theirs(value));
            total += 1;
            users += usize::from(matches!(we.outcome, Outcome::User { .. }));
            unparsable += usize::from(we.outcome == Outcome::Unparsable);
            let declared = STRICTER.iter().find(|(text, _)| we.error.contains(text));
            let refused = !matches!(we.outcome, Outcome::User { .. });
            if we.outcome != go.outcome || we.handshake != go.handshake && we.outcome != Outcome::Unparsable {
                match declared {
                    Some((text, _)) if refused => *stricter.entry(text).or_default() += 1,
                    _ => failures.push(format!(
                        "{group}: {}\n  ours: {we:?}\n  Go:   {go:?}\n  {value}",
                        case.name
                    )),
                }
            } else if we.outcome == Outcome::Refused && we.error != go.error {
                texts += 1;
                if std::env::var_os("SHOWTEXT").is_some() {
                    eprintln!("TEXT {}\n  o {}\n  g {}", case.name, we.error, go.error);
                }
                if class(&we.error) != class(&go.error) {
                    failures.push(format!(
                        "{group}: {}\n  ours: {}\n  Go:   {}",
                        case.name, we.error, go.error
                    ));
                }
            }
        }
        eprintln!(
            "{group}: {} chains, {users} users, {unparsable} unparsable, {texts} refused in other words",
            cases.len()
        );
    }
    eprintln!("{total} chains in all, seed {seed}; stricter than Go: {stricter:?}");
    for failure in failures.iter().take(12) {
        eprintln!("{failure}");
    }
    assert!(
        failures.is_empty(),
        "{} of {total} chains are judged differently",
        failures.len()
    );
    assert!(total >= 2000);
}

/// The kind of an error: its text up to the first detail.
fn class(error: &str) -> &str {
    let end = error.find(['(', '"', ',']).unwrap_or(error.len());
    let head = &error[..end];
    ["current time", "not authorized to sign for this name"]
        .iter()
        .find_map(|detail| head.find(detail).map(|at| &head[..at]))
        .unwrap_or(head)
        .trim_end()
}

#[test]
fn bundles_are_read_as_client_go_reads_them() {
    let Some(program) = go_program() else {
        eprintln!("SKIPPED: bundles are not compared with client-go's rules, because there is no `go` here");
        return;
    };
    let (a, b) = (Ca::new("a").cert_pem(), Ca::new("b").cert_pem());
    let key = Key::generate(KeyKind::P256).pem();
    let broken = pki::pem("CERTIFICATE", b"no certificate");
    let cases: Vec<(&str, String)> = vec![
        ("one", a.clone()),
        ("two", format!("{a}{b}")),
        ("text around", format!("# mine\n{a}\nsubject=CN b\n{b}trailing")),
        ("CRLF", a.replace('\n', "\r\n")),
        ("trailing blanks", a.replace('\n', " \t\n")),
        ("indented body", a.replace("\nMI", "\n  MI")),
        ("key first", format!("{key}{a}")),
        ("only a key", key.clone()),
        ("empty", " ".to_owned()),
        ("headers", a.replacen("-----\n", "-----\nProc-Type: 4\n\n", 1)),
        (
            "headers, then one without",
            format!("{}{b}", a.replacen("-----\n", "-----\nX: y\n\n", 1)),
        ),
        (
            "trusted certificate",
            a.replace("CERTIFICATE", "TRUSTED CERTIFICATE"),
        ),
        ("not base64", a.replacen("MI", "M!", 1)),
        (
            "not base64, then a good one",
            format!("{}{b}", a.replacen("MI", "M!", 1)),
        ),
        ("not a certificate", broken.clone()),
        ("good, then not a certificate", format!("{a}{broken}")),
        (
            "no end",
            a.lines()
                .filter(|line| !line.contains("END"))
                .collect::<Vec<_>>()
                .join("\n"),
        ),
        (
            "no end, then a good one",
            format!("-----BEGIN CERTIFICATE-----\nMIIB\n{a}"),
        ),
        ("other end", a.replace("END CERTIFICATE", "END OTHER")),
        ("no newline at the end", a.trim_end().to_owned()),
        ("same twice on one line", a.replace('\n', "")),
        (
            "empty block",
            "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n".to_owned(),
        ),
        ("begin inside a line", format!("x{a}")),
        ("padding missing", a.replace('=', "")),
    ];
    let questions: Vec<Value> = cases
        .iter()
        .map(|(_, pem)| json!({"pem": STANDARD.encode(pem)}))
        .collect();
    let mut failures = Vec::new();
    for ((name, pem), answer) in cases.iter().zip(ask(&program, &questions)) {
        let ours = match CaBundle::from_pem(pem.as_bytes()) {
            Ok(bundle) => i64::try_from(bundle.subjects().len()).unwrap(),
            Err(BundleError::NoCertificates | BundleError::Malformed(_)) => -1,
        };
        if Some(ours) != answer["count"].as_i64() {
            failures.push(format!("{name}: ours {ours}, Go {}", answer["count"]));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

// ---- chance -----------------------------------------------------------------------------------------------------

/// `SplitMix64`: the same chains for the same seed.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end).unwrap()).unwrap()
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}

// ---- features ---------------------------------------------------------------------------------------------------

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
        ("UTC time with offset", |b| {
            b.raw_validity(tlv(0x17, b"200101000000+0100"), time(pki::NOT_AFTER))
        }),
        ("UTC time without seconds", |b| {
            b.raw_validity(tlv(0x17, b"2001010000Z"), time(pki::NOT_AFTER))
        }),
        ("UTC time without zone", |b| {
            b.raw_validity(tlv(0x17, b"200101000000"), time(pki::NOT_AFTER))
        }),
        ("generalized time before 2050", |b| {
            b.raw_validity(tlv(0x18, b"20200101000000Z"), time(pki::NOT_AFTER))
        }),
        ("generalized time with fraction", |b| {
            b.raw_validity(tlv(0x18, b"20200101000000.5Z"), time(pki::NOT_AFTER))
        }),
        ("February 30th", |b| {
            b.raw_validity(tlv(0x17, b"200230000000Z"), time(pki::NOT_AFTER))
        }),
        ("year 9999", |b| {
            b.raw_validity(time(pki::NOT_BEFORE), tlv(0x18, b"99991231235959Z"))
        }),
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
        ("key usage without certSign", |b| {
            b.key_usage(usage::DIGITAL_SIGNATURE | usage::CRL_SIGN)
        }),
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
            b.no_basic_constraints()
                .extension("2.5.29.19", true, seq(&[boolean(false)]))
        }),
        ("CA as a wrong boolean", |b| {
            b.no_basic_constraints()
                .extension("2.5.29.19", true, seq(&[tlv(1, &[1])]))
        }),
        ("unknown critical", Builder::unknown_critical),
        ("unknown, not critical", |b| {
            b.extension("1.2.3.4.5", false, null())
        }),
        ("duplicate extension", |b| {
            b.extension("2.5.29.15", true, bits(&[0x80]))
        }),
        ("duplicate unknown extension", |b| {
            b.extension("1.2.3", false, null())
                .extension("1.2.3", false, null())
        }),
        ("AIA", |b| {
            b.extension(
                "1.3.6.1.5.5.7.1.1",
                false,
                seq(&[seq(&[oid("1.3.6.1.5.5.7.48.1"), tlv(0x86, b"http://a")])]),
            )
        }),
        ("AIA critical", |b| {
            b.extension("1.3.6.1.5.5.7.1.1", true, seq(&[]))
        }),
        ("AIA malformed", |b| {
            b.extension("1.3.6.1.5.5.7.1.1", false, null())
        }),
        ("CRL distribution point", |b| {
            let name = tlv(0xa0, &tlv(0xa0, &tlv(0x86, b"http://crl")));
            b.extension("2.5.29.31", false, seq(&[seq(&[name])]))
        }),
        ("CRL distribution point malformed", |b| {
            b.extension("2.5.29.31", false, seq(&[seq(&[tlv(0xa0, b"")])]))
        }),
        ("CRL distribution point critical", |b| {
            b.extension("2.5.29.31", true, seq(&[seq(&[])]))
        }),
        ("no SKID", |b| b.skid(None)),
        ("SKID empty", |b| b.skid(Some(b""))),
        ("SKID other", |b| b.skid(Some(b"other"))),
        ("SKID critical", |b| {
            b.skid(None).extension("2.5.29.14", true, octets(b"x"))
        }),
        ("no AKID", |b| b.akid(None)),
        ("AKID other", |b| b.akid(Some(b"other"))),
        ("AKID critical", |b| {
            b.akid(None).extension("2.5.29.35", true, seq(&[tlv(0x80, b"x")]))
        }),
        ("AKID without id", |b| {
            b.akid(None).extension("2.5.29.35", false, seq(&[]))
        }),
        ("AKID with issuer", |b| {
            b.akid(None)
                .extension("2.5.29.35", false, seq(&[tlv(0xa1, b""), tlv(0x82, b"1")]))
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
        ("SAN empty, critical", |b| {
            b.extension("2.5.29.17", true, seq(&[]))
        }),
        ("SAN other name, critical", |b| {
            b.extension("2.5.29.17", true, seq(&[tlv(0xa0, b"")]))
        }),
        ("SAN critical", |b| {
            b.extension("2.5.29.17", true, seq(&[tlv(0x82, b"a.b")]))
        }),
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
        ("key unknown", |b| {
            b.raw_spki(seq(&[seq(&[oid("1.2.3.4")]), bits(b"key")]))
        }),
        ("key X25519", |b| {
            b.raw_spki(seq(&[seq(&[oid("1.3.101.110")]), bits(&[9; 32])]))
        }),
        ("key Ed25519 short", |b| {
            b.raw_spki(seq(&[seq(&[oid("1.3.101.112")]), bits(&[9; 31])]))
        }),
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
            b.raw_spki(seq(&[
                seq(&[oid("1.2.840.10045.2.1"), oid("1.2.840.10045.3.1.7")]),
                bits(&point),
            ]))
        }),
        ("key compressed", |b| {
            let key = Key::pooled(KeyKind::P256, 0);
            let point = [&[2 + (key.public()[64] & 1)][..], &key.public()[1..33]].concat();
            b.raw_spki(seq(&[
                seq(&[oid("1.2.840.10045.2.1"), oid("1.2.840.10045.3.1.7")]),
                bits(&point),
            ]))
        }),
        ("key on an unknown curve", |b| {
            b.raw_spki(seq(&[
                seq(&[oid("1.2.840.10045.2.1"), oid("1.3.132.0.10")]),
                bits(&[4; 65]),
            ]))
        }),
        ("key DSA", |b| {
            let parameters = seq(&[integer(23), integer(11), integer(2)]);
            b.raw_spki(seq(&[
                seq(&[oid("1.2.840.10040.4.1"), parameters]),
                bits(&integer(5)),
            ]))
        }),
        ("key DSA of zero", |b| {
            let parameters = seq(&[integer(23), integer(0), integer(2)]);
            b.raw_spki(seq(&[
                seq(&[oid("1.2.840.10040.4.1"), parameters]),
                bits(&integer(5)),
            ]))
        }),
        ("policy", |b| {
            b.extension("2.5.29.32", true, seq(&[seq(&[oid("1.2.3")])]))
        }),
        ("policy twice", |b| {
            b.extension(
                "2.5.29.32",
                false,
                seq(&[seq(&[oid("1.2.3")]), seq(&[oid("1.2.3")])]),
            )
        }),
        ("requires an explicit policy", |b| {
            b.extension("2.5.29.36", true, seq(&[tlv(0x80, &[0])]))
        }),
        ("inhibits any policy", |b| {
            b.extension("2.5.29.54", true, integer(0))
        }),
        ("freshest CRL, critical", |b| {
            b.extension("2.5.29.46", true, seq(&[]))
        }),
        ("name constraints", |b| {
            b.name_constraints(&[(2, b"example")], &[])
        }),
        ("name constraints empty", |b| b.name_constraints(&[], &[])),
        ("name constraints of directory names", |b| {
            b.name_constraints(&[(4, b"")], &[])
        }),
        ("name constraints bad mask", |b| {
            b.name_constraints(&[(7, &[10, 0, 0, 0, 255, 0, 255, 0])], &[])
        }),
    ]
}

/// Changes to the subject of a leaf.
fn subjects() -> Vec<(&'static str, Change)> {
    vec![
        ("no CN", |b| b.org("g")),
        ("nothing", |b| b),
        ("two CN", |b| b.cn("first").cn("last")),
        ("CN then empty CN", |b| b.cn("first").cn("")),
        ("groups repeated", |b| {
            b.cn("u").org("b").org("a").org("b").org("")
        }),
        ("multi-valued", |b| {
            let (cn, o) = (
                attribute(CN, string::UTF8, b"u"),
                attribute(O, string::UTF8, b"g"),
            );
            b.rdn(&[o.clone(), cn, o])
        }),
        ("empty RDN", |b| b.rdn(&[]).cn("u")),
        ("uid", |b| b.cn("u").uid("42")),
        ("uid empty", |b| b.cn("u").uid("")),
        ("two uids", |b| b.cn("u").uid("a").uid("b")),
        ("uid without CN", |b| b.uid("42")),
        ("printable", |b| {
            b.attr(CN, string::PRINTABLE, b"user")
                .attr(O, string::PRINTABLE, b"g:h")
        }),
        ("printable with *", |b| b.attr(CN, string::PRINTABLE, b"*&")),
        ("printable with @", |b| b.attr(CN, string::PRINTABLE, b"a@b")),
        ("printable with @ in OU", |b| {
            b.cn("u").attr(OU, string::PRINTABLE, b"a@b")
        }),
        ("ia5", |b| b.attr(CN, string::IA5, b"a@b")),
        ("ia5 high", |b| b.attr(CN, string::IA5, b"\xe9")),
        ("t61", |b| b.attr(CN, string::T61, b"jos\xe9")),
        ("bmp", |b| b.attr(CN, string::BMP, b"\0j\0\xe9")),
        ("bmp terminated", |b| b.attr(O, string::BMP, b"\0j\0\0").cn("u")),
        ("bmp odd", |b| b.attr(CN, string::BMP, b"\0j\0")),
        ("bmp surrogate", |b| b.attr(CN, string::BMP, b"\xd8\0\xdc\0")),
        ("bmp noncharacter", |b| b.attr(CN, string::BMP, b"\xfd\xd0")),
        ("universal CN", |b| b.attr(CN, string::UNIVERSAL, b"\0\0\0u")),
        ("universal O", |b| {
            b.cn("u").attr(O, string::UNIVERSAL, b"\0\0\0g")
        }),
        ("universal OU", |b| {
            b.cn("u").attr(OU, string::UNIVERSAL, b"\0\0\0g")
        }),
        ("visible", |b| b.attr(CN, string::VISIBLE, b"u")),
        ("numeric", |b| b.attr(CN, string::NUMERIC, b"12 3")),
        ("numeric with letters", |b| b.attr(CN, string::NUMERIC, b"12a")),
        ("integer", |b| b.cn("u").attr(UID, 0x02, b"\x01")),
        ("octet string O", |b| b.cn("u").attr(O, 0x04, b"g")),
        ("utf8 broken", |b| b.attr(CN, string::UTF8, b"\xff")),
        ("utf8 with NUL and newline", |b| {
            b.attr(CN, string::UTF8, b"a\0\nb")
        }),
        ("utf8 beyond the BMP", |b| {
            b.attr(CN, string::UTF8, "\u{1f600}".as_bytes())
        }),
        ("a name that is no sequence", |b| b.raw_subject(null())),
        ("attribute without value", |b| b.rdn(&[seq(&[oid(CN)])])),
        ("attribute with more than a value", |b| {
            b.rdn(&[seq(&[oid(CN), tlv(0x0c, b"u"), null()])])
        }),
        ("attribute with a huge arc", |b| {
            b.cn("u").attr("1.2.4294967296", string::UTF8, b"x")
        }),
    ]
}

/// Every change, at the leaf, an intermediate and the root.
fn features() -> Vec<Case> {
    let root = Ca::new("root");
    let middle = root.intermediate("middle");
    let mut cases = Vec::new();
    let mut add = |name: String, roots: &[&Ca], issued: &Issued| {
        let case = Case::new(name, roots, issued);
        // Once as it is, once with its certificates in the other order, once a moment later.
        cases.push(Case {
            time: case.time + 1,
            name: format!("{}, later", case.name),
            ..case.clone()
        });
        cases.push(Case {
            nanos: 1,
            name: format!("{}, a moment later", case.name),
            ..case.clone()
        });
        cases.push(case);
    };
    for (name, change) in changes() {
        for (place, ca) in [("root", &root), ("middle", &middle)] {
            let leaf = change(ca.leaf().cn("u").org("g")).issue();
            add(format!("leaf below {place}: {name}"), &[&root], &leaf);
        }
        let altered = change(Ca::build("altered")).issue_ca();
        add(
            format!("root: {name}"),
            &[&altered],
            &altered.leaf().cn("u").issue(),
        );
        add(
            format!("root over intermediate: {name}"),
            &[&altered],
            &altered.intermediate("m").leaf().cn("u").issue(),
        );
        add(format!("root as leaf: {name}"), &[&altered], &altered.as_leaf());
        let altered = change(root.build_intermediate("altered")).issue_ca();
        add(
            format!("intermediate: {name}"),
            &[&root],
            &altered.leaf().cn("u").issue(),
        );
        add(
            format!("upper intermediate: {name}"),
            &[&root],
            &altered.intermediate("m").leaf().cn("u").issue(),
        );
        add(
            format!("intermediate as a root: {name}"),
            &[&altered],
            &altered.leaf().cn("u").issue(),
        );
        add(
            format!("intermediate as leaf: {name}"),
            &[&root],
            &altered.as_leaf(),
        );
        let alone = change(
            Ca::build("self-signed")
                .no_basic_constraints()
                .eku(&[CLIENT_AUTH]),
        )
        .issue_ca();
        add(
            format!("self-signed leaf, trusted: {name}"),
            &[&root, &alone],
            &alone.as_leaf(),
        );
        add(
            format!("self-signed leaf, unknown: {name}"),
            &[&root],
            &alone.as_leaf(),
        );
    }
    for (name, change) in subjects() {
        add(format!("subject: {name}"), &[&root], &change(root.leaf()).issue());
        let odd = change(Ca::build("").raw_subject(seq(&[]))).issue_ca();
        add(
            format!("empty issuer: {name}"),
            &[&odd],
            &odd.leaf().cn("u").issue(),
        );
    }
    cases
}

/// Signature algorithms, and random pairs of changes.
fn combinations(rng: &mut Rng) -> Vec<Case> {
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
            let leaf = root.leaf().cn("u").sig(algorithm).issue();
            cases.push(Case::new(format!("{kind:?} {algorithm:?}"), &[&root], &leaf));
        }
    }
    let (changes, subjects) = (changes(), subjects());
    for index in 0..1200 {
        let mut names = Vec::new();
        let mut alter = |rng: &mut Rng, mut builder: Builder, place: &str| {
            // One change at a place on average: more of them hide each other.
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
            (rng.pick(&subjects).1)(ca.leaf())
        } else {
            ca.leaf().cn("u").org("g")
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

/// Several ways to a root, circles, same names, long chains, and the limit on signature checks.
fn paths(rng: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    let root = Ca::new("root");
    let other = Ca::new("other");
    let leaf = |ca: &Ca| ca.leaf().cn("u").org("g").issue();

    // The intermediate is missing, comes twice, comes before the leaf, or with strangers.
    let middle = root.intermediate("middle");
    let good = leaf(&middle);
    let mut add = |name: &str, roots: &[&Ca], chain: Vec<CertificateDer<'static>>| {
        let mut case = Case::new(name, roots, &good);
        case.chain = chain;
        cases.push(case);
    };
    let (l, m, r) = (good.chain[0].clone(), middle.cert.clone(), root.cert.clone());
    add("leaf alone", &[&root], vec![l.clone()]);
    add("leaf alone, intermediate trusted", &[&middle], vec![l.clone()]);
    add(
        "intermediate twice",
        &[&root],
        vec![l.clone(), m.clone(), m.clone()],
    );
    add("leaf twice", &[&root], vec![l.clone(), l.clone(), m.clone()]);
    add("intermediate first", &[&root], vec![m.clone(), l.clone()]);
    add("root sent too", &[&root], vec![l.clone(), m.clone(), r.clone()]);
    add(
        "root sent, not trusted",
        &[&other],
        vec![l.clone(), m.clone(), r.clone()],
    );
    add(
        "strangers",
        &[&root],
        vec![
            l.clone(),
            other.cert.clone(),
            m.clone(),
            other.intermediate("x").cert,
        ],
    );
    add(
        "a broken stranger",
        &[&root],
        vec![l.clone(), m.clone(), CertificateDer::from(vec![0x30, 0])],
    );
    add(
        "trailing byte",
        &[&root],
        vec![CertificateDer::from([l.as_ref(), &[0]].concat()), m.clone()],
    );
    add(
        "many roots",
        &[&other, &middle, &root],
        vec![l.clone(), m.clone()],
    );
    add(
        "a hundred certificates",
        &[&root],
        [vec![l.clone()], vec![m.clone(); 99]].concat(),
    );
    add(
        "a hundred and one certificates",
        &[&root],
        [vec![l.clone()], vec![m.clone(); 100]].concat(),
    );

    // A new certificate for the same root key; renewed roots; same name, other key.
    let renewed = Ca::build("root").with_key(Arc::clone(&root.key)).issue_ca();
    let expired = Ca::build("root")
        .with_key(Arc::clone(&root.key))
        .expired(NOW)
        .issue_ca();
    let namesake = Ca::new("root");
    for (name, roots) in [
        ("renewed", vec![&renewed]),
        ("expired then renewed", vec![&expired, &renewed]),
        ("renewed then expired", vec![&renewed, &expired]),
        ("expired alone", vec![&expired]),
        ("namesake first", vec![&namesake, &root]),
        ("namesake alone", vec![&namesake]),
        ("namesake and expired", vec![&namesake, &expired]),
        ("expired and namesake", vec![&expired, &namesake]),
    ] {
        cases.push(Case::new(format!("roots: {name}"), &roots, &leaf(&root)));
        cases.push(Case::new(
            format!("roots over intermediate: {name}"),
            &roots,
            &good,
        ));
    }

    // Cross-signing and circles.
    let a = Ca::new("a");
    let b = Ca::new("b");
    let (ab, ba) = (a.cross_sign(&b), b.cross_sign(&a));
    let below = b.intermediate("below");
    for (name, roots, extra) in [
        ("cross-signed", vec![&a], vec![&ab]),
        ("cross-signed circle", vec![&root], vec![&ab, &ba]),
        ("circle and way out", vec![&a], vec![&ba, &ab]),
        ("self-signed on the way", vec![&a], vec![&ab, &b]),
        ("own root sent", vec![&b], vec![&b, &ab]),
    ] {
        let mut case = Case::new(name, &roots, &leaf(&below));
        case.chain.extend(extra.iter().map(|ca| ca.cert.clone()));
        cases.push(case.clone());
        case.name = format!("{name}, reversed");
        case.chain[1..].reverse();
        cases.push(case);
    }

    // Long chains, with and without a limit.
    for length in 0..8_u64 {
        for limit in 0..8 {
            let top = Ca::build("top").path_len(limit).issue_ca();
            let mut ca = top.clone();
            for step in 0..length {
                ca = ca.intermediate(&format!("step {step}"));
            }
            cases.push(Case::new(
                format!("{length} intermediates of {limit}"),
                &[&top],
                &leaf(&ca),
            ));
            // Self-issued steps count for Go.
            let mut ca = top.clone();
            for _ in 0..length {
                ca = ca
                    .build_intermediate("")
                    .raw_subject(top.subject.clone())
                    .issue_ca();
            }
            cases.push(Case::new(
                format!("{length} self-issued of {limit}"),
                &[&top],
                &leaf(&ca),
            ));
        }
    }

    // The budget: many authorities of one name.
    for count in [1, 10, 48, 49, 50, 51, 97, 98, 99] {
        let crowd: Vec<Ca> = (0..count)
            .map(|_| root.build_intermediate("crowd").skid(None).issue_ca())
            .collect();
        for (position, at) in [("first", 0), ("last", count - 1)] {
            let mut case = Case::new(
                format!("crowd of {count}, signer {position}"),
                &[&root],
                &leaf(&crowd[at]),
            );
            case.chain.truncate(1);
            case.chain.extend(crowd.iter().map(|ca| ca.cert.clone()));
            cases.push(case.clone());
            case.name += ", unknown root";
            case.roots = vec![other.cert.clone()];
            cases.push(case);
        }
        let crowd: Vec<Ca> = (0..count)
            .map(|_| Ca::build("crowd").skid(None).issue_ca())
            .collect();
        let roots: Vec<&Ca> = crowd.iter().collect();
        cases.push(Case::new(
            format!("crowd of {count} roots"),
            &roots,
            &leaf(roots[count - 1]),
        ));
    }

    // Random graphs of authorities: few names, few keys, random issuers, random flaws.
    for index in 0..1200 {
        let keys: Vec<Arc<Key>> = (0..4).map(|key| Key::pooled(KeyKind::P256, key)).collect();
        let names = ["x", "y", "z"];
        let mut all: Vec<Ca> = Vec::new();
        for _ in 0..2 + rng.below(9) {
            let key = rng.pick(&keys);
            let name = *rng.pick(&names);
            let mut builder = if all.is_empty() || rng.one_in(4) {
                Ca::build(name)
            } else {
                rng.pick(&all).clone().build_intermediate(name)
            };
            builder = builder.with_key(Arc::clone(key));
            builder = match rng.below(14) {
                0 => builder.expired(NOW),
                1 => builder.eku(&[SERVER_AUTH]),
                2 => builder.path_len(0),
                3 => builder.path_len(1),
                4 => builder.no_key_usage(),
                5 => builder.basic_constraints(false, None),
                6 => builder.corrupt_signature(),
                7 => builder.skid(None).akid(None),
                8 => builder.skid(Some(b"odd")),
                9 => builder.san_dns(if rng.one_in(2) { "s" } else { "t" }),
                10 => builder.name_constraints(&[(2, b"example")], &[]),
                _ => builder,
            };
            all.push(builder.issue_ca());
        }
        let issuer = rng.pick(&all).clone();
        let mut case = Case::new(
            format!("graph {index}"),
            &[],
            &issuer.leaf().cn("u").san_dns("a.example").issue(),
        );
        case.chain.truncate(1);
        for ca in &all {
            match rng.below(4) {
                0 => case.roots.push(ca.cert.clone()),
                1..=2 => case.chain.push(ca.cert.clone()),
                _ => {}
            }
        }
        if case.roots.is_empty() {
            case.roots.push(all[0].cert.clone());
        }
        cases.push(case);
    }
    cases
}

fn name_constraints(rng: &mut Rng) -> Vec<Case> {
    const TREES: &[(u8, &[u8])] = &[
        (2, b"example.com"),
        (2, b".example.com"),
        (2, b"a.example.com"),
        (2, b"a-b.example.com"),
        (2, b"COM"),
        (2, b""),
        (2, b"host"),
        (2, b"example.com."),
        (2, b"*.example.com"),
        (1, b"example.com"),
        (1, b".example.com"),
        (1, b"alice@example.com"),
        (1, b"Alice@EXAMPLE.com"),
        (1, b"\"a b\"@example.com"),
        (1, b""),
        (1, b"@"),
        (6, b"example.com"),
        (6, b".example.com"),
        (6, b""),
        (6, b"10.0.0.1"),
        (6, b"a.example.com"),
        (7, &[10, 0, 0, 0, 255, 0, 0, 0]),
        (7, &[10, 1, 0, 0, 255, 255, 0, 0]),
        (7, &[10, 1, 2, 3, 255, 0, 0, 0]),
        (7, &[9, 9, 9, 9, 255, 0, 0, 0]),
        (7, &[0, 0, 0, 0, 0, 0, 0, 0]),
        (7, &[10, 0, 0, 1, 255, 255, 255, 255]),
        (7, &[0; 32]),
        (
            7,
            &[
                0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0, 0,
                0, 0, 0, 0, 0, 0, 0,
            ],
        ),
        (
            7,
            &[
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255,
                255, 255, 255, 255, 255, 0, 0, 0,
            ],
        ),
        (7, &[10, 0, 0, 0]),
        (4, b""),
    ];
    const NAMES: &[(u8, &[u8])] = &[
        (2, b"example.com"),
        (2, b"a.example.com"),
        (2, b"b.a.example.com"),
        (2, b"notexample.com"),
        (2, b"*.example.com"),
        (2, b"*.a.example.com"),
        (2, b"*"),
        (2, b"A.Example.COM"),
        (2, b"example.com."),
        (2, b".example.com"),
        (2, b""),
        (2, b"a-b.example.com"),
        (1, b"alice@example.com"),
        (1, b"Alice@example.com"),
        (1, b"alice@Example.Com"),
        (1, b"bob@a.example.com"),
        (1, b"\"a b\"@example.com"),
        (1, b"a\\ b@example.com"),
        (1, b"nobody"),
        (1, b""),
        (6, b"https://example.com/x"),
        (6, b"https://A.example.com:8443/"),
        (6, b"spiffe://a.example.com/ns/x"),
        (6, b"https://10.0.0.1/"),
        (6, b"https://[2001:db8::1]/"),
        (6, b"https://[::1]:80/"),
        (6, b"urn:x"),
        (6, b"https://a:b@example.com:1/"),
        (7, &[10, 0, 0, 1]),
        (7, &[10, 1, 2, 3]),
        (7, &[10, 0, 0, 0]),
        (7, &[192, 168, 0, 1]),
        (7, &[0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        (7, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1]),
        (3, b"x"),
    ];
    let mut cases = Vec::new();
    let key = Key::pooled(KeyKind::P256, 0);
    let with_names = |mut builder: Builder, names: &[(u8, &[u8])]| {
        for (tag, value) in names {
            builder = builder.san(*tag, value);
        }
        builder
    };
    let mut add =
        |name: String, permitted: &[(u8, &[u8])], excluded: &[(u8, &[u8])], names: &[(u8, &[u8])]| {
            let root = Ca::build("root")
                .with_key(Arc::clone(&key))
                .name_constraints(permitted, excluded)
                .issue_ca();
            let leaf = with_names(root.leaf().cn("u").with_key(Arc::clone(&key)), names).issue();
            cases.push(Case::new(name, &[&root], &leaf));
        };
    // Each tree against each name, both ways.
    for (t, tree) in TREES.iter().enumerate() {
        for (n, name) in NAMES.iter().enumerate() {
            add(format!("permitted {t}, name {n}"), &[*tree], &[], &[*name]);
            add(format!("excluded {t}, name {n}"), &[], &[*tree], &[*name]);
        }
    }
    // Random lists, at several places of a chain.
    for index in 0..1200 {
        let some = |rng: &mut Rng, list: &[(u8, &'static [u8])], most: usize| -> Vec<(u8, &'static [u8])> {
            // Of one kind more often than not, so that the lists meet.
            let kind = rng.pick(list).0;
            let alike = rng.one_in(2);
            (0..rng.below(most + 1))
                .map(|_| *rng.pick(list))
                .filter(|(tag, _)| !alike || *tag == kind)
                .collect()
        };
        let constrain = |rng: &mut Rng, builder: Builder| {
            if rng.one_in(3) {
                return builder;
            }
            let (permitted, excluded) = (some(rng, TREES, 4), some(rng, TREES, 3));
            if permitted.is_empty() && excluded.is_empty() {
                return builder;
            }
            builder.name_constraints(&permitted, &excluded)
        };
        let root = constrain(rng, Ca::build("root").with_key(Arc::clone(&key))).issue_ca();
        let middle = root.build_intermediate("middle").with_key(Arc::clone(&key));
        let middle_names = if rng.one_in(3) {
            some(rng, NAMES, 2)
        } else {
            Vec::new()
        };
        let middle = with_names(constrain(rng, middle), &middle_names).issue_ca();
        let names = some(rng, NAMES, 3);
        let leaf = with_names(middle.leaf().cn("u").with_key(Arc::clone(&key)), &names).issue();
        cases.push(Case::new(format!("constraints {index}"), &[&root], &leaf));
    }
    cases
}

fn policies(rng: &mut Rng) -> Vec<Case> {
    const POLICIES: &[&str] = &["2.5.29.32.0", "1.2.1", "1.2.2", "1.2.3"];
    let mut cases = Vec::new();
    let key = Key::pooled(KeyKind::P256, 0);
    for index in 0..2000 {
        let alter = |rng: &mut Rng, mut builder: Builder| {
            if !rng.one_in(6) {
                let mut list: Vec<&str> = POLICIES.iter().copied().filter(|_| rng.one_in(2)).collect();
                if rng.one_in(40) {
                    list.push(POLICIES[1]);
                }
                let list: Vec<Vec<u8>> = list.into_iter().map(|policy| seq(&[oid(policy)])).collect();
                builder = builder.extension("2.5.29.32", false, seq(&list));
            }
            if rng.one_in(3) {
                let list: Vec<Vec<u8>> = (0..=rng.below(3))
                    .map(|_| {
                        // Mapping from or to any policy is an error, so it is rare.
                        let from = usize::from(!rng.one_in(20));
                        seq(&[
                            oid(rng.pick::<&str>(&POLICIES[from..])),
                            oid(rng.pick::<&str>(&POLICIES[from..])),
                        ])
                    })
                    .collect();
                builder = builder.extension("2.5.29.33", true, seq(&list));
            }
            if rng.one_in(2) {
                let count = |rng: &mut Rng| vec![u8::try_from(rng.below(3)).unwrap()];
                let explicit = if rng.one_in(3) {
                    Vec::new()
                } else {
                    tlv(0x80, &count(rng))
                };
                let mapping = if rng.one_in(2) {
                    Vec::new()
                } else {
                    tlv(0x81, &count(rng))
                };
                builder = builder.extension("2.5.29.36", true, seq(&[explicit, mapping]));
            }
            if rng.one_in(4) {
                let skip = if rng.one_in(9) {
                    tlv(2, &[0xff])
                } else {
                    integer(rng.next() % 3)
                };
                builder = builder.extension("2.5.29.54", true, skip);
            }
            builder
        };
        let root = alter(rng, Ca::build("root").with_key(Arc::clone(&key))).issue_ca();
        let mut ca = root.clone();
        for step in 0..rng.below(5) {
            let mut next = ca.build_intermediate(&format!("m{step}"));
            if rng.one_in(4) {
                // Self-issued; another key keeps it from being a repetition.
                next = next.raw_subject(ca.subject.clone()).key(KeyKind::P256);
            } else {
                next = next.with_key(Arc::clone(&key));
            }
            ca = alter(rng, next).issue_ca();
        }
        let leaf = alter(rng, ca.leaf().cn("u").with_key(Arc::clone(&key))).issue();
        cases.push(Case::new(format!("policies {index}"), &[&root], &leaf));
    }
    cases
}

/// URIs must parse for a certificate to parse, and their hosts meet constraints.
fn uris(rng: &mut Rng) -> Vec<Case> {
    const PIECES: &[&str] = &[
        "http",
        "https",
        "spiffe",
        "urn",
        ":",
        "//",
        "/",
        "?",
        "#",
        "@",
        "[",
        "]",
        "%",
        "%25",
        "%41",
        "%zz",
        "%e9",
        ".",
        "..",
        "example.com",
        "a",
        "B",
        "1",
        "::1",
        "fe80::1",
        "10.0.0.1",
        ":80",
        ":",
        " ",
        "\t",
        "\u{7f}",
        "*",
        "_",
        "-",
        "+",
        "\\",
        "\"",
        "<",
        "|",
        "^",
        "~",
        "!",
        "$",
        "&",
        "'",
        "(",
        ")",
        ",",
        ";",
        "=",
        "{",
        "`",
    ];
    const PLAIN: &[&str] = &[
        "",
        "*",
        "#",
        "?",
        "http://",
        "http:///",
        "//",
        "///",
        "////",
        "http://a?b#c",
        "http://a#%zz",
        "http://a?%zz",
        "http://%41",
        "http://[::1%25eth0]/",
        "http://[::1%25]/",
        "http://[::1%25a%20b]/",
        "http://[::1%eth0]/",
        "http://[::ffff:1.2.3.4]/",
        "http://[1.2.3.4]/",
        "http://[::1]a/",
        "http://[::1]:/",
        "http://a:/",
        "mailto:a@b",
        "a:b:c",
        "a/b:c",
        "1:2",
        "http://u:p@h:1/",
        "http://u@v@h/",
        "http://u[@h/",
        "http://a..b/",
        "http://a./",
        "http://.a/",
        "http://a_b/",
        "http://a%25b/",
        "x://a:1:2/",
        "http://a:1:2/",
        "http://a]b/",
        "http://a]b:1/",
        "HTTP://A/",
        "http:/a",
        "http:a",
        "/a:b",
        "a%",
        "%41:b",
        "http://h/%",
        "http://h/%4",
        "http://a b/",
    ];
    let key = Key::pooled(KeyKind::P256, 0);
    let free = Ca::build("root").with_key(Arc::clone(&key)).issue_ca();
    let bound = Ca::build("root")
        .with_key(Arc::clone(&key))
        .name_constraints(&[(6, b"example.com"), (6, b"a")], &[(6, b"b.a")])
        .issue_ca();
    let mut texts: Vec<String> = PLAIN.iter().map(|text| (*text).to_owned()).collect();
    for _ in 0..700 {
        let start = if rng.one_in(3) {
            ""
        } else {
            *rng.pick(&["http://", "spiffe://", "x://", "https:", "//"])
        };
        let rest: String = (0..rng.below(6)).map(|_| *rng.pick(PIECES)).collect();
        texts.push(format!("{start}{rest}"));
    }
    let mut cases = Vec::new();
    for text in texts {
        for (name, root) in [("free", &free), ("bound", &bound)] {
            let leaf = root
                .leaf()
                .cn("u")
                .with_key(Arc::clone(&key))
                .san_uri(&text)
                .issue();
            cases.push(Case::new(format!("{name} URI {text:?}"), &[root], &leaf));
        }
    }
    cases
}

// ---- damage -----------------------------------------------------------------------------------------------------

/// Chains with a bit of everything in them, and the keys that signed them.
fn rich() -> (Ca, Ca, Issued) {
    let root = Ca::build("root")
        .path_len(2)
        .name_constraints(&[(2, b"example"), (7, &[10, 0, 0, 0, 255, 0, 0, 0])], &[])
        .issue_ca();
    let middle = root
        .build_intermediate("middle")
        .extension("2.5.29.32", false, seq(&[seq(&[oid("2.5.29.32.0")])]))
        .extension("2.5.29.36", false, seq(&[tlv(0x80, &[2])]))
        .extension(
            "2.5.29.31",
            false,
            seq(&[seq(&[tlv(0xa0, &tlv(0xa0, &tlv(0x86, b"http://crl")))])]),
        )
        .issue_ca();
    let leaf = middle
        .leaf()
        .attr(CN, string::PRINTABLE, b"user")
        .org("g1")
        .attr(O, string::BMP, b"\0g\x002")
        .uid("42")
        .attr(OU, string::IA5, b"unit")
        .san_dns("a.example")
        .san_ip(IpAddr::from([10, 0, 0, 1]))
        .extension("2.5.29.32", false, seq(&[seq(&[oid("1.2.3")])]))
        .extension(
            "1.3.6.1.5.5.7.1.1",
            false,
            seq(&[seq(&[oid("1.3.6.1.5.5.7.48.1"), tlv(0x86, b"http://a")])]),
        )
        .issue();
    (root, middle, leaf)
}

/// Bytes flipped, lost and added anywhere, signatures left as they are.
fn damaged_bytes(rng: &mut Rng) -> Vec<Case> {
    let (root, _, leaf) = rich();
    let plain = Case::new("", &[&root], &leaf);
    (0..2500)
        .map(|index| {
            let mut case = Case {
                name: format!("damage {index}"),
                ..plain.clone()
            };
            let all = case.chain.len() + case.roots.len();
            let at = rng.below(all);
            let target = if at < case.chain.len() {
                &mut case.chain[at]
            } else {
                &mut case.roots[0]
            };
            let mut bytes = target.to_vec();
            for _ in 0..=rng.below(2) {
                let position = rng.below(bytes.len());
                match rng.below(5) {
                    0 => bytes[position] ^= 1 << rng.below(8),
                    1 => bytes[position] = rng.byte(),
                    2 => bytes[position] = bytes[position].wrapping_add(1),
                    3 => drop(bytes.remove(position)),
                    _ => bytes.insert(position, rng.byte()),
                }
            }
            *target = CertificateDer::from(bytes);
            case
        })
        .collect()
}

/// A DER element as a tree.
#[derive(Debug, Clone)]
enum Node {
    Primitive(u8, Vec<u8>),
    Constructed(u8, Vec<Self>),
}

impl Node {
    /// Reads elements; `None` if the bytes are not made of them.
    fn list(mut bytes: &[u8]) -> Option<Vec<Self>> {
        let mut nodes = Vec::new();
        while let [tag, length, rest @ ..] = bytes {
            let (length, rest) = if *length < 0x80 {
                (usize::from(*length), rest)
            } else {
                let count = usize::from(length & 0x7f);
                let octets = rest.get(..count).filter(|octets| octets.len() <= 2)?;
                (
                    octets.iter().fold(0, |sum, octet| sum << 8 | usize::from(*octet)),
                    &rest[count..],
                )
            };
            let content = rest.get(..length)?;
            bytes = &rest[length..];
            // OCTET STRINGs of extensions hold elements too.
            let inner = if tag & 0x20 != 0 || *tag == 0x04 {
                Self::list(content)
            } else {
                None
            };
            nodes.push(inner.map_or_else(
                || Self::Primitive(*tag, content.to_vec()),
                |list| Self::Constructed(*tag, list),
            ));
        }
        bytes.is_empty().then_some(nodes)
    }

    fn encode(&self) -> Vec<u8> {
        match self {
            Self::Primitive(tag, content) => tlv(*tag, content),
            Self::Constructed(tag, list) => {
                tlv(*tag, &list.iter().flat_map(Self::encode).collect::<Vec<_>>())
            }
        }
    }

    fn count(&self) -> usize {
        match self {
            Self::Primitive(..) => 1,
            Self::Constructed(_, list) => 1 + list.iter().map(Self::count).sum::<usize>(),
        }
    }

    /// Changes the `index`-th node, counted from the top.
    fn damage(&mut self, index: usize, rng: &mut Rng) {
        if index == 0 {
            match self {
                Self::Primitive(tag, content) => match rng.below(7) {
                    0 => *tag = rng.byte(),
                    1 => content.clear(),
                    2 => content.insert(0, *rng.pick(&[0, 0xff, 0x80, 1])),
                    3 => content.push(rng.byte()),
                    4 => drop(content.pop()),
                    5 => {
                        *tag = *rng.pick(&[
                            1, 2, 3, 4, 5, 6, 0x0c, 0x12, 0x13, 0x14, 0x16, 0x17, 0x18, 0x1e, 0x30,
                        ]);
                    }
                    _ if content.is_empty() => *content = vec![rng.byte()],
                    _ => {
                        let at = rng.below(content.len());
                        content[at] = rng.byte();
                    }
                },
                Self::Constructed(tag, list) => match rng.below(7) {
                    0 => *tag = rng.byte(),
                    1 => list.clear(),
                    2 => list.push(Self::Primitive(5, Vec::new())),
                    3 => list.reverse(),
                    4 if !list.is_empty() => drop(list.remove(rng.below(list.len()))),
                    5 if !list.is_empty() => {
                        let twin = rng.pick(list).clone();
                        list.push(twin);
                    }
                    _ => list.insert(0, Self::Primitive(*rng.pick(&[1, 2, 5]), vec![rng.byte()])),
                },
            }
            return;
        }
        if let Self::Constructed(_, list) = self {
            let mut index = index - 1;
            for node in list {
                let size = node.count();
                if index < size {
                    return node.damage(index, rng);
                }
                index -= size;
            }
        }
    }
}

/// Elements changed, lost, doubled and swapped within a certificate, which is then signed again, so that what parses
/// is judged for what it says.
fn damaged_structure(rng: &mut Rng) -> Vec<Case> {
    let (root, middle, leaf) = rich();
    let plain = Case::new("", &[&root], &leaf);
    (0..4000)
        .map(|index| {
            let mut case = Case {
                name: format!("structure {index}"),
                ..plain.clone()
            };
            let (target, signer) = match rng.below(4) {
                0 => (&mut case.roots[0], &root.key),
                1 => (&mut case.chain[1], &root.key),
                _ => (&mut case.chain[0], &middle.key),
            };
            let mut whole = Node::list(target).expect("own certificates are DER").remove(0);
            for _ in 0..=rng.below(2) {
                let Node::Constructed(_, parts) = &mut whole else {
                    unreachable!()
                };
                let size = parts[0].count();
                // The signed part, or now and then what is around it.
                if rng.one_in(12) {
                    let part = rng.below(parts.len());
                    parts[part].damage(0, rng);
                } else {
                    parts[0].damage(rng.below(size), rng);
                }
            }
            let Node::Constructed(tag, parts) = &mut whole else {
                unreachable!()
            };
            let tbs = parts[0].encode();
            if rng.one_in(2) {
                // Keep the outer algorithm in step with the inner one.
                if let Node::Constructed(_, inner) = &parts[0]
                    && let Some(algorithm) = inner
                        .iter()
                        .find(|node| matches!(node, Node::Constructed(0x30, _)))
                    && parts.len() > 1
                {
                    parts[1] = algorithm.clone();
                }
            }
            if parts.len() > 2 {
                let signature = signer.sign(signer.default_algorithm(), &tbs);
                parts[2] = Node::Primitive(3, [&[0][..], &signature].concat());
            }
            let encoded = tlv(*tag, &parts.iter().flat_map(Node::encode).collect::<Vec<_>>());
            *target = CertificateDer::from(encoded);
            case
        })
        .collect()
}

/// Keys and signatures that aws-lc-rs verifies and does not make.
fn made_by_go(program: &Path) -> Vec<Case> {
    let output = Command::new(program)
        .arg("-make")
        .output()
        .expect("the Go program runs");
    assert!(output.status.success());
    let list = |value: &Value| -> Vec<CertificateDer<'static>> {
        let decode = |one: &Value| CertificateDer::from(STANDARD.decode(one.as_str().unwrap()).unwrap());
        value.as_array().unwrap().iter().map(decode).collect()
    };
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| {
            let value: Value = serde_json::from_str(line).unwrap();
            Case {
                name: value["name"].as_str().unwrap().to_owned(),
                roots: list(&value["roots"]),
                chain: list(&value["chain"]),
                time: value["time"].as_i64().unwrap(),
                nanos: 0,
            }
        })
        .collect()
}
