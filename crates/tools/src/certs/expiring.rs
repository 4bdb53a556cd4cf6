//! `portcullis certs expiring`: which certificates must be replaced, by which day, and how.
//!
//! A CA must be replaced before it ends: a certificate that it signs never outlives it, so from one lifetime before its end on
//! the certificates get shorter. The lifetime is the longest one in the CA's index.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use portcullis_go::pem::certificate_chain;
use portcullis_go::time::{self, Time};
use portcullis_pki::x509::certificate::Certificate;
use portcullis_pki::x509::name_text::rfc4514;
use portcullis_system::clock::{Clock, UnixTime};
use serde::Serialize;

use super::super::terminal::when;
use super::authority::{CaRole, ROOT};
use super::error::CommandError;
use super::flags::life;
use super::index::IssuanceIndex;
use super::{fingerprint, named_file, table};
use crate::output::{Output, print};

pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis certs expiring
  portcullis certs expiring --within 90d /etc/portcullis/*.crt

Exits 1 if a day has passed by which a certificate was to be replaced.";

/// A CA without an index is replaced this long before its end.
const DEFAULT_LIFETIME: Duration = Duration::from_hours(365 * 24);

/// The flags of `portcullis certs expiring`.
#[derive(Debug, Clone, Args)]
pub struct ExpiringFlags {
    /// Certificates, PEM. Default: those in --dir.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The directory of the CAs of `init`.
    #[arg(long, value_name = "DIR", default_value = "pki")]
    dir: PathBuf,
    /// List only what must be replaced within this time.
    #[arg(long, value_name = "DURATION", value_parser = life, default_value = "90d")]
    within: Duration,
    /// The output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

/// A certificate that must be replaced.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExpiringRow {
    file: PathBuf,
    subject: String,
    is_authority: bool,
    not_after: String,
    replace_by: String,
    fix: String,
    #[serde(skip)]
    not_after_seconds: i64,
    #[serde(skip)]
    replace_by_seconds: i64,
}

pub(super) fn run(flags: &ExpiringFlags) -> Result<ExitCode, CommandError> {
    let now = Clock::system().now();
    let files = if flags.files.is_empty() { certificates_in(&flags.dir)? } else { flags.files.clone() };
    let mut rows = Vec::new();
    for file in &files {
        rows.extend(rows_of(file)?);
    }
    let now_seconds = seconds(now);
    let limit = seconds(now.saturating_add(flags.within));
    rows.retain(|row| row.replace_by_seconds < limit);
    rows.sort_by_key(|row| row.replace_by_seconds);
    let text = flags.output.rendered(&rows).unwrap_or_else(|| text(&rows, now));
    let printed = print(&text);
    let is_due = rows.iter().any(|row| row.replace_by_seconds <= now_seconds);
    Ok(if is_due { ExitCode::FAILURE } else { printed })
}

fn text(rows: &[ExpiringRow], now: UnixTime) -> String {
    if rows.is_empty() {
        return "nothing to replace\n".to_owned();
    }
    let rows = rows.iter().map(|row| {
        let file = row.file.display().to_string();
        let replace_by = when(row.replace_by_seconds, now);
        [file, row.subject.clone(), when(row.not_after_seconds, now), replace_by, row.fix.clone()]
    });
    table::columns(["FILE", "SUBJECT", "UNTIL", "REPLACE BY", "DO"], rows)
}

/// The certificates of `init` in a directory.
fn certificates_in(directory: &Path) -> Result<Vec<PathBuf>, CommandError> {
    let failed = |error: std::io::Error| CommandError::about(directory.display(), error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "crt") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The certificates of a file. The CAs above a leaf in its file are not the file's to replace.
fn rows_of(file: &Path) -> Result<Vec<ExpiringRow>, CommandError> {
    let about = |problem: &dyn std::fmt::Display| CommandError::about(file.display(), problem);
    let content = named_file::read(file).map_err(|error| about(&error))?;
    let mut certificates = Vec::new();
    for der in certificate_chain(&content) {
        certificates.push(Certificate::parse(der).map_err(|error| about(&error))?);
    }
    let Some(first) = certificates.first() else { return Err(about(&"has no certificate")) };
    if !is_authority(first) {
        certificates.truncate(1);
    }
    certificates.iter().map(|certificate| ExpiringRow::of(file, certificate)).collect()
}

fn is_authority(certificate: &Certificate) -> bool {
    certificate.extensions.basic_constraints.is_some_and(|constraints| constraints.is_ca)
}

impl ExpiringRow {
    fn of(file: &Path, certificate: &Certificate) -> Result<Self, CommandError> {
        let is_authority = is_authority(certificate);
        let (before, fix) = if is_authority {
            (longest_lifetime(file, certificate)?, replacement_of(file))
        } else {
            // A third of its lifetime is left, as kubelets and cert-manager renew theirs.
            let lifetime = certificate.not_after.saturating_sub(certificate.not_before);
            (lifetime / 3, "issue it again".to_owned())
        };
        let replace_by = certificate.not_after.saturating_sub(before);
        Ok(Self {
            file: file.to_owned(),
            subject: rfc4514(&certificate.raw_subject),
            is_authority,
            not_after: time::format_utc(certificate.not_after),
            replace_by: time::format_utc(replace_by),
            fix,
            not_after_seconds: certificate.not_after,
            replace_by_seconds: replace_by,
        })
    }
}

/// The longest lifetime of the certificates that a CA has signed, in seconds.
fn longest_lifetime(file: &Path, certificate: &Certificate) -> Result<i64, CommandError> {
    let sha256 = fingerprint(&certificate.der);
    let entries = IssuanceIndex::beside(file).read()?;
    let own = entries.iter().filter(|entry| entry.issuer_sha256.as_ref() == Some(&sha256));
    let time = |text: &str| Time::parse_rfc3339(text).map(|time| seconds(time.since_epoch()));
    let lifetimes = own.filter_map(|entry| Some(time(&entry.not_after)? - time(&entry.issued_at)?));
    Ok(lifetimes.max().unwrap_or_else(|| seconds(DEFAULT_LIFETIME)))
}

/// The command that replaces a CA.
fn replacement_of(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let role = CaRole::ALL.into_iter().find(|role| role.file() == stem);
    let name = role.map(CaRole::title).or((stem == ROOT).then_some("root"));
    name.map_or_else(
        || "replace the CA, and publish both".to_owned(),
        |name| format!("portcullis certs renew-ca {name}"),
    )
}

fn seconds(time: UnixTime) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use testkit::pki::Ca;

    use super::super::index::IndexEntry;
    use super::*;

    const DAY: i64 = 86_400;

    fn entry(issuer: &Ca, days: i64) -> IndexEntry {
        IndexEntry::for_test(&fingerprint(&issuer.cert), [0, days * DAY].map(time::format_utc))
    }

    fn days(row: &ExpiringRow) -> i64 {
        (row.not_after_seconds - row.replace_by_seconds) / DAY
    }

    #[test]
    fn a_ca_is_replaced_one_lifetime_of_its_certificates_before_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("client-ca.crt");
        let (own, former) = (Ca::build("own").validity(0, 3_650 * DAY).issue_ca(), Ca::new("former"));
        std::fs::write(&file, own.cert_pem()).unwrap();
        let row = |file: &Path| rows_of(file).unwrap().remove(0);
        assert_eq!(days(&row(&file)), 365, "without an index");
        let entries = [entry(&own, 90), entry(&own, 30), entry(&former, 700)];
        IssuanceIndex::beside(&file).record(&entries).unwrap();
        let found = row(&file);
        assert_eq!((days(&found), found.fix.as_str()), (90, "portcullis certs renew-ca client"));
        assert_eq!((found.subject.as_str(), found.is_authority), ("CN=own", true));
        let other = directory.path().join("other.crt");
        std::fs::write(&other, own.cert_pem()).unwrap();
        assert_eq!(row(&other).fix, "replace the CA, and publish both");
    }

    #[test]
    fn a_leaf_is_replaced_when_a_third_of_its_lifetime_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("alice.crt");
        let ca = Ca::new("ca");
        let leaf = ca.leaf().cn("alice").validity(0, 90 * DAY).issue();
        std::fs::write(&file, leaf.cert_pem() + &ca.cert_pem()).unwrap();
        let rows = rows_of(&file).unwrap();
        assert_eq!((rows.len(), days(&rows[0]), rows[0].fix.as_str()), (1, 30, "issue it again"));
        let now = UnixTime::from_secs(u64::try_from(61 * DAY).unwrap());
        let text = text(&rows, now);
        assert!(text.contains("(in 29d)") && text.contains("(24h ago)"), "{text}");
        std::fs::write(&file, "").unwrap();
        assert!(rows_of(&file).unwrap_err().to_string().ends_with("has no certificate"));
    }
}
