//! Detection of clients that do not speak TLS. A plain HTTP request gets Go's 400 response.
// Go: net/http server.go, conn.serve and tlsRecordHeaderLooksLikeHTTP

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::acceptor::ConnectionLimiter;

/// The content type of a TLS record with a handshake message.
// RFC 8446, section 5.1
const TLS_RECORD_HANDSHAKE: u8 = 22;
const HTTP_REQUEST_PREFIXES: [&[u8; 5]; 5] = [b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO"];
const PLAIN_HTTP_RESPONSE: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
/// The bytes of the request to read and discard before the close, and the time for it: a reset could otherwise overtake
/// the response.
const MAX_DISCARDED_BYTES: u64 = 64 * 1024;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// The first bytes of a connection that begin no TLS handshake.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotTlsError {
    /// A PROXY protocol header from an address that is not trusted to send one.
    #[error("a PROXY protocol header from an address outside the trusted networks")]
    UntrustedHeader,
    /// A request of plain HTTP, which got a response.
    #[error("client sent an HTTP request to an HTTPS server")]
    PlainHttp,
    /// Another protocol.
    #[error("the client does not speak TLS")]
    Other,
}

impl From<NotTlsError> for io::Error {
    fn from(error: NotTlsError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// Performs the TLS handshake of a client, which may send neither plain HTTP nor a PROXY protocol header.
// threat: forged-proxy-header
pub(crate) async fn accept_tls(
    tls: Arc<ServerConfig>,
    stream: TcpStream,
    peer: SocketAddr,
    limiter: &ConnectionLimiter,
) -> io::Result<TlsStream<TcpStream>> {
    let accepted = async { TlsAcceptor::from(tls).accept(expect_tls(stream).await?).await }.await;
    let cause = accepted.as_ref().err().and_then(io::Error::get_ref);
    let not_tls = cause.and_then(|cause| cause.downcast_ref::<NotTlsError>());
    if let Some(error @ NotTlsError::UntrustedHeader) = not_tls {
        limiter.refuse_header(peer, "untrusted", error);
    }
    accepted
}

/// Returns the connection if its first byte begins a TLS handshake. Otherwise responds to plain HTTP and fails.
async fn expect_tls(mut stream: TcpStream) -> io::Result<TcpStream> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if first == [TLS_RECORD_HANDSHAKE] {
        return Ok(stream);
    }
    let mut prefix = [0; 5];
    stream.read_exact(&mut prefix).await?;
    if prefix == *b"PROXY" || prefix == *b"\r\n\r\n\0" {
        return Err(NotTlsError::UntrustedHeader.into());
    }
    if !HTTP_REQUEST_PREFIXES.contains(&&prefix) {
        return Err(NotTlsError::Other.into());
    }
    stream.write_all(PLAIN_HTTP_RESPONSE).await?;
    stream.shutdown().await?;
    let rest = async { tokio::io::copy(&mut stream.take(MAX_DISCARDED_BYTES), &mut tokio::io::sink()).await };
    timeout(DISCARD_TIMEOUT, rest).await.ok();
    Err(NotTlsError::PlainHttp.into())
}
