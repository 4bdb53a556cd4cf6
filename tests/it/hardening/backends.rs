//! Backends that misbehave: each gives its refusal, and the gateway serves on.

use http::{Request, StatusCode};
use hyper::body::Frame;

use crate::support::body::fed;
use crate::support::frames::{END_HEADERS, END_STREAM, HEADERS, frame, serve_frames};
use crate::support::wire::bare;
use crate::support::{Gateway, H2, Pki, flags, get, soon};

/// RFC 9113, section 6.5.2
const MAX_CONCURRENT_STREAMS: u16 = 3;

// Go's server resets the stream of an upload that it has answered; others wait for its end.
#[tokio::test]
async fn uploads_that_go_on_after_their_answer_do_not_take_the_streams_of_others() {
    let pki = Pki::new();
    let (address, mut streams) = bare(&pki, H2).await;
    tokio::spawn(async move {
        while let Some(stream) = streams.recv().await {
            tokio::spawn(serve_frames(stream, &[(MAX_CONCURRENT_STREAMS, 10)], |kind, id, _| match kind {
                HEADERS => frame(HEADERS, END_HEADERS | END_STREAM, id, &[0x88]),
                _ => Vec::new(),
            }));
        }
    });
    let gateway = Gateway::with(flags(&pki, address));
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut client = gateway.http2(Some(&alice)).await;
    let mut uploads = Vec::new();
    for _ in 0..40 {
        let (upload, body, _) = fed();
        upload.send(Frame::data(bytes::Bytes::from_static(b"u"))).unwrap();
        let request = Request::post("/api/v1/x").body(body).unwrap();
        assert_eq!(client.send(request).await.unwrap().status(), StatusCode::OK);
        uploads.push(upload);
    }
    let mut other = gateway.http1(Some(&alice)).await;
    assert_eq!(soon(other.send(get("/api/v1/x", &[]))).await.unwrap().status(), StatusCode::OK);
}
