//! Over HTTP/1.1, a response that the gateway sends before it has read the request body reaches the client in any case:
//! a refused client needs the response in order to renew its credential.

use std::sync::Arc;

use http::{Response, StatusCode};
use testkit::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, frame, header_block};
use testkit::pki::Issued;
use testkit::wire::head;
use testkit::{FakeBackend, Gateway, H2, Pki, full, in_time};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use crate::gateway::InProcess as _;

/// The client's action between its last byte and the response.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Reads,
    /// Sends `close_notify` and FIN.
    Closes,
}

struct Case {
    name: &'static str,
    /// Without an identity, the gateway refuses the request; otherwise the backend does, without reading the body.
    identity: Option<Arc<Issued>>,
    code: &'static str,
}

/// Sends a complete request and then reads the response, as simple clients do. Returns its head, or the error.
async fn exchange(
    gateway: &Gateway,
    identity: Option<&Issued>,
    size: usize,
    then: Then,
) -> Result<String, String> {
    let mut stream = gateway.tls(b"http/1.1", identity).await;
    let token = if identity.is_none() { "Authorization: Bearer forged\r\n" } else { "" };
    let request = format!(
        "POST /api/v1/namespaces/n/configmaps HTTP/1.1\r\nHost: a\r\n{token}Content-Length: {size}\r\n\r\n"
    );
    let bytes = [request.into_bytes(), vec![b'x'; size]].concat();
    // Many clients do not read a response after a failed write.
    in_time(stream.write_all(&bytes)).await.map_err(|error| format!("the request: {error}"))?;
    if then == Then::Closes {
        in_time(stream.shutdown()).await.map_err(|error| format!("the end: {error}"))?;
    }
    let head = head(&mut stream).await.map_err(|error| format!("the answer: {error}"))?;
    let length = head.to_ascii_lowercase();
    let length = length.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    in_time(stream.read_exact(&mut body)).await.map_err(|error| format!("the body: {error}"))?;
    Ok(head)
}

#[tokio::test]
async fn an_early_response_is_not_lost() {
    const ROUNDS: usize = 40;
    let pki = Pki::new();
    let backend = FakeBackend::start(&pki, H2, |_| {
        let mut response = Response::new(full("no"));
        *response.status_mut() = StatusCode::FORBIDDEN;
        Box::pin(async { response })
    })
    .await;
    let gateway = Arc::new(Gateway::start(&pki, &backend));
    let alice = Arc::new(pki.clients.leaf().cn("alice").issue());
    let cases = [
        Case { name: "of the gateway", identity: None, code: "HTTP/1.1 401 " },
        Case { name: "of the backend", identity: Some(alice), code: "HTTP/1.1 403 " },
    ];
    let mut lost = Vec::new();
    for case in &cases {
        for size in [50_000, 200_000, 1_000_000] {
            for then in [Then::Reads, Then::Closes] {
                let mut exchanges = JoinSet::new();
                for _ in 0..ROUNDS {
                    let (gateway, identity) = (Arc::clone(&gateway), case.identity.clone());
                    exchanges.spawn(async move { exchange(&gateway, identity.as_deref(), size, then).await });
                    if exchanges.len() == 4 {
                        record(&mut lost, case, size, then, exchanges.join_next().await);
                    }
                }
                while let Some(done) = exchanges.join_next().await {
                    record(&mut lost, case, size, then, Some(done));
                }
            }
        }
    }
    assert!(lost.is_empty(), "{} of {} lost: {lost:#?}", lost.len(), ROUNDS * 2 * 3 * 2);
}

type Done = Option<Result<Result<String, String>, tokio::task::JoinError>>;

fn record(lost: &mut Vec<String>, case: &Case, size: usize, then: Then, done: Done) {
    match done.unwrap().unwrap() {
        Ok(head) if head.starts_with(case.code) => {}
        other => lost.push(format!("{}, {size} bytes, {then:?}: {other:?}", case.name)),
    }
}

/// The gateway reads up to 256 KiB of the body before the response, so that the connection can be reused; beyond that
/// it sends `Connection: close`.
// Go: net/http/server.go, chunkWriter.writeHeader
#[tokio::test]
async fn the_connection_is_kept_if_the_unread_body_is_small() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    for (size, is_kept) in [(1, true), (200_000, true), (1_000_000, false)] {
        let mut stream = gateway.tls(b"http/1.1", None).await;
        let request = format!(
            "POST /api HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer forged\r\nContent-Length: {size}\r\n\r\n"
        );
        let bytes = [request.into_bytes(), vec![b'x'; size]].concat();
        for round in 0..3 {
            in_time(stream.write_all(&bytes)).await.unwrap();
            let head = head(&mut stream).await.unwrap().to_ascii_lowercase();
            assert!(head.starts_with("http/1.1 401 "), "{head}");
            assert_eq!(!head.contains("connection: close"), is_kept, "{size} bytes, round {round}: {head}");
            let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
            let mut body = vec![0; length.parse().unwrap()];
            in_time(stream.read_exact(&mut body)).await.unwrap();
            if !is_kept {
                let mut rest = Vec::new();
                in_time(stream.read_to_end(&mut rest)).await.unwrap();
                assert!(rest.is_empty());
                break;
            }
        }
    }
}

/// The client waits for `100 Continue` before it sends its body; reading the body would send it.
#[tokio::test]
async fn a_refused_client_gets_no_100_continue() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    let mut stream = gateway.tls(b"http/1.1", None).await;
    let request = "POST /api HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer forged\r\nExpect: 100-continue\r\n\
        Content-Length: 10\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = head(&mut stream).await.unwrap().to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 401 ") && head.contains("connection: close"), "{head}");
}

/// libcurl before 8 loses a response over HTTP/2 whose end comes together with the reset of the stream: Go sends one after the other.
// Go: net/http/h2_bundle.go, wroteFrame
#[tokio::test]
async fn over_http2_the_stream_is_reset_some_time_after_the_response() {
    let pki = Pki::new();
    let backend = FakeBackend::start(&pki, H2, |_| {
        let mut response = Response::new(full("no"));
        *response.status_mut() = StatusCode::FORBIDDEN;
        Box::pin(async { response })
    })
    .await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut stream = gateway.frames(Some(&alice), 65_535).await;
    let begin = frame(HEADERS, END_HEADERS, 1, &header_block("POST", "/api/v1/namespaces/n/configmaps"));
    stream.write_all(&[begin, frame(DATA, 0, 1, &[b'x'; 10_000])].concat()).await.unwrap();
    // What one read has, as libcurl sees it.
    let (mut read, mut kinds) = (Vec::new(), Vec::new());
    while !kinds.contains(&(RST_STREAM, false)) {
        let mut chunk = [0; 16_384];
        let length = in_time(stream.read(&mut chunk)).await.unwrap();
        assert_ne!(length, 0, "{kinds:?}");
        read.extend(&chunk[..length]);
        while let Some((kind, ends)) = take_frame(&mut read) {
            assert!(
                kind != RST_STREAM || !kinds.contains(&(DATA, true)),
                "the response and the reset in one read"
            );
            kinds.push((kind, ends));
        }
        // Of earlier reads, only that there was one matters.
        for (_, ends) in &mut kinds {
            *ends = false;
        }
    }
    assert!(kinds.contains(&(DATA, false)), "{kinds:?}");
}

/// The kind of the first whole frame, and whether it ends its stream.
fn take_frame(read: &mut Vec<u8>) -> Option<(u8, bool)> {
    let &[high, middle, low, kind, flags, ..] = read.as_slice() else { return None };
    let length = u32::from_be_bytes([0, high, middle, low]);
    let end = 9 + usize::try_from(length).unwrap();
    if read.len() < end {
        return None;
    }
    read.drain(..end);
    Some((kind, flags & END_STREAM != 0))
}
