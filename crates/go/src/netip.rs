//! IP addresses and prefixes as Go's `net/netip` parses and prints them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::quote::Quoted;

/// An error of the parser, with Go's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(String);

/// An address; an IPv6 address may have a zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZonedAddr {
    /// The address. An IPv4-mapped IPv6 address stays one.
    pub address: IpAddr,
    /// The zone, empty without one.
    pub zone: String,
}

/// An address with the length of its network's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// The address, not masked.
    pub address: IpAddr,
    /// The number of bits that name the network.
    pub bits: u8,
}

/// What is wrong, and where.
struct Problem<'a> {
    text: &'static str,
    at: &'a str,
}

impl<'a> Problem<'a> {
    fn new(text: &'static str) -> Self {
        Self { text, at: "" }
    }

    fn at(text: &'static str, at: &'a str) -> Self {
        Self { text, at }
    }
}

/// Parses an address.
// Go: net/netip/netip.go — ParseAddr
pub fn parse_addr(text: &str) -> Result<ZonedAddr, ParseError> {
    let parsed = match text.bytes().find(|byte| matches!(byte, b'.' | b':' | b'%')) {
        Some(b'.') => parse_ipv4(text).map(|address| (IpAddr::V4(address), "")),
        Some(b':') => parse_ipv6(text),
        Some(_) => Err(Problem::new("missing IPv6 address")),
        None => Err(Problem::new("unable to parse IP")),
    };
    match parsed {
        Ok((address, zone)) => Ok(ZonedAddr { address, zone: zone.to_owned() }),
        Err(Problem { text: problem, at: "" }) => {
            Err(ParseError(format!("ParseAddr({}): {problem}", Quoted(text))))
        }
        Err(Problem { text: problem, at }) => {
            Err(ParseError(format!("ParseAddr({}): {problem} (at {})", Quoted(text), Quoted(at))))
        }
    }
}

// Go: parseIPv4Fields
fn parse_ipv4(text: &str) -> Result<Ipv4Addr, Problem<'_>> {
    const DIGIT: &str = "IPv4 field must have at least one digit";
    let mut fields = Vec::new();
    let (mut value, mut digits) = (0_u16, 0_usize);
    for (at, character) in text.char_indices() {
        let rest = text.get(at..).unwrap_or_default();
        match character.to_digit(10).and_then(|digit| u16::try_from(digit).ok()) {
            Some(_) if digits == 1 && value == 0 => {
                return Err(Problem::new("IPv4 field has octet with leading zero"));
            }
            Some(digit) => {
                value = value * 10 + digit;
                digits += 1;
                if value > 255 {
                    return Err(Problem::new("IPv4 field has value >255"));
                }
            }
            None if character == '.' && (digits == 0 || rest.len() == 1) => {
                return Err(Problem::at(DIGIT, rest));
            }
            None if character == '.' && fields.len() == 3 => {
                return Err(Problem::new("IPv4 address too long"));
            }
            None if character == '.' => {
                fields.push(u8::try_from(value).unwrap_or_default());
                (value, digits) = (0, 0);
            }
            None => return Err(Problem::at("unexpected character", rest)),
        }
    }
    let last = u8::try_from(value).unwrap_or_default();
    match fields[..] {
        [a, b, c] => Ok(Ipv4Addr::new(a, b, c, last)),
        _ => Err(Problem::new("IPv4 address too short")),
    }
}

/// The groups of an IPv6 address, and the position of `::` among them.
#[derive(Default)]
struct Groups {
    values: Vec<u16>,
    ellipsis: Option<usize>,
}

// Go: parseIPv6
fn parse_ipv6(text: &str) -> Result<(IpAddr, &str), Problem<'_>> {
    let (mut rest, zone) = match text.split_once('%') {
        Some((_, "")) => return Err(Problem::new("zone must be a non-empty string")),
        Some((address, zone)) => (address, zone),
        None => (text, ""),
    };
    let mut groups = Groups::default();
    if let Some(after) = rest.strip_prefix("::") {
        groups.ellipsis = Some(0);
        if after.is_empty() {
            return Ok((Ipv6Addr::UNSPECIFIED.into(), zone));
        }
        rest = after;
    }
    while groups.values.len() < 8 {
        rest = groups.read(rest)?;
        if rest.is_empty() {
            break;
        }
    }
    if !rest.is_empty() {
        return Err(Problem::at("trailing garbage after address", rest));
    }
    Ok((IpAddr::V6(groups.expanded()?), zone))
}

impl Groups {
    /// Reads one group, or the embedded IPv4 address; returns the rest.
    fn read<'a>(&mut self, text: &'a str) -> Result<&'a str, Problem<'a>> {
        let end = text.bytes().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(text.len());
        let (digits, after) = text.split_at_checked(end).unwrap_or((text, ""));
        if digits.len() > 4 {
            return Err(Problem::at("each group must have 4 or less digits", text));
        }
        if digits.is_empty() {
            return Err(Problem::at("each colon-separated field must have at least one digit", text));
        }
        if after.starts_with('.') {
            return self.read_ipv4(text);
        }
        // One to four hexadecimal digits are a number.
        self.values.push(u16::from_str_radix(digits, 16).unwrap_or_default());
        let Some(more) = after.strip_prefix(':') else {
            let unexpected = Problem::at("unexpected character, want colon", after);
            return if after.is_empty() { Ok("") } else { Err(unexpected) };
        };
        if more.is_empty() {
            return Err(Problem::at("colon must be followed by more characters", after));
        }
        let Some(behind) = more.strip_prefix(':') else { return Ok(more) };
        if self.ellipsis.is_some() {
            return Err(Problem::at("multiple :: in address", more));
        }
        self.ellipsis = Some(self.values.len());
        Ok(behind)
    }

    fn read_ipv4<'a>(&mut self, text: &'a str) -> Result<&'a str, Problem<'a>> {
        if self.ellipsis.is_none() && self.values.len() != 6 {
            let problem = "embedded IPv4 address must replace the final 2 fields of the address";
            return Err(Problem::at(problem, text));
        }
        if self.values.len() > 6 {
            let problem = "too many hex fields to fit an embedded IPv4 at the end of the address";
            return Err(Problem::at(problem, text));
        }
        let [a, b, c, d] = parse_ipv4(text)?.octets();
        self.values.extend([u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]);
        Ok("")
    }

    fn expanded<'a>(self) -> Result<Ipv6Addr, Problem<'a>> {
        let Self { mut values, ellipsis } = self;
        match ellipsis {
            None if values.len() < 8 => return Err(Problem::new("address string too short")),
            None => {}
            Some(_) if values.len() >= 8 => {
                return Err(Problem::new("the :: must expand to at least one field of zeros"));
            }
            Some(at) => drop(values.splice(at..at, vec![0; 8 - values.len()])),
        }
        Ok(<[u16; 8]>::try_from(values).map_or(Ipv6Addr::UNSPECIFIED, Ipv6Addr::from))
    }
}

/// Parses an address with the length of a prefix.
// Go: net/netip/netip.go — ParsePrefix
pub fn parse_prefix(text: &str) -> Result<Prefix, ParseError> {
    let refused = |problem: &str| ParseError(format!("netip.ParsePrefix({}): {problem}", Quoted(text)));
    let (address, bits) = text.rsplit_once('/').ok_or_else(|| refused("no '/'"))?;
    let ZonedAddr { address, zone } = parse_addr(address).map_err(|error| refused(&error.to_string()))?;
    if !zone.is_empty() {
        return Err(refused("IPv6 zones cannot be present in a prefix"));
    }
    let bad = || refused(&format!("bad bits after slash: {}", Quoted(bits)));
    if bits.len() > 1 && !bits.starts_with(|first: char| ('1'..='9').contains(&first)) {
        return Err(bad());
    }
    let bits: i64 = bits.parse().map_err(|_| bad())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    match u8::try_from(bits) {
        Ok(bits) if bits <= most => Ok(Prefix { address, bits }),
        _ => Err(refused("prefix length out of range")),
    }
}

/// Whether this is an IPv4-mapped IPv6 address.
// Go: Addr.Is4In6
pub fn is_4_in_6(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some())
}

impl Prefix {
    /// The network's own address.
    // Go: Prefix.Masked
    #[must_use]
    pub fn masked(self) -> Self {
        Self { address: masked(self.address, self.bits), bits: self.bits }
    }

    /// Whether the network includes an address. No network includes addresses of the other version of IP.
    // Go: Prefix.Contains
    pub fn contains(self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4()
            && masked(self.address, self.bits) == masked(address, self.bits)
    }

    /// Whether both networks have an address in common.
    // Go: Prefix.Overlaps
    pub fn overlaps(self, other: Self) -> bool {
        let (wide, narrow) = if self.bits <= other.bits { (self, other) } else { (other, self) };
        wide.contains(narrow.address)
    }
}

fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits).min(32)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits).min(128)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.address, self.bits)
    }
}
