//! Log lines on standard error. What is logged at which level follows kube-apiserver's `-v`: errors, failed
//! authentication and slow requests always; every request from 3 on.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::flags::LogFormat;

/// The target of the one line per request.
pub(crate) const REQUEST_LOG: &str = "portcullis::request";

/// Starts logging. A second call does nothing.
pub(crate) fn init(verbosity: u8, format: LogFormat) {
    // No line of another crate can carry a header: theirs are only shown when they warn.
    let filter = match verbosity {
        0..=2 => "warn,portcullis=info,portcullis::request=warn",
        3..=4 => "warn,portcullis=info",
        5 => "warn,portcullis=debug",
        _ => "info,portcullis=trace,rustls=debug,hyper=info",
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // A logger that is already there (a test's) stays.
    let _already_there = match format {
        LogFormat::Text => builder.try_init().is_err(),
        LogFormat::Json => builder.json().flatten_event(true).try_init().is_err(),
    };
}

/// An error in words, with its causes: hyper leaves them out of its own.
pub(crate) fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        // Some errors say what caused them.
        if !text.ends_with(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    text
}
