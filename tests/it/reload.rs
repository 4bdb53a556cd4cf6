//! Reload without restart: what is new counts at the next request, what is open goes on, and what is wrong changes
//! nothing.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use testkit::body::{Frames, fed};
use testkit::client::Client;
use testkit::{Backend, Gateway, H2, Pki, full, in_time};
use tokio::sync::mpsc;

use crate::gateway::InProcess as _;

mod backends;
mod credentials;
mod files;
mod mistakes;
mod watches;

/// Reloads what the files hold now.
async fn reload(gateway: &Gateway) {
    // The first generation to come may be of files that were read before they were all written.
    for _ in 0..2 {
        let before = gateway.generation().await;
        gateway.server().reload();
        gateway.reloaded(before).await;
    }
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
        Self { events: in_time(watches.recv()).await.unwrap(), body: response.into_body() }
    }

    /// Sends an event that must be the next to arrive.
    async fn passes(&mut self, event: &str) {
        self.events.send(Frame::data(Bytes::from(event.to_owned()))).expect("the backend's stream is open");
        let frame = in_time(self.body.frame()).await.expect("the watch goes on").unwrap();
        assert_eq!(frame.into_data().unwrap(), event);
    }
}
