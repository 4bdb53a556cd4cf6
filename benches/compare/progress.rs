//! Shows the progress of the measurement if standard error is a terminal.

use std::io::{IsTerminal as _, Write as _};

/// Replaces the progress line.
pub(crate) fn show(line: &str) {
    let mut out = std::io::stderr();
    if out.is_terminal() {
        write!(out, "\r\x1b[2K{line}").and_then(|()| out.flush()).unwrap();
    }
}

/// Clears the progress line.
pub(crate) fn end() {
    show("");
}
