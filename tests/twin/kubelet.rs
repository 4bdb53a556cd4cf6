//! A kubelet that pretends: it lets exec, attach and logs reach a far end without a container.
//!
//! kube-apiserver dials it because the fixtures' node names its port. It speaks just enough of SPDY/3.1 and of WebSocket: every
//! command prints its arguments, echoes its standard input, and succeeds unless it is called `fail`.

use std::sync::Arc;

use base64::Engine as _;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::pki::Issued;

/// A listener on a port of its own, served until it is dropped.
#[derive(Debug)]
pub(crate) struct Kubelet {
    port: u16,
    task: tokio::task::JoinHandle<()>,
}

impl Kubelet {
    pub(crate) fn start(runtime: &tokio::runtime::Runtime, certificate: &Issued) -> Result<Self, String> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_single_cert(certificate.chain.clone(), certificate.key.clone_key())
            .map_err(|error| error.to_string())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener =
            runtime.block_on(TcpListener::bind("127.0.0.1:0")).map_err(|error| error.to_string())?;
        let port = listener.local_addr().map_err(|error| error.to_string())?.port();
        let task = runtime.spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(tcp).await {
                        // A client that goes away is its own affair.
                        serve(stream).await.ok();
                    }
                });
            }
        });
        Ok(Self { port, task })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The parts of a request that matter here.
struct Head {
    path: String,
    query: Vec<(String, String)>,
    headers: Vec<(String, String)>,
}

impl Head {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(have, _)| have.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    fn asks(&self, key: &str) -> bool {
        self.query.iter().any(|(have, value)| have == key && matches!(value.as_str(), "1" | "true"))
    }

    fn command(&self) -> Vec<&str> {
        self.query.iter().filter(|(key, _)| key == "command").map(|(_, value)| value.as_str()).collect()
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> std::io::Result<()> {
    let head = read_head(&mut stream).await?;
    let upgrade = head.header("upgrade").unwrap_or_default().to_ascii_lowercase();
    if head.path.starts_with("/containerLogs/") {
        let body = "first line\nsecond line\n";
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).await?;
    } else if head.command().first() == Some(&"redirect") {
        stream.write_all(b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n").await?;
    } else if upgrade == "spdy/3.1" {
        spdy(&mut stream, &head).await?;
    } else if upgrade == "websocket" {
        websocket(&mut stream, &head).await?;
    } else {
        stream.write_all(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").await?;
    }
    stream.flush().await?;
    stream.shutdown().await
}

async fn read_head<S: AsyncRead + Unpin>(stream: &mut S) -> std::io::Result<Head> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(stream.read_u8().await?);
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let mut lines = text.lines();
    let target = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    Ok(Head {
        path: path.to_owned(),
        query: query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.replace('+', " ")))
            .collect(),
        headers: lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    })
}

fn status(head: &Head) -> &'static str {
    if head.command().first() == Some(&"fail") {
        concat!(
            r#"{"metadata":{},"status":"Failure","message":"command terminated with exit code 7","reason":"NonZeroExitCode","#,
            r#""details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#
        )
    } else {
        r#"{"metadata":{},"status":"Success"}"#
    }
}

// ---- SPDY/3.1 ----

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const PING: u16 = 6;

/// Clients open their streams in a fixed order (error, stdin, stdout, stderr), so their compressed headers need not be read.
async fn spdy<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, head: &Head) -> std::io::Result<()> {
    stream
        .write_all(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
              X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n",
        )
        .await?;
    stream.flush().await?;
    let mut roles = vec!["error"];
    for (role, key) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error")] {
        if head.asks(key) && !(role == "stderr" && head.asks("tty")) {
            roles.push(role);
        }
    }
    let mut compress = flate2::Compress::new(flate2::Compression::fast(), true);
    let mut streams: Vec<u32> = Vec::new();
    let mut input = Vec::new();
    let mut input_ended = !head.asks("input");
    let mut answered = false;
    loop {
        let mut frame = [0; 8];
        if stream.read_exact(&mut frame).await.is_err() {
            return Ok(());
        }
        let length = usize::from(frame[5]) << 16 | usize::from(frame[6]) << 8 | usize::from(frame[7]);
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await?;
        let number = |bytes: &[u8]| bytes.iter().take(4).fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte));
        if frame[0] & 0x80 == 0 {
            let id = number(&frame);
            if roles.iter().zip(&streams).any(|(role, have)| *role == "stdin" && *have == id) {
                input.extend(&payload);
                input_ended |= frame[4] & 1 != 0;
            }
        } else {
            match u16::from(frame[2]) << 8 | u16::from(frame[3]) {
                SYN_STREAM => {
                    let id = number(&payload);
                    streams.push(id);
                    // An empty header block: a count of zero.
                    let mut block = Vec::with_capacity(64);
                    compress.compress_vec(&[0; 4], &mut block, flate2::FlushCompress::Sync)?;
                    let mut reply = id.to_be_bytes().to_vec();
                    reply.extend(block);
                    control(stream, SYN_REPLY, &reply).await?;
                }
                PING => control(stream, PING, &payload).await?,
                _ => {}
            }
        }
        if !answered && streams.len() >= roles.len() && input_ended {
            answered = true;
            for (role, id) in roles.iter().zip(&streams) {
                match *role {
                    "stdout" => {
                        let mut output = format!("ran {}\n", head.command().join(" ")).into_bytes();
                        output.extend(&input);
                        data(stream, *id, &output).await?;
                    }
                    "stderr" => data(stream, *id, b"to stderr\n").await?,
                    _ => {}
                }
            }
            if let Some(error) = streams.first() {
                data(stream, *error, status(head).as_bytes()).await?;
            }
            stream.flush().await?;
        }
    }
}

async fn control<S: AsyncWrite + Unpin>(stream: &mut S, kind: u16, payload: &[u8]) -> std::io::Result<()> {
    let mut frame = vec![0x80, 3];
    frame.extend(kind.to_be_bytes());
    frame.push(0);
    frame.extend(length24(payload.len()));
    frame.extend(payload);
    stream.write_all(&frame).await?;
    stream.flush().await
}

/// One DATA frame that ends the stream.
async fn data<S: AsyncWrite + Unpin>(stream: &mut S, id: u32, payload: &[u8]) -> std::io::Result<()> {
    let mut frame = id.to_be_bytes().to_vec();
    frame.push(1);
    frame.extend(length24(payload.len()));
    frame.extend(payload);
    stream.write_all(&frame).await
}

fn length24(length: usize) -> [u8; 3] {
    let bytes = u32::try_from(length).expect("a short test payload").to_be_bytes();
    [bytes[1], bytes[2], bytes[3]]
}

// ---- WebSocket ----

async fn websocket<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, head: &Head) -> std::io::Result<()> {
    let mut accept = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY);
    accept.update(head.header("sec-websocket-key").unwrap_or_default().as_bytes());
    accept.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let accept = base64::engine::general_purpose::STANDARD.encode(accept.finish());
    let offered = head.header("sec-websocket-protocol").unwrap_or_default();
    let protocol = offered.split(',').map(str::trim).next().unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.flush().await?;
    let mut output = format!("ran {}\n", head.command().join(" ")).into_bytes();
    if head.asks("input") {
        // One frame of input is enough to show that it arrives.
        let first = stream.read_u8().await?;
        let length = stream.read_u8().await? & 0x7f;
        let mut mask = [0; 4];
        stream.read_exact(&mut mask).await?;
        let mut payload = vec![0; usize::from(length)];
        stream.read_exact(&mut payload).await?;
        for (byte, mask) in payload.iter_mut().zip(mask.iter().cycle()) {
            *byte ^= mask;
        }
        if first & 0x0f == 2 {
            output.extend(payload.iter().skip(1));
        }
    }
    frame(stream, 2, &[&[1], output.as_slice()].concat()).await?;
    frame(stream, 2, &[&[3], status(head).as_bytes()].concat()).await?;
    frame(stream, 8, &1000_u16.to_be_bytes()).await?;
    stream.flush().await?;
    // Until the client closes too.
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.ok();
    Ok(())
}

async fn frame<S: AsyncWrite + Unpin>(stream: &mut S, opcode: u8, payload: &[u8]) -> std::io::Result<()> {
    let mut bytes = vec![0x80 | opcode];
    match u8::try_from(payload.len()) {
        Ok(short) if short < 126 => bytes.push(short),
        _ => {
            bytes.push(0x7e);
            bytes.extend(u16::try_from(payload.len()).expect("a short test payload").to_be_bytes());
        }
    }
    bytes.extend(payload);
    stream.write_all(&bytes).await
}
