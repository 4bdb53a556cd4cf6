//! Closes a test server's connection for the reasons for which Go's HTTP/2 server closes a connection with all its
//! streams. hyper's server does not, so this layer between hyper and the wire does it where Go would or might: for a
//! header that is too large or invalid and does not end with its frame, for frames after an invalid header on the same
//! stream, and for trailers, since their stream may be closed already.
// Go: net/http/h2_bundle.go, http2Framer.readMetaFrame, http2serverConn.processData, processResetStream, processHeaders

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::frames::{CONTINUATION, DATA, END_HEADERS, HEADERS, RST_STREAM};

/// kube-apiserver's limits for a frame, and for a header: `DefaultMaxHeaderBytes` with Go's supplement for HTTP/2.
// apiserver: pkg/server/secure_serving.go; Go: adjustHTTP1MaxHeaderSize
pub(crate) const MAX_FRAME_SIZE: u32 = 256 << 10;
const MAX_HEADER_LIST: usize = (1 << 20) + 320;
const PREFACE: usize = 24;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// A connection on which a client is held to Go's limits.
pub(crate) struct GoServer<T> {
    inner: T,
    reader: Option<Reader>,
    ended: Arc<AtomicUsize>,
}

impl<T> GoServer<T> {
    /// `ended` counts the connections that Go would have closed. HTTP/1.1 connections are not changed.
    pub(crate) fn new(inner: T, http2: bool, ended: Arc<AtomicUsize>) -> Self {
        Self { inner, reader: http2.then(Reader::default), ended }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for GoServer<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        let this = &mut *self;
        let read = &buffer.filled()[before..];
        if let Some(Err(error)) = this.reader.as_mut().map(|reader| reader.read(read)) {
            this.ended.fetch_add(1, Ordering::SeqCst);
            return Poll::Ready(Err(io::Error::other(error)));
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for GoServer<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Reads frames, and decodes their headers.
#[derive(Default)]
struct Reader {
    preface: usize,
    /// The received part of the current frame header, and the number of remaining payload bytes.
    head: Vec<u8>,
    left: usize,
    payload: Vec<u8>,
    block: Block,
    /// The last stream that was opened.
    highest: u32,
}

/// The current header block, and the dynamic table of the connection.
#[derive(Default)]
struct Block {
    unread: Vec<u8>,
    remaining: usize,
    invalid: bool,
    /// Names and lengths of values, the newest first.
    table: VecDeque<(Vec<u8>, usize)>,
}

impl Reader {
    fn read(&mut self, mut bytes: &[u8]) -> Result<(), &'static str> {
        let skipped = bytes.len().min(PREFACE - self.preface);
        self.preface += skipped;
        bytes = &bytes[skipped..];
        while !bytes.is_empty() {
            if self.head.len() < 9 {
                let taken = bytes.len().min(9 - self.head.len());
                self.head.extend(&bytes[..taken]);
                bytes = &bytes[taken..];
                if self.head.len() < 9 {
                    break;
                }
                let head = &self.head;
                self.left = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            }
            let taken = bytes.len().min(self.left);
            if matches!(self.head[3], HEADERS | CONTINUATION) {
                self.payload.extend(&bytes[..taken]);
            }
            bytes = &bytes[taken..];
            self.left -= taken;
            if self.left == 0 {
                let (kind, flags) = (self.head[3], self.head[4]);
                let stream = u32::from_be_bytes(self.head[5..9].try_into().unwrap());
                let payload = std::mem::take(&mut self.payload);
                self.head.clear();
                match kind {
                    HEADERS if stream <= self.highest => {
                        return Err("trailers, of a stream that may be closed");
                    }
                    HEADERS => {
                        let padding = if flags & PADDED == 0 { 0 } else { usize::from(payload[0]) };
                        let start =
                            usize::from(flags & PADDED != 0) + if flags & PRIORITY == 0 { 0 } else { 5 };
                        self.block.begin();
                        self.block.take(&payload[start..payload.len() - padding], flags)?;
                    }
                    CONTINUATION => self.block.take(&payload, flags)?,
                    DATA | RST_STREAM if stream > self.highest => return Err("a frame on an idle stream"),
                    _ => {}
                }
                // A stream with an invalid header is not opened.
                if matches!(kind, HEADERS | CONTINUATION) && flags & END_HEADERS != 0 && !self.block.invalid {
                    self.highest = stream;
                }
            }
        }
        Ok(())
    }
}

impl Block {
    fn begin(&mut self) {
        self.remaining = MAX_HEADER_LIST;
        self.invalid = false;
        self.unread.clear();
    }

    fn take(&mut self, fragment: &[u8], flags: u8) -> Result<(), &'static str> {
        if fragment.len() > 2 * self.remaining {
            return Err("header list too large");
        }
        if self.invalid {
            return Err("a frame after an invalid header");
        }
        self.unread.extend(fragment);
        let mut at = 0;
        while let Some(length) = self.field(at)? {
            at += length;
        }
        self.unread.drain(..at);
        if flags & END_HEADERS != 0 && !self.unread.is_empty() {
            return Err("a header field that is cut off");
        }
        Ok(())
    }

    /// Reads a field and returns its length; `None` if it is incomplete.
    // RFC 7541, section 6
    fn field(&mut self, at: usize) -> Result<Option<usize>, &'static str> {
        let bytes = &self.unread[at..];
        let Some(first) = bytes.first() else { return Ok(None) };
        let (bits, indexes) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, false),
        };
        let Some((index, mut length)) = integer(bytes, bits) else { return Ok(None) };
        if bits == 5 {
            self.evict(index);
            return Ok(Some(length));
        }
        if bits == 7 {
            let (name, value) = self.entry(index);
            self.emit(&name, value);
            return Ok(Some(length));
        }
        let name = if index == 0 {
            let Some((name, read)) = string(&bytes[length..])? else { return Ok(None) };
            length += read;
            name
        } else {
            self.entry(index).0
        };
        let Some((value, read)) = string(&bytes[length..])? else { return Ok(None) };
        length += read;
        self.emit(&name, value.len());
        if indexes {
            self.table.push_front((name, value.len()));
            self.evict(4096);
        }
        Ok(Some(length))
    }

    fn entry(&self, index: usize) -> (Vec<u8>, usize) {
        match STATIC_TABLE.get(index - 1) {
            Some((name, value)) => (name.as_bytes().to_vec(), value.len()),
            None => self.table[index - 1 - STATIC_TABLE.len()].clone(),
        }
    }

    fn evict(&mut self, size: usize) {
        while self.table.iter().map(|(name, value)| name.len() + value + 32).sum::<usize>() > size {
            self.table.pop_back();
        }
    }

    fn emit(&mut self, name: &[u8], value: usize) {
        // The `http` crate accepts this character in names, Go does not.
        self.invalid |= name.contains(&b'"');
        let size = name.len() + value + 32;
        self.remaining = self.remaining.saturating_sub(size);
    }
}

/// An integer with a prefix of `bits` bits, and its length.
// RFC 7541, section 5.1
fn integer(bytes: &[u8], bits: u8) -> Option<(usize, usize)> {
    let most = (1_usize << bits) - 1;
    let mut value = usize::from(*bytes.first()?) & most;
    if value < most {
        return Some((value, 1));
    }
    for (index, byte) in bytes.iter().enumerate().skip(1) {
        value += usize::from(byte & 0x7f) << (7 * (index - 1));
        if byte & 0x80 == 0 {
            return Some((value, index + 1));
        }
    }
    None
}

/// A string and its encoded length; `None` if it is incomplete.
// Go: golang.org/x/net/http2/hpack, Decoder.readString
fn string(bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>, &'static str> {
    let Some((length, start)) = integer(bytes, 7) else { return Ok(None) };
    if length > MAX_HEADER_LIST {
        return Err("a string that is too long");
    }
    let Some(raw) = bytes.get(start..start + length) else { return Ok(None) };
    let text = if bytes[0] & 0x80 == 0 { raw.to_vec() } else { unpack(raw) };
    Ok(Some((text, start + length)))
}

/// Decodes Huffman coding. The code is canonical, so the lengths of its symbols define it.
// RFC 7541, appendix B
fn unpack(raw: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    let (mut code, mut length) = (0_u32, 0_u8);
    let codes = canonical();
    for byte in raw {
        for bit in (0..8).rev() {
            code = code << 1 | u32::from(byte >> bit & 1);
            length += 1;
            let (first, symbols) = &codes[usize::from(length)];
            let symbol = code.checked_sub(*first).and_then(|nth| symbols.get(usize::try_from(nth).ok()?));
            if let Some(symbol) = symbol {
                text.push(*symbol);
                (code, length) = (0, 0);
            }
        }
    }
    text
}

/// For each length the first code and the symbols in order.
type Codes = Vec<(u32, Vec<u8>)>;

fn canonical() -> &'static Codes {
    static CODES: std::sync::OnceLock<Codes> = std::sync::OnceLock::new();
    CODES.get_or_init(|| {
        let mut next = 0;
        let of_length = |length| (0..=255).filter(move |symbol| LENGTHS[usize::from(*symbol)] == length);
        (0..=31)
            .map(|length| {
                next <<= 1;
                let (first, symbols) = (next, of_length(length).collect::<Vec<u8>>());
                next += u32::try_from(symbols.len()).unwrap();
                (first, symbols)
            })
            .collect()
    })
}

#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

// RFC 7541, appendix A
const STATIC_TABLE: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];
