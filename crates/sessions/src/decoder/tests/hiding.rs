//! Frames by which a client would hide what it sends, or what it gets, and those that cost more than they weigh.

use super::streams::{spdy_session, tunnelled};
use super::*;
use Side::{Client, Server};
use spdy::{Opener, control, data, pairs};

const EXEC: SessionKind = SessionKind::Exec;
const PORTS: SessionKind = SessionKind::PortForward;

/// A frame that Kubernetes' servers would read otherwise than this decoder makes the side unreadable.
#[test]
fn a_client_cannot_hide_a_frame_of_spdy_in_another_one() {
    let wrong = "a control frame has a wrong length";
    let hidden = data(Client, 1, false, "hidden").1;
    let setting = [&[0, 0, 0, 0][..], &hidden].concat();
    let open = |block: &[u8]| control(Client, 1, 0, &[&1_u32.to_be_bytes()[..], &[0; 6], block].concat());
    let block = |plain: &[u8]| Opener::new(Client).block(plain);
    let two = [pairs(&[("streamtype", "stdout")]), pairs(&[("streamtype", "stdin")])].concat();
    let mut growing = 1_u32.to_be_bytes().to_vec();
    growing
        .extend([&1_u32.to_be_bytes()[..], b"a", &(1_u32 << 20).to_be_bytes(), &vec![0; 1 << 20]].concat());
    for (name, sent, why) in [
        ("a ping with another frame", control(Client, 6, 0, &[&[0, 0, 0, 1], &hidden[..]].concat()), wrong),
        ("a reset with another frame", control(Client, 3, 0, &[&[0; 8], &hidden[..]].concat()), wrong),
        ("a short GOAWAY", control(Client, 7, 0, &[0; 4]), wrong),
        ("a short SYN_STREAM", control(Client, 1, 0, &[0; 9]), wrong),
        ("settings with another frame", control(Client, 4, 0, &setting), wrong),
        ("settings that are too few", control(Client, 4, 0, &[0xff; 4]), wrong),
        ("an unknown frame", control(Client, 10, 0, &[]), "a control frame has an unknown type"),
        ("no zlib", open(b"plain text"), "the header blocks are not compressed by zlib"),
        (
            "not zlib after its header",
            open(&[0x78, 1, 0xff, 0xff]),
            "the header blocks cannot be decompressed",
        ),
        ("headers of the next block", open(&block(&two)), "a header block goes on after its pairs"),
        ("half of a pair", open(&block(&[0, 0, 0, 1, 0, 0])), "a header block ends within its pairs"),
        ("no headers", open(&[]), "a header block ends within its pairs"),
        ("too many pairs", open(&block(&[0xff; 8])), "a header block has too many pairs"),
        ("a header that grows", open(&block(&growing)), "the header blocks are too large"),
    ] {
        let after = data(Client, 1, false, "after");
        assert_eq!(decode(SPDY, EXEC, &[sent, after]), [Seen::Unreadable(Client, why)], "{name}");
    }
}

/// Makes a frame with a header block.
type Hiding = fn(&mut Opener) -> Sent;

/// Kubernetes' servers ignore these frames, or take them for another stream, and go on with the streams that they have.
#[test]
fn a_client_cannot_hide_a_stream_by_another_frame() {
    let order = "the client opens a stream twice, or in another order";
    let stream = "a control frame has an invalid stream";
    let early = "data of a stream before the reply to it";
    let numbered = |kind, id: u32, flags, rest: &[u8]| {
        control(Client, kind, flags, &[&id.to_be_bytes()[..], rest].concat())
    };
    let cases: [(&str, Option<Hiding>, Sent, &str); 12] = [
        ("a reset of another number", None, numbered(3, 0x8000_0003, 0, &[0, 0, 0, 5]), stream),
        ("a reset of the connection", None, numbered(3, 0, 0, &[0, 0, 0, 5]), stream),
        ("a reply", None, numbered(2, 3, 1, &[]), "a header block ends within its pairs"),
        (
            "a stream twice",
            Some(|client| client.open(3, &[("streamtype", "error")])),
            (Client, vec![]),
            order,
        ),
        (
            "a lower number",
            Some(|client| client.open(2, &[("streamtype", "error")])),
            (Client, vec![]),
            order,
        ),
        (
            "another number",
            Some(|client| client.open(0x8000_000b, &[("streamtype", "x")])),
            (Client, vec![]),
            stream,
        ),
        (
            "a reply that ends",
            Some(|client| {
                let block = client.block(&pairs(&[]));
                control(Client, 2, 1, &[&3_u32.to_be_bytes()[..], &block].concat())
            }),
            (Client, vec![]),
            "the client replies to a stream",
        ),
        (
            "headers that end",
            Some(|client| {
                let block = client.block(&pairs(&[]));
                control(Client, 8, 1, &[&3_u32.to_be_bytes()[..], &block].concat())
            }),
            (Client, vec![]),
            "the client sends further headers of a stream",
        ),
        ("no stream", None, data(Client, 11, true, "x"), "data of a stream that was not opened"),
        (
            "data before the reply",
            Some(|client| client.open(11, &[("streamtype", "stdin")])),
            data(Client, 11, true, "x"),
            early,
        ),
        (
            "a long type",
            Some(|client| client.open(11, &[("streamtype", &"x".repeat(65))])),
            (Client, vec![]),
            "a header of a stream is too long",
        ),
        ("data of the connection", None, data(Client, 0, false, "x"), "data of a stream that was not opened"),
    ];
    for (name, hiding, more, why) in cases {
        let (mut client, mut server) = (Opener::new(Client), Opener::new(Server));
        let mut sent = Vec::new();
        for (id, kind) in (1..).step_by(2).zip(["error", "stdin", "stdout", "stderr", "resize"]) {
            sent.push(client.open(id, &[("streamtype", kind)]));
            sent.push(server.reply(id));
        }
        sent.push(data(Client, 3, false, "before"));
        sent.extend(hiding.map(|hiding| hiding(&mut client)));
        sent.push(more);
        sent.extend([data(Client, 3, false, "hidden"), data(Server, 5, false, "out")]);
        let expected = [input("before"), Seen::Unreadable(Client, why), stdout("out")];
        assert_eq!(decode(SPDY, EXEC, &sent), expected, "{name}");
    }
}

/// The server goes on to write to a stream that its client has reset or closed, and a client may read it.
#[test]
fn a_client_that_resets_its_streams_hides_nothing_that_the_server_sends() {
    let reset = |id: u32| control(Client, 3, 0, &[&id.to_be_bytes()[..], &[0, 0, 0, 5]].concat());
    let mut sent = spdy_session();
    let after = sent.iter().position(|(_, bytes)| bytes.ends_with(b"ls\n")).unwrap() + 1;
    for id in [1, 3, 5, 7] {
        sent.insert(after, reset(id));
    }
    let seen = decode(SPDY, EXEC, &sent);
    let plain = decode(SPDY, EXEC, &spdy_session());
    // The end of the input comes sooner.
    let without_end = |seen: Vec<Seen>| -> Vec<Seen> {
        assert!(seen.contains(&Seen::InputEnded));
        seen.into_iter().filter(|seen| *seen != Seen::InputEnded).collect()
    };
    assert_eq!(without_end(seen), without_end(plain));
}

#[test]
fn a_connection_counts_after_its_client_has_reset_it() {
    let (mut client, mut server) = (Opener::new(Client), Opener::new(Server));
    let sent = [
        client.open(1, &[("streamtype", "data"), ("port", "80")]),
        server.reply(1),
        control(Client, 3, 0, &[0, 0, 0, 1, 0, 0, 0, 5]),
        data(Server, 1, false, "more"),
    ];
    let expected = [Seen::Opened(80), Seen::Closed(80), Seen::Forwarded(Server, 4)];
    assert_eq!(decode(StreamProtocol::Spdy(ProtocolVersion::TextErrors), PORTS, &sent), expected);
}

#[test]
fn a_port_is_the_one_that_the_server_reads() {
    let spdy = StreamProtocol::Spdy(ProtocolVersion::TextErrors);
    for (port, expected) in [
        ("80".to_owned(), vec![Seen::Opened(80), Seen::Closed(80)]),
        (format!("{}80", "0".repeat(62)), vec![Seen::Opened(80), Seen::Closed(80)]),
        (
            format!("{}4436", "0".repeat(61)),
            vec![Seen::Unreadable(Client, "a header of a stream is too long")],
        ),
        ("+80".to_owned(), vec![]),
        ("65616".to_owned(), vec![]),
        (String::new(), vec![]),
    ] {
        let sent = [Opener::new(Client).open(1, &[("streamtype", "data"), ("port", &port)])];
        assert_eq!(decode(spdy, PORTS, &sent), expected, "{port}");
        assert_eq!(decode(StreamProtocol::TunnelledSpdy, PORTS, &tunnelled(sent.to_vec())), expected);
    }
}

/// A thousand small frames whose headers are 4 KiB each.
#[test]
fn headers_that_grow_cost_little() {
    let mut client = Opener::new(Client);
    let large = [("a", "x".repeat(4000))];
    let mut wire = 0;
    let sent: Vec<Sent> = (0..1000)
        .map(|number| {
            let (from, frame) =
                client.open(1 + 2 * number, &large.each_ref().map(|(name, value)| (*name, &**value)));
            wire += frame.len();
            (from, frame)
        })
        .collect();
    let seen = decode(StreamProtocol::Spdy(ProtocolVersion::TextErrors), PORTS, &sent);
    assert!(wire < 200_000, "{wire}");
    assert_eq!(seen, [Seen::Unreadable(Client, "the header blocks are too large")]);
}
