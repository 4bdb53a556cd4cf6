//! Certificates of authorities: a root, and intermediates below it. Each intermediate signs for one purpose alone (its
//! extended key usage says so, RFC 5280 section 4.2.1.12), so the authority of servers can make no clients.

use std::path::Path;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;

use super::authority::{ROOT, Role};
use super::error::CommandError;
use super::files::NewFiles;
use super::flags::KeyType;
use super::index::Entry;
use super::progress::patiently;
use super::{fingerprint, hex};
use crate::clock::{self, UnixTime};
use crate::pki::issuance::ca::{CaCertificate, CaIssuer};
use crate::pki::issuance::issue::IssueError;
use crate::pki::issuance::request::armour;
use crate::pki::issuance::signer::{KeyError, PemKey};
use crate::pki::issuance::usage::Usage;
use crate::pki::issuance::validity::Validity;
use crate::pki::x509::certificate::Certificate;

/// Clocks of virtual machines lag; a certificate made now must be good for them too.
const BACKDATED: Duration = Duration::from_mins(5);
/// Intermediates end one after another, so that no morning finds all of them expired.
const MAX_STAGGER: Duration = Duration::from_hours(28 * 24);

/// What a certificate of an authority is made of.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) role: Option<Role>,
    /// The whole CommonName.
    pub(super) common_name: String,
    pub(super) not_before: UnixTime,
    pub(super) not_after: UnixTime,
    /// That of the certificate before it; empty: that of the key.
    pub(super) key_id: Vec<u8>,
}

impl Plan {
    /// The root, or an intermediate below it, that begins now.
    pub(super) fn new(role: Option<Role>, name: &str, life: Duration, now: UnixTime) -> Self {
        let title = role.map_or("root", Role::title);
        Self {
            role,
            common_name: format!("{name} {title} CA"),
            not_before: now.saturating_sub(BACKDATED),
            not_after: now.saturating_add(life),
            key_id: Vec::new(),
        }
    }

    /// The same certificate, but no longer than its authority.
    pub(super) fn until(mut self, end: UnixTime) -> Self {
        self.not_after = self.not_after.min(end);
        self
    }

    pub(super) fn certificate(&self) -> CaCertificate<'_> {
        let whole = |time: UnixTime| UnixTime::from_secs(time.as_secs());
        CaCertificate {
            common_name: &self.common_name,
            validity: Validity { not_before: whole(self.not_before), not_after: whole(self.not_after) },
            path_length: u8::from(self.role.is_none()),
            purpose: self.role.map(|role| match role {
                Role::Client | Role::FrontProxy => Usage::ClientAuth,
                Role::Serving => Usage::ServerAuth,
            }),
            key_id: (!self.key_id.is_empty()).then_some(&self.key_id),
        }
    }

    pub(super) fn self_signed(&self, key: &PemKey) -> Result<Certificate, CommandError> {
        self.certificate().self_signed(key).map_err(failed)
    }

    pub(super) fn signed_by(&self, spki: &[u8], issuer: CaIssuer<'_>) -> Result<Certificate, CommandError> {
        self.certificate().signed_by(spki, issuer).map_err(failed)
    }
}

/// How long an intermediate lives: as long as was asked, a little less for each one after the first.
pub(super) fn staggered(role: Role, life: Duration) -> Duration {
    let place = Role::ALL.iter().position(|known| *known == role).unwrap_or_default();
    let step = MAX_STAGGER.min(life / 20);
    life.saturating_sub(step * u32::try_from(place).unwrap_or_default())
}

fn failed(error: IssueError) -> CommandError {
    CommandError::about("making an authority", error)
}

/// Makes a key.
pub(super) fn new_key(kind: KeyType) -> Result<PemKey, CommandError> {
    let key = patiently(&format!("making a key ({kind})"), || PemKey::generate(kind.kind()));
    key.map_err(|error: KeyError| CommandError::about("making a key", error))
}

/// What was made.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Made {
    name: &'static str,
    subject: String,
    key: String,
    not_after: String,
    sha256: String,
    certificate_file: std::path::PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_file: Option<std::path::PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_encrypted: Option<bool>,
}

impl Made {
    /// Stages the certificate, and its key if that is new.
    pub(super) fn stage(
        plan: &Plan,
        directory: &Path,
        certificate: &Certificate,
        key: &str,
        new_key: Option<(&PemKey, Option<&SecretString>)>,
        files: &mut NewFiles,
    ) -> Result<Self, CommandError> {
        let name = plan.role.map_or(ROOT, Role::file);
        let path = directory.join(name);
        let made = Self {
            name,
            subject: format!("CN={}", plan.common_name),
            key: key.to_owned(),
            not_after: clock::rfc3339(plan.not_after),
            sha256: fingerprint(&certificate.der),
            certificate_file: path.with_extension("crt"),
            key_file: new_key.map(|_| path.with_extension("key")),
            key_encrypted: new_key.map(|(_, passphrase)| passphrase.is_some()),
        };
        files.stage_public(&made.certificate_file, armour("CERTIFICATE", &certificate.der).as_bytes())?;
        if let (Some((key, passphrase)), Some(file)) = (new_key, &made.key_file) {
            let pem = match passphrase {
                Some(passphrase) => key.to_encrypted_pem(passphrase),
                None => Ok(key.to_pem()),
            };
            let pem = pem.map_err(|error| CommandError::about("encrypting a key", error))?;
            files.stage(file, pem.expose_secret().as_bytes())?;
        }
        Ok(made)
    }

    pub(super) fn row(&self) -> [String; 5] {
        let file = self.certificate_file.display().to_string();
        [self.name.to_owned(), self.subject.clone(), self.key.clone(), self.not_after.clone(), file]
    }
}

/// The heads of the columns of [`Made::row`].
pub(super) const COLUMNS: [&str; 5] = ["AUTHORITY", "SUBJECT", "KEY", "UNTIL", "CERTIFICATE"];

/// The line of the index of the root that has signed it.
pub(super) fn entry(plan: &Plan, certificate: &Certificate, root: &[u8], now: UnixTime) -> Entry {
    Entry {
        serial: hex(&certificate.serial),
        subject: format!("CN={}", plan.common_name),
        alt_names: Vec::new(),
        profile: plan.role.map_or("root", |_| "intermediate").to_owned(),
        issued_at: clock::rfc3339(now),
        not_after: clock::rfc3339(plan.not_after),
        sha256: fingerprint(&certificate.der),
        issuer_sha256: Some(fingerprint(root)),
    }
}
