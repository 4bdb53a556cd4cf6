//! The backend of a cluster: its API servers (endpoints), the connections to them, and the gateway's own clients.
//!
//! Requests go only to endpoints that have passed the identity self-check. Nothing here decides who a client is or
//! what it may do.

mod client_certificate;
pub(crate) mod endpoint;
mod http2;
pub(crate) mod kube_client;
mod lanes;
pub(crate) mod pool;
pub(crate) mod pools;
pub(crate) mod probe;
pub mod settings;
mod shares;
pub(crate) mod sharing;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use rustls::crypto::CryptoProvider;
use tokio::time::sleep;

use crate::backend::endpoint::{Connectors, Endpoint};
use crate::http::identity_headers::RequestHeaderNames;
use crate::user::IdentityMode;

/// How often somebody who waits for an endpoint looks whether there is one.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// An API server and its endpoints.
pub(crate) struct Backend {
    settings: settings::Backend,
    endpoints: Vec<Arc<Endpoint>>,
    /// What stands for it in `Host` when the client's own does not pass.
    authority: Authority,
    /// What the gateway shows in `Authorization`.
    authorization: Option<HeaderValue>,
    /// The headers it reads identities from beside the standard ones, as far as the configuration or it says so.
    pub(crate) identity_headers: ArcSwapOption<RequestHeaderNames>,
    /// Whether a request was refused since a check was good, because no endpoint could be used.
    away: AtomicBool,
}

impl Backend {
    /// Prepares an API server.
    pub(crate) fn new(
        settings: &settings::Backend,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, rustls::Error> {
        let connectors = Connectors::new(settings, provider)?;
        let general = |text: &str| rustls::Error::General(text.to_owned());
        let authorization = match &settings.bearer_token {
            Some(token) => {
                let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
                    .map_err(|_| general("the bearer token cannot be sent in a header"))?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        let first = settings.endpoints.first().ok_or_else(|| general("there is no endpoint"))?;
        Ok(Self {
            endpoints: settings
                .endpoints
                .iter()
                .map(|endpoint| Arc::new(Endpoint::new(endpoint, &connectors)))
                .collect(),
            authority: first
                .address
                .to_string()
                .parse()
                .map_err(|_| general(&format!("{} is no host and port", first.address)))?,
            authorization,
            identity_headers: ArcSwapOption::from_pointee(settings.identity_headers.clone()),
            away: AtomicBool::new(false),
            settings: settings.clone(),
        })
    }

    /// Whether it was made from the same settings, so that its connections can go on.
    pub(crate) fn is_for(&self, settings: &settings::Backend) -> bool {
        self.settings == *settings
    }

    /// Whether it is of the cluster that these settings are for.
    pub(crate) fn serves_for(&self, settings: &settings::Backend) -> bool {
        self.settings.is_of_the_cluster_of(settings)
    }

    /// Whether the configuration names the headers that it reads identities from.
    pub(crate) fn has_configured_identity_headers(&self) -> bool {
        self.settings.identity_headers.is_some()
    }

    /// Takes the names of the headers that an endpoint says it reads identities from. Those that are known stay: of the
    /// configuration, and of other endpoints, which may have other flags.
    pub(crate) fn learn_identity_headers(&self, told: &RequestHeaderNames) {
        self.identity_headers.rcu(|known| {
            Some(Arc::new(known.as_ref().map_or_else(|| told.clone(), |known| known.union(told))))
        });
    }

    /// Its endpoints, in the order of the configuration.
    pub(crate) fn endpoints(&self) -> &[Arc<Endpoint>] {
        &self.endpoints
    }

    /// The endpoints that requests may go to, those first that are likely to be there.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = &Arc<Endpoint>> {
        let avoided = |endpoint: &&Arc<Endpoint>| self.endpoints.len() > 1 && endpoint.is_unreachable();
        let trusted = || self.endpoints.iter().filter(|endpoint| endpoint.is_trusted());
        trusted().filter(move |endpoint| !avoided(endpoint)).chain(trusted().filter(avoided))
    }

    /// Whether requests may go to any of them.
    pub(crate) fn is_trusted(&self) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.is_trusted())
    }

    /// Waits until requests may go to one of them.
    pub(crate) async fn until_trusted(&self) {
        while !self.is_trusted() {
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Whether every endpoint was looked at.
    pub(crate) fn is_checked(&self) -> bool {
        self.endpoints.iter().all(|endpoint| endpoint.is_checked())
    }

    /// Has every endpoint checked soon.
    pub(crate) fn request_recheck(&self) {
        self.endpoints.iter().for_each(|endpoint| endpoint.request_recheck());
    }

    /// Notes that a request was refused because no endpoint can be used; says whether it is the first.
    pub(crate) fn note_unavailable(&self) -> bool {
        !self.away.swap(true, Ordering::Relaxed)
    }

    /// Notes that an endpoint can be used.
    pub(crate) fn note_available(&self) {
        self.away.store(false, Ordering::Relaxed);
    }

    /// The URI of a path at this backend, below its path prefix. `authority` is the client's, where it is passed on.
    pub(crate) fn uri(&self, authority: Option<Authority>, path: PathAndQuery) -> Result<Uri, http::Error> {
        let path = match self.path_prefix() {
            // A query alone is a valid target over HTTP/1.1 only.
            "" if path.as_str().starts_with('?') => PathAndQuery::try_from(format!("/{}", path.as_str()))?,
            "" => path,
            prefix => PathAndQuery::try_from(format!("{prefix}{path}"))?,
        };
        let authority = authority.unwrap_or_else(|| self.authority.clone());
        Uri::builder().scheme(Scheme::HTTPS).authority(authority).path_and_query(path).build()
    }

    /// Adds the gateway's bearer token for this backend, if it has one.
    pub(crate) fn add_credential(&self, headers: &mut HeaderMap) {
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
    }

    /// How it is told who a request is made by.
    pub(crate) fn identity(&self) -> IdentityMode {
        self.settings.identity
    }

    /// What precedes every path there.
    pub(crate) fn path_prefix(&self) -> &str {
        &self.settings.path_prefix
    }
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use rustls::RootCertStore;
    use rustls::crypto::aws_lc_rs::default_provider;

    use super::*;
    use crate::backend::settings::{self, HostPort, TrustedRoots};

    /// An API server that nobody has checked.
    pub(crate) fn backend() -> Backend {
        let endpoint = settings::Endpoint {
            address: HostPort { host: "settings.test".to_owned(), port: 6443 },
            server_name: "settings.test".try_into().unwrap(),
        };
        let settings = settings::Backend {
            endpoints: vec![endpoint],
            path_prefix: String::new(),
            roots: TrustedRoots(Arc::new(RootCertStore::empty())),
            client_certificate: None,
            bearer_token: None,
            identity: IdentityMode::Impersonate,
            identity_headers: None,
        };
        Backend::new(&settings, &Arc::new(default_provider())).unwrap()
    }
}
