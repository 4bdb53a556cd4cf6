//! The verdict: the test passes if no event was lost, no request failed, and the gateway keeps nothing of disconnected
//! clients.

use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use testkit::gateway_process::GatewayProcess;
use testkit::sum_metric;
use testkit::wire::held;
use tokio::time::{Instant, sleep};

use crate::Output;
use crate::count::Counts;
use crate::memory::Memory;
use crate::report::{Line, mebibytes};

/// How much memory may grow from the first third of the test to the last. The allocator retains freed memory, and the
/// buffers of clients that do not read fill up only after the start.
const MAX_GROWTH_PERCENT: u64 = 15;
const MIN_GROWTH_KIBIBYTES: u64 = 8 << 10;
/// How long the gateway may take to release the resources of disconnected clients.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(20);

/// Resources that the gateway holds after all clients have disconnected.
#[derive(Serialize)]
pub(crate) struct RetainedResources {
    connections: usize,
    requests: u64,
    long_running: u64,
    memory: Memory,
}

impl RetainedResources {
    /// Polls until the gateway holds none, or until the timeout.
    pub(crate) async fn of(process: &GatewayProcess) -> Self {
        let deadline = Instant::now() + CLEANUP_TIMEOUT;
        loop {
            let metrics = process.gateway.metrics("/metrics").await;
            let left = Self {
                connections: held(process.gateway.address.port()).len(),
                requests: sum_metric(&metrics, "apiserver_current_inflight_requests", &[]),
                long_running: sum_metric(&metrics, "apiserver_longrunning_requests", &[]),
                memory: Memory::of(process.id()),
            };
            if left.is_empty() || Instant::now() > deadline {
                return left;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    fn is_empty(&self) -> bool {
        self.connections == 0 && self.requests + self.long_running == 0
    }
}

/// Prints the result. Fails if there was any fault.
pub(crate) fn print(
    lines: &[Line],
    counted: &Counts,
    left: &RetainedResources,
    exit_status: ExitStatus,
    log: &str,
    output: Output,
) -> ExitCode {
    let thirds = Thirds::of(lines);
    let complaints: Vec<&str> = log.lines().filter(|line| is_unexpected_warning(line)).collect();
    let faults: Vec<&str> = [
        (counted.dropped > 0, "watches were dropped"),
        (counted.lost > 0, "events were lost"),
        (counted.failed > 0, "requests of honest clients failed"),
        (counted.ineffective > 0, "reloads had no effect"),
        (thirds.has_grown(), "memory grew"),
        (!left.is_empty(), "the gateway kept connections or requests of disconnected clients"),
        (!complaints.is_empty(), "warnings or errors were logged"),
        (!exit_status.success(), "the gateway exited with an error"),
    ]
    .into_iter()
    .filter_map(|(failed, fault)| failed.then_some(fault))
    .collect();
    match output {
        Output::Json => println!(
            "{:#}",
            json!({
                "lines": lines, "counted": counted, "pss": thirds, "left": left,
                "complaints": complaints, "end": exit_status.to_string(), "faults": faults,
            })
        ),
        Output::Table => {
            let RetainedResources { connections, requests, long_running, memory } = left;
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
                    "held after disconnects",
                    format!(
                        "{connections} connections, {requests} requests, {long_running} long-running ones, {}",
                        mebibytes(memory.pss)
                    ),
                ),
                ("warnings and errors", complaints.len().to_string()),
                ("end", exit_status.to_string()),
                ("verdict", if faults.is_empty() { "passed".to_owned() } else { faults.join(", ") }),
            ];
            println!();
            for (name, value) in rows {
                println!("{name:>24}  {value}");
            }
            for complaint in complaints.iter().take(10) {
                println!("{complaint}");
            }
        }
    }
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A warning or error, except the expected ones: rejected tokens of earlier rounds, and slow requests of clients that
/// do not read.
fn is_unexpected_warning(line: &str) -> bool {
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
        let third = lines.len().div_ceil(3);
        let median = |lines: &[Line]| {
            let mut all: Vec<u64> = lines.iter().map(|line| line.memory.pss).collect();
            all.sort_unstable();
            all[all.len() / 2]
        };
        Self { first: median(&lines[..third]), last: median(&lines[lines.len() - third..]) }
    }

    fn has_grown(&self) -> bool {
        self.last > self.first + (self.first * MAX_GROWTH_PERCENT / 100).max(MIN_GROWTH_KIBIBYTES)
    }
}
