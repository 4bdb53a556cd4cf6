//! The signals that end a command: Ctrl-C and Ctrl-\, a closed terminal, and the request to terminate.

use std::future::pending;
use std::process::ExitCode;

/// A signal that ends a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TerminationSignal {
    /// SIGHUP: the terminal was closed.
    Hangup,
    /// SIGINT, by Ctrl-C.
    Interrupt,
    /// SIGQUIT, by Ctrl-\.
    Quit,
    /// SIGTERM, by `timeout`, `kill` and the end of a job.
    Terminate,
}

impl TerminationSignal {
    /// The exit code, as a shell reports the signal: 128 and its number.
    pub(crate) fn exit_code(self) -> ExitCode {
        ExitCode::from(128 + self.number())
    }

    // POSIX: kill, the numbers of its options
    fn number(self) -> u8 {
        match self {
            Self::Hangup => 1,
            Self::Interrupt => 2,
            Self::Quit => 3,
            Self::Terminate => 15,
        }
    }
}

/// Waits for a signal that ends the command. From the first poll on, these signals do not end the process by themselves: a command
/// that stops waiting must end.
pub(crate) async fn interrupted() -> TerminationSignal {
    tokio::select! {
        signal = received(TerminationSignal::Hangup) => signal,
        signal = received(TerminationSignal::Interrupt) => signal,
        signal = received(TerminationSignal::Quit) => signal,
        signal = received(TerminationSignal::Terminate) => signal,
    }
}

/// Waits for one of them; for ever if the process was started without it, as by `nohup`.
#[cfg(unix)]
async fn received(signal: TerminationSignal) -> TerminationSignal {
    use tokio::signal::unix::{SignalKind, signal as listen};

    if is_ignored(signal) {
        return pending().await;
    }
    match listen(SignalKind::from_raw(signal.number().into())) {
        Ok(mut signals) => {
            signals.recv().await;
            signal
        }
        Err(_) => pending().await,
    }
}

#[cfg(not(unix))]
async fn received(signal: TerminationSignal) -> TerminationSignal {
    if signal == TerminationSignal::Interrupt && tokio::signal::ctrl_c().await.is_ok() {
        return signal;
    }
    pending().await
}

/// Whether the parent process has set the signal to be ignored: listening to it would undo that. Only the signals of Ctrl-C and Ctrl-\
/// are always listened to: shells without job control ignore them for every command in the background.
#[cfg(unix)]
fn is_ignored(signal: TerminationSignal) -> bool {
    // Linux; there is no portable way without `unsafe`.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let is_of_keyboard = matches!(signal, TerminationSignal::Interrupt | TerminationSignal::Quit);
    !is_of_keyboard && ignored_signals(&status) & (1 << (signal.number() - 1)) != 0
}

// proc_pid_status(5): SigIgn, a mask in hexadecimal
#[cfg(unix)]
fn ignored_signals(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

#[cfg(all(test, unix))]
mod tests {
    use futures_util::poll;
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    // One test: each signal reaches all that listen.
    #[tokio::test]
    async fn each_signal_is_named_and_has_its_exit_code() {
        for (signal, expected, code) in [
            (Signal::HUP, TerminationSignal::Hangup, 129),
            (Signal::INT, TerminationSignal::Interrupt, 130),
            (Signal::QUIT, TerminationSignal::Quit, 131),
            (Signal::TERM, TerminationSignal::Terminate, 143),
        ] {
            let mut waiting = std::pin::pin!(interrupted());
            assert!(poll!(&mut waiting).is_pending());
            kill_process(getpid(), signal).unwrap();
            // As of a test under nohup.
            if is_ignored(expected) {
                assert!(poll!(&mut waiting).is_pending(), "{expected:?}");
                continue;
            }
            let received = waiting.await;
            assert_eq!(received, expected);
            assert_eq!(format!("{:?}", received.exit_code()), format!("{:?}", ExitCode::from(code)));
        }
    }

    #[test]
    fn what_the_parent_ignores_stays_ignored() {
        let status = "Name:\tportcullis\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        assert_eq!(ignored_signals(status) & 1, 1, "SIGHUP, by nohup");
        assert_eq!(ignored_signals(status) >> 14 & 1, 0, "SIGTERM");
        assert_eq!(ignored_signals(""), 0);
    }
}
