//! Tests of exec, port-forward and log streams that observe both ends: the client writes its own frames, and the fake
//! kubelet reports the state of its sessions.
//!
//! A case runs on the reference and on the subject and writes a transcript; the two transcripts must be equal.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use libtest_mimic::Failed;
use tokio::io::{AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::client::{self, Reader, Request, Until, Version, digest};
use crate::compare;
use crate::kubelet::{Phase, noise};
use crate::run::{Compared, side_of};
use crate::servers::{Side, TwinServers};
use crate::spdy::{self, Frame};
use crate::websocket::{self, Message, Role};

/// The timeout of a case on one side.
const DEADLINE: Duration = Duration::from_secs(40);

/// The client's stream protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamProtocol {
    /// The channels of `v5.channel.k8s.io`, which kube-apiserver translates to SPDY unless the kubelet is modern.
    V5,
    /// The channels of `v4.channel.k8s.io`, which kube-apiserver forwards to the kubelet without translation.
    V4,
    /// SPDY after an HTTP upgrade.
    Spdy,
    /// SPDY in WebSocket messages; only for port-forward.
    Tunnelled,
}

/// A pod of the fixtures.
type Pod = &'static str;

const EXEC: &[(StreamProtocol, Pod)] = &[
    (StreamProtocol::V5, "running"),
    (StreamProtocol::V4, "running"),
    (StreamProtocol::Spdy, "running"),
    (StreamProtocol::V5, "modern"),
];
const FORWARD: &[(StreamProtocol, Pod)] = &[
    (StreamProtocol::Spdy, "running"),
    (StreamProtocol::Tunnelled, "running"),
    (StreamProtocol::Tunnelled, "modern"),
];

/// The client's actions.
#[derive(Clone, Copy, Debug)]
enum Scenario {
    /// Runs the command and reads to the end.
    Exec { command: &'static str, input: &'static [u8] },
    /// Runs `hold`, and disconnects while the command runs.
    ExecDisconnect { reset: bool },
    /// Runs `mute`, checks that there is no response, then releases the kubelet. (Neither kube-apiserver nor the
    /// gateway notices that the client disconnects before the kubelet has responded.)
    ExecMute,
    /// Sends this many bytes to the port and reads to the end.
    Forward { port: u16, length: usize },
    /// Opens two connections in one tunnel.
    ForwardTwice,
    /// The kubelet closes its connection during the transfer.
    ForwardKubeletDisconnect,
    /// Disconnects during the transfer.
    ForwardDisconnect { reset: bool },
    /// Follows logs without end, and disconnects.
    LogsDisconnect { version: Version },
}

/// One scenario over one protocol.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    protocol: StreamProtocol,
    pod: Pod,
    scenario: Scenario,
    contains: &'static [&'static str],
}

pub(crate) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: &str,
                   protocols: &[(StreamProtocol, Pod)],
                   scenario: Scenario,
                   contains: &'static [&'static str]| {
        for (protocol, pod) in protocols {
            let name = match scenario {
                Scenario::LogsDisconnect { .. } => name.to_owned(),
                _ if *pod == "running" => format!("{name} {protocol:?}").to_lowercase(),
                _ => format!("{name} {protocol:?} {pod}").to_lowercase(),
            };
            cases.push(Case { name, protocol: *protocol, pod, scenario, contains });
        }
    };
    let exec = |command, input| Scenario::Exec { command, input };
    add("exec", EXEC, exec("echo hello", b""), &["ran echo hello", "to stderr", "Success"]);
    add("exec with input", EXEC, exec("cat", b"typed\n"), &["typed", "Success"]);
    add("exec failing", EXEC, exec("fail", b""), &["to stderr", "NonZeroExitCode"]);
    add("exec closed by the kubelet", EXEC, exec("leave", b""), &["ran leave"]);
    add("exec refused with 403", EXEC, exec("refuse 403", b""), &["status: "]);
    add("exec refused with 500", EXEC, exec("refuse 500", b""), &["status: "]);
    add("exec redirected", EXEC, exec("redirect", b""), &["status: "]);
    add("exec of a mute kubelet", EXEC, Scenario::ExecMute, &["nothing yet"]);
    add("exec disconnect", EXEC, Scenario::ExecDisconnect { reset: false }, &["the kubelet sees the end"]);
    add("exec reset", EXEC, Scenario::ExecDisconnect { reset: true }, &["the kubelet sees the end"]);
    let forward = |port, length| Scenario::Forward { port, length };
    add("port forward", FORWARD, forward(80, 20), &["data: 20 bytes", "error: 0 bytes"]);
    add("port forward of a mebibyte", FORWARD, forward(80, 1 << 20), &["data: 1048576 bytes"]);
    add("port forward of nothing", FORWARD, forward(80, 0), &["data: 0 bytes, ended"]);
    add("port forward to a refused port", FORWARD, forward(81, 20), &["port 81 is refused"]);
    add("port forward closed by the far end", FORWARD, forward(82, 0), &["good bye"]);
    add(
        "port forward closed by the kubelet",
        FORWARD,
        Scenario::ForwardKubeletDisconnect,
        &["connection ended"],
    );
    add("two connections to ports", FORWARD, Scenario::ForwardTwice, &["first: one", "second: two"]);
    add(
        "port forward disconnect",
        FORWARD,
        Scenario::ForwardDisconnect { reset: false },
        &["the kubelet sees the end"],
    );
    add(
        "port forward reset",
        FORWARD,
        Scenario::ForwardDisconnect { reset: true },
        &["the kubelet sees the end"],
    );
    for (name, version) in [("logs disconnect h1", Version::H1), ("logs disconnect h2", Version::H2)] {
        add(
            name,
            &[(StreamProtocol::V5, "running")],
            Scenario::LogsDisconnect { version },
            &["second line", "the kubelet sees the end"],
        );
    }
    cases
}

/// Plays the case on both sides and returns the differences.
pub(crate) async fn run(servers: &TwinServers, case: &Case, side: Side) -> Result<Compared, Failed> {
    let (reference, subject) =
        tokio::join!(transcript(servers, case, Side::Reference), transcript(servers, case, side));
    let (reference, subject) = (reference?, subject?);
    for text in case.contains {
        if !reference.contains(text) {
            return Err(format!("the reference's transcript does not contain {text:?}\n{reference}").into());
        }
    }
    let same = reference == subject;
    let differences =
        if same { vec![] } else { vec![format!("reference:\n{reference}\nsubject:\n{subject}")] };
    Ok(Compared { differences, last: 0 })
}

async fn transcript(servers: &TwinServers, case: &Case, side: Side) -> Result<String, Failed> {
    let (target, values) = side_of(servers, side)?;
    let client = Client {
        servers,
        protocol: case.protocol,
        pod: case.pod,
        target,
        number: values.unique.replace("uniq", "1"),
    };
    let mut lines = Vec::new();
    let outcome = tokio::time::timeout(DEADLINE, client.play(case.scenario, &mut lines)).await;
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(failed)) => return Err(failed),
        Err(_) => lines.push(format!("not finished after {DEADLINE:?}")),
    }
    Ok(compare::normalise(&lines.join("\n").replace(&client.number, "{number}"), &values))
}

struct Client<'a> {
    servers: &'a TwinServers,
    protocol: StreamProtocol,
    pod: Pod,
    target: &'a client::Target,
    /// The key of the session, unique for every run.
    number: String,
}

impl Client<'_> {
    async fn play(&self, scenario: Scenario, lines: &mut Vec<String>) -> Result<(), Failed> {
        let sessions = &self.servers.kubelet.sessions;
        let seen_ending = async |key: &str| {
            if sessions.reaches(key, Phase::Ended).await {
                "the kubelet sees the end".to_owned()
            } else {
                "the kubelet does not see the end".to_owned()
            }
        };
        match scenario {
            Scenario::Exec { command, input } => {
                if let Some(mut tunnel) = self.exec(command, !input.is_empty(), lines).await? {
                    tunnel.send_stdin(input).await;
                    lines.extend(tunnel.read_to_end().await);
                }
            }
            Scenario::ExecDisconnect { reset } => {
                let Some(mut tunnel) = self.exec(&format!("hold {}", self.number), false, lines).await?
                else {
                    return Ok(());
                };
                lines.push(format!("output: {}", tunnel.first_output().await));
                lines.push(format!("started: {}", sessions.reaches(&self.number, Phase::Started).await));
                tunnel.disconnect(reset);
                lines.push(seen_ending(&self.number).await);
            }
            Scenario::ExecMute => {
                let command = format!("mute {}", self.number);
                // In v5, kube-apiserver responds to the client's upgrade before it connects to the kubelet.
                let answering = async {
                    let mut lines = Vec::new();
                    if let Some(mut tunnel) = self.exec(&command, false, &mut lines).await? {
                        lines.extend(tunnel.read_to_end().await);
                    }
                    Ok::<_, Failed>(lines)
                };
                let mut answering = std::pin::pin!(answering);
                let waiting = async {
                    let started = sessions.reaches(&self.number, Phase::Started).await;
                    // Waits for a response that must not arrive.
                    let ever = std::future::pending::<()>();
                    tokio::time::timeout(Duration::from_millis(300), ever).await.ok();
                    started
                };
                tokio::select! {
                    early = &mut answering => lines.push(format!("too early: {:?}", early?)),
                    started = waiting => {
                        lines.push(if started { "nothing yet" } else { "never called" }.to_owned());
                        sessions.set(&self.number, Phase::Released);
                        lines.extend(answering.await?);
                    }
                }
            }
            Scenario::Forward { port, length } => {
                if let Some(mut tunnel) = self.forward(lines).await? {
                    let found = tunnel.connection(port, &noise(length)).await;
                    lines.extend(found);
                }
            }
            Scenario::ForwardTwice => {
                if let Some(mut tunnel) = self.forward(lines).await? {
                    let ids = [tunnel.connect(80, 0).await, tunnel.connect(81, 1).await];
                    let third = tunnel.connect(8080, 2).await;
                    tunnel.send(&spdy::data(third.1, true, b"two")).await;
                    tunnel.send(&spdy::data(ids[0].1, true, b"one")).await;
                    let all = [ids[0].0, ids[0].1, ids[1].0, ids[1].1, third.0, third.1];
                    let (streams, end) = tunnel.collect(&all).await;
                    for (name, id) in [("first", all[1]), ("refused", all[2]), ("second", all[5])] {
                        let text = streams.get(&id).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
                        lines.push(format!("{name}: {}", text.unwrap_or_default()));
                    }
                    lines.push(end);
                }
            }
            Scenario::ForwardKubeletDisconnect => {
                let Some(mut tunnel) = self.forward(lines).await? else {
                    return Ok(());
                };
                let (error, data) = tunnel.connect(83, 0).await;
                // kube-apiserver closes a WebSocket tunnel only after another message from the client: its `Close`
                // waits for the lock that its `Read` holds (streamtunnel.go, tunnelingWebsocketUpgraderConn).
                let mut pings = tokio::time::interval(Duration::from_millis(50));
                let ids = [error, data];
                let reading = collect(&mut tunnel.reader, &mut tunnel.spdy, tunnel.protocol, &ids);
                let mut reading = std::pin::pin!(reading);
                let (streams, end) = loop {
                    tokio::select! {
                        found = &mut reading => break found,
                        _ = pings.tick() => {
                            write(&mut tunnel.write, tunnel.protocol, &spdy::ping(&[0, 0, 0, 1])).await;
                        }
                    }
                };
                lines.push(format!("{streams:?}, {end}"));
            }
            Scenario::ForwardDisconnect { reset } => {
                let port = u16::try_from(20_000 + self.number.parse::<u64>()? % 40_000)?;
                let Some(mut tunnel) = self.forward(lines).await? else {
                    return Ok(());
                };
                let (_, data) = tunnel.connect(port, 0).await;
                tunnel.send(&spdy::data(data, false, b"hello")).await;
                lines.push(format!("output: {}", tunnel.first_output().await));
                tunnel.disconnect(reset);
                lines.push(seen_ending(&format!("port {port}")).await);
            }
            Scenario::LogsDisconnect { version } => {
                let request = Request {
                    version,
                    method: "GET".to_owned(),
                    target: format!(
                        "/api/v1/namespaces/twin-fixed/pods/running/log?follow=true&limitBytes={}",
                        self.number
                    ),
                    headers: Vec::new(),
                    body: bytes::Bytes::new(),
                    raw: None,
                    frames: Vec::new(),
                    until: Until::Lines(2),
                };
                match client::exchange(self.target, self.servers.identity("alice"), &request).await {
                    Ok(answer) => {
                        lines.push(format!("status: {}", answer.status));
                        lines.push(String::from_utf8_lossy(&answer.body).into_owned());
                        if answer.status != 200 {
                            return Ok(());
                        }
                    }
                    Err(broken) => lines.push(format!("broken: {}", broken.0)),
                }
                lines.push(seen_ending(&self.number).await);
            }
        }
        Ok(())
    }

    async fn exec(
        &self,
        command: &str,
        input: bool,
        lines: &mut Vec<String>,
    ) -> Result<Option<Tunnel>, Failed> {
        let command = command.replace(' ', "&command=");
        let path = format!("exec?command={command}&stdin={input}&stdout=true&stderr=true");
        let Some(mut tunnel) = self.open(&path, "v4.channel.k8s.io", lines).await? else {
            return Ok(None);
        };
        if self.protocol == StreamProtocol::Spdy {
            for role in ["error", "stdin", "stdout", "stderr"] {
                if role != "stdin" || input {
                    let id = tunnel.open(&[("streamtype", role)]).await;
                    tunnel.roles.insert(id, role);
                }
            }
        }
        Ok(Some(tunnel))
    }

    async fn forward(&self, lines: &mut Vec<String>) -> Result<Option<Tunnel>, Failed> {
        self.open("portforward", "portforward.k8s.io", lines).await
    }

    /// Sends the upgrade request and records the response. Returns the tunnel if the status is 101.
    async fn open(
        &self,
        path: &str,
        spdy_protocol: &str,
        lines: &mut Vec<String>,
    ) -> Result<Option<Tunnel>, Failed> {
        let mut headers = vec![("Connection", "Upgrade")];
        let websocket = [
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        match self.protocol {
            StreamProtocol::V5 | StreamProtocol::V4 | StreamProtocol::Tunnelled => headers.extend(websocket),
            StreamProtocol::Spdy => headers.push(("Upgrade", "SPDY/3.1")),
        }
        headers.push(match self.protocol {
            StreamProtocol::V5 => ("Sec-WebSocket-Protocol", "v5.channel.k8s.io"),
            StreamProtocol::V4 => ("Sec-WebSocket-Protocol", "v4.channel.k8s.io"),
            StreamProtocol::Tunnelled => ("Sec-WebSocket-Protocol", "SPDY/3.1+portforward.k8s.io"),
            StreamProtocol::Spdy => ("X-Stream-Protocol-Version", spdy_protocol),
        });
        let request = Request {
            version: Version::H1,
            method: if self.protocol == StreamProtocol::Spdy { "POST" } else { "GET" }.to_owned(),
            target: format!("/api/v1/namespaces/twin-fixed/pods/{}/{path}", self.pod),
            headers: headers
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()))
                .collect(),
            body: bytes::Bytes::new(),
            raw: None,
            frames: Vec::new(),
            until: Until::End,
        };
        let alice = self.servers.identity("alice");
        let stream =
            client::connect(self.target, alice, Version::H1).await.map_err(|broken| broken.0.clone())?;
        let (read, mut write) = tokio::io::split(stream);
        write.write_all(&client::h1_bytes(self.target, &request)).await?;
        write.flush().await?;
        let mut reader = Reader { stream: read, buffer: Vec::new() };
        let answer = match reader.head().await {
            Ok(answer) => answer,
            Err(broken) => {
                lines.push(format!("broken: {}", broken.0));
                return Ok(None);
            }
        };
        lines.push(format!("status: {}", answer.status));
        for name in [
            "upgrade",
            "sec-websocket-protocol",
            "sec-websocket-accept",
            "x-stream-protocol-version",
            "content-type",
            "location",
        ] {
            for value in answer.all(name) {
                lines.push(format!("{name}: {value}"));
            }
        }
        if answer.status != 101 {
            let body = reader.body(&answer, false, Until::End).await.map_err(|broken| broken.0)?;
            lines.push(String::from_utf8_lossy(&body).into_owned());
            return Ok(None);
        }
        Ok(Some(Tunnel {
            protocol: self.protocol,
            reader,
            write,
            spdy: Vec::new(),
            headers: spdy::Writer::new(),
            next: 1,
            roles: BTreeMap::new(),
        }))
    }
}

/// An open tunnel.
struct Tunnel {
    protocol: StreamProtocol,
    reader: Reader<ReadHalf<TlsStream<TcpStream>>>,
    write: WriteHalf<TlsStream<TcpStream>>,
    /// Received bytes of SPDY that are not parsed yet.
    spdy: Vec<u8>,
    headers: spdy::Writer,
    next: u32,
    roles: BTreeMap<u32, &'static str>,
}

impl Tunnel {
    /// Sends SPDY bytes, in WebSocket messages if the protocol needs it. Ignores errors: the next read reports a closed
    /// tunnel.
    async fn send(&mut self, bytes: &[u8]) {
        write(&mut self.write, self.protocol, bytes).await;
    }

    /// Opens a SPDY stream.
    async fn open(&mut self, headers: &[(&str, &str)]) -> u32 {
        let id = self.next;
        self.next += 2;
        let frame = self.headers.open(id, headers);
        self.send(&frame).await;
        id
    }

    /// Opens the two streams of a connection to a port: for errors, which only the kubelet writes, and for data.
    async fn connect(&mut self, port: u16, request: u16) -> (u32, u32) {
        let (port, request) = (port.to_string(), request.to_string());
        let rest = [("port", port.as_str()), ("requestid", request.as_str())];
        let error = self.open(&[&[("streamtype", "error")], rest.as_slice()].concat()).await;
        self.send(&spdy::data(error, true, &[])).await;
        let data = self.open(&[&[("streamtype", "data")], rest.as_slice()].concat()).await;
        (error, data)
    }

    /// Sends standard input, and its end if the protocol has one.
    async fn send_stdin(&mut self, input: &[u8]) {
        if input.is_empty() {
            return;
        }
        match self.protocol {
            StreamProtocol::Spdy | StreamProtocol::Tunnelled => {
                let stdin = self.roles.iter().find(|(_, role)| **role == "stdin").map(|(id, _)| *id);
                self.send(&spdy::data(stdin.unwrap_or_default(), true, input)).await;
            }
            StreamProtocol::V4 | StreamProtocol::V5 => {
                self.send(&[&[0], input].concat()).await;
                if self.protocol == StreamProtocol::V5 {
                    self.send(&[255, 0]).await;
                }
            }
        }
    }

    /// Reads the data of every stream or channel, and how the connection ended.
    async fn read_to_end(&mut self) -> Vec<String> {
        let spdy = self.protocol == StreamProtocol::Spdy;
        let all: Vec<u32> =
            self.roles.iter().filter(|(_, role)| **role != "stdin").map(|(id, _)| *id).collect();
        let (streams, end) = if spdy { self.collect(&all).await } else { self.channels().await };
        let mut lines: Vec<String> = streams
            .into_iter()
            .map(|(id, bytes)| {
                let name = match (spdy, id) {
                    (true, id) => self.roles.get(&id).copied().unwrap_or("unknown"),
                    (false, 1) => "stdout",
                    (false, 2) => "stderr",
                    (false, 3) => "error",
                    (false, _) => "unknown",
                };
                format!("{name}: {}", String::from_utf8_lossy(&bytes))
            })
            .collect();
        lines.push(end);
        lines
    }

    /// Opens one connection to a port, and sends and reads concurrently.
    async fn connection(&mut self, port: u16, content: &[u8]) -> Vec<String> {
        let (error, data) = self.connect(port, 0).await;
        let protocol = self.protocol;
        let (mut streams, end) = {
            let mut frames: Vec<Vec<u8>> =
                content.chunks(32 * 1024).map(|piece| spdy::data(data, false, piece)).collect();
            frames.push(spdy::data(data, true, &[]));
            let sending = async {
                for frame in frames {
                    write(&mut self.write, protocol, &frame).await;
                }
            };
            let ids = [error, data];
            let reading = collect(&mut self.reader, &mut self.spdy, protocol, &ids);
            tokio::join!(sending, reading).1
        };
        let mut show = |name: &str, id: u32| {
            let bytes = streams.remove(&id).unwrap_or_default();
            let state = if end.contains(&format!("{id}")) { "open" } else { "ended" };
            let text = if bytes.len() < 200 && std::str::from_utf8(&bytes).is_ok() {
                String::from_utf8_lossy(&bytes).into_owned()
            } else {
                digest(&bytes)
            };
            format!("{name}: {} bytes, {state}: {text}", bytes.len())
        };
        let mut lines = vec![show("error", error), show("data", data)];
        if content.is_empty() || lines[1].contains(&digest(content)) || content.len() < 200 {
            lines.push(end);
        } else {
            lines.push(format!("not the sent data: {}; {end}", digest(content)));
        }
        lines
    }

    /// Reads the first data of any stream or channel.
    async fn first_output(&mut self) -> String {
        loop {
            match self.protocol {
                StreamProtocol::Spdy | StreamProtocol::Tunnelled => match spdy::take(&mut self.spdy) {
                    Some(Frame::Data { payload, .. }) if !payload.is_empty() => {
                        return String::from_utf8_lossy(&payload).into_owned();
                    }
                    Some(_) => {}
                    None => {
                        if !more(&mut self.reader, &mut self.spdy, self.protocol).await {
                            return "connection ended".to_owned();
                        }
                    }
                },
                StreamProtocol::V4 | StreamProtocol::V5 => match websocket::take(&mut self.reader.buffer) {
                    Some(Message { opcode: websocket::BINARY, payload }) if payload.len() > 1 => {
                        return String::from_utf8_lossy(&payload[1..]).into_owned();
                    }
                    Some(_) => {}
                    None => {
                        if !self.reader.more().await.unwrap_or_default() {
                            return "connection ended".to_owned();
                        }
                    }
                },
            }
        }
    }

    async fn collect(&mut self, ids: &[u32]) -> (BTreeMap<u32, Vec<u8>>, String) {
        collect(&mut self.reader, &mut self.spdy, self.protocol, ids).await
    }

    /// Reads the channels of a WebSocket until the server closes it.
    async fn channels(&mut self) -> (BTreeMap<u32, Vec<u8>>, String) {
        let mut channels = BTreeMap::<u32, Vec<u8>>::new();
        loop {
            let Some(Message { opcode, payload }) = websocket::take(&mut self.reader.buffer) else {
                if self.reader.more().await.unwrap_or_default() {
                    continue;
                }
                return (channels, "connection ended without a close message".to_owned());
            };
            match (opcode, payload.split_first()) {
                (websocket::CLOSE, _) => {
                    let code =
                        payload.get(..2).map_or(0, |code| u16::from(code[0]) << 8 | u16::from(code[1]));
                    let answer = websocket::message(Role::Client, websocket::CLOSE, &payload);
                    self.write.write_all(&answer).await.ok();
                    self.write.flush().await.ok();
                    return (channels, format!("close {code}"));
                }
                (websocket::BINARY, Some((channel, bytes))) => {
                    channels.entry(u32::from(*channel)).or_default().extend(bytes);
                }
                _ => {}
            }
        }
    }

    /// Closes the TCP connection without a TLS or WebSocket close, or resets it.
    fn disconnect(self, reset: bool) {
        let (tcp, _) = self.reader.stream.unsplit(self.write).into_inner();
        if reset {
            socket2::SockRef::from(&tcp).set_linger(Some(Duration::ZERO)).expect("a socket option");
        }
        drop(tcp);
    }
}

async fn write(stream: &mut WriteHalf<TlsStream<TcpStream>>, protocol: StreamProtocol, bytes: &[u8]) {
    let wrapped = match protocol {
        StreamProtocol::Spdy => bytes.to_vec(),
        _ => websocket::message(Role::Client, websocket::BINARY, bytes),
    };
    if stream.write_all(&wrapped).await.is_ok() {
        stream.flush().await.ok();
    }
}

/// Reads more SPDY bytes. Returns false at the end.
async fn more(
    reader: &mut Reader<ReadHalf<TlsStream<TcpStream>>>,
    spdy: &mut Vec<u8>,
    protocol: StreamProtocol,
) -> bool {
    if protocol == StreamProtocol::Spdy {
        // The response to the upgrade may be followed by SPDY bytes.
        let more = !reader.buffer.is_empty() || reader.more().await.unwrap_or_default();
        spdy.append(&mut reader.buffer);
        return more;
    }
    loop {
        match websocket::take(&mut reader.buffer) {
            Some(Message { opcode: websocket::CLOSE, .. }) => return false,
            Some(Message { opcode: websocket::BINARY, payload }) => {
                spdy.extend(payload);
                return true;
            }
            Some(_) => {}
            None if reader.more().await.unwrap_or_default() => {}
            None => return false,
        }
    }
}

/// Reads SPDY until these streams or the connection have ended.
async fn collect(
    reader: &mut Reader<ReadHalf<TlsStream<TcpStream>>>,
    buffer: &mut Vec<u8>,
    protocol: StreamProtocol,
    ids: &[u32],
) -> (BTreeMap<u32, Vec<u8>>, String) {
    let mut streams = BTreeMap::<u32, Vec<u8>>::new();
    let mut open: BTreeSet<u32> = ids.iter().copied().collect();
    while !open.is_empty() {
        match spdy::take(buffer) {
            Some(Frame::Data { id, last, payload }) => {
                streams.entry(id).or_default().extend(payload);
                if last {
                    open.remove(&id);
                }
            }
            Some(Frame::Reset { id }) => {
                streams.entry(id).or_default().extend(b"(reset)");
                open.remove(&id);
            }
            Some(_) => {}
            None => {
                if !more(reader, buffer, protocol).await {
                    return (streams, format!("connection ended, open streams: {open:?}"));
                }
            }
        }
    }
    (streams, "all streams ended".to_owned())
}
