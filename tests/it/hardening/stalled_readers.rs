//! Clients that do not read responses: no other request is delayed, not even on the same connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use testkit::body::{Frames, endless, fed};
use testkit::client::Client;
use testkit::pki::Issued;
use testkit::{FakeBackend, Gateway, H2, Pki, full, in_time, text, until};
use tokio::sync::mpsc;

use crate::gateway::InProcess as _;

/// A watch whose events the test sends, and a short request.
const WATCH: &str = "/api/v1/pods?watch=true";
const SHORT: &str = "/api/v1/pods";
const SHORT_LENGTH: usize = 100_000;
/// The paths that stalled clients request: a long-running request and a short one. Both responses are endless.
const ENDLESS: [&str; 2] = ["/api/v1/events?watch=true", "/api/v1/events"];
/// The number of streams that a client may open on one connection.
const STREAMS: usize = 100;
/// The number of events that a watch sends at once: more than every window on the path holds.
const EVENTS: usize = 256;
const EVENT: usize = 4096;

struct EndlessAnswers {
    _pki: Pki,
    backend: FakeBackend,
    gateway: Gateway,
    alice: Issued,
    /// How many frames of endless responses the gateway has read.
    taken: Arc<AtomicUsize>,
    watches: mpsc::UnboundedReceiver<Frames>,
}

impl EndlessAnswers {
    async fn start() -> Self {
        let pki = Pki::new();
        let taken = Arc::new(AtomicUsize::new(0));
        let (begun, watches) = mpsc::unbounded_channel();
        let counted = Arc::clone(&taken);
        let backend = FakeBackend::start(&pki, H2, move |request| {
            let path = request.uri().path_and_query().unwrap().as_str();
            let body = if path == WATCH {
                let (events, body, _) = fed();
                begun.send(events).unwrap();
                body
            } else if ENDLESS.contains(&path) {
                let counted = Arc::clone(&counted);
                let count = move |frame| {
                    counted.fetch_add(1, Ordering::SeqCst);
                    frame
                };
                endless().0.map_frame(count).boxed()
            } else {
                full(vec![b'x'; SHORT_LENGTH])
            };
            Box::pin(async { Response::new(body) })
        })
        .await;
        let gateway = Gateway::start(&pki, &backend);
        let alice = pki.clients.leaf().cn("alice").issue();
        Self { _pki: pki, backend, gateway, alice, taken, watches }
    }

    async fn client(&self, http2: bool) -> Client {
        Client::connect(&self.gateway, http2, Some(&self.alice)).await
    }

    /// Opens a connection with `answers` responses, of which the client reads nothing.
    async fn stall(&self, http2: bool, path: &str, answers: usize) -> (Client, Vec<Response<Incoming>>) {
        let mut client = Client::narrow(&self.gateway, http2, Some(&self.alice)).await;
        let mut unread = Vec::new();
        for _ in 0..answers {
            unread.push(client.get(path, &[]).await);
        }
        (client, unread)
    }

    /// Waits until the backend's writes to the stalled clients block, while other requests proceed.
    async fn until_all_are_stalled(&self) {
        let mut client = self.client(false).await;
        in_time(async {
            let mut before = 0;
            loop {
                serves(&mut client).await;
                let taken = self.taken.load(Ordering::SeqCst);
                if taken == before {
                    return;
                }
                before = taken;
            }
        })
        .await;
    }

    async fn watch(&mut self, client: &mut Client) -> Watch {
        let body = client.get(WATCH, &[]).await.into_body();
        Watch { body, events: in_time(self.watches.recv()).await.unwrap() }
    }

    /// Checks that watches and requests proceed beside stalled `connections` (HTTP/1.1, HTTP/2) with `answers` unread
    /// responses each.
    async fn is_undisturbed_by(&mut self, path: &str, connections: [usize; 2], answers: usize) {
        let mut old = Vec::new();
        for http2 in [false, true] {
            let (client, mut watching) = (self.client(http2).await, self.client(http2).await);
            let watch = self.watch(&mut watching).await;
            old.push((client, watching, watch));
        }
        let mut stalled = Vec::new();
        for (http2, connections) in [false, true].into_iter().zip(connections) {
            for _ in 0..connections {
                stalled.push(self.stall(http2, path, answers).await);
            }
        }
        self.until_all_are_stalled().await;
        let given = self.taken.load(Ordering::SeqCst);
        assert!(given >= stalled.len() * answers, "only {given} frames of the responses were read");

        for (client, _watching, watch) in &mut old {
            serves(client).await;
            watch.delivers_all_events().await;
        }
        for http2 in [false, true] {
            let mut client = self.client(http2).await;
            serves(&mut client).await;
            self.watch(&mut client).await.delivers_all_events().await;
        }
        // The last stream of a connection whose other streams are stalled.
        if let Some((client @ Client::Two(_), _)) = stalled.last_mut() {
            serves(client).await;
            self.watch(client).await.delivers_all_events().await;
        }
    }
}

/// A watch and the sender of its events.
struct Watch {
    body: Incoming,
    events: Frames,
}

impl Watch {
    /// Checks that all events arrive in order.
    async fn delivers_all_events(&mut self) {
        let sent: Vec<u8> =
            (0..EVENTS).flat_map(|number| format!("{number:0>EVENT$}").into_bytes()).collect();
        for event in sent.chunks(EVENT) {
            self.events.send(Frame::data(Bytes::copy_from_slice(event))).unwrap();
        }
        let mut read = Vec::new();
        while read.len() < sent.len() {
            let frame = in_time(self.body.frame()).await.expect("the watch goes on").unwrap();
            read.extend_from_slice(&frame.into_data().unwrap());
        }
        assert!(read == sent, "events are missing, or in another order");
    }
}

/// Checks that requests are answered, one after another.
async fn serves(client: &mut Client) {
    for _ in 0..10 {
        assert_eq!(text(client.get(SHORT, &[]).await).await.len(), SHORT_LENGTH);
    }
}

#[tokio::test]
async fn the_last_stream_of_a_connection_proceeds_while_all_others_stall() {
    for path in ENDLESS {
        EndlessAnswers::start().await.is_undisturbed_by(path, [0, 1], STREAMS - 1).await;
    }
}

#[tokio::test]
async fn stalled_responses_on_many_connections_do_not_disturb_others() {
    for path in ENDLESS {
        EndlessAnswers::start().await.is_undisturbed_by(path, [64, 64], 1).await;
    }
}

#[tokio::test]
async fn more_responses_may_stall_than_a_backend_connection_has_streams() {
    for path in ENDLESS {
        let mut setup = EndlessAnswers::start().await;
        let before = setup.backend.connections();
        setup.is_undisturbed_by(path, [0, 3], STREAMS - 1).await;
        // The gateway has one connection of each kind in any case.
        assert!(setup.backend.connections() > before + 2, "{} connections", setup.backend.connections());
    }
}

// kube-apiserver aborts the connection (HTTP/1.1) or the stream (HTTP/2) when the timeout filter's time is up, also
// when the handler is blocked in a write to a client that does not read.
#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off_at_the_deadline() {
    let pki = Pki::new();
    let (started, mut bodies) = mpsc::unbounded_channel();
    let backend = FakeBackend::start(&pki, H2, move |request: Request<_>| {
        if request.uri().path() == "/api" {
            return Box::pin(async { Response::new(full("ok")) });
        }
        let (body, gone) = endless();
        started.send(gone).unwrap();
        Box::pin(async { Response::new(body) })
    })
    .await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut http1 = gateway.http1(Some(&alice)).await;
    let mut http2 = gateway.http2(Some(&alice)).await;
    // Connects first, so that the deadline does not include the handshake.
    text(http2.get("/api", &[]).await).await;
    let path = "/api/v1/pods?timeout=2s";
    for (version, response) in
        [("HTTP/1.1", http1.get(path, &[]).await), ("HTTP/2", http2.get(path, &[]).await)]
    {
        assert_eq!(response.status(), StatusCode::OK);
        let gone = in_time(bodies.recv()).await.unwrap();
        until(&format!("the end of the backend's stream, {version}"), || gone.load(Ordering::SeqCst)).await;
        assert!(
            in_time(response.into_body().collect()).await.is_err(),
            "{version}: the truncated response looks complete"
        );
    }
}
