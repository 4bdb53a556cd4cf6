//! Patterns of names: which names a signer of an operator's own signs.
//!
//! A pattern is a text with at most one `*`, and each kind of name says how far its `*` reaches, so that it cannot stand
//! for another host, mailbox or part of a cluster than an operator reads in it. Whether a text is such a name at all is
//! a check of its own, which every name must pass besides.

use std::fmt;
use std::str::FromStr;

use super::dns::{self, NotDnsName};
use super::pattern::NamePattern;
use super::profile::SYSTEM_MASTERS;
use super::subject::{self, NotPlainName};

/// How names begin that Kubernetes gives a meaning to; kubeadm binds `kubeadm:cluster-admins` to the role cluster-admin.
const RESERVED: [&str; 2] = ["system:", "kubeadm:"];

/// Why a listed name is not signed even so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidName {
    #[error(transparent)]
    Dns(#[from] NotDnsName),
    #[error(transparent)]
    Identity(#[from] NotPlainName),
    #[error("it is not a mail address of a plain local part, one @ and a DNS name")]
    Email,
    #[error("it is not an absolute URI of plain characters, without user, dot segments or empty ones")]
    Uri,
}

/// A text is no pattern for such names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamePatternError {
    /// It is no pattern for names of any kind.
    #[error("{0:?} is no pattern: one * may stand at the beginning or at the end, and nowhere else")]
    NotPattern(String),
    /// No DNS name could match it.
    #[error("{0:?} matches no DNS name: labels have letters, digits and hyphens")]
    Dns(String),
    /// The `*` could stand for a part of a label, and so for another domain.
    #[error(
        "the * of {0:?} could stand for the beginning of another domain: put a dot behind it, as in *.example.com"
    )]
    DnsLabel(String),
    /// The `*` could stand for another domain or mailbox.
    #[error(
        "{0:?} matches no mail address, or its * is not one whole side of the @: write *@example.com, or * for every \
         address"
    )]
    Email(String),
    /// The `*` could stand for another host.
    #[error(
        "{0:?} matches no URI, or leaves a part of the host to the *: write it as spiffe://example.com/ns/a/* or \
         urn:example:*, with the * at the end, or * for every URI"
    )]
    Uri(String),
}

fn parse(text: &str) -> Result<NamePattern, NamePatternError> {
    text.parse().map_err(|_| NamePatternError::NotPattern(text.to_owned()))
}

/// Names of users and groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityPattern(NamePattern);

impl FromStr for IdentityPattern {
    type Err = NamePatternError;

    fn from_str(text: &str) -> Result<Self, NamePatternError> {
        parse(text).map(Self)
    }
}

impl IdentityPattern {
    /// Whether the name is one of the pattern's. A `*` never stands for the prefix of a reserved name, and
    /// `system:masters` must be spelled out.
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

/// Checks the name of a user or group: what is shown of it must be what it is.
pub(super) fn identity(name: &str) -> Result<(), InvalidName> {
    Ok(subject::check_name(name)?)
}

/// DNS names.
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
    /// Whether the name is one of the pattern's. At the end of a pattern a `*` stands for the rest of a label, and not for
    /// another domain; at its beginning, for any number of labels.
    pub(super) fn covers(&self, name: &str) -> bool {
        let within_label = matches!(self.0, NamePattern::Prefix(_)) && !self.0.is_star();
        self.0.star(name).is_some_and(|star| !(within_label && star.contains('.')))
    }
}

/// Mail addresses.
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

/// Checks a mail address: a dot-string of RFC 5321 §4.1.2, one @, and a domain.
pub(super) fn email(address: &str) -> Result<(), InvalidName> {
    let (local, domain) = address.split_once('@').ok_or(InvalidName::Email)?;
    let atom = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&byte);
    let plain = local.split('.').all(|part| !part.is_empty() && part.bytes().all(atom));
    if plain && dns::check(domain, false).is_ok() { Ok(()) } else { Err(InvalidName::Email) }
}

/// URIs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UriPattern(NamePattern);

impl FromStr for UriPattern {
    type Err = NamePatternError;

    fn from_str(text: &str) -> Result<Self, NamePatternError> {
        let pattern = parse(text)?;
        let possible = match &pattern {
            NamePattern::Exact(exact) => uri(exact).is_ok(),
            // The host must have ended before the `*` begins. Without `//`, its scheme says what is a host.
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
    /// Whether the URI is one of the pattern's. A `*` stands for no query and no fragment, unless it is all there is.
    pub(super) fn covers(&self, uri: &str) -> bool {
        self.0.star(uri).is_some_and(|star| self.0.is_star() || !star.contains(['?', '#']))
    }
}

/// The parts of a URI that a pattern is about.
struct UriParts<'a> {
    /// Behind `//`; `None` for `urn:…` and the like.
    authority: Option<&'a str>,
    /// From the first `/` behind the authority on, or what follows the scheme; with query and fragment.
    path: Option<&'a str>,
}

fn split(uri: &str) -> Option<UriParts<'_>> {
    let (scheme, rest) = uri.split_once(':')?;
    let named = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    if !(scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.bytes().all(named)) {
        return None;
    }
    let Some(hierarchical) = rest.strip_prefix("//") else {
        // `scheme:/path` is read in different ways, so it is not read at all.
        return (!rest.is_empty() && !rest.starts_with('/'))
            .then_some(UriParts { authority: None, path: Some(rest) });
    };
    let end = hierarchical.find(['/', '?', '#']).unwrap_or(hierarchical.len());
    let (authority, path) = hierarchical.split_at_checked(end)?;
    Some(UriParts { authority: Some(authority), path: (!path.is_empty()).then_some(path) })
}

/// Checks a URI: one that every reader takes for the same, whether or not it normalises paths (RFC 3986 §6.2.2).
pub(super) fn uri(text: &str) -> Result<(), InvalidName> {
    let parts = split(text).ok_or(InvalidName::Uri)?;
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=%".contains(&byte);
    // A port that is empty is one that a reader leaves out.
    let is_host = |host: &str| !(host.is_empty() || host.contains('@') || host.ends_with(':'));
    let host = parts.authority.is_none_or(is_host);
    let path = parts.path.unwrap_or_default();
    // A reader that normalises puts a `/` before it.
    let has_path = parts.authority.is_none() || !path.starts_with(['?', '#']);
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let segments: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
    let last = segments.len().saturating_sub(1);
    let plain = segments.iter().enumerate().all(|(place, segment)| {
        // The last one is empty behind a `/` at the end.
        !matches!(*segment, "." | "..") && (!segment.is_empty() || place == last)
    });
    let good = host
        && has_path
        && plain
        && text.bytes().all(allowed)
        && text.split('%').skip(1).all(is_needed_escape);
    if good { Ok(()) } else { Err(InvalidName::Uri) }
}

/// Whether the escape at the beginning of `after` is one that no reader decodes to something that parts a path, or that
/// could have been written without it.
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
