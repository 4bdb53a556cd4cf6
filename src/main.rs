//! The `portcullis` command.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // With huge pages an idle connection takes twice the memory: it touches only a little of each 2 MiB page.
    rustix::thread::disable_transparent_huge_pages(true).ok();
    portcullis::Cli::main(std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()))
}
