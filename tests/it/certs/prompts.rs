//! Prompts at a terminal, which `script` of util-linux provides.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::shell;

/// `certs init` at a terminal, started by a shell that prints the process ID first, and at last the exit code and the
/// settings of the terminal.
struct Terminal {
    script: Child,
    keyboard: ChildStdin,
    screen: ChildStdout,
    seen: String,
}

impl Terminal {
    fn start(dir: &Path) -> Self {
        let portcullis = crate::gateway::PORTCULLIS;
        Self::run(
            dir,
            &format!(
                "exec 3<&0; {portcullis} certs init --dir pki <&3 & echo \"pid $!.\"; wait $!; echo \"code $?.\"; \
                 stty -a"
            ),
        )
    }

    /// As a job in the foreground, which Ctrl-Z stops: the shell goes on then.
    fn start_job(dir: &Path) -> Self {
        let portcullis = crate::gateway::PORTCULLIS;
        Self::run(dir, &format!("set -m; {portcullis} certs init --dir pki; echo \"code $?.\"; stty -a"))
    }

    fn run(dir: &Path, line: &str) -> Self {
        fs::write(dir.join("line.sh"), line).unwrap();
        let mut command = Command::new("script");
        command.args(["--quiet", "--flush", "--command", "bash line.sh", "/dev/null"]).current_dir(dir);
        let mut script = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (keyboard, screen) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
        Self { script, keyboard, screen, seen: String::new() }
    }

    fn until(&mut self, text: &str) {
        let mut buffer = [0; 1024];
        while !self.seen.contains(text) {
            let length = self.screen.read(&mut buffer).unwrap();
            assert!(length > 0, "no {text:?} in {:?}", self.seen);
            self.seen += &String::from_utf8_lossy(&buffer[..length]);
        }
    }

    fn write(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    fn number(&self, name: &str) -> u32 {
        let (_, rest) = self.seen.split_once(&format!("{name} ")).unwrap();
        rest.split('.').next().unwrap().parse().unwrap()
    }

    /// The exit code, and whether the terminal shows what is typed.
    fn end(mut self) -> (u32, bool, String) {
        self.until("echonl");
        drop(self.keyboard);
        self.screen.read_to_string(&mut self.seen).unwrap();
        self.script.wait().unwrap();
        let (_, settings) = self.seen.split_once("code ").unwrap();
        let has_echo = settings.split_whitespace().any(|setting| setting == "echo");
        let (_, rest) = self.seen.split_once("code ").unwrap();
        (rest.split('.').next().unwrap().parse().unwrap(), has_echo, self.seen)
    }
}

#[test]
fn a_signal_at_a_prompt_restores_the_echo_of_the_terminal() {
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129), ("QUIT", 131)] {
        let directory = tempfile::tempdir().unwrap();
        let mut terminal = Terminal::start(directory.path());
        terminal.until("passphrase for the root's key");
        let process = terminal.number("pid");
        shell(directory.path(), &format!("kill -{signal} {process}"));
        let (ended, has_echo, seen) = terminal.end();
        assert_eq!((ended, has_echo), (code, true), "{signal}: {seen}");
        assert!(!directory.path().join("pki").exists(), "{signal}");
    }
}

#[test]
fn a_passphrase_is_read_and_not_shown() {
    let directory = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::start(directory.path());
    terminal.until("passphrase for the root's key");
    terminal.write("correct horse\n");
    terminal.until("repeat the passphrase");
    terminal.write("correct horse\n");
    let (code, has_echo, seen) = terminal.end();
    assert_eq!((code, has_echo), (0, true), "{seen}");
    assert!(!seen.contains("horse"), "{seen}");
    shell(directory.path(), "openssl pkey -in pki/ca.key -passin 'pass:correct horse' -noout");
}

/// A shell gives a job that goes on a terminal with echo.
#[test]
fn ctrl_z_does_not_stop_a_command_that_waits_for_a_passphrase() {
    const CTRL_Z: &str = "\u{1a}";
    const CTRL_U: &str = "\u{15}";
    let directory = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::start_job(directory.path());
    terminal.until("passphrase for the root's key");
    // Without its meaning it is a character of the line, which Ctrl-U empties.
    terminal.write(&format!("{CTRL_Z}{CTRL_U}correct horse\n"));
    terminal.until("repeat the passphrase");
    terminal.write("correct horse\n");
    let (code, has_echo, seen) = terminal.end();
    assert_eq!((code, has_echo), (0, true), "{seen}");
    assert!(!seen.contains("horse") && seen.contains("susp = ^Z"), "{seen}");
    shell(directory.path(), "openssl pkey -in pki/ca.key -passin 'pass:correct horse' -noout");
}
