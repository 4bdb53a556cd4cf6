//! Reload without restart: what is new counts at the next request, what is open goes on, and what is wrong changes
//! nothing.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::client::TlsStream;

use crate::pki::Issued;
use crate::support::body::{Frames, fed};
use crate::support::{Backend, Gateway, H2, Http1, Http2, Pki, full, soon, text};

mod backends;
mod credentials;
mod files;
mod mistakes;
mod watches;

/// A client of either version of HTTP.
enum Client {
    One(Http1),
    Two(Http2),
}

impl Client {
    async fn connect(gateway: &Gateway, http2: bool, identity: Option<&Issued>) -> Self {
        let alpn: &[u8] = if http2 { b"h2" } else { b"http/1.1" };
        Self::over(gateway, gateway.tls(alpn, identity).await).await
    }

    async fn over(gateway: &Gateway, stream: TlsStream<TcpStream>) -> Self {
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            return Self::Two(gateway.http2_over(stream).await);
        }
        Self::One(gateway.http1_over(stream).await)
    }

    async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Response<Incoming> {
        match self {
            Self::One(client) => client.get(path, headers).await,
            Self::Two(client) => client.get(path, headers).await,
        }
    }

    /// What comes of a request; its answer is read to the end.
    async fn code(&mut self, headers: &[(&str, &str)]) -> StatusCode {
        let response = self.get("/api", headers).await;
        let code = response.status();
        text(response).await;
        code
    }
}

/// Replaces a file at once, as careful programs do.
fn replace(file: &Path, content: impl AsRef<[u8]>) {
    let new = file.with_extension("new");
    std::fs::write(&new, content).unwrap();
    std::fs::rename(new, file).unwrap();
}

/// Reloads what the files hold now.
async fn reload(gateway: &Gateway) {
    // The first generation to come may be of files that were read before they were all written.
    for _ in 0..2 {
        let before = generation(gateway).await;
        gateway.server.as_ref().unwrap().reload();
        reloaded(gateway, before).await;
    }
}

/// Waits for a later generation than one.
async fn reloaded(gateway: &Gateway, before: u64) {
    soon(async {
        while generation(gateway).await <= before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

async fn generation(gateway: &Gateway) -> u64 {
    let metrics = gateway.metrics("/metrics").await;
    let line = metrics.lines().find_map(|line| line.strip_prefix("portcullis_config_generation "));
    line.unwrap().parse().unwrap()
}

/// A backend that gives each watch a body that the test feeds, and answers everything else.
async fn watched(pki: &Pki) -> (Backend, mpsc::UnboundedReceiver<Frames>) {
    let (started, watches) = mpsc::unbounded_channel();
    let backend = Backend::start(pki, H2, move |request| {
        let body = match request.uri().query() {
            Some("watch=true") => {
                let (sender, body, _) = fed();
                started.send(sender).unwrap();
                body
            }
            _ => full("ok"),
        };
        Box::pin(async { Response::new(body) })
    })
    .await;
    (backend, watches)
}

const WATCH: &str = "/api/v1/pods?watch=true";

/// A watch through the gateway: what the backend writes, and what arrives.
struct Watch {
    events: Frames,
    body: Incoming,
}

impl Watch {
    async fn open(
        client: &mut Client,
        headers: &[(&str, &str)],
        watches: &mut mpsc::UnboundedReceiver<Frames>,
    ) -> Self {
        let response = client.get(WATCH, headers).await;
        assert_eq!(response.status(), StatusCode::OK);
        Self { events: soon(watches.recv()).await.unwrap(), body: response.into_body() }
    }

    /// Sends an event that must be the next to arrive.
    async fn passes(&mut self, event: &str) {
        self.events.send(Frame::data(Bytes::from(event.to_owned()))).expect("the backend's stream is open");
        let frame = soon(self.body.frame()).await.expect("the watch goes on").unwrap();
        assert_eq!(frame.into_data().unwrap(), event);
    }
}
