//! Path building: cross-signing, cycles, equal names, long chains, the limit on signature checks.

use std::sync::Arc;

use rustls_pki_types::CertificateDer;
use testkit::pki::{Ca, Key, KeyKind, SERVER_AUTH};
use testkit::random::Rng;

use super::{Case, NOW, Peer};

/// Chains with several paths, cycles, equal names, great length, or many signature checks.
pub(super) fn paths(peer: Peer, rng: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    let root = Ca::new("root");
    let other = Ca::new("other");
    let leaf = |ca: &Ca| peer.leaf(ca).cn("u").org("g").issue();

    // The intermediate is missing, repeated, before the leaf, or among unrelated certificates.
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
    add("intermediate twice", &[&root], vec![l.clone(), m.clone(), m.clone()]);
    add("leaf twice", &[&root], vec![l.clone(), l.clone(), m.clone()]);
    add("intermediate first", &[&root], vec![m.clone(), l.clone()]);
    add("root sent too", &[&root], vec![l.clone(), m.clone(), r.clone()]);
    add("root sent, not trusted", &[&other], vec![l.clone(), m.clone(), r.clone()]);
    add("strangers", &[&root], vec![l.clone(), other.cert.clone(), m.clone(), other.intermediate("x").cert]);
    add("a broken stranger", &[&root], vec![l.clone(), m.clone(), CertificateDer::from(vec![0x30, 0])]);
    add("trailing byte", &[&root], vec![CertificateDer::from([l.as_ref(), &[0]].concat()), m.clone()]);
    add("many roots", &[&other, &middle, &root], vec![l.clone(), m.clone()]);
    add("a hundred certificates", &[&root], [vec![l.clone()], vec![m.clone(); 99]].concat());
    add("a hundred and one certificates", &[&root], [vec![l.clone()], vec![m.clone(); 100]].concat());

    // A new certificate for the same root key; renewed roots; same name, other key.
    let renewed = Ca::build("root").with_key(Arc::clone(&root.key)).issue_ca();
    let expired = Ca::build("root").with_key(Arc::clone(&root.key)).expired(NOW).issue_ca();
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
        cases.push(Case::new(format!("roots over intermediate: {name}"), &roots, &good));
    }

    // Cross-signing and cycles.
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
            cases.push(Case::new(format!("{length} intermediates of {limit}"), &[&top], &leaf(&ca)));
            // Self-issued steps count for Go.
            let mut ca = top.clone();
            for _ in 0..length {
                ca = ca.build_intermediate("").raw_subject(top.subject.clone()).issue_ca();
            }
            cases.push(Case::new(format!("{length} self-issued of {limit}"), &[&top], &leaf(&ca)));
        }
    }

    // The budget of signature checks: many CAs with the same name.
    for count in [1, 10, 48, 49, 50, 51, 97, 98, 99] {
        let crowd: Vec<Ca> =
            (0..count).map(|_| root.build_intermediate("crowd").skid(None).issue_ca()).collect();
        for (position, at) in [("first", 0), ("last", count - 1)] {
            let mut case =
                Case::new(format!("crowd of {count}, signer {position}"), &[&root], &leaf(&crowd[at]));
            case.chain.truncate(1);
            case.chain.extend(crowd.iter().map(|ca| ca.cert.clone()));
            cases.push(case.clone());
            case.name += ", unknown root";
            case.roots = vec![other.cert.clone()];
            cases.push(case);
        }
    }
    for count in [1, 50, 99, 100, 101, 102] {
        let crowd: Vec<Ca> = (0..count).map(|_| Ca::build("crowd").skid(None).issue_ca()).collect();
        let roots: Vec<&Ca> = crowd.iter().collect();
        let last = roots[count - 1];
        cases.push(Case::new(format!("crowd of {count} roots"), &roots, &leaf(last)));
        // One more check, for the intermediate: the whole path shares the budget.
        let below = leaf(&last.intermediate("below"));
        cases.push(Case::new(format!("crowd of {count} roots over an intermediate"), &roots, &below));
    }

    // Random graphs of CAs: few names, few keys, random issuers, random defects.
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
            &peer.leaf(&issuer).cn("u").san_dns("a.example").issue(),
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
