//! `portcullis certs log`: the log of issued certificates. An older checkpoint of it shows that nothing was removed
//! since, and a proof that a certificate is in it needs no access to it.

mod entries;
mod monitor;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use portcullis_go::pem::certificate_chain;
use portcullis_system::clock::UnixTime;
use portcullis_tlog::certificate_log::{self, CertificateLog, read_verifier, verifier_file};
use portcullis_tlog::merkle::prove_inclusion;
use portcullis_tlog::note::Verifier;
use portcullis_tlog::proof::InclusionProof;
use portcullis_tlog::verify::verified;
use portcullis_tlog::{LogDirectory, LogError};
use serde_json::json;

use super::error::CommandError;
use super::files::NewFiles;
use super::{named_file, table};
use crate::output::print;

pub(super) const EXAMPLE: &str = "Examples:\n  \
    portcullis certs log init --dir /var/lib/portcullis/log --origin certificates.example.com/prod\n  \
    portcullis certs log verify --dir /var/lib/portcullis/log --since yesterday.checkpoint\n  \
    portcullis certs log prove --dir /var/lib/portcullis/log alice.crt --out alice.proof\n  \
    portcullis certs log monitor --dir /var/lib/portcullis/log --name 'system:node:*' --state monitor.checkpoint";

/// The commands of `portcullis certs log`.
#[derive(Debug, Subcommand)]
pub enum LogCommand {
    /// Create a log, and its key beside it.
    #[command(
        after_help = "Example:\n  portcullis certs log init --dir /var/lib/portcullis/log --origin certificates.example.com/prod"
    )]
    Init(LogInitFlags),
    /// Verify a log against its checkpoint, and that an earlier checkpoint is its beginning; or verify a proof.
    #[command(
        after_help = "Example:\n  portcullis certs log verify --dir /var/lib/portcullis/log --since yesterday.checkpoint"
    )]
    Verify(verify::LogVerifyFlags),
    /// Print the proof that a certificate is in a log.
    #[command(
        after_help = "Example:\n  portcullis certs log prove --dir /var/lib/portcullis/log alice.crt --out alice.proof"
    )]
    Prove(LogProveFlags),
    /// List the certificates in a log: all, those since the last run, those for some names.
    #[command(
        after_help = "Example:\n  portcullis certs log monitor --dir /var/lib/portcullis/log --name 'system:node:*' --state monitor.checkpoint"
    )]
    Monitor(monitor::LogMonitorFlags),
}

/// The flags of `portcullis certs log init`.
#[derive(Debug, Clone, Args)]
pub struct LogInitFlags {
    /// The directory of the log. Its private key is in DIR.key, its public key in DIR.vkey.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The name of the log, unique and for ever, such as certificates.example.com/prod.
    #[arg(long, value_name = "NAME")]
    origin: String,
}

/// The flags of `portcullis certs log prove`.
#[derive(Debug, Clone, Args)]
pub struct LogProveFlags {
    #[command(flatten)]
    log: LogSourceFlags,
    /// The certificate, PEM. `-` is standard input.
    #[arg(value_name = "FILE")]
    certificate: PathBuf,
    /// Write the proof to this file. Default: standard output.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    out: Option<PathBuf>,
    /// Replace an existing file.
    #[arg(long, help_heading = "Output")]
    force: bool,
}

/// A log to read.
#[derive(Debug, Clone, Args)]
struct LogSourceFlags {
    /// The directory of the log.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The public key of the log, from a place that its writer cannot change. Default: DIR.vkey.
    #[arg(long, value_name = "FILE")]
    vkey: Option<PathBuf>,
}

impl LogSourceFlags {
    fn open(&self) -> Result<(LogDirectory, Verifier), CommandError> {
        let beside = || verifier_file(&self.dir);
        let verifier = read_verifier(&self.vkey.clone().unwrap_or_else(beside))?;
        Ok((LogDirectory::new(&self.dir), verifier))
    }
}

/// The log of a command that issues a certificate.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct LogFlags {
    /// Append the certificate to the log in this directory before it is written; see `certs log init`. Without it being
    /// logged no certificate is written.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    log: Option<PathBuf>,
}

impl LogFlags {
    /// Appends a certificate; `None` without a log, else its place.
    pub(super) fn append(
        &self,
        certificate: &[u8],
        profile: &str,
        now: UnixTime,
    ) -> Result<Option<u64>, CommandError> {
        let Some(directory) = &self.log else { return Ok(None) };
        let log = CertificateLog::open(directory)?;
        let details = json!({"signerName": profile, "requester": "portcullis certs"}).to_string();
        let appended = log.append(certificate, &details, now);
        appended.map(Some).map_err(|error| {
            CommandError::Failed(format!("{error}; certificates that cannot be logged are not issued"))
        })
    }
}

impl From<LogError> for CommandError {
    fn from(error: LogError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Runs one of the commands.
pub(super) fn run(command: &LogCommand) -> Result<ExitCode, CommandError> {
    match command {
        LogCommand::Init(flags) => init(flags),
        LogCommand::Verify(flags) => verify::run(flags),
        LogCommand::Prove(flags) => prove(flags),
        LogCommand::Monitor(flags) => monitor::run(flags),
    }
}

fn init(flags: &LogInitFlags) -> Result<ExitCode, CommandError> {
    let LogInitFlags { dir, origin } = flags;
    let verifier = certificate_log::create(dir, origin)?;
    let text = table::facts([
        ("log", dir.display().to_string()),
        ("private key", certificate_log::key_file(dir).display().to_string()),
        ("public key", verifier_file(dir).display().to_string()),
        ("", verifier.to_string()),
    ]);
    Ok(print(&text))
}

fn prove(flags: &LogProveFlags) -> Result<ExitCode, CommandError> {
    let (log, verifier) = flags.log.open()?;
    let certificate = first_certificate(&flags.certificate)?;
    let mut found = None;
    // The whole log is verified: a proof of a damaged log would prove nothing later.
    let (checkpoint, note) = verified(&log, &verifier, |place, entry| {
        if found.is_none() && entries::certificate(entry).is_some_and(|logged| logged == certificate) {
            found = Some((place, entry.to_vec()));
        }
        Ok(())
    })?;
    let Some((index, entry)) = found else {
        let problem =
            format!("is not among the {} certificates of {}", checkpoint.size, log.path().display());
        return Err(CommandError::about(flags.certificate.display(), problem));
    };
    let note = String::from_utf8(note).map_err(|error| CommandError::Failed(error.to_string()))?;
    let hashes = prove_inclusion(&log.tree(checkpoint.size), index, checkpoint.size)?;
    let text = InclusionProof { index, hashes, checkpoint: note }.text(&entry);
    match &flags.out {
        None => Ok(print(&text)),
        Some(out) => {
            let mut files = NewFiles::new(flags.force);
            files.stage_public(out, text.as_bytes())?;
            files.commit()?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The first certificate of a file, in DER.
fn first_certificate(file: &Path) -> Result<Vec<u8>, CommandError> {
    let is_file = file.as_os_str() != "-";
    let read = if is_file { named_file::read(file) } else { named_file::read_standard_input() };
    let content = read.map_err(|error| CommandError::about(file.display(), error))?;
    let first = certificate_chain(&content).into_iter().next();
    first
        .map(|certificate| certificate.to_vec())
        .ok_or_else(|| CommandError::about(file.display(), "has no certificate in PEM"))
}

#[cfg(test)]
mod tests;
