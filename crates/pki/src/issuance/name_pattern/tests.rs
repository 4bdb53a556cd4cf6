//! The matches of patterns: none matches more than an operator expects.

use std::str::FromStr;

use proptest::prelude::*;

use super::{DnsPattern, EmailPattern, IdentityPattern, UriPattern, email, identity, uri};
use crate::issuance::dns;

fn identity_is_signed(pattern: &str, name: &str) -> bool {
    pattern.parse::<IdentityPattern>().unwrap().covers(name) && identity(name).is_ok()
}

fn dns_is_signed(pattern: &str, name: &str, wildcards: bool) -> bool {
    pattern.parse::<DnsPattern>().unwrap().covers(name) && dns::check(name, wildcards).is_ok()
}

fn email_is_signed(pattern: &str, name: &str) -> bool {
    pattern.parse::<EmailPattern>().unwrap().covers(name) && email(name).is_ok()
}

fn uri_is_signed(pattern: &str, name: &str) -> bool {
    pattern.parse::<UriPattern>().unwrap().covers(name) && uri(name).is_ok()
}

#[test]
fn a_star_covers_no_name_that_kubernetes_reserves() {
    for (pattern, name, signed) in [
        ("*", "alice", true),
        ("*", "system:masters", false),
        ("*", "system:node:other", false),
        ("*", "system:portcullis", false),
        ("*", "kubeadm:cluster-admins", false),
        ("*masters", "system:masters", false),
        ("*:other", "system:node:other", false),
        ("s*", "system:node:other", false),
        ("system*", "system:node:other", false),
        ("system:node:*", "system:node:other", true),
        ("system:*", "system:node:other", true),
        ("system:*", "system:masters", false),
        ("system:masters", "system:masters", true),
        ("system:node:a", "system:node:a", true),
        ("kubeadm:*", "kubeadm:cluster-admins", true),
        ("*", "System:masters", true),
        ("service-*", "service-a b", true),
        ("service-*", "service-a ", false),
        ("*", " a", false),
        ("*", "", false),
        ("service-*", "service-\u{0}", false),
        ("service-*", "service-a\n", false),
        ("service-*", "service-\u{202e}a", false),
        ("service-*", "service-\u{200b}a", false),
    ] {
        assert_eq!(identity_is_signed(pattern, name), signed, "{pattern} {name:?}");
    }
}

#[test]
fn a_star_covers_no_other_domain() {
    for (pattern, name, wildcards, signed) in [
        ("*.svc.example.com", "a.svc.example.com", false, true),
        ("*.svc.example.com", "a.b.svc.example.com", false, true),
        ("*.svc.example.com", "*.svc.example.com", false, false),
        ("*.svc.example.com", "*.svc.example.com", true, true),
        ("*.svc.example.com", "*.*.svc.example.com", true, false),
        ("*.svc.example.com", "evil.org a.svc.example.com", true, false),
        ("*.svc.example.com", "evil.org\0.svc.example.com", true, false),
        ("*.svc.example.com", ".svc.example.com", true, false),
        ("*.svc.example.com", "a..svc.example.com", true, false),
        ("web-*", "web-1", false, true),
        ("web-*", "web-1.evil.org", false, false),
        ("web.*", "web.example", false, true),
        ("*", "any.example", false, true),
        ("*", "*.com", true, false),
        ("a.example", "a.example", false, true),
        ("a.example", "A.example", false, false),
    ] {
        assert_eq!(dns_is_signed(pattern, name, wildcards), signed, "{pattern} {name:?}");
    }
    for pattern in
        ["a b", "*.a_b", "*,a.example", "*.bücher.example", "a..b", "http://a", "", "*@a", "*.", "*..a"]
    {
        assert!(pattern.parse::<DnsPattern>().is_err(), "{pattern}");
    }
    for pattern in ["*example.com", "*-a.example.com", "*com"] {
        let error = pattern.parse::<DnsPattern>().map_err(|error| error.to_string());
        let fix = "put a dot after it, as in *.example.com";
        assert!(error.as_ref().is_err_and(|error| error.contains(fix)), "{pattern}: {error:?}");
    }
}

#[test]
fn a_star_covers_no_other_mail_server() {
    for (pattern, name, signed) in [
        ("*@example.com", "a.b+c@example.com", true),
        ("*@example.com", "a@evil.org@example.com", false),
        ("*@example.com", "\"a@evil.org\"@example.com", false),
        ("*@example.com", "a b@example.com", false),
        ("*@example.com", "@example.com", false),
        ("*@example.com", ".a@example.com", false),
        ("root@*", "root@mail.example", true),
        ("root@*", "root@a b", false),
        ("*", "a@b", true),
        ("*", "a", false),
        ("a@example.com", "a@example.com", true),
    ] {
        assert_eq!(email_is_signed(pattern, name), signed, "{pattern} {name:?}");
    }
    for pattern in [
        "*example.com",
        "root*",
        "a@b@*",
        "a",
        "a@",
        "root@mail*",
        "root@mail.example*",
        "*root@example.com",
        "*@a b",
        "a b@*",
        "@*",
    ] {
        assert!(pattern.parse::<EmailPattern>().is_err(), "{pattern}");
    }
}

#[test]
fn a_star_covers_no_other_host_and_no_way_out_of_a_path() {
    for (pattern, name, signed) in [
        ("spiffe://td/ns/a/*", "spiffe://td/ns/a/sa/x", true),
        ("spiffe://td/ns/a/*", "spiffe://td/ns/a/", true),
        ("spiffe://td/ns/a/*", "spiffe://td/ns/a/../../ns/kube-system/sa/x", false),
        ("spiffe://td/ns/a/*", "spiffe://td/ns/a/%2e%2e/b", false),
        ("spiffe://td/ns/a/*", "spiffe://td/ns/a/.%2E/b", false),
        ("spiffe://td/ns/a/*", "spiffe://td/ns/a/..%2fb", false),
        ("spiffe://td/ns/a/*", "spiffe://td/ns/a/%252e%252e/b", false),
        ("spiffe://td/ns/a/*", "spiffe://td/ns/a/..\\b", false),
        ("spiffe://td/ns/a/*", "spiffe://td/ns/a/%5c", false),
        ("spiffe://td/ns/a/*", "spiffe://td/ns/a/%00", false),
        ("spiffe://td/ns/a/*", "spiffe://td/ns/a/./b", false),
        ("spiffe://td/ns/a/*", "spiffe://td/ns/a/b//c", false),
        ("spiffe://td/ns/a/*", "spiffe://td/ns/a/b/..", false),
        ("spiffe://td/ns/a/*", "spiffe://td/ns/a/..", false),
        ("spiffe://td/ns/a/*", "spiffe://td/ns/a/b?c", false),
        ("spiffe://td/ns/a/*", "spiffe://td/ns/a/b#c", false),
        ("spiffe://td/ns/a/*", "spiffe://td/ns/a/b c", false),
        ("spiffe://td/ns/a/*", "spiffe://td/ns/a/%20b", true),
        ("spiffe://td/ns/a/*", "spiffe://td/ns/a/%6e", false),
        ("spiffe://td/ns/a/*", "spiffe://TD/ns/a/b", false),
        ("spiffe://td/ns/a*", "spiffe://td/ns/a/../b", false),
        ("spiffe://td/ns/a*", "spiffe://td/ns/ab", true),
        ("urn:example:*", "urn:example:a", true),
        ("urn:example:*", "urn:example:a/../b", false),
        ("did:web:example.com:*", "did:web:example.com:a", true),
        ("did:web:example.com:*", "did:web:example.com.evil.org:a", false),
        ("https://a/?b", "https://a/?b", true),
        ("*", "https://evil.org/?x", true),
        ("*", "https://user@host/", false),
        ("*", "https://%C3%A9/a", false),
        ("*", "https://urn:", false),
        ("*", "https://example.com?", false),
        ("*", "https://example.com#a", false),
        ("*", "https://example.com/?a", true),
        // Addresses to browsers, names to Go.
        ("*", "https://1", false),
        ("*", "https://1.2.3:443/", false),
        ("*", "https://0x7F.1./", false),
        ("*", "https://example.0x", false),
        ("*", "https://010.0.0.1/", false),
        ("*", "https://1.2.3.4:443/a", true),
        ("*", "https://1a/", true),
        ("*", "WSS://1/", false),
        ("*", "https://xn--1-/", false),
        ("*", "https://a.XN--1-.example/", false),
        ("*", "https://xn--bcher-kva.example/", true),
        // Texts to browsers.
        ("*", "spiffe://prod.1/ns/a", true),
        ("spiffe://12345/*", "spiffe://12345/a", true),
        ("*", "https://[::1]:443/", true),
        ("*", "/relative", false),
    ] {
        assert_eq!(uri_is_signed(pattern, name), signed, "{pattern} {name:?}");
    }
    for pattern in [
        "https://example.com*",
        "https://*",
        "https://1/*",
        "https:*",
        "https:/*",
        "*/x",
        "http*",
        "https://a/../*",
        "a b:*",
        "https://a/%2e*",
        "https://user@a/*",
        "urn:exam*",
        "did:web:example.com*",
        "mailto:root@example*",
        "https://a/",
        "/a/*",
    ] {
        assert_eq!(pattern.parse::<UriPattern>().is_ok(), pattern == "https://a/", "{pattern}");
    }
}

/// Random concatenations of pieces of patterns and attacks.
fn made_of(pieces: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(pieces), 0..8).prop_map(|pieces| pieces.concat())
}

const PIECES: &[&str] = &[
    "a",
    "b",
    "Z",
    "1",
    "-",
    "_",
    ".",
    "..",
    "/",
    "//",
    ":",
    "@",
    "*",
    "*.",
    "%2e",
    "%2f",
    "%41",
    "%C3%A9",
    "\\",
    " ",
    "\0",
    "\n",
    "?",
    "#",
    "\"",
    "é",
    "\u{202e}",
    "system:",
    "system:masters",
    "node:",
    "kubeadm:",
    "cluster-admins",
    "spiffe://td/",
    "https://",
    "urn:",
    "example.com",
    ".example.com",
    "evil.org",
    "@example.com",
    "ns/",
    "xn--a",
];

/// The naive semantics: the text is the pattern with its `*` replaced.
fn reads_as(pattern: &str, text: &str) -> bool {
    pattern == text
        || pattern.split_once('*').is_some_and(|(before, after)| {
            text.len() >= before.len() + after.len() && text.starts_with(before) && text.ends_with(after)
        })
}

/// A pattern that is cut from the text, so that many match.
fn cut(text: &str, at: usize, suffix: bool) -> String {
    let at = (0..=at % (text.len() + 1)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let (before, after) = text.split_at(at);
    if suffix { format!("*{after}") } else { format!("{before}*") }
}

fn covers<P: FromStr>(pattern: &str, covers: impl Fn(&P) -> bool) -> bool {
    pattern.parse::<P>().is_ok_and(|pattern| covers(&pattern))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn no_pattern_matches_more_than_its_naive_semantics(
        text in made_of(PIECES),
        free in made_of(PIECES),
        at in any::<usize>(),
        suffix in any::<bool>(),
        own in any::<bool>(),
        wildcards in any::<bool>(),
    ) {
        let pattern = if own { cut(&text, at, suffix) } else { free };
        let star = pattern.contains('*') && pattern != "*";

        if covers::<IdentityPattern>(&pattern, |known| known.covers(&text)) && identity(&text).is_ok() {
            prop_assert!(reads_as(&pattern, &text));
            prop_assert!(!text.chars().any(char::is_control) && text.trim() == text && !text.is_empty());
            for reserved in ["system:", "kubeadm:"] {
                prop_assert!(!text.starts_with(reserved) || pattern.starts_with(reserved));
            }
            prop_assert!(text != "system:masters" || pattern == text);
        }
        if covers::<DnsPattern>(&pattern, |known| known.covers(&text)) && dns::check(&text, wildcards).is_ok() {
            prop_assert!(reads_as(&pattern, &text));
            let plain = text.strip_prefix("*.").filter(|_| wildcards).unwrap_or(&text);
            prop_assert!(plain.split('.').all(|label| !label.is_empty()
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')));
            // The pattern determines the domain, unless the pattern is `*` alone.
            let before = pattern.trim_end_matches('*');
            let by_star = text.get(before.len()..).unwrap_or_default();
            prop_assert!(!(star && pattern.ends_with('*') && by_star.contains('.')));
            prop_assert!(!star || !pattern.starts_with('*') || pattern.starts_with("*."), "{pattern} {text}");
        }
        if covers::<EmailPattern>(&pattern, |known| known.covers(&text)) && email(&text).is_ok() {
            prop_assert!(reads_as(&pattern, &text));
            prop_assert_eq!(text.matches('@').count(), 1);
            prop_assert!(!star || pattern.starts_with("*@") || pattern.ends_with("@*"), "{pattern} {text}");
        }
        if covers::<UriPattern>(&pattern, |known| known.covers(&text)) && uri(&text).is_ok() {
            prop_assert!(reads_as(&pattern, &text));
            // Another parser finds the same host, and serializes to the same text: the URI was in normal form.
            if let Ok(read) = url::Url::parse(&text) && read.has_host() {
                let normal = read.as_str();
                prop_assert!(normal.eq_ignore_ascii_case(&text) || normal.eq_ignore_ascii_case(&format!("{text}/")),
                    "{normal} {text}");
                if star {
                    let known = url::Url::parse(&pattern.replace('*', "x")).unwrap();
                    prop_assert_eq!(known.host_str(), read.host_str());
                }
            }
        }
    }
}
