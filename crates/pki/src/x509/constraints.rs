//! Name constraints of CA certificates (RFC 5280 §4.2.1.10).
//!
//! Go applies the constraints of every certificate in a chain to the names of every certificate below it. A name that
//! cannot be compared (a URI with an IP address as its host, a malformed mailbox) fails if any certificate above it has
//! constraints.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use portcullis_go::hex::hex;

use super::alt_names::{SubjectAltNames, domain_valid, ia5};
use super::certificate::{Certificate, ParseError};
use super::der::{DerReader, MalformedDer, tag};

/// Limit on the comparisons of names with constraints for one path. Not in Go, which does not compare pairwise.
const MAX_COMPARISONS: usize = 250_000;

/// A name constraints extension.
#[derive(Debug, Clone, Default)]
pub struct NameConstraints {
    permitted: NameSubtrees,
    excluded: NameSubtrees,
}

#[derive(Debug, Clone, Default)]
struct NameSubtrees {
    dns: Vec<String>,
    ips: Vec<IpSubtree>,
    /// Whole mailboxes, with the domain in lower case.
    mailboxes: Vec<Mailbox>,
    /// Domains of mailboxes.
    email_domains: Vec<String>,
    uri_domains: Vec<String>,
}

/// An IP address range as encoded: the address may have bits set outside its mask.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct IpSubtree {
    address: Vec<u8>,
    mask: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Mailbox {
    local: Vec<u8>,
    domain: String,
}

impl NameConstraints {
    /// The constraints, and whether all of them are of a supported kind.
    // go: crypto/x509/parser.go, parseNameConstraintsExtension
    pub fn parse(mut der: DerReader<'_>) -> Result<(Self, bool), ParseError> {
        const INVALID: ParseError = ParseError("x509: invalid NameConstraints extension");
        let mut list = der.enter(tag::SEQUENCE).ok_or(INVALID)?;
        let permitted = list.optional(tag::explicit(0)).map_err(|MalformedDer| INVALID)?.unwrap_or_default();
        let excluded = list.optional(tag::explicit(1)).map_err(|MalformedDer| INVALID)?.unwrap_or_default();
        if !der.is_empty() || !list.is_empty() {
            return Err(INVALID);
        }
        if permitted.is_empty() && excluded.is_empty() {
            return Err(ParseError("x509: empty name constraints extension"));
        }
        let (permitted, all_permitted) = NameSubtrees::parse(DerReader::new(permitted))?;
        let (excluded, all_excluded) = NameSubtrees::parse(DerReader::new(excluded))?;
        Ok((Self { permitted, excluded }, all_permitted && all_excluded))
    }

    fn len(&self) -> usize {
        self.permitted.len() + self.excluded.len()
    }

    /// Checks the names of one certificate; the error gives the name and the constraint.
    fn check(&self, names: &ComparableNames<'_>) -> Result<(), String> {
        for ip in names.ips {
            let shown = show_ip(ip);
            if !self.permitted.ips.is_empty() && !permits_ip(&self.permitted.ips, ip) {
                return Err(not_permitted("IP address", &shown));
            }
            if let Some(range) = self.excluded.ips.iter().find(|range| range.excludes(ip)) {
                return Err(excluded("IP address", &shown, &range.to_string()));
            }
        }
        for name in names.dns {
            if !domain_valid(name, false) {
                return Err(format!("x509: cannot parse dnsName {name:?}"));
            }
            check_domain("DNS name", name, name, &self.permitted.dns, &self.excluded.dns)?;
        }
        for (uri, domain) in &names.uris {
            if !domain_valid(domain, false) {
                return Err(format!("x509: internal error: URI SAN {uri:?} failed to parse"));
            }
            check_domain("URI", uri, domain, &self.permitted.uri_domains, &self.excluded.uri_domains)?;
        }
        for mailbox in &names.mailboxes {
            self.check_mailbox(mailbox)?;
        }
        Ok(())
    }

    fn check_mailbox(&self, mailbox: &Mailbox) -> Result<(), String> {
        let shown = format!("{}@{}", String::from_utf8_lossy(&mailbox.local), mailbox.domain);
        if !domain_valid(&mailbox.domain, false) {
            return Err(format!("x509: cannot parse rfc822Name {shown:?}"));
        }
        // The first constraint that matches the mailbox, for the error text.
        let matching = |trees: &NameSubtrees, permitted| {
            if trees.mailboxes.contains(mailbox) {
                return Some(shown.clone());
            }
            trees.email_domains.iter().find(|domain| covers(domain, &mailbox.domain, permitted)).cloned()
        };
        let limited = !self.permitted.mailboxes.is_empty() || !self.permitted.email_domains.is_empty();
        if limited && matching(&self.permitted, true).is_none() {
            return Err(not_permitted("email address", &shown));
        }
        match matching(&self.excluded, false) {
            Some(constraint) => Err(excluded("email address", &shown, &constraint)),
            None => Ok(()),
        }
    }
}

fn not_permitted(kind: &str, name: &str) -> String {
    format!("{kind} {name:?} is not permitted by any constraint")
}

fn excluded(kind: &str, name: &str, constraint: &str) -> String {
    format!("{kind} {name:?} is excluded by constraint {constraint:?}")
}

fn check_domain(
    kind: &str,
    shown: &str,
    domain: &str,
    permitted: &[String],
    excluding: &[String],
) -> Result<(), String> {
    if !permitted.is_empty() && !permitted.iter().any(|tree| covers(tree, domain, true)) {
        return Err(not_permitted(kind, shown));
    }
    match excluding.iter().find(|tree| covers(tree, domain, false)) {
        Some(tree) => Err(excluded(kind, shown, tree)),
        None => Ok(()),
    }
}

/// Whether a domain is in a subtree. An empty subtree has all domains; one with a leading period has the strict
/// subdomains only. A wildcard is in an *excluded* subtree if any name that it matches could be.
// go: crypto/x509/constraints.go, dnsConstraints.query
fn covers(tree: &str, domain: &str, permitted: bool) -> bool {
    let (tree, domain) = (tree.as_bytes(), domain.as_bytes());
    let tail = domain.len().checked_sub(tree.len()).and_then(|above| domain.split_at_checked(above));
    if let Some((above, tail)) = tail
        && tail.eq_ignore_ascii_case(tree)
        && (tree.first().is_none_or(|first| *first == b'.') || above.last().is_none_or(|last| *last == b'.'))
    {
        return true;
    }
    !permitted
        && domain.first() == Some(&b'*')
        && parent(tree).is_some_and(|above| parent(domain).is_some_and(|own| own.eq_ignore_ascii_case(above)))
}

/// The name without its first label, from the period on.
fn parent(name: &[u8]) -> Option<&[u8]> {
    name.iter().position(|octet| *octet == b'.').and_then(|dot| name.get(dot..))
}

impl NameSubtrees {
    fn len(&self) -> usize {
        self.dns.len()
            + self.ips.len()
            + self.mailboxes.len()
            + self.email_domains.len()
            + self.uri_domains.len()
    }

    fn parse(mut der: DerReader<'_>) -> Result<(Self, bool), ParseError> {
        const INVALID: ParseError = ParseError("x509: invalid NameConstraints extension");
        const INVALID_VALUE: ParseError = ParseError("x509: invalid constraint value");
        let mut trees = Self::default();
        let mut complete = true;
        while !der.is_empty() {
            let mut tree = der.enter(tag::SEQUENCE).ok_or(INVALID)?;
            let base = tree.any().ok_or(INVALID)?;
            match base.tag {
                0x81 => {
                    let text = ia5(base.content).ok_or(INVALID_VALUE)?;
                    if text.contains('@') {
                        let mailbox = Mailbox::parse(&text)
                            .ok_or(ParseError("x509: failed to parse rfc822Name constraint"))?;
                        trees.mailboxes.push(mailbox);
                    } else if domain_valid(&text, true) {
                        trees.email_domains.push(text);
                    } else {
                        return Err(ParseError("x509: failed to parse rfc822Name constraint"));
                    }
                }
                0x82 => {
                    let text = ia5(base.content).ok_or(INVALID_VALUE)?;
                    if !domain_valid(&text, true) {
                        return Err(ParseError("x509: failed to parse dnsName constraint"));
                    }
                    trees.dns.push(text);
                }
                0x86 => {
                    let text = ia5(base.content).ok_or(INVALID_VALUE)?;
                    if text.parse::<IpAddr>().is_ok() || !domain_valid(&text, true) {
                        return Err(ParseError("x509: failed to parse URI constraint"));
                    }
                    trees.uri_domains.push(text);
                }
                0x87 => trees.ips.push(IpSubtree::parse(base.content)?),
                _ => complete = false,
            }
        }
        Ok((trees, complete))
    }
}

impl IpSubtree {
    fn parse(content: &[u8]) -> Result<Self, ParseError> {
        let width = match content.len() {
            8 => 4,
            32 => 16,
            _ => return Err(ParseError("x509: IP constraint contained value of wrong length")),
        };
        let (address, mask) = content.split_at_checked(width).unwrap_or_default();
        let mut ones = mask.iter().skip_while(|octet| **octet == 0xff);
        let edge = ones.next().copied().unwrap_or(0);
        if edge.leading_ones() + edge.trailing_zeros() < 8 || ones.any(|octet| *octet != 0) {
            return Err(ParseError("x509: IP constraint contained invalid mask"));
        }
        Ok(Self { address: address.to_vec(), mask: mask.to_vec() })
    }

    /// Compares the octets under the mask.
    fn contains_octets(&self, ip: &[u8]) -> bool {
        self.address.len() == ip.len()
            && self
                .address
                .iter()
                .zip(ip)
                .zip(&self.mask)
                .all(|((own, other), mask)| own & mask == other & mask)
    }

    /// Compares like Go's `net.IPNet`: an IPv4-mapped IPv6 address is an IPv4 address, on either side.
    fn contains(&self, ip: &[u8]) -> bool {
        let (address, ip) = (unmapped(&self.address), unmapped(ip));
        let mask = if address.len() < self.mask.len() {
            self.mask.get(12..).unwrap_or_default()
        } else {
            &self.mask
        };
        let own = Self { address: address.to_vec(), mask: mask.to_vec() };
        own.contains_octets(ip)
    }

    fn excludes(&self, ip: &[u8]) -> bool {
        // Either comparison excludes: stricter than Go for IPv4-mapped addresses.
        self.address.len() == ip.len() && (self.contains_octets(ip) || self.contains(ip))
    }
}

impl std::fmt::Display for IpSubtree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bits: u32 = self.mask.iter().map(|octet| octet.count_ones()).sum();
        write!(f, "{}/{bits}", show_ip(&self.address))
    }
}

/// Whether one of the ranges permits the address. Searches like Go, in the order of the encoded addresses, and so
/// misses ranges with bits set outside their mask; a complete search would permit names that Go rejects.
// go: crypto/x509/constraints.go, nameConstraintsSet
fn permits_ip(ranges: &[IpSubtree], ip: &[u8]) -> bool {
    let mut sorted: Vec<&IpSubtree> = ranges.iter().filter(|range| range.address.len() == ip.len()).collect();
    sorted.sort();
    let mut kept: Vec<&IpSubtree> = Vec::new();
    for range in sorted {
        let last_address: Vec<u8> =
            range.address.iter().zip(&range.mask).map(|(address, mask)| address | !mask).collect();
        let within = |outer: &&IpSubtree| outer.contains(&range.address) && outer.contains(&last_address);
        if !kept.last().is_some_and(within) {
            kept.push(range);
        }
    }
    let next = kept.partition_point(|range| range.address.as_slice() < ip);
    kept.get(next).is_some_and(|range| range.address == ip)
        || kept.get(next.saturating_sub(1)).is_some_and(|range| range.contains(ip))
}

/// The four octets of an IPv4-mapped IPv6 address; other addresses as they are.
pub(super) fn unmapped(ip: &[u8]) -> &[u8] {
    match ip {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, v4 @ ..] if v4.len() == 4 => v4,
        _ => ip,
    }
}

/// The domain a URI's host stands for under name constraints; the error is the reason it cannot be compared.
// go: crypto/x509/constraints.go, parseURIs
fn constrained_domain(uri: &str, host: &str) -> Result<String, String> {
    let unmatchable = |what: &str| format!("URI with {what} ({uri:?}) cannot be matched against constraints");
    let lower = host.to_ascii_lowercase();
    if lower.is_empty() {
        return Err(unmatchable("empty host"));
    }
    if lower.starts_with('[') {
        return Err(unmatchable("IP"));
    }
    let mut domain = lower;
    if domain.contains(':') && !domain.ends_with(']') {
        let (name, _port) = domain.rsplit_once(':').unwrap_or_default();
        if name.contains([':', '[', ']']) {
            return Err(format!("cannot parse URI host {host:?}"));
        }
        domain = name.to_owned();
    }
    if domain.parse::<IpAddr>().is_ok() {
        return Err(unmatchable("IP"));
    }
    Ok(domain)
}

/// An address of a certificate in text.
pub(super) fn show_ip(ip: &[u8]) -> String {
    if let Ok(v4) = <[u8; 4]>::try_from(unmapped(ip)) {
        return Ipv4Addr::from(v4).to_string();
    }
    if let Ok(v6) = <[u8; 16]>::try_from(ip) {
        return Ipv6Addr::from(v6).to_string();
    }
    hex(ip)
}

/// The names of a certificate, prepared for comparison with constraints.
struct ComparableNames<'a> {
    dns: &'a [String],
    ips: &'a [Vec<u8>],
    uris: Vec<(&'a str, String)>,
    mailboxes: Vec<Mailbox>,
}

impl<'a> ComparableNames<'a> {
    fn len(&self) -> usize {
        self.dns.len() + self.ips.len() + self.uris.len() + self.mailboxes.len()
    }

    fn new(names: &'a SubjectAltNames) -> Result<Self, String> {
        let uris = names
            .uris
            .iter()
            .map(|(text, uri)| Ok((text.as_str(), constrained_domain(text, &uri.host)?)))
            .collect::<Result<_, String>>()?;
        let mailboxes = names
            .emails
            .iter()
            .map(|email| Mailbox::parse(email).ok_or_else(|| format!("cannot parse rfc822Name {email:?}")))
            .collect::<Result<_, String>>()?;
        Ok(Self { dns: &names.dns, ips: &names.ips, uris, mailboxes })
    }
}

/// Checks the names of every certificate against the constraints of all certificates above it; leaf first.
// go: crypto/x509/constraints.go, checkChainConstraints
pub fn check_chain(chain: &[&Certificate]) -> Result<(), String> {
    let mut comparisons = 0_usize;
    let mut rest = chain;
    while let [certificate, above @ ..] = rest {
        rest = above;
        if certificate.extensions.alternative_names.is_none() {
            continue;
        }
        let mut constraints =
            above.iter().filter_map(|issuer| issuer.extensions.constraints.as_ref()).peekable();
        if constraints.peek().is_none() {
            continue;
        }
        let names = ComparableNames::new(&certificate.extensions.names)?;
        for constraint in constraints {
            comparisons = comparisons.saturating_add(constraint.len().saturating_mul(names.len()));
            if comparisons > MAX_COMPARISONS {
                return Err("too many constraints".to_owned());
            }
            constraint.check(&names)?;
        }
    }
    Ok(())
}

impl Mailbox {
    /// Parses an RFC 2821 mailbox, as leniently as Go: spaces in quoted strings, escapes outside of them.
    // go: crypto/x509/verify.go, parseRFC2821Mailbox
    fn parse(text: &str) -> Option<Self> {
        let mut bytes = text.bytes().peekable();
        let mut local = Vec::new();
        if bytes.next_if_eq(&b'"').is_some() {
            loop {
                match bytes.next()? {
                    b'"' => break,
                    b'\\' => {
                        local.push(bytes.next().filter(|byte| matches!(byte, 1..=9 | 11 | 12 | 14..=127))?);
                    }
                    byte @ (1..=8 | 11 | 12 | 14..=33 | 35..=91 | 93..=127) => local.push(byte),
                    _ => return None,
                }
            }
        } else {
            while let Some(byte) = bytes.next_if(|byte| *byte == b'\\' || is_atom(*byte)) {
                local.push(if byte == b'\\' { bytes.next()? } else { byte });
            }
            let dots = local.first() == Some(&b'.')
                || local.last() == Some(&b'.')
                || local.windows(2).any(|pair| pair == b"..");
            if local.is_empty() || dots {
                return None;
            }
        }
        bytes.next_if_eq(&b'@')?;
        let domain: String = bytes.map(char::from).collect();
        let labels_valid = domain.is_empty()
            || domain
                .split('.')
                .all(|label| !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_graphic()));
        labels_valid.then(|| Self { local, domain: domain.to_ascii_lowercase() })
    }
}

fn is_atom(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~.".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::{IpSubtree, Mailbox, constrained_domain, covers, domain_valid, permits_ip};

    #[test]
    fn subtrees_cover_whole_labels() {
        const CASES: &[(&str, &str, bool, bool)] = &[
            // tree, domain, covered if permitted, covered if excluded
            ("example.com", "example.com", true, true),
            ("example.com", "a.example.com", true, true),
            ("example.com", "EXAMPLE.com", true, true),
            ("example.com", "notexample.com", false, false),
            (".example.com", "example.com", false, false),
            (".example.com", "a.example.com", true, true),
            ("", "anything", true, true),
            ("a.example.com", "*.example.com", false, true),
            ("com", "*.example.com", true, true),
            ("a.b.example.com", "*.example.com", false, false),
        ];
        for (tree, domain, permitted, excluded) in CASES {
            assert_eq!(covers(tree, domain, true), *permitted, "{tree} permits {domain}");
            assert_eq!(covers(tree, domain, false), *excluded, "{tree} excludes {domain}");
        }
    }

    #[test]
    fn domains_and_mailboxes() {
        for (text, name, constraint) in [
            ("a.b", true, true),
            (".a", false, true),
            ("a.", false, false),
            ("a..b", false, false),
            ("a b", false, false),
            ("", true, true),
        ] {
            assert_eq!(domain_valid(text, false), name, "{text}");
            assert_eq!(domain_valid(text, true), constraint, "{text} as a constraint");
        }
        for (text, good) in [
            ("a@b", true),
            ("\"a b\"@c", true),
            ("a\\@b@c", true),
            (".a@b", false),
            ("a..b@c", false),
            ("@b", false),
            ("a", false),
            ("a@b.", false),
            ("a@", true),
        ] {
            assert_eq!(Mailbox::parse(text).is_some(), good, "{text}");
        }
    }

    #[test]
    fn address_ranges() {
        let range = |octets: &[u8]| IpSubtree::parse(octets).unwrap();
        let ten = range(&[10, 0, 0, 0, 255, 0, 0, 0]);
        assert!(permits_ip(std::slice::from_ref(&ten), &[10, 1, 2, 3]));
        assert!(!permits_ip(std::slice::from_ref(&ten), &[11, 1, 2, 3]));
        assert!(ten.excludes(&[10, 0, 0, 0]));
        assert_eq!(ten.to_string(), "10.0.0.0/8");
        assert!(IpSubtree::parse(&[10, 0, 0, 0, 255, 0, 255, 0]).is_err());
        assert!(IpSubtree::parse(&[10, 0, 0, 0, 254, 128, 0, 0]).is_err());
        assert!(IpSubtree::parse(&[10, 0, 0, 0]).is_err());
    }

    #[test]
    fn addresses_cannot_be_constrained() {
        assert_eq!(constrained_domain("u", "Example.com:80").as_deref(), Ok("example.com"));
        for host in ["", "1.2.3.4", "[::1]", "[::1]:80", "1.2.3.4:80", "a:1:2"] {
            assert!(constrained_domain("u", host).is_err(), "{host}");
        }
    }
}
