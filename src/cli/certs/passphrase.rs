//! The passphrase of a key: from a file, from an open descriptor, or from whoever sits at the terminal. Never from the
//! command line, where every user of the machine can read it.

use std::fs::File;
use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};

use clap::Args;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret as _, SecretString};

use super::authority::CaRole;
use super::error::CommandError;

/// Longer ones are a mistake in the file's name.
const MAX_PASSPHRASE_INPUT: u64 = 4096;

/// Where the passphrase is.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Passphrase")]
pub(super) struct PassphraseFlags {
    /// The passphrase of the key is the first line of this file.
    #[arg(long, value_name = "FILE", conflicts_with = "passphrase_fd")]
    passphrase_file: Option<PathBuf>,
    /// The passphrase of the key is the first line that this open file descriptor gives.
    #[arg(long, value_name = "N")]
    passphrase_fd: Option<u32>,
}

impl PassphraseFlags {
    /// The one that the flags name.
    pub(super) fn given(&self) -> Result<Option<SecretString>, CommandError> {
        if let Some(file) = &self.passphrase_file {
            return read(file, "--passphrase-file").map(Some);
        }
        // Opened by its name: a descriptor that is none is an error then, and no other's is closed at the end.
        self.passphrase_fd
            .map(|number| read(Path::new(&format!("/dev/fd/{number}")), "--passphrase-fd"))
            .transpose()
    }

    /// The one that opens this key: as the flags say, else as is typed.
    pub(super) fn to_open(&self, key: &Path) -> Result<SecretString, CommandError> {
        match self.given()? {
            Some(passphrase) => Ok(passphrase),
            None => ask(&format!("passphrase of {}: ", key.display())),
        }
    }
}

/// Which new keys are encrypted, and where the passphrase is.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Passphrase")]
pub(super) struct NewKeyPassphraseFlags {
    /// Ask at the terminal for a passphrase to encrypt all keys with. `serve` reads no encrypted keys.
    #[arg(long, conflicts_with_all = ["passphrase_file", "passphrase_fd"])]
    passphrase: bool,
    #[command(flatten)]
    all: PassphraseFlags,
    /// Encrypt the root's key alone; the passphrase is the first line of this file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["passphrase", "passphrase_file", "passphrase_fd"])]
    root_passphrase_file: Option<PathBuf>,
    /// Encrypt no key, and ask for no passphrase. So it is, too, where there is no terminal and no other flag.
    #[arg(long, conflicts_with_all = ["passphrase", "passphrase_file", "passphrase_fd", "root_passphrase_file"])]
    no_passphrase: bool,
}

/// Which of an authority's new keys are encrypted.
pub(super) enum KeyProtection {
    None,
    Root(SecretString),
    All(SecretString),
}

impl NewKeyPassphraseFlags {
    /// What the flags say; else what is typed for the root's key, whose use is rare and whose loss is the worst.
    pub(super) fn ask(&self) -> Result<KeyProtection, CommandError> {
        if let Some(passphrase) = self.all.given()? {
            return Ok(KeyProtection::All(passphrase));
        }
        if let Some(file) = &self.root_passphrase_file {
            return read(file, "--root-passphrase-file").map(KeyProtection::Root);
        }
        if self.passphrase {
            return ask_twice("passphrase of the new keys: ").map(KeyProtection::All);
        }
        if self.no_passphrase || !std::io::stdin().is_terminal() {
            return Ok(KeyProtection::None);
        }
        ask_twice("passphrase of the root's key (--no-passphrase for none): ").map(KeyProtection::Root)
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

    /// What is told of the keys.
    pub(super) fn described(&self) -> &'static str {
        match self {
            Self::None => {
                "Their keys, *.key, are not encrypted: whoever reads them can be anyone. --root-passphrase-file encrypts \
                 that of the root, --passphrase all of them."
            }
            Self::Root(_) => {
                "The root's key, ca.key, is encrypted; the other keys are not: whoever reads them can be anyone."
            }
            Self::All(_) => {
                "Their keys, *.key, are encrypted; the passphrase is needed whenever something is signed, and serve \
                 cannot use them."
            }
        }
    }
}

fn ask_twice(prompt: &str) -> Result<SecretString, CommandError> {
    let [first, second] = [ask(prompt)?, ask("once more: ")?];
    if first.expose_secret() != second.expose_secret() {
        return Err(CommandError::Failed(
            "the two passphrases differ; nothing was made, try again".to_owned(),
        ));
    }
    Ok(first)
}

fn read(file: &Path, flag: &str) -> Result<SecretString, CommandError> {
    let failed =
        |problem: &dyn std::fmt::Display| CommandError::about(format!("{flag} {}", file.display()), problem);
    let mut text = Zeroizing::new(String::new());
    File::open(file)
        .and_then(|opened| opened.take(MAX_PASSPHRASE_INPUT).read_to_string(&mut text))
        .map_err(|error| failed(&error))?;
    let first = text.lines().next().unwrap_or_default();
    if first.is_empty() {
        return Err(failed(&"its first line is empty; write the passphrase there"));
    }
    Ok(SecretString::from(first))
}

fn ask(prompt: &str) -> Result<SecretString, CommandError> {
    if !std::io::stdin().is_terminal() {
        return Err(CommandError::Failed(format!(
            "{}is needed, and there is no terminal to type it; give --passphrase-file or --passphrase-fd",
            prompt.replace(": ", " ")
        )));
    }
    let typed =
        rpassword::prompt_password(prompt).map_err(|error| CommandError::about("the terminal", error))?;
    if typed.is_empty() {
        return Err(CommandError::Failed(
            "an empty passphrase protects nothing; nothing was done".to_owned(),
        ));
    }
    Ok(SecretString::from(typed))
}
