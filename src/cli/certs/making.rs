//! Creates CA certificates: a root, and intermediates below it. The extended key usage of an intermediate limits it to
//! one purpose (RFC 5280 section 4.2.1.12): the serving CA cannot issue client certificates.

use std::path::Path;
use std::time::Duration;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PublicKeyData, SerialNumber,
};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;
use time::OffsetDateTime;

use super::authority::{CaRole, ROOT};
use super::error::CommandError;
use super::files::NewFiles;
use super::flags::KeyType;
use super::index::IndexEntry;
use super::progress::with_spinner;
use super::{fingerprint, serial};
use crate::clock::{self, UnixTime};
use crate::pki::issuance::issue::new_serial;
use crate::pki::issuance::signer::{PemKey, PrivateKeyError};

/// Tolerance for slow clocks, which would see a new certificate as not yet valid.
const BACKDATED: Duration = Duration::from_mins(5);
/// Intermediates expire on different days, never all at once.
const MAX_STAGGER: Duration = Duration::from_hours(28 * 24);

/// The contents of a CA certificate to create.
#[derive(Debug)]
pub(super) struct CaPlan {
    pub(super) role: Option<CaRole>,
    /// The whole CommonName.
    pub(super) common_name: String,
    pub(super) not_before: UnixTime,
    pub(super) not_after: UnixTime,
    /// The key identifier of the renewed certificate; empty to derive it from the key.
    pub(super) key_id: Vec<u8>,
}

impl CaPlan {
    /// A root (`None`) or an intermediate, valid from now.
    pub(super) fn new(role: Option<CaRole>, name: &str, life: Duration, now: UnixTime) -> Self {
        let title = role.map_or("root", CaRole::title);
        Self {
            role,
            common_name: format!("{name} {title} CA"),
            not_before: now.saturating_sub(BACKDATED),
            not_after: now.saturating_add(life),
            key_id: Vec::new(),
        }
    }

    /// Limits the validity to that of the issuer.
    pub(super) fn until(mut self, end: UnixTime) -> Self {
        self.not_after = self.not_after.min(end);
        self
    }

    pub(super) fn params(&self) -> Result<CertificateParams, CommandError> {
        let mut params = CertificateParams::new(Vec::new()).map_err(failed)?;
        // rcgen derives the serial number from the key, which a renewed CA keeps.
        let serial = new_serial().map_err(failed)?;
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.not_before = date(self.not_before);
        params.not_after = date(self.not_after);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, self.common_name.as_str());
        let below = u8::from(self.role.is_none());
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(below));
        // RFC 5280 section 4.2.1.3: the usages of a CA only.
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        if let Some(role) = self.role {
            params.use_authority_key_identifier_extension = true;
            params.extended_key_usages = vec![match role {
                CaRole::Client | CaRole::FrontProxy => ExtendedKeyUsagePurpose::ClientAuth,
                CaRole::Serving => ExtendedKeyUsagePurpose::ServerAuth,
            }];
        }
        if !self.key_id.is_empty() {
            params.key_identifier_method = KeyIdMethod::PreSpecified(self.key_id.clone());
        }
        Ok(params)
    }

    /// Signs the certificate for `key`.
    pub(super) fn signed_by(
        &self,
        key: &impl PublicKeyData,
        issuer: &Issuer<'_, KeyPair>,
    ) -> Result<Certificate, CommandError> {
        self.params()?.signed_by(key, issuer).map_err(failed)
    }
}

/// The validity of an intermediate: the requested one, reduced a little for each role after the first.
pub(super) fn staggered(role: CaRole, life: Duration) -> Duration {
    let place = CaRole::ALL.iter().position(|known| *known == role).unwrap_or_default();
    let step = MAX_STAGGER.min(life / 20);
    life.saturating_sub(step * u32::try_from(place).unwrap_or_default())
}

pub(super) fn failed(error: impl std::fmt::Display) -> CommandError {
    CommandError::about("creating a CA", error)
}

/// Generates a key: as PEM, and for `rcgen`.
pub(super) fn new_key(kind: KeyType) -> Result<(SecretString, KeyPair), CommandError> {
    let failed = |problem: String| CommandError::about("generating a key", problem);
    let key = with_spinner(&format!("generating a key ({kind})"), || PemKey::generate(kind.kind()));
    let pem = key.map_err(|error: PrivateKeyError| failed(error.to_string()))?.to_pem();
    let pair = KeyPair::from_pem(pem.expose_secret()).map_err(|error| failed(error.to_string()))?;
    Ok((pem, pair))
}

/// A created CA, for the output.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreatedCa {
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

impl CreatedCa {
    /// Stages the certificate, and a new key with its passphrase.
    pub(super) fn stage(
        plan: &CaPlan,
        directory: &Path,
        certificate: &Certificate,
        key: &str,
        new_key: Option<(&SecretString, Option<&SecretString>)>,
        files: &mut NewFiles,
    ) -> Result<Self, CommandError> {
        let name = plan.role.map_or(ROOT, CaRole::file);
        let path = directory.join(name);
        let made = Self {
            name,
            subject: format!("CN={}", plan.common_name),
            key: key.to_owned(),
            not_after: clock::rfc3339(plan.not_after),
            sha256: fingerprint(certificate.der()),
            certificate_file: path.with_extension("crt"),
            key_file: new_key.map(|_| path.with_extension("key")),
            key_encrypted: new_key.map(|(_, passphrase)| passphrase.is_some()),
        };
        files.stage_public(&made.certificate_file, certificate.pem().as_bytes())?;
        if let (Some((key, passphrase)), Some(file)) = (new_key, &made.key_file) {
            let encrypted = passphrase.map(|passphrase| encrypted(key, passphrase)).transpose()?;
            files.stage(file, encrypted.as_ref().unwrap_or(key).expose_secret().as_bytes())?;
        }
        Ok(made)
    }

    pub(super) fn row(&self) -> [String; 5] {
        let file = self.certificate_file.display().to_string();
        [self.name.to_owned(), self.subject.clone(), self.key.clone(), self.not_after.clone(), file]
    }
}

/// The column headings of [`CreatedCa::row`].
pub(super) const COLUMNS: [&str; 5] = ["AUTHORITY", "SUBJECT", "KEY", "UNTIL", "CERTIFICATE"];

fn encrypted(key: &SecretString, passphrase: &SecretString) -> Result<SecretString, CommandError> {
    PemKey::from_pem(key.expose_secret().as_bytes())
        .and_then(|key| key.to_encrypted_pem(passphrase))
        .map_err(|error| CommandError::about("encrypting a key", error))
}

/// The entry in the index of the root that signed the certificate.
pub(super) fn entry(
    plan: &CaPlan,
    certificate: &Certificate,
    root: &[u8],
    now: UnixTime,
) -> Result<IndexEntry, CommandError> {
    use x509_parser::prelude::FromDer as _;
    let (_, read) = x509_parser::certificate::X509Certificate::from_der(certificate.der())
        .map_err(|error| CommandError::about("parsing the new CA certificate", error))?;
    Ok(IndexEntry {
        serial: serial(&read),
        subject: format!("CN={}", plan.common_name),
        alt_names: Vec::new(),
        profile: plan.role.map_or("root", |_| "intermediate").to_owned(),
        issued_at: clock::rfc3339(now),
        not_after: clock::rfc3339(plan.not_after),
        sha256: fingerprint(certificate.der()),
        issuer_sha256: Some(fingerprint(root)),
    })
}

fn date(time: UnixTime) -> OffsetDateTime {
    let seconds = i64::try_from(time.as_secs()).ok();
    seconds
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
