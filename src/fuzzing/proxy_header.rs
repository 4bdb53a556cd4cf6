//! PROXY protocol headers: an accepted one has a bounded length, does not depend on the bytes behind it, and every
//! shorter piece of it is refused.

use crate::listener::proxy_protocol::read_complete_header as read;

/// The longest header: version 2 with 4096 bytes of addresses and TLVs.
const MAX_HEADER: usize = 16 + 4096;

/// The input is the beginning of a connection.
pub fn proxy_header(data: &[u8]) {
    let Ok((client, length)) = read(data) else { return };
    assert!((15..=MAX_HEADER).contains(&length), "{length}");
    let header = data.get(..length).unwrap_or_default();
    let followed = [header, b"\x16\x03\x01"].concat();
    assert_eq!(read(&followed), Ok((client, length)), "the bytes behind the header count");
    for shorter in 0..length {
        let piece = header.get(..shorter).unwrap_or_default();
        assert!(read(piece).is_err(), "the first {shorter} bytes are a header");
    }
    let is_text = header.starts_with(b"PROXY ") && header.ends_with(b"\r\n") && length <= 107;
    assert!(is_text || header.starts_with(b"\r\n\r\n\0\r\nQUIT\n"));
    // The client is in the header itself.
    if let Some(client) = client {
        let named = match client.ip() {
            _ if is_text => text_names(header, client),
            std::net::IpAddr::V4(ip) => header.get(16..20) == Some(&ip.octets()[..]),
            std::net::IpAddr::V6(ip) => header.get(16..32) == Some(&ip.octets()[..]),
        };
        assert!(named, "{client}");
    }
}

fn text_names(header: &[u8], client: std::net::SocketAddr) -> bool {
    let text = String::from_utf8_lossy(header);
    let mut fields = text.split_whitespace().skip(2);
    let ip = fields.next().and_then(|text| text.parse().ok());
    let port = fields.nth(1).and_then(|text| text.parse().ok());
    ip == Some(client.ip()) && port == Some(client.port())
}
