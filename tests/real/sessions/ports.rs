//! Forwarded ports: kubectl's connections, and those in the recording.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use super::{Outcome, Running, Sessions, equal, noise};
use crate::servers::RealGateway;

const CONNECTIONS: usize = 40;
/// The bytes that each connection sends, and gets back.
const SENT: usize = 100_000;

pub(super) fn forward(sessions: &Sessions<'_>) -> Result<(), String> {
    let pod = sessions.pod("ports")?;
    let port = echo()?;
    let run = |gateway: &RealGateway| {
        let kubectl = sessions.kubectl(gateway, &["port-forward", &pod, &format!(":{port}")])?;
        let mut kubectl = Running::start(kubectl)?;
        kubectl.until(b"Forwarding from 127.0.0.1:")?;
        let local = kubectl.until(b" ")?;
        let local = String::from_utf8_lossy(&local).trim().parse().map_err(|_| "no port".to_owned())?;
        let connections: Vec<_> = (0..CONNECTIONS)
            .map(|number| thread::spawn(move || exchange(([127, 0, 0, 1], local).into(), number)))
            .collect();
        for connection in connections {
            connection.join().map_err(|_| "a thread has panicked".to_owned())??;
        }
        let id = i32::try_from(kubectl.child.id()).ok().and_then(Pid::from_raw).ok_or("no process")?;
        kill_process(id, Signal::INT).map_err(|error| error.to_string())?;
        kubectl.finish()
    };
    let (plain, Outcome { code, stderr, .. }) = (run(&sessions.plain)?, run(&sessions.recording)?);
    if (plain.code, plain.stderr.as_slice()) != (code, stderr.as_slice()) {
        return Err(format!("{code:?} {:?}", String::from_utf8_lossy(&stderr)));
    }
    let recorded = sessions.one_of(&pod)?;
    // Kubectl says goodbye over SPDY, and either side may close first then.
    let reason = if recorded.end()["reason"] == "server" { "server" } else { "client" };
    recorded.ended(reason, None, CONNECTIONS * SENT, CONNECTIONS * SENT)?;
    let channels = recorded.channels()?;
    // No content is recorded.
    equal("recorded content", &[channels.stdin, channels.stdout, channels.stderr].concat(), b"")?;
    for code in ["open", "close"] {
        let count = channels.others.iter().filter(|event| event.0 == code && event.1 == port).count();
        if count != CONNECTIONS {
            return Err(format!("{count} times {code}: {:?}", channels.others));
        }
    }
    if recorded.end()["connections"] == CONNECTIONS { Ok(()) } else { Err(recorded.end().to_string()) }
}

/// A port that sends back what it gets, to each connection.
fn echo() -> Result<u16, String> {
    let text = |error: std::io::Error| error.to_string();
    let listener = TcpListener::bind("127.0.0.1:0").map_err(text)?;
    let port = listener.local_addr().map_err(text)?.port();
    // It ends with the test program.
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                std::io::copy(&mut &stream, &mut &stream).ok();
                stream.shutdown(Shutdown::Write).ok();
            });
        }
    });
    Ok(port)
}

/// Sends bytes of its own, and gets them back.
fn exchange(address: SocketAddr, number: usize) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let mut sent = noise(SENT);
    sent[..8].copy_from_slice(&number.to_be_bytes());
    let stream = TcpStream::connect(address).map_err(text)?;
    let (mut writer, content) = (stream.try_clone().map_err(text)?, sent.clone());
    let writing = thread::spawn(move || {
        let written = writer.write_all(&content);
        writer.shutdown(Shutdown::Write).ok();
        written
    });
    let mut received = Vec::new();
    (&stream).read_to_end(&mut received).map_err(text)?;
    writing.join().map_err(|_| "a thread has panicked".to_owned())?.map_err(text)?;
    equal("a connection", &received, &sent)
}
