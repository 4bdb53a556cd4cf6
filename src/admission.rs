//! The admission webhooks that the gateway calls for a cluster: how they are reached, and what they need of the gateway.
//!
//! `crates/admission` decides which webhooks see a request and what follows from their responses; `pipeline::admission` obtains
//! the objects. Here are the calls ([`callers`]), the labels of namespaces ([`namespaces`]), and what both mean for one
//! request ([`surroundings`]). A webhook that does not answer delays the requests that it is to see, and no others.

mod callers;
mod dry_run;
mod namespaces;
pub(crate) mod settings;
mod shadow;
mod surroundings;
mod trial;

use std::sync::Arc;
use std::time::Duration;

use portcullis_admission::matching::{OperationSet, RuleIndex};
use portcullis_admission::{Webhook, Webhooks};
use portcullis_kubernetes::user::UserInfo;
use portcullis_limits::fair_limiter::{FairLimiter, Permit, Refused, Shares};
use rustls::crypto::CryptoProvider;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::authz::ClusterAuthorizer;
use crate::backend::Backend;
use crate::metrics::Metrics;
use crate::traces::SpanScope;
use callers::Callers;
use dry_run::DryRunSupport;
pub(crate) use dry_run::{DryRun, DryRunError, is_never_dry_run};
use namespaces::NamespaceLabels;
use settings::{AdmissionMode, AdmissionSettings};
pub(crate) use surroundings::RequestSurroundings;
pub(crate) use trial::{Trial, TrialResult};

/// The memory of all bodies that are being read, in KiB: apart from the rest, since a client may be slow to send.
const BODY_SHARES: Shares = Shares::new(128 << 10, 12 << 10).with_queue(1024, 128);
/// The memory of all objects that are being reviewed, in KiB. A user whose requests wait for webhooks holds only a share.
// threat: silent-webhook
const OBJECT_SHARES: Shares = Shares::new(256 << 10, 64 << 10).with_queue(1024, 128);
/// How long a request waits for memory.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(5);
/// The memory of a review by the size of its object: the object as the API server shows it, and as it is stored, each parsed, and
/// the reviews.
const MEMORY_PER_OBJECT: u64 = 8;
const MEMORY_PER_REVIEW: u64 = 64 << 10;

/// The admission webhooks of a cluster, of one generation of the configuration.
#[derive(Debug)]
pub(crate) struct ClusterAdmission {
    cluster: String,
    mode: AdmissionMode,
    webhooks: Webhooks,
    index: RuleIndex,
    callers: Callers,
    /// `None` if no webhook selects namespaces.
    namespaces: Option<Arc<NamespaceLabels>>,
    dry_runs: DryRunSupport,
    bodies: FairLimiter<Arc<str>>,
    objects: FairLimiter<Arc<str>>,
    /// Bounds the reviews that wait for shadow webhooks.
    shadow_memory: FairLimiter<Arc<str>>,
    authorizer: ClusterAuthorizer,
    metrics: Arc<Metrics>,
}

/// Memory of a review, in the share of a flow, until it is dropped.
pub(crate) type ReservedReview = Permit<Arc<str>>;

async fn reserve(memory: &FairLimiter<Arc<str>>, flow: &str, weight: u64) -> Result<ReservedReview, Refused> {
    let weight = usize::try_from(weight).unwrap_or(usize::MAX);
    memory.acquire(flow.into(), weight, Instant::now() + QUEUE_TIMEOUT).await
}

/// Where admission runs.
#[derive(Debug)]
pub(crate) struct AdmissionPlace<'a> {
    /// The name of the cluster.
    pub(crate) cluster: &'a str,
    /// Its API servers.
    pub(crate) backend: &'a Arc<Backend>,
    /// Calls webhooks and reads namespaces, apart from the threads that serve requests.
    pub(crate) runtime: &'a Handle,
    /// The crypto provider of TLS connections to webhooks.
    pub(crate) provider: &'a Arc<CryptoProvider>,
    /// The metrics.
    pub(crate) metrics: &'a Arc<Metrics>,
}

/// The webhooks of a configuration, with those marked that are called without effect.
fn with_shadows(settings: &AdmissionSettings) -> Webhooks {
    let marked = |webhooks: &[Arc<Webhook>]| {
        let webhooks = webhooks.iter().map(|webhook| {
            if settings.is_shadow(webhook) {
                Arc::new(Webhook { shadow: true, ..(**webhook).clone() })
            } else {
                Arc::clone(webhook)
            }
        });
        webhooks.collect()
    };
    Webhooks {
        mutating: marked(&settings.webhooks.mutating),
        validating: marked(&settings.webhooks.validating),
    }
}

impl ClusterAdmission {
    /// Keeps the connections and the namespaces of `before`, where what they depend on is the same.
    pub(crate) fn build(
        settings: &AdmissionSettings,
        authorizer: ClusterAuthorizer,
        place: &AdmissionPlace<'_>,
        before: Option<&Self>,
    ) -> Result<Self, rustls::Error> {
        let webhooks = with_shadows(settings);
        let mut all = webhooks.mutating.iter().chain(&webhooks.validating);
        let selects_namespaces = all.any(|webhook| !webhook.namespace_selector.is_empty());
        let known = before.and_then(|before| before.namespaces.as_ref());
        let namespaces = selects_namespaces.then(|| match known {
            Some(known) if known.is_for(place.backend) => Arc::clone(known),
            _ => Arc::new(NamespaceLabels::start(place)),
        });
        let kept = |of: fn(&Self) -> &FairLimiter<Arc<str>>, shares| {
            before.map_or_else(|| FairLimiter::new(shares), |before| of(before).clone())
        };
        Ok(Self {
            cluster: place.cluster.to_owned(),
            mode: settings.mode,
            index: RuleIndex::new(&webhooks),
            callers: Callers::build(
                settings,
                place.provider,
                place.runtime,
                before.map(|before| &before.callers),
            )?,
            namespaces,
            dry_runs: DryRunSupport::new(place),
            bodies: kept(|before| &before.bodies, BODY_SHARES),
            objects: kept(|before| &before.objects, OBJECT_SHARES),
            shadow_memory: kept(|before| &before.shadow_memory, shadow::MEMORY_SHARES),
            authorizer,
            metrics: Arc::clone(place.metrics),
            webhooks,
        })
    }

    /// Which object the webhooks see.
    pub(crate) fn mode(&self) -> AdmissionMode {
        self.mode
    }

    /// The webhooks, in the order of their calls.
    pub(crate) fn webhooks(&self) -> &Webhooks {
        &self.webhooks
    }

    /// Whether a rule of any webhook may match; `false` is certain.
    pub(crate) fn may_match(
        &self,
        operations: OperationSet,
        group: &str,
        version: &str,
        resource: &str,
        subresource: &str,
    ) -> bool {
        self.index.may_match(operations, group, version, resource, subresource)
    }

    /// Waits for the memory of a body of at most this size, in the share of `flow`.
    pub(crate) async fn reserve_body(&self, flow: &str, bytes: u64) -> Result<ReservedReview, Refused> {
        let weight = (bytes >> 10).saturating_add(1);
        reserve(&self.bodies, flow, weight).await
    }

    /// Waits for the memory of the review of an object of this size, in the share of `flow`.
    pub(crate) async fn reserve(&self, flow: &str, bytes: u64) -> Result<ReservedReview, Refused> {
        let weight = MEMORY_PER_REVIEW.saturating_add(bytes.saturating_mul(MEMORY_PER_OBJECT)) >> 10;
        reserve(&self.objects, flow, weight).await
    }

    /// What the phases need for a request of `user`. What it makes the gateway ask counts in the share of `flow`.
    pub(crate) fn surroundings<'a>(
        self: &'a Arc<Self>,
        flow: &'a str,
        user: &'a UserInfo,
        deadline: Option<Instant>,
        spans: Option<&'a SpanScope>,
    ) -> RequestSurroundings<'a> {
        RequestSurroundings::new(self, flow, user, deadline, spans)
    }
}
