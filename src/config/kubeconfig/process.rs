//! Runs a program to its end and takes what it writes, within bounds of time and size. Its standard output may hold a
//! secret, so no error ever shows it.

use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// How much a program may write to its standard output.
const MAX_STDOUT: usize = 1 << 20;
/// How much of its standard error is shown.
const MAX_STDERR: usize = 1 << 10;
const MAX_STDERR_LINES: usize = 3;
/// How long the standard error of a program that has ended is waited for: it may have left it to a child of its own.
const STDERR_PATIENCE: Duration = Duration::from_secs(1);

/// Why a program has no output.
#[derive(Debug, thiserror::Error)]
pub(in crate::config) enum RunError {
    /// It is not there, or it is no program.
    #[error("cannot be run: {0}")]
    Start(#[source] io::Error),
    /// It took too long.
    #[error("did not end within {limit:?} and was killed{stderr}")]
    TimedOut {
        /// How long it had.
        limit: Duration,
        /// What it complained of.
        stderr: String,
    },
    /// It wrote too much.
    #[error("wrote more than {MAX_STDOUT} bytes to its standard output and was killed")]
    TooMuch,
    /// It said that it failed.
    #[error("failed with {status}{stderr}")]
    Failed {
        /// Its exit code or signal.
        status: ExitStatus,
        /// What it complained of.
        stderr: String,
    },
}

/// Runs `command` and returns its standard output. Blocks, but not for much longer than `limit`; then the program is
/// killed with all that it started.
pub(super) fn stdout_of(command: &mut Command, limit: Duration) -> Result<Vec<u8>, RunError> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(RunError::Start)?;
    let pid = Pid::from_child(&child);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let complaints = in_background(move || beginning(stderr, MAX_STDERR, true));
    let finished = in_background(move || {
        let output = beginning(stdout, MAX_STDOUT + 1, false);
        if output.len() <= MAX_STDOUT {
            // Not reaped here: while it is not, the process group below cannot be another's.
            waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).ok();
        }
        output
    });
    let output = finished.recv_timeout(limit).ok();
    let ended = output.as_ref().is_some_and(|output| output.len() <= MAX_STDOUT);
    if !ended {
        kill_process_group(pid, Signal::KILL).ok();
    }
    let status = child.wait().map_err(RunError::Start)?;
    let stderr = || quoted(&complaints.recv_timeout(STDERR_PATIENCE).unwrap_or_default());
    match output {
        None => Err(RunError::TimedOut { limit, stderr: stderr() }),
        Some(_) if !ended => Err(RunError::TooMuch),
        Some(_) if !status.success() => Err(RunError::Failed { status, stderr: stderr() }),
        Some(output) => Ok(output),
    }
}

fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
    let (sender, receiver) = mpsc::channel();
    // Nobody receives what comes too late.
    thread::spawn(move || sender.send(work()).ok());
    receiver
}

/// The first bytes of a stream; the rest is read too if the writer must not be stopped.
fn beginning(stream: Option<impl Read>, limit: usize, drain: bool) -> Vec<u8> {
    let mut kept = Vec::new();
    if let Some(mut stream) = stream {
        let bound = u64::try_from(limit).unwrap_or(u64::MAX);
        // What was read before an error counts.
        stream.by_ref().take(bound).read_to_end(&mut kept).ok();
        if drain {
            io::copy(&mut stream, &mut io::sink()).ok();
        }
    }
    kept
}

/// The first lines of what a program complained of, on one line, with nothing in it that a terminal would obey.
fn quoted(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<String> = text
        .lines()
        .map(|line| line.trim().replace(char::is_control, " "))
        .filter(|line| !line.is_empty())
        .take(MAX_STDERR_LINES)
        .collect();
    if lines.is_empty() { String::new() } else { format!(": {}", lines.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::null());
        command
    }

    #[test]
    fn the_output_of_a_program_that_succeeds_is_returned() {
        let output = stdout_of(&mut shell("echo out; echo err >&2"), PATIENCE).unwrap();
        assert_eq!(output, b"out\n");
    }

    #[test]
    fn a_failure_shows_the_exit_code_and_the_first_lines_of_standard_error_alone() {
        let script = "echo secret; printf '\\033[31mno login\\n\\n  run login first\\nc\\nd\\n' >&2; exit 3";
        let error = stdout_of(&mut shell(script), PATIENCE).unwrap_err().to_string();
        assert_eq!(error, "failed with exit status: 3:  [31mno login; run login first; c");
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_what_it_started() {
        // Whoever lives on holds the write end of the pipe open, for longer than is waited here.
        let (mut alive, held) = io::pipe().unwrap();
        let mut command = shell("sleep 60; true");
        command.stdin(held);
        let error = stdout_of(&mut command, Duration::from_millis(200)).unwrap_err();
        drop(command);
        assert!(matches!(&error, RunError::TimedOut { .. }), "{error}");
        let gone = in_background(move || alive.read_to_end(&mut Vec::new()).unwrap());
        gone.recv_timeout(PATIENCE).expect("everything should have been killed");
    }

    #[test]
    fn a_program_that_closes_its_output_and_stays_is_killed() {
        let error = stdout_of(&mut shell("exec >&- 2>&-; sleep 60"), Duration::from_millis(200)).unwrap_err();
        assert!(matches!(&error, RunError::TimedOut { .. }), "{error}");
    }

    #[test]
    fn a_child_that_outlives_the_program_and_holds_its_standard_error_does_not_hold_it_up() {
        for (script, succeeds) in
            [("sleep 60 >/dev/null & echo out", true), ("sleep 60 >/dev/null & exit 1", false)]
        {
            let result =
                in_background(move || stdout_of(&mut shell(script), PATIENCE)).recv_timeout(PATIENCE);
            assert_eq!(result.expect("it should have ended").is_ok(), succeeds, "{script}");
        }
    }

    #[test]
    fn output_without_end_is_cut() {
        let error = stdout_of(&mut shell("cat /dev/zero"), PATIENCE).unwrap_err();
        assert!(matches!(&error, RunError::TooMuch), "{error}");
    }
}
