mod chunks;
mod hiding;
mod rules;
mod streams;

use super::*;
use streams::{Sent, spdy};

/// An event, with data of its own and joined with its neighbours.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    Input(Vec<u8>),
    InputEnded,
    Output(OutputChannel, Vec<u8>),
    Resize(u16, u16),
    Exit(u8),
    Failed(String),
    Opened(u16),
    Forwarded(Side, u64),
    Closed(u16),
    WebSocketClosed(Side, Option<u16>),
    Skipped(Side, &'static str),
    Unreadable(Side, &'static str),
}

fn note(seen: &mut Vec<Seen>, event: SessionEvent<'_>) {
    let event = match event {
        SessionEvent::Input(bytes) => Seen::Input(bytes.to_vec()),
        SessionEvent::InputEnded => Seen::InputEnded,
        SessionEvent::Output { channel, bytes } => Seen::Output(channel, bytes.to_vec()),
        SessionEvent::Resize { columns, rows } => Seen::Resize(columns, rows),
        SessionEvent::Exit { code } => Seen::Exit(code),
        SessionEvent::Failed { message } => Seen::Failed(message),
        SessionEvent::ConnectionOpened { port } => Seen::Opened(port),
        SessionEvent::Forwarded { from, bytes } => Seen::Forwarded(from, bytes),
        SessionEvent::ConnectionClosed { port } => Seen::Closed(port),
        SessionEvent::WebSocketClosed { by, code } => Seen::WebSocketClosed(by, code),
        SessionEvent::Skipped { from, why } => Seen::Skipped(from, why),
        SessionEvent::Unreadable { from, why } => Seen::Unreadable(from, why),
    };
    match (seen.last_mut(), event) {
        (Some(Seen::Input(before)), Seen::Input(bytes)) => before.extend(bytes),
        (Some(Seen::Output(channel, before)), Seen::Output(now, bytes)) if *channel == now => {
            before.extend(bytes);
        }
        (Some(Seen::Forwarded(from, before)), Seen::Forwarded(now, bytes)) if *from == now => {
            *before += bytes;
        }
        (_, event) => seen.push(event),
    }
}

fn decode(protocol: StreamProtocol, kind: SessionKind, sent: &[Sent]) -> Vec<Seen> {
    let mut decoder = Decoder::new(protocol, kind);
    let mut seen = Vec::new();
    for (from, bytes) in sent {
        decoder.push(*from, bytes, &mut |event| note(&mut seen, event));
        assert!(decoder.held() <= MAX_HELD);
    }
    decoder.finish(&mut |event| note(&mut seen, event));
    seen
}

const V5: StreamProtocol = StreamProtocol::Channels(ProtocolVersion::V5);
const V4: StreamProtocol = StreamProtocol::Channels(ProtocolVersion::V4);
const SPDY: StreamProtocol = StreamProtocol::Spdy(ProtocolVersion::V4);

fn stdout(text: &str) -> Seen {
    Seen::Output(OutputChannel::Stdout, text.into())
}

fn stderr(text: &str) -> Seen {
    Seen::Output(OutputChannel::Stderr, text.into())
}

fn input(text: &str) -> Seen {
    Seen::Input(text.into())
}
