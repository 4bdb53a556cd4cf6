//! The result: no event lost, no client failed, nothing kept of clients that have left.

use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use testkit::gateway_process::GatewayProcess;
use testkit::sum_metric;
use testkit::wire::held;
use tokio::time::{Instant, sleep};

use crate::Output;
use crate::count::Counted;
use crate::memory::Memory;
use crate::report::{Line, mebibytes};

/// By how much memory may be more in the last third than in the first: what an allocator keeps to itself, and the
/// beginning, when what does not read is not full yet.
const MORE_PERCENT: u64 = 15;
const MORE_KIBIBYTES: u64 = 8 << 10;
/// How long it may take until all clients that have left are forgotten.
const FORGETTING: Duration = Duration::from_secs(20);

/// What the gateway still holds when all clients have left.
#[derive(Serialize)]
pub(crate) struct Left {
    connections: usize,
    requests: u64,
    long_running: u64,
    memory: Memory,
}

impl Left {
    /// Looks until there is nothing left, or for as long as that may take.
    pub(crate) async fn of(process: &GatewayProcess) -> Self {
        let deadline = Instant::now() + FORGETTING;
        loop {
            let metrics = process.gateway.metrics("/metrics").await;
            let left = Self {
                connections: held(process.gateway.address.port()).len(),
                requests: sum_metric(&metrics, "apiserver_current_inflight_requests", &[]),
                long_running: sum_metric(&metrics, "apiserver_longrunning_requests", &[]),
                memory: Memory::of(process.id()),
            };
            if left.is_nothing() || Instant::now() > deadline {
                return left;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    fn is_nothing(&self) -> bool {
        self.connections == 0 && self.requests + self.long_running == 0
    }
}

/// Prints what came of it; a failure if anything was wrong.
pub(crate) fn print(
    lines: &[Line],
    counted: &Counted,
    left: &Left,
    ended: ExitStatus,
    said: &str,
    output: Output,
) -> ExitCode {
    let thirds = Thirds::of(lines);
    let complaints: Vec<&str> = said.lines().filter(|line| is_complaint(line)).collect();
    let faults: Vec<&str> = [
        (counted.dropped > 0, "watches were dropped"),
        (counted.lost > 0, "events were lost"),
        (counted.failed > 0, "requests of honest clients failed"),
        (counted.ineffective > 0, "reloads had no effect"),
        (thirds.has_grown(), "memory grew"),
        (!left.is_nothing(), "connections or requests of clients that have left are kept"),
        (!complaints.is_empty(), "warnings or errors were logged"),
        (!ended.success(), "it did not end well"),
    ]
    .into_iter()
    .filter_map(|(wrong, what)| wrong.then_some(what))
    .collect();
    match output {
        Output::Json => println!(
            "{:#}",
            json!({
                "lines": lines, "counted": counted, "pss": thirds, "left": left,
                "complaints": complaints, "end": ended.to_string(), "faults": faults,
            })
        ),
        Output::Table => {
            let Left { connections, requests, long_running, memory } = left;
            let rows = [
                ("watches", format!("{}, {} dropped", counted.open + counted.dropped, counted.dropped)),
                (
                    "events",
                    format!("{}, {} lost, at most {} ms late", counted.events, counted.lost, counted.latest),
                ),
                ("requests", format!("{}, {} failed", counted.requests, counted.failed)),
                ("broken off by clients", counted.broken_off.to_string()),
                ("reloads", format!("{}, {} without effect", counted.reloads, counted.ineffective)),
                (
                    "PSS",
                    format!(
                        "{} in the first third, {} in the last",
                        mebibytes(thirds.first),
                        mebibytes(thirds.last)
                    ),
                ),
                (
                    "left when all had gone",
                    format!(
                        "{connections} connections, {requests} requests, {long_running} long-running ones, {}",
                        mebibytes(memory.pss)
                    ),
                ),
                ("warnings and errors", complaints.len().to_string()),
                ("end", ended.to_string()),
                ("verdict", if faults.is_empty() { "good".to_owned() } else { faults.join(", ") }),
            ];
            println!();
            for (what, how) in rows {
                println!("{what:>24}  {how}");
            }
            for complaint in complaints.iter().take(10) {
                println!("{complaint}");
            }
        }
    }
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The tokens of earlier rounds are tried, and refused; clients that read slowly make slow requests.
fn is_complaint(line: &str) -> bool {
    let expected = ["invalid bearer token", "slow request"].iter().any(|message| line.contains(message));
    !expected && (line.contains("\"ERROR\"") || line.contains("\"WARN\""))
}

/// The proportional set size in the middle of the first and of the last third, in KiB.
#[derive(Serialize)]
struct Thirds {
    first: u64,
    last: u64,
}

impl Thirds {
    fn of(lines: &[Line]) -> Self {
        let many = lines.len().div_ceil(3);
        let median = |lines: &[Line]| {
            let mut all: Vec<u64> = lines.iter().map(|line| line.memory.pss).collect();
            all.sort_unstable();
            all[all.len() / 2]
        };
        Self { first: median(&lines[..many]), last: median(&lines[lines.len() - many..]) }
    }

    fn has_grown(&self) -> bool {
        self.last > self.first + (self.first * MORE_PERCENT / 100).max(MORE_KIBIBYTES)
    }
}
