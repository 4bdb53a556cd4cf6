//! The `portcullis` command.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Idle connections touch little of what they have: with pages of 2 MiB each takes twice as much.
    rustix::thread::disable_transparent_huge_pages(true).ok();
    portcullis::cli::Cli::main(std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()))
}
