//! Reads the files of a signing CA. Rejects a key that does not match and a certificate that is not valid now.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use portcullis_go::time;
use portcullis_pki::issuance::authority::{
    AbsentToken, AuthorityError, AuthorityKeyPairError, AuthorityKeySource, CertificateAuthority,
};
use portcullis_pki::issuance::profile::CertificateProfile;
use portcullis_pki::issuance::signer::PrivateKeyError;
use portcullis_system::clock::UnixTime;

use crate::config::error::ConfigError;
use crate::config::resolve::ConfigResolver;
use crate::config::sections::KeyLocation;

/// The files of an authority's certificate and key, and the configuration keys that name them.
#[derive(Debug, Clone)]
pub(crate) struct AuthorityFiles {
    cert_key: String,
    cert: PathBuf,
    key_key: String,
    key: AuthorityKeySource,
}

impl AuthorityFiles {
    pub(super) fn new(cert_place: &KeyLocation, cert: &Path, key_place: &KeyLocation, key: &str) -> Self {
        let key = match AuthorityKeySource::parse(key) {
            AuthorityKeySource::File(file) => AuthorityKeySource::File(key_place.path(&file)),
            uri @ AuthorityKeySource::Pkcs11(_) => uri,
        };
        Self {
            cert_key: cert_place.key.clone(),
            cert: cert_place.path(cert),
            key_key: key_place.key.clone(),
            key,
        }
    }

    /// The configuration key and the file of the certificate.
    pub(crate) fn certificate(&self) -> (&str, &Path) {
        (&self.cert_key, &self.cert)
    }

    /// The configuration key of the key, and its file or URI.
    pub(crate) fn key(&self) -> (&str, &AuthorityKeySource) {
        (&self.key_key, &self.key)
    }
}

impl ConfigResolver<'_> {
    /// The authority in these files, and a digest of their content.
    pub(super) fn authority(
        &mut self,
        files: &AuthorityFiles,
    ) -> Option<(Arc<CertificateAuthority>, Vec<u8>)> {
        let AuthorityFiles { cert_key, cert, key_key, key } = files;
        let mut digest = Context::new(&SHA256);
        let certificate_pem = self.read(cert_key, cert);
        let key_pem = match key {
            AuthorityKeySource::File(file) => self.read(key_key, file),
            AuthorityKeySource::Pkcs11(uri) => Some(uri.clone().into_bytes()),
        };
        let (certificate_pem, key_pem) = (certificate_pem?, key_pem?);
        for part in [&certificate_pem, &key_pem] {
            digest.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            digest.update(part);
        }
        let digest = digest.finish().as_ref().to_vec();
        let now = self.inputs.now();
        let made = self.inputs.authority(&digest, || {
            // A token may come back. Without it nothing is signed; clients are authenticated all the same.
            let authority =
                CertificateAuthority::read(cert, &certificate_pem, key, &key_pem, AbsentToken::Awaited)?;
            if authority.is_expired(now) {
                return Err(UnusableAuthority::Expired(authority.not_after()));
            }
            if now < authority.not_before() {
                return Err(UnusableAuthority::NotYetValid(authority.not_before()));
            }
            Ok(authority)
        });
        let authority = made.map_err(|unfit| {
            let (of_key, fix) = match unfit.pair() {
                Some(AuthorityKeyPairError::Key(
                    PrivateKeyError::Encrypted | PrivateKeyError::TraditionalEncryption,
                )) => (true, DECRYPT),
                Some(AuthorityKeyPairError::Mismatch | AuthorityKeyPairError::Key(_)) => (true, FIT),
                Some(AuthorityKeyPairError::Empty(_)) => (!certificate_pem.is_empty(), FIT),
                None if matches!(unfit, UnusableAuthority::Authority(AuthorityError::TokenKey { .. })) => {
                    (true, unfit.fix())
                }
                Some(_) | None => (false, unfit.fix()),
            };
            if !of_key {
                let error = ConfigError::new(cert_key, unfit.to_string()).fix(unfit.fix());
                // The other texts name the file, as kube-controller-manager's do.
                let is_ours =
                    matches!(unfit, UnusableAuthority::Expired(_) | UnusableAuthority::NotYetValid(_));
                return if is_ours { error.in_file(cert) } else { error };
            }
            let error = ConfigError::new(key_key, unfit.to_string()).fix(fix);
            // kube-controller-manager's texts name only the file of the certificate.
            if let AuthorityKeySource::File(file) = key { error.in_file(file) } else { error }
        });
        let authority = self.ok(authority)?;
        if authority.is_expired(now) {
            // It expired after it was loaded. An error would block every other change, revocations included.
            let end = time::format_since_epoch(authority.not_after());
            self.warnings.push(format!(
                "{cert_key}: the CA certificate has expired: NotAfter={end}: nothing is signed until it is replaced"
            ));
        }
        if let Some(Err(problem)) = authority.token_problem() {
            self.warnings.push(format!(
                "{key_key}: nothing is signed until the token of the CA key is back: {problem}"
            ));
        }
        Some((authority, digest))
    }

    /// Whether verifiers would accept the certificates that this authority signs for the profile.
    // threat: authority-limits
    pub(super) fn fits(
        &mut self,
        files: &AuthorityFiles,
        authority: &CertificateAuthority,
        profile: &CertificateProfile,
    ) -> bool {
        let Err(limit) = authority.is_fit_for(profile) else { return true };
        let error = ConfigError::new(&files.cert_key, format!("{}: {limit}", profile.signer_name()));
        let fix = "give this signer a CA certificate for that purpose, or one without extended key usages";
        self.errors.push(error.fix(fix).in_file(&files.cert));
        false
    }
}

const FIT: &str = "give the private key of the certificate";

/// Encrypted keys are not supported: a file with the passphrase would protect no more than the mode of the key file.
const DECRYPT: &str = "encrypted keys are not supported: decrypt it into a file that only the gateway can read \
                       (openssl pkey -in ENCRYPTED -out KEY), or keep the key in a token (pkcs11:)";

/// Why an authority cannot be used.
#[derive(Debug, thiserror::Error)]
enum UnusableAuthority {
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// kube-controller-manager starts, but cannot sign.
    #[error("the CA certificate has expired: NotAfter={}", time::format_since_epoch(*.0))]
    Expired(UnixTime),
    /// kube-controller-manager starts, and signs certificates that are not valid yet.
    #[error("the CA certificate is not valid yet: NotBefore={}", time::format_since_epoch(*.0))]
    NotYetValid(UnixTime),
}

impl UnusableAuthority {
    /// The mismatch of certificate and key, if that is the error.
    fn pair(&self) -> Option<&AuthorityKeyPairError> {
        match self {
            Self::Authority(AuthorityError::Pair(reason) | AuthorityError::Files { reason, .. }) => {
                Some(reason)
            }
            Self::Authority(AuthorityError::Read { .. } | AuthorityError::TokenKey { .. })
            | Self::Expired(_)
            | Self::NotYetValid(_) => None,
        }
    }

    fn fix(&self) -> &'static str {
        match self {
            Self::Authority(AuthorityError::TokenKey { .. }) => {
                "give the pkcs11: URI of a key that can sign, or a PEM file"
            }
            Self::Authority(_) => "give exactly one CA certificate, and its own key",
            Self::Expired(_) => "give a CA certificate that is valid",
            Self::NotYetValid(_) => "give a CA certificate that is valid, and check the clock of the gateway",
        }
    }
}
