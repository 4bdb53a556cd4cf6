//! Work that goes on for as long as the server does, whatever happens to it: a panic is logged and counted, and the
//! work begins again.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::time::sleep;
use tracing::error;

use crate::metrics::Metrics;
use crate::server::self_check::SelfCheck;
use crate::state::reload::Reloader;

/// How long work that panicked rests.
const REST: Duration = Duration::from_secs(1);

/// Work without an end.
pub(super) trait Lasting: Send {
    /// What is logged of it.
    const NAME: &'static str;

    /// Works.
    fn run(&mut self) -> BoxFuture<'_, ()>;

    /// It panicked and is about to begin again.
    fn interrupted(&mut self) {}
}

impl Lasting for Reloader {
    const NAME: &'static str = "reload";

    fn run(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(Self::run(self))
    }

    fn interrupted(&mut self) {
        Self::interrupted(self);
    }
}

impl Lasting for SelfCheck {
    const NAME: &'static str = "self-check";

    fn run(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(Self::run(self))
    }
}

/// Keeps it at work.
pub(super) async fn supervise<T: Lasting>(mut lasting: T, metrics: &Metrics) {
    while AssertUnwindSafe(lasting.run()).catch_unwind().await.is_err() {
        metrics.panics.inc();
        error!("the {} panicked and begins again", T::NAME);
        lasting.interrupted();
        sleep(REST).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Faulty {
        runs: u64,
        interrupted: u64,
    }

    impl Lasting for &mut Faulty {
        const NAME: &'static str = "faulty";

        fn run(&mut self) -> BoxFuture<'_, ()> {
            Box::pin(async {
                self.runs += 1;
                sleep(Duration::from_millis(1)).await;
                assert!(self.runs > 2, "it fails twice");
            })
        }

        fn interrupted(&mut self) {
            self.interrupted += 1;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_panics_is_counted_and_begins_again() {
        let (metrics, mut faulty) = (Metrics::new(), Faulty::default());
        supervise(&mut faulty, &metrics).await;
        assert_eq!((faulty.runs, faulty.interrupted, metrics.panics.get()), (3, 2, 2));
    }
}
