//! Decodes a copy of the stream of a session. The stream itself passes elsewhere, byte for byte.
//!
//! A decoder takes the bytes of both sides in any chunks, and calls back with events. It never fails and never waits. It
//! forwards data without holding it; what it must hold (heads of frames, an exit status, a terminal size, open streams) is
//! bounded by [`MAX_HELD`].
//!
//! A client must not be able to act in a way that the recording does not show. So where Kubernetes' server reads a stream
//! otherwise than the protocol's text says, this decoder reads it as the server does, and where a stream could be read in two
//! ways, it reports [`SessionEvent::Unreadable`]. The comments `apiserver:` name the places.

mod channels;
mod event;
mod exit_status;
mod forwarded_ports;
mod header_block;
mod inflate;
mod spdy;
mod spdy_frames;
mod terminal_size;
mod websocket;

pub use event::{OutputChannel, SessionEvent, Side};

use channels::ChannelDecoder;
use spdy::SpdyDecoder;
use websocket::{FramePart, FrameReader};

/// The maximum number of bytes that a decoder holds, beside the windows of the two decompressors of SPDY headers (32 KiB and
/// their tables each).
pub const MAX_HELD: usize = 256 << 10;

/// The kind of a session: the subresource of the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SessionKind {
    /// A new process in the container.
    Exec,
    /// The first process of the container.
    Attach,
    /// Connections to ports of the pod.
    PortForward,
}

/// The protocol of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamProtocol {
    /// Channels in WebSocket messages: `v5.channel.k8s.io` and those before.
    Channels(ProtocolVersion),
    /// Streams of SPDY/3.1.
    Spdy(ProtocolVersion),
    /// SPDY/3.1 in WebSocket messages: `SPDY/3.1+portforward.k8s.io`.
    TunnelledSpdy,
    /// Another one: its bytes are counted.
    Unknown,
}

/// The version of the protocol of exec and attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProtocolVersion {
    /// Before `v4`: errors are texts.
    TextErrors,
    /// `v4`: errors are JSON, with the exit code.
    V4,
    /// `v5`: as `v4`, and a side can close one channel.
    V5,
}

/// Bytes each way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByteCounts {
    /// From the client.
    pub client: u64,
    /// From the server.
    pub server: u64,
}

/// Decodes the stream of one session.
#[derive(Debug)]
pub struct Decoder {
    transport: Transport,
    unreadable: UnreadableSides,
    wire: ByteCounts,
    content: ByteCounts,
    connections: u64,
}

/// The sides whose bytes are only counted.
#[derive(Debug, Clone, Copy, Default)]
struct UnreadableSides {
    client: bool,
    server: bool,
}

#[derive(Debug)]
enum Transport {
    Channels(Box<ChannelDecoder>),
    Spdy(Box<SpdyDecoder>),
    TunnelledSpdy { frames: [FrameReader; 2], spdy: Box<SpdyDecoder> },
    Unknown,
}

impl SessionKind {
    /// The kinds.
    pub const ALL: [Self; 3] = [Self::Exec, Self::Attach, Self::PortForward];

    /// The subresource.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
        }
    }
}

impl StreamProtocol {
    /// The protocol that a response with code 101 chose: the values of `Upgrade` and of `Sec-WebSocket-Protocol` or
    /// `X-Stream-Protocol-Version`. Without the latter it is the first version.
    // apiserver: k8s.io/streaming/pkg/httpstream/wsstream, k8s.io/apimachinery/pkg/util/remotecommand
    pub fn chosen(upgrade: &str, version: Option<&str>) -> Self {
        let version = version.unwrap_or_default();
        if upgrade.eq_ignore_ascii_case("spdy/3.1") {
            return Self::Spdy(match version {
                "v5.channel.k8s.io" => ProtocolVersion::V5,
                "v4.channel.k8s.io" => ProtocolVersion::V4,
                _ => ProtocolVersion::TextErrors,
            });
        }
        if !upgrade.eq_ignore_ascii_case("websocket") {
            return Self::Unknown;
        }
        match version {
            "v5.channel.k8s.io" => Self::Channels(ProtocolVersion::V5),
            "v4.channel.k8s.io" => Self::Channels(ProtocolVersion::V4),
            "" | "channel.k8s.io" | "v2.channel.k8s.io" | "v3.channel.k8s.io" => {
                Self::Channels(ProtocolVersion::TextErrors)
            }
            tunnel if tunnel.starts_with("SPDY/3.1+") && tunnel.ends_with(".k8s.io") => Self::TunnelledSpdy,
            // Among them are the channels in base64.
            _ => Self::Unknown,
        }
    }
}

impl Decoder {
    /// A decoder for the stream after the response with code 101.
    pub fn new(protocol: StreamProtocol, kind: SessionKind) -> Self {
        let transport = match protocol {
            StreamProtocol::Channels(version) => {
                Transport::Channels(Box::new(ChannelDecoder::new(version, kind)))
            }
            StreamProtocol::Spdy(version) => Transport::Spdy(Box::new(SpdyDecoder::new(version, kind))),
            StreamProtocol::TunnelledSpdy => Transport::TunnelledSpdy {
                frames: Default::default(),
                spdy: Box::new(SpdyDecoder::new(ProtocolVersion::TextErrors, kind)),
            },
            StreamProtocol::Unknown => Transport::Unknown,
        };
        Self {
            transport,
            unreadable: UnreadableSides::default(),
            wire: ByteCounts::default(),
            content: ByteCounts::default(),
            connections: 0,
        }
    }

    /// Takes bytes that one side has sent. Those of the client must be given before the server can answer them.
    pub fn push(&mut self, from: Side, bytes: &[u8], events: &mut dyn FnMut(SessionEvent<'_>)) {
        *self.wire.of(from) += length(bytes);
        if bytes.is_empty() || self.is_unreadable(from) {
            return;
        }
        let (content, connections) = (&mut self.content, &mut self.connections);
        let events = &mut |event: SessionEvent<'_>| {
            match event {
                SessionEvent::Input(bytes) => content.client += length(bytes),
                SessionEvent::Output { bytes, .. } => content.server += length(bytes),
                SessionEvent::Forwarded { from, bytes } => *content.of(from) += bytes,
                SessionEvent::ConnectionOpened { .. } => *connections += 1,
                _ => {}
            }
            events(event);
        };
        let read = match &mut self.transport {
            Transport::Channels(channels) => {
                channels.push(from, bytes, events);
                Ok(())
            }
            Transport::Spdy(spdy) => spdy.push(from, bytes, events),
            Transport::TunnelledSpdy { frames, spdy } => {
                let [client, server] = frames;
                let frames = if from == Side::Client { client } else { server };
                let mut read = Ok(());
                frames.read(bytes, &mut |part| {
                    if let FramePart::Data(bytes) = part
                        && read.is_ok()
                    {
                        read = spdy.push(from, bytes, events);
                    }
                });
                read
            }
            Transport::Unknown => Err("the protocol of the stream is not known"),
        };
        if let Err(why) = read {
            match from {
                Side::Client => self.unreadable.client = true,
                Side::Server => self.unreadable.server = true,
            }
            events(SessionEvent::Unreadable { from, why });
        }
    }

    /// Reports what the end of the stream ends: connections, and an error text without its end.
    pub fn finish(&mut self, events: &mut dyn FnMut(SessionEvent<'_>)) {
        match &mut self.transport {
            Transport::Channels(channels) => channels.finish(events),
            Transport::Spdy(spdy) | Transport::TunnelledSpdy { spdy, .. } => spdy.finish(events),
            Transport::Unknown => {}
        }
    }

    /// Bytes that show the user a line, to be sent after all that the server has sent: `None` where they may not follow that. SPDY has
    /// no place for them, as the windows of its streams count the bytes of the server.
    pub fn notice_frame(&self, text: &str, is_terminal: bool) -> Option<Vec<u8>> {
        self.followed_channels()?.notice_frame(text, is_terminal)
    }

    /// Bytes that end the session for its client, and tell the reason: to be sent after all that the server has sent. `None` if they
    /// would not be understood there.
    pub fn closing_frames(&self, message: &str) -> Option<Vec<u8>> {
        self.followed_channels()?.closing_frames(message)
    }

    /// The channels of a WebSocket, if it is known what the server has sent last.
    fn followed_channels(&self) -> Option<&ChannelDecoder> {
        match &self.transport {
            Transport::Channels(channels) if !self.is_unreadable(Side::Server) => Some(channels),
            _ => None,
        }
    }

    /// The bytes of the stream, frames and all.
    pub fn wire_bytes(&self) -> ByteCounts {
        self.wire
    }

    /// The bytes of the content: standard input and output, or those of the forwarded connections.
    pub fn content_bytes(&self) -> ByteCounts {
        self.content
    }

    /// The number of connections that were forwarded.
    pub fn connections(&self) -> u64 {
        self.connections
    }

    /// Whether the bytes of this side are only counted.
    pub fn is_unreadable(&self, side: Side) -> bool {
        let UnreadableSides { client, server } = self.unreadable;
        if side == Side::Client { client } else { server }
    }

    /// The number of bytes that the decoder holds, at most [`MAX_HELD`].
    pub fn held(&self) -> usize {
        match &self.transport {
            Transport::Channels(channels) => channels.held(),
            Transport::Spdy(spdy) | Transport::TunnelledSpdy { spdy, .. } => spdy.held(),
            Transport::Unknown => 0,
        }
    }
}

impl ByteCounts {
    fn of(&mut self, side: Side) -> &mut u64 {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
