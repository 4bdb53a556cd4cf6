//! The API server of one cluster: its endpoints, and what every request to any of them is written by.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use http::uri::Authority;
use rustls::crypto::CryptoProvider;
use tokio::time::sleep;

use crate::backend::endpoint::{Connectors, Target};
use crate::backend::settings::Backend;
use crate::http::identity_headers::RequestHeaderNames;
use crate::user::IdentityMode;

/// How often somebody who waits for an endpoint looks whether there is one.
const LOOK: Duration = Duration::from_millis(50);

/// An API server and its endpoints.
pub(crate) struct Upstream {
    backend: Backend,
    targets: Vec<Arc<Target>>,
    /// What stands for it in `Host` when the client's own does not pass.
    pub(crate) authority: Authority,
    /// What the gateway shows in `Authorization`.
    pub(crate) authorization: Option<HeaderValue>,
    /// The headers it reads identities from beside the standard ones, as far as the configuration or it says so.
    pub(crate) identity_headers: ArcSwapOption<RequestHeaderNames>,
    /// Whether a request was refused since a check was good, because no endpoint could be used.
    away: AtomicBool,
}

impl Upstream {
    /// Prepares an API server.
    pub(crate) fn new(backend: &Backend, provider: &Arc<CryptoProvider>) -> Result<Self, rustls::Error> {
        let connectors = Connectors::new(backend, provider)?;
        let general = |text: &str| rustls::Error::General(text.to_owned());
        let authorization = match &backend.bearer_token {
            Some(token) => {
                let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
                    .map_err(|_| general("the bearer token cannot be sent in a header"))?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        let first = backend.endpoints.first().ok_or_else(|| general("there is no endpoint"))?;
        Ok(Self {
            targets: backend
                .endpoints
                .iter()
                .map(|endpoint| Arc::new(Target::new(endpoint, &connectors)))
                .collect(),
            authority: first
                .address
                .to_string()
                .parse()
                .map_err(|_| general(&format!("{} is no host and port", first.address)))?,
            authorization,
            identity_headers: ArcSwapOption::from_pointee(backend.identity_headers.clone()),
            away: AtomicBool::new(false),
            backend: backend.clone(),
        })
    }

    /// Whether it was made from the same settings, so that its connections can go on.
    pub(crate) fn is_for(&self, backend: &Backend) -> bool {
        self.backend == *backend
    }

    /// Whether it is of the cluster that these settings are for.
    pub(crate) fn serves_for(&self, backend: &Backend) -> bool {
        self.backend.is_of_the_cluster_of(backend)
    }

    /// Whether the configuration names the headers that it reads identities from.
    pub(crate) fn has_configured_identity_headers(&self) -> bool {
        self.backend.identity_headers.is_some()
    }

    /// Takes the names of the headers that an endpoint says it reads identities from. Those that are known stay: of the
    /// configuration, and of other endpoints, which may have other flags.
    pub(crate) fn learn_identity_headers(&self, told: &RequestHeaderNames) {
        self.identity_headers.rcu(|known| {
            Some(Arc::new(known.as_ref().map_or_else(|| told.clone(), |known| known.union(told))))
        });
    }

    /// Its endpoints, in the order of the configuration.
    pub(crate) fn targets(&self) -> &[Arc<Target>] {
        &self.targets
    }

    /// The endpoints that requests may go to, those first that are likely to be there.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = &Arc<Target>> {
        let avoided = |target: &&Arc<Target>| self.targets.len() > 1 && target.is_unreachable();
        let trusted = || self.targets.iter().filter(|target| target.is_trusted());
        trusted().filter(move |target| !avoided(target)).chain(trusted().filter(avoided))
    }

    /// Whether requests may go to any of them.
    pub(crate) fn is_trusted(&self) -> bool {
        self.targets.iter().any(|target| target.is_trusted())
    }

    /// Waits until requests may go to one of them.
    pub(crate) async fn until_trusted(&self) {
        while !self.is_trusted() {
            sleep(LOOK).await;
        }
    }

    /// Whether every endpoint was looked at.
    pub(crate) fn is_checked(&self) -> bool {
        self.targets.iter().all(|target| target.is_checked())
    }

    /// Has every endpoint checked soon.
    pub(crate) fn doubt(&self) {
        self.targets.iter().for_each(|target| target.doubt());
    }

    /// Notes that a request was refused because no endpoint can be used; says whether it is the first.
    pub(crate) fn note_away(&self) -> bool {
        !self.away.swap(true, Ordering::Relaxed)
    }

    /// Notes that an endpoint can be used.
    pub(crate) fn note_there(&self) {
        self.away.store(false, Ordering::Relaxed);
    }

    /// How it is told who a request is made by.
    pub(crate) fn identity(&self) -> IdentityMode {
        self.backend.identity
    }

    /// What precedes every path there.
    pub(crate) fn path_prefix(&self) -> &str {
        &self.backend.path_prefix
    }
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream").field("targets", &self.targets).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use rustls::RootCertStore;
    use rustls::crypto::aws_lc_rs::default_provider;

    use super::*;
    use crate::backend::settings::{Endpoint, HostPort, TrustedRoots};

    /// An API server that nobody has checked.
    pub(crate) fn upstream() -> Upstream {
        let endpoint = Endpoint {
            address: HostPort { host: "backend.test".to_owned(), port: 6443 },
            server_name: "backend.test".try_into().unwrap(),
        };
        let backend = Backend {
            endpoints: vec![endpoint],
            path_prefix: String::new(),
            roots: TrustedRoots(Arc::new(RootCertStore::empty())),
            client_certificate: None,
            bearer_token: None,
            identity: IdentityMode::Impersonate,
            identity_headers: None,
        };
        Upstream::new(&backend, &Arc::new(default_provider())).unwrap()
    }
}
