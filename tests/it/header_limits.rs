//! Limits of the request header and the request target.

use http::{HeaderMap, StatusCode};
use testkit::frames;
use testkit::wire::head;
use testkit::{FakeBackend, Gateway, Pki, get, in_time, text};
use tokio::io::AsyncWriteExt as _;

use crate::gateway::InProcess as _;

#[tokio::test]
async fn too_many_header_lines_are_refused_over_http2() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    let digits = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut request = get("/api", &[]);
    // http::HeaderMap holds 24,576 names and panics at the next.
    for index in 0..24_574_usize {
        let name = [digits[10 + index / 1296], digits[index / 36 % 36], digits[index % 36]];
        let name = http::HeaderName::from_bytes(&name).unwrap();
        request.headers_mut().insert(name, http::HeaderValue::from_static(""));
    }
    let mut client = gateway.http2(Some(&alice)).await;
    let response = client.send(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    assert_eq!(backend.pending(), 0);
}

// kube-apiserver accepts 1 MiB of header over both versions of HTTP, in any number of CONTINUATION frames.
#[tokio::test]
async fn large_headers_are_forwarded_over_http2_too() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    for first in [true, false] {
        for kib in [64, 100, 200, 900] {
            let case = format!("{kib} KiB, first on its connection: {first}");
            let mut client = gateway.http2(Some(&alice)).await;
            if !first {
                text(client.get("/api", &[]).await).await;
                backend.take().unwrap();
            }
            // Characters that Huffman coding makes longer, within the limit of the encoded header.
            let large = if kib < 900 { "\\^~|".repeat(kib << 8) } else { "x".repeat(kib << 10) };
            let response = client.send(get("/api", &[("x-large", &large)])).await.expect(&case);
            assert_eq!(response.status(), StatusCode::OK, "{case}");
            assert!(
                backend.take().unwrap().headers["x-large"] == large.as_str(),
                "{case}: the value was changed"
            );
        }
    }
}

/// The size of a header that counts for `SETTINGS_MAX_HEADER_LIST_SIZE` (RFC 9113, 6.5.2).
fn list_size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
}

// Go's server accepts 1 MiB and 320 bytes; beyond that it closes the connection, with the streams of all other clients
// (golang.org/x/net/http2, Framer.readMetaFrame; MaxHeaderBytes is 1 MiB in kube-apiserver).
#[tokio::test]
async fn headers_beyond_the_backends_limit_are_not_sent_on_the_shared_connection() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    let value = "~".repeat(240);
    // HTTP/1.1 counts 4 bytes beside the name and the value of a line, HTTP/2 counts 32.
    for (lines, expected) in [(3600, StatusCode::OK), (4000, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)] {
        let names: Vec<String> = (0..lines).map(|index| format!("x-line-{index}")).collect();
        let headers: Vec<_> = names.iter().map(|name| (name.as_str(), value.as_str())).collect();
        let response = gateway.http1(Some(&alice)).await.get("/api", &headers).await;
        assert_eq!(response.status(), expected, "{lines} lines");
        let forwarded = backend.take().map(|seen| list_size(&seen.headers));
        assert_eq!(forwarded.is_some(), expected == StatusCode::OK, "{lines} lines");
        assert!(forwarded.is_none_or(|size| size <= (1 << 20) + 320), "{forwarded:?}");
    }
}

/// The URI type has this limit (D-target-length).
#[tokio::test]
async fn a_target_beyond_65534_bytes_is_refused() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    for (length, code) in [(65_534, "HTTP/1.1 200 "), (65_535, "HTTP/1.1 414 ")] {
        let mut stream = gateway.tls(b"http/1.1", Some(&alice)).await;
        let target = format!("/api?{}", "x".repeat(length - "/api?".len()));
        let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = head(&mut stream).await.unwrap();
        assert!(answer.starts_with(code), "{length}: {answer}");
    }
    // The client's library has the same limit, so the test writes the frames itself.
    let mut raw = gateway.frames(Some(&alice), 65_535).await;
    for (stream, length) in [(1, 65_534), (3, 65_535)] {
        raw.write_all(&frames::long_request(stream, length)).await.unwrap();
        let answer = loop {
            let (kind, of, payload) = in_time(frames::read_frame(&mut raw)).await.unwrap();
            if of == stream && [frames::HEADERS, frames::RST_STREAM].contains(&kind) {
                break (kind, payload);
            }
        };
        if length == 65_534 {
            // RFC 7541, appendix A: `:status: 200`.
            assert_eq!((answer.0, answer.1[0]), (frames::HEADERS, frames::STATUS_200));
        } else {
            assert_eq!(answer, (frames::RST_STREAM, frames::PROTOCOL_ERROR.to_be_bytes().to_vec()));
        }
    }
}
