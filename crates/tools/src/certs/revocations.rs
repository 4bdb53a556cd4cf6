//! The record of revoked certificates: one line of JSON for each, in an append-only file beside the CA certificate, such
//! as `client-ca.revoked.jsonl`. CRLs are made from it, so it is on disk before they are.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use portcullis_system::platform;
use serde::{Deserialize, Serialize};

use super::error::CommandError;

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
}

/// The record of one CA.
#[derive(Debug)]
pub(super) struct RevocationRecords(PathBuf);

impl RevocationRecords {
    /// The record of the CA with this certificate.
    pub(super) fn beside(certificate: &Path) -> Self {
        Self(certificate.with_extension("revoked.jsonl"))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// All records, oldest first; empty if the file does not exist.
    pub(super) fn read(&self) -> Result<Vec<RevocationRecord>, CommandError> {
        let Self(path) = self;
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            read => read.map_err(|error| CommandError::about(path.display(), error))?,
        };
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let records = lines.map(|(index, line)| {
            serde_json::from_str(line).map_err(|error| {
                CommandError::about(
                    path.display(),
                    format!(
                        "line {} is not a record: {error}; repair it: a lost line is a lost revocation",
                        index + 1
                    ),
                )
            })
        });
        records.collect()
    }

    /// Appends records, and syncs the file. The caller holds the lock of the CA's index.
    pub(super) fn append(&self, records: &[RevocationRecord]) -> Result<(), CommandError> {
        let Self(path) = self;
        if records.is_empty() {
            return Ok(());
        }
        let about = |error: &dyn std::fmt::Display| CommandError::about(path.display(), error);
        let before = std::fs::read(path).unwrap_or_default();
        let mut lines =
            if before.last().is_none_or(|last| *last == b'\n') { String::new() } else { "\n".to_owned() };
        for record in records {
            lines += &serde_json::to_string(record).map_err(|error| about(&error))?;
            lines.push('\n');
        }
        let open = platform::private(OpenOptions::new().create(true).append(true)).open(path);
        let written =
            open.and_then(|mut file| file.write_all(lines.as_bytes()).and_then(|()| file.sync_all()));
        let directory = super::files::directory_of(path);
        let synced = written.and_then(|()| platform::sync_directory(directory));
        synced.map_err(|error| about(&error))
    }
}
