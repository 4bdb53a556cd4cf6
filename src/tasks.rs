//! Threads with their own runtime, and a supervisor that restarts tasks after a panic.

pub(crate) mod compute;

use std::future::Future;
use std::io;
use std::panic::AssertUnwindSafe;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::FutureExt as _;
use portcullis_go::json::raw::STACK_SIZE;
use tokio::runtime::{Builder, EnterGuard, Handle, Runtime};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::metrics::Metrics;

/// The back-off after a panic; it doubles with each further panic, up to [`MAX_RESTART_BACKOFF`].
const RESTART_BACKOFF: Duration = Duration::from_secs(1);
pub(crate) const MAX_RESTART_BACKOFF: Duration = Duration::from_mins(1);

/// A single-threaded runtime for a new thread.
#[derive(Debug)]
pub(crate) struct RuntimeThread(Runtime);

impl RuntimeThread {
    /// Builds the runtime. Tasks do not run before [`Self::start`].
    pub(crate) fn new() -> io::Result<Self> {
        Builder::new_current_thread().enable_all().build().map(Self)
    }

    /// The handle with which other threads spawn tasks on the runtime.
    pub(crate) fn handle(&self) -> &Handle {
        self.0.handle()
    }

    /// Enters the runtime, to register sockets with it.
    pub(crate) fn enter(&self) -> EnterGuard<'_> {
        self.0.enter()
    }

    /// Starts the thread, which runs the future of `main`. When that completes, the runtime drops all its tasks.
    pub(crate) fn start<F: Future>(
        self,
        name: impl Into<String>,
        main: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        // Objects under review may be nested deeply. The system gives a stack its memory when it is used.
        std::thread::Builder::new().name(name.into()).stack_size(STACK_SIZE).spawn(move || {
            self.0.block_on(main());
        })
    }
}

/// Starts threads of one runtime, whose tasks end when `stop` completes.
pub(crate) fn start_thread_pool(
    name: &'static str,
    threads: usize,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<Handle> {
    let mut runtime = Builder::new_multi_thread();
    runtime.worker_threads(threads).thread_name(name).thread_stack_size(STACK_SIZE).enable_all();
    let runtime = runtime.build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new().name(name.into()).spawn(move || {
        runtime.block_on(stop);
        // A task that computes must not hold up the end of the process.
        runtime.shutdown_background();
    })?;
    Ok(handle)
}

/// Calls a function when a panic drops it, and only then.
pub(crate) struct OnPanic<F: Fn()>(pub(crate) F);

impl<F: Fn()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)();
        }
    }
}

/// Restarts a task that panics, after a back-off. Logs and counts each panic.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Supervisor<'a> {
    /// The cluster of the task, for the log.
    pub(crate) cluster: Option<&'a str>,
    /// Counts panics.
    pub(crate) metrics: &'a Metrics,
    /// Cancels the back-off, so that a stopping task is not restarted.
    pub(crate) stop: Option<&'a CancellationToken>,
    /// The longest back-off.
    pub(crate) max_backoff: Duration,
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
            // A task that ran for so long has probably panicked for another reason.
            backoff = if started.elapsed() > self.max_backoff { RESTART_BACKOFF } else { backoff };
            error!(cluster = self.cluster, task, ?backoff, "task panicked, restarting after the back-off");
            match self.stop {
                Some(stop) => {
                    if stop.run_until_cancelled(sleep(backoff)).await.is_none() {
                        return;
                    }
                }
                None => sleep(backoff).await,
            }
            backoff = (backoff * 2).min(self.max_backoff);
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
        let supervisor = Supervisor {
            cluster: Some("c"),
            metrics: &metrics,
            stop: None,
            max_backoff: MAX_RESTART_BACKOFF,
        };
        let faulty = supervisor.run("faulty", || async {
            let run = started.borrow().len();
            started.borrow_mut().push(origin.elapsed().as_secs());
            if run == 8 {
                // It runs longer than the maximum, which resets the back-off.
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

    #[tokio::test]
    async fn a_guard_runs_when_an_async_function_panics_and_not_otherwise() {
        async fn work(calls: &std::cell::Cell<u32>, panics: bool) {
            let _guard = OnPanic(|| calls.set(calls.get() + 1));
            tokio::task::yield_now().await;
            assert!(!panics, "it panics");
        }
        let calls = std::cell::Cell::new(0);
        for (panics, expected) in [(false, 0), (true, 1)] {
            let ended = AssertUnwindSafe(work(&calls, panics)).catch_unwind().await;
            assert_eq!((ended.is_err(), calls.get()), (panics, expected));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopping_task_is_not_restarted() {
        let (metrics, stop, origin) = (Metrics::new(), CancellationToken::new(), Instant::now());
        let stopping = async {
            // During the fourth back-off.
            sleep(Duration::from_secs(8)).await;
            stop.cancel();
        };
        let supervisor = Supervisor {
            cluster: None,
            metrics: &metrics,
            stop: Some(&stop),
            max_backoff: MAX_RESTART_BACKOFF,
        };
        tokio::join!(supervisor.run("faulty", || async { panic!("always") }), stopping);
        assert_eq!((origin.elapsed().as_secs(), metrics.panics.get()), (8, 4));
    }
}
