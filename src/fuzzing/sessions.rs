//! Streams of exec, attach and port-forward: a decoder holds no more than its bound, counts each byte, and tells the same of
//! a stream in any pieces. The text of a recording: the part that reaches the terminal of a reader is in a list of harmless
//! characters and sequences, whatever the pieces were.

use portcullis_sessions::decoder::{
    ByteCounts, Decoder, MAX_HELD, OutputChannel, ProtocolVersion, SessionEvent, SessionKind, Side,
    StreamProtocol,
};
use portcullis_sessions::playback::{PlainText, SafeText};

const PROTOCOLS: [StreamProtocol; 8] = [
    StreamProtocol::Channels(ProtocolVersion::TextErrors),
    StreamProtocol::Channels(ProtocolVersion::V4),
    StreamProtocol::Channels(ProtocolVersion::V5),
    StreamProtocol::Spdy(ProtocolVersion::TextErrors),
    StreamProtocol::Spdy(ProtocolVersion::V4),
    StreamProtocol::Spdy(ProtocolVersion::V5),
    StreamProtocol::TunnelledSpdy,
    StreamProtocol::Unknown,
];

/// An event, with neighbours of its kind joined: their borders mean nothing.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Data(Side, Option<OutputChannel>, Vec<u8>),
    Forwarded(Side, u64),
    Other(String),
}

/// The first byte is the protocol and the kind of the session, the second one how the stream is divided the second time. Then
/// come chunks: a byte with the side and the length, and the bytes.
pub fn session_stream(data: &[u8]) {
    let [choice, division, chunks @ ..] = data else { return };
    let choice = usize::from(*choice);
    let Some(protocol) = PROTOCOLS.get(choice % PROTOCOLS.len()) else { return };
    let kinds = SessionKind::ALL;
    let Some(kind) = kinds.get(choice / PROTOCOLS.len() % kinds.len()) else { return };
    let sent = sent(chunks);
    let whole = told(*protocol, *kind, &sent);
    let size = usize::from(*division);
    let sizes = [1 + size % 7, 1 + size / 7, 1, 2 + size % 3];
    assert_eq!(told(*protocol, *kind, &divided(&sent, &sizes)), whole, "{protocol:?} {kind:?}");
}

fn sent(mut chunks: &[u8]) -> Vec<(Side, &[u8])> {
    let mut sent = Vec::new();
    while let [head, rest @ ..] = chunks {
        let side = if head & 0x80 == 0 { Side::Client } else { Side::Server };
        let (chunk, after) = rest.split_at(rest.len().min(usize::from(head & 0x7f)));
        sent.push((side, chunk));
        chunks = after;
    }
    sent
}

fn divided<'a>(sent: &[(Side, &'a [u8])], sizes: &[usize]) -> Vec<(Side, &'a [u8])> {
    let mut sizes = sizes.iter().cycle();
    let mut divided = Vec::new();
    for (side, bytes) in sent {
        let mut rest = *bytes;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(*sizes.next().unwrap_or(&1)));
            divided.push((*side, piece));
            rest = after;
        }
    }
    divided
}

fn told(protocol: StreamProtocol, kind: SessionKind, sent: &[(Side, &[u8])]) -> Vec<Told> {
    let mut decoder = Decoder::new(protocol, kind);
    let (mut told, mut wire, mut content) = (Vec::new(), ByteCounts::default(), ByteCounts::default());
    let mut connections = 0;
    let mut note = |event: SessionEvent<'_>| {
        match &event {
            SessionEvent::Input(bytes) => content.client += length(bytes),
            SessionEvent::Output { bytes, .. } => content.server += length(bytes),
            SessionEvent::Forwarded { from: Side::Client, bytes } => content.client += bytes,
            SessionEvent::Forwarded { from: Side::Server, bytes } => content.server += bytes,
            SessionEvent::ConnectionOpened { .. } => connections += 1,
            _ => {}
        }
        join(&mut told, event);
    };
    for (side, bytes) in sent {
        match side {
            Side::Client => wire.client += length(bytes),
            Side::Server => wire.server += length(bytes),
        }
        decoder.push(*side, bytes, &mut note);
        assert!(decoder.held() <= MAX_HELD, "{}", decoder.held());
    }
    decoder.finish(&mut note);
    assert_eq!((decoder.wire_bytes(), decoder.content_bytes()), (wire, content));
    assert_eq!(decoder.connections(), connections);
    assert!(content.client <= wire.client, "more content than bytes");
    assert!(content.server <= wire.server, "more content than bytes");
    told
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn join(told: &mut Vec<Told>, event: SessionEvent<'_>) {
    let event = match event {
        SessionEvent::Input(bytes) => Told::Data(Side::Client, None, bytes.to_vec()),
        SessionEvent::Output { channel, bytes } => Told::Data(Side::Server, Some(channel), bytes.to_vec()),
        SessionEvent::Forwarded { from, bytes } => Told::Forwarded(from, bytes),
        // Of two reasons the pieces decide which is met first.
        SessionEvent::Unreadable { from, .. } => Told::Other(format!("unreadable {from:?}")),
        other => Told::Other(format!("{other:?}")),
    };
    match (told.last_mut(), event) {
        (Some(Told::Data(side, channel, before)), Told::Data(now, now_channel, bytes))
            if (*side, *channel) == (now, now_channel) =>
        {
            before.extend(bytes);
        }
        (Some(Told::Forwarded(side, before)), Told::Forwarded(now, bytes)) if *side == now => {
            *before += bytes;
        }
        (_, event) => told.push(event),
    }
}

/// The first byte is the size of the pieces, the rest is the text.
pub fn session_text(data: &[u8]) {
    let [size, text @ ..] = data else { return };
    let text = String::from_utf8_lossy(text);
    let size = 1 + usize::from(*size) % 16;
    let pieces = |text: &str| {
        let (mut filter, mut safe) = (SafeText::default(), String::new());
        let chars: Vec<char> = text.chars().collect();
        for piece in chars.chunks(size) {
            filter.filter(&piece.iter().collect::<String>(), &mut safe);
        }
        (safe, filter)
    };
    let (mut filter, mut safe) = (SafeText::default(), String::new());
    filter.filter(&text, &mut safe);
    let (in_pieces, filter_of_pieces) = pieces(&text);
    assert_eq!((&in_pieces, filter_of_pieces.dropped()), (&safe, filter.dropped()));
    assert_harmless(&safe);
    assert_eq!(pieces(&safe).0, safe, "safe text is not safe");
    let restored = filter.restore(true);
    assert_harmless(&restored);
    assert_eq!(pieces(&restored).0, restored);

    let (mut filter, mut plain) = (PlainText::default(), String::new());
    filter.filter(&text, &mut plain);
    filter.finish(&mut plain);
    assert!(plain.chars().all(|c| c == '\n' || c == '\t' || !is_control(c)), "{plain:?}");
}

/// The characters that a terminal obeys, or that hide or turn text.
fn is_control(c: char) -> bool {
    let hidden = ['\u{61c}', '\u{200b}', '\u{200e}', '\u{200f}', '\u{2060}', '\u{feff}'];
    let turns = ('\u{2028}'..='\u{202e}').contains(&c) || ('\u{2066}'..='\u{2069}').contains(&c);
    c < ' ' || ('\u{7f}'..='\u{9f}').contains(&c) || turns || hidden.contains(&c)
}

/// Fails unless the text has harmless characters and sequences alone.
fn assert_harmless(text: &str) {
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c != '\u{1b}' {
            assert!(matches!(c, '\x08'..='\r' | '\x0e' | '\x0f') || !is_control(c), "{c:?} in {text:?}");
            continue;
        }
        match rest.next() {
            Some('7' | '8' | 'D' | 'E' | 'M') => {}
            Some('(' | ')') => assert!(matches!(rest.next(), Some('0' | 'B')), "{text:?}"),
            Some('[') => {
                let mut parameters = String::new();
                let last = loop {
                    match rest.next() {
                        Some(c) if c.is_ascii_digit() || matches!(c, ';' | ':' | '?') => parameters.push(c),
                        last => break last.unwrap_or_default(),
                    }
                };
                assert_harmless_sequence(&parameters, last, text);
            }
            other => assert_eq!(other, Some('['), "another sequence in {text:?}"),
        }
    }
}

fn assert_harmless_sequence(parameters: &str, last: char, text: &str) {
    let private = parameters.strip_prefix('?');
    let is_harmless = match (private, last) {
        (Some(modes), 'h' | 'l') => {
            modes.split([';', ':']).all(|mode| ["6", "7", "25", "47", "1047", "1049"].contains(&mode))
        }
        (Some(_), _) => matches!(last, 'J' | 'K'),
        (None, 'h' | 'l') => parameters == "4",
        (None, 's' | 'u') => parameters.is_empty(),
        // A mouse is tracked by five parameters.
        (None, 'T') => !parameters.contains(';'),
        (None, _) => "@ABCDEFGHIJKLMPSXZ`abdefmr".contains(last),
    };
    assert!(is_harmless && !parameters.get(1..).is_some_and(|rest| rest.contains('?')), "{text:?}");
}
