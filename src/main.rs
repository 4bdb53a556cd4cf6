//! The `portcullis` command: parse arguments, start logging, run, exit code.

use std::process::ExitCode;

use clap::Parser as _;
use portcullis::cli::Cli;

fn main() -> ExitCode {
    Cli::parse().run()
}
