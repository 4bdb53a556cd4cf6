//! The index of a CA: one line of JSON per signed certificate, in an append-only file beside the CA certificate. A line
//! is on disk before its certificate is written, so the index may list a certificate that was never written, but it
//! never lacks one.

use std::fs::TryLockError;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::print_error;
use super::record_file::{RecordFile, RecordFileError, readable};

/// How long a command waits while another one has the index locked.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long a process that serves others waits.
const SERVICE_TIMEOUT: Duration = Duration::from_secs(5);

/// One certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct IndexEntry {
    /// The serial number, in hexadecimal.
    pub(super) serial: String,
    pub(super) subject: String,
    /// DNS names and addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) alt_names: Vec<String>,
    pub(super) profile: String,
    /// RFC 3339, like `not_after`.
    pub(super) issued_at: String,
    pub(super) not_after: String,
    /// SHA-256 of the certificate, in hexadecimal.
    pub(super) sha256: String,
    /// SHA-256 of the CA certificate, which identifies entries of a former CA: a renewed `client-ca.crt` keeps its
    /// index. Missing in older lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) issuer_sha256: Option<String>,
    /// The pod that has the certificate, if it was signed for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pod: Option<IndexedPod>,
    /// The cluster of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cluster: Option<String>,
    /// SHA-256 of the public key of the CA, for the certificates of pods: it stays when the certificate of the CA is renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) issuer_key_sha256: Option<String>,
}

/// The pod that has a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IndexedPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID: another pod of the same name has another one.
    pub uid: String,
    /// The name of its service account.
    pub service_account: String,
    /// The name of its node.
    pub node: String,
}

/// Why the index cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum IndexError {
    /// It cannot be opened or read.
    #[error("{0}; certificates that cannot be recorded are not issued")]
    File(#[from] RecordFileError),
    /// A system call failed.
    #[error("{}: {source}; certificates that cannot be recorded are not issued", path.display())]
    Io {
        /// The index.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another command keeps the index locked.
    #[error(
        "{}: another command has locked it for {} s; end that command, or find the holder of the lock (fuser, lslocks)",
        path.display(),
        waited.as_secs()
    )]
    Locked {
        /// The index.
        path: PathBuf,
        /// How long this command waited.
        waited: Duration,
    },
    /// A line is not a valid entry.
    #[error(
        "{}: line {line} is not an entry: {problem}; repair it, or remove the line if it is truncated (its certificate \
         was then never written)",
        path.display()
    )]
    Damaged {
        /// The index.
        path: PathBuf,
        /// The number of the first such line, from 1.
        line: usize,
        /// The parser's error.
        problem: String,
    },
}

/// The index file of one CA.
#[derive(Debug)]
pub(super) struct IssuanceIndex {
    pub(super) path: PathBuf,
}

impl IssuanceIndex {
    /// The index of the CA with this certificate: `client-ca.index.jsonl` beside `client-ca.crt`.
    pub(super) fn beside(certificate: &Path) -> Self {
        Self { path: certificate.with_extension("index.jsonl") }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Locks the index while a command works with it.
    pub(super) fn lock(&self) -> Result<RecordFile, IndexError> {
        self.locked(LOCK_TIMEOUT, true)
    }

    /// The same for a process that serves others: it waits less, prints nothing, and removes the part of a line that a writer left
    /// when it was stopped. Its certificate was never handed out.
    pub(super) fn lock_in_service(&self) -> Result<RecordFile, IndexError> {
        let mut file = self.locked(SERVICE_TIMEOUT, false)?;
        let is_entry = |line: &[u8]| serde_json::from_slice::<IndexEntry>(line).is_ok();
        file.drop_torn_line(is_entry).map_err(|source| self.failed(source))?;
        Ok(file)
    }

    /// Appends a line per entry, and syncs the file.
    pub(super) fn record(&self, entries: &[IndexEntry]) -> Result<(), IndexError> {
        self.record_within(entries, LOCK_TIMEOUT)
    }

    fn record_within(&self, entries: &[IndexEntry], timeout: Duration) -> Result<(), IndexError> {
        let mut file = self.locked(timeout, true)?;
        self.append_to(&mut file, entries)
    }

    /// The same with the locked file.
    pub(super) fn append_to(&self, file: &mut RecordFile, entries: &[IndexEntry]) -> Result<(), IndexError> {
        let failed = |source| self.failed(source);
        let mut lines = if self.ends_well(file)? { String::new() } else { "\n".to_owned() };
        for entry in entries {
            lines += &serde_json::to_string(entry).map_err(|error| failed(error.into()))?;
            lines.push('\n');
        }
        file.append_with(|file| file.write_all(lines.as_bytes())).map_err(failed)
    }

    /// Opens the file with an exclusive lock. `announces`: prints that it waits.
    fn locked(&self, timeout: Duration, announces: bool) -> Result<RecordFile, IndexError> {
        let failed = |source| self.failed(source);
        let mut waited = Duration::ZERO;
        loop {
            let file = RecordFile::append(&self.path)?;
            match file.file.try_lock() {
                // An editor may have replaced the file meanwhile.
                Ok(()) if file.is_in_place().map_err(failed)? => return Ok(file),
                Ok(()) => continue,
                Err(TryLockError::Error(error)) => return Err(failed(error)),
                Err(TryLockError::WouldBlock) if waited >= timeout => {
                    return Err(IndexError::Locked { path: self.path.clone(), waited });
                }
                Err(TryLockError::WouldBlock) => {}
            }
            if announces && waited.is_zero() {
                print_error(&format!(
                    "{}: waiting for another command that has locked it",
                    self.path.display()
                ));
            }
            std::thread::sleep(LOCK_POLL_INTERVAL);
            waited += LOCK_POLL_INTERVAL;
        }
    }

    /// Whether the last line ends in a line feed; fails if it is not an entry. Earlier lines were checked when they
    /// were last.
    fn ends_well(&self, file: &mut RecordFile) -> Result<bool, IndexError> {
        let tail = file.tail().map_err(|source| self.failed(source))?;
        let is_ended = tail.last().is_none_or(|last| *last == b'\n');
        let last = tail.trim_ascii_end().rsplit(|octet| *octet == b'\n').next().unwrap_or_default();
        if !last.is_empty() && serde_json::from_slice::<IndexEntry>(last).is_err() {
            // Reads from the start, for an error with the line number.
            self.read()?;
        }
        Ok(is_ended)
    }

    fn failed(&self, source: io::Error) -> IndexError {
        IndexError::Io { path: self.path.clone(), source }
    }

    /// All entries, oldest first; empty if the file does not exist.
    pub(super) fn read(&self) -> Result<Vec<IndexEntry>, IndexError> {
        match self.read_readable()? {
            (entries, None) => Ok(entries),
            (_, Some(damaged)) => Err(damaged),
        }
    }

    /// All entries that can be read, and the error for the first line that is none.
    pub(super) fn read_readable(&self) -> Result<(Vec<IndexEntry>, Option<IndexError>), IndexError> {
        let (entries, damaged) = readable(&RecordFile::read(&self.path)?.unwrap_or_default());
        let damaged = damaged.map(|(line, error)| IndexError::Damaged {
            path: self.path.clone(),
            line,
            problem: error.to_string(),
        });
        Ok((entries, damaged))
    }
}

#[cfg(test)]
impl IndexEntry {
    /// A certificate of this issuer, with the times of its issue and of its end.
    pub(super) fn for_test(issuer_sha256: &str, [issued_at, not_after]: [String; 2]) -> Self {
        Self {
            serial: "1".to_owned(),
            subject: "CN=alice".to_owned(),
            alt_names: Vec::new(),
            profile: "client".to_owned(),
            issued_at,
            not_after,
            sha256: "00".to_owned(),
            issuer_sha256: Some(issuer_sha256.to_owned()),
            pod: None,
            cluster: None,
            issuer_key_sha256: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(serial: &str) -> IndexEntry {
        let times = ["2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"].map(str::to_owned);
        IndexEntry { serial: serial.to_owned(), ..IndexEntry::for_test("01", times) }
    }

    #[test]
    fn concurrent_commands_lose_no_entries() {
        let directory = tempfile::tempdir().unwrap();
        let certificate = directory.path().join("client-ca.crt");
        assert_eq!(IssuanceIndex::beside(&certificate).read().unwrap(), []);
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let certificate = &certificate;
                scope.spawn(move || {
                    for number in 0..8 {
                        IssuanceIndex::beside(certificate)
                            .record(&[entry(&format!("{writer}{number}"))])
                            .unwrap();
                    }
                });
            }
        });
        let index = IssuanceIndex::beside(&certificate);
        let mut serials: Vec<_> = index.read().unwrap().into_iter().map(|entry| entry.serial).collect();
        serials.sort();
        serials.dedup();
        assert_eq!(serials.len(), 64);
        assert!(index.path().ends_with("client-ca.index.jsonl"));
    }

    #[test]
    fn a_damaged_line_is_reported_and_nothing_is_appended() {
        let directory = tempfile::tempdir().unwrap();
        let index = IssuanceIndex::beside(&directory.path().join("ca.crt"));
        index.record(&[entry("01")]).unwrap();
        let good = std::fs::read_to_string(index.path()).unwrap();
        std::fs::write(index.path(), format!("{good}{{\"serial\":\"0")).unwrap();
        let error = index.record(&[entry("02")]).unwrap_err().to_string();
        assert!(error.contains("ca.index.jsonl: line 2 is not an entry"), "{error}");
        // An editor may have dropped the last line feed.
        std::fs::write(index.path(), good.trim_end()).unwrap();
        index.record(&[entry("02")]).unwrap();
        assert_eq!(index.read().unwrap(), [entry("01"), entry("02")]);
    }

    /// A forked child of another test holds the lock until it calls exec.
    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn a_command_gives_up_on_a_lock_that_is_never_released() {
        let directory = tempfile::tempdir().unwrap();
        let index = IssuanceIndex::beside(&directory.path().join("ca.crt"));
        index.record(&[entry("01")]).unwrap();
        let held = index.locked(SOON, false).unwrap();
        let error = index.record_within(&[entry("02")], Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("ca.index.jsonl: another command has locked it"), "{error}");
        drop(held);
        index.record_within(&[entry("02")], SOON).unwrap();
        assert_eq!(index.read().unwrap().len(), 2);
    }

    #[test]
    fn a_line_goes_into_the_file_that_has_the_name() {
        let directory = tempfile::tempdir().unwrap();
        let index = IssuanceIndex::beside(&directory.path().join("ca.crt"));
        index.record(&[entry("01")]).unwrap();
        // The lock is on the file that an editor replaced.
        let held = index.locked(SOON, false).unwrap();
        std::fs::copy(index.path(), directory.path().join("new")).unwrap();
        std::fs::rename(directory.path().join("new"), index.path()).unwrap();
        index.record_within(&[entry("02")], SOON).unwrap();
        drop(held);
        assert_eq!(index.read().unwrap().len(), 2);
    }

    #[test]
    fn appending_checks_the_last_line_only() {
        let directory = tempfile::tempdir().unwrap();
        let index = IssuanceIndex::beside(&directory.path().join("ca.crt"));
        index.record(&[entry("01")]).unwrap();
        let good = std::fs::read_to_string(index.path()).unwrap();
        std::fs::write(index.path(), format!("no entry\n{good}")).unwrap();
        index.record(&[entry("02")]).unwrap();
        assert!(index.read().unwrap_err().to_string().contains("line 1 is not an entry"));
    }

    #[cfg(unix)]
    #[test]
    fn a_fifo_and_a_link_of_another_user_are_no_index() {
        use std::os::unix::fs::symlink;

        use rustix::fs::{CWD, Mode, mkfifoat};

        let directory = tempfile::tempdir().unwrap();
        let index = IssuanceIndex::beside(&directory.path().join("ca.crt"));
        mkfifoat(CWD, index.path(), Mode::RUSR | Mode::WUSR).unwrap();
        for outcome in [index.read().map(drop), index.record(&[entry("01")]), index.lock().map(drop)] {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("ca.index.jsonl: is a FIFO"), "{error}");
        }
        std::fs::remove_file(index.path()).unwrap();
        symlink("elsewhere", index.path()).unwrap();
        if !crate::certs::link::testing::give_away(index.path()) {
            return;
        }
        for outcome in [index.read().map(drop), index.record(&[entry("01")]), index.lock().map(drop)] {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("ca.index.jsonl: it is a symbolic link of the user"), "{error}");
        }
        assert!(!directory.path().join("elsewhere").exists());
    }
}
