//! A spinner on a terminal; no output elsewhere.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::super::terminal::sanitized;

const TICK_INTERVAL: Duration = Duration::from_millis(120);

/// A spinner with a message, cleared on drop.
#[derive(Debug)]
pub(crate) struct Spinner(ProgressBar);

impl Spinner {
    pub(crate) fn new(message: &str) -> Self {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(None, target)
            .with_style(ProgressStyle::default_spinner())
            .with_message(sanitized(message));
        bar.enable_steady_tick(TICK_INTERVAL);
        Self(bar)
    }

    /// Changes the message.
    pub(crate) fn set_message(&self, message: &str) {
        self.0.set_message(sanitized(message));
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Runs `work` with a spinner.
pub(crate) fn with_spinner<T>(message: &str, work: impl FnOnce() -> T) -> T {
    let _spinner = Spinner::new(message);
    work()
}
