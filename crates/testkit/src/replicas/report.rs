//! What the clients have seen during a phase, and what of it must not happen.

use std::time::Duration;

use tokio::time::Instant;

use super::faults::{Fault, Phase, Target};
use super::record::{Kind, Operation, Outcome, StreamEnd};

/// The failures that are described.
const MAX_DESCRIBED: usize = 5;

/// When the fault happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strike {
    /// The signal was sent.
    pub(super) struck: Instant,
    /// The process had ended, or went on.
    pub(super) gone: Instant,
    /// The process was ready again.
    pub(super) returned: Instant,
}

/// What the clients have seen during a phase.
#[derive(Clone, Debug)]
pub struct PhaseReport {
    /// The phase.
    pub phase: Phase,
    /// How long the process was away.
    pub away: Duration,
    /// Reads, openings of watches included.
    pub reads: usize,
    /// Writes.
    pub writes: usize,
    /// Reads that failed.
    pub failed_reads: usize,
    /// Reads that the client sent again, because the connection to a gateway that was killed broke.
    pub resent: usize,
    /// Writes that were in progress on connections of a process that was killed, and failed.
    pub killed_writes: usize,
    /// Other writes that failed.
    pub failed_writes: usize,
    /// Responses of a process that was killed that ended in their middle.
    pub cut_off: usize,
    /// The longest wait for a read, and for a write.
    pub longest: [Duration; 2],
    /// The requests on connections to a stopped gateway, and the longest wait of them.
    pub held: (usize, Duration),
    /// The writes that were in progress at a stopped API server until it went on, and the longest wait of them.
    pub held_writes: (usize, Duration),
    /// Watches that ended, without an error and with one.
    pub watch_ends: [usize; 2],
    /// Tunnels that ended with the process, and others.
    pub tunnel_ends: [usize; 2],
    /// New watch events.
    pub events: usize,
    /// Watches that had to list again.
    pub relists: usize,
    /// Numbers that came back through tunnels.
    pub echoes: usize,
    /// Connections that a gateway did not accept.
    pub refused: usize,
    /// The short requests that each API server got after the process had returned.
    pub shares: Vec<u64>,
    /// The first failures.
    pub failures: Vec<String>,
}

impl PhaseReport {
    /// Counts what has ended during a phase.
    pub(super) fn new(phase: Phase, strike: Strike, operations: &[Operation], ends: &[StreamEnd]) -> Self {
        let mut report = Self {
            phase,
            away: strike.returned - strike.struck,
            reads: 0,
            writes: 0,
            failed_reads: 0,
            resent: 0,
            killed_writes: 0,
            failed_writes: 0,
            cut_off: 0,
            longest: [Duration::ZERO; 2],
            held: (0, Duration::ZERO),
            held_writes: (0, Duration::ZERO),
            watch_ends: [0; 2],
            tunnel_ends: [0; 2],
            events: 0,
            relists: 0,
            echoes: 0,
            refused: 0,
            shares: Vec::new(),
            failures: Vec::new(),
        };
        for operation in operations {
            report.add(operation, strike);
        }
        for end in ends {
            report.add_end(end);
        }
        report
    }

    fn add(&mut self, operation: &Operation, strike: Strike) {
        let is_read = matches!(operation.kind, Kind::Read | Kind::Watch);
        *(if is_read { &mut self.reads } else { &mut self.writes }) += 1;
        // When the process ended or was stopped.
        let in_progress = operation.started <= strike.gone && operation.ended >= strike.struck;
        let through = match self.phase.target {
            Target::Gateway(gateway) => operation.gateway == gateway,
            // Clients do not see through which API server a request went.
            Target::Server(_) => true,
        };
        let is_excused = self.phase.fault == Fault::Kill && in_progress && through;
        match &operation.outcome {
            Outcome::Success => {}
            Outcome::CutOff(_) if is_excused => self.cut_off += 1,
            _ if is_read => {
                self.failed_reads += 1;
                self.describe(operation, strike);
            }
            _ if is_excused => self.killed_writes += 1,
            _ => {
                self.failed_writes += 1;
                self.describe(operation, strike);
            }
        }
        if !operation.broken.is_empty() {
            let is_killed =
                |gateway| self.phase.fault == Fault::Kill && self.phase.target == Target::Gateway(gateway);
            if operation.broken.iter().all(|gateway| is_killed(*gateway)) {
                self.resent += 1;
            } else {
                self.failed_reads += 1;
                self.describe(operation, strike);
            }
        }
        self.add_wait(operation, strike, is_read);
    }

    fn add_wait(&mut self, operation: &Operation, strike: Strike, is_read: bool) {
        let wait = operation.wait();
        let add = |(count, longest): &mut (usize, Duration)| {
            *count += 1;
            *longest = wait.max(*longest);
        };
        // A request that a stopped process answered only when it went on.
        let spans = operation.started <= strike.gone && operation.ended >= strike.gone;
        if self.phase.fault == Fault::Stop && spans {
            match self.phase.target {
                Target::Gateway(gateway) if gateway == operation.gateway => return add(&mut self.held),
                Target::Server(_) if !is_read && wait > Duration::from_secs(1) => {
                    return add(&mut self.held_writes);
                }
                _ => {}
            }
        }
        let longest = &mut self.longest[usize::from(!is_read)];
        *longest = wait.max(*longest);
    }

    fn add_end(&mut self, end: &StreamEnd) {
        if end.kind == Kind::Watch {
            self.watch_ends[usize::from(!end.is_clean)] += 1;
            return;
        }
        let is_struck = self.phase.fault != Fault::Nothing
            && match self.phase.target {
                Target::Gateway(gateway) => end.gateway == gateway,
                Target::Server(server) => end.server == Some(server),
            };
        self.tunnel_ends[usize::from(!is_struck)] += 1;
    }

    fn describe(&mut self, operation: &Operation, strike: Strike) {
        if self.failures.len() >= MAX_DESCRIBED {
            return;
        }
        let seconds = |instant: Instant| {
            let sign = if instant < strike.struck { "-" } else { "+" };
            let distance = instant.max(strike.struck) - instant.min(strike.struck);
            format!("{sign}{:.3}", distance.as_secs_f64())
        };
        let version = if operation.http2 { "HTTP/2" } else { "HTTP/1.1" };
        self.failures.push(format!(
            "{:?} over {version} by gateway {}, {} to {} s, broken before on {:?}: {:?}",
            operation.kind,
            operation.gateway,
            seconds(operation.started),
            seconds(operation.ended),
            operation.broken,
            operation.outcome
        ));
    }

    /// The greatest distance of an API server's share of the requests from the mean, as a part of the mean.
    pub fn imbalance(&self) -> f64 {
        let shares: Vec<f64> =
            self.shares.iter().map(|share| u32::try_from(*share).map_or(0.0, f64::from)).collect();
        #[expect(clippy::cast_precision_loss, reason = "a few API servers")]
        let mean = shares.iter().sum::<f64>() / shares.len() as f64;
        shares.iter().map(|share| (share - mean).abs() / mean.max(1.0)).fold(0.0, f64::max)
    }

    /// The requests that failed and must not, and the tunnels that ended and must not.
    pub fn violations(&self) -> usize {
        self.failed_reads + self.failed_writes + self.tunnel_ends[1]
    }

    /// The line of the table.
    pub fn line(&self) -> String {
        let seconds = |duration: Duration| format!("{:.2}", duration.as_secs_f64());
        let shares: Vec<String> = self.shares.iter().map(ToString::to_string).collect();
        let cells = [
            self.phase.to_string(),
            seconds(self.away),
            self.reads.to_string(),
            self.failed_reads.to_string(),
            self.resent.to_string(),
            self.cut_off.to_string(),
            self.writes.to_string(),
            self.failed_writes.to_string(),
            self.killed_writes.to_string(),
            seconds(self.longest[0]),
            seconds(self.longest[1]),
            format!("{} {}", self.held.0, seconds(self.held.1)),
            format!("{} {}", self.held_writes.0, seconds(self.held_writes.1)),
            self.events.to_string(),
            format!("{}+{}", self.watch_ends[0], self.watch_ends[1]),
            self.relists.to_string(),
            format!("{}+{}", self.tunnel_ends[0], self.tunnel_ends[1]),
            self.refused.to_string(),
            shares.join("/"),
        ];
        let mut line = aligned(&cells);
        for failure in &self.failures {
            line.push_str("\n    ");
            line.push_str(failure);
        }
        line
    }
}

/// The header of the table.
pub fn header() -> String {
    aligned(&HEADER.map(str::to_owned))
}

const HEADER: [&str; 19] = [
    "phase",
    "away s",
    "reads",
    "failed",
    "resent",
    "cut off",
    "writes",
    "failed",
    "killed",
    "read s",
    "write s",
    "held at gateway",
    "held writes",
    "events",
    "watches ended",
    "relists",
    "tunnels ended",
    "refused",
    "requests per server",
];

fn aligned(cells: &[String; 19]) -> String {
    let cells = cells.iter().zip(HEADER).enumerate().map(|(index, (cell, head))| {
        let width = if index == 0 { 19 } else { head.len().max(6) };
        if index == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
    });
    cells.collect::<Vec<_>>().join("  ")
}
