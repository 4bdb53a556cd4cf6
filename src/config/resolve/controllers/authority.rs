//! The files of an authority: read, found to fit together, and not expired.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};

use crate::clock::{UnixTime, rfc3339};
use crate::config::error::ConfigError;
use crate::config::resolve::Resolver;
use crate::config::sections::Place;
use crate::pki::issuance::authority::{
    AuthorityError, AuthorityKeyPairError, AuthorityKeySource, CertificateAuthority,
};
use crate::pki::issuance::profile::CertificateProfile;
use crate::pki::issuance::signer::PrivateKeyError;

/// Where the certificate and the key of an authority are, and what errors call the two.
pub(super) struct Files {
    cert_key: String,
    cert: PathBuf,
    key_key: String,
    key: AuthorityKeySource,
}

impl Files {
    pub(super) fn new(cert_place: &Place, cert: &Path, key_place: &Place, key: &str) -> Self {
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

    /// The key of the certificate in the configuration, and its file.
    pub(super) fn certificate(&self) -> (&str, &Path) {
        (&self.cert_key, &self.cert)
    }
}

impl Resolver<'_> {
    /// The authority in these files, and a digest of what it was made of.
    pub(super) fn authority(&mut self, files: &Files) -> Option<(Arc<CertificateAuthority>, Vec<u8>)> {
        let Files { cert_key, cert, key_key, key } = files;
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
            let authority = CertificateAuthority::read(cert, &certificate_pem, key, &key_pem)?;
            if authority.is_expired(now) {
                return Err(Unfit::Expired(authority.not_after()));
            }
            if now < authority.not_before() {
                return Err(Unfit::NotYetValid(authority.not_before()));
            }
            Ok(authority)
        });
        let authority = made.map_err(|unfit| {
            let (of_key, fix) = match unfit.pair() {
                Some(AuthorityKeyPairError::Key(PrivateKeyError::Encrypted)) => (true, DECRYPT),
                Some(AuthorityKeyPairError::Mismatch | AuthorityKeyPairError::Key(_)) => (true, FIT),
                Some(AuthorityKeyPairError::Empty(_)) => (!certificate_pem.is_empty(), FIT),
                None if matches!(unfit, Unfit::Authority(AuthorityError::TokenKey { .. })) => {
                    (true, unfit.fix())
                }
                Some(_) | None => (false, unfit.fix()),
            };
            if !of_key {
                let error = ConfigError::new(cert_key, unfit.to_string()).fix(unfit.fix());
                // The other texts name the file, as upstream's do.
                let is_ours = matches!(unfit, Unfit::Expired(_) | Unfit::NotYetValid(_));
                return if is_ours { error.in_file(cert) } else { error };
            }
            let error = ConfigError::new(key_key, unfit.to_string()).fix(fix);
            // Upstream's texts name the file of the certificate alone.
            if let AuthorityKeySource::File(file) = key { error.in_file(file) } else { error }
        });
        let authority = self.ok(authority)?;
        if authority.is_expired(now) {
            // It was good when it was taken. As an error it would hold up every other change, revocations among them.
            let end = rfc3339(authority.not_after());
            self.warnings.push(format!(
                "{cert_key}: the CA certificate has expired: NotAfter={end}: nothing is signed until there is another"
            ));
        }
        Some((authority, digest))
    }

    /// Whether verifiers would accept what the profile signs by this authority.
    // threat: authority-limits
    pub(super) fn fits(
        &mut self,
        files: &Files,
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

/// A passphrase in a file beside the key would protect nothing that the key's own mode does not.
const DECRYPT: &str = "serve reads no encrypted keys: decrypt it into a file that the gateway alone can read \
                       (openssl pkey -in ENCRYPTED -out KEY), or keep the key in a token (pkcs11:)";

/// Why an authority is not taken.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// kube-controller-manager starts, and then cannot sign anything.
    #[error("the CA certificate has expired: NotAfter={}", rfc3339(*.0))]
    Expired(UnixTime),
    /// kube-controller-manager starts, and signs what is not valid yet either.
    #[error("the CA certificate is not valid yet: NotBefore={}", rfc3339(*.0))]
    NotYetValid(UnixTime),
}

impl Unfit {
    /// What does not fit together.
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
            Self::NotYetValid(_) => {
                "give a CA certificate that is valid, and look whether the clock is right"
            }
        }
    }
}
