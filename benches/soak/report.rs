//! The progress table: a line every few seconds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use testkit::FakeBackend;
use testkit::gateway_process::GatewayProcess;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::Output;
use crate::count::{Counters, Counts};
use crate::memory::Memory;

/// Number of lines, within the limits of the interval.
const LINES: u32 = 24;
const MIN_INTERVAL: Duration = Duration::from_secs(1);
const MAX_INTERVAL: Duration = Duration::from_secs(10);

pub(crate) struct Report {
    task: JoinHandle<Vec<Line>>,
    ending: oneshot::Sender<()>,
}

/// The state of the gateway at one time.
#[derive(Serialize)]
pub(crate) struct Line {
    second: u64,
    #[serde(flatten)]
    pub(crate) memory: Memory,
    generation: u64,
    /// Connections that the backend has accepted.
    backend_connections: usize,
    #[serde(flatten)]
    counted: Counts,
}

impl Report {
    pub(crate) fn start(
        process: &Arc<GatewayProcess>,
        backend: &Arc<FakeBackend>,
        count: &Arc<Counters>,
        duration: Duration,
        output: Output,
    ) -> Self {
        let (process, backend, count) = (Arc::clone(process), Arc::clone(backend), Arc::clone(count));
        let (ending, mut end) = oneshot::channel();
        let task = tokio::spawn(async move {
            let start = Instant::now();
            let mut lines: Vec<Line> = Vec::new();
            loop {
                let line = Line {
                    second: start.elapsed().as_secs(),
                    memory: Memory::of(process.id()),
                    generation: process.gateway.generation().await,
                    backend_connections: backend.connections(),
                    counted: count.now(),
                };
                line.print(lines.is_empty(), output);
                // Discards the requests that the fake backend records.
                while backend.take().is_some() {}
                lines.push(line);
                if timeout((duration / LINES).clamp(MIN_INTERVAL, MAX_INTERVAL), &mut end).await.is_ok() {
                    return lines;
                }
            }
        });
        Self { task, ending }
    }

    pub(crate) async fn end(self) -> Vec<Line> {
        self.ending.send(()).ok();
        self.task.await.unwrap()
    }
}

impl Line {
    fn print(&self, first: bool, output: Output) {
        let Counts { open, events, lost, requests, failed, broken_off, .. } = self.counted;
        let cells = [
            ("second", self.second.to_string()),
            ("PSS", mebibytes(self.memory.pss)),
            ("RSS", mebibytes(self.memory.rss)),
            ("files", self.memory.files.to_string()),
            ("to backend", self.backend_connections.to_string()),
            ("generation", self.generation.to_string()),
            ("watches", open.to_string()),
            ("events", events.to_string()),
            ("lost", lost.to_string()),
            ("requests", requests.to_string()),
            ("failed", failed.to_string()),
            ("broken off", broken_off.to_string()),
        ];
        let aligned = |cell: fn(&(&str, String)) -> String| {
            let cells = cells.iter().map(|both| format!("{:>1$}", cell(both), both.0.len().max(8)));
            cells.collect::<Vec<_>>().join("  ")
        };
        if first {
            output.show(&aligned(|(name, _)| (*name).to_owned()));
        }
        output.show(&aligned(|(_, value)| value.clone()));
    }
}

pub(crate) fn mebibytes(kibibytes: u64) -> String {
    format!("{} MiB", kibibytes / 1024)
}
