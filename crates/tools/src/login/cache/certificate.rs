//! Cached client certificates with their keys, and requests that wait for a certificate.

use serde::{Deserialize, Serialize};

use super::store::FilePrivacy;
use super::{CacheEntry, CacheError, SecretText, VERSION};
use crate::login::settings::ClientSettings;

/// The certificate of a login at one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(in crate::login) struct CachedCertificate {
    version: u32,
    /// Repeated from the key, for people.
    issuer: String,
    #[serde(rename = "clientID")]
    client_id: String,
    server: String,
    /// The user of the ID token; a login of another user makes the certificate void.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::login) subject: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::login) issued: Option<IssuedCertificate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::login) pending: Option<PendingRequest>,
}

/// A certificate, with its chain and key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(in crate::login) struct IssuedCertificate {
    /// PEM.
    pub(in crate::login) certificate: String,
    /// PEM.
    pub(in crate::login) key: SecretText,
    /// When the certificate expires, in seconds since 1970.
    pub(in crate::login) expires_at: u64,
    /// When the certificate was received, by this machine's clock.
    pub(in crate::login) received_at: u64,
}

/// A request that was created and has no certificate yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(in crate::login) struct PendingRequest {
    pub(in crate::login) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::login) uid: Option<String>,
    /// PEM of the PKCS#10 request.
    pub(in crate::login) request: String,
    /// PEM.
    pub(in crate::login) key: SecretText,
}

impl CachedCertificate {
    pub(in crate::login) fn new(settings: &ClientSettings, server: &str, subject: Option<String>) -> Self {
        Self {
            version: VERSION,
            issuer: settings.issuer.clone(),
            client_id: settings.client_id.clone(),
            server: server.to_owned(),
            subject,
            issued: None,
            pending: None,
        }
    }
}

impl CacheEntry {
    /// The certificate, if there is one.
    pub(in crate::login) async fn read_certificate(&self) -> Result<Option<CachedCertificate>, CacheError> {
        self.read_document(FilePrivacy::Private).await
    }

    /// Replaces the certificate.
    pub(in crate::login) async fn write_certificate(
        &self,
        certificate: &CachedCertificate,
    ) -> Result<(), CacheError> {
        self.write_document(certificate).await
    }
}
