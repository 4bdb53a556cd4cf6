//! Thousands of certificate chains of clients and servers, compared with Go's `crypto/x509`: verdicts, users and error
//! texts must be the same.
//!
//! The chains are a product of features, seeded random combinations, and damage: bytes of certificates changed with
//! and without a new signature over them. The few places where we are stricter are listed in `STRICTER`; being
//! more lenient is never allowed. Set `PORTCULLIS_SEED` to try other random chains.

pub(crate) mod damage;
mod extensions;
mod features;
mod paths;
mod servers;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis::internal::{BundleError, CaBundle};
use portcullis::internal::{UnverifiedChain, parse_for_handshake};
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};
use testkit::comparison::Compared;
use testkit::go_program::GoProgram;
use testkit::pki::{self, Builder, CLIENT_AUTH, Ca, Issued, Key, KeyKind, SERVER_AUTH};
use testkit::random::{Rng, inputs, seed};

/// 2026-01-01T00:00:00Z.
const NOW: i64 = 1_767_225_600;

/// Chains that we refuse and Go accepts: a part of our error (`*` matches any text), and the reason.
const STRICTER: &[(&str, &str)] = &[
    (
        "RSA keys below 2048 and above 8192 bits",
        "an RSA modulus that short can be factored; longer ones cost time",
    ),
    ("P-224 keys are not supported", "aws-lc-rs has no P-224, and no TLS client can present it"),
    ("too many certificates", "more than a hundred certificates are an attack, not a chain"),
    ("too many constraints", "a quarter of a million comparisons of names for one chain are an attack"),
    (
        "IP address * is excluded by constraint",
        "an excluded range also excludes IPv4-mapped addresses, and ranges written with host bits",
    ),
];

/// Whose chains are made.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Peer {
    Client,
    Server,
}

impl Peer {
    fn purpose(self) -> &'static str {
        match self {
            Self::Client => CLIENT_AUTH,
            Self::Server => SERVER_AUTH,
        }
    }

    /// A leaf without names.
    fn bare_leaf(self, ca: &Ca) -> Builder {
        ca.leaf().eku(&[self.purpose()])
    }

    /// A leaf; a server's is for the host `a.example`, and for 10.0.0.1.
    fn leaf(self, ca: &Ca) -> Builder {
        self.named(self.bare_leaf(ca))
    }

    /// A certificate with the names of a leaf.
    fn named(self, certificate: Builder) -> Builder {
        match self {
            Self::Client => certificate,
            Self::Server => certificate.san_dns("a.example").san_ip([10, 0, 0, 1].into()),
        }
    }
}

/// One chain against one bundle.
#[derive(Debug, Clone)]
struct Case {
    name: String,
    roots: Vec<CertificateDer<'static>>,
    chain: Vec<CertificateDer<'static>>,
    time: i64,
    nanos: u32,
    /// The host of a server.
    host: Option<String>,
}

impl Case {
    fn new(name: impl Into<String>, roots: &[&Ca], issued: &Issued) -> Self {
        Self {
            name: name.into(),
            roots: roots.iter().map(|ca| ca.cert.clone()).collect(),
            chain: issued.chain.clone(),
            time: NOW,
            nanos: 0,
            host: None,
        }
    }
}

// ---- the verifiers ----------------------------------------------------------------------------------------------

/// The result of a verifier.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    BadRoots,
    Unparsable,
    Refused,
    Server,
    User { name: String, groups: Vec<String>, uid: Result<Option<String>, String>, serial: String },
}

#[derive(Debug)]
struct Answer {
    outcome: Outcome,
    error: String,
    handshake: bool,
}

fn ours(case: &Case) -> Answer {
    let pem: String = case.roots.iter().map(|root| pki::pem("CERTIFICATE", root)).collect();
    let answer = |outcome, error: String, handshake| Answer { outcome, error, handshake };
    let bundle = match CaBundle::from_pem(pem.as_bytes()) {
        Ok(bundle) => bundle,
        Err(error) => return answer(Outcome::BadRoots, error.to_string(), false),
    };
    let parsed = case.chain.iter().try_for_each(|certificate| {
        portcullis::internal::parse_chain_for_handshake(certificate, &[]).map(drop).or_else(|error| {
            // Certificates with keys that TLS does not support still parse.
            if error.to_string().starts_with("tls: ") { Ok(()) } else { Err(error) }
        })
    });
    let handshake = parsed.is_ok() && parse_for_handshake(&case.chain[0]).is_ok();
    let now = Duration::new(u64::try_from(case.time).unwrap(), case.nanos);
    let verdict = UnverifiedChain::new(case.chain.clone()).verify(&bundle, now);
    if let Err(error) = parsed {
        assert_eq!(verdict.expect_err("a chain that does not parse").to_string(), error.to_string());
        return answer(Outcome::Unparsable, error.to_string(), false);
    }
    match verdict {
        Err(error) => answer(Outcome::Refused, error.to_string(), handshake),
        Ok(chain) => {
            assert!(chain.valid_from() <= now && now <= chain.valid_until(), "{}", case.name);
            let outcome = Outcome::User {
                name: chain.common_name().to_owned(),
                groups: chain.organizations().to_vec(),
                uid: chain.uid().map(|uid| uid.map(str::to_owned)).map_err(|error| error.to_string()),
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
        "server" => Outcome::Server,
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
    Answer { outcome, error: text("error"), handshake: value["handshake"].as_bool().unwrap() }
}

fn question(case: &Case) -> Value {
    let list = |certificates: &[CertificateDer<'_>]| -> Vec<String> {
        certificates.iter().map(|certificate| STANDARD.encode(certificate)).collect()
    };
    json!({
        "roots": list(&case.roots),
        "chain": list(&case.chain),
        "time": case.time,
        "nanos": case.nanos,
        "host": case.host,
    })
}

/// Compares the verdicts of both.
fn judged(we: &Answer, go: &Answer) -> Compared {
    let difference = || Err(format!("ours: {we:?}\n  Go:   {go:?}"));
    let is_declared = |(text, _): &&(&str, &str)| text.split(" * ").all(|part| we.error.contains(part));
    let is_accepted = matches!(we.outcome, Outcome::User { .. } | Outcome::Server);
    if we.outcome != go.outcome || we.handshake != go.handshake && we.outcome != Outcome::Unparsable {
        return match STRICTER.iter().find(is_declared) {
            Some((text, _)) if !is_accepted => Ok(*text),
            _ => difference(),
        };
    }
    match we.outcome {
        Outcome::Refused if we.error == go.error => Ok("refused"),
        Outcome::Refused if class(&we.error) == class(&go.error) => Ok("refused in other words"),
        Outcome::Refused => difference(),
        Outcome::User { .. } => Ok("users"),
        Outcome::Server => Ok("servers"),
        Outcome::Unparsable => Ok("unparsable"),
        Outcome::BadRoots => Ok("roots that are refused"),
    }
}

/// Compares groups of chains; fails if a way in which we are stricter no longer occurs.
fn compare(
    program: &GoProgram,
    groups: &BTreeMap<&str, Vec<Case>>,
    ours: impl Fn(&Case) -> Answer,
    stricter: &[(&str, &str)],
) {
    let total: usize = groups.values().map(Vec::len).sum();
    let mut seen = BTreeSet::new();
    for (group, cases) in groups {
        let show = |case: &Case| format!("{}\n  {}", case.name, question(case));
        let words =
            program.compare(group, cases, question, show, |case, value| judged(&ours(case), &theirs(value)));
        seen.extend(stricter.iter().map(|(text, _)| *text).filter(|text| words.count(text) > 0));
    }
    assert!(total >= 2000);
    for (text, _) in stricter {
        assert!(seen.contains(text), "no longer stricter: {text}");
    }
}

/// Chains of every kind.
fn groups(peer: Peer, program: &GoProgram) -> BTreeMap<&'static str, Vec<Case>> {
    let mut rng = Rng(seed());
    BTreeMap::from([
        ("1 features", features::features(peer)),
        ("2 combinations", features::combinations(peer, &mut rng)),
        ("3 paths", paths::paths(peer, &mut rng)),
        ("4 name constraints", extensions::name_constraints(peer, &mut rng)),
        ("5 policies", extensions::policies(peer, &mut rng)),
        ("6 URIs", extensions::uris(peer, &mut rng)),
        ("7 damaged bytes", damage::damaged_bytes(peer, &mut rng)),
        ("8 damaged structure, signed again", damage::damaged_structure(peer, &mut rng)),
        ("9 made by Go", made_by_go(program)),
        ("a their own authorities", damage::own_authorities(peer, &mut rng, inputs(1000))),
    ])
}

#[test]
fn chains_are_verified_as_by_go() {
    let Some(program) = GoProgram::build("chains") else { return };
    let mut groups = groups(Peer::Client, &program);
    // The names of constraints are hosts of servers.
    groups.values_mut().flatten().for_each(|case| case.host = None);
    compare(&program, &groups, ours, STRICTER);
}

/// The kind of an error: its text up to the first detail.
fn class(error: &str) -> &str {
    let error = error.strip_prefix("tls: failed to verify certificate: ").unwrap_or(error);
    let end = error.find(['"', ',']).unwrap_or(error.len());
    let head = &error[..end];
    ["current time", "not authorized to sign for this name", "certificate is valid for"]
        .iter()
        .find_map(|detail| head.find(detail).map(|at| &head[..at]))
        .unwrap_or(head)
        .trim_end()
}

#[test]
fn bundles_are_parsed_as_by_client_go() {
    let Some(program) = GoProgram::build("chains") else { return };
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
        ("headers, then one without", format!("{}{b}", a.replacen("-----\n", "-----\nX: y\n\n", 1))),
        ("trusted certificate", a.replace("CERTIFICATE", "TRUSTED CERTIFICATE")),
        ("not base64", a.replacen("MI", "M!", 1)),
        ("not base64, then a good one", format!("{}{b}", a.replacen("MI", "M!", 1))),
        ("not a certificate", broken.clone()),
        ("good, then not a certificate", format!("{a}{broken}")),
        ("no end", a.lines().filter(|line| !line.contains("END")).collect::<Vec<_>>().join("\n")),
        ("no end, then a good one", format!("-----BEGIN CERTIFICATE-----\nMIIB\n{a}")),
        ("other end", a.replace("END CERTIFICATE", "END OTHER")),
        ("no newline at the end", a.trim_end().to_owned()),
        ("same twice on one line", a.replace('\n', "")),
        ("empty block", "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n".to_owned()),
        ("begin inside a line", format!("x{a}")),
        ("padding missing", a.replace('=', "")),
    ];
    let question = |(_, pem): &(&str, String)| json!({"pem": STANDARD.encode(pem)});
    let show = |(name, _): &(&str, String)| (*name).to_owned();
    program.compare("bundles", &cases, question, show, |(_, pem), answer| {
        let ours = match CaBundle::from_pem(pem.as_bytes()) {
            Ok(bundle) => i64::try_from(bundle.subjects().len()).unwrap(),
            Err(BundleError::NoCertificates | BundleError::Malformed(_)) => -1,
        };
        if Some(ours) == answer["count"].as_i64() {
            Ok("as Go")
        } else {
            Err(format!("ours {ours}, Go {}", answer["count"]))
        }
    });
}

/// Keys and signatures that aws-lc-rs verifies and does not make.
fn made_by_go(program: &GoProgram) -> Vec<Case> {
    let list = |value: &Value| -> Vec<CertificateDer<'static>> {
        let decode = |one: &Value| CertificateDer::from(STANDARD.decode(one.as_str().unwrap()).unwrap());
        value.as_array().unwrap().iter().map(decode).collect()
    };
    String::from_utf8(program.run(&["-make"], b""))
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
                host: None,
            }
        })
        .collect()
}
