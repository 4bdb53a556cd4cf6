//! One row of the table: an attack, and what the others have noticed of it.

use std::time::Duration;

use super::attack::Attack;
use super::figures::{BUSY, MAX_FILES_EIGHTHS, MAX_LINES, MAX_LINES_PER_SECOND, MAX_RATIO, MAX_RSS};
use super::gauge::Usage;
use super::outcomes::{ClientKind, Phase};

/// The parts of an attack whose latencies are shown: it may harm only at its begin.
const PARTS: usize = 10;
/// The most reasons of failures that are shown.
const SHOWN_FAILURES: usize = 4;

pub(crate) struct Row {
    pub(crate) attack: Attack,
    pub(crate) duration: Duration,
    pub(crate) quiet: Phase,
    pub(crate) attacked: Phase,
    /// Audited requests of the operator, and those without an event.
    pub(crate) audited: usize,
    pub(crate) lost: usize,
    pub(crate) usage: Usage,
    /// Cores that other processes used before the attack.
    pub(crate) quiet_others: f64,
    pub(crate) open_files: u64,
    /// Log lines during the attack.
    pub(crate) lines: u64,
    /// The most frequent log messages.
    pub(crate) messages: Vec<String>,
    /// What the attacker has done.
    pub(crate) attacker: String,
}

/// The latencies of the client that has noticed most, in milliseconds.
struct Slowdown {
    kind: ClientKind,
    median: [f64; 2],
    last: [f64; 2],
}

impl Slowdown {
    fn ratio(&self) -> f64 {
        let [quiet, attacked] = self.last;
        attacked / quiet
    }
}

pub(crate) fn header() -> String {
    line(
        &[
            "attack",
            "failed",
            "probes",
            "tenants",
            "events lost",
            "p50 ms",
            "p99 ms",
            "ratio",
            "RSS MiB",
            "files",
            "lines",
            "reloads",
            "others",
            "within",
        ]
        .map(str::to_owned),
    )
}

fn between([quiet, attacked]: [f64; 2]) -> String {
    format!("{quiet:.1} / {attacked:.1}")
}

/// Aligns the cells of a row.
fn line(cells: &[String; 14]) -> String {
    const WIDTHS: [usize; 14] = [17, 11, 9, 9, 12, 14, 16, 8, 8, 12, 7, 8, 10, 7];
    let aligned = cells.iter().zip(WIDTHS).enumerate();
    let aligned = aligned.map(
        |(at, (cell, width))| if at == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") },
    );
    aligned.collect::<Vec<_>>().join(" ")
}

impl Row {
    /// The cells, and further lines with the details.
    pub(crate) fn text(&self) -> String {
        let of = |kinds: &[ClientKind]| {
            let (all, failed) = self.attacked.counts(kinds);
            format!("{failed}/{all}")
        };
        let slowdown = self.slowdown();
        let cells = [
            self.attack.name(),
            of(&ClientKind::OPERATOR),
            of(&ClientKind::PROBES),
            of(&[ClientKind::Tenant]),
            format!("{}/{}", self.lost, self.audited),
            between(slowdown.median),
            between(slowdown.last),
            format!("{:.1}", slowdown.ratio()),
            self.usage.rss.to_string(),
            format!("{}/{}", self.usage.files, self.open_files),
            self.lines.to_string(),
            format!("{}/{}", self.attacked.effective.len(), self.attacked.reloads),
            between([self.quiet_others, self.usage.others]),
            if self.faults().is_empty() { "yes" } else { "no" }.to_owned(),
        ];
        std::iter::once(line(&cells)).chain(self.details(&slowdown)).collect::<Vec<_>>().join("\n")
    }

    fn details(&self, slowdown: &Slowdown) -> Vec<String> {
        let mut details = Vec::new();
        let mut detail = |name: &str, text: String| {
            if !text.is_empty() {
                details.push(format!("    {name}: {text}"));
            }
        };
        detail("not within", self.faults().join(", "));
        let (_, before) = self.quiet.counts(&ClientKind::OPERATOR);
        if before > 0 {
            detail("failed before the attack", format!("{before}; {}", self.quiet.failures().join("; ")));
        }
        let failures = self.attacked.failures();
        detail("failures", failures[..failures.len().min(SHOWN_FAILURES)].join("; "));
        let busy = self.usage.threads.iter().map(|(name, cores)| format!("{name} {cores:.2}"));
        let busy = busy.collect::<Vec<_>>().join(", ");
        detail("gateway", format!("{:.2} cores; threads: {busy}", self.usage.gateway));
        detail("p50, p99", format!("of the {}", slowdown.kind.name()));
        let parts = self.attacked.quantiles(slowdown.kind, 990, PARTS);
        let parts = parts.iter().map(|part| format!("{:.1}", part.as_secs_f64() * 1000.0));
        detail("p99 in tenths of the attack", parts.collect::<Vec<_>>().join(", ") + " ms");
        let [middle, last] =
            [500, 990].map(|thousandths| between(self.both(ClientKind::Direct, thousandths)));
        detail("without the gateway", format!("p50 {middle} ms, p99 {last} ms"));
        let slowest = [ClientKind::NewConnection, ClientKind::Probe, ClientKind::MetricsProbe].map(|kind| {
            let [quiet, attacked] = self.both(kind, 1000);
            format!("{} {quiet:.0} / {attacked:.0} ms", kind.name())
        });
        detail("slowest", slowest.join(", "));
        if let Some(slowest) = self.attacked.effective.iter().max() {
            detail("slowest reload", format!("{:.1} s", slowest.as_secs_f64()));
        }
        detail("log", self.messages.join("; "));
        detail("attacker", self.attacker.clone());
        details
    }

    /// What is not within the figures.
    pub(crate) fn faults(&self) -> Vec<&'static str> {
        let failed = |kinds: &[ClientKind]| self.attacked.counts(kinds).1 > 0;
        let lines = MAX_LINES + MAX_LINES_PER_SECOND * self.duration.as_secs();
        let is_slow = self.slowdown().ratio() > MAX_RATIO;
        let is_busy = self.quiet_others.max(self.usage.others) > BUSY;
        [
            (!self.usage.is_alive, "the gateway has ended"),
            (failed(&ClientKind::OPERATOR), "requests of the operator failed"),
            (failed(&ClientKind::PROBES), "probes failed"),
            (failed(&[ClientKind::Tenant]), "requests of other tenants failed"),
            (self.lost > 0, "audit events are lost"),
            (is_slow && !is_busy, "latency"),
            (is_slow && is_busy, "latency, on a busy machine"),
            (self.usage.rss > MAX_RSS, "memory"),
            (self.usage.files > self.open_files * MAX_FILES_EIGHTHS / 8, "descriptors"),
            (self.lines > lines, "log lines"),
            (self.attacked.effective.len() < self.attacked.reloads, "reloads had no effect"),
        ]
        .into_iter()
        .filter_map(|(is_fault, fault)| is_fault.then_some(fault))
        .collect()
    }

    fn slowdown(&self) -> Slowdown {
        let of = |kind| Slowdown { kind, median: self.both(kind, 500), last: self.both(kind, 990) };
        let [token, certificate] = [ClientKind::Token, ClientKind::Certificate].map(of);
        if token.ratio() > certificate.ratio() { token } else { certificate }
    }

    /// A quantile without and with the attack, in milliseconds.
    fn both(&self, kind: ClientKind, thousandths: usize) -> [f64; 2] {
        [&self.quiet, &self.attacked].map(|phase| phase.quantile(kind, thousandths).as_secs_f64() * 1000.0)
    }
}
