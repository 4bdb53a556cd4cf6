//! Clients that break off what they have begun, wherever that is.

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

use super::{Member, PAUSE};
use crate::backend::{LIST, WATCH};

/// The window of a connection whose frames are written here.
const WINDOW: u32 = 65_535;

impl Member {
    /// Breaks off in one way after another.
    pub(crate) async fn break_off(self, http2: bool) {
        while self.goes_on() {
            self.in_a_handshake().await;
            self.in_a_header(http2).await;
            for path in [LIST, WATCH] {
                self.in_an_answer(http2, path).await;
            }
            self.in_an_upload(http2).await;
            if http2 {
                self.in_streams_of_a_connection_that_stays().await;
            }
        }
    }

    async fn in_a_handshake(&self) {
        let mut stream = TcpStream::connect(self.process.gateway.address).await.unwrap();
        // The beginning of a record.
        stream.write_all(&[0x16, 3, 1]).await.unwrap();
        self.gone().await;
    }

    async fn in_a_header(&self, http2: bool) {
        let gateway = &self.process.gateway;
        let (mut stream, begun) = if http2 {
            let request = frames::request(1, "/api");
            (gateway.frames(Some(&self.alice), WINDOW).await, request[..request.len() / 2].to_vec())
        } else {
            let begun = b"GET /api HTTP/1.1\r\nHost: a\r\nX-Half".to_vec();
            (gateway.tls(b"http/1.1", Some(&self.alice)).await, begun)
        };
        stream.write_all(&begun).await.unwrap();
        stream.flush().await.unwrap();
        self.gone().await;
    }

    async fn in_an_answer(&self, http2: bool, path: &str) {
        let mut client = self.connect(http2).await;
        let _answer = self.begin_to_read(&mut client, path).await;
        cut(&client);
        self.gone().await;
    }

    async fn in_an_upload(&self, http2: bool) {
        let mut client = self.connect(http2).await;
        begin_to_upload(&mut client).await;
        cut(&client);
        self.gone().await;
    }

    /// Takes requests back, and makes others on the same connection.
    async fn in_streams_of_a_connection_that_stays(&self) {
        let mut client = self.connect(true).await;
        drop(self.begin_to_read(&mut client, LIST).await);
        self.gone().await;
        self.ask(&mut client, &[]).await;
        begin_to_upload(&mut client).await;
        self.gone().await;
        self.ask(&mut client, &[]).await;
    }

    /// The rest of an answer that has begun.
    pub(super) async fn begin_to_read(&self, client: &mut Client, path: &str) -> Incoming {
        let mut answer = client.get(path, &[]).await.into_body();
        let first = in_time(answer.frame()).await;
        self.count.request(matches!(first, Some(Ok(_))));
        answer
    }

    async fn gone(&self) {
        self.count.broken_off();
        sleep(PAUSE).await;
    }
}

/// Ends a connection where it is, whatever it carries.
fn cut(client: &Client) {
    match client {
        Client::One(client) => client.task.abort(),
        Client::Two(client) => client.task.abort(),
    }
}

/// Sends a part of a body and stops, until there is no hope of an answer.
async fn begin_to_upload(client: &mut Client) {
    let (part, body, _) = fed();
    part.send(Frame::data(Bytes::from_static(&[b'x'; 4096]))).unwrap();
    let request = Request::post(LIST).body(body).unwrap();
    assert!(timeout(PAUSE, client.send(request)).await.is_err(), "an answer before the end of the request");
}
