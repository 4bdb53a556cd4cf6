//! The report: the machine, a table for each measure, and the goals; as text or as JSON.

use std::fmt::Write as _;
use std::num::NonZeroUsize;

use serde::Serialize;

use crate::Options;
use crate::aims::{Aim, aims};
use crate::figures::{Figure, Figures, Measure};
use crate::programs::Programs;
use crate::proxies::ProxyKind;

/// The machine and the programs of the measurement.
#[derive(Serialize)]
pub(crate) struct Machine {
    processor: String,
    cores: usize,
    kernel: String,
    /// Threads of each proxy.
    pub(crate) threads: NonZeroUsize,
    pub(crate) programs: Vec<String>,
}

impl Machine {
    pub(crate) fn of(kinds: &[ProxyKind], known: &Programs, threads: NonZeroUsize) -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let programs: Vec<String> = kinds.iter().filter_map(|kind| known.version(*kind)).collect();
        Self {
            processor: model.map_or("unknown", |(_, model)| model).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
            threads,
            programs,
        }
    }

    /// The number of threads as text.
    pub(crate) fn threads_each(&self) -> String {
        match self.threads.get() {
            1 => "one thread each".to_owned(),
            threads => format!("{threads} threads each"),
        }
    }
}

/// The JSON report. Its field names are stable.
#[derive(Serialize)]
pub(crate) struct Report<'a> {
    format: u32,
    machine: Machine,
    seconds: f64,
    figures: &'a [Figure],
    aims: Vec<Aim>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(machine: Machine, options: &Options, figures: &'a Figures) -> Self {
        Self {
            format: 1,
            machine,
            seconds: options.seconds.as_secs_f64(),
            figures: &figures.0,
            aims: aims(figures),
        }
    }

    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap()
    }
}

/// The report as text.
pub(crate) fn table(machine: &Machine, figures: &Figures) -> String {
    let mut out = format!("{}, {} cores, {}\n", machine.processor, machine.cores, machine.kernel);
    for program in &machine.programs {
        writeln!(out, "{program}").unwrap();
    }
    writeln!(out, "Medians of rounds, {}.", machine.threads_each()).unwrap();
    out += "haproxy-http1 and haproxy-http2 speak HTTP/1.1 and HTTP/2 to the backend. envoy does less work than the others: it\n\
            sends the whole subject as the user, without its groups.\n\
            No proxy logs a request that succeeds. TLS 1.3 with P-256 certificates on both sides.\n";
    let mut shown: Option<Measure> = None;
    for (measure, case) in figures.cases() {
        let row: Vec<&Figure> = figures.of_case(measure, case).collect();
        if shown != Some(measure) {
            let better = if measure.less_is_better() { "less" } else { "more" };
            writeln!(out, "\n{} ({better} is better)", measure.title()).unwrap();
            write!(out, "{:26}", "").unwrap();
            for figure in &row {
                write!(out, " {:>18}", figure.of).unwrap();
            }
            out.push('\n');
            shown = Some(measure);
        }
        write!(out, "{case:26}").unwrap();
        for figure in row {
            write!(out, " {:>18}", number(figure.median)).unwrap();
        }
        out.push('\n');
    }
    out += "\naims\n";
    for aim in aims(figures) {
        let met = if aim.met { "met" } else { "MISSED" };
        let (measured, wanted) = (number(aim.measured), number(aim.wanted));
        writeln!(out, "{met:6} {measured:>8}, wanted {wanted:>6}: {}", aim.description()).unwrap();
    }
    out
}

/// Rounds to significant digits, with thousands separators.
pub(crate) fn number(value: f64) -> String {
    if value.abs() < 10.0 {
        return format!("{value:.3}");
    }
    if value.abs() < 1000.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
