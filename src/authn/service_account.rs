//! Service-account tokens.

use std::sync::Arc;

use super::jwt::keys::PublicKey;

/// Which service-account tokens are taken.
#[derive(Debug, Clone)]
pub struct ServiceAccounts {
    /// The issuers of bound tokens; may be empty, then only legacy tokens are taken.
    pub issuers: Vec<String>,
    /// The keys of both kinds.
    pub keys: Keys,
    /// Whether the secret and the service account of a legacy token must still be there.
    pub lookup: bool,
}

/// Where the keys of service-account tokens come from.
#[derive(Debug, Clone)]
pub enum Keys {
    /// From files; at least one.
    Files(Arc<Vec<PublicKey>>),
    /// From the API server's own key set.
    Backend,
}
