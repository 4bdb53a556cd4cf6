//! Resolves the records of a signer of pods: its index and its CRL. A CA has one of each, whichever signers it has: the list that
//! lacks the entries of another would hide them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use portcullis_pki::issuance::authority::CertificateAuthority;
use portcullis_pki::issuance::profile::SignerName;
use portcullis_tools::certs::signer_records::{INDEX_EXTENSION, SignerCrl, SignerRecords};

use crate::config::error::ConfigError;
use crate::config::flags::PodSignerKeys;
use crate::config::resolve::ConfigResolver;
use crate::config::sections::MergedSection;
use crate::config::separate_cluster::Claims;
use crate::controllers::settings::PodSignerSettings;

/// The shortest lifetime of a CRL, and the longest: a consumer may use a list until its end.
const MIN_CRL_LIFETIME: Duration = Duration::from_hours(1);
const MAX_CRL_LIFETIME: Duration = Duration::from_hours(720);

/// The kind of claim of a file.
const SIGNER_FILE: &str = "file of a signer";

/// The records of a signer, and the keys that name them.
pub(super) struct ReadRecords {
    records: SignerRecords,
    /// The files, without symbolic links.
    files: Vec<PathBuf>,
    index_key: String,
    crl_key: String,
}

/// The records of each CA so far: the key of the CA, the name of a signer, its records, and their files.
#[derive(Default)]
pub(super) struct RecordsOfAuthorities(Vec<RecordsOfAuthority>);

type RecordsOfAuthority = (Vec<u8>, String, Option<SignerRecords>, Vec<PathBuf>);

impl ConfigResolver<'_> {
    /// The files of a signer, as far as its keys are valid.
    pub(super) fn pod_records(&mut self, given: &MergedSection<PodSignerKeys>) -> Option<ReadRecords> {
        let keys = &given.values;
        let (index_key, crl_key) = (given.key("index-file"), given.key("crl-file"));
        let lifetime = self.duration(&given.key("crl-lifetime"), &keys.crl_lifetime)?;
        let problem = match lifetime {
            short if short < MIN_CRL_LIFETIME => Some("is less than 1h"),
            long if long > MAX_CRL_LIFETIME => Some("is more than 720h"),
            _ => None,
        };
        if let Some(problem) = problem {
            let error = ConfigError::new(given.key("crl-lifetime"), problem);
            return self.fail(error.fix("give 24h, for example"));
        }
        let path = |flag: &str, file: &PathBuf| given.place(flag).path(file);
        let Some(index) = &keys.index_file else {
            if keys.crl_file.is_some() {
                let error =
                    ConfigError::new(crl_key, "needs indexFile, which has the certificates of each pod");
                return self.fail(error.fix("give indexFile"));
            }
            return None;
        };
        let index = path("index-file", index);
        let name = index.file_name().unwrap_or_default().to_string_lossy();
        if name.len() <= INDEX_EXTENSION.len() || !name.ends_with(INDEX_EXTENSION) {
            let error = ConfigError::new(index_key, "is not the name of an index");
            return self.fail(error.fix("give NAME.index.jsonl"));
        }
        let crl = keys.crl_file.as_ref().map(|file| SignerCrl { file: path("crl-file", file), lifetime });
        let mut is_complete = true;
        for (key, file) in [(&index_key, Some(&index)), (&crl_key, crl.as_ref().map(|crl| &crl.file))] {
            let Some(file) = file else { continue };
            let parent =
                file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            if !parent.is_dir() {
                let error = ConfigError::new(key, "its directory does not exist").in_file(file);
                self.errors.push(error.fix("create the directory, for the user who runs the gateway"));
                is_complete = false;
            }
        }
        if !is_complete {
            return None;
        }
        let records = SignerRecords { index, crl };
        let resolved = records
            .resolved_files()
            .map_err(|error| ConfigError::new(&index_key, error.to_string()).fix("give another file"));
        let files = self.ok(resolved)?;
        let is_twice =
            |(index, file): (usize, &PathBuf)| files.iter().skip(index + 1).any(|other| other == file);
        if files.iter().enumerate().any(is_twice) {
            let error = ConfigError::new(crl_key, "is the file of the index or of one beside it");
            return self.fail(error.fix("give NAME.crl"));
        }
        Some(ReadRecords { records, files, index_key, crl_key })
    }

    /// Reports an error if another cluster has a file of these signers. Each would find the pods of the other missing.
    // threat: revoked-pod-certificate
    pub(in crate::config::resolve) fn claim_records(
        &mut self,
        signers: &[PodSignerSettings],
        key: &str,
        claims: &mut Claims,
    ) {
        let all = signers.iter().filter_map(|signer| signer.records.as_ref());
        let files: BTreeSet<PathBuf> =
            all.filter_map(|records| records.resolved_files().ok()).flatten().collect();
        for file in files {
            self.claim(SIGNER_FILE, &file.to_string_lossy(), key.to_owned(), claims);
        }
    }

    /// The records of a signer, unless the other signers of its CA have others, or another CA has them.
    // threat: revoked-pod-certificate
    pub(super) fn checked_records(
        &mut self,
        read: Option<ReadRecords>,
        authority: &CertificateAuthority,
        name: &SignerName,
        known: &mut RecordsOfAuthorities,
    ) -> Option<SignerRecords> {
        let own = &authority.certificate().spki;
        let (records, files, [index_key, crl_key]) = match read {
            Some(ReadRecords { records, files, index_key, crl_key }) => {
                (Some(records), files, [index_key, crl_key])
            }
            None => (None, Vec::new(), ["indexFile", "crlFile"].map(str::to_owned)),
        };
        if let Some(records) = records.as_ref().filter(|records| records.crl.is_some())
            && let Err(error) = authority.check_crl_sign()
        {
            let file = records.crl.as_ref().map(|crl| crl.file.clone()).unwrap_or_default();
            self.errors.push(
                ConfigError::new(&crl_key, error.to_string())
                    .in_file(&file)
                    .fix("give this signer a CA that signs CRLs, as certs init makes them"),
            );
        }
        for (key, other, theirs, their_files) in &known.0 {
            let problem = if key == own {
                (*theirs != records).then(|| {
                    format!("{other} signs with the same CA, and has other keys of this kind: a CA has one index and one CRL")
                })
            } else {
                let is_shared = files.iter().any(|file| their_files.contains(file));
                is_shared.then(|| format!("{other} signs with another CA, and has the same files"))
            };
            if let Some(problem) = problem {
                let error = ConfigError::new(&index_key, format!("{}: {problem}", name.as_str()));
                self.errors.push(error.fix("give signers of one CA the same indexFile, crlFile and crlLifetime, and other CAs others"));
                break;
            }
        }
        known.0.push((own.clone(), name.as_str().to_owned(), records.clone(), files));
        records
    }
}
