//! URIs in subject alternative names: which ones Go's `net/url` parses, and their host.
//!
//! A URI that does not parse makes Go refuse the certificate; the host is what name constraints are compared with.
//! Only ASCII reaches this module.

use std::net::{IpAddr, Ipv6Addr};

/// The host part with its port, decoded; empty if there is none. `None` if `net/url.Parse` would fail.
pub(crate) fn host(uri: &str) -> Option<String> {
    let (rest, fragment) = uri.split_once('#').unwrap_or((uri, ""));
    if rest.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return None;
    }
    if rest == "*" {
        return well_escaped(fragment).then(String::new);
    }
    let (scheme, rest) = split_scheme(rest)?;
    let (rest, _query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut path = rest;
    let mut host = String::new();
    if !rest.starts_with('/') {
        if !scheme.is_empty() {
            // Opaque: `urn:…`, `mailto:…`.
            return well_escaped(fragment).then_some(host);
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
        host = parse_authority(&scheme, authority)?;
    }
    (well_escaped(path) && well_escaped(fragment)).then_some(host)
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

fn parse_authority(scheme: &str, authority: &str) -> Option<String> {
    let (user, host) =
        authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    let host = parse_host(scheme, host)?;
    if let Some(user) = user {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte);
        if !user.bytes().all(allowed) || !well_escaped(user) {
            return None;
        }
    }
    Some(host)
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
    use super::{constrained_domain, host};

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
            assert_eq!(host(uri).as_deref(), *want, "{uri}");
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
