//! What authenticators ask the cluster's API server: only what they judge by, and never a whole object.
//!
//! [`Lookup`] is the seam; the implementation answers from watches and reads live what they do not know.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use secrecy::SecretSlice;

use super::BoxFuture;
use crate::clock::UnixTime;

/// The answer to a lookup: `Ok(None)` if there is no such object.
pub type Found<T> = Result<Option<Arc<T>>, LookupError>;

/// The API server could not be asked, or did not answer. The text is for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LookupError(pub String);

/// Asks the API server of one cluster as `system:portcullis`.
pub trait Lookup: Send + Sync + fmt::Debug {
    /// A service account.
    fn service_account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Found<ServiceAccount>>;
    /// A secret.
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Found<Secret>>;
    /// A secret in `kube-system` that anybody can name by making a token up: few of these are read live.
    fn bootstrap_secret<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Found<Secret>>;
    /// A pod.
    fn pod<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Found<Identity>>;
    /// A node.
    fn node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Found<Identity>>;
    /// Writes a label of a secret, in its own time; a failure is logged and nothing else.
    fn label_secret(&self, namespace: &str, name: &str, label: &'static str, value: String);
}

/// Which object this is, and whether it is on its way out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.deletionTimestamp`.
    pub deleted: Option<UnixTime>,
}

/// A service account, as far as tokens are judged by it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceAccount {
    /// Which one it is.
    pub identity: Identity,
    /// The names in `.secrets`.
    pub secrets: Vec<String>,
}

/// A secret. Its data is shown nowhere.
#[derive(Debug, Clone, Default)]
pub struct Secret {
    /// Which one it is.
    pub identity: Identity,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its type.
    pub kind: String,
    /// Its data, decoded.
    pub data: BTreeMap<String, SecretSlice<u8>>,
}
