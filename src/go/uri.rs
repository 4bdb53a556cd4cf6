//! URIs in subject alternative names: which ones Go's `net/url` parses, and their host.
//!
//! A URI that does not parse makes Go refuse the certificate; the host is what name constraints are compared with.
//! Only ASCII reaches this module.

use std::net::{IpAddr, Ipv6Addr};

use crate::go::escape::{self, Mode, unescape_bytes};

/// A URI that parses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Uri {
    /// The host part with its port, decoded; empty if there is none.
    pub(crate) host: String,
    /// The URI as `net/url` writes it again, which is what a certificate gets that was requested with it.
    pub(crate) text: String,
}

/// Parses a URI; `None` if `net/url.Parse` would fail.
// go: net/url/url.go, Parse and URL.String
pub(crate) fn parse(uri: &str) -> Option<Uri> {
    let (rest, fragment) = uri.split_once('#').unwrap_or((uri, ""));
    if rest.bytes().any(|byte| byte < b' ' || byte == 0x7f) || !well_escaped(fragment) {
        return None;
    }
    let ending =
        if fragment.is_empty() { String::new() } else { format!("#{}", Part::Fragment.rewrite(fragment)) };
    if rest == "*" {
        return Some(Uri { host: String::new(), text: format!("*{ending}") });
    }
    let (scheme, rest) = split_scheme(rest)?;
    let (rest, query) = rest.find('?').and_then(|mark| rest.split_at_checked(mark)).unwrap_or((rest, ""));
    let ending = format!("{query}{ending}");
    let mut path = rest;
    let mut host = String::new();
    let mut text = if scheme.is_empty() { String::new() } else { format!("{scheme}:") };
    if !rest.starts_with('/') {
        if !scheme.is_empty() {
            // Opaque: `urn:…`, `mailto:…`.
            return Some(Uri { host, text: format!("{text}{rest}{ending}") });
        }
        if rest.split('/').next().is_some_and(|segment| segment.contains(':')) {
            return None;
        }
    } else if let Some(authority) = rest.strip_prefix("//")
        && (!scheme.is_empty() || !rest.starts_with("///"))
    {
        let (authority, after) = match authority.find('/') {
            Some(slash) => authority.split_at_checked(slash)?,
            None => (authority, ""),
        };
        path = after;
        let (user, decoded) = parse_authority(&scheme, authority)?;
        host = decoded;
        if !host.is_empty() || !path.is_empty() || user.is_some() {
            text.push_str("//");
        }
        text.extend(user);
        // Of the octets that a decoded host may have, only the percent sign is escaped again.
        text.push_str(&host.replace('%', "%25"));
    }
    if !well_escaped(path) {
        return None;
    }
    // go: net/url/url.go, EscapedPath — the one path that is no path
    let path = if path == "%2A" { "*".to_owned() } else { Part::Path.rewrite(path) };
    if text.is_empty() && path.split('/').next().is_some_and(|segment| segment.contains(':')) {
        text.push_str("./");
    }
    Some(Uri { host, text: format!("{text}{path}{ending}") })
}

/// A part of a URI whose octets are escaped by rules of its own.
#[derive(Clone, Copy)]
enum Part {
    User,
    Path,
    Fragment,
}

impl Part {
    /// Whether Go's encoder leaves an octet as it is.
    // go: net/url/gen_encoding_table.go, shouldEscape
    fn keeps(self, byte: u8) -> bool {
        let more: &[u8] = match self {
            Self::User => b"$&+,;=",
            Self::Path => b"$&+,/:;=@",
            Self::Fragment => b"$&+,/:;=?@!()*",
        };
        byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) || more.contains(&byte)
    }

    /// A well-escaped text as Go writes it: as it is if it was written validly, else decoded and encoded.
    // go: net/url/url.go, EscapedPath, EscapedFragment, validEncoded
    fn rewrite(self, text: &str) -> String {
        let valid = |byte: u8| self.keeps(byte) || b"!$&'()*+,;=:@[]%".contains(&byte);
        if text.bytes().all(valid) { text.to_owned() } else { self.encode(text) }
    }

    /// Decodes a well-escaped text and encodes it by Go's rule.
    fn encode(self, text: &str) -> String {
        let decoded = unescape_bytes(text, Mode::Path).ok().flatten();
        escape::encode(decoded.as_deref().unwrap_or(text.as_bytes()), |byte| self.keeps(byte))
    }
}

/// The domain a URI's host stands for under name constraints; the error is the reason it cannot be compared.
// go: crypto/x509/constraints.go, parseURIs
pub(crate) fn constrained_domain(uri: &str, host: &str) -> Result<String, String> {
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

/// Splits off `scheme:`. `None` if the scheme is empty but its colon is there.
fn split_scheme(uri: &str) -> Option<(String, &str)> {
    for (index, byte) in uri.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if index > 0 => {}
            b':' if index == 0 => return None,
            b':' => {
                let (scheme, rest) = uri.split_at_checked(index)?;
                return Some((scheme.to_ascii_lowercase(), rest.strip_prefix(':')?));
            }
            _ => break,
        }
    }
    Some((String::new(), uri))
}

/// The user with its `@`, as Go writes it again, and the decoded host.
fn parse_authority(scheme: &str, authority: &str) -> Option<(Option<String>, String)> {
    let (user, host) =
        authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    let host = parse_host(scheme, host)?;
    let Some(user) = user else { return Some((None, host)) };
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte);
    if !user.bytes().all(allowed) || !well_escaped(user) {
        return None;
    }
    let user: Vec<String> = user.splitn(2, ':').map(|part| Part::User.encode(part)).collect();
    Some((Some(user.join(":") + "@"), host))
}

fn parse_host(scheme: &str, host: &str) -> Option<String> {
    if let Some(bracketed) = host.strip_prefix('[') {
        if bracketed.contains('[') {
            return None;
        }
        let (inside, port) = bracketed.rsplit_once(']')?;
        if !valid_port(port) {
            return None;
        }
        let (address, zone) = match inside.split_once("%25") {
            Some((address, zone)) => (address, Some(unescape_zone(zone)?)),
            None => (inside, None),
        };
        let address = unescape_host(address)?;
        address.parse::<Ipv6Addr>().ok()?;
        let zone = zone.map(|zone| format!("%{zone}")).unwrap_or_default();
        return Some(format!("[{address}{zone}]{port}"));
    }
    if host.contains('[') {
        return None;
    }
    if let Some(first) = host.find(':') {
        let colon = if matches!(scheme, "http" | "https") { first } else { host.rfind(':')? };
        if !valid_port(host.get(colon..)?) {
            return None;
        }
    }
    unescape_host(host)
}

fn valid_port(port: &str) -> bool {
    port.is_empty()
        || port.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether every `%` is followed by two hexadecimal digits.
fn well_escaped(text: &str) -> bool {
    text.split('%').skip(1).all(|after| {
        let mut digits = after.bytes();
        let mut hex = || digits.next().is_some_and(|digit| digit.is_ascii_hexdigit());
        hex() && hex()
    })
}

/// The characters Go lets stand in a host.
fn host_octet(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!\"$&'()*+,-.:;<=>[]_~".contains(&byte)
}

/// Decodes a zone, in which any octet of a host may be escaped, the percent sign as well.
fn unescape_zone(zone: &str) -> Option<String> {
    let mut decoded = String::new();
    let mut parts = zone.split('%');
    decoded.push_str(parts.next()?);
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let octet = u8::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))?;
        if octet != b'%' && !host_octet(octet) {
            return None;
        }
        decoded.push(char::from(octet));
        decoded.push_str(rest);
    }
    let allowed = |byte: u8| byte == b'%' || host_octet(byte);
    (!decoded.is_empty() && decoded.bytes().all(allowed)).then_some(decoded)
}

/// Decodes a host, in which only `%25` and octets beyond ASCII may be escaped. The latter are no part of any valid
/// domain name, so a host with them is refused at once.
fn unescape_host(host: &str) -> Option<String> {
    let mut decoded = String::new();
    let mut parts = host.split('%');
    decoded.push_str(parts.next()?);
    for part in parts {
        decoded.push('%');
        decoded.push_str(part.strip_prefix("25")?);
    }
    decoded.bytes().all(|byte| byte == b'%' || host_octet(byte)).then_some(decoded)
}

#[cfg(test)]
mod tests {
    use super::{constrained_domain, parse};

    #[test]
    fn hosts_are_those_of_net_url() {
        const CASES: &[(&str, Option<&str>)] = &[
            ("spiffe://cluster.local/ns/a/sa/b", Some("cluster.local")),
            ("https://user:pw@Example.com:8443/x?y#z", Some("Example.com:8443")),
            ("urn:uuid:1", Some("")),
            ("mailto:a@b", Some("")),
            ("/relative", Some("")),
            ("a:b/c", Some("")),
            ("1a:b", None),
            (":x", None),
            ("//host/x", Some("host")),
            ("///x", Some("")),
            ("http:///x", Some("")),
            ("http://[::1]:80/", Some("[::1]:80")),
            ("http://[1.2.3.4]/", None),
            ("http://[fe80::1%25eth0]:1/", Some("[fe80::1%eth0]:1")),
            ("http://[fe80::1%25a%2db]/", Some("[fe80::1%a-b]")),
            ("http://[fe80::1%25]/", None),
            ("http://[fe80::1%25a%20b]/", None),
            ("http://[fe80::1%eth0]/", None),
            ("http://a[b/", None),
            ("http://a b/", None),
            ("http://a/%zz", None),
            ("http://a/%41", Some("a")),
            ("http://%41/", None),
            ("http://a:b/", None),
            ("http://a:1:2/", None),
            ("x://a:1:2/", Some("a:1:2")),
            ("http://a\u{1}/", None),
            ("*", Some("")),
            ("", Some("")),
        ];
        for (uri, want) in CASES {
            assert_eq!(parse(uri).map(|parsed| parsed.host).as_deref(), *want, "{uri}");
        }
    }

    #[test]
    fn uris_are_written_again_as_net_url_does() {
        const CASES: &[(&str, &str)] = &[
            ("HTTPS://H.example/a b", "https://H.example/a%20b"),
            ("https://h/%2f%7E", "https://h/%2f%7E"),
            ("https://h/%2f b", "https://h//%20b"),
            ("relative/path?x y", "relative/path?x y"),
            ("a%3Ab c", "./a:b%20c"),
            ("a%3Ab", "a%3Ab"),
            ("https://h", "https://h"),
            ("https://", "https:"),
            ("https:///x", "https:///x"),
            ("https:/x", "https:/x"),
            ("//h/x", "//h/x"),
            ("///x", "///x"),
            ("URN:a b", "urn:a b"),
            ("urn:", "urn:"),
            ("https://h?", "https://h?"),
            ("https://h??", "https://h??"),
            ("https://h/#", "https://h/"),
            ("https://h/#a\"b", "https://h/#a%22b"),
            ("https://h/#a'b", "https://h/#a'b"),
            ("https://h/#a'b c", "https://h/#a%27b%20c"),
            ("https://u:p:q@h/", "https://u:p%3Aq@h/"),
            ("https://u!%41@h/", "https://u%21A@h/"),
            ("https://@h", "https://@h"),
            ("https://[fe80::1%25eth0]:1/", "https://[fe80::1%25eth0]:1/"),
            ("https://h/\"<>[]{}", "https://h/%22%3C%3E%5B%5D%7B%7D"),
            ("https://h/[]", "https://h/[]"),
            ("*", "*"),
            ("*#a b", "*#a%20b"),
            ("%2A", "*"),
            ("%2A?q#f", "*?q#f"),
            ("%2a", "%2a"),
            ("a%2A", "a%2A"),
            ("https://h/%2A", "https://h/%2A"),
            ("help://me@what:8080/where/when?why=true", "help://me@what:8080/where/when?why=true"),
            ("", ""),
        ];
        for (uri, want) in CASES {
            assert_eq!(parse(uri).map(|parsed| parsed.text).as_deref(), Some(*want), "{uri}");
        }
    }

    #[test]
    fn addresses_cannot_be_constrained() {
        assert_eq!(constrained_domain("u", "Example.com:80").as_deref(), Ok("example.com"));
        for host in ["", "1.2.3.4", "[::1]", "[::1]:80", "1.2.3.4:80", "a:1:2"] {
            assert!(constrained_domain("u", host).is_err(), "{host}");
        }
    }
}
