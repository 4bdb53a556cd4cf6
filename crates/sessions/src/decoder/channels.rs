//! Channels in WebSocket messages (`v5.channel.k8s.io` and before): the first byte of a message is the channel.
//!
//! Kubernetes' servers take each frame of the client for a message, also one that continues another: its first byte is a
//! channel, too. A client could hide input from a decoder that joins the frames. The messages of the server are joined, as
//! clients do.
// apiserver: k8s.io/streaming/pkg/httpstream/wsstream/conn.go, handle; golang.org/x/net/websocket, Codec.Receive

use serde_json::json;

use super::event::{OutputChannel, SessionEvent, Side};
use super::exit_status::ExitStatusReader;
use super::forwarded_ports::ForwardedPorts;
use super::terminal_size::TerminalSizeReader;
use super::websocket::{FramePart, FrameReader, frame};
use super::{ProtocolVersion, SessionKind, length};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// The highest channel that a message can have: the first byte 255 closes the channel in the second one.
const CLOSE_SIGNAL: u8 = 255;
// Of frames. RFC 6455, 11.7 and 11.8
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const NORMAL_CLOSURE: u16 = 1000;

/// Decodes the channels of a session.
#[derive(Debug)]
pub(super) struct ChannelDecoder {
    client: FrameReader,
    server: FrameReader,
    messages: Messages,
}

#[derive(Debug)]
struct Messages {
    version: ProtocolVersion,
    client: Message,
    server: Message,
    status: ExitStatusReader,
    sizes: TerminalSizeReader,
    /// The ports of a session that forwards them.
    ports: Option<ForwardedPorts>,
    /// Whether the server has said how the session ends, or a part of it, or has closed the WebSocket.
    is_ending: bool,
}

/// The message that a side is sending.
#[derive(Debug, Default)]
struct Message {
    /// Whether a frame of it has begun.
    has_begun: bool,
    channel: Option<u8>,
    /// The channel that a close signal names.
    closes: Option<u8>,
    /// The bytes after the channel.
    length: u64,
}

impl ChannelDecoder {
    pub(super) fn new(version: ProtocolVersion, kind: SessionKind) -> Self {
        let messages = Messages {
            version,
            client: Message::default(),
            server: Message::default(),
            status: ExitStatusReader::new(version),
            sizes: TerminalSizeReader::default(),
            ports: (kind == SessionKind::PortForward).then(ForwardedPorts::default),
            is_ending: false,
        };
        Self { client: FrameReader::default(), server: FrameReader::default(), messages }
    }

    pub(super) fn push(&mut self, from: Side, bytes: &[u8], events: &mut dyn FnMut(SessionEvent<'_>)) {
        let Self { client, server, messages } = self;
        let frames = if from == Side::Client { client } else { server };
        frames.read(bytes, &mut |part| messages.read(from, part, events));
    }

    pub(super) fn finish(&mut self, events: &mut dyn FnMut(SessionEvent<'_>)) {
        self.messages.status.end(events);
        if let Some(ports) = &mut self.messages.ports {
            ports.finish(events);
        }
    }

    /// Whether a message of the gateway's own may follow what the server has sent: not in the middle of a message of the server, and
    /// not after it has said how the session ends. Forwarded ports have no message for a user.
    fn may_insert(&self) -> bool {
        let Messages { server, ports, is_ending, .. } = &self.messages;
        self.server.is_between_frames() && !server.has_begun && !is_ending && ports.is_none()
    }

    /// The frame of a line for the user: on the terminal, or on standard error where there is none.
    pub(super) fn notice_frame(&self, text: &str, is_terminal: bool) -> Option<Vec<u8>> {
        let (channel, line) =
            if is_terminal { (STDOUT, format!("\r\n{text}\r\n")) } else { (STDERR, format!("{text}\n")) };
        self.may_insert().then(|| frame(BINARY, &[&[channel], line.as_bytes()].concat()))
    }

    /// The frames by which the client learns why its session ends, as a `Status` of the server would tell it. `None` where a message
    /// may not follow, and where the protocol has errors as texts.
    // client-go: tools/remotecommand/{v4,v5}.go, errorDecoderV4
    pub(super) fn closing_frames(&self, message: &str) -> Option<Vec<u8>> {
        let version = &self.messages.version;
        if !self.may_insert() || *version < ProtocolVersion::V4 {
            return None;
        }
        let status = json!({"metadata": {}, "status": "Failure", "message": message});
        let mut frames = frame(BINARY, &[&[ERROR], status.to_string().as_bytes()].concat());
        if *version == ProtocolVersion::V5 {
            frames.extend(frame(BINARY, &[CLOSE_SIGNAL, ERROR]));
        }
        frames.extend(frame(CLOSE, &NORMAL_CLOSURE.to_be_bytes()));
        Some(frames)
    }

    pub(super) fn held(&self) -> usize {
        let Messages { status, sizes, ports, .. } = &self.messages;
        status.held() + sizes.held() + ports.as_ref().map_or(0, ForwardedPorts::held)
    }
}

impl Messages {
    fn read(&mut self, from: Side, part: FramePart<'_>, events: &mut dyn FnMut(SessionEvent<'_>)) {
        let message = if from == Side::Client { &mut self.client } else { &mut self.server };
        match part {
            FramePart::Begin { continues } => {
                if !continues {
                    *message = Message::default();
                }
                message.has_begun = true;
            }
            FramePart::Data(bytes) => {
                let (channel, content) = match (message.channel, bytes.split_first()) {
                    (Some(channel), _) => (channel, bytes),
                    (None, Some((channel, content))) => {
                        message.channel = Some(*channel);
                        (*channel, content)
                    }
                    (None, None) => return,
                };
                if message.closes.is_none() {
                    message.closes = content.first().copied();
                }
                let offset = message.length;
                message.length = offset.saturating_add(length(content));
                if !content.is_empty() {
                    self.content(from, channel, offset, content, events);
                }
            }
            FramePart::End { is_last } => {
                // Each frame of a client is a message.
                if from == Side::Client || is_last {
                    let message = std::mem::take(message);
                    self.end(from, &message, events);
                }
            }
            FramePart::Close(code) => {
                if from == Side::Server {
                    self.is_ending = true;
                    self.status.end(events);
                }
                events(SessionEvent::WebSocketClosed { by: from, code });
            }
        }
    }

    fn content(
        &mut self,
        from: Side,
        channel: u8,
        offset: u64,
        bytes: &[u8],
        events: &mut dyn FnMut(SessionEvent<'_>),
    ) {
        if channel == CLOSE_SIGNAL && self.version == ProtocolVersion::V5 {
            return;
        }
        if let Some(ports) = &mut self.ports {
            ports.content(from, channel, bytes, events);
            return;
        }
        match (from, channel) {
            (Side::Client, STDIN) => events(SessionEvent::Input(bytes)),
            (Side::Client, RESIZE) => self.sizes.read(bytes, events),
            (Side::Server, STDOUT) => events(SessionEvent::Output { channel: OutputChannel::Stdout, bytes }),
            (Side::Server, STDERR) => events(SessionEvent::Output { channel: OutputChannel::Stderr, bytes }),
            (Side::Server, ERROR) => {
                self.is_ending = true;
                self.status.read(bytes, events);
            }
            // Both sides ignore messages of other channels.
            _ if offset == 0 => {
                events(SessionEvent::Skipped { from, why: "a message of a channel without a meaning" });
            }
            _ => {}
        }
    }

    fn end(&mut self, from: Side, message: &Message, events: &mut dyn FnMut(SessionEvent<'_>)) {
        if message.channel != Some(CLOSE_SIGNAL) || self.version != ProtocolVersion::V5 {
            return;
        }
        match (from, message.closes) {
            (Side::Client, Some(STDIN)) if message.length == 1 => events(SessionEvent::InputEnded),
            (Side::Server, Some(ERROR)) if message.length == 1 => self.status.end(events),
            (_, Some(_)) if message.length == 1 => {}
            _ => events(SessionEvent::Skipped { from, why: "a close signal without its channel" }),
        }
    }
}
