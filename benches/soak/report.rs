//! What is printed: a line now and then, and the sum of it at the end.

use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::count::{Count, Counted};
use crate::support::Backend;
use crate::support::process::Process;

/// How many lines there are.
const LINES: u32 = 20;

pub struct Report {
    task: JoinHandle<Vec<Line>>,
    ending: oneshot::Sender<()>,
}

/// The gateway at one time.
struct Line {
    memory: Memory,
    generation: u64,
    /// How many connections the backend has seen.
    connections: usize,
    counted: Counted,
}

pub struct Memory {
    pub rss: u64,
    pss: u64,
    files: usize,
}

/// What was printed so far.
pub struct Log(Vec<Line>);

impl Report {
    pub fn start(
        process: &Arc<Process>,
        backend: &Arc<Backend>,
        count: &Arc<Count>,
        lasting: Duration,
    ) -> Self {
        let (process, backend, count) = (Arc::clone(process), Arc::clone(backend), Arc::clone(count));
        let (ending, mut end) = oneshot::channel();
        let task = tokio::spawn(async move {
            println!(
                "{:>6} {:>8} {:>8} {:>6} {:>11} {:>6} {:>8} {:>8} {:>5} {:>9} {:>7}",
                "time",
                "RSS",
                "PSS",
                "files",
                "generation",
                "open",
                "dropped",
                "events",
                "lost",
                "requests",
                "failed"
            );
            let start = Instant::now();
            let mut lines = Vec::new();
            loop {
                let line = Line {
                    memory: Memory::of(process.child.id()),
                    generation: process.gateway.generation().await,
                    connections: backend.connections(),
                    counted: count.now(),
                };
                line.print(start.elapsed());
                // What the backend keeps of requests is of no use here.
                while backend.take().is_some() {}
                lines.push(line);
                if timeout(lasting / LINES, &mut end).await.is_ok() {
                    return lines;
                }
            }
        });
        Self { task, ending }
    }

    pub async fn end(self) -> Log {
        self.ending.send(()).ok();
        Log(self.task.await.unwrap())
    }
}

impl Memory {
    pub fn of(process: u32) -> Self {
        let directory = format!("/proc/{process}");
        let kibibytes = |file: &str, key: &str| -> u64 {
            let text = std::fs::read_to_string(format!("{directory}/{file}")).unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
        };
        Self {
            rss: kibibytes("status", "VmRSS:"),
            pss: kibibytes("smaps_rollup", "Pss:"),
            files: std::fs::read_dir(format!("{directory}/fd")).unwrap().count(),
        }
    }
}

impl Line {
    fn print(&self, at: Duration) {
        let Self { memory: Memory { rss, pss, files }, generation, counted, .. } = self;
        let Counted { open, dropped, events, lost, requests, failed, .. } = counted;
        println!(
            "{:>4} s {:>4} MiB {:>4} MiB {files:>6} {generation:>11} {open:>6} {dropped:>8} {events:>8} {lost:>5} \
             {requests:>9} {failed:>7}",
            at.as_secs(),
            rss / 1024,
            pss / 1024,
        );
    }
}

impl Log {
    /// The sum of it; a failure if anything was dropped or lost, or failed.
    pub fn finish(self, count: &Count, ended: ExitStatus, said: &str) -> ExitCode {
        let counted = count.now();
        let Counted { dropped, lost, failed, ineffective, .. } = counted;
        let is_complaint = |line: &&str| {
            // The tokens of earlier rounds are tried, and refused.
            (line.contains("\"ERROR\"") || line.contains("\"WARN\""))
                && !line.contains("invalid bearer token")
        };
        let complaints: Vec<&str> = said.lines().filter(is_complaint).collect();
        let memory = |of: fn(&Memory) -> u64| {
            let all = self.0.iter().map(|line| of(&line.memory) / 1024);
            let (first, last) = (all.clone().next().unwrap_or(0), all.clone().next_back().unwrap_or(0));
            format!("{first} MiB at first, {} MiB at most, {last} MiB at last", all.max().unwrap_or(0))
        };
        let backend = self.0.last().map_or(0, |line| line.connections);
        let rows = [
            ("watches dropped", format!("{dropped} of {}", counted.open + dropped)),
            ("events", format!("{}, {lost} lost, at most {:?} late", counted.events, counted.longest_gap)),
            ("requests", format!("{}, {failed} failed", counted.requests)),
            ("reloads", format!("{}, {ineffective} without effect", counted.reloads)),
            ("RSS", memory(|memory| memory.rss)),
            ("PSS", memory(|memory| memory.pss)),
            ("connections to the backend", backend.to_string()),
            ("warnings and errors logged", complaints.len().to_string()),
            ("end", ended.to_string()),
        ];
        println!();
        for (what, how) in rows {
            println!("{what:>28}  {how}");
        }
        for complaint in complaints.iter().take(10) {
            println!("{complaint}");
        }
        let good = dropped + lost + failed + ineffective == 0 && complaints.is_empty() && ended.success();
        if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
