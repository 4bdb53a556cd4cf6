//! Runs a program and captures its output, within limits of time and size. The standard output may hold a secret, so no
//! error shows it.

use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// The maximum size of the standard output.
const MAX_STDOUT: usize = 1 << 20;
/// How much of the standard error an error shows.
const MAX_STDERR: usize = 1 << 10;
const MAX_STDERR_LINES: usize = 3;
/// How long to wait for the standard error of a program that has exited: a child of it may hold the pipe open.
const STDERR_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a program gave no output.
#[derive(Debug, thiserror::Error)]
pub(in crate::config) enum ProcessError {
    /// It does not exist, or is not executable.
    #[error("cannot be run: {0}")]
    Start(#[source] io::Error),
    /// It timed out.
    #[error("did not exit within {limit:?} and was killed{stderr}")]
    TimedOut {
        /// The timeout.
        limit: Duration,
        /// The beginning of its standard error.
        stderr: String,
    },
    /// Its output is too large.
    #[error("wrote more than {MAX_STDOUT} bytes to its standard output and was killed")]
    TooMuch,
    /// It exited with an error.
    #[error("failed with {status}{stderr}")]
    Failed {
        /// Its exit code or signal.
        status: ExitStatus,
        /// The beginning of its standard error.
        stderr: String,
    },
}

/// Runs `command` and returns its standard output. Blocks for at most `limit` and [`STDERR_TIMEOUT`]; at `limit`, kills
/// the program's process group.
pub(super) fn stdout_of(command: &mut Command, limit: Duration) -> Result<Vec<u8>, ProcessError> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(ProcessError::Start)?;
    let pid = Pid::from_child(&child);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let stderr_head = in_background(move || beginning(stderr, MAX_STDERR, true));
    let finished = in_background(move || {
        let output = beginning(stdout, MAX_STDOUT + 1, false);
        if output.len() <= MAX_STDOUT {
            // Does not reap the process: until it is reaped, its process group ID cannot be reused.
            waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).ok();
        }
        output
    });
    let output = finished.recv_timeout(limit).ok();
    let ended = output.as_ref().is_some_and(|output| output.len() <= MAX_STDOUT);
    if !ended {
        kill_process_group(pid, Signal::KILL).ok();
    }
    let status = child.wait().map_err(ProcessError::Start)?;
    let stderr = || quoted(&stderr_head.recv_timeout(STDERR_TIMEOUT).unwrap_or_default());
    match output {
        None => Err(ProcessError::TimedOut { limit, stderr: stderr() }),
        Some(_) if !ended => Err(ProcessError::TooMuch),
        Some(_) if !status.success() => Err(ProcessError::Failed { status, stderr: stderr() }),
        Some(output) => Ok(output),
    }
}

fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
    let (sender, receiver) = mpsc::channel();
    // The receiver may be gone.
    thread::spawn(move || sender.send(work()).ok());
    receiver
}

/// The first bytes of a stream. With `drain`, reads and discards the rest, so that the writer does not block.
fn beginning(stream: Option<impl Read>, limit: usize, drain: bool) -> Vec<u8> {
    let mut kept = Vec::new();
    if let Some(mut stream) = stream {
        let bound = u64::try_from(limit).unwrap_or(u64::MAX);
        // Keeps the bytes read before an error.
        stream.by_ref().take(bound).read_to_end(&mut kept).ok();
        if drain {
            io::copy(&mut stream, &mut io::sink()).ok();
        }
    }
    kept
}

/// The first lines of the standard error, joined on one line, without control characters.
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

    const TEST_TIMEOUT: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::null());
        command
    }

    #[test]
    fn the_output_of_a_program_that_succeeds_is_returned() {
        let output = stdout_of(&mut shell("echo out; echo err >&2"), TEST_TIMEOUT).unwrap();
        assert_eq!(output, b"out\n");
    }

    #[test]
    fn a_failure_shows_the_exit_code_and_the_first_lines_of_standard_error_alone() {
        let script = "echo secret; printf '\\033[31mno login\\n\\n  run login first\\nc\\nd\\n' >&2; exit 3";
        let error = stdout_of(&mut shell(script), TEST_TIMEOUT).unwrap_err().to_string();
        assert_eq!(error, "failed with exit status: 3:  [31mno login; run login first; c");
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_what_it_started() {
        // A process that survives holds the write end of the pipe open, for longer than the timeout.
        let (mut alive, held) = io::pipe().unwrap();
        let mut command = shell("sleep 60; true");
        command.stdin(held);
        let error = stdout_of(&mut command, Duration::from_millis(200)).unwrap_err();
        drop(command);
        assert!(matches!(&error, ProcessError::TimedOut { .. }), "{error}");
        let gone = in_background(move || alive.read_to_end(&mut Vec::new()).unwrap());
        gone.recv_timeout(TEST_TIMEOUT).expect("every process of the group must be killed");
    }

    #[test]
    fn a_program_that_closes_its_output_and_stays_is_killed() {
        let error = stdout_of(&mut shell("exec >&- 2>&-; sleep 60"), Duration::from_millis(200)).unwrap_err();
        assert!(matches!(&error, ProcessError::TimedOut { .. }), "{error}");
    }

    #[test]
    fn a_child_that_outlives_the_program_and_holds_its_standard_error_does_not_hold_it_up() {
        for (script, succeeds) in
            [("sleep 60 >/dev/null & echo out", true), ("sleep 60 >/dev/null & exit 1", false)]
        {
            let result =
                in_background(move || stdout_of(&mut shell(script), TEST_TIMEOUT)).recv_timeout(TEST_TIMEOUT);
            assert_eq!(result.expect("it must return").is_ok(), succeeds, "{script}");
        }
    }

    #[test]
    fn output_without_end_is_cut() {
        let error = stdout_of(&mut shell("cat /dev/zero"), TEST_TIMEOUT).unwrap_err();
        assert!(matches!(&error, ProcessError::TooMuch), "{error}");
    }
}
