//! The `portcullis` command.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    portcullis::cli::Cli::main(std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()))
}
