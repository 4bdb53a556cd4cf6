//! TCP peers: keep-alive, networks, and the network that limits count as one client.

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

const TCP_KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Enables TCP keep-alive, without which a quiet watch or tunnel to a vanished peer would stay open for ever.
// Go: net.ListenConfig and net.Dialer, KeepAlive
pub fn enable_tcp_keep_alive<'s, S>(stream: &'s S)
where
    SockRef<'s>: From<&'s S>,
{
    let period =
        TcpKeepalive::new().with_time(TCP_KEEP_ALIVE_INTERVAL).with_interval(TCP_KEEP_ALIVE_INTERVAL);
    if let Err(error) = SockRef::from(stream).set_tcp_keepalive(&period) {
        tracing::debug!(%error, "cannot enable TCP keep-alive");
    }
}

/// The network that limits count as one client: an IPv4 address, or the /64 of an IPv6 address.
pub fn client_network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
    }
}

/// A network in CIDR notation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpNetwork {
    address: IpAddr,
    prefix: u8,
}

/// Why a text is not a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// It is not an address with a prefix length.
    #[error("is not a network in CIDR notation, such as 10.0.0.0/24 or 2001:db8::/64")]
    Syntax,
    /// The address has bits beyond the prefix: the network or the length is wrong.
    #[error("has address bits beyond its prefix length")]
    HostBits,
    /// An IPv4 network is written as IPv6.
    #[error("is an IPv4 network written as IPv6")]
    Mapped,
}

impl FromStr for IpNetwork {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let (address, prefix) = text.split_once('/').ok_or(NetworkError::Syntax)?;
        let address: IpAddr = address.parse().map_err(|_| NetworkError::Syntax)?;
        let canonical = prefix == "0" || !prefix.starts_with(['0', '+']);
        let prefix = prefix.parse().ok().filter(|_| canonical).ok_or(NetworkError::Syntax)?;
        if prefix > if address.is_ipv4() { 32 } else { 128 } {
            return Err(NetworkError::Syntax);
        }
        if address.to_canonical() != address {
            return Err(NetworkError::Mapped);
        }
        if bits(address) & !mask(prefix) != 0 {
            return Err(NetworkError::HostBits);
        }
        Ok(Self { address, prefix })
    }
}

impl IpNetwork {
    /// Whether the address is in the network. An IPv4 address may be written as IPv6.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4() && bits(address) & mask(self.prefix) == bits(self.address)
    }

    /// Whether the network is all of IPv4 or all of IPv6.
    pub fn is_everything(&self) -> bool {
        self.prefix == 0
    }
}

/// The bits of an address, left-aligned.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn mask(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_their_addresses_alone() {
        for (network, address, expected) in [
            ("10.1.0.0/16", "10.1.255.255", true),
            ("10.1.0.0/16", "10.2.0.0", false),
            ("10.1.0.0/16", "::ffff:10.1.2.3", true),
            ("10.1.2.3/32", "10.1.2.3", true),
            ("10.1.2.3/32", "10.1.2.2", false),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/32", "2001:db9::", false),
            ("2001:db8::1/128", "2001:db8::1", true),
            ("2001:db8::1/128", "2001:db8::2", false),
            ("a00::/8", "10.0.0.1", false),
            ("0.0.0.0/0", "::1", false),
            ("0.0.0.0/0", "1.2.3.4", true),
            ("::/0", "1.2.3.4", false),
            ("::/0", "::1", true),
        ] {
            let parsed: IpNetwork = network.parse().unwrap();
            assert_eq!(parsed.contains(address.parse().unwrap()), expected, "{address} in {network}");
        }
    }

    #[test]
    fn networks_are_parsed_strictly() {
        for (text, expected) in [
            ("10.0.0.1", NetworkError::Syntax),
            ("10.0.0.0/33", NetworkError::Syntax),
            ("10.0.0.0/08", NetworkError::Syntax),
            ("10.0.0.0/+8", NetworkError::Syntax),
            ("10.0.0.0/-8", NetworkError::Syntax),
            ("10.0.0.0/", NetworkError::Syntax),
            ("10.0.0/8", NetworkError::Syntax),
            ("::/129", NetworkError::Syntax),
            (" ::/0", NetworkError::Syntax),
            ("localhost/8", NetworkError::Syntax),
            ("10.0.0.1/8", NetworkError::HostBits),
            ("2001:db8::1/64", NetworkError::HostBits),
            ("::ffff:10.0.0.0/104", NetworkError::Mapped),
        ] {
            assert_eq!(text.parse::<IpNetwork>(), Err(expected), "{text}");
        }
    }
}
