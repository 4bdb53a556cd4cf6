//! `portcullis certs index`: lists the certificates in the index files of CAs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use portcullis_go::time;
use portcullis_pki::x509::CaBundle;
use portcullis_system::clock::{Clock, UnixTime};
use serde::Serialize;

use super::error::CommandError;
use super::flags::life;
use super::index::{IndexEntry, IssuanceIndex};
use super::revocations::{RevocationReason, RevocationRecord, RevocationRecords};
use super::{fingerprint, table};
use crate::certs::named_file;
use crate::output::{Output, print};

/// The flags of `portcullis certs index`.
#[derive(Debug, Clone, Args)]
pub struct IndexFlags {
    /// The directory of the CAs; reads every *.index.jsonl in it.
    #[arg(long, value_name = "DIR", default_value = "pki")]
    dir: PathBuf,
    /// The certificate of one CA; reads its index only.
    #[arg(long, value_name = "FILE")]
    ca_cert: Option<PathBuf>,
    /// List only certificates that expire within this time, such as 30d, and have not expired yet.
    #[arg(long, value_name = "DURATION", value_parser = life)]
    expires_within: Option<Duration>,
    /// List only revoked certificates.
    #[arg(long)]
    revoked: bool,
    /// The output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct IndexRow {
    authority: String,
    /// Whether a replaced certificate of the CA is its issuer.
    #[serde(skip)]
    is_former: bool,
    #[serde(flatten)]
    entry: IndexEntry,
    status: CertificateStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revocation_reason: Option<RevocationReason>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum CertificateStatus {
    Valid,
    Expired,
    Revoked,
}

impl IndexRow {
    fn of(
        authority: &str,
        current: Option<&String>,
        entry: IndexEntry,
        revocations: &[RevocationRecord],
        now: UnixTime,
    ) -> Self {
        let is_former =
            current.is_some() && entry.issuer_sha256.is_some() && entry.issuer_sha256.as_ref() != current;
        let revocation = revocations.iter().find(|record| record.sha256 == entry.sha256);
        let status = if revocation.is_some() {
            CertificateStatus::Revoked
        } else if ends_before(&entry.not_after, now) {
            CertificateStatus::Expired
        } else {
            CertificateStatus::Valid
        };
        Self {
            authority: authority.to_owned(),
            is_former,
            entry,
            status,
            revoked_at: revocation.map(|record| record.revoked_at.clone()),
            revocation_reason: revocation.map(|record| record.reason),
        }
    }

    fn is_wanted(&self, flags: &IndexFlags, now: UnixTime) -> bool {
        let expires = flags.expires_within.is_none_or(|within| {
            let not_after = &self.entry.not_after;
            !ends_before(not_after, now) && ends_before(not_after, now.saturating_add(within))
        });
        expires && (!flags.revoked || self.status == CertificateStatus::Revoked)
    }

    fn status_text(&self) -> String {
        match (self.status, &self.revoked_at, self.revocation_reason) {
            (CertificateStatus::Revoked, Some(at), Some(reason)) => {
                format!("revoked {at} ({})", reason.name())
            }
            (CertificateStatus::Expired, ..) => "expired".to_owned(),
            _ => "valid".to_owned(),
        }
    }
}

/// Whether a time in RFC 3339 is before another one.
fn ends_before(not_after: &str, time: UnixTime) -> bool {
    time::Time::parse_rfc3339(not_after).is_some_and(|end| end.since_epoch() < time)
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
    let now = Clock::system().now();
    let mut listed = Vec::new();
    for index in indexes {
        let name = index.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let authority = name.trim_end_matches(".index.jsonl").to_owned();
        let entries = index.read()?;
        let certificate = index.path().with_file_name(format!("{authority}.crt"));
        let revocations = RevocationRecords::beside(&certificate).read()?;
        let current = fingerprint_of(&certificate);
        let rows = entries
            .into_iter()
            .map(|entry| IndexRow::of(&authority, current.as_ref(), entry, &revocations, now));
        listed.extend(rows.filter(|row| row.is_wanted(flags, now)));
    }
    let text = flags.output.rendered(&listed).unwrap_or_else(|| {
        if listed.is_empty() {
            let none = flags.expires_within.is_some() || flags.revoked;
            return if none { "no such certificates\n" } else { "no certificates signed yet\n" }.to_owned();
        }
        let rows = listed.iter().map(|row| {
            let IndexRow { authority, is_former, entry, .. } = row;
            let IndexEntry { serial, subject, profile, issued_at, not_after, .. } = entry.clone();
            let authority = if *is_former { format!("{authority} (former)") } else { authority.clone() };
            [authority, profile, subject, issued_at, not_after, serial, row.status_text()]
        });
        table::columns(["AUTHORITY", "PROFILE", "SUBJECT", "ISSUED", "UNTIL", "SERIAL", "STATUS"], rows)
    });
    Ok(print(&text))
}

/// The fingerprint of the first certificate of a file, if it exists.
fn fingerprint_of(certificate: &Path) -> Option<String> {
    let bundle = CaBundle::from_pem(&named_file::read(certificate).ok()?).ok()?;
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
