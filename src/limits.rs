//! Limits on requests in flight, and fair queues for the requests beyond them.
//!
//! Each cluster has two limits, for reads and for writes, as kube-apiserver has without priority and fairness. A request
//! beyond its limit is refused with 429 or, with queues, waits: a place that becomes free goes to the flow with the
//! fewest requests in service, so that one flooding user does not delay the others. One more limit counts the requests
//! of all clusters, of which tenants have shares. Members of `system:masters` and the gateway itself pass a limit that is
//! reached, those whom a tenant names that of their own cluster alone: `is_exempt_from_limits` and `process_priority` in
//! `pipeline/stages/shares.rs`.
//!
//! The open requests of tenants' clusters, watches too, have a limit that follows from the memory of the process
//! (`open_requests.rs`), and begin at a pace (`pace.rs`).
//!
//! The counts belong to the process, by the name of the cluster: a reload changes limits, and never forgets a request in
//! flight. A [`InflightPermit`] is returned when it is dropped, on whatever path.
// apiserver: pkg/server/filters/maxinflight.go

mod class_limiter;
mod flow;
mod open_requests;
mod pace;
mod process;
pub(crate) mod settings;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use portcullis_limits::ClusterOwner;
use portcullis_limits::budget::BudgetPermit;
use portcullis_system::sync::lock;
use tokio::time::Instant;

use class_limiter::{ClassLimiter, Place};
pub(crate) use flow::{FlowName, flow_of, is_anonymous};
use open_requests::{NewRequest, TenantRequests};
use pace::TenantPace;
pub(crate) use process::ProcessPriority;
use process::{ProcessLimit, ProcessPlace};
use settings::LimitSettings;

use crate::metrics::Metrics;

/// The two kinds of requests, each with a limit of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestClass {
    /// The verbs get, list and watch.
    ReadOnly,
    /// All other verbs.
    Mutating,
}

impl RequestClass {
    /// The kind of a request.
    pub(crate) fn of(is_mutating: bool) -> Self {
        if is_mutating { Self::Mutating } else { Self::ReadOnly }
    }

    /// The value of the label `request_kind`.
    fn label(self) -> &'static str {
        match self {
            Self::ReadOnly => "readOnly",
            Self::Mutating => "mutating",
        }
    }
}

/// Why a request is refused with 429. The texts are the reasons of kube-apiserver's priority and fairness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LimitExceeded {
    /// All places are taken, and there are no queues.
    #[error("concurrency-limit")]
    Concurrency,
    /// The queue of the flow, or of all flows, is full.
    #[error("queue-full")]
    QueueFull,
    /// No place became free in time.
    #[error("time-out")]
    TimedOut,
    /// The limit of the process is reached.
    #[error("process-limit")]
    Process,
}

/// The limiters of all clusters, for the life of the process.
#[derive(Debug)]
pub(crate) struct Limiters {
    clusters: Mutex<HashMap<String, Weak<ClusterLimiter>>>,
    process: Arc<ProcessLimit>,
    tenants: Arc<TenantRequests>,
    metrics: Arc<Metrics>,
}

impl Limiters {
    /// No limits yet.
    pub(crate) fn new(metrics: &Arc<Metrics>) -> Self {
        let process = Arc::new(ProcessLimit::new(metrics));
        let tenants = Arc::new(TenantRequests::new());
        Self { clusters: Mutex::default(), process, tenants, metrics: Arc::clone(metrics) }
    }

    /// The limiter of the cluster with this name: the same one as before, as long as the cluster is configured or one of
    /// its requests is in flight.
    pub(crate) fn of(&self, cluster: &str) -> Arc<ClusterLimiter> {
        let mut clusters = lock(&self.clusters);
        if let Some(limiter) = clusters.get(cluster).and_then(Weak::upgrade) {
            return limiter;
        }
        // Here, and not when the limiter ends: the metrics of its successor have the same labels.
        clusters.retain(|name, limiter| {
            let is_alive = limiter.strong_count() > 0;
            if !is_alive {
                self.forget(name);
            }
            is_alive
        });
        let limiter = Arc::new(ClusterLimiter::new(cluster, &self.process, &self.tenants, &self.metrics));
        clusters.insert(cluster.to_owned(), Arc::downgrade(&limiter));
        limiter
    }

    /// Removes the metrics of a cluster.
    fn forget(&self, cluster: &str) {
        let reasons = [
            LimitExceeded::Concurrency,
            LimitExceeded::QueueFull,
            LimitExceeded::TimedOut,
            LimitExceeded::Process,
        ];
        let metrics = &self.metrics.limits;
        for kind in [RequestClass::ReadOnly, RequestClass::Mutating].map(RequestClass::label) {
            metrics.in_service.remove_label_values(&[cluster, kind]).ok();
            metrics.waiting.remove_label_values(&[cluster, kind]).ok();
            metrics.wait.remove_label_values(&[cluster, kind]).ok();
            for reason in &reasons {
                // One that never occurred has none.
                metrics.rejected.remove_label_values(&[cluster, kind, &reason.to_string()]).ok();
            }
        }
    }
}

/// The requests of one cluster in flight and in its queues.
#[derive(Debug)]
pub(crate) struct ClusterLimiter {
    cluster: Arc<str>,
    read_only: ClassLimiter,
    mutating: ClassLimiter,
    process: Arc<ProcessLimit>,
    tenants: Arc<TenantRequests>,
    pace: TenantPace,
    metrics: Arc<Metrics>,
}

/// A request as the limits see it.
pub(crate) struct LimitedRequest<F> {
    /// Which limit counts.
    pub(crate) class: RequestClass,
    /// Names the flow; called only if there is a limit.
    pub(crate) flow: F,
    /// Whether the request is served even if no place of its cluster is free.
    pub(crate) is_exempt: bool,
    /// What it may have of the limit of the process.
    pub(crate) priority: ProcessPriority,
    /// The end of the request, also of its wait.
    pub(crate) deadline: Option<Instant>,
}

/// The places of one request in flight, returned on drop.
#[derive(Debug)]
pub(crate) struct InflightPermit {
    _place: Option<Place>,
    _process: Option<ProcessPlace>,
    /// Keeps the counts, also if the cluster is removed from the configuration and added again.
    _limiter: Arc<ClusterLimiter>,
}

impl ClusterLimiter {
    fn new(
        cluster: &str,
        process: &Arc<ProcessLimit>,
        tenants: &Arc<TenantRequests>,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let class = |class: RequestClass| ClassLimiter::new(cluster, class.label(), &metrics.limits);
        Self {
            cluster: cluster.into(),
            read_only: class(RequestClass::ReadOnly),
            mutating: class(RequestClass::Mutating),
            process: Arc::clone(process),
            tenants: Arc::clone(tenants),
            pace: TenantPace::default(),
            metrics: Arc::clone(metrics),
        }
    }

    /// Puts the limits of a new generation in force. Requests that wait get the places that it adds.
    pub(crate) fn apply(&self, settings: &LimitSettings) {
        self.read_only.apply(settings.max_requests_inflight, settings);
        self.mutating.apply(settings.max_mutating_requests_inflight, settings);
    }

    /// Puts the limit of the process in force, with the shares of so many tenants.
    pub(crate) fn apply_total(&self, limit: usize, tenants: usize) {
        self.process.apply(limit, tenants);
    }

    /// Puts the limits on requests of tenants in force: how many are open, which belongs to the bytes that all buffers may hold,
    /// and how many of one begin in a second.
    pub(crate) fn apply_to_tenants(&self, max_buffered_bytes: usize, per_second: u32, tenants: usize) {
        let waiting = self.tenants.apply(max_buffered_bytes, tenants);
        self.pace.apply(per_second, waiting);
    }

    /// Counts a request from its authentication to its end, a watch too, if it is one of a tenant's cluster, and waits until it may
    /// begin.
    pub(crate) async fn open(
        &self,
        cluster: &ClusterOwner,
        class: RequestClass,
        flow: impl FnOnce() -> FlowName,
        deadline: Option<Instant>,
    ) -> Result<Option<BudgetPermit>, LimitExceeded> {
        let request = NewRequest { cluster, pace: &self.pace, flow, deadline };
        self.tenants.enter(request).await.inspect_err(|exceeded| self.count_refusal(class, *exceeded))
    }

    fn count_refusal(&self, class: RequestClass, exceeded: LimitExceeded) {
        let labels = [&*self.cluster, class.label(), &exceeded.to_string()];
        self.metrics.limits.rejected.with_label_values(&labels).inc();
    }

    /// Waits for a place. `None` if the request needs none: there is no limit, or it is exempt and the limit is reached.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        request: LimitedRequest<impl FnOnce() -> FlowName>,
    ) -> Result<Option<InflightPermit>, LimitExceeded> {
        let LimitedRequest { class, flow, is_exempt, priority, deadline } = request;
        let limiter = match class {
            RequestClass::ReadOnly => &self.read_only,
            RequestClass::Mutating => &self.mutating,
        };
        let result = async {
            let (is_limited, is_limited_in_process) = (limiter.is_limited(), self.process.is_limited());
            if !is_limited && !is_limited_in_process {
                return Ok((None, None));
            }
            let flow = flow();
            let place = if is_limited {
                limiter.acquire(FlowName::clone(&flow), is_exempt, deadline).await?
            } else {
                None
            };
            // After the wait: a request in the queue of one cluster takes nothing from the others.
            let process =
                if is_limited_in_process { self.process.enter(&self.cluster, flow, priority)? } else { None };
            Ok((place, process))
        };
        let (place, process) = result.await.inspect_err(|exceeded| self.count_refusal(class, *exceeded))?;
        let is_counted = place.is_some() || process.is_some();
        Ok(is_counted.then(|| InflightPermit {
            _place: place,
            _process: process,
            _limiter: Arc::clone(self),
        }))
    }
}
