//! TCP peers: keep-alive, and the network that limits count as one client.

use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

const TCP_KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Enables TCP keep-alive, without which a quiet watch or tunnel to a vanished peer would stay open for ever.
// Go: net.ListenConfig and net.Dialer, KeepAlive
pub(crate) fn enable_tcp_keep_alive(stream: &impl AsFd) {
    let period =
        TcpKeepalive::new().with_time(TCP_KEEP_ALIVE_INTERVAL).with_interval(TCP_KEEP_ALIVE_INTERVAL);
    if let Err(error) = SockRef::from(stream).set_tcp_keepalive(&period) {
        tracing::debug!(%error, "cannot enable TCP keep-alive");
    }
}

/// The network that limits count as one client: an IPv4 address, or the /64 of an IPv6 address.
pub(crate) fn client_network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
    }
}
