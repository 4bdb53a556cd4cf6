//! Loads the CA that signs: one that `init` created, or any other certificate and key.

use std::path::{Path, PathBuf};

use clap::Args;
use portcullis_pki::issuance::authority::{AuthorityKeySource, CertificateAuthority};
use portcullis_pki::issuance::signer::{PemKey, PrivateKeyError};

use super::error::CommandError;
use super::exposure;
use super::index::{IndexEntry, IssuanceIndex};
use super::passphrase::PassphraseFlags;
use super::profile::IssuanceProfile;
use crate::certs::named_file;

/// The base name of the root's files.
pub(super) const ROOT: &str = "ca";

/// The CAs below the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CaRole {
    /// The CA for clients: client-ca.
    Client,
    /// The CA for servers: serving-ca.
    Serving,
    /// The CA for front proxies: front-proxy-ca.
    FrontProxy,
}

impl CaRole {
    pub(super) const ALL: [Self; 3] = [Self::Client, Self::Serving, Self::FrontProxy];

    /// The base name of its files.
    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Client => "client-ca",
            Self::Serving => "serving-ca",
            Self::FrontProxy => "front-proxy-ca",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Serving => "serving",
            Self::FrontProxy => "front-proxy",
        }
    }
}

/// Flags that select the CA that signs.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Authority")]
pub(super) struct AuthorityFlags {
    /// The directory with the CAs of `init`; the built-in profile selects the one that signs. A profile file names its
    /// own.
    #[arg(long, value_name = "DIR", default_value = "pki")]
    pub(super) dir: PathBuf,
    /// The certificate of another CA to sign with, PEM.
    #[arg(long, value_name = "FILE", requires = "ca_key")]
    ca_cert: Option<PathBuf>,
    /// The key of --ca-cert: a PEM file, or an RFC 7512 URI (pkcs11:…) of a key in a token.
    #[arg(long, value_name = "FILE|URI", requires = "ca_cert")]
    ca_key: Option<String>,
    #[command(flatten)]
    passphrase: PassphraseFlags,
}

/// A CA with its key, and the index of the certificates that it has signed.
#[derive(Debug)]
pub(super) struct IssuingCa {
    pub(super) authority: CertificateAuthority,
    pub(super) index: IssuanceIndex,
    /// The CA certificate that follows a leaf in the chain; empty for a root, which chains do not include.
    pub(super) chain: String,
}

impl AuthorityFlags {
    /// Loads the CA of a profile; prompts for the passphrase of an encrypted key.
    pub(super) fn open(&self, profile: &IssuanceProfile) -> Result<IssuingCa, CommandError> {
        let (certificate, key) = match (&self.ca_cert, &self.ca_key, profile) {
            (Some(certificate), Some(key), _) => (certificate.clone(), AuthorityKeySource::parse(key)),
            (.., IssuanceProfile::BuiltIn(kind)) => self.created(Some(kind.role()))?,
            (.., IssuanceProfile::File(profile)) => profile.ca_files()?,
        };
        self.load(&certificate, &key)
    }

    /// The certificate file of the CA of `init` with this role, `None` for the root, or that of --ca-cert.
    pub(super) fn certificate_of(&self, role: Option<CaRole>) -> Result<PathBuf, CommandError> {
        match &self.ca_cert {
            Some(certificate) => Ok(certificate.clone()),
            None => Ok(self.created(role)?.0),
        }
    }

    /// Loads the CA of `init` with this role, `None` for the root, or that of --ca-cert.
    pub(super) fn open_role(&self, role: Option<CaRole>) -> Result<IssuingCa, CommandError> {
        let (certificate, key) = match (&self.ca_cert, &self.ca_key) {
            (Some(certificate), Some(key)) => (certificate.clone(), AuthorityKeySource::parse(key)),
            _ => self.created(role)?,
        };
        self.load(&certificate, &key)
    }

    fn load(&self, certificate: &Path, key: &AuthorityKeySource) -> Result<IssuingCa, CommandError> {
        let authority = match key {
            AuthorityKeySource::File(file) => self.with_key_file(certificate, file)?,
            AuthorityKeySource::Pkcs11(_) => CertificateAuthority::load(certificate, key)
                .map_err(|error| CommandError::Failed(error.to_string()))?,
        };
        let chain = if authority.certificate().raw_subject == authority.certificate().issuer {
            String::new()
        } else {
            authority.certificate_pem().to_owned()
        };
        Ok(IssuingCa { authority, index: IssuanceIndex::beside(certificate), chain })
    }

    /// The files of a CA of `init`.
    fn created(&self, role: Option<CaRole>) -> Result<(PathBuf, AuthorityKeySource), CommandError> {
        let [certificate, key] = ["crt", "key"]
            .map(|extension| self.dir.join(role.map_or(ROOT, CaRole::file)).with_extension(extension));
        if is_missing(&certificate) {
            return Err(CommandError::Failed(format!(
                "{}: there is no such CA; create one with: portcullis certs init --dir {}, or give another one with \
                 --ca-cert and --ca-key",
                certificate.display(),
                self.dir.display()
            )));
        }
        Ok((certificate, AuthorityKeySource::File(key)))
    }

    fn with_key_file(&self, certificate: &Path, file: &Path) -> Result<CertificateAuthority, CommandError> {
        let read =
            |path: &Path| named_file::read(path).map_err(|error| CommandError::about(path.display(), error));
        let certificate_pem = read(certificate)?;
        let key_pem = read(file)?;
        let key = match PemKey::from_pem(&key_pem) {
            Err(PrivateKeyError::Encrypted) => {
                PemKey::from_encrypted_pem(&key_pem, &self.passphrase.to_open(file)?)
            }
            read => read,
        };
        let key = key.map_err(|error| CommandError::about(file.display(), error))?;
        exposure::warn_of_key(file);
        CertificateAuthority::new(&certificate_pem, Box::new(key)).map_err(|error| {
            CommandError::Failed(format!("{} and {}: {error}", certificate.display(), file.display()))
        })
    }
}

impl IssuingCa {
    /// Records a certificate in the index; call it before the certificate is written.
    pub(super) fn record(&self, entry: &IndexEntry) -> Result<(), CommandError> {
        self.index
            .record(std::slice::from_ref(entry))
            .map_err(|error| CommandError::Failed(error.to_string()))
    }
}

/// Not `exists`: an unreadable directory is not a missing file.
pub(super) fn is_missing(file: &Path) -> bool {
    matches!(file.try_exists(), Ok(false))
}
