//! Streams of SPDY/3.1: the client opens one for each purpose, which a header names.
//!
//! The session is what the server takes from these frames, so a frame of a client that the server may read in another way, and
//! that no client of Kubernetes sends, makes the client's side unreadable: it would hide what follows. What the server sends
//! is read whatever the client has said: the server goes on to write to a stream that the client has reset.
// apiserver: k8s.io/cri-streaming/pkg/streaming/remotecommand/httpstream.go, waitForStreams; portforward/httpstream.go

use std::collections::BTreeMap;

use super::event::{OutputChannel, SessionEvent, Side};
use super::exit_status::ExitStatusReader;
use super::header_block::StreamHeaders;
use super::spdy_frames::{SpdyFrame, SpdyFrameReader};
use super::terminal_size::TerminalSizeReader;
use super::{ProtocolVersion, SessionKind, length};

/// The maximum number of streams: of an exec in all, where there are five, and of a port-forward at a time.
const MAX_EXEC_STREAMS: usize = 64;
const MAX_STREAMS: usize = 4096;

/// Decodes a session over SPDY.
#[derive(Debug)]
pub(super) struct SpdyDecoder {
    client: SpdyFrameReader,
    server: SpdyFrameReader,
    streams: Streams,
}

#[derive(Debug)]
struct Streams {
    kind: SessionKind,
    open: BTreeMap<u32, Stream>,
    /// The lowest number that the next stream may have.
    next: u32,
    status: ExitStatusReader,
    sizes: TerminalSizeReader,
}

#[derive(Debug)]
struct Stream {
    purpose: Purpose,
    is_replied: bool,
    client_ended: bool,
    server_ended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Stdin,
    Output(OutputChannel),
    Error,
    Resize,
    /// A connection to a port.
    Connection(u16),
    Unknown,
}

impl SpdyDecoder {
    pub(super) fn new(version: ProtocolVersion, kind: SessionKind) -> Self {
        let streams = Streams {
            kind,
            open: BTreeMap::new(),
            next: 1,
            status: ExitStatusReader::new(version),
            sizes: TerminalSizeReader::default(),
        };
        Self { client: SpdyFrameReader::default(), server: SpdyFrameReader::default(), streams }
    }

    pub(super) fn push(
        &mut self,
        from: Side,
        bytes: &[u8],
        events: &mut dyn FnMut(SessionEvent<'_>),
    ) -> Result<(), &'static str> {
        let Self { client, server, streams } = self;
        let frames = if from == Side::Client { client } else { server };
        frames.read(bytes, &mut |frame| streams.read(from, frame, events))
    }

    pub(super) fn finish(&mut self, events: &mut dyn FnMut(SessionEvent<'_>)) {
        self.streams.status.end(events);
        for (_, stream) in std::mem::take(&mut self.streams.open) {
            stream.report_closed(events);
        }
    }

    pub(super) fn held(&self) -> usize {
        let Streams { open, status, sizes, .. } = &self.streams;
        // The nodes of the tree are at least half full.
        status.held() + sizes.held() + open.len() * 2 * size_of::<(u32, Stream)>()
    }
}

impl Streams {
    fn read(
        &mut self,
        from: Side,
        frame: SpdyFrame<'_>,
        events: &mut dyn FnMut(SessionEvent<'_>),
    ) -> Result<(), &'static str> {
        match (from, frame) {
            (Side::Client, SpdyFrame::Open(id, headers)) => self.open(id, &headers, events),
            (Side::Server, SpdyFrame::Open(..)) => Err("the server opens a stream"),
            (Side::Server, SpdyFrame::Replied(id)) => {
                if let Some(stream) = self.open.get_mut(&id) {
                    stream.is_replied = true;
                }
                Ok(())
            }
            (Side::Client, SpdyFrame::Replied(_)) => Err("the client replies to a stream"),
            // No server reads them: the stream, and others, stand still there.
            (Side::Client, SpdyFrame::Headers) => Err("the client sends further headers of a stream"),
            (Side::Server, SpdyFrame::Headers) => Ok(()),
            (_, SpdyFrame::Data(id, bytes)) => self.data(from, id, bytes, events),
            (_, SpdyFrame::Ended(id)) => {
                self.ended(from, id, events);
                Ok(())
            }
            (_, SpdyFrame::Reset(id)) => {
                self.ended(from, id, events);
                if self.kind == SessionKind::PortForward {
                    self.close(id, events);
                }
                Ok(())
            }
        }
    }

    fn data(
        &mut self,
        from: Side,
        id: u32,
        bytes: &[u8],
        events: &mut dyn FnMut(SessionEvent<'_>),
    ) -> Result<(), &'static str> {
        let Some(stream) = self.open.get(&id) else {
            if self.kind != SessionKind::PortForward || id >= self.next {
                return Err("data of a stream that was not opened");
            }
            // Of a connection that one side has ended.
            events(SessionEvent::Forwarded { from, bytes: length(bytes) });
            return Ok(());
        };
        // The server drops such data if it gets them before it has replied; clients wait for the reply.
        if from == Side::Client && !stream.is_replied {
            return Err("data of a stream before the reply to it");
        }
        match (from, stream.purpose) {
            (Side::Client, Purpose::Stdin) => events(SessionEvent::Input(bytes)),
            (Side::Client, Purpose::Resize) => self.sizes.read(bytes, events),
            (Side::Server, Purpose::Output(channel)) => events(SessionEvent::Output { channel, bytes }),
            (Side::Server, Purpose::Error) => self.status.read(bytes, events),
            (_, Purpose::Connection(_)) => events(SessionEvent::Forwarded { from, bytes: length(bytes) }),
            // The receiver reads nothing from such a stream.
            _ => {}
        }
        Ok(())
    }

    fn ended(&mut self, from: Side, id: u32, events: &mut dyn FnMut(SessionEvent<'_>)) {
        let Some(stream) = self.open.get_mut(&id) else { return };
        match (from, stream.purpose) {
            (Side::Client, Purpose::Stdin) if !stream.client_ended => events(SessionEvent::InputEnded),
            (Side::Server, Purpose::Error) => self.status.end(events),
            _ => {}
        }
        match from {
            Side::Client => stream.client_ended = true,
            Side::Server => stream.server_ended = true,
        }
        if stream.client_ended && stream.server_ended && self.kind == SessionKind::PortForward {
            self.close(id, events);
        }
    }

    // spdystream: connection.go, validateStreamId
    fn open(
        &mut self,
        id: u32,
        headers: &StreamHeaders,
        events: &mut dyn FnMut(SessionEvent<'_>),
    ) -> Result<(), &'static str> {
        if id < self.next {
            return Err("the client opens a stream twice, or in another order");
        }
        self.next = id.saturating_add(2);
        let most = if self.kind == SessionKind::PortForward { MAX_STREAMS } else { MAX_EXEC_STREAMS };
        if self.open.len() == most {
            return Err("too many streams are open");
        }
        let purpose = match (self.kind, headers.stream_type.as_deref().unwrap_or_default()) {
            // A port has a stream for errors, too, which carries texts of the connection.
            (SessionKind::PortForward, "data") => headers.port.map_or(Purpose::Unknown, Purpose::Connection),
            (SessionKind::PortForward, _) => Purpose::Unknown,
            (_, "stdin") => Purpose::Stdin,
            (_, "stdout") => Purpose::Output(OutputChannel::Stdout),
            (_, "stderr") => Purpose::Output(OutputChannel::Stderr),
            (_, "error") => Purpose::Error,
            (_, "resize") => Purpose::Resize,
            _ => Purpose::Unknown,
        };
        if let Purpose::Connection(port) = purpose {
            events(SessionEvent::ConnectionOpened { port });
        }
        let stream = Stream { purpose, is_replied: false, client_ended: false, server_ended: false };
        self.open.insert(id, stream);
        Ok(())
    }

    fn close(&mut self, id: u32, events: &mut dyn FnMut(SessionEvent<'_>)) {
        if let Some(stream) = self.open.remove(&id) {
            stream.report_closed(events);
        }
    }
}

impl Stream {
    fn report_closed(&self, events: &mut dyn FnMut(SessionEvent<'_>)) {
        if let Purpose::Connection(port) = self.purpose {
            events(SessionEvent::ConnectionClosed { port });
        }
    }
}
