//! A client that sends requests byte for byte, without validation, and returns the response.
//!
//! It writes HTTP/1.1 as raw bytes over TLS, so that malformed requests are possible, and HTTP/2 through `h2`. Each
//! exchange has its own connection and never resumes a TLS session. Client certificates are sent without checks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, SignatureScheme};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::websocket::{self, Message, Role};

/// The timeout of an exchange.
const DEADLINE: Duration = Duration::from_secs(25);

/// The beginning of the error of an exchange that timed out.
pub(crate) const HANGS: &str = "no complete response";

/// A client certificate chain and its key.
#[derive(Clone, Debug)]
pub(crate) struct Identity(Arc<CertifiedKey>);

impl Identity {
    /// `chain` begins with the leaf. It is not checked.
    pub(crate) fn new(chain: Vec<Vec<u8>>, key: &PrivateKeyDer<'_>) -> Self {
        let key =
            rustls::crypto::aws_lc_rs::sign::any_supported_type(key).expect("a key that rustls can use");
        Self(Arc::new(CertifiedKey::new(chain.into_iter().map(CertificateDer::from).collect(), key)))
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The HTTP version of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    H1,
    H2,
}

/// How much of the response to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// To the end of the body.
    End,
    /// This many lines of the body.
    Lines(usize),
    /// Until the server closes the upgraded WebSocket connection.
    WebSocketClose,
}

/// A request whose placeholders are already replaced.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) version: Version,
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Bytes,
    /// HTTP/1.1 only: raw bytes to send instead of the fields above.
    pub(crate) raw: Option<Vec<u8>>,
    /// WebSocket messages to send after the upgrade: channel and payload.
    pub(crate) frames: Vec<(u8, Vec<u8>)>,
    pub(crate) until: Until,
}

/// A response.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// All values of a header, in order.
    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        self.headers
            .iter()
            .filter(|(have, _)| have.eq_ignore_ascii_case(name))
            .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
            .collect()
    }
}

/// The reason why an exchange ended without a complete response.
#[derive(Clone, Debug)]
pub(crate) struct Broken(pub(crate) String);

/// The address of a server, and the CA of its certificate.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) roots: Arc<RootCertStore>,
}

/// Sends one request on a new connection.
pub(crate) async fn exchange(
    target: &Target,
    identity: Option<&Identity>,
    request: &Request,
) -> Result<Answer, Broken> {
    let work = async {
        let stream = connect(target, identity, request.version).await?;
        match request.version {
            Version::H1 => h1(stream, target, request).await,
            Version::H2 => h2(stream, target, request).await,
        }
    };
    match tokio::time::timeout(DEADLINE, work).await {
        Ok(Ok(mut answer)) => {
            // Whether more lines have arrived depends on timing.
            if let Until::Lines(lines) = request.until {
                let ends = answer.body.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
                if let Some((end, _)) =
                    ends.skip(lines.saturating_sub(1)).map(|(at, byte)| (at + 1, *byte)).next()
                {
                    answer.body.truncate(end);
                }
            }
            Ok(answer)
        }
        Ok(broken) => broken,
        Err(_) => Err(Broken(format!("{HANGS} within {DEADLINE:?}"))),
    }
}

pub(crate) async fn connect(
    target: &Target,
    identity: Option<&Identity>,
    version: Version,
) -> Result<TlsStream<TcpStream>, Broken> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions")
        .with_root_certificates(target.roots.clone());
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(Arc::new(identity.clone())),
        None => builder.with_no_client_auth(),
    };
    config.resumption = rustls::client::Resumption::disabled();
    config.alpn_protocols = vec![match version {
        Version::H1 => b"http/1.1".to_vec(),
        Version::H2 => b"h2".to_vec(),
    }];
    let tcp = TcpStream::connect(target.address).await.map_err(broken("connect"))?;
    tcp.set_nodelay(true).map_err(broken("connect"))?;
    let name = ServerName::from(target.address.ip());
    tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, tcp)
        .await
        .map_err(broken("TLS handshake"))
}

fn broken<E: std::fmt::Display>(operation: &'static str) -> impl Fn(E) -> Broken {
    move |error| Broken(format!("{operation}: {error}"))
}

// ---- HTTP/1.1 ----

async fn h1(stream: TlsStream<TcpStream>, target: &Target, request: &Request) -> Result<Answer, Broken> {
    let (read, mut write) = tokio::io::split(stream);
    let bytes = match &request.raw {
        Some(raw) => raw.clone(),
        None => h1_bytes(target, request),
    };
    let head_only = request.method == "HEAD";
    let mut reader = Reader { stream: read, buffer: Vec::new() };
    // Writes and reads concurrently: a server may respond before it has read a large body.
    let writing = async {
        let sent = write.write_all(&bytes).await.is_ok() && write.flush().await.is_ok();
        (write, sent)
    };
    let reading = async {
        let head = reader.head().await?;
        Ok::<_, Broken>((head, reader))
    };
    tokio::pin!(writing);
    tokio::pin!(reading);
    let mut sender = None;
    let (mut answer, mut reader) = loop {
        tokio::select! {
            done = &mut reading => break done?,
            (half, _) = &mut writing, if sender.is_none() => sender = Some(half),
        }
    };
    if answer.status == 101 && request.until == Until::WebSocketClose {
        let sender = sender.ok_or_else(|| Broken("switched protocols before the request was sent".into()))?;
        answer.body = talk(&mut reader, sender, &request.frames).await?;
        return Ok(answer);
    }
    answer.body = {
        let body = reader.body(&answer, head_only, request.until);
        tokio::pin!(body);
        loop {
            tokio::select! {
                done = &mut body => break done?,
                (half, _) = &mut writing, if sender.is_none() => sender = Some(half),
            }
        }
    };
    Ok(answer)
}

pub(crate) fn h1_bytes(target: &Target, request: &Request) -> Vec<u8> {
    let has = |name: &str| request.headers.iter().any(|(have, _)| have.eq_ignore_ascii_case(name));
    let mut bytes = format!("{} {} HTTP/1.1\r\n", request.method, request.target).into_bytes();
    if !has("host") {
        bytes.extend(format!("Host: {}\r\n", target.address).bytes());
    }
    for (name, value) in &request.headers {
        bytes.extend(name.bytes());
        bytes.extend(b": ");
        bytes.extend(value);
        bytes.extend(b"\r\n");
    }
    let framed = has("content-length") || has("transfer-encoding");
    if !framed && (!request.body.is_empty() || matches!(request.method.as_str(), "POST" | "PUT" | "PATCH")) {
        bytes.extend(format!("Content-Length: {}\r\n", request.body.len()).bytes());
    }
    bytes.extend(b"\r\n");
    bytes.extend(&request.body);
    bytes
}

/// Reads responses from an HTTP/1.1 connection.
pub(crate) struct Reader<R> {
    pub(crate) stream: R,
    pub(crate) buffer: Vec<u8>,
}

impl<R: tokio::io::AsyncRead + Unpin> Reader<R> {
    /// Reads more bytes. Returns false at the end of the stream, also without a `close_notify`, which only some TLS
    /// libraries send.
    pub(crate) async fn more(&mut self) -> Result<bool, Broken> {
        let mut chunk = vec![0; 64 * 1024];
        match self.stream.read(&mut chunk).await {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.buffer.extend(chunk.iter().take(count));
                Ok(true)
            }
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(Broken(format!("read: {error}"))),
        }
    }

    async fn line(&mut self) -> Result<Vec<u8>, Broken> {
        let mut from = 0;
        loop {
            if let Some(at) = self.buffer.iter().skip(from).position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.buffer.drain(..=from + at).collect();
                line.pop();
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                return Ok(line);
            }
            from = self.buffer.len();
            if !self.more().await? {
                return Err(Broken("the connection ended within a line".into()));
            }
        }
    }

    async fn exactly(&mut self, count: usize) -> Result<Vec<u8>, Broken> {
        while self.buffer.len() < count {
            if !self.more().await? {
                return Err(Broken(format!(
                    "the connection ended {} bytes early",
                    count - self.buffer.len()
                )));
            }
        }
        Ok(self.buffer.drain(..count).collect())
    }

    /// Reads the status line and headers of the first response other than 1xx, or of a 101.
    pub(crate) async fn head(&mut self) -> Result<Answer, Broken> {
        loop {
            let first = String::from_utf8_lossy(&self.line().await?).into_owned();
            let status = first
                .strip_prefix("HTTP/1.1 ")
                .or_else(|| first.strip_prefix("HTTP/1.0 "))
                .and_then(|rest| rest.get(..3))
                .and_then(|code| code.parse().ok())
                .ok_or_else(|| Broken(format!("no status line: {first:?}")))?;
            let mut answer = Answer { status, ..Answer::default() };
            loop {
                let line = self.line().await?;
                if line.is_empty() {
                    break;
                }
                let colon = line.iter().position(|byte| *byte == b':');
                let colon = colon.ok_or_else(|| Broken("a header line without colon".into()))?;
                let (name, value) = line.split_at(colon);
                let value = value.get(1..).unwrap_or_default().trim_ascii().to_vec();
                answer.headers.push((String::from_utf8_lossy(name).into_owned(), value));
            }
            if !(100..200).contains(&status) || status == 101 {
                return Ok(answer);
            }
        }
    }

    pub(crate) async fn body(
        &mut self,
        head: &Answer,
        head_only: bool,
        until: Until,
    ) -> Result<Vec<u8>, Broken> {
        if head_only || matches!(head.status, 101 | 204 | 304) {
            return Ok(Vec::new());
        }
        let enough = |body: &[u8]| match until {
            Until::Lines(lines) => line_ends(body) >= lines,
            Until::End | Until::WebSocketClose => false,
        };
        let mut body = Vec::new();
        if head.all("transfer-encoding").iter().any(|value| value.eq_ignore_ascii_case("chunked")) {
            loop {
                let size = String::from_utf8_lossy(&self.line().await?).into_owned();
                let size = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16)
                    .map_err(|_| Broken(format!("chunk size {size:?}")))?;
                body.extend(self.exactly(size).await?);
                if size == 0 {
                    while !self.line().await?.is_empty() {}
                    return Ok(body);
                }
                self.line().await?;
                if enough(&body) {
                    return Ok(body);
                }
            }
        }
        if let Some(length) = head.all("content-length").first() {
            let length = length.parse().map_err(|_| Broken(format!("Content-Length {length:?}")))?;
            return self.exactly(length).await;
        }
        while !enough(&self.buffer) && self.more().await? {}
        Ok(std::mem::take(&mut self.buffer))
    }
}

/// A short form of long content: its length and digest.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    let short = digest.as_ref().iter().take(8).fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    format!("{} bytes, sha256 {short:016x}", bytes.len())
}

pub(crate) fn line_ends(body: &[u8]) -> usize {
    body.split(|byte| *byte == b'\n').count() - 1
}

// ---- WebSocket, the parts that the exec protocol needs ----

/// Sends the messages, then collects the data of each channel until the server closes the connection. The answer does
/// not contain message boundaries.
async fn talk<R, W>(
    reader: &mut Reader<R>,
    mut writer: W,
    frames: &[(u8, Vec<u8>)],
) -> Result<Vec<u8>, Broken>
where
    R: tokio::io::AsyncRead + Unpin,
    W: tokio::io::AsyncWrite + Unpin,
{
    let mut send = async |opcode, payload: &[u8]| {
        let bytes = websocket::message(Role::Client, opcode, payload);
        writer.write_all(&bytes).await.map_err(broken("WebSocket write"))?;
        writer.flush().await.map_err(broken("WebSocket write"))
    };
    for (channel, payload) in frames {
        send(websocket::BINARY, &[&[*channel], payload.as_slice()].concat()).await?;
    }
    let mut channels = std::collections::BTreeMap::<u8, Vec<u8>>::new();
    let close = loop {
        let Some(Message { opcode, payload }) = websocket::take(&mut reader.buffer) else {
            if reader.more().await? {
                continue;
            }
            break "connection ended without a close frame".to_owned();
        };
        match opcode {
            websocket::CLOSE => {
                let code = payload.get(..2).map_or(0, |code| u16::from(code[0]) << 8 | u16::from(code[1]));
                send(websocket::CLOSE, &payload).await.ok();
                break format!("close {code}");
            }
            websocket::PING => send(websocket::PONG, &payload).await?,
            0..=2 => {
                if let Some((channel, rest)) = payload.split_first() {
                    channels.entry(*channel).or_default().extend(rest);
                }
            }
            _ => {}
        }
    };
    let mut text = Vec::new();
    for (channel, data) in channels {
        text.extend(format!("channel {channel}: {}\n", String::from_utf8_lossy(&data)).bytes());
    }
    text.extend(close.bytes());
    Ok(text)
}

// ---- HTTP/2 ----

async fn h2(stream: TlsStream<TcpStream>, target: &Target, request: &Request) -> Result<Answer, Broken> {
    let (mut client, connection) = h2::client::Builder::new()
        .initial_window_size(1 << 20)
        .initial_connection_window_size(1 << 22)
        .max_header_list_size(1 << 20)
        .handshake::<_, Bytes>(stream)
        .await
        .map_err(broken("HTTP/2 handshake"))?;
    let driver = tokio::spawn(connection);
    let answer = h2_exchange(&mut client, target, request).await;
    drop(client);
    driver.abort();
    answer
}

async fn h2_exchange(
    client: &mut h2::client::SendRequest<Bytes>,
    target: &Target,
    request: &Request,
) -> Result<Answer, Broken> {
    let uri = http::Uri::builder()
        .scheme("https")
        .authority(target.address.to_string())
        .path_and_query(request.target.as_str())
        .build()
        .map_err(broken("the case cannot be sent over HTTP/2"))?;
    let mut head = http::Request::builder().method(request.method.as_str()).uri(uri);
    for (name, value) in &request.headers {
        let name = http::HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes())
            .map_err(broken("the case cannot be sent over HTTP/2"))?;
        let value =
            http::HeaderValue::from_bytes(value).map_err(broken("the case cannot be sent over HTTP/2"))?;
        head = head.header(name, value);
    }
    let head = head.body(()).map_err(broken("the case cannot be sent over HTTP/2"))?;
    std::future::poll_fn(|context| client.poll_ready(context)).await.map_err(broken("HTTP/2 ready"))?;
    let empty = request.body.is_empty();
    let (response, mut sender) = client.send_request(head, empty).map_err(broken("HTTP/2 send"))?;
    let mut body = request.body.clone();
    let writing = async move {
        loop {
            if empty {
                break;
            }
            sender.reserve_capacity(body.len());
            let Some(Ok(room)) = std::future::poll_fn(|context| sender.poll_capacity(context)).await else {
                break;
            };
            let last = room >= body.len();
            let part = body.split_to(room.min(body.len()));
            if sender.send_data(part, last).is_err() || last {
                break;
            }
        }
        sender
    };
    let reading = async {
        let (head, mut stream) = response.await.map_err(broken("HTTP/2 answer"))?.into_parts();
        let mut answer = Answer {
            status: head.status.as_u16(),
            headers: head
                .headers
                .iter()
                .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
                .collect(),
            body: Vec::new(),
        };
        while let Some(chunk) = stream.data().await {
            let chunk = chunk.map_err(broken("HTTP/2 body"))?;
            stream.flow_control().release_capacity(chunk.len()).ok();
            answer.body.extend(&chunk);
            if matches!(request.until, Until::Lines(lines) if line_ends(&answer.body) >= lines) {
                break;
            }
        }
        Ok(answer)
    };
    tokio::pin!(reading);
    tokio::select! {
        answer = &mut reading => answer,
        _sender = writing => reading.await,
    }
}
