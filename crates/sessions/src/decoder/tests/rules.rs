//! The rules of the protocols, as tables.

use super::streams::websocket::{BINARY, CLOSE, CONTINUATION, frame, message};
use super::streams::{EXIT_7, SUCCESS, channels, spdy_ports, spdy_session, tunnelled};
use super::*;
use Side::{Client, Server};
use spdy::{Opener, control, data};

const EXEC: SessionKind = SessionKind::Exec;
const PORTS: SessionKind = SessionKind::PortForward;

#[test]
fn a_session_with_channels_is_decoded() {
    let big = stdout(&"x".repeat(70_000));
    let expected = vec![
        Seen::Resize(80, 24),
        Seen::Resize(65_535, 1),
        input("ls -l\n"),
        stdout("output\n"),
        stderr("a warning\n"),
        big,
        Seen::Skipped(Server, "a message of a channel without a meaning"),
        Seen::InputEnded,
        Seen::Exit(7),
        Seen::WebSocketClosed(Server, Some(1000)),
        Seen::WebSocketClosed(Client, Some(1000)),
    ];
    assert_eq!(decode(V5, EXEC, &channels(70_000)), expected);
}

#[test]
fn a_session_over_spdy_is_decoded() {
    let expected = vec![
        Seen::Resize(80, 24),
        input("ls\n"),
        stdout("output\n"),
        stderr(&"e".repeat(400)),
        Seen::InputEnded,
        stdout("end"),
        Seen::Exit(7),
    ];
    assert_eq!(decode(SPDY, EXEC, &spdy_session()), expected);
}

#[test]
fn connections_to_ports_are_counted_directly_and_in_a_tunnel() {
    let expected = vec![
        Seen::Opened(8080),
        Seen::Forwarded(Client, 18),
        Seen::Opened(5432),
        Seen::Forwarded(Server, 19),
        Seen::Closed(8080),
        Seen::Closed(5432),
        Seen::Opened(443),
        Seen::Closed(443),
    ];
    assert_eq!(decode(StreamProtocol::Spdy(ProtocolVersion::TextErrors), PORTS, &spdy_ports()), expected);
    assert_eq!(decode(StreamProtocol::TunnelledSpdy, PORTS, &tunnelled(spdy_ports())), expected);
}

#[test]
fn connections_to_ports_by_channels_are_counted() {
    let sent = [
        message(Server, 0, [0x90, 0x1f]),
        message(Server, 1, [0x90, 0x1f]),
        message(Client, 0, "question"),
        message(Server, 1, "an error of the connection"),
        message(Server, 2, [0x50]),
        message(Server, 2, [0x00, b'!']),
    ];
    let expected = vec![
        Seen::Opened(8080),
        Seen::Forwarded(Client, 8),
        Seen::Opened(80),
        Seen::Forwarded(Server, 1),
        Seen::Closed(8080),
        Seen::Closed(80),
    ];
    assert_eq!(decode(V4, PORTS, &sent), expected);
}

#[test]
fn bytes_are_counted_with_and_without_frames() {
    let mut decoder = Decoder::new(StreamProtocol::Spdy(ProtocolVersion::TextErrors), PORTS);
    let sent = spdy_ports();
    count(&mut decoder, &sent);
    let wire = |side| sent.iter().filter(|(from, _)| *from == side).map(|(_, bytes)| length(bytes)).sum();
    assert_eq!(decoder.wire_bytes(), ByteCounts { client: wire(Client), server: wire(Server) });
    assert_eq!(decoder.content_bytes(), ByteCounts { client: 18, server: 19 });
    assert_eq!(decoder.connections(), 3);

    let mut decoder = Decoder::new(V5, EXEC);
    count(&mut decoder, &channels(70_000));
    assert_eq!(decoder.content_bytes(), ByteCounts { client: 6, server: 70_017 });
}

fn count(decoder: &mut Decoder, sent: &[Sent]) {
    for (from, bytes) in sent {
        decoder.push(*from, bytes, &mut |_| ());
    }
}

/// Kubernetes' servers take each frame for a message.
#[test]
fn a_client_cannot_hide_input_in_fragments() {
    let sent = [
        frame(Client, BINARY, false, b"\x09hidden?"),
        frame(Client, CONTINUATION, true, b"\x00rm -r /\n"),
        // An opcode without a meaning.
        frame(Client, 5, true, b"\x00id\n"),
    ];
    let skipped = Seen::Skipped(Client, "a message of a channel without a meaning");
    assert_eq!(decode(V5, EXEC, &sent), [skipped, input("rm -r /\nid\n")]);
}

#[test]
fn the_highest_bit_of_a_length_is_ignored_and_a_missing_mask_is_no_mask() {
    let long = [&[0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 3], &b"\x00ab"[..], &[0x82, 2, 0, b'c']].concat();
    assert_eq!(decode(V5, EXEC, &[(Client, long)]), [input("abc")]);
}

#[test]
fn close_signals_are_those_of_v5() {
    let close = |channel: &[u8]| message(Client, 255, channel);
    assert_eq!(decode(V5, EXEC, &[close(&[0])]), [Seen::InputEnded]);
    assert_eq!(decode(V5, EXEC, &[close(&[4])]), []);
    let skipped = |why| [Seen::Skipped(Client, why)];
    assert_eq!(decode(V5, EXEC, &[close(&[])]), skipped("a close signal without its channel"));
    assert_eq!(decode(V5, EXEC, &[close(&[0, 0])]), skipped("a close signal without its channel"));
    assert_eq!(decode(V4, EXEC, &[close(&[0])]), skipped("a message of a channel without a meaning"));
}

#[test]
fn the_error_channel_tells_the_end() {
    let failed = |message: &str| vec![Seen::Failed(message.to_owned())];
    let code = |code: &str| EXIT_7.replace("\"7\"", &format!("\"{code}\""));
    let text = StreamProtocol::Channels(ProtocolVersion::TextErrors);
    let message_of_7 = "command terminated with non-zero exit code: exit status 7";
    for (protocol, sent, expected) in [
        (V4, SUCCESS.to_owned(), vec![Seen::Exit(0)]),
        (V4, format!("{SUCCESS}\n"), vec![Seen::Exit(0)]),
        (V4, code("7"), vec![Seen::Exit(7)]),
        (V4, code("255"), vec![Seen::Exit(255)]),
        (V4, code("256"), failed(message_of_7)),
        (V4, code("-1"), failed(message_of_7)),
        (
            V4,
            r#"{"status":"Failure","message":"no such container","reason":"BadRequest"}"#.into(),
            failed("no such container"),
        ),
        (V4, r#"{"status":"Failure","message":"m","reason":"NonZeroExitCode"}"#.into(), failed("m")),
        (V4, "not JSON".into(), failed("not JSON")),
        (V4, "{".into(), failed("{")),
        (V4, "}".repeat(200), failed(&"}".repeat(200))),
        (V4, "x".repeat(400_000), failed(&format!("{}…", "x".repeat(1024)))),
        (V4, String::new(), vec![]),
        (text, SUCCESS.into(), failed(SUCCESS)),
        (text, "exit status 1".into(), failed("exit status 1")),
    ] {
        assert_eq!(decode(protocol, EXEC, &[message(Server, 3, &sent)]), expected, "{sent}");
    }
    // It is told once.
    let twice = [message(Server, 3, SUCCESS), message(Server, 3, EXIT_7)];
    assert_eq!(decode(V4, EXEC, &twice), [Seen::Exit(0)]);
}

#[test]
fn terminal_sizes_are_read_as_the_server_reads_them() {
    let skipped = Seen::Skipped(Client, "a terminal size that cannot be read, and those after it");
    let size = |columns, rows| Seen::Resize(columns, rows);
    for (sent, expected) in [
        (r#"{"Width":1,"Height":2}"#.to_owned(), vec![size(1, 2)]),
        (r#"{"width":1,"HEIGHT":2,"Other":{"a":"}"}}"#.into(), vec![size(1, 2)]),
        (" \n{\"Width\":1}\t{\"Height\":2}".into(), vec![size(1, 0), size(0, 2)]),
        (r#"{"Width":65536,"Height":2}{"Width":1,"Height":2}"#.into(), vec![skipped.clone()]),
        (r#"{"Width":1,"Height":2}[]{"Width":3,"Height":4}"#.into(), vec![size(1, 2), skipped.clone()]),
        (r#"{"Width":-1}"#.into(), vec![skipped.clone()]),
        (r#"{"Width":1,"width":5,"WIDTH":null,"Height":2,"x":[1.5,null]}"#.into(), vec![size(5, 2)]),
        (format!("{{\"a\":\"{}\"}}", "}".repeat(100)), vec![skipped.clone()]),
        (format!("{{\"a\":\"{}\"}}", "x".repeat(2000)), vec![skipped.clone()]),
        (r#"{"Width":"#.into(), vec![]),
    ] {
        assert_eq!(decode(V4, EXEC, &[message(Client, 4, &sent)]), expected, "{sent}");
    }
}

#[test]
fn the_other_side_stays_readable() {
    let mut client = Opener::new(Client);
    let sent = [
        client.open(5, &[("StreamType", "stdout\0stdin")]),
        control(Client, 10, 0, &[]),
        data(Server, 5, false, "seen"),
    ];
    let unreadable = Seen::Unreadable(Client, "a control frame has an unknown type");
    assert_eq!(decode(SPDY, EXEC, &sent), [unreadable, stdout("seen")]);
}

#[test]
fn streams_without_a_meaning_are_as_for_the_server() {
    let (mut client, mut server) = (Opener::new(Client), Opener::new(Server));
    let mut sent = Vec::new();
    for (id, headers) in (1..).step_by(2).zip([
        &[("streamtype", "STDIN")][..],
        &[("other", ""), ("streamtype", "stdin"), ("port", "1")],
        &[("streamtype", "error"), ("port", "80")],
        &[("streamtype", "data"), ("port", "80")],
    ]) {
        sent.push(client.open(id, headers));
        sent.push(server.reply(id));
    }
    sent.extend([
        data(Client, 1, false, "no meaning"),
        data(Client, 3, false, "in"),
        data(Server, 3, false, "not for the client"),
        data(Server, 5, false, EXIT_7),
        data(Client, 7, false, "not forwarded"),
    ]);
    assert_eq!(decode(SPDY, EXEC, &sent), [input("in"), Seen::Exit(7)]);
}

#[test]
fn streams_are_bounded_and_forgotten_when_they_end() {
    let (mut client, mut server) = (Opener::new(Client), Opener::new(Server));
    let headers = [("streamtype", "data"), ("port", "80")];
    let spdy = StreamProtocol::Spdy(ProtocolVersion::TextErrors);
    let mut sent = Vec::new();
    for id in (1..20_000).step_by(2) {
        sent.extend([client.open(id, &headers), server.reply(id)]);
        sent.extend([data(Client, id, true, ""), data(Server, id, true, "")]);
    }
    let mut seen = decode(spdy, PORTS, &sent);
    seen.retain(|seen| !matches!(seen, Seen::Opened(80) | Seen::Closed(80)));
    assert_eq!(seen, []);

    for (kind, most) in [(PORTS, 4096), (EXEC, 64)] {
        let mut client = Opener::new(Client);
        let sent: Vec<Sent> = (1..20_000).step_by(2).map(|id| client.open(id, &headers)).collect();
        let seen = decode(spdy, kind, &sent);
        assert!(seen.contains(&Seen::Unreadable(Client, "too many streams are open")));
        let opened = seen.iter().filter(|seen| **seen == Seen::Opened(80)).count();
        assert_eq!(opened, if kind == PORTS { most } else { 0 });
    }
}

#[test]
fn the_protocol_is_that_of_the_response() {
    use ProtocolVersion::TextErrors;
    let v5 = Some("v5.channel.k8s.io");
    for (upgrade, version, expected) in [
        ("websocket", v5, V5),
        ("WebSocket", Some("v4.channel.k8s.io"), V4),
        ("websocket", Some("channel.k8s.io"), StreamProtocol::Channels(TextErrors)),
        ("websocket", None, StreamProtocol::Channels(TextErrors)),
        ("websocket", Some("base64.channel.k8s.io"), StreamProtocol::Unknown),
        ("websocket", Some("SPDY/3.1+portforward.k8s.io"), StreamProtocol::TunnelledSpdy),
        ("SPDY/3.1", Some("v4.channel.k8s.io"), SPDY),
        ("spdy/3.1", v5, StreamProtocol::Spdy(ProtocolVersion::V5)),
        ("SPDY/3.1", Some("portforward.k8s.io"), StreamProtocol::Spdy(TextErrors)),
        ("SPDY/3.1", None, StreamProtocol::Spdy(TextErrors)),
        ("h2c", v5, StreamProtocol::Unknown),
    ] {
        assert_eq!(StreamProtocol::chosen(upgrade, version), expected, "{upgrade} {version:?}");
    }
    let unreadable = |side| Seen::Unreadable(side, "the protocol of the stream is not known");
    let sent = [(Client, vec![1]), (Server, vec![2]), (Client, vec![3])];
    assert_eq!(decode(StreamProtocol::Unknown, EXEC, &sent), [unreadable(Client), unreadable(Server)]);
}

/// What a client reads of the frames that end a session, after what the server has sent.
fn told(protocol: StreamProtocol, kind: SessionKind, sent: &[u8], reason: &str) -> Option<Vec<Seen>> {
    let mut decoder = Decoder::new(protocol, kind);
    decoder.push(Server, sent, &mut |_| ());
    let frames = decoder.closing_frames(reason)?;
    Some(decode(protocol, kind, &[(Server, frames)]))
}

#[test]
fn a_client_is_told_why_its_session_ends() {
    let long = "x".repeat(300);
    let (_, output) = message(Server, 1, "a");
    for protocol in [V4, V5] {
        for reason in ["a reason", &long] {
            let expected = vec![Seen::Failed(reason.to_owned()), Seen::WebSocketClosed(Server, Some(1000))];
            assert_eq!(told(protocol, EXEC, &output, reason), Some(expected.clone()), "{protocol:?}");
            assert_eq!(told(protocol, SessionKind::Attach, &[], reason), Some(expected));
        }
    }
}

/// Where no message of the gateway's own may follow what the server has sent.
fn places_without_a_message() -> [(&'static str, StreamProtocol, SessionKind, Vec<u8>); 9] {
    let (_, output) = message(Server, 1, "a");
    let (_, status) = message(Server, 3, SUCCESS);
    let (_, half) = frame(Server, BINARY, false, &[1, b'a']);
    let (_, close) = frame(Server, CLOSE, true, &1000_u16.to_be_bytes());
    [
        ("SPDY", SPDY, EXEC, vec![]),
        ("a tunnel", StreamProtocol::TunnelledSpdy, PORTS, vec![]),
        ("ports", V4, PORTS, vec![]),
        ("an unknown protocol", StreamProtocol::Unknown, EXEC, vec![]),
        ("in a head", V5, EXEC, output[..1].to_vec()),
        ("in a payload", V5, EXEC, output[..3].to_vec()),
        ("between two frames of a message", V5, EXEC, half),
        ("after the status", V5, EXEC, status),
        ("after the close", V5, EXEC, close),
    ]
}

#[test]
fn a_client_is_told_nothing_where_it_would_not_understand_it() {
    for (name, protocol, kind, sent) in places_without_a_message() {
        assert_eq!(told(protocol, kind, &sent, "a reason"), None, "{name}");
    }
    let (_, output) = message(Server, 1, "a");
    let texts = StreamProtocol::Channels(ProtocolVersion::TextErrors);
    assert_eq!(told(texts, EXEC, &output, "a reason"), None, "errors are texts");
}

#[test]
fn a_notice_is_a_line_of_its_own_between_the_messages_of_the_server() {
    let (_, output) = message(Server, 1, "a");
    let (_, half) = frame(Server, BINARY, false, &[1, b'a']);
    let (_, rest) = frame(Server, CONTINUATION, true, b"b");
    let texts = StreamProtocol::Channels(ProtocolVersion::TextErrors);
    let notice = |protocol, kind, sent: &[u8], is_terminal| {
        let mut decoder = Decoder::new(protocol, kind);
        decoder.push(Server, sent, &mut |_| ());
        let before = decoder.content_bytes();
        let frame = decoder.notice_frame("a line", is_terminal);
        assert_eq!(decoder.content_bytes(), before);
        frame.map(|frame| decode(protocol, kind, &[(Server, frame)]))
    };
    for protocol in [texts, V4, V5] {
        for sent in [&[][..], &output, &[&half[..], &rest].concat()] {
            assert_eq!(notice(protocol, EXEC, sent, false), Some(vec![stderr("a line\n")]));
            assert_eq!(notice(protocol, EXEC, sent, true), Some(vec![stdout("\r\na line\r\n")]));
        }
    }
    for (name, protocol, kind, sent) in places_without_a_message() {
        assert_eq!(notice(protocol, kind, &sent, false), None, "{name}");
    }
}
