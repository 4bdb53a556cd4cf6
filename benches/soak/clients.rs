//! The clients of the soak test: watches, clients that reconnect, clients that keep their connections, clients that
//! abort requests, and clients that do not read.

mod leaving;
mod stalling;

use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use testkit::Pki;
use testkit::gateway_process::GatewayProcess;
use testkit::pki::Issued;
use testkit::{client::Client, text};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use stalling::Stalled;

use crate::backend::{EVENT_INTERVAL, LIST, LIST_LENGTH, WATCH};
use crate::count::Counters;

/// Watches per HTTP/2 connection.
const STREAMS: usize = 50;
/// Clients of each kind and HTTP version that send requests.
const BUSY: usize = 2;
/// Requests per connection of a client that reconnects.
const REQUESTS_PER_CONNECTION: usize = 5;
/// Small requests between two large lists, on a connection that is kept.
const SMALL_REQUESTS: usize = 100;
/// Pause between two requests of one client.
const PAUSE: Duration = Duration::from_millis(20);
/// A watch without events for this long counts as dropped.
const EVENT_TIMEOUT: Duration = Duration::from_secs(15);
const TOKEN: (&str, &str) = ("authorization", "Bearer good-token");

pub(crate) struct Clients {
    tasks: JoinSet<()>,
    ending: watch::Sender<bool>,
    _stalled: Vec<Stalled>,
}

#[derive(Clone)]
struct ClientContext {
    process: Arc<GatewayProcess>,
    alice: Arc<Issued>,
    count: Arc<Counters>,
    ending: watch::Receiver<bool>,
}

impl Clients {
    /// Opens all watches and starts the other clients.
    pub(crate) async fn start(
        process: &Arc<GatewayProcess>,
        pki: &Pki,
        count: &Arc<Counters>,
        watches: usize,
    ) -> Self {
        let (ending, end) = watch::channel(false);
        let context = ClientContext {
            process: Arc::clone(process),
            alice: Arc::new(pki.clients.leaf().cn("alice").issue()),
            count: Arc::clone(count),
            ending: end,
        };
        let mut tasks = JoinSet::new();
        let mut open = 0;
        while open < watches {
            let http2 = open >= watches / 2;
            let mut client = context.connect(http2).await;
            let streams = if http2 { STREAMS.min(watches - open) } else { 1 };
            for _ in 0..streams {
                let response = client.get(WATCH, &[]).await;
                assert_eq!(response.status(), 200);
                count.watch_opened();
                tasks.spawn(context.clone().watch(response.into_body()));
            }
            open += streams;
        }
        let stalled = context.stall().await;
        for http2 in [false, true] {
            for _ in 0..BUSY {
                tasks.spawn(context.clone().request_on_one_connection(http2));
                tasks.spawn(context.clone().reconnect_often(http2));
                tasks.spawn(context.clone().abort_requests(http2));
                tasks.spawn(context.clone().abandon_list(http2));
            }
        }
        Self { tasks, ending, _stalled: stalled }
    }

    /// Stops all clients. A client that could not connect, or whose connection broke, has panicked and counts as
    /// failed.
    pub(crate) async fn end(mut self, count: &Counters) {
        self.ending.send_replace(true);
        while let Some(ended) = self.tasks.join_next().await {
            if ended.is_err() {
                count.request(false);
            }
        }
    }
}

impl ClientContext {
    async fn connect(&self, http2: bool) -> Client {
        Client::connect(&self.process.gateway, http2, Some(&self.alice)).await
    }

    fn is_running(&self) -> bool {
        !*self.ending.borrow()
    }

    /// Reads a watch until the test ends, and checks that each event arrives, in order.
    async fn watch(mut self, mut body: Incoming) {
        let (mut text, mut expected, mut last) = (Vec::new(), 0, Instant::now());
        loop {
            let frame = tokio::select! {
                frame = timeout(EVENT_TIMEOUT, body.frame()) => frame,
                _ = self.ending.wait_for(|ending| *ending) => return,
            };
            let data = match frame {
                Ok(Some(Ok(frame))) => frame.into_data().unwrap(),
                Ok(Some(Err(error))) => return self.count.watch_dropped(&error.to_string()),
                Ok(None) => return self.count.watch_dropped("the response ended"),
                Err(_) => return self.count.watch_dropped("no events"),
            };
            text.extend_from_slice(&data);
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                let number: u64 = std::str::from_utf8(&line).unwrap().trim().parse().unwrap();
                let delay = last.elapsed().saturating_sub(EVENT_INTERVAL);
                self.count.event(number.abs_diff(expected), delay);
                (expected, last) = (number + 1, Instant::now());
            }
        }
    }

    /// Sends requests with a token on one connection.
    async fn request_on_one_connection(self, http2: bool) {
        let mut client = self.connect(http2).await;
        while self.is_running() {
            for _ in 0..SMALL_REQUESTS {
                self.request(&mut client, &[TOKEN]).await;
            }
            let list = text(client.get(LIST, &[TOKEN]).await).await;
            self.count.request(list.len() == LIST_LENGTH);
        }
    }

    /// Sends a few requests with a certificate on each connection, then opens another.
    async fn reconnect_often(self, http2: bool) {
        while self.is_running() {
            let mut client = self.connect(http2).await;
            for _ in 0..REQUESTS_PER_CONNECTION {
                self.request(&mut client, &[]).await;
            }
        }
    }

    async fn request(&self, client: &mut Client, headers: &[(&str, &str)]) {
        self.count.request(client.code(headers).await == 200);
        sleep(PAUSE).await;
    }
}
