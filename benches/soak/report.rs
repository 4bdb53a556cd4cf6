//! What is shown while it lasts: a line every few seconds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use testkit::Backend;
use testkit::gateway_process::GatewayProcess;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::Output;
use crate::count::{Count, Counted};
use crate::memory::Memory;

/// How many lines there are, unless that would be more than one each second or less than one in ten.
const LINES: u32 = 24;
const OFTEN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(10);

pub(crate) struct Report {
    task: JoinHandle<Vec<Line>>,
    ending: oneshot::Sender<()>,
}

/// The gateway at one time.
#[derive(Serialize)]
pub(crate) struct Line {
    second: u64,
    #[serde(flatten)]
    pub(crate) memory: Memory,
    generation: u64,
    /// How many connections the backend has seen.
    backend_connections: usize,
    #[serde(flatten)]
    counted: Counted,
}

impl Report {
    pub(crate) fn start(
        process: &Arc<GatewayProcess>,
        backend: &Arc<Backend>,
        count: &Arc<Count>,
        lasting: Duration,
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
                // What the backend keeps of requests is of no use here.
                while backend.take().is_some() {}
                lines.push(line);
                if timeout((lasting / LINES).clamp(OFTEN, SELDOM), &mut end).await.is_ok() {
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
        let Counted { open, events, lost, requests, failed, broken_off, .. } = self.counted;
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
