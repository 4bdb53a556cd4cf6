//! Streams of SPDY/3.1: the client opens one for each purpose, which a header names.
// apiserver: k8s.io/cri-streaming/pkg/streaming/remotecommand/httpstream.go, waitForStreams; portforward/httpstream.go

use std::collections::BTreeMap;

use super::event::{OutputChannel, SessionEvent, Side};
use super::exit_status::ExitStatusReader;
use super::header_block::StreamHeaders;
use super::spdy_frames::{SpdyFrame, SpdyFrameReader};
use super::terminal_size::TerminalSizeReader;
use super::{ProtocolVersion, SessionKind, length};

/// The maximum number of streams that are open at a time.
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
    status: ExitStatusReader,
    sizes: TerminalSizeReader,
}

#[derive(Debug)]
struct Stream {
    purpose: Purpose,
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
        match frame {
            SpdyFrame::Open(id, headers) => {
                // The server opens none. Of two with one number the server takes the first.
                if from == Side::Client && !self.open.contains_key(&id) {
                    if self.open.len() == MAX_STREAMS {
                        return Err("too many streams are open");
                    }
                    self.open(id, &headers, events);
                }
            }
            SpdyFrame::Data(id, bytes) => {
                let Some(stream) = self.open.get(&id) else { return Ok(()) };
                match (from, stream.purpose) {
                    (Side::Client, Purpose::Stdin) => events(SessionEvent::Input(bytes)),
                    (Side::Client, Purpose::Resize) => self.sizes.read(bytes, events),
                    (Side::Server, Purpose::Output(channel)) => {
                        events(SessionEvent::Output { channel, bytes });
                    }
                    (Side::Server, Purpose::Error) => self.status.read(bytes, events),
                    (_, Purpose::Connection(_)) => {
                        events(SessionEvent::Forwarded { from, bytes: length(bytes) });
                    }
                    // The receiver reads nothing from such a stream.
                    _ => {}
                }
            }
            SpdyFrame::Ended(id) => {
                let Some(stream) = self.open.get_mut(&id) else { return Ok(()) };
                match (from, stream.purpose) {
                    (Side::Client, Purpose::Stdin) if !stream.client_ended => {
                        events(SessionEvent::InputEnded);
                    }
                    (Side::Server, Purpose::Error) => self.status.end(events),
                    _ => {}
                }
                match from {
                    Side::Client => stream.client_ended = true,
                    Side::Server => stream.server_ended = true,
                }
                if stream.client_ended && stream.server_ended {
                    self.close(id, events);
                }
            }
            SpdyFrame::Reset(id) => self.close(id, events),
        }
        Ok(())
    }

    fn open(&mut self, id: u32, headers: &StreamHeaders, events: &mut dyn FnMut(SessionEvent<'_>)) {
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
        self.open.insert(id, Stream { purpose, client_ended: false, server_ended: false });
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
