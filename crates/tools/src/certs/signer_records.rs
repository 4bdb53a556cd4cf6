//! The records of a signer that runs in the gateway: the index of its certificates, what is revoked of them, and the CRL.
//!
//! They are the files of `portcullis certs index` and `certs revoke`, which work on them at the same time: the lock of the
//! index is held for every change. The index is the record: it has each certificate before the certificate is handed out,
//! with the pod that has it, so that a restart can find the certificates of pods that are gone. Unlike for other CAs, lines
//! of certificates that ended long ago are dropped, because pods renew theirs for ever. All functions block.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use portcullis_go::time;
use portcullis_pki::issuance::alt_names::AltNames;
use portcullis_pki::issuance::authority::CertificateAuthority;
use portcullis_pki::issuance::issue::IssuedCertificate;
use portcullis_pki::revocation::deny_list::octets;
use portcullis_system::clock::UnixTime;

use super::files::NewFiles;
use super::fingerprint;
pub use super::index::IndexedPod;
use super::index::{IndexEntry, IssuanceIndex};
use super::revocation_list::{self, ExistingCrl};
use super::revocations::{RevocationReason, RevocationRecord, RevocationRecords};
use super::signing::in_words;

/// The end of the name of an index.
pub const INDEX_EXTENSION: &str = ".index.jsonl";
/// The maximum size of an index: about 100,000 certificates. It is read as a whole.
const MAX_INDEX: u64 = 64 << 20;
/// How long a line stays in the index and in the record of revocations after its certificate has ended.
const RETENTION: Duration = Duration::from_hours(24);
/// How long a certificate stays in CRLs after its end: clocks differ.
// RFC 5280 section 5.1: an entry is in one list after the end of its certificate
const CRL_RETENTION: Duration = Duration::from_hours(1);

/// The files of a signer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignerRecords {
    /// The index. Its name ends in [`INDEX_EXTENSION`]; the record of revocations is beside it.
    pub index: PathBuf,
    /// The CRL, if the signer revokes the certificates of deleted pods.
    pub crl: Option<SignerCrl>,
}

/// The CRL of a signer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignerCrl {
    /// The file.
    pub file: PathBuf,
    /// The time until its nextUpdate. It is signed again after half of it.
    pub lifetime: Duration,
}

/// A certificate to record.
#[derive(Debug, Clone, Copy)]
pub struct RecordedCertificate<'a> {
    /// The certificate.
    pub issued: &'a IssuedCertificate,
    /// Its alternative names.
    pub alt_names: &'a AltNames,
    /// The name of the signer.
    pub signer: &'a str,
    /// The pod that gets it.
    pub pod: &'a IndexedPod,
}

/// What became of a CRL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrlOutcome {
    /// The certificates that are revoked from now on.
    pub revoked: usize,
    /// The number of entries.
    pub entries: usize,
    /// Whether the file was written.
    pub is_written: bool,
}

/// Why a record cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SignerRecordsError(String);

impl SignerRecordsError {
    /// Of another error, such as that of the thread that worked on the files.
    pub fn of(error: &dyn std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

fn failed(error: impl std::fmt::Display) -> SignerRecordsError {
    SignerRecordsError::of(&error)
}

fn about(file: &Path, problem: impl std::fmt::Display) -> SignerRecordsError {
    SignerRecordsError(format!("{}: {problem}", file.display()))
}

impl SignerRecords {
    fn issuance(&self) -> IssuanceIndex {
        IssuanceIndex { path: self.index.clone() }
    }

    fn revocations(&self) -> RevocationRecords {
        let name = self.index.to_string_lossy();
        RevocationRecords::at(PathBuf::from(format!(
            "{}.revoked.jsonl",
            name.trim_end_matches(INDEX_EXTENSION)
        )))
    }

    /// Records a certificate, and syncs the file. If that fails, the certificate must not be handed out.
    pub fn record(
        &self,
        certificate: RecordedCertificate<'_>,
        authority: &CertificateAuthority,
        now: UnixTime,
    ) -> Result<(), SignerRecordsError> {
        let RecordedCertificate { issued, alt_names, signer, pod } = certificate;
        let entry = IndexEntry {
            serial: issued.serial_hex(),
            subject: issued.subject().to_string(),
            alt_names: in_words(alt_names),
            profile: signer.to_owned(),
            issued_at: time::format_since_epoch(now),
            not_after: time::format_since_epoch(issued.not_after()),
            sha256: fingerprint(issued.der()),
            issuer_sha256: Some(fingerprint(&authority.certificate().der)),
            pod: Some(pod.clone()),
        };
        if std::fs::metadata(&self.index).is_ok_and(|metadata| metadata.len() > MAX_INDEX) {
            let problem =
                format!("is larger than {} MiB; the certificates in it must end first", MAX_INDEX >> 20);
            return Err(about(&self.index, problem));
        }
        self.issuance().record(&[entry]).map_err(failed)
    }

    /// The pods with certificates that are valid at `now` and not revoked.
    pub fn pods(&self, now: UnixTime) -> Result<HashSet<IndexedPod>, SignerRecordsError> {
        let revoked = self.revoked_certificates()?;
        let entries = self.issuance().read().map_err(failed)?;
        let live = entries.into_iter().filter(|entry| !has_ended(&entry.not_after, Duration::ZERO, now));
        Ok(live.filter(|entry| !revoked.contains(&entry.sha256)).filter_map(|entry| entry.pod).collect())
    }

    /// Revokes the certificates of pods that are gone, by their UIDs, and writes the CRL. Without pods, writes it only if it is
    /// due, or does not have all that is revoked.
    // threat: revoked-pod-certificate
    pub fn revoke(
        &self,
        authority: &CertificateAuthority,
        gone: &HashSet<String>,
        now: UnixTime,
    ) -> Result<Option<CrlOutcome>, SignerRecordsError> {
        let Some(crl) = &self.crl else { return Ok(None) };
        let index = self.issuance();
        let _locked = index.lock().map_err(failed)?;
        let records = self.revocations();
        let mut known = records.read().map_err(failed)?;
        // Before anything is recorded: a file of another CA is an error that the operator must end.
        let existing = self.existing(crl, authority)?;
        let revoked_before: HashSet<&str> = known.iter().map(|record| record.sha256.as_str()).collect();
        let of_gone = |entry: &IndexEntry| {
            let is_gone = entry.pod.as_ref().is_some_and(|pod| gone.contains(&pod.uid));
            is_gone
                && !revoked_before.contains(entry.sha256.as_str())
                && !has_ended(&entry.not_after, Duration::ZERO, now)
        };
        let new: Vec<RevocationRecord> = if gone.is_empty() {
            Vec::new()
        } else {
            let entries = index.read().map_err(failed)?;
            entries.iter().filter(|entry| of_gone(entry)).map(|entry| of_deleted_pod(entry, now)).collect()
        };
        records.append(&new).map_err(failed)?;
        let revoked = new.len();
        known.extend(new);
        let (ended, listed): (Vec<_>, Vec<_>) =
            known.iter().partition(|record| has_ended(&record.not_after, CRL_RETENTION, now));
        let serials = |records: &[&RevocationRecord]| -> HashSet<Vec<u8>> {
            records.iter().filter_map(|record| octets(&record.serial)).collect()
        };
        let (ended, expected) = (serials(&ended), serials(&listed));
        if existing.as_ref().is_some_and(|existing| is_current(existing, crl, [&ended, &expected], now)) {
            return Ok(Some(CrlOutcome { revoked, entries: expected.len(), is_written: false }));
        }
        let keeps =
            |entry: &portcullis_pki::x509::crl::RevokedEntry| !ended.contains::<[u8]>(entry.serial.as_ref());
        let signed = revocation_list::sign(authority, existing.as_ref(), keeps, &listed, (now, crl.lifetime));
        let signed = signed.map_err(|problem| about(&crl.file, problem))?;
        let mut files = NewFiles::new(true);
        files.stage_public(&crl.file, &signed.content).map_err(failed)?;
        files.commit().map_err(failed)?;
        Ok(Some(CrlOutcome { revoked, entries: signed.entries, is_written: true }))
    }

    /// Drops the lines of certificates that have ended a day ago. The CRL must have been written since: what it has and no
    /// record names stays in it for ever.
    pub fn prune(&self, now: UnixTime) -> Result<(), SignerRecordsError> {
        let index = self.issuance();
        let _locked = index.lock().map_err(failed)?;
        let records = self.revocations();
        let mut files = NewFiles::new(true);
        let is_old = |not_after: &str| has_ended(not_after, RETENTION, now);
        let entries = index.read().map_err(failed)?;
        if entries.iter().any(|entry| is_old(&entry.not_after)) {
            let kept = lines(entries.iter().filter(|entry| !is_old(&entry.not_after)))?;
            files.stage(&self.index, kept.as_bytes()).map_err(failed)?;
        }
        let revocations = records.read().map_err(failed)?;
        if revocations.iter().any(|record| is_old(&record.not_after)) {
            let kept = lines(revocations.iter().filter(|record| !is_old(&record.not_after)))?;
            files.stage(records.path(), kept.as_bytes()).map_err(failed)?;
        }
        files.commit().map(drop).map_err(failed)
    }

    fn revoked_certificates(&self) -> Result<HashSet<String>, SignerRecordsError> {
        let records = self.revocations().read().map_err(failed)?;
        Ok(records.into_iter().map(|record| record.sha256).collect())
    }

    /// The CRL that there is. It must be of this CA.
    fn existing(
        &self,
        crl: &SignerCrl,
        authority: &CertificateAuthority,
    ) -> Result<Option<ExistingCrl>, SignerRecordsError> {
        let existing = ExistingCrl::read(&crl.file).map_err(|problem| about(&crl.file, problem))?;
        let of_other = existing.as_ref().filter(|existing| {
            let certificate = authority.certificate();
            existing.crl.issuer != certificate.raw_subject
                || existing.crl.check_signature_from(certificate).is_err()
        });
        match of_other {
            Some(_) => Err(about(&crl.file, "a CRL of another CA, by its signature; give another crlFile")),
            None => Ok(existing),
        }
    }
}

/// Whether the CRL has all that it must have, and nothing that has ended, and is not due.
fn is_current(
    existing: &ExistingCrl,
    crl: &SignerCrl,
    [ended, expected]: [&HashSet<Vec<u8>>; 2],
    now: UnixTime,
) -> bool {
    let listed: HashSet<&[u8]> = existing.crl.entries.iter().map(|entry| entry.serial.as_ref()).collect();
    let next_update = UnixTime::from_secs(u64::try_from(existing.crl.next_update).unwrap_or(0));
    let is_due = next_update.saturating_sub(now) < crl.lifetime / 2;
    !is_due
        && expected.iter().all(|serial| listed.contains(serial.as_slice()))
        && !ended.iter().any(|serial| listed.contains(serial.as_slice()))
}

fn of_deleted_pod(entry: &IndexEntry, now: UnixTime) -> RevocationRecord {
    RevocationRecord {
        serial: entry.serial.clone(),
        subject: entry.subject.clone(),
        revoked_at: time::format_since_epoch(now),
        not_after: entry.not_after.clone(),
        reason: RevocationReason::CessationOfOperation,
        sha256: entry.sha256.clone(),
    }
}

/// Whether a certificate ended so long ago. A time that does not parse has not ended: a lost entry is a lost revocation.
fn has_ended(not_after: &str, ago: Duration, now: UnixTime) -> bool {
    time::Time::parse_rfc3339(not_after).is_some_and(|time| time.since_epoch().saturating_add(ago) < now)
}

fn lines<'a, T: serde::Serialize + 'a>(
    all: impl Iterator<Item = &'a T>,
) -> Result<String, SignerRecordsError> {
    let mut text = String::new();
    for one in all {
        text += &serde_json::to_string(one).map_err(failed)?;
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
