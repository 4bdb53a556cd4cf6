//! Denial-of-service tests. The latency of well-behaved clients is measured without the flood and then with it; the
//! fake issuer, webhook and API server count the gateway's calls.

mod connections;
mod flooded_gateway;
mod headers;
mod honest;
mod impersonations;
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
use honest::{ClientKind, ResponseTimes};
use report::CounterSnapshot;
use senders::Sender;
use tokens::InvalidTokens;

/// Clients per HTTP version; twice as many if the flood uses only one version.
const CLIENTS: usize = 8;

/// The kind of flood.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Flood {
    /// Invalid tokens of several formats, over HTTP/1.1 and HTTP/2.
    Tokens,
    /// Anonymous requests, over HTTP/1.1 and HTTP/2.
    Anonymous,
    /// HTTP/2 streams that are reset immediately (rapid reset).
    Resets,
    /// Connections that never send a byte.
    Silence,
    /// One user that impersonates ten thousand users.
    Impersonations,
    /// Headers so large that Go's server would close the HTTP/2 connection, which carries other clients' watches.
    LargeHeaders,
}

impl Flood {
    /// Starts one client of the flood. Its tasks return their number of requests or connections.
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
                let mut tokens = InvalidTokens::new(subject, number);
                let token = move || Some(tokens.next_token());
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
                    flood.spawn(connections::reset_streams(Arc::clone(subject), end.clone()));
                }
            }
            // `impersonations::run` and `headers::run` handle these kinds.
            Self::Impersonations | Self::LargeHeaders => {}
            Self::Silence => {
                for _ in 0..2 {
                    flood.spawn(connections::open_silent_connections(Arc::clone(subject), end.clone()));
                }
            }
        }
    }
}

/// Runs half of the time without the flood, then the whole time with it.
pub(crate) async fn run(flood: Flood, seconds: u64) -> ExitCode {
    match flood {
        Flood::LargeHeaders => return headers::run(seconds).await,
        Flood::Impersonations => return impersonations::run(seconds).await,
        _ => {}
    }
    let duration = Duration::from_secs(seconds);
    let subject = FloodedGateway::start().await;
    let quiet = run_honest_clients(&subject, duration / 2).await;
    println!("baseline of {} s finished; starting a flood of {seconds} s", seconds / 2);

    let before = CounterSnapshot::of(&subject).await;
    let (ending, end) = watch::channel(false);
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        flood.start(&subject, number, &end, &mut clients);
    }
    let flooded = run_honest_clients(&subject, duration).await;
    let after = CounterSnapshot::of(&subject).await;
    ending.send_replace(true);
    let sent: u64 = clients.join_all().await.into_iter().sum();
    let subject = Arc::into_inner(subject).expect("all clients have ended");
    let (_, log) = subject.process.end().await;
    report::print(sent, &before, &after, &quiet, &flooded, &log)
}

/// Runs the well-behaved clients. Returns their response times by authentication method.
async fn run_honest_clients(
    subject: &Arc<FloodedGateway>,
    duration: Duration,
) -> Vec<(ClientKind, ResponseTimes)> {
    let (ending, end) = watch::channel(false);
    let clients: Vec<_> = ClientKind::ALL
        .into_iter()
        .flat_map(|kind| [false, true].map(|http2| (kind, http2)))
        .map(|(kind, http2)| {
            (kind, tokio::spawn(honest::run_client(Arc::clone(subject), kind, http2, end.clone())))
        })
        .collect();
    sleep(duration).await;
    ending.send_replace(true);
    let mut all: Vec<(ClientKind, ResponseTimes)> =
        ClientKind::ALL.map(|kind| (kind, ResponseTimes::default())).into();
    for (kind, client) in clients {
        // A client whose connection broke has panicked.
        let times = client.await.unwrap_or_else(|_| ResponseTimes::failure());
        for (_, sum) in all.iter_mut().filter(|(known, _)| *known == kind) {
            sum.add(&times);
        }
    }
    all
}
