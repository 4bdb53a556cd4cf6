//! The header of the PROXY protocol, parsed strictly: what deviates from the specification is an error, never guessed.
// haproxy: doc/proxy-protocol.txt, sections 2.1 and 2.2

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use crate::listener::settings::ProxyProtocolVersions;

/// The beginning of a header of version 1.
pub(super) const V1_PREFIX: &[u8] = b"PROXY ";
/// The longest line of version 1, with its line end.
pub(super) const MAX_V1_LINE: usize = 107;
/// The beginning of a header of version 2.
pub(super) const V2_SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// The bytes between the signature and the addresses of version 2: version and command, family, length.
pub(super) const V2_FIXED: usize = 4;
/// The limit on addresses and TLVs of version 2. The specification allows 64 KiB, but says that a header fits into a
/// TCP segment.
// nginx: NGX_PROXY_PROTOCOL_MAX_HEADER
pub(super) const MAX_V2_LENGTH: usize = 4096;

/// The parsed header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProxyHeader {
    /// The connection is the load balancer's own, such as a health check, or the client has no IP address. The real
    /// peer counts as the client.
    Local,
    /// The connection is relayed for this client.
    Proxied(SocketAddr),
}

/// Why a header is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeaderError {
    /// The connection does not begin with a header.
    #[error("the connection does not begin with a PROXY protocol header")]
    Missing,
    /// The header is valid so far, but `--proxy-protocol` does not allow its version.
    #[error("a PROXY protocol header of version {version}, which --proxy-protocol does not allow")]
    UnacceptedVersion {
        /// The header's version.
        version: u8,
    },
    /// The header exceeds the limit.
    #[error("a PROXY protocol header that is too long")]
    TooLong,
    /// A part of the header is malformed.
    #[error("a malformed PROXY protocol header: {0}")]
    Malformed(&'static str),
}

impl ProxyProtocolVersions {
    /// Fails unless this version is allowed.
    pub(super) fn expect(self, version: u8) -> Result<(), HeaderError> {
        match (self, version) {
            (Self::Any, _) | (Self::V1, 1) | (Self::V2, 2) => Ok(()),
            (Self::V1 | Self::V2, version) => Err(HeaderError::UnacceptedVersion { version }),
        }
    }
}

/// Parses a line of version 1, with its line end.
pub(crate) fn parse_v1(line: &[u8]) -> Result<ProxyHeader, HeaderError> {
    let malformed = HeaderError::Malformed;
    let line = line.strip_suffix(b"\r\n").ok_or(malformed("the line does not end with CRLF"))?;
    let rest = line.strip_prefix(V1_PREFIX).ok_or(HeaderError::Missing)?;
    // The specification requires to ignore whatever follows.
    if rest == b"UNKNOWN" || rest.starts_with(b"UNKNOWN ") {
        return Ok(ProxyHeader::Local);
    }
    let rest = std::str::from_utf8(rest).map_err(|_| malformed("the line is not ASCII"))?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let [protocol, source, destination, source_port, destination_port] = fields.as_slice() else {
        return Err(malformed("the line does not have six fields with one space between them"));
    };
    let addresses = match *protocol {
        "TCP4" => addresses::<Ipv4Addr>(source, destination),
        "TCP6" => addresses::<Ipv6Addr>(source, destination),
        _ => return Err(malformed("the protocol is not TCP4, TCP6 or UNKNOWN")),
    };
    let (source, _) = addresses.ok_or(malformed("an address is not of the family"))?;
    let ports = port(source_port).zip(port(destination_port));
    let (port, _) = ports.ok_or(malformed("a port is not a number up to 65535"))?;
    Ok(ProxyHeader::Proxied(SocketAddr::new(source, port)))
}

fn addresses<A: FromStr + Into<IpAddr>>(source: &str, destination: &str) -> Option<(IpAddr, IpAddr)> {
    let address = |text: &str| text.parse::<A>().ok().map(Into::into);
    address(source).zip(address(destination))
}

/// A decimal number without sign and leading zeros.
fn port(text: &str) -> Option<u16> {
    let canonical = text == "0" || !text.starts_with(['0', '+']);
    text.parse().ok().filter(|_| canonical)
}

/// The length of the addresses and TLVs, from the bytes after the signature. Checks the bytes before the length.
pub(super) fn v2_length(fixed: [u8; V2_FIXED]) -> Result<usize, HeaderError> {
    let [version_and_command, family_and_transport, high, low] = fixed;
    if version_and_command >> 4 != 2 {
        return Err(HeaderError::Malformed("the version after the signature is not 2"));
    }
    let command = version_and_command & 0xf;
    if command > PROXY {
        return Err(HeaderError::Malformed("an unknown command"));
    }
    // A receiver must ignore the family of LOCAL.
    let is_known =
        matches!(family_and_transport, UNSPECIFIED | TCP4 | UDP4 | TCP6 | UDP6 | UNIX_STREAM | UNIX_DATAGRAM);
    if command == PROXY && !is_known {
        return Err(HeaderError::Malformed("an unknown address family or transport protocol"));
    }
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length > MAX_V2_LENGTH { Err(HeaderError::TooLong) } else { Ok(length) }
}

/// The command of version 2 for a relayed connection; 0 is LOCAL.
const PROXY: u8 = 1;
/// The families with their transport protocols, in version 2.
const UNSPECIFIED: u8 = 0x00;
const TCP4: u8 = 0x11;
const UDP4: u8 = 0x12;
const TCP6: u8 = 0x21;
const UDP6: u8 = 0x22;
const UNIX_STREAM: u8 = 0x31;
const UNIX_DATAGRAM: u8 = 0x32;

/// Parses the parts of a header of version 2 after its signature: `rest` has the length that `fixed` states.
pub(crate) fn parse_v2(fixed: [u8; V2_FIXED], rest: &[u8]) -> Result<ProxyHeader, HeaderError> {
    if v2_length(fixed)? != rest.len() {
        return Err(HeaderError::Malformed("the length does not match"));
    }
    let [version_and_command, family_and_transport, ..] = fixed;
    if version_and_command & 0xf != PROXY {
        return Ok(ProxyHeader::Local);
    }
    let short = HeaderError::Malformed("the header is too short for its addresses");
    let (client, tlvs) = match family_and_transport {
        TCP4 | UDP4 => ipv4_client(rest).ok_or(short)?,
        TCP6 | UDP6 => ipv6_client(rest).ok_or(short)?,
        UNIX_STREAM | UNIX_DATAGRAM => (ProxyHeader::Local, rest.get(2 * UNIX_PATH..).ok_or(short)?),
        // The specification lets a receiver use the real peer, and the length of the addresses is unknown.
        _ => return Ok(ProxyHeader::Local),
    };
    check_tlvs(tlvs)?;
    // A client of this TCP listener does not use UDP: the load balancer states no client that could be one.
    Ok(if matches!(family_and_transport, UDP4 | UDP6) { ProxyHeader::Local } else { client })
}

/// The length of a path in a header for a UNIX socket.
const UNIX_PATH: usize = 108;

/// The source of the address block, and the bytes behind the block.
fn ipv4_client(rest: &[u8]) -> Option<(ProxyHeader, &[u8])> {
    let (source, rest) = rest.split_first_chunk::<4>()?;
    let (_destination, rest) = rest.split_first_chunk::<4>()?;
    let (port, tlvs) = ports(rest)?;
    Some((ProxyHeader::Proxied((Ipv4Addr::from(*source), port).into()), tlvs))
}

fn ipv6_client(rest: &[u8]) -> Option<(ProxyHeader, &[u8])> {
    let (source, rest) = rest.split_first_chunk::<16>()?;
    let (_destination, rest) = rest.split_first_chunk::<16>()?;
    let (port, tlvs) = ports(rest)?;
    Some((ProxyHeader::Proxied((Ipv6Addr::from(*source), port).into()), tlvs))
}

fn ports(rest: &[u8]) -> Option<(u16, &[u8])> {
    let (source, rest) = rest.split_first_chunk::<2>()?;
    let (_destination, rest) = rest.split_first_chunk::<2>()?;
    Some((u16::from_be_bytes(*source), rest))
}

/// Checks that TLVs (type, length, value) fill the bytes exactly. Their values are ignored.
fn check_tlvs(mut tlvs: &[u8]) -> Result<(), HeaderError> {
    while !tlvs.is_empty() {
        let rest = tlvs
            .split_first_chunk::<3>()
            .and_then(|([_, high, low], rest)| rest.get(usize::from(u16::from_be_bytes([*high, *low]))..));
        tlvs = rest.ok_or(HeaderError::Malformed("a TLV is longer than the header"))?;
    }
    Ok(())
}
