//! Instructions that the gateway executes in user space for a request, counted by callgrind. Unlike times, they are nearly the same in
//! each run, also on a busy machine. Two processes that get different numbers of requests differ by these requests alone.
//!
//! The figures of the last change are in `instructions.tsv`. A request that needs 2 % more fails the run.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use testkit::gateway_process::GatewayProcess;

use crate::audit;
use crate::child;
use crate::figures::{Figures, Measure};
use crate::load::Connector;
use crate::proxies::ProxyKind;
use crate::report::number;
use crate::setup::{CommonSetup, LARGE, SMALL};
use crate::wire::RequestTemplate;

/// How many requests the two processes get: the difference counts.
const REQUESTS: [u32; 2] = [300, 1300];
/// The same for new connections, each with one request.
const CONNECTIONS: [u32; 2] = [20, 120];
/// callgrind takes half a minute to read the program alone, on a busy machine.
const START_TIMEOUT: Duration = Duration::from_mins(2);
/// The beginning of the names of callgrind's files: each thread has one.
const COUNTS: &str = "callgrind.out";
/// A function of threads that do not count: they look for changes of the configuration as often as the time wants it, and time is
/// what a busy machine has more of.
const BY_TIME: &str = "portcullis::config::source::ConfigSource::changed";
/// How many times as many instructions as recorded a request may take.
const MAX_GROWTH: f64 = 1.02;

/// A kind of request.
struct Kind {
    name: &'static str,
    http2: bool,
    template: RequestTemplate,
    credential: Credential,
    audited: bool,
    /// Whether each request has a connection of its own.
    connects: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Credential {
    Certificate,
    /// In the request.
    Token,
}

fn kinds(setup: &CommonSetup) -> [Kind; 8] {
    let get = |name, http2| Kind {
        name,
        http2,
        template: RequestTemplate::get(SMALL),
        credential: Credential::Certificate,
        audited: false,
        connects: false,
    };
    let with_token = |kind: Kind, token| Kind {
        template: kind.template.with_token(token),
        credential: Credential::Token,
        ..kind
    };
    let tokens = &setup.tokens;
    let impersonation = RequestTemplate::get(SMALL).impersonating("bob", &["a", "b"]);
    [
        get("HTTP/1.1, 1 KiB", false),
        get("HTTP/2, 1 KiB", true),
        Kind { template: RequestTemplate::get(LARGE), ..get("HTTP/1.1, 100 KiB", false) },
        Kind { template: RequestTemplate::get(LARGE), ..get("HTTP/2, 100 KiB", true) },
        with_token(get("HTTP/2, static token", true), &tokens.short),
        Kind { template: impersonation, ..get("HTTP/2, impersonation", true) },
        Kind { audited: true, ..get("HTTP/2, audit at Metadata", true) },
        Kind { connects: true, ..get("HTTP/1.1, new connection", false) },
    ]
}

/// Counts the instructions of each kind of request.
pub(crate) async fn measure(setup: &CommonSetup, includes: impl Fn(&str) -> bool, figures: &mut Figures) {
    for kind in kinds(setup).iter().filter(|kind| includes(kind.name)) {
        let numbers = if kind.connects { CONNECTIONS } else { REQUESTS };
        let [mut few, mut many] = [0.0; 2];
        for (requests, instructions) in numbers.into_iter().zip([&mut few, &mut many]) {
            *instructions = count(setup, kind, requests).await;
        }
        let each = (many - few) / f64::from(numbers[1] - numbers[0]);
        figures.add(Measure::Instructions, kind.name, ProxyKind::Gateway.name(), each);
    }
}

/// The instructions of a process that gets so many requests, one after the other.
async fn count(setup: &CommonSetup, kind: &Kind, requests: u32) -> f64 {
    let counts = tempfile::tempdir().unwrap();
    let mut command = child::command("valgrind");
    command.args(["--tool=callgrind", "--separate-threads=yes", "--log-file=/dev/null"]);
    command
        .arg(format!("--callgrind-out-file={}", counts.path().join(COUNTS).display()))
        .arg(setup.programs.of(ProxyKind::Gateway).unwrap());
    command.arg("serve").args(&setup.flags);
    if kind.audited {
        command.args(audit::flags(setup, audit::MODES[1]));
    }
    let gateway = GatewayProcess::serve_within(START_TIMEOUT, command).await;
    let address = gateway.gateway.address;
    let connector = match kind.credential {
        Credential::Certificate => setup.certificate_connector(address),
        Credential::Token => CommonSetup::token_connector(address),
    };
    send(&connector, kind, requests).await;
    let (status, log) = gateway.end().await;
    assert!(status.success(), "the gateway failed: {log}");
    let files = std::fs::read_dir(counts.path()).unwrap().map(|entry| entry.unwrap().path());
    let threads = files.map(|file| std::fs::read_to_string(file).expect("callgrind writes its counts"));
    let counted: Vec<f64> =
        threads.filter(|counts| !counts.contains(BY_TIME)).filter_map(|counts| total(&counts)).collect();
    assert!(!counted.is_empty(), "callgrind writes totals");
    counted.iter().sum()
}

/// The instructions of a thread; `None` of the file that callgrind makes for all of them, which is empty.
fn total(counts: &str) -> Option<f64> {
    counts.lines().find_map(|line| line.strip_prefix("totals: ")).map(|total| total.trim().parse().unwrap())
}

async fn send(connector: &Connector, kind: &Kind, requests: u32) {
    let tls = connector.tls_for(kind.http2);
    let connect = || connector.connect(Arc::clone(&tls), &kind.template, kind.http2);
    let mut connection = connect().await;
    for sent in 0..requests {
        if kind.connects && sent > 0 {
            std::mem::replace(&mut connection, connect().await).close().await;
        }
        connection.queue_requests(1);
        while connection.exchange().await.responses == 0 {}
    }
    connection.close().await;
}

fn recorded_file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/compare/instructions.tsv")
}

/// Prints what is measured beside what is recorded, or records it. Fails if a kind of request needs more than it may.
pub(crate) fn judge(figures: &Figures, record: bool) -> ExitCode {
    let recorded = std::fs::read_to_string(recorded_file()).unwrap_or_default();
    let mut recorded: Vec<(String, f64)> = recorded
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, count)| (name.to_owned(), count.parse().expect("a recorded count is a number")))
        .collect();
    let mut grown = Vec::new();
    println!("\ninstructions per request, recorded and measured");
    for (measure, case) in figures.cases() {
        let Some(figure) = figures.find(measure, case, ProxyKind::Gateway.name()) else { continue };
        if measure != Measure::Instructions {
            continue;
        }
        let measured = figure.median;
        let known = recorded.iter_mut().find(|(name, _)| name == case);
        if let Some((_, count)) = known {
            let change = (measured / *count - 1.0) * 100.0;
            println!("{case:26} {:>10} {:>10} {change:>+7.2} %", number(*count), number(measured));
            if measured > *count * MAX_GROWTH {
                grown.push(case);
            }
            *count = measured;
        } else {
            println!("{case:26} {:>10} {:>10}", "-", number(measured));
            recorded.push((case.to_owned(), measured));
        }
    }
    if record {
        let mut text = String::new();
        for (name, count) in recorded {
            writeln!(text, "{name}\t{count:.0}").unwrap();
        }
        std::fs::write(recorded_file(), text).expect("the figures can be recorded");
        return ExitCode::SUCCESS;
    }
    if grown.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "more than 2 % above what is recorded: {}. Make it cheaper, or explain it and use --record",
        grown.join("; ")
    );
    ExitCode::FAILURE
}
