//! Threads with a larger stack, for what recurses deeper than the caller's stack allows.

use std::thread::{Builder, scope};

/// For parsing, checking and planning. The parser recurses into each operator of a chain before the chain is known to be
/// too long: 100,000 characters need 32 MiB, and 128 MiB in a debug build.
pub(super) const COMPILER: usize = 256 << 20;
/// For evaluating the deepest trees.
pub(super) const EVALUATOR: usize = 64 << 20;

/// Runs a function on a thread of its own; an error if it panics, or if no thread can be started.
pub(super) fn run<T: Send>(
    name: &str,
    size: usize,
    function: impl FnOnce() -> T + Send,
) -> Result<T, String> {
    scope(|scope| {
        let thread = Builder::new()
            .name(name.to_owned())
            .stack_size(size)
            .spawn_scoped(scope, function)
            .map_err(|error| format!("no thread can be started: {error}"))?;
        thread.join().map_err(|_| "internal error".to_owned())
    })
}
