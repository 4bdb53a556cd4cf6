//! The CRLs of client CAs, `--client-ca-crl-file`: which CA signed each, and which certificates they list.
//!
//! A list counts for every certificate whose issuer has the name of the list's issuer, whichever of its keys signed the
//! certificate: so no other path of a chain avoids it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::digest;
use num_bigint::BigUint;
use portcullis_go::hex::hex;
use portcullis_go::pem;
use portcullis_go::time::format_utc;
use portcullis_pki::revocation::path::CertificatePath;
use portcullis_pki::x509::certificate::Certificate;
use portcullis_pki::x509::name_text::rfc4514;
use portcullis_pki::x509::{Crl, CrlError, time};
use portcullis_system::clock::UnixTime;

use super::{RevocationSource, Revoked};

/// How far ahead of ours the clock of a CA may be.
const MAX_CLOCK_SKEW: Duration = Duration::from_mins(5);
/// The first octet of a CRL in DER, a SEQUENCE.
const DER: u8 = 0x30;

/// What to do with a certificate whose issuer's CRL is stale.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum CrlFailurePolicy {
    /// Refuse it.
    #[default]
    Fail,
    /// Accept it unless the stale CRL lists it.
    Ignore,
}

/// The CRLs of a cluster, all verified.
#[derive(Debug, Default)]
pub struct ClientCrls {
    by_issuer: HashMap<Vec<u8>, Vec<IssuerCrl>>,
    policy: CrlFailurePolicy,
}

/// A verified CRL.
#[derive(Debug)]
pub struct IssuerCrl {
    /// The issuer, as in RFC 4514.
    pub issuer: String,
    /// `cRLNumber` in decimal.
    pub number: Option<BigUint>,
    /// Seconds since 1970.
    pub this_update: i64,
    /// Seconds since 1970. The CRL is stale from then on.
    pub next_update: i64,
    /// Sorted; without leading zeros.
    serials: Vec<Box<[u8]>>,
    /// The key that signed it, as `SubjectPublicKeyInfo`.
    key: Vec<u8>,
    /// SHA-256 of the encoded list.
    digest: Vec<u8>,
    file: PathBuf,
}

/// Why a file of CRLs cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", .place.as_ref().map(|place| format!("{place}: ")).unwrap_or_default())]
pub(crate) struct CrlFileError {
    /// The file.
    pub file: PathBuf,
    /// The CRL in it.
    pub place: Option<String>,
    /// What is wrong.
    pub problem: String,
    /// Whether the CRL can be used if its CA has no other.
    pub may_be_complete: bool,
}

/// A CRL is older than the one that it would replace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}: the CRL of {issuer} ({found}) is older than the one in use ({in_force}): give the newest one, or restart the gateway to use an \
     older one",
    .file.display()
)]
pub struct OlderCrl {
    file: PathBuf,
    issuer: String,
    found: String,
    in_force: String,
}

impl ClientCrls {
    /// Verifies the CRLs of files, each with its content, by the keys of `authorities`. `complete` are the URLs of CRLs that
    /// are the only one of their CA.
    pub(crate) fn load(
        files: &[(PathBuf, Vec<u8>)],
        complete: &[String],
        authorities: &[&Certificate],
        policy: CrlFailurePolicy,
        now: UnixTime,
    ) -> Result<Self, Vec<CrlFileError>> {
        let mut crls = Self { by_issuer: HashMap::new(), policy };
        let mut errors = Vec::new();
        for (file, content) in files {
            match encoded(content) {
                Ok(lists) => {
                    for (index, der) in lists.into_iter().enumerate() {
                        let added = crls.add(file, (index, &der), complete, authorities, now);
                        errors.extend(added.err());
                    }
                }
                Err(problem) => errors.push(CrlFileError {
                    file: file.clone(),
                    place: None,
                    problem,
                    may_be_complete: false,
                }),
            }
        }
        if errors.is_empty() { Ok(crls) } else { Err(errors) }
    }

    fn add(
        &mut self,
        file: &Path,
        (index, der): (usize, &[u8]),
        complete: &[String],
        authorities: &[&Certificate],
        now: UnixTime,
    ) -> Result<(), CrlFileError> {
        let place = format!("CRL {}", index + 1);
        let failed = |place: &str, problem: String| CrlFileError {
            file: file.to_owned(),
            place: Some(place.to_owned()),
            problem,
            may_be_complete: false,
        };
        let crl = Crl::parse_complete(der, complete).map_err(|error| CrlFileError {
            may_be_complete: matches!(error, CrlError::OneOfSeveral(_)),
            ..failed(&place, error.to_string())
        })?;
        let issuer = rfc4514(&crl.issuer);
        let place = format!("{place} (issuer {issuer})");
        let signer = signer(&crl, authorities).map_err(|problem| failed(&place, problem))?;
        if time::is_before(now + MAX_CLOCK_SKEW, crl.this_update) {
            let time = format_utc(crl.this_update);
            return Err(failed(
                &place,
                format!("thisUpdate {time} is in the future: check the clocks of the CA and of this host"),
            ));
        }
        let mut serials: Vec<Box<[u8]>> = crl.entries.into_iter().map(|entry| entry.serial).collect();
        serials.sort_unstable();
        let found = IssuerCrl {
            issuer,
            number: crl.number,
            this_update: crl.this_update,
            next_update: crl.next_update,
            serials,
            key: signer.spki.clone(),
            digest: digest::digest(&digest::SHA256, der).as_ref().to_vec(),
            file: file.to_owned(),
        };
        let known = self.by_issuer.entry(crl.issuer).or_default();
        keep_newest(known, found).map_err(|problem| failed(&place, problem))
    }

    /// Checks that no list is older than the one by the same key in `before`, which is in force: certificates that were revoked
    /// since would be accepted again. A list that is gone is a change of the configuration.
    // threat: replayed-crl
    pub(crate) fn check_replaces(&self, before: &Self) -> Result<(), OlderCrl> {
        for (issuer, lists) in &self.by_issuer {
            let of_issuer = before.by_issuer.get(issuer).into_iter().flatten();
            for known in of_issuer {
                if let Some(found) =
                    lists.iter().find(|list| list.key == known.key && list.is_older_than(known))
                {
                    let (file, issuer) = (found.file.clone(), found.issuer.clone());
                    return Err(OlderCrl { file, issuer, found: found.version(), in_force: known.version() });
                }
            }
        }
        Ok(())
    }

    /// The CRLs, by issuer.
    pub fn lists(&self) -> Vec<&IssuerCrl> {
        let mut lists: Vec<_> = self.by_issuer.values().flatten().collect();
        lists.sort_by(|one, other| (&one.issuer, &one.number).cmp(&(&other.issuer, &other.number)));
        lists
    }

    /// What to do with certificates whose issuer's CRL is stale.
    pub fn policy(&self) -> CrlFailurePolicy {
        self.policy
    }

    /// Whether there is a CRL for certificates of this CA.
    pub(crate) fn covers(&self, authority: &Certificate) -> bool {
        self.by_issuer.contains_key(&authority.raw_subject)
    }

    /// Whether a certificate of a chain is revoked, or cannot be checked under [`CrlFailurePolicy::Fail`].
    pub(crate) fn check(&self, path: &CertificatePath, now: UnixTime) -> Result<(), Revoked> {
        let lists = || {
            let certificates = path.certificates().iter();
            certificates.flat_map(|certificate| {
                let lists = self.by_issuer.get(&certificate.issuer);
                lists.into_iter().flatten().map(move |list| (certificate, list))
            })
        };
        if let Some((certificate, list)) =
            lists().find(|(certificate, list)| list.revokes(&certificate.serial))
        {
            let text = format!(
                "the certificate with serial number {} is revoked by the CRL of {}",
                hex(&certificate.serial),
                list.issuer
            );
            return Err(Revoked::new(RevocationSource::Crl, text));
        }
        let stale = lists().find(|(_, list)| self.policy == CrlFailurePolicy::Fail && list.is_stale(now));
        stale.map_or(Ok(()), |(_, list)| {
            let text = format!(
                "the certificate cannot be checked: the CRL of {} is stale since {}",
                list.issuer,
                format_utc(list.next_update)
            );
            Err(Revoked::new(RevocationSource::StaleCrl, text))
        })
    }
}

impl IssuerCrl {
    /// Whether nextUpdate has passed.
    pub fn is_stale(&self, now: UnixTime) -> bool {
        time::is_after(now, self.next_update)
    }

    /// The number of revoked certificates.
    pub fn count(&self) -> usize {
        self.serials.len()
    }

    /// By the number, if both have one. Some CAs never raise it: then by the time.
    fn is_older_than(&self, other: &Self) -> bool {
        match (&self.number, &other.number) {
            (Some(own), Some(other)) if own != other => own < other,
            _ => self.this_update < other.this_update,
        }
    }

    /// The number and the time, for people.
    fn version(&self) -> String {
        let time = format_utc(self.this_update);
        self.number
            .as_ref()
            .map_or_else(|| format!("of {time}"), |number| format!("number {number}, of {time}"))
    }

    fn revokes(&self, serial: &[u8]) -> bool {
        self.serials.binary_search_by(|known| known.as_ref().cmp(serial)).is_ok()
    }
}

/// Of two CRLs by the same key, the one with the higher number counts. A CA with two keys may have one for each.
fn keep_newest(known: &mut Vec<IssuerCrl>, found: IssuerCrl) -> Result<(), String> {
    let Some(other) = known.iter_mut().find(|known| known.key == found.key) else {
        known.push(found);
        return Ok(());
    };
    if other.digest == found.digest {
        return Ok(());
    }
    match (&other.number, &found.number) {
        (Some(old), Some(new)) if old != new => {
            if old < new {
                *other = found;
            }
            Ok(())
        }
        _ => {
            Err("another CRL of this issuer has the same number, or one of them has none: remove one"
                .to_owned())
        }
    }
}

/// The CA that signed a CRL.
// threat: foreign-crl
fn signer<'a>(crl: &Crl, authorities: &[&'a Certificate]) -> Result<&'a Certificate, String> {
    let mut refusal = None;
    for authority in authorities.iter().copied().filter(|authority| authority.raw_subject == crl.issuer) {
        match crl.check_signature_from(authority) {
            Ok(()) => return Ok(authority),
            Err(error) => refusal = Some(error),
        }
    }
    Err(match refusal {
        None => "the issuer is none of the client or front-proxy CAs".to_owned(),
        Some(error) => {
            format!("not signed by the CA of this name, or its key usage does not allow cRLSign: {error}")
        }
    })
}

/// The CRLs of a file: PEM blocks, or one in DER.
pub(crate) fn encoded(content: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    if content.first() == Some(&DER) {
        return Ok(vec![content.to_vec()]);
    }
    let blocks = pem::blocks(content);
    // Go's reader passes over damaged blocks. A CRL that is passed over would revoke nothing.
    let begins =
        content.split(|octet| *octet == b'\n').filter(|line| line.trim_ascii().starts_with(b"-----BEGIN "));
    if begins.count() != blocks.len() {
        return Err("a PEM block is damaged".to_owned());
    }
    if blocks.is_empty() {
        return Err("neither PEM (X509 CRL) nor DER".to_owned());
    }
    let lists = blocks.into_iter().enumerate().map(|(index, block)| match block.kind.as_slice() {
        b"X509 CRL" => Ok(block.content),
        kind => {
            Err(format!("PEM block {} is a {:?}, not an X509 CRL", index + 1, String::from_utf8_lossy(kind)))
        }
    });
    lists.collect()
}

#[cfg(test)]
mod tests;
