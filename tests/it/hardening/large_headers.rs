//! Headers beyond the size limits.

use http::{Response, StatusCode};
use testkit::body::endless;
use testkit::frames::{
    CONTINUATION, END_STREAM, ENHANCE_YOUR_CALM, GOAWAY, HEADERS, frame, header_block, read_frame,
};
use testkit::{get, in_time, text};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::GatewayWithBystanders;

// Go: net/http DefaultMaxHeaderBytes; the response has no `Status` body, and an HTTP/1.1 connection ends with it.
#[tokio::test]
async fn a_header_that_is_too_large_is_refused_without_disturbing_others() {
    let setup =
        GatewayWithBystanders::with(&[], |_| {}, |_| Box::pin(async { Response::new(endless().0) })).await;
    let value = "x".repeat(1 << 20);
    let lines = "x: 1\r\n".repeat(5000);
    for header in [format!("x-large: {value}x{value}\r\n"), lines] {
        let mut client = setup.gateway.tls(b"http/1.1", Some(&setup.alice)).await;
        let request = format!("GET /api HTTP/1.1\r\nHost: a\r\n{header}\r\n");
        client.write_all(request.as_bytes()).await.ok();
        let mut answer = [0; 13];
        in_time(client.read_exact(&mut answer)).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 431 ", "{header:.20}");
    }

    let mut client = setup.gateway.http2(Some(&setup.alice)).await;
    let watch = client.get("/api/v1/pods?watch=true", &[]).await;
    let large = "x".repeat((1 << 20) + 8192);
    let response = client.send(get("/api", &[("x-large", &large)])).await.unwrap();
    assert_eq!(response.status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    // On the same connection.
    assert_eq!(text(client.get(super::CALM, &[]).await).await, "ok");
    drop(watch);
    // Far beyond the limit, the connection is closed, as Go's server does.
    let mut client = setup.gateway.http2(Some(&setup.alice)).await;
    assert!(client.send(get("/api", &[("x-large", &large.repeat(2))])).await.is_err());
    setup.others.were_undisturbed().await;
}

// HPACK expansion: a few bytes on the wire reference the same large field again and again.
#[tokio::test]
async fn a_header_that_grows_when_decompressed_ends_its_connection() {
    let setup = GatewayWithBystanders::with(&[], |_| {}, |_| Box::pin(std::future::pending())).await;
    let mut client = setup.gateway.frames(Some(&setup.alice), 65_535).await;
    // RFC 7541: a field of 4,000 bytes is added to the dynamic table once, and then referenced by one byte.
    let mut block = header_block("GET", "/api");
    block.extend([0x40, 1, b'x', 0x7f, 0xa1, 0x1e]);
    block.extend(vec![b'y'; 4000]);
    block.extend(vec![0xbe; 12_000]);
    client.write_all(&frame(HEADERS, END_STREAM, 1, &block[..16_000])).await.unwrap();
    let more = vec![0xbe; 16_000];
    for _ in 0..8 {
        client.write_all(&frame(CONTINUATION, 0, 1, &more)).await.ok();
    }
    let goaway = loop {
        let (kind, _, payload) = in_time(read_frame(&mut client)).await.unwrap();
        if kind == GOAWAY {
            break payload;
        }
    };
    assert_eq!(goaway[4..8], ENHANCE_YOUR_CALM.to_be_bytes());
    setup.others.were_undisturbed().await;
}
