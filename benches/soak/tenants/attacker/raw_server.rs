//! An API server that writes frames which no HTTP library writes. h2 serves the connection, the self-check included; its
//! bytes and those of the attack go through one task.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use http::{Method, Response};
use http_body_util::BodyExt as _;
use testkit::fake_accounts::FakeAccounts;
use testkit::frames::{CONTINUATION, END_HEADERS, HEADERS, STATUS_200, frame};
use testkit::wire::acceptor;
use testkit::{BoxedBody, H2, Pki};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf, ReadHalf, WriteHalf, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// When a connection without requests is closed.
const IDLE: Duration = Duration::from_millis(10);
/// The header that does not end: its length, and that of the value in each frame.
const HEADER_LENGTH: usize = 31 << 20;
const VALUE_LENGTH: usize = 16_000;
/// Informational responses that are written at a time.
const BATCH: usize = 4096;

/// The answer to requests of users.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RawAnswer {
    /// A header that begins and does not end.
    EndlessHeaders,
    /// 103 without end.
    Informational,
    /// None: the connection closes when it is idle.
    CloseWhenIdle,
}

type Tls = TlsStream<TcpStream>;

struct RawServer {
    answer: RawAnswer,
    accounts: Arc<FakeAccounts>,
    self_checks: Arc<AtomicU64>,
}

/// Starts a server, which counts self-checks. Returns its address.
pub(crate) async fn start(pki: &Pki, answer: RawAnswer, self_checks: &Arc<AtomicU64>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (acceptor, self_checks) = (acceptor(pki, H2), Arc::clone(self_checks));
    let server = Arc::new(RawServer { answer, accounts: FakeAccounts::new(), self_checks });
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(Arc::clone(&server).serve(acceptor.clone(), stream));
        }
    });
    address
}

impl RawServer {
    async fn serve(self: Arc<Self>, acceptor: TlsAcceptor, stream: TcpStream) -> Result<(), h2::Error> {
        stream.set_nodelay(true).ok();
        let Ok(stream) = acceptor.accept(stream).await else { return Ok(()) };
        let (read, write) = split(stream);
        let (output, outputs) = unbounded_channel();
        tokio::spawn(write_all(write, outputs));
        let io = QueuedStream { read, output: output.clone() };
        let mut connection = h2::server::handshake(io).await?;
        // Streams of the attack, which h2 would reset.
        let mut kept = Vec::new();
        let mut is_used = false;
        loop {
            let limit = if is_used && self.answer == RawAnswer::CloseWhenIdle { IDLE } else { Duration::MAX };
            let Ok(Some(accepted)) = timeout(limit, connection.accept()).await else { return Ok(()) };
            let (request, response) = accepted?;
            is_used = true;
            let is_review = request.method() == Method::POST;
            self.self_checks.fetch_add(u64::from(is_review), Ordering::Relaxed);
            match (self.accounts.answer(&request), self.answer) {
                (Some(answer), _) => {
                    tokio::spawn(send(answer, response));
                }
                (None, RawAnswer::CloseWhenIdle) => return Ok(()),
                (None, answer) => {
                    let stream = response.stream_id().as_u32();
                    kept.push(response);
                    output.send(Output::Attack(answer, stream)).ok();
                }
            }
        }
    }
}

/// Sends a response. Nothing that is sent here fills a window.
async fn send(answer: Response<BoxedBody>, mut response: SendResponse<Bytes>) -> Result<(), h2::Error> {
    let (head, mut body) = answer.into_parts();
    let mut stream = response.send_response(Response::from_parts(head, ()), false)?;
    while let Some(Ok(frame)) = body.frame().await {
        stream.send_data(frame.into_data().unwrap_or_default(), false)?;
    }
    stream.send_data(Bytes::new(), true)
}

/// What the task of a connection writes.
enum Output {
    /// Whole frames of h2.
    Frames(Vec<u8>),
    Attack(RawAnswer, u32),
}

/// Reads from the connection, and queues what is written to it.
struct QueuedStream {
    read: ReadHalf<Tls>,
    output: UnboundedSender<Output>,
}

impl AsyncRead for QueuedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.read).poll_read(cx, buffer)
    }
}

impl AsyncWrite for QueuedStream {
    // Takes everything at once, so that nothing else comes between the parts of a frame.
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, data: &[u8]) -> Poll<std::io::Result<usize>> {
        let sent = self.output.send(Output::Frames(data.to_vec()));
        Poll::Ready(sent.map(|()| data.len()).map_err(|_| std::io::ErrorKind::BrokenPipe.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

async fn write_all(mut write: WriteHalf<Tls>, mut outputs: UnboundedReceiver<Output>) -> std::io::Result<()> {
    let mut informational = Vec::new();
    loop {
        // Frames of h2 come first: they answer pings.
        let output = if informational.is_empty() { outputs.recv().await } else { outputs.try_recv().ok() };
        match output {
            Some(Output::Frames(frames)) => write.write_all(&frames).await?,
            Some(Output::Attack(RawAnswer::EndlessHeaders, stream)) => {
                return endless_headers(&mut write, stream).await;
            }
            Some(Output::Attack(_, stream)) => informational = early_hints(stream),
            None if informational.is_empty() => return write.shutdown().await,
            None => write.write_all(&informational).await?,
        }
        write.flush().await?;
    }
}

/// Writes a header without its end. Nothing else may follow on the connection.
async fn endless_headers(write: &mut WriteHalf<Tls>, stream: u32) -> std::io::Result<()> {
    let mut value = literal("x", VALUE_LENGTH);
    write.write_all(&frame(HEADERS, 0, stream, &[STATUS_200])).await?;
    value = frame(CONTINUATION, 0, stream, &value);
    for _ in 0..HEADER_LENGTH / VALUE_LENGTH {
        write.write_all(&value).await?;
    }
    write.flush().await?;
    std::future::pending().await
}

/// A field whose value has this length, without compression.
fn literal(name: &str, length: usize) -> Vec<u8> {
    let mut field = vec![0, u8::try_from(name.len()).unwrap()];
    field.extend(name.as_bytes());
    // RFC 7541, section 5.1: an integer of more than seven bits.
    field.push(0x7f);
    let mut rest = length - 0x7f;
    while rest >= 0x80 {
        field.push(u8::try_from(rest % 0x80).unwrap() | 0x80);
        rest /= 0x80;
    }
    field.push(u8::try_from(rest).unwrap());
    field.extend(vec![b'x'; length]);
    field
}

/// Many responses of 103.
// RFC 7541, appendix A: 8 names `:status`.
fn early_hints(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, b"\x08\x03103").repeat(BATCH)
}
