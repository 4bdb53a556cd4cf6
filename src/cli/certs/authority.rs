//! The authority that signs: one that `init` made, or any other certificate and key.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use secrecy::zeroize::Zeroizing;

use super::error::CommandError;
use super::index::{IndexEntry, IssuanceIndex};
use super::passphrase::PassphraseFlags;
use crate::go::pem;
use crate::pki::issuance::authority::{AuthorityKeySource, CertificateAuthority};
use crate::pki::issuance::signer::{PemKey, PrivateKeyError};

/// The name of the root's files.
pub(super) const ROOT: &str = "ca";

/// The authorities below the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum CaRole {
    /// That of clients: client-ca.
    Client,
    /// That of servers: serving-ca.
    Serving,
    /// That of front proxies: front-proxy-ca.
    FrontProxy,
}

impl CaRole {
    pub(super) const ALL: [Self; 3] = [Self::Client, Self::Serving, Self::FrontProxy];

    /// The name of its files.
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

/// Which authority signs.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Authority")]
pub(super) struct AuthorityFlags {
    /// The directory that `init` made the authorities in. The one for the kind of certificate signs.
    #[arg(long, value_name = "DIR", default_value = "pki")]
    pub(super) dir: PathBuf,
    /// The certificate of another authority to sign with, PEM.
    #[arg(long, value_name = "FILE", requires = "ca_key")]
    ca_cert: Option<PathBuf>,
    /// The key of --ca-cert: a PEM file, or an RFC 7512 URI (pkcs11:…) of a key in a token.
    #[arg(long, value_name = "FILE|URI", requires = "ca_cert")]
    ca_key: Option<String>,
    #[command(flatten)]
    passphrase: PassphraseFlags,
}

/// An authority that can sign, and the list of what it signed.
#[derive(Debug)]
pub(super) struct IssuingCa {
    pub(super) authority: CertificateAuthority,
    pub(super) index: IssuanceIndex,
    /// What a server or client shows behind its own certificate; empty for a root, which is no part of a chain.
    pub(super) chain: String,
}

impl AuthorityFlags {
    /// The certificate's file.
    pub(super) fn certificate(&self, role: CaRole) -> PathBuf {
        self.ca_cert.clone().unwrap_or_else(|| self.dir.join(role.file()).with_extension("crt"))
    }

    /// Reads the authority for this kind of certificate; asks for the passphrase of its key, if it has one.
    pub(super) fn open(&self, role: CaRole) -> Result<IssuingCa, CommandError> {
        let certificate = self.certificate(role);
        let key = match &self.ca_key {
            Some(key) => AuthorityKeySource::parse(key),
            None => AuthorityKeySource::File(self.dir.join(role.file()).with_extension("key")),
        };
        // Not `exists`: a directory that may not be read is another mistake than a file that is not there.
        if self.ca_cert.is_none() && matches!(certificate.try_exists(), Ok(false)) {
            return Err(CommandError::Failed(format!(
                "{}: there is no such authority; make one with: portcullis certs init --dir {}, or name another one \
                 with --ca-cert and --ca-key",
                certificate.display(),
                self.dir.display()
            )));
        }
        let authority = match &key {
            AuthorityKeySource::File(file) => self.with_key_file(&certificate, file)?,
            AuthorityKeySource::Pkcs11(_) => CertificateAuthority::load(&certificate, &key)
                .map_err(|error| CommandError::Failed(error.to_string()))?,
        };
        let chain = if is_self_signed(authority.certificate_pem()) {
            String::new()
        } else {
            authority.certificate_pem().to_owned()
        };
        Ok(IssuingCa { authority, index: IssuanceIndex::beside(&certificate), chain })
    }

    fn with_key_file(&self, certificate: &Path, file: &Path) -> Result<CertificateAuthority, CommandError> {
        let read = |path: &Path| {
            let read = std::fs::read(path).map(Zeroizing::new);
            read.map_err(|error| CommandError::about(path.display(), error))
        };
        let certificate_pem = read(certificate)?;
        let key_pem = read(file)?;
        let key = match PemKey::from_pem(&key_pem) {
            Err(PrivateKeyError::Encrypted) => {
                PemKey::from_encrypted_pem(&key_pem, &self.passphrase.to_open(file)?)
            }
            read => read,
        };
        let key = key.map_err(|error| CommandError::about(file.display(), error))?;
        CertificateAuthority::new(&certificate_pem, Box::new(key)).map_err(|error| {
            CommandError::Failed(format!("{} and {}: {error}", certificate.display(), file.display()))
        })
    }
}

impl IssuingCa {
    /// Writes down what was signed; until then it is not handed out.
    pub(super) fn record(&self, entry: &IndexEntry) -> Result<(), CommandError> {
        self.index
            .record(std::slice::from_ref(entry))
            .map_err(|error| CommandError::Failed(error.to_string()))
    }
}

fn is_self_signed(certificate_pem: &str) -> bool {
    let Some((block, _)) = pem::decode(certificate_pem.as_bytes()) else { return false };
    let parsed = x509_parser::parse_x509_certificate(&block.content);
    parsed.is_ok_and(|(_, certificate)| certificate.subject() == certificate.issuer())
}
