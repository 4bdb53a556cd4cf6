//! Which user of the machine has opened a connection to it.
// threat: forged-callback

use std::net::SocketAddr;

/// The user of the process at the other end of a connection within the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerUser {
    /// The user of this process, or root, from whom nothing is hidden.
    Own,
    /// Another one.
    Other,
    /// The system does not say it.
    Unknown,
}

/// The user at the other end of a connection, of which these are this and the other address.
#[cfg(target_os = "linux")]
pub fn peer_user(local: SocketAddr, peer: SocketAddr) -> PeerUser {
    let own = rustix::process::geteuid().as_raw();
    linux::uid_of_peer(local, peer).map_or(PeerUser::Unknown, |uid| user_of(uid, own))
}

/// Unknown: only Linux has a table of connections with their users that is read without `unsafe`.
#[cfg(not(target_os = "linux"))]
pub fn peer_user(_: SocketAddr, _: SocketAddr) -> PeerUser {
    PeerUser::Unknown
}

#[cfg(target_os = "linux")]
fn user_of(uid: u32, own: u32) -> PeerUser {
    match uid {
        0 => PeerUser::Own,
        uid if uid == own => PeerUser::Own,
        // The browser of a command of root, as by sudo, is that of the person who has started it.
        _ if own == 0 => PeerUser::Unknown,
        _ => PeerUser::Other,
    }
}

// linux: Documentation/networking/proc_net_tcp.rst
#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

    /// A connection over IPv4 is in the second table if its other end is a socket for both versions.
    const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
    /// How much of a table is read: some ten thousand connections.
    const MAX_TABLE_BYTES: u64 = 8 << 20;

    pub(super) fn uid_of_peer(local: SocketAddr, peer: SocketAddr) -> Option<u32> {
        TABLES.iter().find_map(|table| {
            let lines = BufReader::new(File::open(table).ok()?.take(MAX_TABLE_BYTES)).lines();
            lines.map_while(Result::ok).find_map(|line| uid_of_line(&line, local, peer))
        })
    }

    /// The user of the socket whose own address is `peer`, and whose other end is `local`.
    pub(super) fn uid_of_line(line: &str, local: SocketAddr, peer: SocketAddr) -> Option<u32> {
        let mut fields = line.split_ascii_whitespace();
        // sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
        let is_its =
            address(fields.nth(1)?)? == canonical(peer) && address(fields.next()?)? == canonical(local);
        let uid = fields.nth(4)?.parse().ok()?;
        let inode: u64 = fields.nth(1)?.parse().ok()?;
        // A socket that its process has closed has no inode, and the uid 0 whoever had it.
        (is_its && inode != 0).then_some(uid)
    }

    fn canonical(address: SocketAddr) -> (IpAddr, u16) {
        (address.ip().to_canonical(), address.port())
    }

    /// An address of the table: words of four bytes of the network's order, each written as a number of this machine.
    fn address(text: &str) -> Option<(IpAddr, u16)> {
        let (ip, port) = text.split_once(':')?;
        let words: Option<Vec<u32>> = ip.as_bytes().chunks(8).map(hexadecimal).collect();
        let bytes: Vec<u8> = words?.into_iter().flat_map(u32::to_ne_bytes).collect();
        let ip = match ip.len() {
            8 => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
            32 => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)).to_canonical(),
            _ => return None,
        };
        Some((ip, u16::from_str_radix(port, 16).ok()?))
    }

    fn hexadecimal(digits: &[u8]) -> Option<u32> {
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::linux::{uid_of_line, uid_of_peer};
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn a_line_has_the_user_of_the_other_end() {
        const QUEUES: &str = "01 00000000:00000000 00:00000000 00000000";
        const LOOPBACK: &str = "00000000000000000000000001000000";
        const MAPPED: &str = "0000000000000000FFFF00000100007F";
        let v4 = ("127.0.0.1:8080", "127.0.0.1:50000");
        let v6 = ("[::1]:8080", "[::1]:50000");
        let mapped = ("[::ffff:127.0.0.1]:8080", "127.0.0.1:50000");
        let both = |address: &str| format!("{address}:C350 {address}:1F90 {QUEUES}");
        let cases = [
            ("v4", format!("   0: {}  1000        0 4711 1 0", both("0100007F")), v4, Some(1000)),
            ("v6", format!("  12: {}     0        0 4711", both(LOOPBACK)), v6, Some(0)),
            ("v4 of a socket for both", format!("   3: {} 1001 0 4711", both(MAPPED)), v4, Some(1001)),
            (
                "v4 of a listener for both",
                format!("   3: {} 1001 0 4711", both("0100007F")),
                mapped,
                Some(1001),
            ),
            ("v4 is not v6", format!("   0: {} 1000 0 4711", both("0100007F")), v6, None),
            ("closed", format!("   0: {} 0 0 0", both("0100007F")), v4, None),
            ("this end", format!("   0: 0100007F:1F90 0100007F:C350 {QUEUES} 7 0 4711"), v4, None),
            ("another port", format!("   0: 0100007F:C351 0100007F:1F90 {QUEUES} 7 0 4711"), v4, None),
            ("another address", format!("   0: 0200007F:C350 0100007F:1F90 {QUEUES} 7 0 4711"), v4, None),
            ("the head", "  sl  local_address rem_address   st tx_queue".to_owned(), v4, None),
            ("cut", format!("   0: {}", both("0100007F")), v4, None),
            ("a negative user", format!("   0: {} -1 0 4711", both("0100007F")), v4, None),
            ("a short address", format!("   0: {} 7 0 4711", both("0100")), v4, None),
            ("no number", format!("   0: {} 7 0 4711", both("0100é07F")), v4, None),
            ("nothing", String::new(), v4, None),
        ];
        for (name, line, (local, peer), expected) in cases {
            let found = uid_of_line(&line, local.parse().unwrap(), peer.parse().unwrap());
            assert_eq!(found, expected, "{name}: {line}");
        }
    }

    #[test]
    fn who_is_not_this_user_is_another_one() {
        for (uid, own, expected) in [
            (1000, 1000, PeerUser::Own),
            (0, 1000, PeerUser::Own),
            (0, 0, PeerUser::Own),
            (1001, 1000, PeerUser::Other),
            (65534, 1000, PeerUser::Other),
            (1000, 0, PeerUser::Unknown),
        ] {
            assert_eq!(user_of(uid, own), expected, "{uid} {own}");
        }
    }

    #[test]
    fn a_connection_of_this_process_is_of_its_user() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        let mapped = format!("[::ffff:127.0.0.1]:{}", local.port());
        for address in [local.to_string(), mapped] {
            // Without IPv6 there are no such sockets.
            let Ok(client) = TcpStream::connect(&address) else { continue };
            let (accepted, peer) = listener.accept().unwrap();
            assert_eq!(uid_of_peer(local, peer), Some(rustix::process::getuid().as_raw()), "{address}");
            assert_eq!(peer_user(local, peer), PeerUser::Own, "{address}");
            drop(client);
            assert_eq!(uid_of_peer(local, peer), None, "{address}: closed, before this end");
            drop(accepted);
        }
    }
}
