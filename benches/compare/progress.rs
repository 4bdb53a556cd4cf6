//! What is being measured, on a terminal and nowhere else.

use std::io::{IsTerminal as _, Write as _};

/// Shows it in place of what was shown before.
pub(crate) fn show(what: &str) {
    let mut out = std::io::stderr();
    if out.is_terminal() {
        write!(out, "\r\x1b[2K{what}").and_then(|()| out.flush()).unwrap();
    }
}

/// Leaves nothing behind.
pub(crate) fn end() {
    show("");
}
