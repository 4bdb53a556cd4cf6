//! The clients: those that watch, those that come and go, those that stay, those that break off, and those that do not
//! read.

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

use crate::backend::{LIST, LIST_LENGTH, PERIOD, WATCH};
use crate::count::Count;

/// Watches on each connection of HTTP/2.
const STREAMS: usize = 50;
/// Clients of each kind and each version of HTTP that make requests.
const BUSY: usize = 2;
/// Requests on a connection that is then given up.
const VISIT: usize = 5;
/// Requests of one who stays, until one for a large list.
const SMALL: usize = 100;
/// Between two requests of one client.
const PAUSE: Duration = Duration::from_millis(20);
/// A watch that says nothing for this long is taken for dropped.
const SILENCE: Duration = Duration::from_secs(15);
const TOKEN: (&str, &str) = ("authorization", "Bearer good-token");

pub(crate) struct Crowd {
    tasks: JoinSet<()>,
    ending: watch::Sender<bool>,
    _stalled: Vec<Stalled>,
}

#[derive(Clone)]
struct Member {
    process: Arc<GatewayProcess>,
    alice: Arc<Issued>,
    count: Arc<Count>,
    ending: watch::Receiver<bool>,
}

impl Crowd {
    /// Opens every watch, and sets the rest going.
    pub(crate) async fn start(
        process: &Arc<GatewayProcess>,
        pki: &Pki,
        count: &Arc<Count>,
        watches: usize,
    ) -> Self {
        let (ending, end) = watch::channel(false);
        let member = Member {
            process: Arc::clone(process),
            alice: Arc::new(pki.clients.leaf().cn("alice").issue()),
            count: Arc::clone(count),
            ending: end,
        };
        let mut tasks = JoinSet::new();
        let mut open = 0;
        while open < watches {
            let http2 = open >= watches / 2;
            let mut client = member.connect(http2).await;
            let many = if http2 { STREAMS.min(watches - open) } else { 1 };
            for _ in 0..many {
                let response = client.get(WATCH, &[]).await;
                assert_eq!(response.status(), 200);
                count.watch_opened();
                tasks.spawn(member.clone().watch(response.into_body()));
            }
            open += many;
        }
        let stalled = member.stall().await;
        for http2 in [false, true] {
            for _ in 0..BUSY {
                tasks.spawn(member.clone().stay(http2));
                tasks.spawn(member.clone().come_and_go(http2));
                tasks.spawn(member.clone().break_off(http2));
                tasks.spawn(member.clone().stop_half_way(http2));
            }
        }
        Self { tasks, ending, _stalled: stalled }
    }

    /// Ends all clients; one that could not connect or was cut off has panicked.
    pub(crate) async fn end(mut self, count: &Count) {
        self.ending.send_replace(true);
        while let Some(ended) = self.tasks.join_next().await {
            if ended.is_err() {
                count.request(false);
            }
        }
    }
}

impl Member {
    async fn connect(&self, http2: bool) -> Client {
        Client::connect(&self.process.gateway, http2, Some(&self.alice)).await
    }

    fn goes_on(&self) -> bool {
        !*self.ending.borrow()
    }

    /// Reads a watch until the end: each event must come, in order.
    async fn watch(mut self, mut body: Incoming) {
        let (mut text, mut expected, mut last) = (Vec::new(), 0, Instant::now());
        loop {
            let frame = tokio::select! {
                frame = timeout(SILENCE, body.frame()) => frame,
                _ = self.ending.wait_for(|ending| *ending) => return,
            };
            let data = match frame {
                Ok(Some(Ok(frame))) => frame.into_data().unwrap(),
                Ok(Some(Err(error))) => return self.count.watch_dropped(&error.to_string()),
                Ok(None) => return self.count.watch_dropped("it ended"),
                Err(_) => return self.count.watch_dropped("it fell silent"),
            };
            text.extend_from_slice(&data);
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                let number: u64 = std::str::from_utf8(&line).unwrap().trim().parse().unwrap();
                let late = last.elapsed().saturating_sub(PERIOD);
                self.count.event(number.abs_diff(expected), late);
                (expected, last) = (number + 1, Instant::now());
            }
        }
    }

    /// Makes requests on one connection, by a token.
    async fn stay(self, http2: bool) {
        let mut client = self.connect(http2).await;
        while self.goes_on() {
            for _ in 0..SMALL {
                self.ask(&mut client, &[TOKEN]).await;
            }
            let list = text(client.get(LIST, &[TOKEN]).await).await;
            self.count.request(list.len() == LIST_LENGTH);
        }
    }

    /// Makes a few requests on one connection after another.
    async fn come_and_go(self, http2: bool) {
        while self.goes_on() {
            let mut client = self.connect(http2).await;
            for _ in 0..VISIT {
                self.ask(&mut client, &[]).await;
            }
        }
    }

    async fn ask(&self, client: &mut Client, headers: &[(&str, &str)]) {
        self.count.request(client.code(headers).await == 200);
        sleep(PAUSE).await;
    }
}
