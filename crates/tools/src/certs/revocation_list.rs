//! Makes the CRL of a CA from what is recorded as revoked, and reads the CRL that it replaces. Never loses an entry, and never
//! replaces the CRL of another CA.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use num_bigint::BigUint;
use portcullis_go::pem::{self, encode_pem};
use portcullis_go::time;
use portcullis_pki::issuance::authority::CertificateAuthority;
use portcullis_pki::issuance::crl::CrlPlan;
use portcullis_pki::revocation::deny_list::octets;
use portcullis_pki::x509::Crl;
use portcullis_pki::x509::crl::RevokedEntry;
use portcullis_system::clock::UnixTime;

use super::revocations::RevocationRecord;
use crate::certs::named_file;

/// A CRL that exists already.
pub(super) struct ExistingCrl {
    pub(super) crl: Crl,
    is_der: bool,
}

/// A signed CRL.
pub(super) struct SignedCrl {
    /// In the form of the one that it replaces, else PEM.
    pub(super) content: Vec<u8>,
    pub(super) number: BigUint,
    pub(super) next_update: UnixTime,
    pub(super) entries: usize,
}

impl ExistingCrl {
    /// The CRL in a file; `None` if there is no file.
    pub(super) fn read(file: &Path) -> Result<Option<Self>, String> {
        let Some(content) = named_file::read_if_present(file).map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        let is_der = content.first() == Some(&0x30);
        let blocks = if is_der { Vec::new() } else { pem::blocks(&content) };
        let der = match blocks.as_slice() {
            [] if is_der => content.as_slice(),
            [only] if only.kind == b"X509 CRL" => &only.content,
            _ => return Err("not a file with one CRL; give another name".to_owned()),
        };
        let crl = Crl::parse(der).map_err(|error| error.to_string())?;
        Ok(Some(Self { crl, is_der }))
    }
}

/// Signs the CRL with the entries of the existing one that `keeps` selects, and with all records.
pub(super) fn sign(
    authority: &CertificateAuthority,
    existing: Option<&ExistingCrl>,
    keeps: impl Fn(&RevokedEntry) -> bool,
    records: &[&RevocationRecord],
    (now, lifetime): (UnixTime, Duration),
) -> Result<SignedCrl, String> {
    let kept = existing.into_iter().flat_map(|existing| &existing.crl.entries);
    let mut entries: Vec<RevokedEntry> = kept.filter(|entry| keeps(entry)).cloned().collect();
    let mut listed: HashSet<_> = entries.iter().map(|entry| entry.serial.clone()).collect();
    for record in records {
        let serial = octets(&record.serial).ok_or_else(|| format!("serial {}", record.serial))?;
        let revoked_at = time::Time::parse_rfc3339(&record.revoked_at).map(|time| time.since_epoch());
        let revoked_at = revoked_at.map_or(0, |time| i64::try_from(time.as_secs()).unwrap_or(0));
        let entry = RevokedEntry { serial: serial.into(), revoked_at, reason: record.reason.code() };
        if listed.insert(entry.serial.clone()) {
            entries.push(entry);
        }
    }
    // Grows also if the file is lost. RFC 5280 section 5.2.3 demands no more.
    let seconds = BigUint::from(now.as_secs());
    let previous = existing.and_then(|existing| existing.crl.number.clone());
    let number = previous.map_or(seconds.clone(), |previous| seconds.max(previous + 1_u8));
    let this_update = UnixTime::from_secs(now.as_secs());
    let next_update = this_update + lifetime;
    let plan = CrlPlan { number: &number, this_update, next_update, entries: &entries };
    let der = authority.sign_crl(&plan).map_err(|error| error.to_string())?;
    let content = if existing.is_some_and(|existing| existing.is_der) {
        der
    } else {
        encode_pem("X509 CRL", &der).into_bytes()
    };
    Ok(SignedCrl { content, number, next_update, entries: entries.len() })
}
