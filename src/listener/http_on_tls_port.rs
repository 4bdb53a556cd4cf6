//! Clients that do not speak TLS. Those that speak plain HTTP are told so, in Go's words.
// Go: net/http server.go, conn.serve and tlsRecordHeaderLooksLikeHTTP

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The first byte of a handshake.
// RFC 8446, section 5.1
const HANDSHAKE: u8 = 22;
const BEGINNINGS: [&[u8; 5]; 5] = [b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO"];
const ANSWER: &[u8] = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
/// How much more of the request is read, and for how long: were the connection closed at once, its reset could overtake
/// the answer.
const MAX_DISCARDED_BYTES: u64 = 64 * 1024;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The connection, if its client begins a handshake; else an error, which the client has been told.
pub(super) async fn expect_tls(mut stream: TcpStream) -> io::Result<TcpStream> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if first == [HANDSHAKE] {
        return Ok(stream);
    }
    let mut beginning = [0; 5];
    stream.read_exact(&mut beginning).await?;
    if !BEGINNINGS.contains(&&beginning) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the client does not speak TLS"));
    }
    stream.write_all(ANSWER).await?;
    stream.shutdown().await?;
    let rest = async { tokio::io::copy(&mut stream.take(MAX_DISCARDED_BYTES), &mut tokio::io::sink()).await };
    timeout(ANSWER_TIMEOUT, rest).await.ok();
    Err(io::Error::new(io::ErrorKind::InvalidData, "client sent an HTTP request to an HTTPS server"))
}
