//! The output of a command: text, JSON or YAML on standard output, failures on standard error, exit codes.

use std::io::Write as _;
use std::process::ExitCode;

use clap::ValueEnum;
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::terminal::sanitized;

/// Exit code for a usage or configuration error.
// sysexits.h, EX_USAGE
pub const BAD_CONFIGURATION: u8 = 64;

/// The output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table, for people.
    #[value(alias = "table")]
    Text,
    /// JSON, for programs.
    Json,
    /// YAML, for both.
    Yaml,
}

impl Output {
    /// JSON or YAML; `None` for [`Self::Text`].
    pub fn rendered(self, value: &impl Serialize) -> Option<String> {
        match self {
            Self::Text => None,
            Self::Json => serde_json::to_string_pretty(value).ok().map(|text| text + "\n"),
            Self::Yaml => serde_saphyr::to_string(value).ok(),
        }
    }
}

/// Prints to standard output; fails if that is closed.
pub fn print(text: &str) -> ExitCode {
    let mut output = std::io::stdout();
    let printed = output.write_all(text.as_bytes()).and_then(|()| output.flush());
    printed.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

/// Prints a failure to standard error.
pub fn failed(message: &str) -> ExitCode {
    print_error(message);
    ExitCode::FAILURE
}

/// Prints to standard error. The message may contain untrusted text, of an API server or an object.
pub fn print_error(message: &str) {
    let message = message.split('\n').map(sanitized).collect::<Vec<_>>().join("\n");
    // A closed standard error is ignored: no other place for the message is left.
    writeln!(std::io::stderr(), "portcullis: {message}").ok();
}

/// The runtime of a command.
pub fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
