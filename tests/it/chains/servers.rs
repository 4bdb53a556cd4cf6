//! Chains of servers, with the names of their hosts, compared with what Go's TLS clients accept.

use std::time::Duration;

use portcullis::internal::{CaBundle, ServerCertError, verify_server};
use testkit::go_program::GoProgram;
use testkit::pki::{self, CLIENT_AUTH, Ca, Key, KeyKind, SERVER_AUTH};
use testkit::random::{Rng, inputs, seed};

use super::{Answer, Case, Outcome, Peer, STRICTER, compare, groups};

fn ours(case: &Case) -> Answer {
    let pem: String = case.roots.iter().map(|root| pki::pem("CERTIFICATE", root)).collect();
    let answer = |outcome, error| Answer { outcome, error, handshake: true };
    let bundle = match CaBundle::from_pem(pem.as_bytes()) {
        Ok(bundle) => bundle,
        Err(error) => {
            return Answer { outcome: Outcome::BadRoots, error: error.to_string(), handshake: false };
        }
    };
    let now = Duration::new(u64::try_from(case.time).unwrap(), case.nanos);
    let host = case.host.as_deref().unwrap();
    match verify_server(&bundle, &case.chain, host, now) {
        Ok(()) => answer(Outcome::Server, String::new()),
        Err(error @ ServerCertError::Malformed(_)) => answer(Outcome::Unparsable, error.to_string()),
        Err(error) => answer(Outcome::Refused, error.to_string()),
    }
}

#[test]
fn servers_are_verified_as_by_go() {
    let Some(program) = GoProgram::build("chains") else { return };
    let mut rng = Rng(seed());
    let mut groups = groups(Peer::Server, &program);
    for case in groups.values_mut().flatten() {
        let usual =
            if rng.one_in(8) { *rng.pick(&["10.0.0.1", "b.example", "A.example."]) } else { "a.example" };
        case.host.get_or_insert_with(|| usual.to_owned());
    }
    groups.insert("b hosts", hosts(&mut rng, inputs(4000)));
    groups.insert("c purposes", purposes());
    groups.insert("d self-signed", self_signed());
    // An IPv4-mapped address that is excluded is in none of these certificates beside the host.
    let stricter: Vec<_> =
        STRICTER.iter().filter(|(text, _)| !text.starts_with("IP address")).copied().collect();
    compare(&program, &groups, ours, &stricter);
}

/// Parts of names and hosts.
const PIECES: &[&str] = &[
    "a", "b", "A", "example", "test", "*", "a*", "-a", "a-", "_", "xn--a", "1", "10.0.0.1", "::1", ".", "",
    " ", "%", "a b", "\u{7f}", "*.a", "a.*",
];

/// Hosts that are like names.
fn alike(rng: &mut Rng, name: &str) -> String {
    let (first, rest) = name.split_once('.').unwrap_or((name, ""));
    match rng.below(14) {
        0..=2 => name.to_owned(),
        3 => name.to_uppercase(),
        4 => format!("{name}."),
        5 => name.trim_end_matches('.').to_owned(),
        6 => format!("x.{name}"),
        7 => rest.to_owned(),
        8 | 9 => format!("x.{rest}"),
        10 => format!("x.y.{rest}"),
        11 => format!("[{name}]"),
        12 => format!("{first}{rest}"),
        _ => format!("*.{rest}"),
    }
}

fn random_name(rng: &mut Rng) -> String {
    let count = 1 + rng.below(4);
    (0..count).map(|_| *rng.pick(PIECES)).collect::<Vec<_>>().join(if rng.one_in(9) { "" } else { "." })
}

const ADDRESSES: &[&[u8]] = &[
    &[10, 0, 0, 1],
    &[127, 0, 0, 1],
    &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1],
    &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    &[0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
];

const ADDRESS_HOSTS: &[&str] = &[
    "10.0.0.1",
    "[10.0.0.1]",
    "::ffff:10.0.0.1",
    "[::ffff:10.0.0.1]",
    "::ffff:a00:1",
    "127.0.0.1",
    "127.1",
    "010.0.0.1",
    "10.0.0.1.",
    "::1",
    "[::1]",
    "0:0::1",
    "::1%lo",
    "[::1%25lo]",
    "2001:db8::1",
    "2001:DB8:0:0::1",
    "2001:db8::01",
    "2001:db8::00001",
    "[2001:db8::1",
    "",
    "[]",
    "[",
    "1.2.3",
    "0x7f.0.0.1",
    "2130706433",
];

/// Names of many spellings in the certificate, and hosts like them.
fn hosts(rng: &mut Rng, count: usize) -> Vec<Case> {
    let root = Ca::new("root");
    let key = Key::pooled(KeyKind::P256, 0);
    (0..count)
        .map(|index| {
            let mut leaf = Peer::Server.bare_leaf(&root).with_key(std::sync::Arc::clone(&key));
            let common = random_name(rng);
            let mut known = vec![common.clone()];
            leaf = leaf.cn(&common);
            for _ in 0..rng.below(4) {
                let name = random_name(rng);
                leaf = leaf.san(2, name.as_bytes());
                known.push(name);
            }
            for _ in 0..rng.below(3) {
                leaf = leaf.san(7, rng.pick::<&[u8]>(ADDRESSES));
            }
            if rng.one_in(20) {
                // More names than an error lists.
                leaf = (0..105).fold(leaf, |leaf, index| leaf.san_dns(&format!("n{index}.example")));
            }
            let host = if rng.one_in(4) {
                (*rng.pick(ADDRESS_HOSTS)).to_owned()
            } else {
                let name = rng.pick(&known).clone();
                alike(rng, &name)
            };
            let case = Case::new(format!("host {index} {host:?} of {known:?}"), &[&root], &leaf.issue());
            // Without a host, Go verifies no name.
            let host = if host.is_empty() { "a.example".to_owned() } else { host };
            Case { host: Some(host), ..case }
        })
        .collect()
}

/// Every pair of extended key usages in a CA and a leaf.
fn purposes() -> Vec<Case> {
    const USAGES: &[Option<&[&str]>] = &[
        None,
        Some(&[]),
        Some(&[SERVER_AUTH]),
        Some(&[CLIENT_AUTH]),
        Some(&[CLIENT_AUTH, SERVER_AUTH]),
        Some(&[pki::ANY_EKU]),
        Some(&["1.2.3.4"]),
        // Netscape and Microsoft server gated crypto, which browsers once took for serverAuth.
        Some(&["2.16.840.1.113730.4.1"]),
        Some(&["1.3.6.1.4.1.311.10.3.3"]),
    ];
    let with = |builder: pki::Builder, usages: Option<&[&str]>| match usages {
        Some(usages) => builder.eku(usages),
        None => builder.no_eku(),
    };
    let root = Ca::new("root");
    let mut cases = Vec::new();
    for above in USAGES {
        for own in USAGES {
            let middle = with(root.build_intermediate("middle"), *above).issue_ca();
            let limited = with(Ca::build("limited"), *above).issue_ca();
            for (ca, trusted) in [(&middle, &root), (&limited, &limited), (&middle, &middle)] {
                let leaf = with(Peer::Server.leaf(ca), *own).issue();
                let case = Case::new(format!("{own:?} below {above:?}"), &[trusted], &leaf);
                cases.push(Case { host: Some("a.example".to_owned()), ..case });
            }
        }
    }
    cases
}

/// Self-signed certificates of servers, in the pool and not, as `openssl req -x509` makes them and otherwise.
fn self_signed() -> Vec<Case> {
    let other = Ca::new("other");
    let mut cases = Vec::new();
    for is_ca in [Some(true), Some(false), None] {
        for usages in [None, Some(SERVER_AUTH), Some(CLIENT_AUTH)] {
            for (days, host) in [("valid", "a.example"), ("valid", "b.example"), ("expired", "a.example")] {
                let mut own = Ca::build("own").san_dns("a.example");
                own = match is_ca {
                    Some(is_ca) => own.basic_constraints(is_ca, None),
                    None => own.no_basic_constraints().no_key_usage(),
                };
                own = usages.map_or_else(|| own.clone().no_eku(), |usage| own.clone().eku(&[usage]));
                own = if days == "expired" { own.expired(super::NOW) } else { own };
                let own = own.issue_ca();
                let namesake = Ca::build("own").san_dns("a.example").issue_ca();
                for roots in [vec![&own], vec![&other], vec![&namesake], vec![&other, &own]] {
                    let name = format!("CA {is_ca:?}, {usages:?}, {days}, {host}, {} roots", roots.len());
                    let case = Case::new(name, &roots, &own.as_leaf());
                    cases.push(Case { host: Some(host.to_owned()), ..case });
                }
            }
        }
    }
    cases
}
