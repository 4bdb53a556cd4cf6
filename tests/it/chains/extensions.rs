//! Extensions that affect a whole chain: name constraints, policies, and URIs, which must parse.

use std::net::Ipv4Addr;
use std::sync::Arc;

use testkit::pki::{Builder, Ca, Key, KeyKind, integer, oid, seq, tlv};
use testkit::random::Rng;

use super::{Case, Peer};

/// A host that a certificate with these names is for, if one is a DNS name or an address.
fn host_of(names: &[(u8, &[u8])]) -> Option<String> {
    names.iter().find_map(|(tag, value)| match (tag, *value) {
        // Without a host, Go verifies no name.
        (2, name) => String::from_utf8(name.to_vec()).ok().filter(|name| !name.is_empty()),
        (7, &[a, b, c, d]) => Some(Ipv4Addr::new(a, b, c, d).to_string()),
        _ => None,
    })
}

pub(super) fn name_constraints(peer: Peer, rng: &mut Rng) -> Vec<Case> {
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
            let root =
                Ca::build("root").with_key(Arc::clone(&key)).name_constraints(permitted, excluded).issue_ca();
            let leaf = with_names(peer.bare_leaf(&root).cn("u").with_key(Arc::clone(&key)), names).issue();
            cases.push(Case { host: host_of(names), ..Case::new(name, &[&root], &leaf) });
        };
    // Each tree against each name, both ways.
    for (t, tree) in TREES.iter().enumerate() {
        for (n, name) in NAMES.iter().enumerate() {
            add(format!("permitted {t}, name {n}"), &[*tree], &[], &[*name]);
            add(format!("excluded {t}, name {n}"), &[], &[*tree], &[*name]);
        }
    }
    // At and beyond the limit of comparisons.
    for count in [499_usize, 501] {
        let texts: Vec<String> = (0..count).map(|index| format!("n{index}.example")).collect();
        let list: Vec<(u8, &[u8])> = texts.iter().map(|text| (2, text.as_bytes())).collect();
        add(format!("{count} constraints and names"), &list, &[], &list);
    }
    // Random lists, at several places of a chain.
    for index in 0..1200 {
        let some = |rng: &mut Rng, list: &[(u8, &'static [u8])], most: usize| -> Vec<(u8, &'static [u8])> {
            // Mostly of one kind, so that names and constraints match often.
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
        let middle_names = if rng.one_in(3) { some(rng, NAMES, 2) } else { Vec::new() };
        let middle = with_names(constrain(rng, middle), &middle_names).issue_ca();
        let names = some(rng, NAMES, 3);
        let leaf = with_names(peer.bare_leaf(&middle).cn("u").with_key(Arc::clone(&key)), &names).issue();
        let case = Case::new(format!("constraints {index}"), &[&root], &leaf);
        cases.push(Case { host: host_of(&names), ..case });
    }
    cases
}

pub(super) fn policies(peer: Peer, rng: &mut Rng) -> Vec<Case> {
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
                let explicit = if rng.one_in(3) { Vec::new() } else { tlv(0x80, &count(rng)) };
                let mapping = if rng.one_in(2) { Vec::new() } else { tlv(0x81, &count(rng)) };
                builder = builder.extension("2.5.29.36", true, seq(&[explicit, mapping]));
            }
            if rng.one_in(4) {
                let skip = if rng.one_in(9) { tlv(2, &[0xff]) } else { integer(rng.next_u64() % 3) };
                builder = builder.extension("2.5.29.54", true, skip);
            }
            builder
        };
        let root = alter(rng, Ca::build("root").with_key(Arc::clone(&key))).issue_ca();
        let mut ca = root.clone();
        for step in 0..rng.below(5) {
            let mut next = ca.build_intermediate(&format!("m{step}"));
            if rng.one_in(4) {
                // Self-issued, with another key so that it is not a duplicate.
                next = next.raw_subject(ca.subject.clone()).key(KeyKind::P256);
            } else {
                next = next.with_key(Arc::clone(&key));
            }
            ca = alter(rng, next).issue_ca();
        }
        let leaf = alter(rng, peer.leaf(&ca).cn("u").with_key(Arc::clone(&key))).issue();
        cases.push(Case::new(format!("policies {index}"), &[&root], &leaf));
    }
    cases
}

/// A certificate parses only if its URIs parse, and their hosts are subject to name constraints.
pub(super) fn uris(peer: Peer, rng: &mut Rng) -> Vec<Case> {
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
        "https://a:1:2/",
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
        let start =
            if rng.one_in(3) { "" } else { *rng.pick(&["http://", "spiffe://", "x://", "https:", "//"]) };
        let rest: String = (0..rng.below(6)).map(|_| *rng.pick(PIECES)).collect();
        texts.push(format!("{start}{rest}"));
    }
    let mut cases = Vec::new();
    for text in texts {
        for (name, root) in [("free", &free), ("bound", &bound)] {
            let leaf = peer.leaf(root).cn("u").with_key(Arc::clone(&key)).san_uri(&text).issue();
            cases.push(Case::new(format!("{name} URI {text:?}"), &[root], &leaf));
        }
    }
    cases
}
