//! A gateway under the load of a busy cluster, for a given time: open watches, short requests, clients that come and go,
//! break off halfway or do not read, and reloads all the while. No connection may be dropped, no event lost, no honest
//! request fail, and nothing be kept of clients that have left.
//!
//! With `--flood` it is a flood instead, of made-up tokens or of something else, and honest clients beside it:
//! every server that the gateway asks about tokens is asked a bounded number of times, and no honest request fails.
//!
//! With `--requests` it is certificate signing requests that stay undecided, and a kubelet beside them.
//!
//! `cargo bench --bench soak -- --seconds 60 --watches 1000 --reloads 100`
//! `cargo bench --bench soak -- --flood --seconds 60`
//! `cargo bench --bench soak -- --requests 100000`
//! `cargo bench --bench soak -- --flood large-headers --seconds 60`

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a load that is run by hand"
)]

mod backend;
mod clients;
mod count;
mod flood;
mod memory;
mod report;
mod requests;
mod rounds;
mod verdict;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use testkit::gateway_process::GatewayProcess;
use testkit::{Pki, flags, open_files};

use count::Count;

/// The path of the binary.
const PORTCULLIS: &str = env!("CARGO_BIN_EXE_portcullis");

/// Open watches, requests and reloads, all at once.
#[derive(Parser, Clone, Copy)]
struct Load {
    /// How long it lasts once every watch is open.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// How many watches are open, half of them over HTTP/1.1.
    #[arg(long, default_value_t = 1000)]
    watches: usize,
    /// How often certificates, authorities and tokens are replaced in that time.
    #[arg(long, default_value_t = 100)]
    reloads: u32,
    /// What is written to standard output: a table that grows while it lasts, or all of it as JSON at the end. The table
    /// goes to standard error then.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Floods the gateway instead, with tokens unless told otherwise; prints how often the issuer, the webhook and the API
    /// server were asked, and what honest clients notice.
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "tokens")]
    #[arg(conflicts_with_all = ["watches", "reloads", "output"])]
    flood: Option<flood::Flood>,
    /// Puts so many pending certificate signing requests before its controllers instead; prints what became of the lease,
    /// of a kubelet's request, of memory and of the latency of other clients.
    #[arg(long, conflicts_with_all = ["watches", "reloads", "output", "flood"])]
    requests: Option<usize>,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Table,
    Json,
}

impl Output {
    /// Shows a line while it lasts.
    fn show(self, line: &str) {
        match self {
            Self::Table => println!("{line}"),
            Self::Json => eprintln!("{line}"),
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let load = Load::parse();
    // Half of the connections are here, and most of the rest on the other side.
    open_files::raise_limit();
    if let Some(flood) = load.flood {
        return flood::run(flood, load.seconds).await;
    }
    if let Some(pending) = load.requests {
        return requests::run(pending).await;
    }
    let pki = Arc::new(Pki::new());
    let backend = Arc::new(backend::start(&pki).await);
    let flags = flags(&pki, backend.address).into_iter().chain(["--workers=0".to_owned()]);
    let process = Arc::new(GatewayProcess::start(PORTCULLIS, flags).await);
    let count = Arc::new(Count::default());

    let crowd = clients::Crowd::start(&process, &pki, &count, load.watches).await;
    load.output
        .show(&format!("{} watches are open; {} s, {} reloads", load.watches, load.seconds, load.reloads));
    let lasting = Duration::from_secs(load.seconds);
    let report = report::Report::start(&process, &backend, &count, lasting, load.output);
    rounds::run(&process, &pki, &count, lasting, load.reloads).await;
    let lines = report.end().await;
    crowd.end(&count).await;
    let left = verdict::Left::of(&process).await;

    let process = Arc::into_inner(process).expect("all clients have ended");
    let (ended, said) = process.end().await;
    verdict::print(&lines, &count.now(), &left, ended, &said, load.output)
}
