//! HTTP/2 frame by frame.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::server;

use crate::fake_backend::H2;
use crate::gateway::Gateway;
use crate::pki::Issued;
use crate::test_pki::Pki;
use crate::waiting::in_time;
use crate::wire::bare;

/// `DATA`, the first of the frame types.
// RFC 9113, section 6
pub const DATA: u8 = 0;
/// `HEADERS`.
pub const HEADERS: u8 = 1;
/// `PRIORITY`.
pub const PRIORITY: u8 = 2;
/// `RST_STREAM`.
pub const RST_STREAM: u8 = 3;
/// `SETTINGS`.
pub const SETTINGS: u8 = 4;
/// `PING`.
pub const PING: u8 = 6;
/// `GOAWAY`.
pub const GOAWAY: u8 = 7;
/// `WINDOW_UPDATE`.
pub const WINDOW_UPDATE: u8 = 8;
/// `CONTINUATION`.
pub const CONTINUATION: u8 = 9;
/// Flag: the last frame of a stream.
pub const END_STREAM: u8 = 0x1;
/// Flag: an acknowledgement.
pub const ACK: u8 = 0x1;
/// Flag: the last frame of a header block.
pub const END_HEADERS: u8 = 0x4;
/// `:status: 200`, as an index into the static table of HPACK.
pub const STATUS_200: u8 = 0x88;
/// `PROTOCOL_ERROR`, an error code.
pub const PROTOCOL_ERROR: u32 = 1;
/// `REFUSED_STREAM`.
pub const REFUSED_STREAM: u32 = 7;
/// `CANCEL`.
pub const CANCEL: u32 = 8;
/// `ENHANCE_YOUR_CALM`.
pub const ENHANCE_YOUR_CALM: u32 = 11;

/// A frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// The kind, the stream and the payload of the next frame.
pub async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<(u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await?;
    let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).await?;
    Ok((head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
}

/// A frame that resets a stream.
pub fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

/// A frame that enlarges a window.
pub fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

/// The header block of a request, without compression.
pub fn header_block(method: &str, path: &str) -> Vec<u8> {
    // RFC 7541, appendix A: 7 is `:scheme: https`, 1, 2 and 4 name `:authority`, `:method` and `:path`.
    let mut block = vec![0x87];
    for (index, value) in [(1, "gateway.example"), (2, method), (4, path)] {
        block.extend([index, u8::try_from(value.len()).unwrap()]);
        block.extend(value.as_bytes());
    }
    block
}

/// A request without a body.
pub fn request(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &header_block("GET", path))
}

/// A request without a body whose path has this length, in several frames.
pub fn long_request(stream: u32, length: usize) -> Vec<u8> {
    let mut block = header_block("GET", "/");
    // Replaces the path by a longer one, whose length needs more than seven bits (RFC 7541, section 5.1).
    block.truncate(block.len() - 2);
    block.push(0x7f);
    let mut rest = length - 127;
    while rest >= 128 {
        block.push(u8::try_from(rest % 128).unwrap() | 0x80);
        rest /= 128;
    }
    block.push(u8::try_from(rest).unwrap());
    block.extend(vec![b'/'; 1]);
    block.extend(vec![b'x'; length - 1]);
    let mut chunks = block.chunks(16_384).peekable();
    let mut bytes = frame(HEADERS, END_STREAM, stream, chunks.next().unwrap());
    while let Some(chunk) = chunks.next() {
        let flags = if chunks.peek().is_none() { END_HEADERS } else { 0 };
        bytes.extend(frame(CONTINUATION, flags, stream, chunk));
    }
    bytes
}

/// A response without a body: status 200.
pub fn ok(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &[STATUS_200])
}

/// An HTTP/2 backend at the level of frames. `each` gets the number of a connection and returns the function that
/// responds to its frames.
pub async fn backend<F>(
    pki: &Pki,
    settings: &'static [(u16, u32)],
    mut each: impl FnMut(u32) -> F + Send + 'static,
) -> SocketAddr
where
    F: FnMut(u8, u32, &[u8]) -> Vec<u8> + Send + 'static,
{
    let (address, mut streams) = bare(pki, H2).await;
    tokio::spawn(async move {
        let mut number = 0;
        while let Some(stream) = streams.recv().await {
            tokio::spawn(serve_frames(stream, settings, each(number)));
            number += 1;
        }
    });
    address
}

/// Serves a connection: acknowledges SETTINGS and PING, and sends the result of `answer` for any other frame.
async fn serve_frames(
    mut stream: server::TlsStream<TcpStream>,
    settings: &[(u16, u32)],
    mut answer: impl FnMut(u8, u32, &[u8]) -> Vec<u8>,
) {
    let mut preface = [0; 24];
    if stream.read_exact(&mut preface).await.is_err() {
        return;
    }
    let payload: Vec<u8> = settings
        .iter()
        .flat_map(|(name, value)| [name.to_be_bytes().as_slice(), &value.to_be_bytes()].concat())
        .collect();
    let mut bytes = frame(SETTINGS, 0, 0, &payload);
    while stream.write_all(&bytes).await.is_ok() {
        let Ok((kind, id, payload)) = read_frame(&mut stream).await else { return };
        bytes = match kind {
            // An acknowledgement of our SETTINGS has no payload.
            SETTINGS if !payload.is_empty() => frame(SETTINGS, ACK, 0, &[]),
            PING => frame(PING, ACK, 0, &payload),
            kind => answer(kind, id, &payload),
        };
    }
}

impl Gateway {
    /// A connection whose frames the test writes; `window` is the initial window of each stream.
    pub async fn frames(&self, identity: Option<&Issued>, window: u32) -> TlsStream<TcpStream> {
        let mut stream = self.tls(b"h2", identity).await;
        let mut settings = 4_u16.to_be_bytes().to_vec();
        settings.extend(window.to_be_bytes());
        let begin = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, &settings)].concat();
        in_time(stream.write_all(&begin)).await.unwrap();
        stream
    }
}
