//! What is counted of controllers, under kube-controller-manager's names where it has one, with the cluster besides.
// kubernetes: k8s.io/component-base/metrics/prometheus/{workqueue,clientgo/leaderelection}

use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, exponential_buckets,
};

/// All that is counted. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct ControllerMetrics {
    /// What waits to be worked on, by cluster and queue.
    pub(crate) depth: IntGaugeVec,
    /// What was added to queues.
    pub(crate) adds: IntCounterVec,
    /// What was put off for another attempt.
    pub(crate) retries: IntCounterVec,
    /// How long it waited.
    pub(crate) waited: HistogramVec,
    /// How long it was worked on.
    pub(crate) worked: HistogramVec,
    /// Whether this replica leads, by cluster and lease.
    pub(crate) leads: IntGaugeVec,
    /// Certificates, by cluster and signer.
    pub(crate) signed: IntCounterVec,
    /// Requests that broke a rule of their signer, by cluster and signer.
    pub(crate) refused: IntCounterVec,
    /// Items that a queue could not keep, by cluster and queue.
    pub(crate) forgotten: IntCounterVec,
    /// Whether a watch fails, by cluster, controller and signer.
    pub(crate) watch_failing: IntGaugeVec,
    /// Writes that somebody else was faster with, by cluster and controller.
    pub(crate) conflicts: IntCounterVec,
    /// When a signer's CA ends, by cluster and signer.
    pub(crate) authority_expiration: IntGaugeVec,
}

impl ControllerMetrics {
    /// All at zero.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counters.clone()))?;
            prometheus::Result::Ok(counters)
        };
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            let gauges = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(gauges.clone()))?;
            prometheus::Result::Ok(gauges)
        };
        let histograms = |name: &str, help: &str| {
            // Ten nanoseconds to ten minutes and more, as upstream.
            let options = HistogramOpts::new(name, help).buckets(exponential_buckets(10e-9, 10.0, 12)?);
            let histograms = HistogramVec::new(options, &["cluster", "name"])?;
            registry.register(Box::new(histograms.clone()))?;
            prometheus::Result::Ok(histograms)
        };
        let (queue, signer) = (["cluster", "name"], ["cluster", "signer"]);
        Ok(Self {
            depth: gauges("workqueue_depth", "Current depth of workqueue.", &queue)?,
            adds: counters("workqueue_adds_total", "Total number of adds handled by workqueue.", &queue)?,
            retries: counters(
                "workqueue_retries_total",
                "Total number of retries handled by workqueue.",
                &queue,
            )?,
            waited: histograms(
                "workqueue_queue_duration_seconds",
                "How long in seconds an item stays in workqueue before being requested.",
            )?,
            worked: histograms(
                "workqueue_work_duration_seconds",
                "How long in seconds processing an item from workqueue takes.",
            )?,
            leads: gauges(
                "leader_election_master_status",
                "Whether this replica's controllers work for a cluster: 1 while it holds the lease.",
                &queue,
            )?,
            signed: counters(
                "portcullis_certificates_signed_total",
                "Certificates that were issued.",
                &signer,
            )?,
            refused: counters(
                "portcullis_certificates_refused_total",
                "Approved requests that broke a rule of their signer and were marked Failed.",
                &signer,
            )?,
            forgotten: counters(
                "portcullis_workqueue_forgotten_total",
                "Items that a full workqueue put off until all objects are listed again.",
                &queue,
            )?,
            watch_failing: gauges(
                "portcullis_controller_watch_failing",
                "Whether a controller cannot list or watch the requests for a signer: 1 while it cannot.",
                &["cluster", "controller", "signer"],
            )?,
            conflicts: counters(
                "portcullis_status_conflicts_total",
                "Writes that were refused because the object had changed since it was read; they are tried again.",
                &["cluster", "controller"],
            )?,
            authority_expiration: gauges(
                "portcullis_signer_ca_expiration_timestamp_seconds",
                "When the CA certificate of a signer ends.",
                &signer,
            )?,
        })
    }
}
