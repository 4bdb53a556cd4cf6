//! The log: a thread that writes lines to a file or to standard output.
//!
//! Only this thread ever touches the file, so that a hung disk blocks no worker thread. It writes what waits without a copy
//! and with few writes.
// apiserver: plugin/pkg/audit/log/backend.go

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use super::lines::Chunk;
use super::log_file::{LogFile, write_all};
use super::observer::DropCause;
use super::options::RotationOptions;
use super::queue::{Batch, Queue};
use super::throttle::TokenBucket;

/// What lines are written to.
pub(super) enum LogTarget {
    /// A file.
    File(LogFile),
    /// Standard output.
    Stream(LogStream),
}

/// A stream, which nothing can be taken back from.
pub(super) struct LogStream {
    to: Box<dyn Write + Send>,
    /// Whether it may end with a part of a line.
    half_line: bool,
}

impl LogStream {
    pub(super) fn new(to: impl Write + Send + 'static) -> Self {
        Self { to: Box::new(to), half_line: false }
    }
}

/// A log and its buffer.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) queue: Arc<Queue>,
    rotation: Mutex<RotationOptions>,
}

impl Log {
    pub(super) fn new(queue: Queue, rotation: RotationOptions) -> Self {
        Self { queue: Arc::new(queue), rotation: Mutex::new(rotation) }
    }

    pub(super) fn set_rotation(&self, rotation: RotationOptions) {
        *self.rotation.lock().unwrap_or_else(PoisonError::into_inner) = rotation;
    }

    /// Starts the thread. It ends once the queue is closed and empty and `ends` agrees.
    pub(super) fn start(
        self: &Arc<Self>,
        target: LogTarget,
        ends: impl Fn() -> bool + Send + 'static,
    ) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let log = Arc::clone(self);
        let thread = std::thread::Builder::new().name("audit-log".to_owned());
        thread.spawn(move || runtime.block_on(log.run(target, ends))).map(drop)
    }

    async fn run(&self, mut target: LogTarget, ends: impl Fn() -> bool) {
        let mut bucket = TokenBucket::default();
        loop {
            let Some(mut batch) = self.queue.collect().await else {
                // Before another thread may open it.
                target.close();
                if ends() {
                    return;
                }
                continue;
            };
            bucket.take(self.queue.options().batch.throttle).await;
            if let LogTarget::File(file) = &mut target {
                file.set_options(*self.rotation.lock().unwrap_or_else(PoisonError::into_inner));
            }
            // A panic must not end the thread: requests would wait for ever.
            if catch_unwind(AssertUnwindSafe(|| self.write(&mut target, &mut batch))).is_err() {
                self.lost(&batch.clusters(), &"the writer panicked");
            }
        }
    }

    fn write(&self, target: &mut LogTarget, batch: &mut Batch) {
        let mut failed = (BTreeMap::new(), String::new());
        for chunk in &mut batch.chunks {
            let mut reports = chunk.take_reports();
            let mut line = 0;
            target.write(chunk, |result: Result<(), &io::Error>| {
                if let (Err(error), Some(owner)) = (result, chunk.owner(line)) {
                    *failed.0.entry(Arc::clone(owner.cluster())).or_default() += 1;
                    failed.1 = error.to_string();
                }
                line += 1;
                reports.report(result.is_ok());
            });
        }
        let (clusters, error) = failed;
        self.lost(&clusters, &error);
    }

    fn lost(&self, clusters: &BTreeMap<Arc<str>, u64>, error: &dyn fmt::Display) {
        let lost = clusters.iter().map(|(cluster, events)| (cluster, *events));
        self.queue.losses().add(DropCause::Failed, lost, error);
    }
}

impl LogTarget {
    /// Writes lines; calls `report` for each in order.
    fn write(&mut self, lines: &Chunk, mut report: impl FnMut(Result<(), &io::Error>)) {
        match self {
            Self::File(file) => file.write(lines, report),
            Self::Stream(LogStream { to, half_line }) => {
                // Otherwise the next event would be a part of a broken line, and reported as stored.
                let line_end: &[u8] = if *half_line { b"\n" } else { b"" };
                let (mut written, mut error) = match write_all(&mut **to, line_end) {
                    (_, None) => {
                        *half_line = false;
                        write_all(&mut **to, lines.text())
                    }
                    failed => failed,
                };
                if let Err(unflushed) = to.flush() {
                    // How much of it arrives is not known.
                    (written, error, *half_line) = (0, Some(unflushed), true);
                }
                let mut end = 0;
                for line in lines.lines() {
                    *half_line |= error.is_some() && (end + 1..end + line.len()).contains(&written);
                    end += line.len();
                    report(error.as_ref().filter(|_| end > written).map_or(Ok(()), Err));
                }
            }
        }
    }

    fn close(&mut self) {
        if let Self::File(file) = self {
            file.close();
        }
    }
}

impl fmt::Debug for LogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => f.debug_tuple("File").field(file).finish(),
            Self::Stream(_) => f.write_str("Stream"),
        }
    }
}
