//! Objects of the backend cluster that token authenticators read, reduced to the fields that they check.
//!
//! [`TokenGetter`] is the interface. Its implementation answers from watch caches and sends a GET for an object that
//! they do not hold.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use portcullis_limits::Owner;
use portcullis_system::clock::UnixTime;
use secrecy::SecretSlice;

use super::BoxFuture;

/// Result of a read; `Ok(None)` if the object does not exist.
pub type GetResult<T> = Result<Option<Arc<T>>, TokenGetterError>;

/// The API server could not be reached or did not answer. The text is for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TokenGetterError(pub String);

/// Reads objects from the API server of one cluster as `system:portcullis`.
// kubernetes: pkg/serviceaccount, ServiceAccountTokenGetter
pub trait TokenGetter: Send + Sync + fmt::Debug {
    /// Reads a service account.
    fn service_account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, GetResult<ServiceAccount>>;
    /// Reads a secret.
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, GetResult<Secret>>;
    /// Reads a secret in `kube-system`. A made-up token can name any of them, so live reads are rate limited, for all owners and
    /// for each one.
    fn bootstrap_secret<'a>(&'a self, name: &'a str, owner: &'a Owner) -> BoxFuture<'a, GetResult<Secret>>;
    /// Reads a pod.
    fn pod<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, GetResult<ObjectIdentity>>;
    /// Reads a node.
    fn node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, GetResult<ObjectIdentity>>;
    /// Patches a label of a secret in the background; a failure is only logged.
    fn label_secret(&self, namespace: &str, name: &str, label: &'static str, value: String);
}

/// Identity of an object, and its deletion time once deletion has begun.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectIdentity {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.deletionTimestamp`.
    pub deleted: Option<UnixTime>,
}

/// The fields of a service account that token checks use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceAccount {
    /// UID and deletion time.
    pub identity: ObjectIdentity,
    /// The names in `secrets`.
    pub secrets: Vec<String>,
}

/// The fields of a secret that token checks use. `Debug` does not print its data.
#[derive(Debug, Clone, Default)]
pub struct Secret {
    /// UID and deletion time.
    pub identity: ObjectIdentity,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `type`.
    pub kind: String,
    /// `data`, base64-decoded.
    pub data: BTreeMap<String, SecretSlice<u8>>,
}
