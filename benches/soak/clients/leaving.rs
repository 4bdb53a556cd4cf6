//! Clients that abort handshakes, requests, responses and streams.

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use testkit::body::fed;
use testkit::client::Client;
use testkit::{frames, in_time};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::{ClientContext, PAUSE};
use crate::backend::{LIST, WATCH};

/// The flow-control window of a connection whose frames this module writes.
const WINDOW: u32 = 65_535;

impl ClientContext {
    /// Aborts a connection or stream in each way in turn.
    pub(crate) async fn abort_requests(self, http2: bool) {
        while self.is_running() {
            self.abort_handshake().await;
            self.abort_request_header(http2).await;
            for path in [LIST, WATCH] {
                self.abort_response(http2, path).await;
            }
            self.abort_upload(http2).await;
            if http2 {
                self.reset_streams().await;
            }
        }
    }

    async fn abort_handshake(&self) {
        let mut stream = TcpStream::connect(self.process.gateway.address).await.unwrap();
        // The beginning of a TLS record.
        stream.write_all(&[0x16, 3, 1]).await.unwrap();
        self.record_abort().await;
    }

    async fn abort_request_header(&self, http2: bool) {
        let gateway = &self.process.gateway;
        let (mut stream, partial) = if http2 {
            let request = frames::request(1, "/api");
            (gateway.frames(Some(&self.alice), WINDOW).await, request[..request.len() / 2].to_vec())
        } else {
            let partial = b"GET /api HTTP/1.1\r\nHost: a\r\nX-Half".to_vec();
            (gateway.tls(b"http/1.1", Some(&self.alice)).await, partial)
        };
        stream.write_all(&partial).await.unwrap();
        stream.flush().await.unwrap();
        self.record_abort().await;
    }

    async fn abort_response(&self, http2: bool, path: &str) {
        let mut client = self.connect(http2).await;
        let _body = self.read_first_frame(&mut client, path).await;
        disconnect(&client);
        self.record_abort().await;
    }

    async fn abort_upload(&self, http2: bool) {
        let mut client = self.connect(http2).await;
        start_upload(&mut client).await;
        disconnect(&client);
        self.record_abort().await;
    }

    /// Resets streams, and sends other requests on the same connection.
    async fn reset_streams(&self) {
        let mut client = self.connect(true).await;
        drop(self.read_first_frame(&mut client, LIST).await);
        self.record_abort().await;
        self.request(&mut client, &[]).await;
        start_upload(&mut client).await;
        self.record_abort().await;
        self.request(&mut client, &[]).await;
    }

    /// Sends a request and reads the first frame of the response. Returns the rest of the body.
    pub(super) async fn read_first_frame(&self, client: &mut Client, path: &str) -> Incoming {
        let mut body = client.get(path, &[]).await.into_body();
        let first = in_time(body.frame()).await;
        self.count.request(matches!(first, Some(Ok(_))));
        body
    }

    async fn record_abort(&self) {
        self.count.broken_off();
        sleep(PAUSE).await;
    }
}

/// Closes a connection without ending its streams.
fn disconnect(client: &Client) {
    match client {
        Client::One(client) => client.task.abort(),
        Client::Two(client) => client.task.abort(),
    }
}

/// Sends a part of a request body, and checks that there is no response for a while.
async fn start_upload(client: &mut Client) {
    let (part, body, _) = fed();
    part.send(Frame::data(Bytes::from_static(&[b'x'; 4096]))).unwrap();
    let request = Request::post(LIST).body(body).unwrap();
    assert!(
        timeout(PAUSE, client.send(request)).await.is_err(),
        "a response before the end of the request body"
    );
}
