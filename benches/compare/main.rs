//! Compares the gateway with HAProxy and nginx under the same load: clients authenticate with certificates, the proxy
//! forwards their identity in headers, and connects to one backend over TLS with a client certificate. Each proxy has
//! one thread by default. Measurements of the proxies alternate, so that other load on the machine affects all of them.
//!
//! Run with `cargo bench --bench compare`; `-- --help` lists the options.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a measurement that is started manually"
)]

mod aims;
mod audit;
mod chart;
mod child;
mod cost;
mod figures;
mod handshakes;
mod instructions;
mod latency;
mod load;
mod programs;
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
use programs::Programs;
use proxies::{Proxy, ProxyKind};
use report::{Machine, Report};
use setup::CommonSetup;

const EXAMPLES: &str = "\
Examples:
  cargo bench --bench compare
  cargo bench --bench compare -- --only rates --case 'HTTP/2, 1 KiB' --seconds 5
  cargo bench --bench compare -- --baseline /tmp/portcullis-before
  cargo bench --bench compare -- --only instructions
  cargo bench --bench compare -- --output json --svg compare.svg > compare.json";

/// Compares the gateway with HAProxy and nginx under the same load: requests per CPU-second, added latency, and memory
/// per idle watch.
///
/// Clients authenticate with certificates. The proxy forwards their identity to the backend in headers, over TLS with
/// its own client certificate. All proxies have the same number of threads and the same keys, and do not log successful
/// requests. Measurements of the proxies alternate: on a machine with other load, ratios stay meaningful when absolute
/// figures are not. A full run takes a quarter of an hour.
#[derive(Parser, Clone)]
#[command(bin_name = "cargo bench --bench compare --", after_help = EXAMPLES)]
struct Options {
    /// Seconds of load on each proxy per round.
    #[arg(long, default_value = "3", value_parser = seconds)]
    seconds: Duration,
    /// Number of rounds; the report shows their medians.
    #[arg(long, default_value = "5")]
    rounds: NonZeroUsize,
    /// Threads of each proxy. The clients share one thread, and the backend has one.
    #[arg(long, default_value = "1")]
    threads: NonZeroUsize,
    /// Minimum number of open watches when their memory is measured.
    #[arg(long, default_value_t = 400)]
    watches: usize,
    /// Measurements to run (default: all); may be given several times.
    #[arg(long, value_enum, value_name = "MEASUREMENT", value_delimiter = ',')]
    only: Vec<Part>,
    /// Runs only the cases whose names contain this text, such as `HTTP/2` or `100 KiB`.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    case: String,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Also writes the figures to this file as an SVG bar chart.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Proxies to measure (default: all that are installed); may be given several times.
    #[arg(long, value_enum, value_name = "PROXY", value_delimiter = ',')]
    proxies: Vec<ProxyKind>,
    #[command(flatten)]
    programs: Programs,
    /// Records the instructions of this run as those that the next ones are compared with.
    #[arg(long)]
    record: bool,
    /// Installs HAProxy and nginx from Debian packages if they are missing.
    #[arg(long)]
    install: bool,
    /// Measures nothing: starts the backend, prints the gateway's command line, and waits, so that a profiler can run the
    /// gateway.
    #[arg(long)]
    hold: bool,
    /// Passed by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    fn includes(&self, case: &str) -> bool {
        case.contains(&self.case)
    }

    /// Indexes of `count` proxies in the order of measurement: each round begins with a different proxy.
    fn turns(&self, count: usize) -> impl Iterator<Item = usize> {
        (0..self.rounds.get()).flat_map(move |round| (0..count).map(move |turn| (round + turn) % count))
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
    /// Requests per CPU-second of the gateway alone, by authentication method.
    Senders,
    /// Requests per CPU-second of the gateway with audit at level Metadata.
    Audit,
    /// Full handshakes with a client certificate per second of processor time.
    Handshakes,
    /// Latency that a proxy adds at 500 requests per second.
    Latency,
    /// Memory per idle watch.
    Watches,
    /// Instructions per request, by valgrind's callgrind, beside the recorded ones. Only if it is named.
    Instructions,
}

impl Part {
    /// Whether it is measured if none is named.
    fn is_default(self) -> bool {
        self != Self::Instructions
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    child::become_program();
    let options = Options::parse();
    open_files::raise_limit();
    if options.install {
        programs::install();
    }
    let kinds = options.programs.found(&options.proxies);
    let mut sigterm = signal(SignalKind::terminate()).unwrap();
    // Not `exit`: dropping the setup removes its files.
    let figures = tokio::select! {
        figures = measure(&options, &kinds) => figures,
        _ = sigterm.recv() => return ExitCode::FAILURE,
        _ = tokio::signal::ctrl_c() => return ExitCode::FAILURE,
    };
    progress::end();
    let machine = Machine::of(&kinds, &options.programs, options.threads);
    if let Some(file) = &options.svg {
        std::fs::write(file, chart::svg(&machine, &figures)).expect("the chart can be written");
    }
    match options.output {
        Output::Table => print!("{}", report::table(&machine, &figures)),
        Output::Json => println!("{}", Report::new(machine, &options, &figures).json()),
    }
    if options.only.contains(&Part::Instructions) {
        return instructions::judge(&figures, options.record);
    }
    ExitCode::SUCCESS
}

async fn measure(options: &Options, kinds: &[ProxyKind]) -> Figures {
    let setup = CommonSetup::new(options.threads, options.programs.clone());
    if options.hold {
        println!("serve {}", setup.flags.join(" "));
        std::future::pending::<()>().await;
    }
    let mut proxies = Vec::new();
    for kind in kinds.iter().copied() {
        let proxy = Proxy::start(kind, &setup).await;
        setup.verify(kind, proxy.address()).await;
        proxies.push((kind, proxy));
    }
    let mut figures = Figures::default();
    for part in Part::value_variants() {
        if options.only.contains(part) || options.only.is_empty() && part.is_default() {
            match part {
                Part::Rates => rates::measure(options, &setup, &proxies, &mut figures).await,
                Part::Senders => senders::measure(options, &setup, &proxies, &mut figures).await,
                Part::Audit => audit::measure(options, &setup, &mut figures).await,
                Part::Handshakes => handshakes::measure(options, &setup, &proxies, &mut figures).await,
                Part::Latency => latency::measure(options, &setup, &proxies, &mut figures).await,
                Part::Watches => watches::measure(options, &setup, kinds, &mut figures).await,
                Part::Instructions => {
                    let includes = |case: &str| options.includes(case);
                    instructions::measure(&setup, includes, &mut figures).await;
                }
            }
        }
    }
    for (_, proxy) in proxies {
        proxy.end().await;
    }
    figures
}
