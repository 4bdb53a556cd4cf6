//! Threads with a runtime of their own, and work that is restarted when it panics.

use std::future::Future;
use std::io;
use std::panic::AssertUnwindSafe;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::runtime::{Builder, EnterGuard, Handle, Runtime};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::metrics::Metrics;

/// The pause after a panic; doubled with each panic in a row, up to [`MAX_RESTART_BACKOFF`].
const RESTART_BACKOFF: Duration = Duration::from_secs(1);
const MAX_RESTART_BACKOFF: Duration = Duration::from_mins(1);

/// A thread to be, with a single-threaded runtime.
#[derive(Debug)]
pub(crate) struct RuntimeThread(Runtime);

impl RuntimeThread {
    /// Builds the runtime. Nothing runs on it before [`Self::start`].
    pub(crate) fn new() -> io::Result<Self> {
        Builder::new_current_thread().enable_all().build().map(Self)
    }

    /// A handle by which other threads spawn tasks on it.
    pub(crate) fn handle(&self) -> &Handle {
        self.0.handle()
    }

    /// Enters the runtime, to register sockets with it.
    pub(crate) fn enter(&self) -> EnterGuard<'_> {
        self.0.enter()
    }

    /// Starts the thread, which runs the future that `main` makes. When that ends, every task on the runtime is dropped.
    pub(crate) fn start<F: Future>(
        self,
        name: impl Into<String>,
        main: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name(name.into()).spawn(move || {
            self.0.block_on(main());
        })
    }
}

/// Restarts work that panics, after a back-off. Each panic is logged and counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Supervisor<'a> {
    /// The cluster that the work is for, if it is for one.
    pub(crate) cluster: Option<&'a str>,
    /// Counts panics.
    pub(crate) metrics: &'a Metrics,
    /// Ends the back-off: work that is to stop is not restarted.
    pub(crate) stop: Option<&'a CancellationToken>,
}

impl Supervisor<'_> {
    /// Calls `run` until it returns without a panic, or `stop` is cancelled during a back-off.
    pub(crate) async fn run<F: Future<Output = ()>>(self, task: &str, run: impl Fn() -> F) {
        let mut backoff = RESTART_BACKOFF;
        loop {
            let started = Instant::now();
            if AssertUnwindSafe(async { run().await }).catch_unwind().await.is_ok() {
                return;
            }
            self.metrics.panics.inc();
            // Work that lasted has a new fault, not the old one again.
            backoff = if started.elapsed() > MAX_RESTART_BACKOFF { RESTART_BACKOFF } else { backoff };
            error!(cluster = self.cluster, task, ?backoff, "task panicked, restarting after the back-off");
            match self.stop {
                Some(stop) => {
                    if stop.run_until_cancelled(sleep(backoff)).await.is_none() {
                        return;
                    }
                }
                None => sleep(backoff).await,
            }
            backoff = (backoff * 2).min(MAX_RESTART_BACKOFF);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_back_off_doubles_with_each_panic_and_panics_are_counted() {
        let (metrics, started, origin) = (Metrics::new(), RefCell::new(Vec::new()), Instant::now());
        let supervisor = Supervisor { cluster: Some("c"), metrics: &metrics, stop: None };
        let faulty = supervisor.run("faulty", || async {
            let run = started.borrow().len();
            started.borrow_mut().push(origin.elapsed().as_secs());
            if run == 8 {
                // It works for long: the next panic has another cause.
                sleep(MAX_RESTART_BACKOFF * 2).await;
            }
            assert!(run > 9, "it panics ten times");
        });
        faulty.await;
        let started = started.into_inner();
        let pauses: Vec<u64> = started.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 121, 2]);
        assert_eq!(metrics.panics.get(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_is_to_stop_is_not_restarted() {
        let (metrics, stop, origin) = (Metrics::new(), CancellationToken::new(), Instant::now());
        let stopping = async {
            // In the midst of the fourth back-off.
            sleep(Duration::from_secs(8)).await;
            stop.cancel();
        };
        let supervisor = Supervisor { cluster: None, metrics: &metrics, stop: Some(&stop) };
        tokio::join!(supervisor.run("faulty", || async { panic!("always") }), stopping);
        assert_eq!((origin.elapsed().as_secs(), metrics.panics.get()), (8, 4));
    }
}
