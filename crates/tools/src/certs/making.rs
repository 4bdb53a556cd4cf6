//! Creates CA certificates: a root, and intermediates below it. The extended key usage of an intermediate limits it to
//! one purpose (RFC 5280 section 4.2.1.12): the serving CA cannot issue client certificates.

use std::path::Path;
use std::time::Duration;

use portcullis_go::pem::encode_pem;
use portcullis_go::time;
use portcullis_pki::issuance::ca::{CaCertificate, CaIssuer};
use portcullis_pki::issuance::issue::IssueError;
use portcullis_pki::issuance::signer::PemKey;
use portcullis_pki::issuance::usage::CertificateUsage;
use portcullis_pki::issuance::validity::Validity;
use portcullis_pki::x509::certificate::Certificate;
use portcullis_system::clock::UnixTime;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;

use super::authority::{CaRole, ROOT};
use super::error::CommandError;
use super::files::NewFiles;
use super::flags::KeyType;
use super::index::IndexEntry;
use super::progress::with_spinner;
use super::{fingerprint, hex};

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

    pub(super) fn certificate(&self) -> CaCertificate<'_> {
        let whole = |time: UnixTime| UnixTime::from_secs(time.as_secs());
        CaCertificate {
            common_name: &self.common_name,
            validity: Validity { not_before: whole(self.not_before), not_after: whole(self.not_after) },
            path_length: u8::from(self.role.is_none()),
            purpose: self.role.map(|role| match role {
                CaRole::Client | CaRole::FrontProxy => CertificateUsage::ClientAuth,
                CaRole::Serving => CertificateUsage::ServerAuth,
            }),
            key_id: (!self.key_id.is_empty()).then_some(&self.key_id),
        }
    }

    pub(super) fn self_signed(&self, key: &PemKey) -> Result<Certificate, CommandError> {
        self.certificate().self_signed(key).map_err(failed)
    }

    /// Signs the certificate for the key in `spki`.
    pub(super) fn signed_by(&self, spki: &[u8], issuer: CaIssuer<'_>) -> Result<Certificate, CommandError> {
        self.certificate().signed_by(spki, issuer).map_err(failed)
    }
}

/// The validity of an intermediate: the requested one, reduced a little for each role after the first.
pub(super) fn staggered(role: CaRole, life: Duration) -> Duration {
    let place = CaRole::ALL.iter().position(|known| *known == role).unwrap_or_default();
    let step = MAX_STAGGER.min(life / 20);
    life.saturating_sub(step * u32::try_from(place).unwrap_or_default())
}

fn failed(error: IssueError) -> CommandError {
    CommandError::about("creating a CA", error)
}

/// Generates a key.
pub(super) fn new_key(kind: KeyType) -> Result<PemKey, CommandError> {
    let key = with_spinner(&format!("generating a key ({kind})"), || PemKey::generate(kind.kind()));
    key.map_err(|error| CommandError::about("generating a key", error))
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
        new_key: Option<(&PemKey, Option<&SecretString>)>,
        files: &mut NewFiles,
    ) -> Result<Self, CommandError> {
        let name = plan.role.map_or(ROOT, CaRole::file);
        let path = directory.join(name);
        let made = Self {
            name,
            subject: format!("CN={}", plan.common_name),
            key: key.to_owned(),
            not_after: time::format_since_epoch(plan.not_after),
            sha256: fingerprint(&certificate.der),
            certificate_file: path.with_extension("crt"),
            key_file: new_key.map(|_| path.with_extension("key")),
            key_encrypted: new_key.map(|(_, passphrase)| passphrase.is_some()),
        };
        files.stage_public(&made.certificate_file, encode_pem("CERTIFICATE", &certificate.der).as_bytes())?;
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

/// The column headings of [`CreatedCa::row`].
pub(super) const COLUMNS: [&str; 5] = ["AUTHORITY", "SUBJECT", "KEY", "UNTIL", "CERTIFICATE"];

/// The entry in the index of the root that signed the certificate.
pub(super) fn entry(plan: &CaPlan, certificate: &Certificate, root: &[u8], now: UnixTime) -> IndexEntry {
    IndexEntry {
        serial: hex(&certificate.serial),
        subject: format!("CN={}", plan.common_name),
        alt_names: Vec::new(),
        profile: plan.role.map_or("root", |_| "intermediate").to_owned(),
        issued_at: time::format_since_epoch(now),
        not_after: time::format_since_epoch(plan.not_after),
        sha256: fingerprint(&certificate.der),
        issuer_sha256: Some(fingerprint(root)),
        pod: None,
        cluster: None,
        issuer_key_sha256: None,
    }
}
