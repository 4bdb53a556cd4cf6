//! An API server that writes frames which no HTTP library writes. h2 serves the connection, the self-check included; its
//! bytes and those of the attack go through one task.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::json;
use testkit::fake_accounts::FakeAccounts;
use testkit::frames::{CONTINUATION, END_HEADERS, HEADERS, STATUS_200, frame};
use testkit::self_check::{respond, user_info};
use testkit::wire::acceptor;
use testkit::{BoxedBody, H2, Pki};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf, ReadHalf, WriteHalf, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use uuid::Uuid;

use super::servers::REVIEWS;

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
    /// None either; self-checks are answered with another user each time.
    OtherUser,
}

impl RawAnswer {
    /// Whether a connection without requests is closed, which makes the gateway check the API server again.
    fn closes_when_idle(self) -> bool {
        matches!(self, Self::CloseWhenIdle | Self::OtherUser)
    }
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
            let limit = if is_used && self.answer.closes_when_idle() { IDLE } else { Duration::MAX };
            let Ok(Some(accepted)) = timeout(limit, connection.accept()).await else { return Ok(()) };
            let (request, response) = accepted?;
            is_used = true;
            match self.answer_gateway(&request) {
                Some(answer) => {
                    tokio::spawn(send(answer, response));
                }
                None if self.answer.closes_when_idle() => return Ok(()),
                None => {
                    let stream = response.stream_id().as_u32();
                    kept.push(response);
                    output.send(Output::Attack(self.answer, stream)).ok();
                }
            }
        }
    }

    /// The answer to the gateway's own request; `None` for those of users.
    fn answer_gateway(&self, request: &Request<RecvStream>) -> Option<Response<BoxedBody>> {
        if request.uri().path() != REVIEWS {
            return self.accounts.answer(request);
        }
        self.self_checks.fetch_add(1, Ordering::Relaxed);
        if self.answer == RawAnswer::OtherUser {
            Some(other_user(request))
        } else {
            self.accounts.answer(request)
        }
    }
}

/// A review of a user that was not sent.
fn other_user<B>(request: &Request<B>) -> Response<BoxedBody> {
    let mut user = user_info(request.headers(), "x-remote-");
    user["username"] = json!(format!("made-up-{}", Uuid::new_v4()));
    respond(StatusCode::CREATED, &json!({"status": {"userInfo": user}}))
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
