//! Name patterns: the names that a custom signer signs.
//!
//! A pattern is a text with at most one `*`. The rules for the `*` depend on the kind of name, so that it cannot match
//! another host, mailbox or reserved Kubernetes name than the operator expects. Every name must also pass the syntax
//! check of its kind, which is separate.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use super::dns::{self, NotDnsName};
use super::pattern::NamePattern;
use super::profile::SYSTEM_MASTERS;
use super::subject::{self, InvalidIdentityName};

/// Prefixes that Kubernetes reserves; kubeadm binds `kubeadm:cluster-admins` to the `ClusterRole` cluster-admin.
const RESERVED: [&str; 2] = ["system:", "kubeadm:"];

/// Why a name that matches a pattern is not signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum RejectedName {
    #[error(transparent)]
    Dns(#[from] NotDnsName),
    #[error(transparent)]
    Identity(#[from] InvalidIdentityName),
    #[error("it is not an email address of an unquoted local part, one @ and a DNS name")]
    Email,
    #[error(
        "it is not an absolute URI in normal form, without user information, dot segments, empty segments, or a host \
         that some parsers read as an address"
    )]
    Uri,
}

/// Why a text is not a pattern for a kind of name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamePatternError {
    /// The text is not a pattern of any kind.
    #[error("{0:?} is not a pattern: use at most one *, at the beginning or at the end")]
    NotPattern(String),
    /// No DNS name could match it.
    #[error("{0:?} cannot match a DNS name: labels have letters, digits and hyphens")]
    Dns(String),
    /// The `*` could match part of a label, and so another domain.
    #[error("the * of {0:?} could match part of another domain: put a dot after it, as in *.example.com")]
    DnsLabel(String),
    /// The `*` could match another domain or mailbox.
    #[error(
        "{0:?} cannot match an email address, or its * is not one whole side of the @: write *@example.com, or * for \
    every address"
    )]
    Email(String),
    /// The `*` could match another host.
    #[error(
        "{0:?} cannot match a URI, or its * could match part of the host: write it as spiffe://example.com/ns/a/* or \
    urn:example:*, with the * at the end, or * for every URI"
    )]
    Uri(String),
}

fn parse(text: &str) -> Result<NamePattern, NamePatternError> {
    text.parse().map_err(|_| NamePatternError::NotPattern(text.to_owned()))
}

/// A pattern for names of users and groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityPattern(NamePattern);

impl FromStr for IdentityPattern {
    type Err = NamePatternError;

    fn from_str(text: &str) -> Result<Self, NamePatternError> {
        parse(text).map(Self)
    }
}

impl IdentityPattern {
    /// Whether the pattern matches the name. A `*` never matches a reserved prefix, and only a literal pattern matches
    /// `system:masters`.
    // threat: custom-signer-names
    pub(super) fn covers(&self, name: &str) -> bool {
        let reserved = RESERVED.iter().find(|prefix| name.starts_with(**prefix));
        let spelled_out = match (reserved, &self.0) {
            _ if name == SYSTEM_MASTERS => self.0.names(name),
            (Some(prefix), NamePattern::Prefix(written)) => written.starts_with(prefix),
            (Some(_), NamePattern::Suffix(_)) => false,
            (Some(_), NamePattern::Exact(_)) | (None, _) => true,
        };
        spelled_out && self.0.star(name).is_some()
    }
}

/// Whether Kubernetes reserves the name of a user or group.
pub(super) fn is_reserved(name: &str) -> bool {
    RESERVED.iter().any(|prefix| name.starts_with(prefix))
}

/// Checks the name of a user or group: it must have no invisible characters.
pub(super) fn identity(name: &str) -> Result<(), RejectedName> {
    Ok(subject::check_name(name)?)
}

/// A pattern for DNS names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsPattern(NamePattern);

impl FromStr for DnsPattern {
    type Err = NamePatternError;

    fn from_str(text: &str) -> Result<Self, NamePatternError> {
        let pattern = parse(text)?;
        let is_part =
            |part: &str| part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
        let possible = match &pattern {
            NamePattern::Exact(name) => dns::check(name, false).is_ok(),
            NamePattern::Prefix(prefix) => is_part(prefix),
            NamePattern::Suffix(suffix) => match suffix.strip_prefix('.') {
                Some(domain) => dns::check(domain, false).is_ok(),
                None if is_part(suffix) => return Err(NamePatternError::DnsLabel(text.to_owned())),
                None => false,
            },
        };
        if possible { Ok(Self(pattern)) } else { Err(NamePatternError::Dns(text.to_owned())) }
    }
}

impl DnsPattern {
    /// Whether the pattern matches the name. A trailing `*` matches the rest of a label, but not another domain; a
    /// leading `*` matches any number of labels.
    pub(super) fn covers(&self, name: &str) -> bool {
        let within_label = matches!(self.0, NamePattern::Prefix(_)) && !self.0.is_star();
        self.0.star(name).is_some_and(|star| !(within_label && star.contains('.')))
    }
}

/// A pattern for email addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmailPattern(NamePattern);

impl FromStr for EmailPattern {
    type Err = NamePatternError;

    fn from_str(text: &str) -> Result<Self, NamePatternError> {
        let pattern = parse(text)?;
        let possible = match &pattern {
            NamePattern::Exact(address) => email(address).is_ok(),
            NamePattern::Prefix(_) if pattern.is_star() => true,
            NamePattern::Prefix(local) => local.ends_with('@') && email(&format!("{local}a")).is_ok(),
            NamePattern::Suffix(domain) => domain.starts_with('@') && email(&format!("a{domain}")).is_ok(),
        };
        if possible { Ok(Self(pattern)) } else { Err(NamePatternError::Email(text.to_owned())) }
    }
}

impl EmailPattern {
    pub(super) fn covers(&self, address: &str) -> bool {
        self.0.star(address).is_some()
    }
}

/// Checks an email address: a Dot-string of RFC 5321 §4.1.2, one @, and a domain.
pub(super) fn email(address: &str) -> Result<(), RejectedName> {
    let (local, domain) = address.split_once('@').ok_or(RejectedName::Email)?;
    let atom = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&byte);
    let plain = local.split('.').all(|part| !part.is_empty() && part.bytes().all(atom));
    if plain && dns::check(domain, false).is_ok() { Ok(()) } else { Err(RejectedName::Email) }
}

/// A pattern for URIs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UriPattern(NamePattern);

impl FromStr for UriPattern {
    type Err = NamePatternError;

    fn from_str(text: &str) -> Result<Self, NamePatternError> {
        let pattern = parse(text)?;
        let possible = match &pattern {
            NamePattern::Exact(exact) => uri(exact).is_ok(),
            // The host must end before the `*`. Without `//`, the scheme defines which part is a host.
            NamePattern::Prefix(prefix) => {
                let host_ended = |parts: UriParts<'_>| match parts.authority {
                    Some(_) => parts.path.is_some(),
                    None => prefix.ends_with([':', '/']),
                };
                pattern.is_star()
                    || split(prefix).is_some_and(host_ended) && uri(&format!("{prefix}x")).is_ok()
            }
            NamePattern::Suffix(_) => false,
        };
        if possible { Ok(Self(pattern)) } else { Err(NamePatternError::Uri(text.to_owned())) }
    }
}

impl UriPattern {
    /// Whether the pattern matches the URI. A `*` matches no query and no fragment, unless the pattern is `*` alone.
    pub(super) fn covers(&self, uri: &str) -> bool {
        self.0.star(uri).is_some_and(|star| self.0.is_star() || !star.contains(['?', '#']))
    }
}

/// The parts of a URI that matter to patterns.
struct UriParts<'a> {
    scheme: &'a str,
    /// The part after `//`; `None` for `urn:…` and similar.
    authority: Option<&'a str>,
    /// The part after the authority (or after the scheme without one), with query and fragment.
    path: Option<&'a str>,
}

fn split(uri: &str) -> Option<UriParts<'_>> {
    let (scheme, rest) = uri.split_once(':')?;
    let named = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    if !(scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.bytes().all(named)) {
        return None;
    }
    let Some(hierarchical) = rest.strip_prefix("//") else {
        // Rejects `scheme:/path`, which parsers interpret differently.
        return (!rest.is_empty() && !rest.starts_with('/')).then_some(UriParts {
            scheme,
            authority: None,
            path: Some(rest),
        });
    };
    let end = hierarchical.find(['/', '?', '#']).unwrap_or(hierarchical.len());
    let (authority, path) = hierarchical.split_at_checked(end)?;
    Some(UriParts { scheme, authority: Some(authority), path: (!path.is_empty()).then_some(path) })
}

/// Checks that every parser interprets the URI alike, whether or not it normalizes (RFC 3986 §6.2.2).
pub(super) fn uri(text: &str) -> Result<(), RejectedName> {
    let parts = split(text).ok_or(RejectedName::Uri)?;
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=%".contains(&byte);
    // Normalization removes an empty port, and some parsers decode escapes in a host.
    let is_host = |host: &str| {
        let is_address = is_special(parts.scheme) && is_ambiguous(host);
        !(host.is_empty() || host.contains(['@', '%']) || host.ends_with(':') || is_address)
    };
    let host = parts.authority.is_none_or(is_host);
    let path = parts.path.unwrap_or_default();
    // Normalization inserts a `/` before the query or fragment.
    let has_path = parts.authority.is_none() || !path.starts_with(['?', '#']);
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let segments: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
    let last = segments.len().saturating_sub(1);
    let plain = segments.iter().enumerate().all(|(place, segment)| {
        // A trailing `/` makes the last segment empty.
        !matches!(*segment, "." | "..") && (!segment.is_empty() || place == last)
    });
    let good = host
        && has_path
        && plain
        && text.bytes().all(allowed)
        && text.split('%').skip(1).all(is_needed_escape);
    if good { Ok(()) } else { Err(RejectedName::Uri) }
}

/// Whether browsers read the host of a scheme as a domain or an address. That of others, such as `spiffe`, is a text to them.
// https://url.spec.whatwg.org/#special-scheme
fn is_special(scheme: &str) -> bool {
    ["http", "https", "ws", "wss", "ftp", "file"].iter().any(|special| scheme.eq_ignore_ascii_case(special))
}

/// Whether some parsers read the host as an address and others as a name: to browsers, `1` and `0x7f.1` are IPv4 addresses.
// https://url.spec.whatwg.org/#ends-in-a-number-checker
fn is_ambiguous(authority: &str) -> bool {
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let host =
        authority.rsplit_once(':').filter(|(_, port)| is_digits(port)).map_or(authority, |(host, _)| host);
    let last = host.strip_suffix('.').unwrap_or(host).rsplit('.').next().unwrap_or_default();
    let is_hex = last.strip_prefix(['0']).is_some_and(|rest| {
        rest.strip_prefix(['x', 'X'])
            .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
    });
    let is_number = is_hex || (!last.is_empty() && is_digits(last));
    // Punycode of ASCII alone, which no name needs and some parsers decode: `xn--1-` to `1`.
    let is_needless = |label: &str| {
        label.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("xn--")) && label.ends_with('-')
    };
    is_number && host.parse::<Ipv4Addr>().is_err() || host.split('.').any(is_needless)
}

/// Whether the escape at the beginning of `after` is needed and safe: it must not decode to an unreserved character, a
/// path separator, `%` or a control character.
fn is_needed_escape(after: &str) -> bool {
    let decoded = after.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    decoded.is_some_and(|octet| {
        !(octet.is_ascii_alphanumeric() || octet.is_ascii_control() || b"-._~/\\%".contains(&octet))
    })
}

macro_rules! shown_as_written {
    ($($pattern:ty),*) => {$(
        impl fmt::Display for $pattern {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
shown_as_written!(IdentityPattern, DnsPattern, EmailPattern, UriPattern);

#[cfg(test)]
mod tests;
