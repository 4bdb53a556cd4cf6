//! Reads the passphrase of a key from a file, a file descriptor or the terminal. Never from the command line, which
//! every user of the machine can read.

use std::fs::File;
use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};

use clap::Args;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret as _, SecretString};

use super::authority::CaRole;
use super::error::CommandError;
#[cfg(unix)]
use super::prompt::hidden_line;
use crate::certs::named_file;

/// Input of a descriptor that is read for a passphrase, and the length from which a line is none.
const MAX_PASSPHRASE_INPUT: u64 = 4096;

/// Flags for the source of the passphrase.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Passphrase")]
pub(super) struct PassphraseFlags {
    /// Read the passphrase of the key from the first line of this file.
    #[arg(long, value_name = "FILE", conflicts_with = "passphrase_fd")]
    passphrase_file: Option<PathBuf>,
    /// Read the passphrase of the key from the first line of this open file descriptor.
    #[arg(long, value_name = "N")]
    passphrase_fd: Option<u32>,
}

impl PassphraseFlags {
    /// The passphrase that the flags give, if any.
    pub(super) fn given(&self) -> Result<Option<SecretString>, CommandError> {
        if let Some(file) = &self.passphrase_file {
            return of_file(file, "--passphrase-file").map(Some);
        }
        self.passphrase_fd.map(of_descriptor).transpose()
    }

    /// The passphrase of this key, from the flags or a prompt.
    pub(super) fn to_open(&self, key: &Path) -> Result<SecretString, CommandError> {
        match self.given()? {
            Some(passphrase) => Ok(passphrase),
            None => ask(&format!("passphrase of {}: ", key.display())),
        }
    }
}

/// Flags for the encryption of new keys.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Passphrase")]
pub(super) struct NewKeyPassphraseFlags {
    /// Prompt for a passphrase, and encrypt all keys with it. `serve` cannot read encrypted keys.
    #[arg(long, conflicts_with_all = ["passphrase_file", "passphrase_fd"])]
    passphrase: bool,
    #[command(flatten)]
    all: PassphraseFlags,
    /// Encrypt the root's key only, with the passphrase in the first line of this file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["passphrase", "passphrase_file", "passphrase_fd"])]
    root_passphrase_file: Option<PathBuf>,
    /// Do not encrypt keys, and do not prompt. Default if there is no terminal.
    #[arg(long, conflicts_with_all = ["passphrase", "passphrase_file", "passphrase_fd", "root_passphrase_file"])]
    no_passphrase: bool,
}

/// Which new keys are encrypted.
pub(super) enum KeyProtection {
    None,
    Root(SecretString),
    All(SecretString),
}

impl NewKeyPassphraseFlags {
    /// Reads the flags; without them prompts for a passphrase of the root's key, the most valuable and least used one.
    pub(super) fn ask(&self) -> Result<KeyProtection, CommandError> {
        if let Some(passphrase) = self.all.given()? {
            return Ok(KeyProtection::All(passphrase));
        }
        if let Some(file) = &self.root_passphrase_file {
            return of_file(file, "--root-passphrase-file").map(KeyProtection::Root);
        }
        if self.passphrase {
            return ask_twice("passphrase for the new keys: ").map(KeyProtection::All);
        }
        if self.no_passphrase || !std::io::stdin().is_terminal() {
            return Ok(KeyProtection::None);
        }
        ask_twice("passphrase for the root's key (--no-passphrase for none): ").map(KeyProtection::Root)
    }
}

impl KeyProtection {
    /// The passphrase of the root's key, or of the key of a role.
    pub(super) fn of(&self, role: Option<CaRole>) -> Option<&SecretString> {
        match (self, role) {
            (Self::All(passphrase), _) | (Self::Root(passphrase), None) => Some(passphrase),
            (Self::None, _) | (Self::Root(_), Some(_)) => None,
        }
    }

    /// A sentence about the keys, for the output.
    pub(super) fn described(&self) -> &'static str {
        match self {
            Self::None => {
                "The keys, *.key, are not encrypted: any reader of them can impersonate every client and server. \
                 --root-passphrase-file encrypts that of the root, --passphrase all of them."
            }
            Self::Root(_) => {
                "The root's key, ca.key, is encrypted; the other keys are not: any reader of them can impersonate every client \
                 and server."
            }
            Self::All(_) => {
                "The keys, *.key, are encrypted: every signature needs the passphrase, and serve cannot use them."
            }
        }
    }
}

fn ask_twice(prompt: &str) -> Result<SecretString, CommandError> {
    let [first, second] = [ask(prompt)?, ask("repeat the passphrase: ")?];
    if first.expose_secret() != second.expose_secret() {
        return Err(CommandError::Failed(
            "the passphrases differ; nothing was created, try again".to_owned(),
        ));
    }
    Ok(first)
}

/// The passphrase in a file that a person named.
fn of_file(file: &Path, flag: &str) -> Result<SecretString, CommandError> {
    let name = format!("{flag} {}", file.display());
    let content = named_file::read(file).map_err(|error| CommandError::about(&name, error))?;
    first_line(&content, &name)
}

/// The passphrase behind an open descriptor, which may be a terminal.
fn of_descriptor(number: u32) -> Result<SecretString, CommandError> {
    // Opened by path: an invalid descriptor is an error, and the original stays open.
    let file = format!("/dev/fd/{number}");
    let name = format!("--passphrase-fd {file}");
    let mut content = Zeroizing::new(Vec::new());
    File::open(file)
        .and_then(|opened| opened.take(MAX_PASSPHRASE_INPUT).read_to_end(&mut content))
        .map_err(|error| CommandError::about(&name, error))?;
    first_line(&content, &name)
}

fn first_line(content: &[u8], name: &str) -> Result<SecretString, CommandError> {
    let failed = |problem: &str| CommandError::about(name, problem);
    let first = content.split(|octet| *octet == b'\n').next().unwrap_or_default();
    let first = std::str::from_utf8(first).map_err(|_| failed("the first line is not UTF-8"))?;
    let first = first.strip_suffix('\r').unwrap_or(first);
    if first.is_empty() {
        return Err(failed("the first line is empty; it must contain the passphrase"));
    }
    if u64::try_from(first.len()).is_ok_and(|length| length >= MAX_PASSPHRASE_INPUT) {
        return Err(failed("the first line is too long for a passphrase; give another file"));
    }
    Ok(SecretString::from(first))
}

/// The console of Windows takes no signals: Ctrl-C is a key there, and the prompt restores the echo.
#[cfg(not(unix))]
fn hidden_line(prompt: &str) -> std::io::Result<SecretString> {
    rpassword::prompt_password(prompt).map(SecretString::from)
}

fn ask(prompt: &str) -> Result<SecretString, CommandError> {
    if !std::io::stdin().is_terminal() {
        return Err(CommandError::Failed(format!(
            "{}is needed, and there is no terminal to prompt on; give --passphrase-file or --passphrase-fd",
            prompt.replace(": ", " ")
        )));
    }
    let typed = hidden_line(prompt).map_err(|error| CommandError::about("the terminal", error))?;
    if typed.expose_secret().is_empty() {
        return Err(CommandError::Failed("the passphrase is empty; nothing was done".to_owned()));
    }
    Ok(typed)
}
