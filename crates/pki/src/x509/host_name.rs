//! The names of a server's certificate, compared with its host by the rules of Go's `crypto/x509`.
//!
//! Only subject alternative names count, never the common name. An IP address matches addresses alone. Must never accept a
//! name that Go refuses.

use portcullis_go::netip;

use super::certificate::Certificate;
use super::constraints::{show_ip, unmapped};

/// How many names of a certificate an error lists.
// go: crypto/x509/verify.go, HostnameError.Error, maxNamesIncluded
const MAX_LISTED_NAMES: usize = 100;

/// The length up to which the names are listed; a server may present any number of octets.
const MAX_LISTED_BYTES: usize = 4096;

/// The certificate has other names than the host. The texts are Go's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostNameError {
    /// Only the common name is that of the host.
    #[error("x509: certificate relies on legacy Common Name field, use SANs instead")]
    CommonName,
    /// The host is an IP address, and the certificate has none.
    #[error("x509: cannot validate certificate for {0} because it doesn't contain any IP SANs")]
    NoAddresses(String),
    /// The certificate has too many names to list.
    #[error("x509: certificate is valid for {count} {kind}, but none matched {host}")]
    Uncounted {
        /// The number of its names.
        count: usize,
        /// Their kind.
        kind: &'static str,
        /// The host.
        host: String,
    },
    /// The certificate has no name.
    #[error("x509: certificate is not valid for any names, but wanted to match {0}")]
    NoNames(String),
    /// The certificate has other names.
    #[error("x509: certificate is valid for {names}, not {host}")]
    OtherNames {
        /// The names of the certificate.
        names: String,
        /// The host.
        host: String,
    },
}

/// Checks that a certificate has the name of its host, which is a DNS name or an IP address, also in brackets.
// go: crypto/x509/verify.go, VerifyHostname
pub fn verify(certificate: &Certificate, host: &str) -> Result<(), HostNameError> {
    let names = &certificate.extensions.names;
    let unbracketed =
        host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).filter(|inner| !inner.is_empty());
    let address = unbracketed.unwrap_or(host);
    if let Some(octets) = parse_ip(address) {
        let wanted = unmapped(&octets);
        return if names.ips.iter().any(|ip| unmapped(ip) == wanted) {
            Ok(())
        } else {
            Err(mismatch(certificate, address))
        };
    }
    let candidate = host.to_ascii_lowercase();
    let is_valid = is_host_name(candidate.strip_suffix('.').unwrap_or(&candidate), false);
    let is_match = |name: &String| {
        if is_valid && is_host_name(name, true) {
            matches_pattern(name, &candidate)
        } else {
            matches_exactly(name, &candidate)
        }
    };
    if names.dns.iter().any(is_match) { Ok(()) } else { Err(mismatch(certificate, host)) }
}

/// The octets of an IP address without a zone.
// go: net/ip.go, ParseIP
fn parse_ip(text: &str) -> Option<Vec<u8>> {
    let parsed = netip::parse_addr(text).ok().filter(|parsed| parsed.zone.is_empty())?;
    Some(match parsed.address {
        std::net::IpAddr::V4(address) => address.octets().to_vec(),
        std::net::IpAddr::V6(address) => address.octets().to_vec(),
    })
}

/// Whether a name can be compared label by label. In a pattern the first label may be `*`.
// go: crypto/x509/verify.go, validHostname
fn is_host_name(name: &str, is_pattern: bool) -> bool {
    if name == "*" {
        return false;
    }
    name.split('.').enumerate().all(|(index, label)| {
        let is_wildcard = is_pattern && index == 0 && label == "*";
        is_wildcard || !label.is_empty() && !label.starts_with('-') && label.bytes().all(is_label_byte)
    })
}

/// The underscore is in no host name, but in names of many deployments.
fn is_label_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

/// Whether a host is one of a pattern, whose wildcard is exactly one label.
// go: crypto/x509/verify.go, matchHostnames
fn matches_pattern(pattern: &str, host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let (pattern, host) = (pattern.to_ascii_lowercase(), host.to_ascii_lowercase());
    if pattern.is_empty() || pattern.split('.').count() != host.split('.').count() {
        return false;
    }
    let mut labels = pattern.split('.').zip(host.split('.')).enumerate();
    labels.all(|(index, (wanted, label))| index == 0 && wanted == "*" || wanted == label)
}

// go: crypto/x509/verify.go, matchExactly
fn matches_exactly(name: &str, host: &str) -> bool {
    !matches!(name, "" | ".") && !matches!(host, "" | ".") && name.eq_ignore_ascii_case(host)
}

// go: crypto/x509/verify.go, HostnameError.Error
fn mismatch(certificate: &Certificate, host: &str) -> HostNameError {
    let extensions = &certificate.extensions;
    if extensions.alternative_names.is_none() && matches_pattern(&certificate.subject.name.common_name, host)
    {
        return HostNameError::CommonName;
    }
    let names = &extensions.names;
    let (listed, kind) = if parse_ip(host).is_some() {
        if names.ips.is_empty() {
            return HostNameError::NoAddresses(host.to_owned());
        }
        (names.ips.iter().map(|ip| show_ip(ip)).collect(), "IP SANs")
    } else {
        (names.dns.clone(), "names")
    };
    describe(&listed, kind, host)
}

/// Lists the names of a certificate, unless there are too many.
fn describe(listed: &[String], kind: &'static str, host: &str) -> HostNameError {
    let host = host.to_owned();
    let length: usize = listed.iter().map(String::len).sum();
    if listed.len() >= MAX_LISTED_NAMES || length > MAX_LISTED_BYTES {
        return HostNameError::Uncounted { count: listed.len(), kind, host };
    }
    let names = listed.join(", ");
    if names.is_empty() {
        return HostNameError::NoNames(host);
    }
    // A line break in a name would begin a line of a log.
    let names = if names.bytes().any(|byte| byte.is_ascii_control()) {
        names.escape_default().to_string()
    } else {
        names
    };
    HostNameError::OtherNames { names, host }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use testkit::pki::Ca;

    use super::*;

    fn certificate(names: &[&str]) -> Certificate {
        let mut leaf = Ca::new("ca").leaf().cn("cn.test");
        for name in names {
            leaf = match name.parse::<IpAddr>() {
                Ok(address) => leaf.san_ip(address),
                Err(_) => leaf.san_dns(name),
            };
        }
        Certificate::parse(leaf.issue().leaf().clone()).unwrap()
    }

    #[test]
    fn a_host_is_one_of_the_names_of_the_certificate() {
        let cases: &[(&str, &[&str], &str, bool)] = &[
            ("the name", &["a.test"], "a.test", true),
            ("another name", &["a.test"], "b.test", false),
            ("one of several", &["a.test", "b.test"], "b.test", true),
            ("in other letters", &["A.test"], "a.TEST", true),
            ("a trailing period of the host", &["a.test"], "a.test.", true),
            ("a trailing period of the name", &["a.test."], "a.test", false),
            ("the end of the name", &["a.test"], "test", false),
            ("the end of the host", &["test"], "a.test", false),
            ("a wildcard", &["*.test"], "a.test", true),
            ("a wildcard is one label", &["*.test"], "a.b.test", false),
            ("a wildcard is not no label", &["*.test"], "test", false),
            ("a wildcard in a label", &["a*.test"], "ab.test", false),
            ("a wildcard further on", &["a.*.test"], "a.b.test", false),
            ("a bare wildcard", &["*"], "test", false),
            ("a wildcard as a host", &["*.test"], "*.test", true),
            ("the common name alone", &[], "cn.test", false),
            ("the common name beside others", &["a.test"], "cn.test", false),
            ("an address", &["10.0.0.1"], "10.0.0.1", true),
            ("an address as a name", &["a.test"], "10.0.0.1", false),
            ("a wildcard for an address", &["*.0.0.1"], "10.0.0.1", false),
            ("an address in brackets", &["::1"], "[::1]", true),
            ("a mapped address", &["10.0.0.1"], "::ffff:10.0.0.1", true),
            ("another spelling", &["2001:db8::1"], "2001:DB8:0::1", true),
            ("an address with a zone", &["fe80::1"], "fe80::1%eth0", false),
            ("an underscore", &["a_b.test"], "a_b.test", true),
            ("nothing", &["a.test"], "", false),
        ];
        for (name, names, host, expected) in cases {
            assert_eq!(verify(&certificate(names), host).is_ok(), *expected, "{name}");
        }
    }

    #[test]
    fn a_refusal_lists_a_bounded_number_of_names() {
        let error = |names: &[&str], host| verify(&certificate(names), host).unwrap_err().to_string();
        assert!(error(&[], "cn.test").contains("legacy Common Name"));
        assert_eq!(
            error(&["a.test", "b.test"], "c.test"),
            "x509: certificate is valid for a.test, b.test, not c.test"
        );
        assert!(error(&["a.test"], "10.0.0.1").ends_with("because it doesn't contain any IP SANs"));
        assert!(
            error(&["10.0.0.1"], "a.test").ends_with("not valid for any names, but wanted to match a.test")
        );
        let many: Vec<String> = (0..100).map(|index| format!("{index}.test")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(error(&many, "a.test").ends_with("valid for 100 names, but none matched a.test"));
        let long = "a".repeat(MAX_LISTED_BYTES + 1);
        assert!(error(&[&long], "a.test").ends_with("valid for 1 names, but none matched a.test"));
        assert!(!error(&["a\nlevel=ERROR.test"], "a.test").contains('\n'));
    }
}
