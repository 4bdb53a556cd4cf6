//! `portcullis certs index`: lists the certificates in the index files of CAs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::super::check::{Output, print};
use super::error::CommandError;
use super::index::{IndexEntry, IssuanceIndex};
use super::{fingerprint, table};
use crate::pki::x509::CaBundle;

/// The flags of `portcullis certs index`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct IndexFlags {
    /// The directory of the CAs; reads every *.index.jsonl in it.
    #[arg(long, value_name = "DIR", default_value = "pki")]
    dir: PathBuf,
    /// The certificate of one CA; reads its index only.
    #[arg(long, value_name = "FILE")]
    ca_cert: Option<PathBuf>,
    /// The output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

#[derive(Debug, Serialize)]
struct IndexRow {
    authority: String,
    /// Whether a replaced certificate of the CA is its issuer.
    #[serde(skip)]
    is_former: bool,
    #[serde(flatten)]
    entry: IndexEntry,
}

pub(super) fn run(flags: &IndexFlags) -> Result<ExitCode, CommandError> {
    let indexes = match &flags.ca_cert {
        Some(certificate) => {
            let index = IssuanceIndex::beside(certificate);
            if matches!((certificate.try_exists(), index.path().try_exists()), (Ok(false), Ok(false))) {
                return Err(CommandError::about(certificate.display(), "there is no such CA"));
            }
            vec![index]
        }
        None => in_directory(&flags.dir)?,
    };
    let mut listed = Vec::new();
    for index in indexes {
        let name = index.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let authority = name.trim_end_matches(".index.jsonl").to_owned();
        let entries = index.read()?;
        let current = fingerprint_of(&index.path().with_file_name(format!("{authority}.crt")));
        listed.extend(entries.into_iter().map(|entry| {
            let is_former =
                current.is_some() && entry.issuer_sha256.is_some() && entry.issuer_sha256 != current;
            IndexRow { authority: authority.clone(), is_former, entry }
        }));
    }
    let text = flags.output.rendered(&listed).unwrap_or_else(|| {
        if listed.is_empty() {
            return "no certificates signed yet\n".to_owned();
        }
        let rows = listed.iter().map(|IndexRow { authority, is_former, entry }| {
            let IndexEntry { serial, subject, profile, issued_at, not_after, .. } = entry.clone();
            let authority = if *is_former { format!("{authority} (former)") } else { authority.clone() };
            [authority, profile, subject, issued_at, not_after, serial]
        });
        table::columns(["AUTHORITY", "PROFILE", "SUBJECT", "ISSUED", "UNTIL", "SERIAL"], rows)
    });
    Ok(print(&text))
}

/// The fingerprint of the first certificate of a file, if it exists.
fn fingerprint_of(certificate: &Path) -> Option<String> {
    let bundle = CaBundle::from_pem(&std::fs::read(certificate).ok()?).ok()?;
    bundle.certificates().first().map(|certificate| fingerprint(&certificate.der))
}

fn in_directory(directory: &Path) -> Result<Vec<IssuanceIndex>, CommandError> {
    let failed = |error: std::io::Error| CommandError::about(directory.display(), error);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(".index.jsonl")) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths.into_iter().map(|path| IssuanceIndex { path }).collect())
}
