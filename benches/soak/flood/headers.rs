//! Clients whose headers make Go's server close HTTP/2 connections, beside watches of other clients.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use testkit::gateway_process::GatewayProcess;
use testkit::large_headers::{forms, with_trailers};
use testkit::pki::Issued;
use testkit::{Pki, flags};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::clients::Clients;
use crate::count::Counters;

const WATCHES: usize = 200;
/// Clients of the flood; each keeps a megabyte in flight.
const CLIENTS: usize = 2;
/// A watch, so that the gateway sends the request on a backend connection of other watches, which would end with it.
const PATH: &str = "/api/v1/secrets?watch=1";

/// Number of responses by form of the header and status code; no code for a connection closed without a response.
type ResponseCounts = BTreeMap<(&'static str, Option<u16>), u64>;

pub(crate) async fn run(seconds: u64) -> ExitCode {
    let pki = Arc::new(Pki::new());
    let backend = crate::backend::start(&pki).await;
    let process = Arc::new(GatewayProcess::start(crate::PORTCULLIS, flags(&pki, backend.address)).await);
    let count = Arc::new(Counters::default());
    let clients = Clients::start(&process, &pki, &count, WATCHES).await;
    println!("{WATCHES} watches are open; sending large headers for {seconds} s");
    let mallory = Arc::new(pki.clients.leaf().cn("mallory").issue());
    let (ending, end) = watch::channel(false);
    let mut flood = JoinSet::new();
    for _ in 0..CLIENTS {
        flood.spawn(send(Arc::clone(&process), Arc::clone(&mallory), end.clone()));
    }
    sleep(Duration::from_secs(seconds)).await;
    ending.send_replace(true);
    let mut answers = ResponseCounts::new();
    while let Some(sent) = flood.join_next().await {
        // A client that could not connect in time has panicked, which does not count as a failure of the gateway.
        for (answer, times) in sent.unwrap_or_default() {
            *answers.entry(answer).or_default() += times;
        }
    }
    clients.end(&count).await;
    let counted = count.now();
    for ((form, code), times) in &answers {
        let code = code.map_or_else(|| "no answer".to_owned(), |code| code.to_string());
        println!("{form:>32}  {times} times {code}");
    }
    println!("{:>32}  {}", "connections that Go would close", backend.ended());
    println!("{:>32}  {}, {} dropped", "watches", counted.open + counted.dropped, counted.dropped);
    println!(
        "{:>32}  {}, {} lost, at most {} ms late",
        "events", counted.events, counted.lost, counted.latest
    );
    println!("{:>32}  {}, {} failed", "requests of others", counted.requests, counted.failed);
    let passed = backend.ended() == 0 && counted.dropped + counted.lost + counted.failed == 0;
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Sends each form in turn until the end.
async fn send(
    process: Arc<GatewayProcess>,
    mallory: Arc<Issued>,
    end: watch::Receiver<bool>,
) -> ResponseCounts {
    let mut answers = ResponseCounts::new();
    let forms = forms(PATH);
    while !*end.borrow() {
        for (form, request, _) in &forms {
            let mut client = process.gateway.tls(b"http/1.1", Some(&mallory)).await;
            let mut answer = [0; 12];
            let answered = async {
                client.write_all(request).await?;
                client.read_exact(&mut answer).await
            };
            let code = answered.await.ok().and_then(|_| std::str::from_utf8(&answer[9..]).ok()?.parse().ok());
            *answers.entry((form, code)).or_default() += 1;
        }
        let mut client = process.gateway.http2(Some(&mallory)).await;
        let response = client.send(with_trailers("/api/v1/secrets", true)).await;
        let code = response.ok().map(|response| response.status().as_u16());
        *answers.entry(("long trailers", code)).or_default() += 1;
    }
    answers
}
