//! Watches move to an endpoint that has few of them, and nothing else ends.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use testkit::body::{Frames, fed};
use testkit::self_check;
use testkit::{FakeBackend, Gateway, H2, Pki, in_time, until};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::endpoints::{configuration_of, trusts};
use crate::gateway::InProcess as _;

const TOKEN: (&str, &str) = ("authorization", "Bearer good-token");
const WATCH: &str = "/api/v1/pods?watch=true";
const LOG: &str = "/api/v1/namespaces/n/pods/p/log?follow=true";
const WATCHES: usize = 60;

/// How an API server sends events; as compressed ones, each is a gzip member.
// apiserver: pkg/endpoints/handlers/responsewriters/compression.go, of 1.37
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Identity,
    Gzip,
}

impl Encoding {
    fn event(self) -> Bytes {
        const EVENT: &[u8] = b"event\n";
        if self == Self::Identity {
            return Bytes::from_static(EVENT);
        }
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(EVENT).unwrap();
        encoder.finish().unwrap().into()
    }
}

/// An API server whose watches begin with an event and the half of another, and go on until they are ended.
struct Server {
    backend: FakeBackend,
    /// Whether it passes its self-check.
    passes: Arc<AtomicBool>,
    watches: Arc<AtomicUsize>,
    /// Whether the second event of a watch is sent as a whole.
    completes: Arc<AtomicBool>,
    opened: mpsc::UnboundedReceiver<(String, Frames)>,
}

impl Server {
    async fn start(pki: &Pki, passes: bool, encoding: Encoding) -> Self {
        let passes = Arc::new(AtomicBool::new(passes));
        let watches = Arc::new(AtomicUsize::new(0));
        let (sender, opened) = mpsc::unbounded_channel();
        let completes = Arc::new(AtomicBool::new(false));
        let (passing, count, completing) =
            (Arc::clone(&passes), Arc::clone(&watches), Arc::clone(&completes));
        let own = move |request: &Request<Incoming>| {
            let own = self_check::answer(request)?;
            let unavailable = || self_check::respond(StatusCode::SERVICE_UNAVAILABLE, &serde_json::json!({}));
            Some(if passing.load(Ordering::SeqCst) { own } else { unavailable() })
        };
        let backend = FakeBackend::with_self_check(pki, H2, own, move |request| {
            let (frames, body, _) = fed();
            let path = request.uri().path_and_query().unwrap().to_string();
            if [WATCH, LOG].contains(&path.as_str()) {
                count.fetch_add(1, Ordering::SeqCst);
                let event = encoding.event();
                let half = event.slice(..event.len() / 2);
                frames.send(Frame::data(event.clone())).unwrap();
                if path == WATCH {
                    let next = if completing.load(Ordering::SeqCst) { event } else { half };
                    frames.send(Frame::data(next)).unwrap();
                }
                sender.send((path, frames)).unwrap();
            }
            let mut response = Response::builder().header("content-type", "application/json;stream=watch");
            if encoding == Encoding::Gzip {
                response = response.header("content-encoding", "gzip");
            }
            let response = response.body(body).unwrap();
            Box::pin(async { response })
        })
        .await;
        Self { backend, passes, watches, completes, opened }
    }
}

/// The second endpoint has passed no self-check at first, as one that has just been started.
#[tokio::test]
async fn watches_move_to_an_endpoint_that_has_returned() {
    watches_move(Encoding::Identity).await;
}

/// All Go informers in front of Kubernetes 1.37 have compressed watches.
#[tokio::test]
async fn compressed_watches_move_too() {
    watches_move(Encoding::Gzip).await;
}

async fn watches_move(encoding: Encoding) {
    let pki = Pki::new();
    let mut first = Server::start(&pki, true, encoding).await;
    let second = Server::start(&pki, false, encoding).await;
    let flags = configuration_of(&pki, &[first.backend.address, second.backend.address], "");
    let gateway = Arc::new(Gateway::adjusted(flags, |settings| {
        for cluster in &mut settings.clusters {
            let moves = Arc::get_mut(cluster).unwrap().backend.policy.watch_moves.as_mut().unwrap();
            (moves.interval, moves.min_age, moves.calm) = [Duration::ZERO; 3].into();
        }
    }));
    trusts(&gateway, &first.backend, true).await;

    let mut log = gateway.http1(None).await;
    let mut log = log.get(LOG, &[TOKEN]).await.into_body();
    let mut clients = JoinSet::new();
    let ended = Arc::new(AtomicUsize::new(0));
    for _ in 0..WATCHES {
        let mut client = gateway.http1(None).await;
        let ended = Arc::clone(&ended);
        let two_events = encoding.event().repeat(2);
        clients.spawn(async move {
            loop {
                let response = client.get(WATCH, &[TOKEN]).await;
                assert_eq!(response.status(), StatusCode::OK);
                let whole = response.into_body().collect().await.expect("the end is no error").to_bytes();
                assert_eq!(whole, two_events, "no event is cut");
                ended.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    until("all watches", || first.watches.load(Ordering::SeqCst) == WATCHES + 1).await;
    assert_eq!(ended.load(Ordering::SeqCst), 0, "there is no other endpoint");

    second.passes.store(true, Ordering::SeqCst);
    trusts(&gateway, &second.backend, true).await;
    let address = first.backend.address;
    let moved = format!("portcullis_endpoint_moved_watches_total{{cluster=\"c\",endpoint=\"{address}\"}} ");
    gateway.until_counted_as(&moved, |line| line.starts_with(&moved)).await;
    assert_eq!(ended.load(Ordering::SeqCst), 0, "their event is not complete");
    for server in [&first, &second] {
        server.completes.store(true, Ordering::SeqCst);
    }
    let mut open = Vec::new();
    while let Ok((path, frames)) = first.opened.try_recv() {
        if path == WATCH {
            let event = encoding.event();
            frames.send(Frame::data(event.slice(event.len() / 2..))).unwrap();
        }
        open.push((path, frames));
    }
    // 1.2 times the mean of 30, and 8 more.
    until("their move", || second.watches.load(Ordering::SeqCst) >= WATCHES - 44).await;
    let counted = |line: &str| {
        line.strip_prefix(&moved).is_some_and(|count| count.parse::<usize>().unwrap() >= WATCHES - 44)
    };
    gateway.until_counted_as(&moved, counted).await;
    let last = ended.load(Ordering::SeqCst);
    assert!((WATCHES - 44..WATCHES / 2).contains(&last), "no more than the balance requires: {last}");
    assert!(clients.try_join_next().is_none());
    // A log is not resumed by its client.
    let (_, frames) = open.iter().find(|(path, _)| path == LOG).unwrap();
    frames.send(Frame::data("more\n".into())).unwrap();
    let (expected, mut received) = ([&encoding.event()[..], b"more\n"].concat(), Vec::new());
    while received != expected {
        let frame = in_time(log.frame()).await.unwrap().unwrap();
        received.extend_from_slice(&frame.into_data().unwrap());
    }
}
