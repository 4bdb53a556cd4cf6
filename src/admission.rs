//! The admission webhooks that the gateway calls for a cluster, and the policies that it evaluates: how webhooks are reached, and what
//! both need of the gateway.
//!
//! `crates/admission` decides which of them see a request and what follows; `pipeline::admission` obtains
//! the objects. Here are the calls ([`callers`]), namespaces ([`namespaces`]), what the API servers say of themselves
//! ([`dry_run`], [`served`], [`schemas`]), whether policies fit that ([`type_checks`]), and what it means for one request ([`surroundings`]). A webhook that does not answer delays the requests that it is to see, and no others.

mod cached_reads;
mod callers;
mod dry_run;
mod memory;
mod namespaces;
mod schemas;
mod served;
pub(crate) mod settings;
mod shadow;
mod surroundings;
mod trial;
mod type_checks;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_admission::matching::{OperationSet, RuleIndex};
use portcullis_admission::{GroupVersionResource, Policies, Webhook, Webhooks};
use portcullis_kubernetes::release::{self, Release};
use portcullis_limits::byte_ledger::ByteLedger;
use portcullis_limits::cache_budget::CacheShare;
use portcullis_limits::fair_limiter::FairLimiter;
use portcullis_limits::rate::{Rate, RateLimits};
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
use namespaces::{NamespaceUse, Namespaces};
use schemas::PublishedSchemas;
use served::ServedResources;
pub(crate) use served::Strategy;
use settings::{AdmissionMode, AdmissionSettings};
pub(crate) use surroundings::{RequestParts, RequestSurroundings};
pub(crate) use trial::{
    Explanation, MUTATING_POLICY, NotCalled, NotCalledReason, POLICY, Trial, TrialResult,
};
use type_checks::{TypeChecks, TypeSources};

/// Of a resource that no policy sees.
static NO_POLICIES: Policies = Policies { mutating: Vec::new(), validating: Vec::new() };

/// How often a review holds an object: as the API server shows it, as webhooks see it, as they have changed it; and once more for
/// match conditions.
const COPIES: usize = 3;

/// The admission webhooks and policies of a cluster, of one generation of the configuration.
#[derive(Debug)]
pub(crate) struct ClusterAdmission {
    cluster: String,
    release: Release,
    mode: AdmissionMode,
    webhooks: Webhooks,
    policies: Policies,
    of_webhooks: RuleIndexes,
    of_policies: RuleIndexes,
    callers: Callers,
    /// `None` if nothing uses them.
    namespaces: Option<Arc<Namespaces>>,
    dry_runs: DryRunSupport,
    served: Arc<ServedResources>,
    schemas: Arc<PublishedSchemas>,
    /// Ends the checks of this generation with it.
    type_checks: TypeChecks,
    memory: ClusterReviewMemory,
    compute: ClusterComputePool,
    /// Whether there are expressions, for which objects are copied once more.
    has_expressions: bool,
    /// Bounds the reviews that wait for shadow webhooks.
    shadow_memory: FairLimiter<Arc<str>>,
    authorizer: ClusterAuthorizer,
    /// Bounds the lines about errors of each policy, and about each document.
    policy_lines: Mutex<RateLimits<String>>,
    metrics: Arc<Metrics>,
}

/// How many policies have an allowance of their own for lines about errors that are ignored; further ones share one.
const MAX_POLICIES_WITH_LINES: usize = 1024;
/// Lines about the errors of a policy that are ignored.
const POLICY_LINES: Rate = Rate { interval: Duration::from_secs(10), burst: 5 };

/// Which requests may be of interest.
#[derive(Debug)]
struct RuleIndexes {
    all: RuleIndex,
    /// Without shadow webhooks, or shadow policies.
    enforced: RuleIndex,
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
    /// Counts the texts of documents.
    pub(crate) ledger: &'a ByteLedger,
    /// The memory of what is kept of them.
    pub(crate) caches: &'a CacheShare,
    /// Works on large objects.
    pub(crate) compute: &'a ComputePool,
    /// The metrics.
    pub(crate) metrics: &'a Arc<Metrics>,
}

/// The webhooks of a configuration, with those marked that are called without effect.
fn with_shadows(settings: &AdmissionSettings) -> Webhooks {
    let AdmissionSettings { webhooks, .. } = settings;
    let is_shadow = |webhook: &Webhook| settings.is_shadow(webhook);
    let mark = |webhook: Webhook| Webhook { shadow: true, ..webhook };
    Webhooks {
        mutating: marked(&webhooks.mutating, is_shadow, mark),
        validating: marked(&webhooks.validating, is_shadow, mark),
    }
}

/// The policies of a configuration, with those marked that are evaluated without effect.
fn policies_with_shadows(settings: &AdmissionSettings) -> Policies {
    settings.policies.with_shadows(|policy| settings.is_shadow_policy(policy))
}

fn marked<T: Clone>(all: &[Arc<T>], is_shadow: impl Fn(&T) -> bool, mark: impl Fn(T) -> T) -> Vec<Arc<T>> {
    let marked =
        all.iter().map(|one| if is_shadow(one) { Arc::new(mark(T::clone(one))) } else { Arc::clone(one) });
    marked.collect()
}

/// What admission needs of namespaces.
fn namespace_use(webhooks: &Webhooks, policies: &Policies) -> NamespaceUse {
    let of_webhooks = webhooks.mutating.iter().chain(&webhooks.validating).map(|webhook| {
        if webhook.namespace_selector.is_empty() { NamespaceUse::Nothing } else { NamespaceUse::Labels }
    });
    let of_policies = policies.all().map(|policy| match () {
        () if policy.scope().uses_namespace => NamespaceUse::Objects,
        () if policy.selects_namespaces() => NamespaceUse::Labels,
        () => NamespaceUse::Nothing,
    });
    of_webhooks.chain(of_policies).max().unwrap_or(NamespaceUse::Nothing)
}

/// Which webhooks and policies may match a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MayMatch {
    /// None.
    None,
    /// Only shadow webhooks and policies.
    Shadow,
    /// Some that have an effect.
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
        let policies = policies_with_shadows(settings);
        let all_webhooks = || webhooks.mutating.iter().chain(&webhooks.validating);
        let known = before.and_then(|before| before.namespaces.as_ref());
        let namespaces = Namespaces::start(namespace_use(&webhooks, &policies), place, known);
        let has_expressions =
            !policies.is_empty() || all_webhooks().any(|webhook| !webhook.match_conditions.is_empty());
        let reader = DocumentReader::new(place);
        let compute = match before {
            Some(before) => before.compute.clone(),
            None => place.compute.of_cluster(place.cluster),
        };
        let memory = match before {
            Some(before) => before.memory.clone(),
            None => place.memory.of_cluster(place.owner),
        };
        let served = Arc::new(ServedResources::new(&reader));
        let schemas = Arc::new(PublishedSchemas::new(&reader, &compute, &memory, place.caches));
        let sources = TypeSources {
            cluster: place.cluster.to_owned(),
            owner: place.owner.of_gateway(),
            served: Arc::clone(&served),
            schemas: Arc::clone(&schemas),
            declarations: schemas.declarations(&reader, place.caches),
            compute: compute.clone(),
            memory: memory.clone(),
        };
        let checked = before.map(|before| &before.type_checks);
        let type_checks = TypeChecks::start(&policies, sources, place.runtime, checked);
        Ok(Self {
            cluster: place.cluster.to_owned(),
            release: place.release,
            mode: settings.mode,
            of_webhooks: RuleIndexes {
                all: RuleIndex::of_webhooks(all_webhooks()),
                enforced: RuleIndex::of_webhooks(all_webhooks().filter(|webhook| !webhook.shadow)),
            },
            of_policies: RuleIndexes {
                all: RuleIndex::of_policies(policies.all()),
                enforced: RuleIndex::of_policies(policies.all().filter(|policy| !policy.scope().shadow)),
            },
            callers: Callers::build(
                settings,
                place.provider,
                place.runtime,
                before.map(|before| &before.callers),
            )?,
            namespaces,
            dry_runs: DryRunSupport::new(&reader, place.caches),
            served,
            schemas,
            type_checks,
            memory,
            compute,
            has_expressions,
            shadow_memory: before.map_or_else(
                || FairLimiter::new(shadow::MEMORY_SHARES),
                |before| before.shadow_memory.clone(),
            ),
            authorizer,
            policy_lines: Mutex::new(RateLimits::new(POLICY_LINES, MAX_POLICIES_WITH_LINES)),
            metrics: Arc::clone(place.metrics),
            webhooks,
            policies,
        })
    }

    /// The release that the gateway emulates.
    pub(crate) fn release(&self) -> Release {
        self.release
    }

    /// Which object webhooks and policies see.
    pub(crate) fn mode(&self) -> AdmissionMode {
        self.mode
    }

    /// The webhooks, in the order of their calls.
    pub(crate) fn webhooks(&self) -> &Webhooks {
        &self.webhooks
    }

    /// The policies that may see a request for this resource, in the order of their evaluation.
    pub(crate) fn policies(&self, resource: &GroupVersionResource) -> &Policies {
        if excludes_from_policies(resource) { &NO_POLICIES } else { &self.policies }
    }

    /// Which webhooks and policies may match a request for this resource by their rules. What they do not match is certain.
    pub(crate) fn may_match(
        &self,
        operations: OperationSet,
        resource: &GroupVersionResource,
        subresource: &str,
    ) -> MayMatch {
        let GroupVersionResource { group, version, resource: name } = resource;
        let of = |indexes: &RuleIndexes| {
            let matches = |index: &RuleIndex| index.may_match(operations, group, version, name, subresource);
            match () {
                () if !matches(&indexes.all) => MayMatch::None,
                () if !matches(&indexes.enforced) => MayMatch::Shadow,
                () => MayMatch::Enforced,
            }
        };
        // apiserver: pkg/admission/plugin/webhook/generic/webhook.go, Dispatch
        let excludes = self.release.excludes_from_webhooks(group, name);
        let of_webhooks = if excludes { MayMatch::None } else { of(&self.of_webhooks) };
        let of_policies =
            if excludes_from_policies(resource) { MayMatch::None } else { of(&self.of_policies) };
        of_webhooks.max(of_policies)
    }

    /// What a review of an object takes that has this size when it is decoded.
    pub(crate) fn review_size(&self, decoded: usize) -> usize {
        decoded.saturating_mul(COPIES + usize::from(self.has_expressions))
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

/// Whether no policy sees a resource, whatever the rules are.
// apiserver: pkg/admission/plugin/policy/generic/plugin.go, isExcludedFromAllHooks
fn excludes_from_policies(resource: &GroupVersionResource) -> bool {
    release::is_review(&resource.group, &resource.resource)
}
