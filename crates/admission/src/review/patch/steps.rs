//! The steps of a patch, and its deadline.

use std::time::Instant;

/// The steps between two looks at the clock: some hundred microseconds.
const STEPS_PER_LOOK: usize = 1 << 20;
// Go: context, deadlineExceededError
pub(super) const DEADLINE_EXCEEDED: &str = "context deadline exceeded";

/// Counts what work reads and moves, in bytes, and ends it at the deadline.
#[derive(Debug)]
pub(super) struct Steps {
    deadline: Option<Instant>,
    left: usize,
}

impl Steps {
    pub(super) fn until(deadline: Option<Instant>) -> Self {
        Self { deadline, left: STEPS_PER_LOOK }
    }

    /// Takes so many steps; an error after the deadline.
    pub(super) fn take(&mut self, steps: usize) -> Result<(), String> {
        if let Some(left) = self.left.checked_sub(steps) {
            self.left = left;
            return Ok(());
        }
        self.left = STEPS_PER_LOOK;
        let is_over = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if is_over { Err(DEADLINE_EXCEEDED.to_owned()) } else { Ok(()) }
    }
}
