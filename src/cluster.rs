//! The clusters behind the gateway: which request is for which, who their clients are, where they are.

pub(crate) mod authenticators;
pub(crate) mod jwt_issuers;
pub(crate) mod router;
pub mod settings;
pub(crate) mod token_objects;

use std::sync::Arc;

use http::HeaderName;

use crate::authn::Audience;
use crate::authn::chain::AuthnChain;
use crate::backend::upstream::Upstream;
use crate::http::identity_headers::RequestHeaderNames;

/// One cluster of one generation of the configuration. Everything that is decided for its requests hangs on it, so
/// that nothing of another cluster can be used for them by mistake.
// threat: other-cluster
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Its name in logs, metrics and health checks.
    pub(crate) name: String,
    /// Who clients are.
    pub(crate) chain: AuthnChain,
    /// The audiences of this API server.
    pub(crate) audiences: Vec<Audience>,
    /// The front-proxy headers that are taken out of every request beside the standard ones.
    pub(crate) front_proxy: Option<Arc<RequestHeaderNames>>,
    /// Where requests go.
    pub(crate) upstream: Arc<Upstream>,
    /// Where they will go, once it was seen to take identities as they are; until then the old one stays in force.
    pub(crate) waiting: Option<Arc<Upstream>>,
}

impl Cluster {
    /// Whether a front proxy of this cluster's clients writes identities into this header.
    pub(crate) fn is_front_proxy_header(&self, name: &HeaderName) -> bool {
        self.front_proxy.as_ref().is_some_and(|names| names.contains(name))
    }
}
