//! `portcullis certs log verify`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use portcullis_go::hex::hex;
use portcullis_tlog::LogDirectory;
use portcullis_tlog::certificate_log::{read_verifier, verifier_file};
use portcullis_tlog::checkpoint::Checkpoint;
use portcullis_tlog::note::Verifier;
use portcullis_tlog::proof::InclusionProof;
use portcullis_tlog::verify::{check_continues, verified};
use serde::Serialize;

use super::super::error::CommandError;
use super::super::{named_file, table};
use super::{entries, first_certificate};
use crate::output::{Output, print};

/// The flags of `portcullis certs log verify`.
#[derive(Debug, Clone, Args)]
pub struct LogVerifyFlags {
    /// The directory of the log.
    #[arg(long, value_name = "DIR", required_unless_present = "proof", conflicts_with = "proof")]
    dir: Option<PathBuf>,
    /// The public key of the log, from a place that its writer cannot change. Default: DIR.vkey.
    #[arg(long, value_name = "FILE")]
    vkey: Option<PathBuf>,
    /// An earlier checkpoint of the log, which must be its beginning.
    #[arg(long, value_name = "FILE", requires = "dir")]
    since: Option<PathBuf>,
    /// Instead of a log, a proof of `certs log prove`, and the certificate that it proves.
    #[arg(long, value_name = "FILE", requires = "vkey", requires = "certificate")]
    proof: Option<PathBuf>,
    /// The certificate of --proof, PEM.
    #[arg(value_name = "CERTIFICATE", requires = "proof")]
    certificate: Option<PathBuf>,
    /// The output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

/// The verified head of a log.
#[derive(Debug, Serialize)]
struct HeadReport {
    origin: String,
    size: u64,
    root: String,
    /// The place of the certificate that was proven.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u64>,
}

pub(super) fn run(flags: &LogVerifyFlags) -> Result<ExitCode, CommandError> {
    let report = match (&flags.dir, &flags.proof, &flags.certificate) {
        (_, Some(proof), Some(certificate)) => flags.check(proof, certificate)?,
        (Some(dir), ..) => {
            let verifier = read_verifier(&flags.vkey.clone().unwrap_or_else(|| verifier_file(dir)))?;
            let log = LogDirectory::new(dir);
            let (checkpoint, _) = verified(&log, &verifier, |_, _| Ok(()))?;
            if let Some(since) = &flags.since {
                check_continues(&log, &earlier(&verifier, since)?, &checkpoint)?;
            }
            HeadReport::of(checkpoint, None)
        }
        // clap requires one of them.
        _ => return Err(CommandError::Usage("give --dir, or --proof".to_owned())),
    };
    Ok(print(&flags.output.rendered(&report).unwrap_or_else(|| report.text())))
}

/// An earlier checkpoint in a file.
pub(super) fn earlier(verifier: &Verifier, file: &std::path::Path) -> Result<Checkpoint, CommandError> {
    let note = named_file::read(file).map_err(|error| CommandError::about(file.display(), error))?;
    Checkpoint::open(verifier, &note).map_err(|error| CommandError::about(file.display(), error))
}

impl LogVerifyFlags {
    fn check(
        &self,
        proof: &std::path::Path,
        certificate: &std::path::Path,
    ) -> Result<HeadReport, CommandError> {
        let failed = |problem: String| CommandError::about(proof.display(), problem);
        // clap requires it.
        let vkey =
            self.vkey.as_ref().ok_or_else(|| CommandError::Usage("--proof needs --vkey".to_owned()))?;
        let verifier = read_verifier(vkey)?;
        let text = named_file::read(proof).map_err(|error| failed(error.to_string()))?;
        let text = std::str::from_utf8(&text).map_err(|error| failed(error.to_string()))?;
        let (parsed, entry) = InclusionProof::parse(text).map_err(|error| failed(error.to_string()))?;
        let checkpoint = parsed.check(&verifier, &entry).map_err(|error| failed(error.to_string()))?;
        if entries::certificate(&entry) != Some(first_certificate(certificate)?) {
            return Err(failed(format!("proves another certificate than {}", certificate.display())));
        }
        Ok(HeadReport::of(checkpoint, Some(parsed.index)))
    }
}

impl HeadReport {
    fn of(Checkpoint { origin, size, root }: Checkpoint, index: Option<u64>) -> Self {
        Self { origin, size, root: hex(&root), index }
    }

    fn text(&self) -> String {
        let mut rows = vec![
            ("log", self.origin.clone()),
            ("entries", self.size.to_string()),
            ("root", self.root.clone()),
        ];
        if let Some(index) = self.index {
            rows.push(("proven", format!("the certificate is entry {index}")));
        }
        table::facts(rows) + "\nno problems found\n"
    }
}
