//! Which addresses API servers may have. The API servers of a tenant are not at addresses that lead to the gateway's own
//! machine or network segment, in whatever notation, nor at the metadata services of clouds, which give credentials of
//! the machine to every process on it.
//!
//! An IPv6 address may contain an IPv4 address to which the network translates it. Then that address decides.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const LOOPBACK: &str = "a loopback address";
const UNSPECIFIED: &str = "an unspecified address";
const LINK_LOCAL: &str = "a link-local address";
const MULTICAST: &str = "a multicast address";
const BROADCAST: &str = "a broadcast address";
const METADATA: &str = "a cloud metadata address";

/// Metadata services that are not at a link-local address: of Azure and of Alibaba Cloud.
const METADATA_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(100, 100, 100, 200)];
/// Those of Google Cloud, of Oracle Cloud, and of Scaleway.
const METADATA_V6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
];

/// Which addresses API servers may have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AddressPolicy {
    /// Any: the operator of the gateway chooses them.
    #[default]
    Any,
    /// None that lead to the gateway's own machine or network segment.
    NoLocal,
}

impl AddressPolicy {
    /// The kind of an address that is refused.
    // threat: secret-names-address
    pub(crate) fn refused_kind(self, address: IpAddr) -> Option<&'static str> {
        match (self, address) {
            (Self::Any, _) => None,
            (Self::NoLocal, IpAddr::V4(address)) => refused_v4(address),
            (Self::NoLocal, IpAddr::V6(address)) => refused_v6(address),
        }
    }
}

fn refused_v4(address: Ipv4Addr) -> Option<&'static str> {
    match address {
        address if address.is_loopback() => Some(LOOPBACK),
        // The whole of 0.0.0.0/8 is "this host".
        address if address.octets()[0] == 0 => Some(UNSPECIFIED),
        address if address.is_link_local() => Some(LINK_LOCAL),
        address if address.is_multicast() => Some(MULTICAST),
        address if address.is_broadcast() => Some(BROADCAST),
        address if METADATA_V4.contains(&address) => Some(METADATA),
        _ => None,
    }
}

fn refused_v6(address: Ipv6Addr) -> Option<&'static str> {
    match address {
        address if address.is_loopback() => Some(LOOPBACK),
        address if address.is_unspecified() => Some(UNSPECIFIED),
        address if address.is_unicast_link_local() => Some(LINK_LOCAL),
        address if address.is_multicast() => Some(MULTICAST),
        address if is_metadata(address) => Some(METADATA),
        address => embedded(address).map_or_else(|| refused_of_local_nat64(address), refused_v4),
    }
}

fn is_metadata(address: Ipv6Addr) -> bool {
    // All services of AWS for its machines: metadata at ::254, credentials of pods at ::23.
    matches!(address.segments(), [0xfd00, 0xec2, ..]) || METADATA_V6.contains(&address)
}

/// The IPv4 address to which the network translates an IPv6 address.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    match address.segments() {
        // IPv4-mapped, IPv4-compatible and IPv4-translated addresses; NAT64, by the well-known prefix; 6to4.
        // RFC 4291, sections 2.5.5.1 and 2.5.5.2; RFC 2765, section 2.1; RFC 6052, section 2.1; RFC 3056, section 2
        [0, 0, 0, 0, 0, 0xffff | 0, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))),
        _ => None,
    }
}

/// The kind of an address of NAT64 for local use. Where the IPv4 address is follows from the length of the network's own
/// prefix, which is not known; any bits may follow it.
// RFC 6052, section 2.2; RFC 8215
fn refused_of_local_nat64(address: Ipv6Addr) -> Option<&'static str> {
    let [0x64, 0xff9b, 1, ..] = address.segments() else { return None };
    let [_, _, _, _, _, _, six, seven, _, nine, ten, eleven, twelve, thirteen, fourteen, fifteen] =
        address.octets();
    let readings = [
        [twelve, thirteen, fourteen, fifteen],
        [six, seven, nine, ten],
        [seven, nine, ten, eleven],
        [nine, ten, eleven, twelve],
    ];
    // At the wrong places most addresses have zeros.
    let leads_here = |kind: &&str| [LOOPBACK, LINK_LOCAL, METADATA].contains(kind);
    readings.into_iter().find_map(|reading| refused_v4(reading.into()).filter(leads_here))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_refused_in_every_notation() {
        let cases = [
            ("127.0.0.1", Some(LOOPBACK)),
            ("127.255.0.9", Some(LOOPBACK)),
            ("::1", Some(LOOPBACK)),
            ("::ffff:127.0.0.1", Some(LOOPBACK)),
            ("0.0.0.0", Some(UNSPECIFIED)),
            ("0.1.2.3", Some(UNSPECIFIED)),
            ("::", Some(UNSPECIFIED)),
            ("169.254.169.254", Some(LINK_LOCAL)),
            ("::ffff:169.254.169.254", Some(LINK_LOCAL)),
            ("fe80::1", Some(LINK_LOCAL)),
            ("febf::1", Some(LINK_LOCAL)),
            ("224.0.0.1", Some(MULTICAST)),
            ("ff02::1", Some(MULTICAST)),
            ("255.255.255.255", Some(BROADCAST)),
            ("10.0.0.1", None),
            ("192.0.2.1", None),
            ("2001:db8::1", None),
            ("fd00::1", None),
            ("::ffff:10.0.0.1", None),
        ];
        refuses(&cases);
    }

    #[test]
    fn the_ipv4_address_within_an_ipv6_address_decides() {
        let cases = [
            // IPv4-compatible and IPv4-translated.
            ("::127.0.0.1", Some(LOOPBACK)),
            ("::169.254.169.254", Some(LINK_LOCAL)),
            ("::2", Some(UNSPECIFIED)),
            ("::10.0.0.1", None),
            ("::ffff:0:127.0.0.1", Some(LOOPBACK)),
            ("::ffff:0:10.0.0.1", None),
            // NAT64.
            ("64:ff9b::127.0.0.1", Some(LOOPBACK)),
            ("64:ff9b::a9fe:a9fe", Some(LINK_LOCAL)),
            ("64:ff9b::0.0.0.0", Some(UNSPECIFIED)),
            ("64:ff9b::168.63.129.16", Some(METADATA)),
            ("64:ff9b::192.0.2.1", None),
            ("64:ff9b:2::127.0.0.1", None),
            // NAT64 for local use: /96, /48, /56 and /64.
            ("64:ff9b:1::127.0.0.1", Some(LOOPBACK)),
            ("64:ff9b:1:fffe::169.254.169.254", Some(LINK_LOCAL)),
            ("64:ff9b:1:7f00:0:100::", Some(LOOPBACK)),
            ("64:ff9b:1:a9fe:a9:fe00::", Some(LINK_LOCAL)),
            ("64:ff9b:1:a9fe:a9:fe00:dead:beef", Some(LINK_LOCAL)),
            ("64:ff9b:1:127f:0:1::", Some(LOOPBACK)),
            ("64:ff9b:1:1234:7f:0:100:0", Some(LOOPBACK)),
            ("64:ff9b:1:1234:a9:fea9:fe00:0", Some(LINK_LOCAL)),
            ("64:ff9b:1::10.0.0.1", None),
            ("64:ff9b:1:a00:0:100::", None),
            ("64:ff9b:1:fffe::192.0.2.1", None),
            // 6to4.
            ("2002:7f00:1::", Some(LOOPBACK)),
            ("2002:7fff:ffff::1", Some(LOOPBACK)),
            ("2002:a9fe:a9fe::a9fe:a9fe", Some(LINK_LOCAL)),
            ("2002:c000:201::1", None),
        ];
        refuses(&cases);
    }

    #[test]
    fn the_metadata_services_of_clouds_are_refused() {
        let cases = [
            ("fd00:ec2::254", Some(METADATA)),
            ("fd00:ec2::23", Some(METADATA)),
            ("fd20:ce::254", Some(METADATA)),
            ("fd00:c1::a9fe:a9fe", Some(METADATA)),
            ("fd00:42::42", Some(METADATA)),
            ("168.63.129.16", Some(METADATA)),
            ("100.100.100.200", Some(METADATA)),
            ("::ffff:100.100.100.200", Some(METADATA)),
            ("fd00:ec3::254", None),
            ("100.100.100.201", None),
        ];
        refuses(&cases);
    }

    fn refuses(cases: &[(&str, Option<&str>)]) {
        for (address, expected) in cases {
            let parsed: IpAddr = address.parse().unwrap();
            assert_eq!(AddressPolicy::NoLocal.refused_kind(parsed), *expected, "{address}");
            assert_eq!(AddressPolicy::Any.refused_kind(parsed), None, "{address}");
        }
    }
}
