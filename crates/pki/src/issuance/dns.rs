//! DNS names in certificates: labels of letters, digits and hyphens (RFC 1123 §2.1, RFC 5280 §4.2.1.6).

use std::net::IpAddr;

/// Why a text is not a DNS name. The error follows "is not allowed:" or a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotDnsName {
    /// The text is empty.
    #[error("it is empty")]
    Empty,
    /// RFC 1035 §2.3.4
    #[error("a DNS name has at most 253 characters")]
    TooLong,
    /// IP addresses have a SAN type of their own.
    #[error("it is an IP address, not a DNS name")]
    Address,
    /// `https://…`
    #[error("it is a URL: give its host name alone")]
    Url,
    /// An internationalized domain name.
    #[error("a DNS name is ASCII: write other letters in Punycode (xn--)")]
    NotAscii,
    /// `*.example.com`, where it is not allowed.
    #[error("it is a wildcard")]
    Wildcard,
    /// A `*` that verifiers do not treat as a wildcard (RFC 6125 §6.4.3), or that matches a whole top-level domain.
    #[error("a * may only be the whole first label of a name with at least two more, as in *.example.com")]
    BadWildcard,
    /// A malformed label.
    #[error("each label of a DNS name has 1 to 63 letters, digits and hyphens, and no hyphen at its ends")]
    BadLabel,
}

/// Checks one name. With `wildcards`, its first label may be `*`.
// threat: custom-signer-names
pub fn check(name: &str, wildcards: bool) -> Result<(), NotDnsName> {
    let rest = name.strip_prefix("*.");
    let name = rest.unwrap_or(name);
    if name.is_empty() {
        return Err(NotDnsName::Empty);
    }
    if name.len() > 253 {
        return Err(NotDnsName::TooLong);
    }
    if !name.is_ascii() {
        return Err(NotDnsName::NotAscii);
    }
    if name.parse::<IpAddr>().is_ok() {
        return Err(NotDnsName::Address);
    }
    if name.contains("://") {
        return Err(NotDnsName::Url);
    }
    if name.contains('*') || rest.is_some_and(|rest| !rest.contains('.')) {
        return Err(NotDnsName::BadWildcard);
    }
    if !name.split('.').all(is_label) {
        return Err(NotDnsName::BadLabel);
    }
    if rest.is_some() && !wildcards { Err(NotDnsName::Wildcard) } else { Ok(()) }
}

fn is_label(label: &str) -> bool {
    let at_the_ends = label.starts_with('-') || label.ends_with('-');
    (1..=63).contains(&label.len())
        && !at_the_ends
        && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::NotDnsName::{Address, BadLabel, BadWildcard, Empty, NotAscii, TooLong, Url, Wildcard};
    use super::check;

    #[test]
    fn a_dns_name_is_labels_of_letters_digits_and_hyphens() {
        let (long, label) = (["a"; 128].join("."), "a".repeat(64));
        let cases = [
            ("gateway.example.com", Ok(())),
            ("GATEWAY", Ok(())),
            ("xn--bcher-kva.example", Ok(())),
            ("1.example", Ok(())),
            ("", Err(Empty)),
            (long.as_str(), Err(TooLong)),
            (label.as_str(), Err(BadLabel)),
            ("10.0.0.1", Err(Address)),
            ("::1", Err(Address)),
            ("http://x", Err(Url)),
            ("bücher.example", Err(NotAscii)),
            ("a b", Err(BadLabel)),
            ("evil.org\0.example.com", Err(BadLabel)),
            ("a..b", Err(BadLabel)),
            ("a.", Err(BadLabel)),
            (".a", Err(BadLabel)),
            ("-a", Err(BadLabel)),
            ("a-", Err(BadLabel)),
            ("a_b", Err(BadLabel)),
            ("*", Err(BadWildcard)),
            ("*.com", Err(BadWildcard)),
            ("*.*.example.com", Err(BadWildcard)),
            ("a*.example.com", Err(BadWildcard)),
            ("a.*.example.com", Err(BadWildcard)),
        ];
        for (name, expected) in cases {
            assert_eq!(check(name, true), expected, "{name:?}");
            assert_eq!(check(name, false), expected, "{name:?}");
        }
        assert_eq!(check("*.example.com", true), Ok(()));
        assert_eq!(check("*.example.com", false), Err(Wildcard));
    }
}
