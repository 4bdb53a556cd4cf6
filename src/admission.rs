//! The admission webhooks that the gateway calls for a cluster: how they are reached, and what they need of the gateway.
//!
//! `crates/admission` decides which webhooks see a request and what follows from their responses; `pipeline::admission` obtains
//! the objects. Here are the calls ([`callers`]), the labels of namespaces ([`namespaces`]), what the API servers say of themselves
//! ([`dry_run`], [`served`]), and what that means for one request ([`surroundings`]). A webhook that does not answer delays the requests that it is to see, and no others.

mod cached_reads;
mod callers;
mod dry_run;
mod memory;
mod namespaces;
mod served;
pub(crate) mod settings;
mod shadow;
mod surroundings;
mod trial;

use std::sync::Arc;

use portcullis_admission::matching::{OperationSet, RuleIndex};
use portcullis_admission::{GroupVersionResource, Webhook, Webhooks};
use portcullis_kubernetes::release::Release;
use portcullis_limits::fair_limiter::FairLimiter;
use portcullis_limits::{ClusterOwner, Owner};
use rustls::crypto::CryptoProvider;
use tokio::runtime::Handle;

use crate::authz::ClusterAuthorizer;
use crate::backend::Backend;
use crate::metrics::Metrics;
use crate::tasks::compute::{ClusterComputePool, ComputePool};
use cached_reads::DocumentReader;
pub(crate) use cached_reads::ReadError;
use callers::Callers;
use dry_run::DryRunSupport;
pub(crate) use dry_run::{DryRun, is_never_dry_run};
use memory::ClusterReviewMemory;
pub(crate) use memory::{MemoryOwner, NoMemory, ReservedMemory, ReviewMemory};
use namespaces::NamespaceLabels;
use served::ServedResources;
pub(crate) use served::Strategy;
use settings::{AdmissionMode, AdmissionSettings};
pub(crate) use surroundings::{RequestParts, RequestSurroundings};
pub(crate) use trial::{NotCalled, Trial, TrialResult};

/// How often a review holds an object: as the API server shows it, as webhooks see it, as they have changed it; and once more for
/// match conditions.
const COPIES: usize = 3;

/// The admission webhooks of a cluster, of one generation of the configuration.
#[derive(Debug)]
pub(crate) struct ClusterAdmission {
    cluster: String,
    release: Release,
    mode: AdmissionMode,
    webhooks: Webhooks,
    index: RuleIndex,
    /// The same without shadow webhooks.
    enforced: RuleIndex,
    callers: Callers,
    /// `None` if no webhook selects namespaces.
    namespaces: Option<Arc<NamespaceLabels>>,
    dry_runs: DryRunSupport,
    served: ServedResources,
    memory: ClusterReviewMemory,
    compute: ClusterComputePool,
    /// Whether a webhook has conditions, for which objects are copied once more.
    has_conditions: bool,
    /// Bounds the reviews that wait for shadow webhooks.
    shadow_memory: FairLimiter<Arc<str>>,
    authorizer: ClusterAuthorizer,
    metrics: Arc<Metrics>,
}

/// Where admission runs.
#[derive(Debug)]
pub(crate) struct AdmissionPlace<'a> {
    /// The name of the cluster.
    pub(crate) cluster: &'a str,
    /// The release that the gateway emulates.
    pub(crate) release: Release,
    /// Its API servers.
    pub(crate) backend: &'a Arc<Backend>,
    /// Calls webhooks and reads namespaces, apart from the threads that serve requests.
    pub(crate) runtime: &'a Handle,
    /// The crypto provider of TLS connections to webhooks.
    pub(crate) provider: &'a Arc<CryptoProvider>,
    /// The owner of what happens in the cluster.
    pub(crate) owner: &'a ClusterOwner,
    /// The memory of reviews of all clusters.
    pub(crate) memory: &'a ReviewMemory,
    /// Works on large objects.
    pub(crate) compute: &'a ComputePool,
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

/// Which webhooks may match a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MayMatch {
    /// None.
    None,
    /// Only shadow webhooks.
    Shadow,
    /// Webhooks whose responses have an effect.
    Enforced,
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
        let mut all = webhooks.mutating.iter().chain(&webhooks.validating);
        let has_conditions = all.any(|webhook| !webhook.match_conditions.is_empty());
        let reader = DocumentReader::new(place);
        Ok(Self {
            cluster: place.cluster.to_owned(),
            release: place.release,
            mode: settings.mode,
            index: RuleIndex::new(&webhooks),
            enforced: RuleIndex::of_enforced(&webhooks),
            callers: Callers::build(
                settings,
                place.provider,
                place.runtime,
                before.map(|before| &before.callers),
            )?,
            namespaces,
            dry_runs: DryRunSupport::new(&reader),
            served: ServedResources::new(&reader),
            memory: match before {
                Some(before) => before.memory.clone(),
                None => place.memory.of_cluster(place.owner),
            },
            compute: match before {
                Some(before) => before.compute.clone(),
                None => place.compute.of_cluster(place.cluster),
            },
            has_conditions,
            shadow_memory: before.map_or_else(
                || FairLimiter::new(shadow::MEMORY_SHARES),
                |before| before.shadow_memory.clone(),
            ),
            authorizer,
            metrics: Arc::clone(place.metrics),
            webhooks,
        })
    }

    /// The release that the gateway emulates.
    pub(crate) fn release(&self) -> Release {
        self.release
    }

    /// Which object the webhooks see.
    pub(crate) fn mode(&self) -> AdmissionMode {
        self.mode
    }

    /// The webhooks, in the order of their calls.
    pub(crate) fn webhooks(&self) -> &Webhooks {
        &self.webhooks
    }

    /// Which webhooks may match a request for this resource by their rules. What they do not match is certain.
    pub(crate) fn may_match(
        &self,
        operations: OperationSet,
        resource: &GroupVersionResource,
        subresource: &str,
    ) -> MayMatch {
        let GroupVersionResource { group, version, resource } = resource;
        // apiserver: pkg/admission/plugin/webhook/generic/webhook.go, Dispatch
        if self.release.excludes_from_webhooks(group, resource) {
            return MayMatch::None;
        }
        let matches = |index: &RuleIndex| index.may_match(operations, group, version, resource, subresource);
        match () {
            () if !matches(&self.index) => MayMatch::None,
            () if !matches(&self.enforced) => MayMatch::Shadow,
            () => MayMatch::Enforced,
        }
    }

    /// What a review of an object takes that has this size when it is decoded.
    pub(crate) fn review_size(&self, decoded: usize) -> usize {
        decoded.saturating_mul(COPIES + usize::from(self.has_conditions))
    }

    /// The memory of its reviews.
    pub(crate) fn memory(&self) -> &ClusterReviewMemory {
        &self.memory
    }

    /// Does work on a large object elsewhere, in a turn of its owner. `None` if the work is cancelled.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        owner: &Owner,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.compute.compute(owner.clone(), work).await
    }

    /// What the phases need for a request.
    pub(crate) fn surroundings<'a>(self: &'a Arc<Self>, parts: RequestParts<'a>) -> RequestSurroundings<'a> {
        RequestSurroundings::new(self, parts)
    }
}
