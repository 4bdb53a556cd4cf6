//! Other programs, which end when this one does, however it ends: this program starts itself, asks the kernel for that,
//! and becomes the other.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};

const BECOME: &str = "__become";

/// Starts a program.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([BECOME, program]);
    command
}

/// Becomes the program that it was started for, if it was.
pub(crate) fn become_program() {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_none_or(|word| word != BECOME) {
        return;
    }
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let error = Command::new(words.next().unwrap()).args(words).exec();
    panic!("it cannot be started: {error}");
}
