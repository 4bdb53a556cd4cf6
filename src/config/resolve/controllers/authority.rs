//! The files of an authority: read, found to fit together, and not expired.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};

use crate::certificates::authority::{Authority, AuthorityError, KeySource, PairError};
use crate::clock::{UnixTime, rfc3339};
use crate::config::error::ConfigError;
use crate::config::resolve::Resolver;
use crate::config::sections::Place;

/// Where the certificate and the key of an authority are, and what errors call the two.
pub(super) struct Files {
    cert_key: String,
    cert: PathBuf,
    key_key: String,
    key: KeySource,
}

impl Files {
    pub(super) fn new(cert_place: &Place, cert: &Path, key_place: &Place, key: &str) -> Self {
        let key = match KeySource::parse(key) {
            KeySource::File(file) => KeySource::File(key_place.path(&file)),
            uri @ KeySource::Pkcs11(_) => uri,
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
    pub(super) fn authority(&mut self, files: &Files) -> Option<(Arc<Authority>, Vec<u8>)> {
        let Files { cert_key, cert, key_key, key } = files;
        let mut digest = Context::new(&SHA256);
        let certificate_pem = self.read(cert_key, cert);
        let key_pem = match key {
            KeySource::File(file) => self.read(key_key, file),
            KeySource::Pkcs11(uri) => Some(uri.clone().into_bytes()),
        };
        let (certificate_pem, key_pem) = (certificate_pem?, key_pem?);
        for part in [&certificate_pem, &key_pem] {
            digest.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            digest.update(part);
        }
        let digest = digest.finish().as_ref().to_vec();
        let now = self.inputs.now();
        let made = self.inputs.authority(&digest, || {
            let authority = Authority::read(cert, &certificate_pem, key, &key_pem)?;
            if authority.is_expired(now) { Err(Unfit::Expired(authority.not_after())) } else { Ok(authority) }
        });
        let authority = made.map_err(|unfit| {
            let of_key = match unfit.pair() {
                Some(PairError::Mismatch | PairError::Key(_)) => true,
                Some(PairError::Empty(_)) => !certificate_pem.is_empty(),
                Some(_) | None => false,
            };
            if !of_key {
                let error = ConfigError::new(cert_key, unfit.to_string()).fix(unfit.fix());
                // The other texts name the file, as upstream's do.
                return if matches!(unfit, Unfit::Expired(_)) { error.in_file(cert) } else { error };
            }
            let error = ConfigError::new(key_key, unfit.to_string());
            let error = error.fix("give the private key of the certificate");
            // Upstream's texts name the file of the certificate alone.
            if let KeySource::File(file) = key { error.in_file(file) } else { error }
        });
        let authority = self.ok(authority)?;
        if authority.not_before() > now {
            let begin = rfc3339(authority.not_before());
            self.warnings.push(format!(
                "{cert_key}: {}: the CA certificate is not valid before {begin}: what it signs is not believed until \
                 then",
                cert.display()
            ));
        }
        if authority.is_expired(now) {
            // It was good when it was taken. As an error it would hold up every other change, revocations among them.
            let end = rfc3339(authority.not_after());
            self.warnings.push(format!(
                "{cert_key}: the CA certificate has expired: NotAfter={end}: nothing is signed until there is another"
            ));
        }
        Some((authority, digest))
    }
}

/// Why an authority is not taken.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// kube-controller-manager starts, and then cannot sign anything.
    #[error("the CA certificate has expired: NotAfter={}", rfc3339(*.0))]
    Expired(UnixTime),
}

impl Unfit {
    /// What does not fit together.
    fn pair(&self) -> Option<&PairError> {
        match self {
            Self::Authority(AuthorityError::Pair(reason) | AuthorityError::Files { reason, .. }) => {
                Some(reason)
            }
            Self::Authority(AuthorityError::Read { .. }) | Self::Expired(_) => None,
        }
    }

    fn fix(&self) -> &'static str {
        match self {
            Self::Authority(_) => "give exactly one CA certificate, and its own key",
            Self::Expired(_) => "give a CA certificate that is valid",
        }
    }
}
