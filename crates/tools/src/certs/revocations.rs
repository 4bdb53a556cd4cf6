//! The record of revoked certificates: one line of JSON for each, in an append-only file beside the CA certificate, such
//! as `client-ca.revoked.jsonl`. CRLs are made from it, so it is on disk before they are.

use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::error::CommandError;
use super::record_file::{RecordFile, readable};

/// Why a certificate is revoked.
// RFC 5280 section 5.3.1
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[value(rename_all = "camelCase")]
#[serde(rename_all = "camelCase")]
pub(super) enum RevocationReason {
    /// No reason.
    #[default]
    Unspecified,
    /// The private key is in other hands, or may be.
    KeyCompromise,
    /// The key of the CA is in other hands: for a CA certificate, revoked by the CA above it.
    #[value(name = "cACompromise")]
    #[serde(rename = "cACompromise")]
    CaCompromise,
    /// The name or the groups are no longer right.
    AffiliationChanged,
    /// There is a new certificate.
    Superseded,
    /// The certificate is no longer needed.
    CessationOfOperation,
    /// For now. The gateway refuses it like any other.
    CertificateHold,
    /// A privilege in the certificate was withdrawn.
    PrivilegeWithdrawn,
}

impl RevocationReason {
    /// The `CRLReason`.
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Unspecified => 0,
            Self::KeyCompromise => 1,
            Self::CaCompromise => 2,
            Self::AffiliationChanged => 3,
            Self::Superseded => 4,
            Self::CessationOfOperation => 5,
            Self::CertificateHold => 6,
            Self::PrivilegeWithdrawn => 9,
        }
    }

    /// The name in RFC 5280.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// A revoked certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RevocationRecord {
    /// The serial number, in hexadecimal.
    pub(super) serial: String,
    pub(super) subject: String,
    /// RFC 3339, like `not_after`.
    pub(super) revoked_at: String,
    pub(super) not_after: String,
    pub(super) reason: RevocationReason,
    /// SHA-256 of the certificate, in hexadecimal.
    pub(super) sha256: String,
    /// The namespace of the pod that had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) namespace: Option<String>,
}

/// The record of one CA.
#[derive(Debug)]
pub(super) struct RevocationRecords(PathBuf);

impl RevocationRecords {
    /// The record of the CA with this certificate.
    pub(super) fn beside(certificate: &Path) -> Self {
        Self::at(certificate.with_extension("revoked.jsonl"))
    }

    /// The record in this file.
    pub(super) fn at(file: PathBuf) -> Self {
        Self(file)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// All records, oldest first; empty if the file does not exist.
    pub(super) fn read(&self) -> Result<Vec<RevocationRecord>, CommandError> {
        match self.read_readable()? {
            (records, None) => Ok(records),
            (_, Some(damaged)) => Err(damaged),
        }
    }

    /// All records that can be read, and the error for the first line that is none.
    pub(super) fn read_readable(
        &self,
    ) -> Result<(Vec<RevocationRecord>, Option<CommandError>), CommandError> {
        let Self(path) = self;
        let (records, damaged) = readable(&RecordFile::read(path)?.unwrap_or_default());
        let damaged = damaged.map(|(line, error)| {
            let problem =
                format!("line {line} is not a record: {error}; repair it: a lost line is a lost revocation");
            CommandError::about(path.display(), problem)
        });
        Ok((records, damaged))
    }

    /// Appends records, and syncs the file. The caller holds the lock of the CA's index.
    pub(super) fn append(&self, records: &[RevocationRecord]) -> Result<(), CommandError> {
        let Self(path) = self;
        if records.is_empty() {
            return Ok(());
        }
        let about = |error: &dyn std::fmt::Display| CommandError::about(path.display(), error);
        let mut file = RecordFile::append(path)?;
        let is_ended = ends_a_line(&mut file).map_err(|error| about(&error))?;
        let mut lines = if is_ended { String::new() } else { "\n".to_owned() };
        for record in records {
            lines += &serde_json::to_string(record).map_err(|error| about(&error))?;
            lines.push('\n');
        }
        file.append_with(|file| file.write_all(lines.as_bytes())).map_err(|error| about(&error))
    }

    /// Removes the part of a line that a writer left when it was stopped: it has then reported no revocation. The caller holds the
    /// lock of the CA's index.
    pub(super) fn drop_torn_line(&self) -> Result<(), CommandError> {
        let Self(path) = self;
        // To open it for appending would create it.
        if matches!(path.try_exists(), Ok(false)) {
            return Ok(());
        }
        let is_record = |line: &[u8]| serde_json::from_slice::<RevocationRecord>(line).is_ok();
        let dropped = RecordFile::append(path)?.drop_torn_line(is_record);
        dropped.map(drop).map_err(|error| CommandError::about(path.display(), error))
    }
}

/// Whether the record is empty or ends in a line feed: an editor may have dropped the last one.
fn ends_a_line(record: &mut RecordFile) -> io::Result<bool> {
    let file = &mut record.file;
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(1)))?;
    let mut last = Vec::new();
    file.take(1).read_to_end(&mut last)?;
    Ok(last.last().is_none_or(|last| *last == b'\n'))
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    fn record(serial: &str) -> RevocationRecord {
        RevocationRecord {
            serial: serial.to_owned(),
            subject: "CN=alice".to_owned(),
            revoked_at: "2026-01-01T00:00:00Z".to_owned(),
            not_after: "2027-01-01T00:00:00Z".to_owned(),
            reason: RevocationReason::KeyCompromise,
            sha256: serial.to_owned(),
            namespace: None,
        }
    }

    #[test]
    fn records_are_appended_also_after_a_lost_line_feed() {
        let directory = tempfile::tempdir().unwrap();
        let records = RevocationRecords::beside(&directory.path().join("ca.crt"));
        assert_eq!(records.read().unwrap(), []);
        records.append(&[record("01")]).unwrap();
        let text = fs::read_to_string(records.path()).unwrap();
        fs::write(records.path(), text.trim_end()).unwrap();
        records.append(&[record("02"), record("03")]).unwrap();
        assert_eq!(records.read().unwrap(), [record("01"), record("02"), record("03")]);
    }

    #[test]
    fn a_fifo_and_a_link_of_another_user_are_no_records() {
        let directory = tempfile::tempdir().unwrap();
        let records = RevocationRecords::beside(&directory.path().join("ca.crt"));
        mkfifoat(CWD, records.path(), Mode::RUSR | Mode::WUSR).unwrap();
        for outcome in [records.read().map(drop), records.append(&[record("01")])] {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("ca.revoked.jsonl: is a FIFO"), "{error}");
        }
        fs::remove_file(records.path()).unwrap();
        symlink("elsewhere", records.path()).unwrap();
        if !crate::certs::link::testing::give_away(records.path()) {
            return;
        }
        for outcome in [records.read().map(drop), records.append(&[record("01")])] {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("ca.revoked.jsonl: it is a symbolic link of the user"), "{error}");
        }
        assert!(!directory.path().join("elsewhere").exists());
    }
}
