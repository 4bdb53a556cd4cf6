//! A soak test: the gateway under the load of a busy cluster, with open watches, short requests, clients that
//! reconnect, abort requests or do not read, and frequent reloads. It fails if a watch is dropped, an event is lost, a
//! request of a well-behaved client fails, or the gateway keeps resources of disconnected clients.
//!
//! `--flood` runs a denial-of-service test instead, with invalid tokens or another kind of load, beside well-behaved
//! clients. It fails if the gateway calls an issuer, webhook or API server more often than its rate limits allow, or if
//! a request of a well-behaved client fails.
//!
//! `--replicas` kills, stops and restarts real API servers and gateways under load.
//!
//! `--tenants` runs attacks of a tenant, and of a user, beside the clients, probes, reloads and audit of the operator. It
//! fails if one of these is harmed, or if memory or descriptors exceed the documented figures.
//!
//! `--requests` creates many certificate signing requests that stay pending, and measures those of a kubelet;
//! `--pod-requests` the same with requests of certificates for pods.
//!
//! `cargo bench --bench soak -- --seconds 60 --watches 1000 --reloads 100`
//! `cargo bench --bench soak -- --flood --seconds 60`
//! `cargo bench --bench soak -- --requests 100000`
//! `cargo bench --bench soak -- --audit --seconds 60`
//! `cargo bench --bench soak -- --replicas --seconds 1500`
//! `cargo bench --bench soak -- --tenants --seconds 60`
//! `cargo bench --bench soak -- --tenants --only uploads,descriptors`
//! `cargo bench --bench soak -- --flood large-headers --seconds 60`
//! `cargo bench --bench soak -- --flood impersonations --seconds 80`

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a load test that is started manually"
)]

mod audit;
mod backend;
mod clients;
mod count;
mod flood;
mod memory;
mod replicas;
mod report;
mod requests;
mod rounds;
mod tenants;
mod verdict;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use testkit::gateway_process::GatewayProcess;
use testkit::{Pki, flags, open_files};

use count::Counters;

/// The path of the binary.
const PORTCULLIS: &str = env!("CARGO_BIN_EXE_portcullis");

/// Soak test of the gateway: open watches, requests and reloads at the same time.
#[derive(Parser, Clone)]
struct Options {
    /// Duration in seconds, from the time when all watches are open.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Number of watches, half of them over HTTP/1.1.
    #[arg(long, default_value_t = 1000)]
    watches: usize,
    /// Number of reloads in that time; each replaces certificates, CAs and tokens.
    #[arg(long, default_value_t = 100)]
    reloads: u32,
    /// Output format: a table that is printed during the test, or JSON at the end. With JSON, the table is written to
    /// standard error.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Runs a denial-of-service test instead (default: tokens). Prints the number of calls to the issuer, the webhook
    /// and the API server, and the latency of well-behaved clients.
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "tokens")]
    #[arg(group = "test", conflicts_with_all = ["watches", "reloads", "output"])]
    flood: Option<flood::Flood>,
    /// Tests the controllers with this number of pending certificate signing requests instead. Prints changes of the
    /// lease, the time until a kubelet's request is signed, memory, and the latency of other clients.
    #[arg(long, group = "test", conflicts_with_all = ["watches", "reloads", "output"])]
    requests: Option<usize>,
    /// The same with this number of requests of certificates for pods, half of them for pods that do not exist.
    #[arg(long, group = "test", conflicts_with_all = ["watches", "reloads", "output"])]
    pod_requests: Option<usize>,
    /// Tests audit instead, with a log that rotates and a webhook that fails half of the time. Counts the events of each
    /// request.
    #[arg(long, group = "test", conflicts_with_all = ["watches", "reloads", "output"])]
    audit: bool,
    /// Tests three real API servers behind two gateways instead, each of which is terminated, killed and stopped in turn.
    #[arg(long, group = "test", conflicts_with_all = ["watches", "reloads", "output"])]
    replicas: bool,
    /// Tests the isolation of tenants instead: one attack after another, each for `--seconds`. Prints what the operator's
    /// clients, probes, reloads and audit notice of it.
    #[arg(long, group = "test", conflicts_with_all = ["watches", "reloads", "output"])]
    tenants: bool,
    /// The attacks (default: all).
    #[arg(long, value_enum, value_name = "ATTACK", value_delimiter = ',', requires = "tenants")]
    only: Vec<tenants::Attack>,
    /// The process of an attacker.
    #[arg(long, hide = true)]
    attacker: Option<tenants::Attack>,
    /// Passed by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Table,
    Json,
}

impl Output {
    /// Prints a line of progress.
    fn show(self, line: &str) {
        match self {
            Self::Table => println!("{line}"),
            Self::Json => eprintln!("{line}"),
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    // This process holds the clients' and the backend's ends of all connections.
    open_files::raise_limit();
    if let Some(attack) = options.attacker {
        return tenants::run_attacker(attack).await;
    }
    if let Some(flood) = options.flood {
        return flood::run(flood, options.seconds).await;
    }
    if let Some(pending) = options.requests {
        return requests::run::<requests::SigningRequests>(pending).await;
    }
    if let Some(pending) = options.pod_requests {
        return requests::run::<requests::PodRequests>(pending).await;
    }
    if options.audit {
        return audit::run(options.seconds).await;
    }
    if options.replicas {
        return replicas::run(options.seconds).await;
    }
    if options.tenants {
        return Box::pin(tenants::run(&options.only, Duration::from_secs(options.seconds))).await;
    }
    let pki = Arc::new(Pki::new());
    let backend = Arc::new(backend::start(&pki).await);
    let flags = flags(&pki, backend.address).into_iter().chain(["--workers=0".to_owned()]);
    let process = Arc::new(GatewayProcess::start(PORTCULLIS, flags).await);
    let count = Arc::new(Counters::default());

    let clients = clients::Clients::start(&process, &pki, &count, options.watches).await;
    options.output.show(&format!(
        "{} watches are open; {} s, {} reloads",
        options.watches, options.seconds, options.reloads
    ));
    let duration = Duration::from_secs(options.seconds);
    let report = report::Report::start(&process, &backend, &count, duration, options.output);
    rounds::run(&process, &pki, &count, duration, options.reloads).await;
    let lines = report.end().await;
    clients.end(&count).await;
    let retained = verdict::RetainedResources::of(&process).await;

    let process = Arc::into_inner(process).expect("all clients have ended");
    let (exit_status, log) = process.end().await;
    verdict::print(&lines, &count.now(), &retained, exit_status, &log, options.output)
}
