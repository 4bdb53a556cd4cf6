//! The syntax of name patterns and IP ranges in the profiles of custom signers.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A literal, or a text with one `*` at its beginning or end. The `*` matches any text, including the empty one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NamePattern {
    /// Matches only this text.
    Exact(String),
    /// `text*`
    Prefix(String),
    /// `*text`
    Suffix(String),
}

/// The text is not a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a pattern: use at most one *, at the beginning or at the end")]
pub(super) struct PatternSyntaxError(String);

impl FromStr for NamePattern {
    type Err = PatternSyntaxError;

    fn from_str(text: &str) -> Result<Self, PatternSyntaxError> {
        let pattern = match (text.strip_prefix('*'), text.strip_suffix('*')) {
            (_, Some(prefix)) => Self::Prefix(prefix.to_owned()),
            (Some(suffix), None) => Self::Suffix(suffix.to_owned()),
            (None, None) => Self::Exact(text.to_owned()),
        };
        if pattern.text().contains('*') { Err(PatternSyntaxError(text.to_owned())) } else { Ok(pattern) }
    }
}

impl NamePattern {
    /// The part of the text that the `*` matches, empty for a literal; `None` without a match. Case-sensitive.
    pub(super) fn star<'t>(&self, text: &'t str) -> Option<&'t str> {
        match self {
            Self::Exact(exact) => (text == exact).then_some(""),
            Self::Prefix(prefix) => text.strip_prefix(prefix.as_str()),
            Self::Suffix(suffix) => text.strip_suffix(suffix.as_str()),
        }
    }

    /// Whether the pattern is a literal with this text.
    pub(super) fn names(&self, text: &str) -> bool {
        matches!(self, Self::Exact(exact) if exact == text)
    }

    /// Whether the pattern is `*`, which matches every name.
    pub(super) fn is_star(&self) -> bool {
        matches!(self, Self::Prefix(prefix) if prefix.is_empty())
    }

    /// The pattern without its `*`.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Exact(text) | Self::Prefix(text) | Self::Suffix(text) => text,
        }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(text) => f.write_str(text),
            Self::Prefix(text) => write!(f, "{text}*"),
            Self::Suffix(text) => write!(f, "*{text}"),
        }
    }
}

/// A CIDR block, or a single address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpRange {
    address: IpAddr,
    /// The prefix length.
    bits: u8,
}

/// The text is not a CIDR block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a CIDR block: write it as 10.0.0.0/8 or fd00::/8")]
pub struct IpRangeError(String);

impl FromStr for IpRange {
    type Err = IpRangeError;

    /// Rejects blocks with host bits set, which are likely mistakes.
    fn from_str(text: &str) -> Result<Self, IpRangeError> {
        let wrong = || IpRangeError(text.to_owned());
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => width,
            Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => {
                bits.parse().ok().filter(|bits| *bits <= width).ok_or_else(wrong)?
            }
            Some(_) => return Err(wrong()),
        };
        let range = Self { address, bits };
        if masked(address, bits) == address { Ok(range) } else { Err(wrong()) }
    }
}

impl IpRange {
    /// Whether the block contains the address. A block of the other address family never does.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4() && masked(address, self.bits) == self.address
    }
}

/// The address with all bits after the first `bits` set to zero.
fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(bits.into())).unwrap_or(0);
            IpAddr::V4((u32::from(address) & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(bits.into())).unwrap_or(0);
            IpAddr::V6((u128::from(address) & mask).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{IpRange, NamePattern};

    #[test]
    fn a_star_matches_anything_at_one_end() {
        const CASES: &[(&str, &str, Option<bool>)] = &[
            ("alice", "alice", Some(true)),
            ("alice", "Alice", Some(false)),
            ("alice", "alice2", Some(false)),
            ("team-*", "team-a", Some(true)),
            ("team-*", "team-", Some(true)),
            ("team-*", "a-team-", Some(false)),
            ("*.svc", "a.svc", Some(true)),
            ("*.svc", ".svc", Some(true)),
            ("*.svc", "a.svc.x", Some(false)),
            ("*", "", Some(true)),
            ("*", "anything", Some(true)),
            ("", "", Some(true)),
            ("", "a", Some(false)),
            ("a*b", "", None),
            ("*a*", "", None),
            ("**", "", None),
        ];
        for (pattern, text, want) in CASES {
            let parsed = pattern.parse::<NamePattern>().ok();
            assert_eq!(parsed.as_ref().map(|parsed| parsed.star(text).is_some()), *want, "{pattern} {text}");
            if let Some(parsed) = parsed {
                assert_eq!(parsed.to_string(), *pattern);
            }
        }
    }

    #[test]
    fn blocks_contain_the_addresses_of_their_prefix() {
        const CASES: &[(&str, &str, Option<bool>)] = &[
            ("10.0.0.0/8", "10.255.0.1", Some(true)),
            ("10.0.0.0/8", "11.0.0.1", Some(false)),
            ("10.0.0.0/8", "::ffff:10.0.0.1", Some(false)),
            ("0.0.0.0/0", "1.2.3.4", Some(true)),
            ("0.0.0.0/0", "::1", Some(false)),
            ("10.0.0.1", "10.0.0.1", Some(true)),
            ("10.0.0.1", "10.0.0.2", Some(false)),
            ("fd00::/8", "fdff::1", Some(true)),
            ("fd00::/8", "fe00::1", Some(false)),
            ("::/0", "::1", Some(true)),
            ("10.0.0.1/8", "", None),
            ("10.0.0.0/33", "", None),
            ("10.0.0.0/", "", None),
            ("10.0.0.0/+8", "", None),
            ("10.0.0/8", "", None),
            ("fd00::/129", "", None),
        ];
        for (range, address, want) in CASES {
            let parsed = range.parse::<IpRange>().ok();
            let contains = parsed.map(|parsed| parsed.contains(address.parse().unwrap()));
            assert_eq!(contains, *want, "{range} {address}");
        }
    }
}
