//! One cluster behind the gateway: its routes, the authentication of its clients, its backend and its controllers.
//!
//! Every decision about a request uses the one `Cluster` that it was routed to. No part of one cluster may be used
//! for another.

pub(crate) mod activity;
pub(crate) mod address;
pub(crate) mod authenticators;
pub(crate) mod jwt_issuers;
mod life;
pub(crate) mod router;
pub(crate) mod settings;
pub(crate) mod token_objects;

use std::sync::Arc;

use portcullis_http::body::BodyEnd;
use portcullis_limits::ClusterOwner;
use rustls::crypto::CryptoProvider;

use crate::admission::{AdmissionPlace, ClusterAdmission};
use crate::audit::{AuditError, AuditGeneration, ClusterAudit};
use crate::authn::chain::EmptyChain;
use crate::authn::revocation::crls::OlderCrl;
use crate::authz::impersonation::{ImpersonationBy, Impersonator};
use crate::authz::{Authorizer, AuthorizerDeps, ClusterAuthorizer};
use crate::backend::dials::ClusterDials;
use crate::backend::policy::PolicyInForce;
use crate::backend::{self, Backend};
use crate::controllers::ClusterControllers;
use crate::limits::ClusterLimiter;
use crate::limits::settings::LimitSettings;
use crate::metrics::BackendTimings;
use crate::sessions::ClusterSessions;
use activity::{ActivityCounts, ClusterActivity};
use authenticators::{ClusterAuthn, ClusterDeps};
use life::ClusterLife;

/// One cluster of one generation of the configuration.
// threat: other-cluster
#[derive(Debug)]
pub(crate) struct Cluster {
    /// The name in logs, metrics and health checks.
    pub(crate) name: String,
    /// The settings that it was built from.
    pub(crate) settings: Arc<settings::Cluster>,
    /// In whose share of the process everything in it counts.
    pub(crate) owner: ClusterOwner,
    /// How clients are authenticated.
    pub(crate) authn: ClusterAuthn,
    /// The gateway's own authorizers; `None`: the backend alone decides.
    pub(crate) authorizer: Option<Arc<Authorizer>>,
    /// Whether a client may act as another user, for [`Self::deciding_impersonator`] and explanations.
    pub(crate) impersonator: Impersonator,
    /// The admission webhooks that the gateway calls; `None`: the backend alone admits requests.
    pub(crate) admission: Option<Arc<ClusterAdmission>>,
    /// Which requests are audited, and where their events are stored; `None`: nothing is audited.
    pub(crate) audit: Option<Arc<ClusterAudit>>,
    /// Which sessions are recorded and limited; `None`: none is.
    pub(crate) sessions: Option<Arc<ClusterSessions>>,
    /// The limits on requests in flight, in force with this generation.
    pub(crate) limits: LimitSettings,
    /// The requests in flight, of every generation.
    pub(crate) limiter: Arc<ClusterLimiter>,
    /// The requests in progress, of every generation.
    pub(crate) activity: Arc<ClusterActivity>,
    /// For how long it is served, by any generation.
    life: ClusterLife,
    /// Where requests go.
    pub(crate) backend: Arc<Backend>,
    /// The backend with new settings; it replaces `backend` once one of its endpoints has passed the self-check.
    pub(crate) pending_backend: Option<Arc<Backend>>,
    /// The controllers that run for this cluster, if any.
    pub(crate) controllers: Option<ClusterControllers>,
}

/// Why a cluster cannot be built from its settings.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The gateway's certificate and key for the backend, an issuer or a webhook do not fit together.
    #[error("the backend's credential cannot be used: {0}")]
    Backend(#[from] rustls::Error),
    /// A backend of the audit cannot be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// No authenticator is configured.
    #[error(transparent)]
    NoAuthentication(#[from] EmptyChain),
    /// A CRL would be replaced by an older one.
    #[error(transparent)]
    OlderCrl(#[from] OlderCrl),
}

impl Cluster {
    /// Decides on `Impersonate-*`; `None`: the backend does.
    pub(crate) fn deciding_impersonator(&self) -> Option<&Impersonator> {
        (self.settings.impersonation == ImpersonationBy::Gateway).then_some(&self.impersonator)
    }

    /// Builds a cluster. Keeps watches, keys and connections of `before`, the same cluster in the previous generation,
    /// where the settings they depend on are the same.
    pub(crate) fn build(
        settings: &Arc<settings::Cluster>,
        provider: &Arc<CryptoProvider>,
        before: Option<&Self>,
        deps: &ClusterDeps,
        audit: &mut AuditGeneration,
    ) -> Result<Self, ClusterError> {
        let all = settings;
        let settings::Cluster { name, release, authentication, backend, controllers, .. } = &**settings;
        let release = *release;
        let crls_before = before.and_then(|before| before.settings.authentication.revocation.crls.as_deref());
        if let (Some(crls), Some(before)) = (&authentication.revocation.crls, crls_before) {
            crls.check_replaces(before)?;
        }
        let owner = settings.owner();
        let dials = deps.dials.of(owner.clone());
        let caches = dials.caches.clone();
        let authorizer = match &settings.authorization {
            None => None,
            Some(authorization) => {
                let before = before.and_then(|before| before.authorizer.as_deref());
                let ClusterDeps { reviews, provider, metrics, .. } = deps;
                let deps = AuthorizerDeps { provider, runtime: reviews, metrics, caches: &dials.caches };
                Some(Arc::new(Authorizer::build(authorization, release, before, &deps)?))
            }
        };
        let timings = || deps.metrics.backend.timings(name);
        let (backend, pending_backend) = backends(backend, provider, (timings, dials), before)?;
        let authn_before = before.map(|before| &before.authn);
        let authn = ClusterAuthn::build(all, &backend, authn_before, deps)?;
        // New in every generation, so that no answer outlives its configuration.
        let authorizers = ClusterAuthorizer::new(authorizer.as_ref(), &backend, &deps.reviews);
        let impersonator = Impersonator::new(authorizers.clone(), &backend, release, &deps.metrics);
        let admission = match &settings.admission {
            None => None,
            Some(admission) => {
                let before = before.and_then(|before| before.admission.as_deref());
                let ClusterDeps { reviews, provider, metrics, review_memory, reviewing, .. } = deps;
                let place = AdmissionPlace {
                    cluster: name,
                    release,
                    backend: &backend,
                    runtime: reviews,
                    provider,
                    owner: &owner,
                    memory: review_memory,
                    ledger: deps.dials.ledger(),
                    caches: &caches,
                    compute: reviewing,
                    metrics,
                };
                Some(Arc::new(ClusterAdmission::build(admission, authorizers, &place, before)?))
            }
        };
        let audit = open_audit(settings, deps, audit)?.map(Arc::new);
        let sessions = settings.sessions.as_ref();
        let sessions = sessions.map(|settings| Arc::new(deps.sessions.open(settings, owner.clone())));
        let controllers = controllers.as_ref().map(|settings| ClusterControllers {
            cluster: name.as_str().into(),
            backend: Arc::clone(&backend),
            settings: Arc::clone(settings),
        });
        Ok(Self {
            name: name.clone(),
            settings: Arc::clone(all),
            owner,
            authn,
            authorizer,
            impersonator,
            admission,
            audit,
            sessions,
            limits: settings.limits,
            limiter: deps.limiters.of(name),
            activity: before.map(|before| Arc::clone(&before.activity)).unwrap_or_default(),
            life: before.map(|before| before.life.clone()).unwrap_or_default(),
            backend,
            pending_backend,
            controllers,
        })
    }

    /// Whether building it again from `settings` would give the same.
    pub(crate) fn is_settled_for(&self, settings: &Arc<settings::Cluster>) -> bool {
        Arc::ptr_eq(&self.settings, settings)
            && self.pending_backend.is_none()
            && self.authn.issuers.are_initialized()
    }

    /// Keeps a cluster with these settings for another generation, with its audit backends.
    pub(crate) fn keep(
        settings: &settings::Cluster,
        deps: &ClusterDeps,
        audit: &mut AuditGeneration,
    ) -> Result<(), ClusterError> {
        open_audit(settings, deps, audit).map(drop).map_err(ClusterError::from)
    }

    /// Completes when its streams are to end, because it is no longer served; `None` if they go on. Those of the operator's
    /// clusters do, as over any reload.
    // threat: offboarded-tenant
    pub(crate) fn stream_end(&self) -> Option<BodyEnd> {
        self.settings.origin.is_of_tenant().then(|| self.life.ended())
    }

    /// Whether its streams are to end.
    pub(crate) fn is_over(&self) -> bool {
        self.life.is_over()
    }

    /// Ends its streams, if they end with it. Returns their number.
    pub(crate) fn end_streams(&self) -> Option<usize> {
        let ends = self.settings.origin.is_of_tenant();
        ends.then(|| {
            let ActivityCounts { watches, streams, .. } = self.activity.counts();
            self.life.end();
            watches + streams
        })
    }

    /// Puts in force what of its settings needs no success of anything.
    pub(crate) fn enforce(&self) {
        self.backends().for_each(|backend| backend.enforce(&self.settings.backend));
    }

    /// The backend in force and the pending one.
    pub(crate) fn backends(&self) -> impl Iterator<Item = &Arc<Backend>> {
        std::iter::once(&self.backend).chain(&self.pending_backend)
    }
}

/// The audit of a cluster, if it is audited.
fn open_audit(
    settings: &settings::Cluster,
    deps: &ClusterDeps,
    audit: &mut AuditGeneration,
) -> Result<Option<ClusterAudit>, AuditError> {
    let Some(audited) = &settings.audit else { return Ok(None) };
    let is_one_of_several = !matches!(settings.routes, settings::Routes::Everything);
    audit.open(audited, (settings.owner(), is_one_of_several), &deps.provider).map(Some)
}

/// The backend in force and the pending one. A trusted backend stays in force until the new one is trusted, so that a
/// rotated credential that the API server refuses does not cause an outage. This holds only if both are of the same
/// cluster: clients that the new configuration authenticates must not reach another one. It holds for what connects alone,
/// never for what permits: see [`Cluster::enforce`].
fn backends(
    settings: &backend::settings::Backend,
    provider: &Arc<CryptoProvider>,
    (timings, dials): (impl FnOnce() -> BackendTimings, ClusterDials),
    before: Option<&Cluster>,
) -> Result<(Arc<Backend>, Option<Arc<Backend>>), rustls::Error> {
    let known = before.and_then(|cluster| cluster.backends().find(|backend| backend.is_for(settings)));
    let next = if let Some(backend) = known {
        Arc::clone(backend)
    } else {
        let policy = before.map(|before| Arc::clone(before.backend.policy()));
        let policy = policy.unwrap_or_else(|| PolicyInForce::new(settings.policy));
        let next = Backend::with_policy(settings, provider, timings(), dials, policy)?;
        if let Some(before) = before.filter(|before| before.backend.is_same_cluster(settings)) {
            next.inherit_cluster(&before.backend);
        }
        Arc::new(next)
    };
    match before.map(|cluster| &cluster.backend) {
        Some(before) if before.is_trusted() && !next.is_trusted() && before.is_same_cluster(settings) => {
            Ok((Arc::clone(before), Some(next)))
        }
        _ => Ok((next, None)),
    }
}
