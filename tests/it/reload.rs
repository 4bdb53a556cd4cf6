//! Reload without restart: the next request uses the new configuration, open streams continue, and an invalid
//! configuration changes nothing.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use testkit::body::{Frames, fed};
use testkit::client::Client;
use testkit::{FakeBackend, Gateway, H2, Pki, full, in_time};
use tokio::sync::mpsc;

use crate::gateway::InProcess as _;

mod backends;
mod credentials;
mod files;
mod mistakes;
mod watches;

/// Reloads the current files.
async fn reload(gateway: &Gateway) {
    // The next generation may result from a reload that read the files before all of them were written.
    for _ in 0..2 {
        let before = gateway.generation().await;
        gateway.server().reload();
        gateway.reloaded(before).await;
    }
}

/// A backend that responds to each watch with a body whose frames the test sends, and to other requests with `ok`.
async fn watched(pki: &Pki) -> (FakeBackend, mpsc::UnboundedReceiver<Frames>) {
    let (started, watches) = mpsc::unbounded_channel();
    let backend = FakeBackend::start(pki, H2, move |request| {
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

/// A watch through the gateway: the backend's frames, and the client's body.
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
        Self { events: in_time(watches.recv()).await.unwrap(), body: response.into_body() }
    }

    /// Sends an event, which must be the next to arrive.
    async fn passes(&mut self, event: &str) {
        self.events.send(Frame::data(Bytes::from(event.to_owned()))).expect("the backend's stream is open");
        let frame = in_time(self.body.frame()).await.expect("the watch continues").unwrap();
        assert_eq!(frame.into_data().unwrap(), event);
    }
}
