//! Something that moves while somebody at a terminal waits; nothing anywhere else.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::super::terminal::sanitized;

const TICK_INTERVAL: Duration = Duration::from_millis(120);

/// A line that says what is waited for; it is gone when the value is.
#[derive(Debug)]
pub(super) struct Spinner(ProgressBar);

impl Spinner {
    pub(super) fn new(what: &str) -> Self {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(None, target)
            .with_style(ProgressStyle::default_spinner())
            .with_message(sanitized(what));
        bar.enable_steady_tick(TICK_INTERVAL);
        Self(bar)
    }

    /// Something else is waited for now.
    pub(super) fn now(&self, what: &str) {
        self.0.set_message(sanitized(what));
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Does something that may take long.
pub(super) fn with_spinner<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let _waiting = Spinner::new(what);
    work()
}
