//! The gateway beside HAProxy and nginx at the same work: clients with certificates, identity in headers, TLS with a
//! certificate of the proxy's own to one backend. Each has one thread and takes turns with the others, so that
//! other load of the machine affects all of them.
//!
//! `cargo bench --bench compare`, and `-- --help` for the rest.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a measurement that is run by hand"
)]

mod aims;
mod chart;
mod child;
mod cost;
mod figures;
mod handshakes;
mod latency;
mod load;
mod progress;
mod proxies;
mod rates;
mod report;
mod senders;
mod setup;
mod watches;
mod wire;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum as _};
use testkit::open_files;
use tokio::signal::unix::{SignalKind, signal};

use figures::Figures;
use proxies::{Kind, Proxy};
use report::{Machine, Report};
use setup::CommonSetup;

const EXAMPLES: &str = "\
Examples:
  cargo bench --bench compare
  cargo bench --bench compare -- --only rates --case 'HTTP/2, 1 KiB' --seconds 5
  cargo bench --bench compare -- --baseline /tmp/portcullis-before
  cargo bench --bench compare -- --output json --svg compare.svg > compare.json";

/// The gateway beside HAProxy and nginx at the same work: what each of its CPU-seconds brings, what time it adds, and
/// what memory idle watches take.
///
/// Clients come with certificates; the backend learns who they are from headers, over TLS with the proxy's own
/// certificate. Each has as many threads, the same keys, and logs no request that succeeds. Turns are interleaved: on a
/// machine that does something else too, ratios still mean something where figures do not. All of it takes a quarter of
/// an hour.
#[derive(Parser, Clone)]
#[command(bin_name = "cargo bench --bench compare --", after_help = EXAMPLES)]
struct Options {
    /// How long each proxy is loaded in a turn.
    #[arg(long, default_value = "3", value_parser = seconds)]
    seconds: Duration,
    /// How often every proxy has its turn; medians of these are shown.
    #[arg(long, default_value = "5")]
    rounds: NonZeroUsize,
    /// How many threads each proxy has. The clients and the backend take turns on one each.
    #[arg(long, default_value = "1")]
    threads: NonZeroUsize,
    /// How many watches are open at least when their memory is measured.
    #[arg(long, default_value_t = 400)]
    watches: usize,
    /// What is measured, all of it unless told; may be given several times.
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    only: Vec<Part>,
    /// Only the cases whose names hold this, such as `HTTP/2` or `100 KiB`.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    case: String,
    /// How it is printed.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Also draws the figures as bars.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Another build of the gateway, measured in the same turns; a change is compared with the one before it.
    #[arg(long, value_name = "PROGRAM")]
    baseline: Option<PathBuf>,
    /// Installs HAProxy and nginx first, from Debian's packages, where they are missing.
    #[arg(long)]
    install: bool,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    fn wants(&self, case: &str) -> bool {
        case.contains(&self.case)
    }

    /// The order of so many proxies: each round begins with another one.
    fn turns(&self, many: usize) -> impl Iterator<Item = usize> {
        (0..self.rounds.get()).flat_map(move |round| (0..many).map(move |turn| (round + turn) % many))
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Output {
    Table,
    Json,
}

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Requests per second of processor time.
    Rates,
    /// The same for the gateway alone, by certificate and by token.
    Senders,
    /// Full handshakes with a client certificate per second of processor time.
    Handshakes,
    /// The time that a proxy adds at 500 requests per second.
    Latency,
    /// Memory of idle watches.
    Watches,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    child::become_program();
    let options = Options::parse();
    open_files::raise_limit();
    if options.install && Kind::missing().next().is_some() {
        proxies::install();
    }
    let mut kinds = Kind::present();
    kinds.extend(options.baseline.as_ref().map(|_| Kind::Baseline));
    let mut told_to_end = signal(SignalKind::terminate()).unwrap();
    // What is dropped here removes its files.
    let figures = tokio::select! {
        figures = measure(&options, &kinds) => figures,
        _ = told_to_end.recv() => return ExitCode::FAILURE,
        _ = tokio::signal::ctrl_c() => return ExitCode::FAILURE,
    };
    progress::end();
    let machine = Machine::of(&kinds, options.threads);
    if let Some(file) = &options.svg {
        std::fs::write(file, chart::svg(&machine, &figures)).expect("the chart can be written");
    }
    match options.output {
        Output::Table => print!("{}", report::table(&machine, &figures)),
        Output::Json => println!("{}", Report::new(machine, &options, &figures).json()),
    }
    ExitCode::SUCCESS
}

async fn measure(options: &Options, kinds: &[Kind]) -> Figures {
    let setup = CommonSetup::new(options.threads, options.baseline.clone());
    let mut proxies = Vec::new();
    for kind in kinds.iter().copied() {
        let proxy = Proxy::start(kind, &setup).await;
        setup.verify(kind.name(), proxy.address()).await;
        proxies.push((kind, proxy));
    }
    let mut figures = Figures::default();
    for part in Part::value_variants() {
        if options.only.is_empty() || options.only.contains(part) {
            match part {
                Part::Rates => rates::measure(options, &setup, &proxies, &mut figures).await,
                Part::Senders => senders::measure(options, &setup, &proxies, &mut figures).await,
                Part::Handshakes => handshakes::measure(options, &setup, &proxies, &mut figures).await,
                Part::Latency => latency::measure(options, &setup, &proxies, &mut figures).await,
                Part::Watches => watches::measure(options, &setup, kinds, &mut figures).await,
            }
        }
    }
    figures
}
