//! The commands of `portcullis certs`: output, files, errors, and the certificates' acceptance by openssl and the
//! gateway.

mod authorities;
mod cluster;
mod files;
mod gateway;
mod inspect;
mod issue;
mod odd_names;
mod profiles;
mod prompts;
mod revoke;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use regex::Regex;

/// The output and the exit code of a command.
#[derive(Debug)]
struct CommandOutput {
    out: String,
    err: String,
    code: i32,
}

impl CommandOutput {
    fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { out: text(output.stdout), err: text(output.stderr), code: output.status.code().unwrap() }
    }

    /// Standard output of a command that must succeed without warnings.
    #[track_caller]
    fn succeeds(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{}", self.out);
        self.out
    }

    /// Standard error of a command that must fail with this code and these texts.
    #[track_caller]
    fn fails(self, code: i32, texts: &[&str]) -> String {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        for part in texts {
            assert!(self.err.contains(part), "{part:?} is not in {}", self.err);
        }
        self.err
    }

    /// Exit code and output, with times, serial numbers and the like replaced.
    fn normal(&self) -> String {
        normal(&format!("exit {}\n{}{}", self.code, self.out, self.err))
    }
}

fn normal(text: &str) -> String {
    let rules = [
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "2026-01-01T12:00:00Z"),
        (r"\b[0-9a-f]{36,40}\b", "00112233445566778899aabbccddeeff00112233"),
        (r"\b[0-9a-f]{64}\b", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"),
        (r"\b[0-9a-f]{28,35}\b", "00112233445566778899aabbccddeeff"),
        // A serial number that begins with a zero is shorter, and its column is filled up.
        (r"\b(00112233445566778899aabbccddeeff) {2,}", "$1  "),
        (r"127\.0\.0\.1:\d+", "127.0.0.1:6443"),
        (r"\((in )?\d+[smhd]( ago)?\)", "(${1}9d$2)"),
        (r"(?m)^(serial +)[0-9a-f]+$", "${1}0011"),
    ];
    rules.iter().fold(text.to_owned(), |text, (pattern, by)| {
        Regex::new(pattern).unwrap().replace_all(&text, *by).into_owned()
    })
}

/// `portcullis certs`, run in a directory, without a terminal.
fn command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(crate::gateway::PORTCULLIS);
    command.arg("certs").args(arguments).current_dir(directory).stdin(Stdio::null()).env("NO_COLOR", "1");
    command.env("HOME", directory).env_remove("KUBECONFIG");
    command
}

fn certs(directory: &Path, arguments: &[&str]) -> CommandOutput {
    CommandOutput::of(command(directory, arguments).output().unwrap())
}

/// Runs a line of shell, which must succeed, and returns its standard output.
#[track_caller]
fn shell(directory: &Path, line: &str) -> String {
    let output = Command::new("bash").args(["-c", line]).current_dir(directory).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{line}: {printed}{}", String::from_utf8_lossy(&output.stderr));
    printed
}

/// A directory with CAs in `pki`, whose names are the same in each run.
fn authorities() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    certs(directory.path(), &["init", "--name", "portcullis"]).succeeds();
    directory
}

/// The names in a directory.
fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn help_texts() {
    let directory = tempfile::tempdir().unwrap();
    for command in [
        "",
        "init",
        "renew-ca",
        "issue",
        "sign",
        "inspect",
        "verify",
        "revoke",
        "index",
        "request",
        "list",
        "approve",
        "deny",
        "watch",
        "bundle",
        "bundle print",
        "bundle verify",
        "log",
        "log init",
        "log verify",
        "log prove",
        "log monitor",
        "expiring",
        "rotate",
    ] {
        let mut arguments: Vec<&str> = command.split_whitespace().collect();
        arguments.push("-h");
        let name = format!("certs_help_{}", command.replace(' ', "_"));
        insta::assert_snapshot!(name.trim_end_matches('_'), certs(directory.path(), &arguments).succeeds());
    }
}
