//! PROXY protocol headers, read by the gateway and by github.com/pires/go-proxyproto. Inputs are random fragments.
//! `PORTCULLIS_SEED` sets another seed and `PORTCULLIS_INPUTS` the number of inputs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis::internal::read_proxy_header;
use serde_json::json;
use testkit::go_program::GoProgram;
use testkit::random::{Rng, inputs, seed};

use super::v2;

const FIELDS: &[&str] = &[
    "TCP4",
    "TCP4",
    "TCP6",
    "TCP6",
    "UNKNOWN",
    "UDP4",
    "tcp4",
    "",
    "192.0.2.1",
    "10.0.0.1",
    "192.0.2.01",
    "256.1.1.1",
    "1.2.3",
    "2001:db8::1",
    "::",
    "::1",
    "::ffff:1.2.3.4",
    "fe80::1%1",
    "1::2::3",
    "1:2:3:4:5:6:7:8",
    "12345::",
    "0",
    "1",
    "443",
    "65535",
    "65536",
    "00",
    "+1",
    "-1",
    "1 ",
    "x",
];

fn line(rng: &mut Rng) -> Vec<u8> {
    let address = |rng: &mut Rng, four: bool| {
        let near: &[&str] = if four { &["192.0.2.1", "0.0.0.0"] } else { &["2001:db8::1", "::ffff:1.2.3.4"] };
        if rng.one_in(8) { *rng.pick(FIELDS) } else { *rng.pick(near) }
    };
    let four = rng.one_in(2);
    let protocol = if rng.one_in(8) {
        *rng.pick(FIELDS)
    } else if four {
        "TCP4"
    } else {
        "TCP6"
    };
    let mut fields = vec!["PROXY", protocol, address(rng, four), address(rng, four)];
    for _ in 0..2 {
        fields.push(if rng.one_in(8) { *rng.pick(FIELDS) } else { *rng.pick(&["0", "443", "65535"]) });
    }
    if rng.one_in(10) {
        fields.push(*rng.pick(FIELDS));
    }
    if rng.one_in(10) {
        let at = rng.below(fields.len());
        fields.remove(at);
    }
    let end = if rng.one_in(10) { *rng.pick(&["\n", "\r", "", "\r\r\n", " \r\n"]) } else { "\r\n" };
    [fields.join(" ").as_bytes(), end.as_bytes()].concat()
}

fn binary(rng: &mut Rng) -> Vec<u8> {
    let command = if rng.one_in(8) { rng.byte() } else { *rng.pick(&[0x20, 0x21, 0x21, 0x21]) };
    let family = if rng.one_in(8) { rng.byte() } else { *rng.pick(&[0, 0x11, 0x12, 0x21, 0x22, 0x31, 0x32]) };
    let mut length = match family >> 4 {
        1 => 12,
        2 => 36,
        3 => 216,
        _ => 0,
    };
    if rng.one_in(8) {
        length = rng.below(40);
    }
    let mut rest: Vec<u8> = (0..length).map(|_| rng.byte()).collect();
    for _ in 0..rng.below(3) {
        let value = rng.below(5);
        rest.extend([rng.byte(), 0, u8::try_from(value).unwrap()]);
        rest.extend((0..value).map(|_| rng.byte()));
    }
    if rng.one_in(8) {
        rest.pop();
    }
    v2(command, family, &rest)
}

fn header(rng: &mut Rng) -> Vec<u8> {
    let mut data = if rng.one_in(2) { line(rng) } else { binary(rng) };
    if rng.one_in(8) {
        let at = rng.below(data.len());
        data[at] = rng.byte();
    }
    if rng.one_in(10) {
        data.truncate(rng.below(data.len()));
    }
    if rng.one_in(4) {
        data.extend(b"\x16\x03\x01");
    }
    data
}

/// The gateway must not accept a header that Go refuses, except where the specification leaves the choice.
#[test]
fn headers_are_read_as_by_go() {
    let Some(program) = GoProgram::build("proxyheaders") else { return };
    let mut rng = Rng(seed());
    let data: Vec<Vec<u8>> = (0..inputs(40_000)).map(|_| header(&mut rng)).collect();
    let question = |data: &Vec<u8>| json!({"data": STANDARD.encode(data)});
    let show = |data: &Vec<u8>| data.escape_ascii().to_string();
    let words = program.compare("proxy headers", &data, question, show, |data, answer| {
        let ours = read_proxy_header(data);
        let go_error = answer["error"].as_str().unwrap();
        match &ours {
            Err(_) if !go_error.is_empty() => Ok("both refuse"),
            Ok((client, length)) if go_error.is_empty() => {
                let text = client.map(|client| client.to_string()).unwrap_or_default();
                // Go writes a mapped address of a line as IPv4.
                let go = answer["client"].as_str().unwrap();
                let same = text == go || canonical(&text) == canonical(go);
                if same && answer["length"] == *length {
                    Ok("both accept")
                } else {
                    Err(format!("ours: {ours:?}\n  Go: {answer}"))
                }
            }
            // A receiver must ignore the family of LOCAL, and may accept UNSPEC with the real peer.
            Ok((None, _)) if data.get(12) == Some(&0x20) => Ok("local, which Go refuses for its family"),
            Ok((None, _)) if data.get(12..14) == Some(&[0x21, 0]) => Ok("unspecified, which Go refuses"),
            Ok(_) | Err(_) => Err(format!("ours: {ours:?}\n  Go: {answer}")),
        }
    });
    for word in ["both accept", "both refuse"] {
        assert!(words.count(word) > 100, "{words:?}");
    }
}

/// An address with its port, IPv4 in its own notation.
fn canonical(text: &str) -> Option<(std::net::IpAddr, u16)> {
    let address: std::net::SocketAddr = text.parse().ok()?;
    Some((address.ip().to_canonical(), address.port()))
}
