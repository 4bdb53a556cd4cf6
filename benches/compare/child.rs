//! Starts child processes that the kernel kills when this process exits, for whatever reason: this program starts
//! itself, sets its parent death signal, and then executes the other program.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};

const BECOME: &str = "__become";

/// A command that runs `program` as such a child process.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(BECOME).arg(program);
    command
}

/// In a process started by `command`: executes the program. Otherwise returns.
pub(crate) fn become_program() {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_none_or(|word| word != BECOME) {
        return;
    }
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let error = Command::new(words.next().unwrap()).args(words).exec();
    panic!("the program cannot be started: {error}");
}
