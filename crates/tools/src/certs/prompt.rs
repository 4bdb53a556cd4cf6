//! Prompts at the terminal for a secret, without echo. A signal that ends the command restores the echo first: else the
//! shell would be left with a terminal that shows nothing. Ctrl-Z does nothing meanwhile: shells give a command that goes on
//! the terminal as they keep it, with the echo, and the secret would be shown.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::sync::{Mutex, PoisonError};

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use secrecy::SecretString;
use secrecy::zeroize::Zeroizing;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The longest line that a terminal passes on.
const MAX_LINE: usize = 4096;

/// The keys that stop a command: Ctrl-Z, and on BSD systems Ctrl-Y, which stops it at its next read.
#[cfg(any(target_vendor = "apple", target_os = "freebsd", target_os = "netbsd", target_os = "openbsd"))]
const STOP_KEYS: [SpecialCodeIndex; 2] = [SpecialCodeIndex::VSUSP, SpecialCodeIndex::VDSUSP];
#[cfg(not(any(
    target_vendor = "apple",
    target_os = "freebsd",
    target_os = "netbsd",
    target_os = "openbsd"
)))]
const STOP_KEYS: [SpecialCodeIndex; 1] = [SpecialCodeIndex::VSUSP];
/// No key.
// unistd.h, _POSIX_VDISABLE
const NO_KEY: u8 = if cfg!(any(target_os = "linux", target_os = "android")) { 0 } else { 0xff };

/// The terminal whose echo is off, with its settings before.
static HIDDEN: Mutex<Option<HiddenTerminal>> = Mutex::new(None);
/// Whether signals restore the echo.
static IS_WATCHED: Mutex<bool> = Mutex::new(false);

struct HiddenTerminal {
    terminal: File,
    before: Termios,
}

impl HiddenTerminal {
    fn restore(&self) -> io::Result<()> {
        Ok(tcsetattr(&self.terminal, OptionalActions::Now, &self.before)?)
    }
}

/// Restores the echo when it is dropped.
struct EchoOff;

impl EchoOff {
    fn begin(terminal: &File) -> io::Result<Self> {
        // Held until the echo is off: a signal in between would restore it too early.
        let mut hidden = lock(&HIDDEN);
        let before = tcgetattr(terminal)?;
        let mut changed = before.clone();
        changed.local_modes.remove(LocalModes::ECHO);
        for key in STOP_KEYS {
            changed.special_codes[key] = NO_KEY;
        }
        let own = HiddenTerminal { terminal: terminal.try_clone()?, before };
        tcsetattr(terminal, OptionalActions::Now, &changed)?;
        *hidden = Some(own);
        Ok(Self)
    }
}

impl Drop for EchoOff {
    fn drop(&mut self) {
        if let Some(hidden) = lock(&HIDDEN).take() {
            // Best effort: there is no other way to restore it.
            hidden.restore().ok();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints a prompt on the controlling terminal, and reads the line that is typed.
pub(super) fn hidden_line(prompt: &str) -> io::Result<SecretString> {
    let mut terminal = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
    watch_signals()?;
    let echo = EchoOff::begin(&terminal)?;
    terminal.write_all(prompt.as_bytes())?;
    let line = read_line(&mut terminal);
    drop(echo);
    terminal.write_all(b"\n")?;
    line
}

fn read_line(terminal: &mut File) -> io::Result<SecretString> {
    let mut buffer = Zeroizing::new([0; MAX_LINE]);
    let mut length = 0;
    while let Some(free) = buffer.get_mut(length..).filter(|free| !free.is_empty()) {
        match terminal.read(free) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if buffer.get(..length).is_some_and(|typed| typed.ends_with(b"\n")) {
            break;
        }
    }
    let typed = std::str::from_utf8(buffer.get(..length).unwrap_or_default());
    let typed = typed.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the text is not UTF-8"))?;
    Ok(SecretString::from(typed.trim_end_matches(['\r', '\n'])))
}

/// From the first prompt on, the signals that end a command restore the echo before they do. They stay so: the handlers
/// cannot be removed again. Commands can be killed at any time, so they need no other cleanup.
fn watch_signals() -> io::Result<()> {
    let mut is_watched = lock(&IS_WATCHED);
    if *is_watched {
        return Ok(());
    }
    let runtime = crate::output::runtime()?;
    let signals = {
        let _entered = runtime.enter();
        [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()]
            .into_iter()
            .map(|kind| Ok((signal(kind)?, kind.as_raw_value())))
            .collect::<io::Result<Vec<_>>>()?
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        end(runtime.block_on(first_of(signals)));
    })?;
    *is_watched = true;
    Ok(())
}

/// The number of the signal that comes first.
async fn first_of(signals: Vec<(Signal, i32)>) -> i32 {
    let waits = signals.into_iter().map(|(mut signal, number)| {
        Box::pin(async move {
            signal.recv().await;
            number
        })
    });
    futures_util::future::select_all(waits).await.0
}

#[expect(clippy::exit, reason = "the thread of the command blocks in a read of the terminal")]
fn end(number: i32) {
    // Held until the process ends: no other prompt may switch the echo off.
    let hidden = lock(&HIDDEN);
    if let Some(hidden) = hidden.as_ref() {
        hidden.restore().ok();
        (&hidden.terminal).write_all(b"\n").ok();
    }
    // As shells report it.
    std::process::exit(128 + number);
}
