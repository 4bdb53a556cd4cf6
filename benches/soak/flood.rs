//! Floods beside honest clients, whose requests are measured first without one and then with it. Every server that the gateway asks
//! about tokens counts how often it does.

mod connections;
mod flooded_gateway;
mod headers;
mod honest;
mod report;
mod senders;
mod tokens;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use flooded_gateway::FloodedGateway;
use honest::{Kind, Times};
use report::Moment;
use senders::Sender;
use tokens::Forger;

/// Clients of each version of HTTP, or twice as many where there is but one.
const CLIENTS: usize = 8;

/// What there is too much of.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Flood {
    /// Made-up tokens of every shape, over both versions of HTTP.
    Tokens,
    /// Anonymous requests, over both versions of HTTP.
    Anonymous,
    /// Requests over HTTP/2 that are taken back as soon as they are made.
    Resets,
    /// Connections that never say anything.
    Silence,
    /// Headers for which Go's server ends a connection, beside watches.
    LargeHeaders,
}

impl Flood {
    /// Sets one of its clients going; each tells in the end how often it did it.
    fn start(
        self,
        subject: &Arc<FloodedGateway>,
        number: usize,
        end: &watch::Receiver<bool>,
        flood: &mut JoinSet<u64>,
    ) {
        let (gateway, end) = (subject.process.gateway.address, end.clone());
        match self {
            Self::Tokens => {
                let mut forger = Forger::new(subject, number);
                let token = move || Some(forger.token());
                let sender = Sender { gateway, token, codes: &[401], end };
                flood.spawn(sender.clone().over_http1());
                flood.spawn(sender.over_http2());
            }
            Self::Anonymous => {
                let sender = Sender { gateway, token: || None, codes: &[200, 429], end };
                flood.spawn(sender.clone().over_http1());
                flood.spawn(sender.over_http2());
            }
            Self::Resets => {
                for _ in 0..2 {
                    flood.spawn(connections::take_back(Arc::clone(subject), end.clone()));
                }
            }
            // Starts a gateway of its own.
            Self::LargeHeaders => {}
            Self::Silence => {
                for _ in 0..2 {
                    flood.spawn(connections::say_nothing(Arc::clone(subject), end.clone()));
                }
            }
        }
    }
}

/// Half of the time without a flood, then all of it with one.
pub(crate) async fn run(flood: Flood, seconds: u64) -> ExitCode {
    if matches!(flood, Flood::LargeHeaders) {
        return headers::run(seconds).await;
    }
    let lasting = Duration::from_secs(seconds);
    let subject = FloodedGateway::start().await;
    let quiet = honest(&subject, lasting / 2).await;
    println!("{} s without a flood are over; {seconds} s with one begin", seconds / 2);

    let before = Moment::of(&subject).await;
    let (ending, end) = watch::channel(false);
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        flood.start(&subject, number, &end, &mut clients);
    }
    let flooded = honest(&subject, lasting).await;
    let after = Moment::of(&subject).await;
    ending.send_replace(true);
    let sent: u64 = clients.join_all().await.into_iter().sum();
    let subject = Arc::into_inner(subject).expect("all clients have ended");
    let (_, said) = subject.process.end().await;
    report::print(sent, &before, &after, &quiet, &flooded, &said)
}

/// What honest clients find in that time.
async fn honest(subject: &Arc<FloodedGateway>, lasting: Duration) -> Vec<(Kind, Times)> {
    let (ending, end) = watch::channel(false);
    let clients: Vec<_> = Kind::ALL
        .into_iter()
        .flat_map(|kind| [false, true].map(|http2| (kind, http2)))
        .map(|(kind, http2)| {
            (kind, tokio::spawn(honest::go_on(Arc::clone(subject), kind, http2, end.clone())))
        })
        .collect();
    sleep(lasting).await;
    ending.send_replace(true);
    let mut all: Vec<(Kind, Times)> = Kind::ALL.map(|kind| (kind, Times::default())).into();
    for (kind, client) in clients {
        // One who was cut off has panicked.
        let times = client.await.unwrap_or_else(|_| Times::failure());
        for (_, sum) in all.iter_mut().filter(|(known, _)| *known == kind) {
            sum.add(&times);
        }
    }
    all
}
