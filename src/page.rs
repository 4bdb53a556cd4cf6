//! The page on which users find their clusters: they log in with the OpenID provider, see the clusters that they may
//! reach, and download kubeconfigs without a secret.
//!
//! It has a listener, a thread and a host name of its own, never the API's: what an application behind the API shows in a
//! browser has the API's origin, and could read a page there. The page keeps no state: a session is a sealed cookie. It
//! works without scripts, and allows none.
//!
//! | file | purpose |
//! |---|---|
//! | [`listener`] | connections, limits and the layers of `tower-http` |
//! | [`routes`] | which requests are answered at all, and by which function |
//! | [`login`] | the authorization code flow |
//! | [`session`] | what a session is, and its cookies |
//! | [`sealing`], [`cookies`] | how values are kept in a browser |
//! | [`clusters`] | which clusters a user may reach, as the gateway's own request path decides |
//! | [`kubeconfig`] | the downloads |
//! | [`html`] | the templates, and the headers of every answer |

mod clusters;
mod cookies;
mod html;
mod kubeconfig;
mod listener;
mod login;
mod login_rate;
mod problem;
mod routes;
mod sealing;
mod session;

use std::io;
use std::sync::{Arc, Mutex};

use portcullis_openid::provider::OpenIdClientSettings;
use portcullis_system::clock::Clock;
use portcullis_system::sync::lock;
use rustls::ServerConfig;
use tokio::sync::watch;
use tracing::error;

use clusters::ReachCache;
use login::ProviderCache;
use login_rate::LoginRate;
use sealing::{SealingKey, UnusableKey};

use crate::cluster::Cluster;
use crate::config::page_settings::PageSettings;
use crate::listener::{Listener, ShutdownPhase, ShutdownSignals};
use crate::metrics::Metrics;
use crate::pipeline::Gateway;
use crate::state::Live;
use crate::tasks::RuntimeThread;

/// What the page says about a cluster that a user may reach. It has no credential and no address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClusterHealth {
    /// Whether requests are answered.
    pub(crate) state: HealthState,
    /// The version of its API servers.
    pub(crate) version: Option<String>,
    /// The endpoints that are ready, and all.
    pub(crate) ready: usize,
    pub(crate) endpoints: usize,
}

/// Whether requests to a cluster are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HealthState {
    /// By all endpoints.
    Ready,
    /// By some.
    Degraded,
    /// None has been checked yet.
    Checking,
    /// By none.
    Unavailable,
}

/// What the page needs of the process.
pub(crate) struct PageParts {
    /// The request path, with connections of its own to the backends.
    pub(crate) gateway: Arc<Gateway>,
    /// The shutdown, as connections observe it.
    pub(crate) shutdown: ShutdownSignals,
    /// The health of a cluster.
    pub(crate) health: fn(&Cluster) -> ClusterHealth,
}

/// The page.
pub(crate) struct Page {
    parts: PageParts,
    /// The key of cookies while none is configured.
    random_key: Arc<SealingKey>,
    in_force: Mutex<Option<Arc<PageInForce>>>,
    rate: LoginRate,
    reach: ReachCache,
}

/// The page's settings in force, and what is made of them.
struct PageInForce {
    settings: Arc<PageSettings>,
    key: Arc<SealingKey>,
    /// The origin, the issuer and the client, to which sealed values are bound: a code and its verifier must not go to
    /// another provider, and a session of one is none of another.
    scope: String,
    tls: Arc<ServerConfig>,
    provider: ProviderCache,
}

impl Page {
    pub(crate) fn new(parts: PageParts) -> Result<Self, UnusableKey> {
        Ok(Self {
            parts,
            random_key: Arc::new(SealingKey::random()?),
            in_force: Mutex::default(),
            rate: LoginRate::default(),
            reach: ReachCache::default(),
        })
    }

    fn live(&self) -> &Arc<Live> {
        &self.parts.gateway.live
    }

    fn clock(&self) -> &Clock {
        &self.parts.gateway.clock
    }

    fn metrics(&self) -> &Arc<Metrics> {
        &self.parts.gateway.metrics
    }

    /// The settings in force; `None` if the configuration has no page any more.
    fn in_force(&self) -> Option<Arc<PageInForce>> {
        let settings = self.live().peek().page.clone()?;
        let mut in_force = lock(&self.in_force);
        if let Some(same) = in_force.as_ref().filter(|known| Arc::ptr_eq(&known.settings, &settings)) {
            return Some(Arc::clone(same));
        }
        let key = match settings.cookie_key.as_ref().map(SealingKey::of) {
            None => Arc::clone(&self.random_key),
            Some(Ok(key)) => Arc::new(key),
            Some(Err(error)) => {
                error!(%error, "the page cannot be served");
                return None;
            }
        };
        let tls = match listener::tls_config(&settings) {
            Ok(tls) => Arc::new(tls),
            Err(error) => {
                error!(%error, "the page cannot be served");
                return None;
            }
        };
        let OpenIdClientSettings { issuer, client_id, .. } = &settings.client;
        let scope = format!("{}\n{issuer}\n{client_id}", settings.origin);
        let next = Arc::new(PageInForce { settings, key, scope, tls, provider: ProviderCache::default() });
        *in_force = Some(Arc::clone(&next));
        Some(next)
    }
}

/// Serves until the server aborts, on a thread of its own. `tend` keeps the page's connections to the backends.
pub(crate) fn start(
    listener: Listener,
    page: Page,
    tend: impl Future<Output = ()> + Send + 'static,
    mut phase: watch::Receiver<ShutdownPhase>,
) -> io::Result<()> {
    let thread = RuntimeThread::new()?;
    let listener = {
        let _entered = thread.enter();
        listener.register()?
    };
    thread.start("page", async move || {
        tokio::select! {
            () = listener::serve(listener, Arc::new(page)) => {}
            () = tend => {}
            _ = phase.wait_for(|phase| *phase == ShutdownPhase::Abort) => {}
        }
    })?;
    Ok(())
}
