use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;

use super::*;
use crate::listener::settings::ProxyProtocolVersions;

const LIMIT: Duration = Duration::from_secs(10);
const AFTER: &[u8] = b"\x16the TLS handshake";

fn settings(versions: ProxyProtocolVersions) -> ProxyProtocol {
    ProxyProtocol { versions, trusted_networks: vec!["10.0.0.0/8".parse().unwrap()] }
}

/// A header of version 2.
fn v2(version_and_command: u8, family_and_transport: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [&V2_SIGNATURE, &[version_and_command, family_and_transport][..], &length, rest].concat()
}

const V4: &[u8] = &[192, 0, 2, 7, 10, 0, 0, 1, 0x30, 0x39, 0x01, 0xbb];
const V6: &[u8] = &[
    0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 1, 0x30, 0x39, 0x01, 0xbb,
];

#[expect(clippy::unnecessary_wraps, reason = "the value of a column")]
fn proxied(address: &str) -> Result<ProxyHeader, &'static str> {
    Ok(ProxyHeader::Proxied(address.parse().unwrap()))
}

/// Reads a header that arrives in pieces of `size` bytes, followed by other bytes. Checks that those remain.
async fn read_in_pieces(
    versions: ProxyProtocolVersions,
    header: &[u8],
    size: usize,
) -> Result<ProxyHeader, ProxyProtocolError> {
    let (mut client, mut server) = tokio::io::duplex(size);
    let sent = [header, AFTER].concat();
    let writer = tokio::spawn(async move {
        for piece in sent.chunks(size) {
            // The reader may have refused the header.
            if client.write_all(piece).await.is_err() {
                return;
            }
        }
        client.shutdown().await.ok();
    });
    let read = settings(versions).read_header(&mut server, LIMIT).await;
    if read.is_ok() {
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, AFTER, "{header:?}");
    }
    drop(server);
    writer.await.unwrap();
    read
}

struct Case {
    name: &'static str,
    header: Vec<u8>,
    /// The client, or the reason of the refusal.
    expected: Result<ProxyHeader, &'static str>,
}

fn case(name: &'static str, header: impl AsRef<[u8]>, expected: Result<ProxyHeader, &'static str>) -> Case {
    Case { name, header: header.as_ref().to_vec(), expected }
}

fn v1_cases() -> Vec<Case> {
    let bad = Err("malformed");
    let longest = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    vec![
        case("v1 over IPv4", "PROXY TCP4 192.0.2.7 10.0.0.1 12345 443\r\n", proxied("192.0.2.7:12345")),
        case("v1 over IPv6", "PROXY TCP6 2001:DB8::7 ::1 0 443\r\n", proxied("[2001:db8::7]:0")),
        case("v1, mapped", "PROXY TCP6 ::ffff:192.0.2.7 ::1 1 2\r\n", proxied("[::ffff:192.0.2.7]:1")),
        case(
            "v1, the longest addresses",
            format!("PROXY TCP6 {longest} {longest} 65535 65535\r\n"),
            proxied(&format!("[{longest}]:65535")),
        ),
        case("v1, unknown", "PROXY UNKNOWN\r\n", Ok(ProxyHeader::Local)),
        case("v1, unknown with a rest", b"PROXY UNKNOWN 1.1.1.1 \xff x\r\n", Ok(ProxyHeader::Local)),
        case(
            "v1, unknown of 107 bytes",
            format!("PROXY UNKNOWN {longest} {longest} 65535 65535\r\n"),
            Ok(ProxyHeader::Local),
        ),
        case("v1 of 108 bytes", format!("PROXY UNKNOWN {longest} {longest}0 65535 65535\r\n"), bad),
        case("v1 without an end", "PROXY UNKNOWN ".to_owned() + &"a".repeat(2000), bad),
        case("v1, LF alone", "PROXY TCP4 192.0.2.7 10.0.0.1 12345 443\n", bad),
        case("v1, unknown, LF alone", "PROXY UNKNOWN\n", bad),
        case("v1, CR alone", "PROXY TCP4 192.0.2.7 10.0.0.1 12345 443\r \r\n", bad),
        case("v1, unknown glued", "PROXY UNKNOWNS\r\n", bad),
        case("v1, lower case", "PROXY tcp4 192.0.2.7 10.0.0.1 12345 443\r\n", bad),
        case("v1, lower case prefix", "proxy TCP4 192.0.2.7 10.0.0.1 12345 443\r\n", bad),
        case("v1, UDP", "PROXY UDP4 192.0.2.7 10.0.0.1 12345 443\r\n", bad),
        case("v1, family mismatch", "PROXY TCP4 2001:db8::7 10.0.0.1 12345 443\r\n", bad),
        case("v1, destination mismatch", "PROXY TCP4 192.0.2.7 ::1 12345 443\r\n", bad),
        case("v1, IPv4 in TCP6", "PROXY TCP6 192.0.2.7 10.0.0.1 12345 443\r\n", bad),
        case("v1, zone", "PROXY TCP6 fe80::1%eth0 ::1 12345 443\r\n", bad),
        case("v1, leading zero", "PROXY TCP4 192.0.02.7 10.0.0.1 12345 443\r\n", bad),
        case("v1, octet above 255", "PROXY TCP4 192.0.2.256 10.0.0.1 12345 443\r\n", bad),
        case("v1, three octets", "PROXY TCP4 192.0.2 10.0.0.1 12345 443\r\n", bad),
        case("v1, port above 65535", "PROXY TCP4 192.0.2.7 10.0.0.1 65536 443\r\n", bad),
        case("v1, port with sign", "PROXY TCP4 192.0.2.7 10.0.0.1 +1 443\r\n", bad),
        case("v1, port with zero", "PROXY TCP4 192.0.2.7 10.0.0.1 01 443\r\n", bad),
        case("v1, bad destination port", "PROXY TCP4 192.0.2.7 10.0.0.1 1 x\r\n", bad),
        case("v1, no port", "PROXY TCP4 192.0.2.7 10.0.0.1 1\r\n", bad),
        case("v1, a field more", "PROXY TCP4 192.0.2.7 10.0.0.1 1 2 3\r\n", bad),
        case("v1, two spaces", "PROXY TCP4  192.0.2.7 10.0.0.1 1 2\r\n", bad),
        case("v1, a tab", "PROXY\tTCP4 192.0.2.7 10.0.0.1 1 2\r\n", bad),
        case("v1, a space at the end", "PROXY TCP4 192.0.2.7 10.0.0.1 1 2 \r\n", bad),
        case("v1, no protocol", "PROXY \r\nPROXY \r\n", bad),
        case("v1, not UTF-8", b"PROXY TCP4 192.0.2.7 10.0.0.1 1 \xff\r\n".as_slice(), bad),
    ]
}

fn v2_cases() -> Vec<Case> {
    let bad = Err("malformed");
    let with = |addresses: &[u8], tlvs: &[u8]| [addresses, tlvs].concat();
    let unix = [0; 216];
    vec![
        case("v2 over IPv4", v2(0x21, 0x11, V4), proxied("192.0.2.7:12345")),
        case("v2 over IPv6", v2(0x21, 0x21, V6), proxied("[2001:db8::7]:12345")),
        case(
            "v2 with TLVs",
            v2(0x21, 0x11, &with(V4, &[1, 0, 2, b'h', b'2', 4, 0, 0])),
            proxied("192.0.2.7:12345"),
        ),
        case("v2, the most TLVs", v2(0x21, 0x11, &with(V4, &long_tlv(4084))), proxied("192.0.2.7:12345")),
        case("v2, too many TLVs", v2(0x21, 0x11, &with(V4, &long_tlv(4085))), bad),
        case("v2, 64 KiB", v2(0x21, 0x11, &vec![0; 65_535]), bad),
        case("v2, local", v2(0x20, 0x00, &[]), Ok(ProxyHeader::Local)),
        case("v2, local with addresses", v2(0x20, 0x11, V4), Ok(ProxyHeader::Local)),
        case("v2, local with anything", v2(0x20, 0xff, b"anything"), Ok(ProxyHeader::Local)),
        case("v2, unspecified", v2(0x21, 0x00, b"anything"), Ok(ProxyHeader::Local)),
        case("v2, unspecified transport", v2(0x21, 0x10, V4), bad),
        case("v2, unspecified family", v2(0x21, 0x01, V4), bad),
        case("v2, UNIX", v2(0x21, 0x31, &unix), Ok(ProxyHeader::Local)),
        case("v2, UNIX with a TLV", v2(0x21, 0x31, &with(&unix, &[4, 0, 0])), Ok(ProxyHeader::Local)),
        case("v2, UDP", v2(0x21, 0x12, V4), Ok(ProxyHeader::Local)),
        case("v2, UDP too short", v2(0x21, 0x22, V4), bad),
        case("v2, IPv4 too short", v2(0x21, 0x11, &V4[..11]), bad),
        case("v2, IPv4, nothing", v2(0x21, 0x11, &[]), bad),
        case("v2, IPv6 too short", v2(0x21, 0x21, &V6[..35]), bad),
        case("v2, UNIX too short", v2(0x21, 0x31, &unix[..215]), bad),
        case("v2, a TLV without length", v2(0x21, 0x11, &with(V4, &[1, 0])), bad),
        case("v2, a TLV too long", v2(0x21, 0x11, &with(V4, &[1, 0, 2, b'h'])), bad),
        case("v2, version 1", v2(0x11, 0x11, V4), bad),
        case("v2, version 3", v2(0x31, 0x11, V4), bad),
        case("v2, unknown command", v2(0x22, 0x11, V4), bad),
        case("v2, unknown family", v2(0x21, 0x41, V4), bad),
        case("v2, unknown transport", v2(0x21, 0x13, V4), bad),
        case("v2, other signature", [b"\r\n\r\n\0\r\nQUIT\r", &v2(0x21, 0x11, V4)[12..]].concat(), bad),
        case("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".as_slice(), bad),
        case("HTTP", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", bad),
    ]
}

fn long_tlv(length: usize) -> Vec<u8> {
    let value = u16::try_from(length - 3).unwrap().to_be_bytes();
    [&[0xe0][..], &value, &vec![b'x'; length - 3]].concat()
}

#[tokio::test]
async fn headers_are_parsed_strictly_in_pieces_of_any_size() {
    let mut failed = Vec::new();
    for Case { name, header, expected } in v1_cases().into_iter().chain(v2_cases()) {
        for size in [1, 3, 13, 16, 1000] {
            let read = read_in_pieces(ProxyProtocolVersions::Any, &header, size).await;
            let read = read.map_err(|error| error.reason());
            if read != expected {
                failed.push(format!("{name}, pieces of {size}: {read:?}"));
            }
        }
    }
    assert_eq!(failed, [""; 0]);
}

#[tokio::test]
async fn only_the_configured_version_is_accepted() {
    let headers = [b"PROXY TCP4 192.0.2.7 10.0.0.1 12345 443\r\n".to_vec(), v2(0x21, 0x11, V4)];
    for (versions, accepted) in [
        (ProxyProtocolVersions::V1, [true, false]),
        (ProxyProtocolVersions::V2, [false, true]),
        (ProxyProtocolVersions::Any, [true, true]),
    ] {
        for (header, is_accepted) in headers.iter().zip(accepted) {
            let read = read_in_pieces(versions, header, 7).await.map_err(|error| error.reason());
            let expected = if is_accepted { proxied("192.0.2.7:12345") } else { Err("unaccepted_version") };
            assert_eq!(read, expected, "{versions:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_header_that_does_not_end_is_refused_after_the_time_limit() {
    for header in [&b""[..], b"PROXY ", b"PROXY TCP4 192.0.2.7", &V2_SIGNATURE, &v2(0x21, 0x11, V4)[..27]] {
        let (mut client, mut server) = tokio::io::duplex(100);
        client.write_all(header).await.unwrap();
        let began = Instant::now();
        let read = settings(ProxyProtocolVersions::Any).read_header(&mut server, LIMIT).await;
        assert_eq!(read.map_err(|error| error.reason()), Err("timeout"), "{header:?}");
        assert_eq!(began.elapsed(), LIMIT);
        drop(client);
    }
}

/// The time limit is for the whole header: a client that sends a byte now and then does not extend it.
#[tokio::test(start_paused = true)]
async fn single_bytes_do_not_extend_the_time_limit() {
    let (mut client, mut server) = tokio::io::duplex(1);
    tokio::spawn(async move {
        for byte in b"PROXY UNKNOWN ".iter().chain(std::iter::repeat_n(&b'a', 60)) {
            if client.write_all(&[*byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let began = Instant::now();
    let read = settings(ProxyProtocolVersions::Any).read_header(&mut server, LIMIT).await;
    assert_eq!(read.map_err(|error| error.reason()), Err("timeout"));
    assert_eq!(began.elapsed(), LIMIT);
}

#[tokio::test]
async fn a_connection_that_ends_within_the_header_is_refused() {
    let header = v2(0x21, 0x11, V4);
    for length in 0..header.len() {
        let (mut client, mut server) = tokio::io::duplex(100);
        client.write_all(&header[..length]).await.unwrap();
        drop(client);
        let read = settings(ProxyProtocolVersions::Any).read_header(&mut server, LIMIT).await;
        assert_eq!(read.map_err(|error| error.reason()), Err("closed"), "{length} bytes");
    }
}

#[test]
fn only_trusted_networks_send_headers() {
    let settings = settings(ProxyProtocolVersions::Any);
    for (peer, expected) in
        [("10.255.0.1", true), ("::ffff:10.0.0.1", true), ("11.0.0.1", false), ("::1", false)]
    {
        assert_eq!(settings.expects_header_from(peer.parse().unwrap()), expected, "{peer}");
    }
}
