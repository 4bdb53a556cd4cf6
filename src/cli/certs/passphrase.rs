//! The passphrase of a key: from a file, from an open descriptor, or from whoever sits at the terminal. Never from the
//! command line, where every user of the machine can read it.

use std::fs::File;
use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};

use clap::Args;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret as _, SecretString};

use super::error::CommandError;

/// Longer ones are a mistake in the file's name.
const LONGEST: u64 = 4096;

/// Where the passphrase is.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Passphrase")]
pub(super) struct PassphraseFlags {
    /// The passphrase of the authority's key is the first line of this file.
    #[arg(long, value_name = "FILE", conflicts_with = "passphrase_fd")]
    passphrase_file: Option<PathBuf>,
    /// The passphrase of the authority's key is the first line that this open file descriptor gives.
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

    /// The one for new keys, if they are to have one: as the flags say, else as is typed, twice, if `ask_for_it`.
    pub(super) fn for_new_keys(&self, ask_for_it: bool) -> Result<Option<SecretString>, CommandError> {
        if let Some(passphrase) = self.given()? {
            return Ok(Some(passphrase));
        }
        if !ask_for_it {
            return Ok(None);
        }
        let [first, second] = [ask("passphrase of the new keys: ")?, ask("once more: ")?];
        if first.expose_secret() != second.expose_secret() {
            return Err(CommandError::Failed(
                "the two passphrases differ; nothing was made, try again".to_owned(),
            ));
        }
        Ok(Some(first))
    }
}

fn read(file: &Path, flag: &str) -> Result<SecretString, CommandError> {
    let failed =
        |problem: &dyn std::fmt::Display| CommandError::about(format!("{flag} {}", file.display()), problem);
    let mut text = Zeroizing::new(String::new());
    File::open(file)
        .and_then(|opened| opened.take(LONGEST).read_to_string(&mut text))
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
