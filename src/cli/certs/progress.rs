//! Something that moves while somebody at a terminal waits; nothing anywhere else.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::super::terminal::harmless;

const STEP: Duration = Duration::from_millis(120);

/// A line that says what is waited for; it is gone when the value is.
#[derive(Debug)]
pub(super) struct Waiting(ProgressBar);

impl Waiting {
    pub(super) fn new(what: &str) -> Self {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(None, target)
            .with_style(ProgressStyle::default_spinner())
            .with_message(harmless(what));
        bar.enable_steady_tick(STEP);
        Self(bar)
    }

    /// Something else is waited for now.
    pub(super) fn now(&self, what: &str) {
        self.0.set_message(harmless(what));
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Does something that may take long.
pub(super) fn patiently<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let _waiting = Waiting::new(what);
    work()
}
