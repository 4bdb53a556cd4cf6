//! A fake kubelet for exec, attach, port-forward and logs, without containers.
//!
//! kube-apiserver connects to it because the node objects of the fixtures have its port. It implements the parts of
//! SPDY/3.1 and WebSocket that these need.
//!
//! | command | effect |
//! |---|---|
//! | any other, and attach | prints its arguments, echoes its input, exits with 0 |
//! | `fail` | prints its arguments, echoes its input, exits with 7 |
//! | `pipe` | echoes its input and prints nothing else |
//! | `test` | exits with 1 |
//! | `tar cf - PATH` | prints an archive of two files below PATH |
//! | `tar -xmf -` | reads an archive and lists it on standard error |
//! | `hold KEY` | prints its arguments, then waits until the client disconnects |
//! | `leave` | prints its arguments, then the kubelet closes the connection |
//! | `refuse CODE`, `redirect` | the kubelet responds with this status instead of switching protocols |
//! | `mute KEY` | the kubelet does not respond until it is released, then with 500 |
//!
//! | port | effect |
//! |---|---|
//! | any other | echoes |
//! | 81 | refused |
//! | 82 | sends a line and closes |
//! | 83 | the kubelet closes the connection |
//!
//! Tests can wait for commands with a key, and for ports by their number, with [`Sessions`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use testkit::pki::Issued;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot, watch};

use crate::client::digest;
use crate::listener::{Bound, Listener};
use crate::spdy::{self, Frame};
use crate::websocket::{self, Message, Role};

/// How long a session may take to reach a phase.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(20);

/// The progress of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Started,
    /// A case has released it.
    Released,
    /// Its connection is closed.
    Ended,
}

/// The phases of the sessions, by the key that the caller chose.
#[derive(Clone, Debug)]
pub(crate) struct Sessions(Arc<watch::Sender<BTreeMap<String, Phase>>>);

impl Sessions {
    /// Waits for a phase. Returns false on a timeout.
    pub(crate) async fn reaches(&self, key: &str, phase: Phase) -> bool {
        tokio::time::timeout(ARRIVAL_TIMEOUT, self.reached(key, phase)).await.is_ok()
    }

    async fn reached(&self, key: &str, phase: Phase) {
        let mut receiver = self.0.subscribe();
        receiver.wait_for(|sessions| sessions.get(key).is_some_and(|have| *have >= phase)).await.ok();
    }

    pub(crate) fn set(&self, key: &str, phase: Phase) {
        self.0.send_modify(|sessions| {
            sessions.insert(key.to_owned(), phase);
        });
    }

    /// Starts a session, which ends when the returned value is dropped.
    fn begin(&self, key: &str) -> Session {
        self.set(key, Phase::Started);
        Session { key: key.to_owned(), sessions: self.clone() }
    }
}

struct Session {
    key: String,
    sessions: Sessions,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.sessions.set(&self.key, Phase::Ended);
    }
}

/// The kubelet's listener, which serves until it is dropped.
#[derive(Debug)]
pub(crate) struct Kubelet {
    listener: Listener,
    pub(crate) sessions: Sessions,
}

impl Kubelet {
    pub(crate) fn start(runtime: &tokio::runtime::Runtime, certificate: &Issued) -> Result<Self, String> {
        let sessions = Sessions(Arc::new(watch::channel(BTreeMap::new()).0));
        let seen = sessions.clone();
        let listener = Bound::new(runtime)?.serve(runtime, certificate, move |stream| {
            let seen = seen.clone();
            async move {
                // Clients may disconnect at any time.
                serve(stream, &seen).await.ok();
            }
        })?;
        Ok(Self { listener, sessions })
    }

    pub(crate) fn port(&self) -> u16 {
        self.listener.port
    }
}

/// The relevant parts of a request.
struct Head {
    path: String,
    query: Vec<(String, String)>,
    headers: Vec<(String, String)>,
}

impl Head {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(have, _)| have.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    fn is_set(&self, key: &str) -> bool {
        self.query.iter().any(|(have, value)| have == key && matches!(value.as_str(), "1" | "true"))
    }

    fn value(&self, key: &str) -> Option<&str> {
        self.query.iter().find(|(have, _)| have == key).map(|(_, value)| value.as_str())
    }

    fn command(&self) -> Vec<&str> {
        self.query.iter().filter(|(key, _)| key == "command").map(|(_, value)| value.as_str()).collect()
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, sessions: &Sessions) -> std::io::Result<()> {
    let head = read_head(&mut stream).await?;
    let upgrade = head.header("upgrade").unwrap_or_default().to_ascii_lowercase();
    let (first, second) = (head.command().first().copied(), head.command().get(1).copied());
    if head.path.starts_with("/containerLogs/") {
        logs(&mut stream, &head, sessions).await?;
    } else if let (Some("redirect"), _) = (first, second) {
        stream.write_all(b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n").await?;
    } else if let (Some("refuse"), Some(code)) = (first, second) {
        refuse(&mut stream, code).await?;
    } else if let (Some("mute"), Some(key)) = (first, second) {
        let session = sessions.begin(key);
        tokio::select! {
            () = sessions.reached(key, Phase::Released) => refuse(&mut stream, "500").await?,
            _gone = stream.read_u8() => {}
        }
        drop(session);
    } else if head.path.starts_with("/portForward/") && upgrade == "spdy/3.1" {
        switch(&mut stream, "SPDY/3.1", &[("X-Stream-Protocol-Version", "portforward.k8s.io")]).await?;
        return forward(stream, false, sessions).await;
    } else if head.path.starts_with("/portForward/")
        && head.header("sec-websocket-protocol").is_some_and(|protocols| protocols.starts_with("SPDY/3.1+"))
    {
        accept_websocket(&mut stream, &head).await?;
        return forward(stream, true, sessions).await;
    } else if upgrade == "spdy/3.1" {
        return exec_spdy(stream, &head, sessions).await;
    } else if upgrade == "websocket" && head.path.starts_with("/portForward/") {
        return forward_websocket(stream, &head).await;
    } else if upgrade == "websocket" {
        return exec_websocket(stream, &head, sessions).await;
    } else {
        stream.write_all(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").await?;
    }
    stream.flush().await?;
    stream.shutdown().await
}

async fn refuse<S: AsyncWrite + Unpin>(stream: &mut S, code: &str) -> std::io::Result<()> {
    let body = format!("the kubelet answers {code}\n");
    let answer = format!(
        "HTTP/1.1 {code} No\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await
}

/// Responds with two lines: as chunks with `follow`, and without end if there is also `limitBytes`, which is the key.
async fn logs<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    head: &Head,
    sessions: &Sessions,
) -> std::io::Result<()> {
    const LINES: [&str; 2] = ["first line\n", "second line\n"];
    if !head.is_set("follow") {
        let body = LINES.concat();
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        return stream.write_all(answer.as_bytes()).await;
    }
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await?;
    for line in LINES {
        stream.write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes()).await?;
        stream.flush().await?;
    }
    if let Some(key) = head.value("limitBytes") {
        let _session = sessions.begin(key);
        let _gone = stream.read_u8().await;
        return Ok(());
    }
    stream.write_all(b"0\r\n\r\n").await
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
            .map(|(key, value)| (key.to_owned(), value.replace('+', " ").replace("%2F", "/")))
            .collect(),
        headers: lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    })
}

// ---- commands ----

/// Queued output. Nothing is written after a hang-up.
enum Write {
    Bytes(Vec<u8>),
    HangUp,
}

/// The output of a command, and its stream protocol.
struct Output {
    queue: mpsc::Sender<Write>,
    wire: Wire,
}

enum Wire {
    /// The stream of each role.
    Spdy(BTreeMap<String, u32>),
    WebSocket,
}

impl Output {
    async fn write(&self, role: &str, bytes: &[u8]) {
        for piece in bytes.chunks(32 * 1024) {
            self.piece(role, false, piece).await;
        }
    }

    async fn piece(&self, role: &str, last: bool, piece: &[u8]) {
        let bytes = match &self.wire {
            Wire::Spdy(streams) => {
                let Some(id) = streams.get(role) else { return };
                spdy::data(*id, last, piece)
            }
            Wire::WebSocket if piece.is_empty() => return,
            Wire::WebSocket => {
                let channel = match role {
                    "stdout" => 1,
                    "stderr" => 2,
                    _ => 3,
                };
                websocket::message(Role::Server, websocket::BINARY, &[&[channel], piece].concat())
            }
        };
        self.queue.send(Write::Bytes(bytes)).await.ok();
    }

    /// Ends all streams.
    async fn exit(&self, code: u8) {
        for role in ["stdout", "stderr"] {
            self.piece(role, true, &[]).await;
        }
        let status = if code == 0 {
            r#"{"metadata":{},"status":"Success"}"#.to_owned()
        } else {
            format!(
                concat!(
                    r#"{{"metadata":{{}},"status":"Failure","message":"command terminated with exit code {}","#,
                    r#""reason":"NonZeroExitCode","details":{{"causes":[{{"reason":"ExitCode","message":"{}"}}]}}}}"#
                ),
                code, code
            )
        };
        self.piece("error", true, status.as_bytes()).await;
        if let Wire::WebSocket = self.wire {
            let close = websocket::message(Role::Server, websocket::CLOSE, &1000_u16.to_be_bytes());
            self.queue.send(Write::Bytes(close)).await.ok();
        }
    }
}

/// Runs a command. `input` ends with standard input.
async fn command(head: &Head, mut input: mpsc::Receiver<Vec<u8>>, output: Output, sessions: &Sessions) {
    let words = head.command();
    let banner = async || {
        output.write("stdout", format!("ran {}\n", words.join(" ")).as_bytes()).await;
    };
    match words.as_slice() {
        ["pipe"] => {
            while let Some(bytes) = input.recv().await {
                output.write("stdout", &bytes).await;
            }
            output.exit(0).await;
        }
        ["test", ..] => output.exit(1).await,
        ["tar", "cf", "-", path] => {
            output.write("stdout", &archive(path)).await;
            output.exit(0).await;
        }
        ["tar", "-xmf", "-", ..] => {
            let mut bytes = Vec::new();
            while let Some(more) = input.recv().await {
                bytes.extend(more);
            }
            output.write("stderr", contents(&bytes).as_bytes()).await;
            output.exit(0).await;
        }
        ["hold", key] => {
            let _session = sessions.begin(key);
            banner().await;
            std::future::pending::<()>().await;
        }
        ["leave"] => {
            banner().await;
            output.queue.send(Write::HangUp).await.ok();
        }
        words => {
            banner().await;
            while let Some(bytes) = input.recv().await {
                output.write("stdout", &bytes).await;
            }
            output.write("stderr", b"to stderr\n").await;
            output.exit(if words.first() == Some(&"fail") { 7 } else { 0 }).await;
        }
    }
}

/// The output of `tar cf - PATH`.
fn archive(path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, content) in [("one.txt", b"one\n".to_vec()), ("deep/two.bin", noise(300_000))] {
        let mut header = vec![0; 512];
        let mut field = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
        field(0, &format!("{path}/{name}"));
        field(100, "0000644\0");
        field(108, "0000000\0");
        field(116, "0000000\0");
        field(124, &format!("{:011o}\0", content.len()));
        field(136, "00000000000\0");
        field(148, "        ");
        field(156, "0");
        field(257, "ustar\u{0}00");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes.extend(header);
        bytes.extend(&content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// The files of an archive, with their lengths and digests.
fn contents(mut archive: &[u8]) -> String {
    let mut text = String::new();
    while let Some((header, rest)) = archive.split_at_checked(512) {
        let until_nul = |from: usize, length: usize| {
            let field = header[from..from + length].split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(field).trim().to_owned()
        };
        let name = until_nul(0, 100);
        let length = usize::from_str_radix(&until_nul(124, 12), 8).unwrap_or_default();
        if name.is_empty() {
            break;
        }
        let content = rest.get(..length);
        let shown = content.map_or("cut short".to_owned(), digest);
        text.push_str(&format!("received {name}: {shown}\n"));
        archive = rest.get(length.next_multiple_of(512)..).unwrap_or_default();
    }
    text
}

/// Incompressible bytes, equal in every run.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

// ---- transports ----

async fn switch<S: AsyncWrite + Unpin>(
    stream: &mut S,
    protocol: &str,
    headers: &[(&str, &str)],
) -> std::io::Result<()> {
    let mut answer =
        format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n");
    for (name, value) in headers {
        answer.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{answer}\r\n").as_bytes()).await?;
    stream.flush().await
}

/// Writes the queued output, until a hang-up.
async fn write_queue<W: AsyncWrite + Unpin>(
    mut stream: W,
    mut queue: mpsc::Receiver<Write>,
) -> std::io::Result<()> {
    while let Some(Write::Bytes(bytes)) = queue.recv().await {
        stream.write_all(&bytes).await?;
        stream.flush().await?;
    }
    Ok(())
}

async fn exec_spdy<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    head: &Head,
    sessions: &Sessions,
) -> std::io::Result<()> {
    switch(&mut stream, "SPDY/3.1", &[("X-Stream-Protocol-Version", "v4.channel.k8s.io")]).await?;
    let mut expected = vec!["error"];
    for (role, key) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error")] {
        if head.is_set(key) && !(role == "stderr" && head.is_set("tty")) {
            expected.push(role);
        }
    }
    let (mut read, write) = tokio::io::split(stream);
    let (queue, queued) = mpsc::channel(16);
    let (typed, input) = mpsc::channel(16);
    let (opened, all_open) = oneshot::channel();
    let replies = queue.clone();
    let reading = async move {
        let (mut writer, mut reader) = (spdy::Writer::new(), spdy::Reader::default());
        let mut streams = BTreeMap::new();
        let mut opened = Some(opened);
        let mut typed = head.is_set("input").then_some(typed);
        let mut buffer = Vec::new();
        loop {
            let Some(frame) = spdy::take(&mut buffer) else {
                if read.read_buf(&mut buffer).await? == 0 {
                    return Ok(());
                }
                continue;
            };
            let reply = match frame {
                Frame::Open { id, block, .. } => {
                    let role = reader.read(&block).remove("streamtype").unwrap_or_default();
                    streams.insert(role, id);
                    Some(writer.reply(id))
                }
                Frame::Ping(payload) => Some(spdy::ping(&payload)),
                Frame::Data { id, last, payload } if streams.get("stdin") == Some(&id) => {
                    if let Some(typed) = typed.as_ref().filter(|_| !payload.is_empty()) {
                        typed.send(payload).await.ok();
                    }
                    if last {
                        typed = None;
                    }
                    None
                }
                Frame::Data { .. } | Frame::Reset { .. } | Frame::Other => None,
            };
            if let Some(reply) = reply {
                replies.send(Write::Bytes(reply)).await.ok();
            }
            if expected.iter().all(|role| streams.contains_key(*role))
                && let Some(opened) = opened.take()
            {
                opened.send(streams.clone()).ok();
            }
        }
    };
    let running = async {
        if let Ok(streams) = all_open.await {
            command(head, input, Output { queue, wire: Wire::Spdy(streams) }, sessions).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        done = reading => done,
        done = write_queue(write, queued) => done,
        () = running => Ok(()),
    }
}

async fn exec_websocket<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    head: &Head,
    sessions: &Sessions,
) -> std::io::Result<()> {
    let protocol = accept_websocket(&mut stream, head).await?;
    let (mut read, write) = tokio::io::split(stream);
    let (queue, queued) = mpsc::channel(16);
    let (typed, input) = mpsc::channel(16);
    let replies = queue.clone();
    let reading = async move {
        let mut typed = head.is_set("input").then_some(typed);
        let mut buffer = Vec::new();
        loop {
            let Some(Message { opcode, payload }) = websocket::take(&mut buffer) else {
                if read.read_buf(&mut buffer).await? == 0 {
                    return Ok(());
                }
                continue;
            };
            match (opcode, payload.split_first()) {
                (websocket::CLOSE, _) => return Ok(()),
                (websocket::PING, _) => {
                    let pong = websocket::message(Role::Server, websocket::PONG, &payload);
                    replies.send(Write::Bytes(pong)).await.ok();
                }
                (_, Some((0, bytes))) => {
                    if let Some(typed) = &typed {
                        typed.send(bytes.to_vec()).await.ok();
                    }
                    // Before v5, a client cannot close its input: the first message is the whole input.
                    if protocol != "v5.channel.k8s.io" {
                        typed = None;
                    }
                }
                (_, Some((255, [0]))) => typed = None,
                _ => {}
            }
        }
    };
    let running = async {
        command(head, input, Output { queue, wire: Wire::WebSocket }, sessions).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        done = reading => done,
        done = write_queue(write, queued) => done,
        () = running => Ok(()),
    }
}

/// Accepts the upgrade with the first offered protocol.
async fn accept_websocket<S: AsyncWrite + Unpin>(stream: &mut S, head: &Head) -> std::io::Result<String> {
    let accept = websocket::accept(head.header("sec-websocket-key").unwrap_or_default());
    let offered = head.header("sec-websocket-protocol").unwrap_or_default();
    let protocol = offered.split(',').map(str::trim).next().unwrap_or_default().to_owned();
    let headers = [("Sec-WebSocket-Accept", accept.as_str()), ("Sec-WebSocket-Protocol", &protocol)];
    switch(stream, "websocket", &headers).await?;
    Ok(protocol)
}

/// Port-forward with SPDY, possibly in WebSocket messages. Each connection has two streams, for errors and for data.
async fn forward<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    tunnelled: bool,
    sessions: &Sessions,
) -> std::io::Result<()> {
    let (mut read, write) = tokio::io::split(stream);
    let (queue, queued) = mpsc::channel(16);
    let reading = async move {
        let (mut writer, mut reader) = (spdy::Writer::new(), spdy::Reader::default());
        // Error streams by request ID, and by the data stream of the same connection.
        let (mut errors, mut pairs) = (BTreeMap::new(), BTreeMap::new());
        let mut held = Vec::new();
        let (mut wrapped, mut buffer) = (Vec::new(), Vec::new());
        loop {
            let Some(frame) = spdy::take(&mut buffer) else {
                match tunnelled.then(|| websocket::take(&mut wrapped)).flatten() {
                    Some(Message { opcode: websocket::CLOSE, .. }) => return Ok(()),
                    Some(Message { payload, .. }) => buffer.extend(payload),
                    None => {
                        let into = if tunnelled { &mut wrapped } else { &mut buffer };
                        if read.read_buf(into).await? == 0 {
                            return Ok(());
                        }
                    }
                }
                continue;
            };
            let mut frames = Vec::new();
            match frame {
                Frame::Open { id, block, .. } => {
                    let headers = reader.read(&block);
                    let value = |name: &str| headers.get(name).cloned().unwrap_or_default();
                    frames.push(writer.reply(id));
                    if value("streamtype") == "error" {
                        errors.insert(value("requestid"), id);
                    } else if let Some(error) = errors.remove(&value("requestid")) {
                        match value("port").as_str() {
                            "81" => {
                                frames.push(spdy::data(error, true, b"port 81 is refused"));
                                frames.push(spdy::data(id, true, &[]));
                            }
                            "82" => {
                                frames.push(spdy::data(id, true, b"good bye\n"));
                                frames.push(spdy::data(error, true, &[]));
                            }
                            "83" => return Ok(()),
                            port => {
                                held.push(sessions.begin(&format!("port {port}")));
                                pairs.insert(id, error);
                            }
                        }
                    }
                }
                Frame::Ping(payload) => frames.push(spdy::ping(&payload)),
                Frame::Data { id, last, payload } => {
                    if let Some(error) = pairs.get(&id) {
                        frames.push(spdy::data(id, last, &payload));
                        if last {
                            frames.push(spdy::data(*error, true, &[]));
                        }
                    }
                }
                Frame::Reset { .. } | Frame::Other => {}
            }
            for frame in frames {
                let message = || websocket::message(Role::Server, websocket::BINARY, &frame);
                let bytes = if tunnelled { message() } else { frame };
                queue.send(Write::Bytes(bytes)).await.ok();
            }
        }
    };
    tokio::select! {
        done = reading => done,
        done = write_queue(write, queued) => done,
    }
}

/// Port-forward with WebSocket channels: two per port, which begin with the port number. Echoes one message.
async fn forward_websocket<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    head: &Head,
) -> std::io::Result<()> {
    accept_websocket(&mut stream, head).await?;
    let port: u16 = head.value("port").and_then(|port| port.parse().ok()).unwrap_or_default();
    let [low, high] = port.to_le_bytes();
    for channel in [0, 1] {
        let message = websocket::message(Role::Server, websocket::BINARY, &[channel, low, high]);
        stream.write_all(&message).await?;
    }
    stream.flush().await?;
    let mut buffer = Vec::new();
    loop {
        match websocket::take(&mut buffer) {
            Some(Message { opcode: websocket::BINARY, payload }) => {
                stream.write_all(&websocket::message(Role::Server, websocket::BINARY, &payload)).await?;
                let close = websocket::message(Role::Server, websocket::CLOSE, &1000_u16.to_be_bytes());
                stream.write_all(&close).await?;
                stream.flush().await?;
            }
            Some(Message { opcode: websocket::CLOSE, .. }) => return stream.shutdown().await,
            Some(_) => {}
            None => {
                if stream.read_buf(&mut buffer).await? == 0 {
                    return Ok(());
                }
            }
        }
    }
}
