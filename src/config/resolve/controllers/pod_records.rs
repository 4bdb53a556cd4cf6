//! Resolves the records of a signer of pods: its index and its CRL. A CA has one of each, whichever signers it has: the list that
//! lacks the entries of another would hide them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use portcullis_pki::issuance::authority::CertificateAuthority;
use portcullis_pki::issuance::profile::SignerName;
use portcullis_tools::certs::signer_records::{INDEX_EXTENSION, SignerCrl, SignerRecords};

use crate::config::error::ConfigError;
use crate::config::flags::PodSignerKeys;
use crate::config::resolve::ConfigResolver;
use crate::config::sections::MergedSection;

/// The shortest lifetime of a CRL.
const MIN_CRL_LIFETIME: Duration = Duration::from_hours(1);

/// The records of a signer, and the keys that name them.
pub(super) struct ReadRecords {
    records: SignerRecords,
    index_key: String,
    crl_key: String,
}

/// The records of each CA so far: the key of the CA, the name of a signer, and its records.
#[derive(Default)]
pub(super) struct RecordsOfAuthorities(Vec<(Vec<u8>, String, Option<SignerRecords>)>);

impl ConfigResolver<'_> {
    /// The files of a signer, as far as its keys are valid.
    pub(super) fn pod_records(&mut self, given: &MergedSection<PodSignerKeys>) -> Option<ReadRecords> {
        let keys = &given.values;
        let (index_key, crl_key) = (given.key("index-file"), given.key("crl-file"));
        let lifetime = self.duration(&given.key("crl-lifetime"), &keys.crl_lifetime)?;
        if lifetime < MIN_CRL_LIFETIME {
            let error = ConfigError::new(given.key("crl-lifetime"), "is less than 1h");
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
        is_complete.then_some(ReadRecords { records: SignerRecords { index, crl }, index_key, crl_key })
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
        let (records, [index_key, crl_key]) = match read {
            Some(ReadRecords { records, index_key, crl_key }) => (Some(records), [index_key, crl_key]),
            None => (None, ["indexFile", "crlFile"].map(str::to_owned)),
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
        let files = |records: &SignerRecords| {
            let crl = records.crl.as_ref().map(|crl| crl.file.clone());
            [Some(records.index.clone()), crl]
        };
        for (key, other, theirs) in &known.0 {
            let problem = if key == own {
                (*theirs != records).then(|| {
                    format!("{other} signs with the same CA, and has other keys of this kind: a CA has one index and one CRL")
                })
            } else {
                let shared = records.as_ref().zip(theirs.as_ref()).is_some_and(|(one, two)| {
                    let theirs = files(two);
                    files(one).iter().flatten().any(|file| theirs.iter().flatten().any(|other| other == file))
                });
                shared.then(|| format!("{other} signs with another CA, and has the same files"))
            };
            if let Some(problem) = problem {
                let error = ConfigError::new(&index_key, format!("{}: {problem}", name.as_str()));
                self.errors.push(error.fix("give signers of one CA the same indexFile, crlFile and crlLifetime, and other CAs others"));
                break;
            }
        }
        known.0.push((own.clone(), name.as_str().to_owned(), records.clone()));
        records
    }
}
