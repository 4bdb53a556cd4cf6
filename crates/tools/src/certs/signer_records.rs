//! The records of a signer that runs in the gateway: the index of its certificates, what is revoked of them, and the CRL.
//!
//! They are the files of `portcullis certs index` and `certs revoke`, which work on them at the same time: the lock of the
//! index is held for every change. The index is the record: it has each certificate before the certificate is handed out,
//! with the pod that has it, so that a restart can find the certificates of pods that are gone. Unlike for other CAs, lines
//! of certificates that ended long ago are dropped, because pods renew theirs for ever. All functions block.

mod sizes;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use portcullis_go::time;
use portcullis_pki::issuance::alt_names::AltNames;
use portcullis_pki::issuance::authority::CertificateAuthority;
use portcullis_pki::issuance::issue::IssuedCertificate;
use portcullis_pki::revocation::deny_list::octets;
use portcullis_pki::x509::CaBundle;
use portcullis_pki::x509::certificate::Certificate;
use portcullis_system::clock::UnixTime;

use super::files::{NewFiles, replace_record};
use super::fingerprint;
pub use super::index::IndexedPod;
use super::index::{IndexEntry, IssuanceIndex};
use super::link;
use super::record_file::RecordFile;
use super::revocation_list::{self, ExistingCrl};
use super::revocations::{RevocationReason, RevocationRecord, RevocationRecords};
use super::signing::in_words;
use crate::certs::named_file;
pub use sizes::{RecordSizes, SignerRecord};

/// The end of the name of an index.
pub const INDEX_EXTENSION: &str = ".index.jsonl";
/// The maximum size of an index: about 100,000 certificates. It is read as a whole.
const MAX_INDEX: u64 = 64 << 20;
/// The maximum size of the record of revocations, beyond which nothing is issued: about 110,000 certificates. With those that an index
/// can have, they fit into a CRL of 16 MiB, which is what the gateway reads of one.
const MAX_REVOKED: u64 = 28 << 20;
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

/// A CA, and the cluster for whose pods it signs. Lines of other CAs and of other clusters in an index count for nothing: the pods
/// of another cluster are missing here.
#[derive(Debug, Clone, Copy)]
pub struct RecordOwner<'a> {
    /// The name of the cluster.
    pub cluster: &'a str,
    /// The CA.
    pub authority: &'a CertificateAuthority,
}

/// The pods in an index.
#[derive(Debug)]
pub struct IndexedPods {
    /// Those with certificates that are valid and not revoked.
    pub pods: HashSet<IndexedPod>,
    /// The valid certificates of other CAs and of other clusters.
    pub foreign: usize,
    /// Why lines could not be read.
    pub problem: Option<SignerRecordsError>,
}

/// What a revocation has done, and what it has not.
#[derive(Debug, PartialEq, Eq)]
pub struct RevocationOutcome {
    /// What became of the CRL.
    pub crl: CrlOutcome,
    /// Why certificates of these pods may be missing in it.
    pub problem: Option<SignerRecordsError>,
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
        RevocationRecords::at(self.beside(".revoked.jsonl"))
    }

    /// The file beside the index of the same name and another extension.
    fn beside(&self, extension: &str) -> PathBuf {
        let name = self.index.file_name().unwrap_or_default().to_string_lossy();
        let name = name.strip_suffix(INDEX_EXTENSION).unwrap_or(&name);
        self.index.with_file_name(format!("{name}{extension}"))
    }

    /// The file that exists while the revocation of many certificates at once is held back, until the operator deletes it.
    pub fn hold_file(&self) -> PathBuf {
        self.beside(".held")
    }

    /// Creates the file, unless it exists.
    pub fn hold(&self, reason: &str) -> Result<(), SignerRecordsError> {
        let file = self.hold_file();
        if file.try_exists().map_err(|error| about(&file, error))? {
            return Ok(());
        }
        let mut files = NewFiles::new(false);
        files.stage(&file, reason.as_bytes()).map_err(failed)?;
        files.commit().map(drop).map_err(failed)
    }

    /// Whether the file exists.
    pub fn is_held(&self) -> Result<bool, SignerRecordsError> {
        let file = self.hold_file();
        file.try_exists().map_err(|error| about(&file, error))
    }

    /// Removes the file: there is nothing to hold back.
    pub fn release(&self) -> Result<(), SignerRecordsError> {
        let file = self.hold_file();
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(about(&file, error)),
            _ => Ok(()),
        }
    }

    /// The files that it writes, by their absolute paths without symbolic links.
    pub fn resolved_files(&self) -> Result<Vec<PathBuf>, SignerRecordsError> {
        let crl = self.crl.iter().map(|crl| crl.file.clone());
        let files = [self.index.clone(), self.revocations().path().to_owned(), self.hold_file()];
        let files = files.into_iter().chain(crl);
        files
            .map(|file| {
                let absolute = std::path::absolute(&file).map_err(|error| about(&file, error))?;
                link::resolve(&absolute).map_err(failed)
            })
            .collect()
    }

    /// Records a certificate, and syncs the file. Returns the size of its line in bytes. If that fails, the certificate must not be
    /// handed out.
    pub fn record(
        &self,
        certificate: RecordedCertificate<'_>,
        owner: RecordOwner<'_>,
        now: UnixTime,
    ) -> Result<u64, SignerRecordsError> {
        let RecordedCertificate { issued, alt_names, signer, pod } = certificate;
        let entry = IndexEntry {
            serial: issued.serial_hex(),
            subject: issued.subject().to_string(),
            alt_names: in_words(alt_names),
            profile: signer.to_owned(),
            issued_at: time::format_since_epoch(now),
            not_after: time::format_since_epoch(issued.not_after()),
            sha256: fingerprint(issued.der()),
            issuer_sha256: Some(fingerprint(&owner.authority.certificate().der)),
            pod: Some(pod.clone()),
            cluster: Some(owner.cluster.to_owned()),
            issuer_key_sha256: Some(fingerprint(&owner.authority.certificate().spki)),
        };
        let index = self.issuance();
        let mut file = index.lock_in_service().map_err(failed)?;
        let size = |file: &RecordFile| {
            file.file.metadata().map(|metadata| metadata.len()).map_err(|error| about(&self.index, error))
        };
        let before = size(&file)?;
        if before > MAX_INDEX {
            let problem =
                format!("is larger than {} MiB; the certificates in it must end first", MAX_INDEX >> 20);
            return Err(about(&self.index, problem));
        }
        let revoked = self.revocations();
        if std::fs::metadata(revoked.path()).is_ok_and(|metadata| metadata.len() > MAX_REVOKED) {
            let problem =
                format!("is larger than {} MiB; the revoked certificates must end first", MAX_REVOKED >> 20);
            return Err(about(revoked.path(), problem));
        }
        index.append_to(&mut file, &[entry]).map_err(failed)?;
        Ok(size(&file)?.saturating_sub(before))
    }

    /// What the namespaces have of the records.
    pub fn sizes(&self) -> Result<RecordSizes, SignerRecordsError> {
        let _locked = self.issuance().lock_in_service().map_err(failed)?;
        let text = |path: &Path| Ok(RecordFile::read(path).map_err(failed)?.unwrap_or_default());
        Ok(RecordSizes::of(&text(&self.index)?, &text(self.revocations().path())?))
    }

    /// What [`Self::pods`] depends on beside the index: when it changes, there may be more pods.
    pub fn issuers_print(&self, owner: RecordOwner<'_>) -> Result<String, SignerRecordsError> {
        let (issuers, problem) = self.issuers(owner);
        problem.map_or_else(|| Ok(issuers.prints.concat().concat()), Err)
    }

    /// The pods with certificates that are valid at `now` and not revoked.
    pub fn pods(&self, owner: RecordOwner<'_>, now: UnixTime) -> Result<IndexedPods, SignerRecordsError> {
        let index = self.issuance();
        let _locked = index.lock_in_service().map_err(failed)?;
        let (known, damaged_record) = self.known_records()?;
        let revoked: HashSet<&str> = known.iter().map(|record| record.sha256.as_str()).collect();
        let (issuers, unread) = self.issuers(owner);
        let (entries, damaged) = index.read_readable().map_err(failed)?;
        let (mut pods, mut foreign) = (HashSet::new(), 0);
        for entry in entries {
            if has_ended(&entry.not_after, Duration::ZERO, now) || revoked.contains(entry.sha256.as_str()) {
                continue;
            }
            let is_own = issuers.have_issued(&entry);
            match entry.pod {
                Some(pod) if is_own => drop(pods.insert(pod)),
                Some(_) => foreign += 1,
                None => {}
            }
        }
        let problem = damaged.map(failed).or(damaged_record).or(unread);
        Ok(IndexedPods { pods, foreign, problem })
    }

    /// Revokes the certificates of pods that are gone, by their UIDs, and writes the CRL. Without pods, writes it only if it is
    /// due, or does not have all that is revoked. What can be done is done: an index that cannot be read does not let a CRL
    /// become stale.
    // threat: revoked-pod-certificate
    pub fn revoke(
        &self,
        owner: RecordOwner<'_>,
        gone: &HashSet<String>,
        now: UnixTime,
    ) -> Result<Option<RevocationOutcome>, SignerRecordsError> {
        let Some(crl) = &self.crl else { return Ok(None) };
        let index = self.issuance();
        let locked = index.lock_in_service();
        let records = self.revocations();
        let (issuers, unread) = self.issuers(owner);
        let (mut known, new, mut problem) = match &locked {
            Ok(_) => {
                let (known, damaged) = self.known_records()?;
                let (new, problem) = self.to_revoke(&issuers, gone, &known, now);
                (known, new, problem.or(damaged).or(unread))
            }
            Err(error) => (records.read_readable().map_err(failed)?.0, Vec::new(), Some(failed(error))),
        };
        // Before the CRL is looked at: it may be one that the operator must move away, and what is recorded is in the next.
        let revoked = match records.append(&new) {
            Ok(()) => new.len(),
            Err(error) => {
                problem = Some(failed(error));
                0
            }
        };
        known.extend(new);
        let existing = self.existing(crl, &issuers)?;
        let (ended, listed): (Vec<_>, Vec<_>) =
            known.iter().partition(|record| has_ended(&record.not_after, CRL_RETENTION, now));
        let serials = |records: &[&RevocationRecord]| -> HashSet<Vec<u8>> {
            records.iter().filter_map(|record| octets(&record.serial)).collect()
        };
        let (ended, expected) = (serials(&ended), serials(&listed));
        let is_by_current_key =
            |existing: &ExistingCrl| existing.crl.check_signature_from(owner.authority.certificate()).is_ok();
        let is_current = |existing: &ExistingCrl| {
            is_by_current_key(existing) && is_current(existing, crl, [&ended, &expected], now)
        };
        if existing.as_ref().is_some_and(is_current) {
            let crl = CrlOutcome { revoked, entries: expected.len(), is_written: false };
            return Ok(Some(RevocationOutcome { crl, problem }));
        }
        let keeps =
            |entry: &portcullis_pki::x509::crl::RevokedEntry| !ended.contains::<[u8]>(entry.serial.as_ref());
        let signed =
            revocation_list::sign(owner.authority, existing.as_ref(), keeps, &listed, (now, crl.lifetime));
        let signed = signed.map_err(|problem| about(&crl.file, problem))?;
        let mut files = NewFiles::new(true);
        files.stage_public(&crl.file, &signed.content).map_err(failed)?;
        files.commit().map_err(failed)?;
        let crl = CrlOutcome { revoked, entries: signed.entries, is_written: true };
        Ok(Some(RevocationOutcome { crl, problem }))
    }

    /// What is to be recorded as revoked, and why that may not be all.
    fn to_revoke(
        &self,
        issuers: &KnownIssuers<'_>,
        gone: &HashSet<String>,
        known: &[RevocationRecord],
        now: UnixTime,
    ) -> (Vec<RevocationRecord>, Option<SignerRecordsError>) {
        if gone.is_empty() {
            return (Vec::new(), None);
        }
        let (entries, problem) = match self.issuance().read_readable() {
            Ok((entries, damaged)) => (entries, damaged.map(failed)),
            Err(error) => return (Vec::new(), Some(failed(error))),
        };
        let revoked_before: HashSet<&str> = known.iter().map(|record| record.sha256.as_str()).collect();
        let of_gone = |entry: &&IndexEntry| {
            let is_gone = entry.pod.as_ref().is_some_and(|pod| gone.contains(&pod.uid));
            is_gone
                && issuers.have_issued(entry)
                && !revoked_before.contains(entry.sha256.as_str())
                && !has_ended(&entry.not_after, Duration::ZERO, now)
        };
        (entries.iter().filter(of_gone).map(|entry| of_deleted_pod(entry, now)).collect(), problem)
    }

    /// Drops the lines of certificates that have ended a day ago, and of an index that is half full those of certificates that are
    /// recorded as revoked. The CRL must have been written since: what it has and no record names stays in it for ever.
    pub fn prune(&self, now: UnixTime) -> Result<(), SignerRecordsError> {
        let index = self.issuance();
        let locked = index.lock_in_service().map_err(failed)?;
        let is_half_full = locked.file.metadata().is_ok_and(|metadata| metadata.len() > MAX_INDEX / 2);
        let records = self.revocations();
        let (known, damaged) = self.known_records()?;
        if let Some(damaged) = damaged {
            return Err(damaged);
        }
        let is_old = |not_after: &str| has_ended(not_after, RETENTION, now);
        if known.iter().any(|record| is_old(&record.not_after)) {
            let kept = lines(known.iter().filter(|record| !is_old(&record.not_after)))?;
            replace_record(records.path(), kept.as_bytes()).map_err(failed)?;
        }
        let revoked: HashSet<&str> = known.iter().map(|record| record.sha256.as_str()).collect();
        let is_dropped = |entry: &IndexEntry| {
            is_old(&entry.not_after) || is_half_full && revoked.contains(entry.sha256.as_str())
        };
        let entries = index.read().map_err(failed)?;
        if entries.iter().any(is_dropped) {
            let kept = lines(entries.iter().filter(|entry| !is_dropped(entry)))?;
            // Last: the lock is on the file that loses its name.
            replace_record(&self.index, kept.as_bytes()).map_err(failed)?;
        }
        Ok(())
    }

    /// What is recorded as revoked, and the error for the first line that cannot be read. The caller holds the lock.
    fn known_records(
        &self,
    ) -> Result<(Vec<RevocationRecord>, Option<SignerRecordsError>), SignerRecordsError> {
        let records = self.revocations();
        records.drop_torn_line().map_err(failed)?;
        let (known, damaged) = records.read_readable().map_err(failed)?;
        Ok((known, damaged.map(failed)))
    }

    /// The certificates of the CA: the current one, and those of its former keys in `NAME.bundle.crt`, where `renew-ca --new-key`
    /// leaves them.
    /// With the reason, if the file cannot be read.
    fn issuers<'a>(&self, owner: RecordOwner<'a>) -> (KnownIssuers<'a>, Option<SignerRecordsError>) {
        let file = self.beside(".bundle.crt");
        let read = || {
            let pem = named_file::read_if_present(&file).map_err(|error| about(&file, error))?;
            pem.map(|pem| CaBundle::from_pem(&pem).map_err(|error| about(&file, error))).transpose()
        };
        let (bundle, problem) = match read() {
            Ok(bundle) => (bundle, None),
            Err(problem) => (None, Some(problem)),
        };
        let all = bundle.iter().flat_map(CaBundle::certificates);
        let name = &owner.authority.certificate().raw_subject;
        let former = all.filter(|other| other.raw_subject == *name).cloned().collect();
        (KnownIssuers::new(owner, former), problem)
    }

    /// The CRL that there is. A key of this CA must have signed it.
    fn existing(
        &self,
        crl: &SignerCrl,
        issuers: &KnownIssuers<'_>,
    ) -> Result<Option<ExistingCrl>, SignerRecordsError> {
        let existing = ExistingCrl::read(&crl.file).map_err(|problem| about(&crl.file, problem))?;
        if existing.as_ref().is_none_or(|existing| issuers.have_signed(existing)) {
            return Ok(existing);
        }
        Err(about(
            &crl.file,
            format!(
                "a CRL of another CA, by its signature; give another crlFile. If a former key of this CA has signed it, put the \
                 certificate of that key into {}, or move the CRL away: the next one has all that {} records",
                self.beside(".bundle.crt").display(),
                self.revocations().path().display()
            ),
        ))
    }
}

/// The certificates of a CA.
struct KnownIssuers<'a> {
    owner: RecordOwner<'a>,
    former: Vec<Certificate>,
    /// The fingerprints of the key and of the certificate of each.
    prints: Vec<[String; 2]>,
}

impl<'a> KnownIssuers<'a> {
    fn new(owner: RecordOwner<'a>, former: Vec<Certificate>) -> Self {
        let all = std::iter::once(owner.authority.certificate()).chain(&former);
        let prints = all.map(|ca| [fingerprint(&ca.spki), fingerprint(&ca.der)]).collect();
        Self { owner, former, prints }
    }

    fn all(&self) -> impl Iterator<Item = &Certificate> {
        std::iter::once(self.owner.authority.certificate()).chain(&self.former)
    }

    /// Whether a key of the CA has signed the certificate, for the cluster.
    fn have_issued(&self, entry: &IndexEntry) -> bool {
        let is_issuer = |[key, certificate]: &[String; 2]| match &entry.issuer_key_sha256 {
            Some(known) => known == key,
            None => entry.issuer_sha256.as_ref() == Some(certificate),
        };
        entry.cluster.as_ref().is_none_or(|cluster| cluster == self.owner.cluster)
            && self.prints.iter().any(is_issuer)
    }

    fn have_signed(&self, existing: &ExistingCrl) -> bool {
        let is_signer = |ca: &Certificate| {
            existing.crl.issuer == ca.raw_subject && existing.crl.check_signature_from(ca).is_ok()
        };
        self.all().any(is_signer)
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
        namespace: entry.pod.as_ref().map(|pod| pod.namespace.clone()),
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
