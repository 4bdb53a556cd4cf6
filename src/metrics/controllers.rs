//! Metrics of controllers, under kube-controller-manager's names where it has the same metric, with a label for the
//! cluster.
// component-base: metrics/prometheus/{workqueue,clientgo/leaderelection}

use prometheus::{HistogramVec, IntCounterVec, IntGaugeVec, exponential_buckets};

use super::registrar::Registrar;

/// Metrics of controllers. Clones share the same counters.
#[derive(Debug, Clone)]
pub(crate) struct ControllerMetrics {
    /// Items that wait in the queue, by cluster and queue.
    pub(crate) depth: IntGaugeVec,
    /// Items added, by cluster and queue.
    pub(crate) adds: IntCounterVec,
    /// Failed attempts that are retried, by cluster and queue.
    pub(crate) retries: IntCounterVec,
    /// How long items waited in the queue, by cluster and queue.
    pub(crate) waited: HistogramVec,
    /// How long attempts took, by cluster and queue.
    pub(crate) worked: HistogramVec,
    /// Whether this replica leads, by cluster and lease.
    pub(crate) leads: IntGaugeVec,
    /// Certificates issued, by cluster and signer.
    pub(crate) signed: IntCounterVec,
    /// Requests that violated a rule of their signer, by cluster and signer.
    pub(crate) refused: IntCounterVec,
    /// Items dropped from a full queue, by cluster and queue.
    pub(crate) forgotten: IntCounterVec,
    /// Whether a watch fails, by cluster, controller and signer.
    pub(crate) watch_failing: IntGaugeVec,
    /// Writes refused with 409 Conflict, by cluster and controller.
    pub(crate) conflicts: IntCounterVec,
    /// Certificates that could not be logged, by cluster and controller.
    pub(crate) log_errors: IntCounterVec,
    /// When a signer's CA certificate expires, by cluster and signer.
    pub(crate) authority_expiration: IntGaugeVec,
    /// Whether a signer's key in a token can be used, by cluster and signer.
    pub(crate) token_keys: IntGaugeVec,
    /// The size of a record of certificates for pods, by cluster, signer and record.
    pub(crate) record_size: IntGaugeVec,
}

impl ControllerMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        let (queue, signer) = (["cluster", "name"], ["cluster", "signer"]);
        // Ten nanoseconds to more than ten minutes, as in client-go's workqueue metrics.
        let buckets = exponential_buckets(10e-9, 10.0, 12)?;
        Ok(Self {
            depth: registrar.gauges("workqueue_depth", "Current depth of workqueue.", &queue)?,
            adds: registrar.counters(
                "workqueue_adds_total",
                "Total number of adds handled by workqueue.",
                &queue,
            )?,
            retries: registrar.counters(
                "workqueue_retries_total",
                "Total number of retries handled by workqueue.",
                &queue,
            )?,
            waited: registrar.histograms(
                "workqueue_queue_duration_seconds",
                "How long in seconds an item stays in workqueue before being requested.",
                &queue,
                buckets.clone(),
            )?,
            worked: registrar.histograms(
                "workqueue_work_duration_seconds",
                "How long in seconds processing an item from workqueue takes.",
                &queue,
                buckets,
            )?,
            leads: registrar.gauges(
                "leader_election_master_status",
                "Whether this replica's controllers work for a cluster: 1 while it holds the lease.",
                &queue,
            )?,
            signed: registrar.counters(
                "portcullis_certificates_signed_total",
                "Certificates issued.",
                &signer,
            )?,
            refused: registrar.counters(
                "portcullis_certificates_refused_total",
                "Requests that violated a rule of their signer and were marked Failed or Denied.",
                &signer,
            )?,
            forgotten: registrar.counters(
                "portcullis_workqueue_forgotten_total",
                "Items dropped from a full workqueue; the next list finds them again.",
                &queue,
            )?,
            watch_failing: registrar.gauges(
                "portcullis_controller_watch_failing",
                "Whether a controller cannot list or watch the requests for a signer: 1 while it cannot.",
                &["cluster", "controller", "signer"],
            )?,
            conflicts: registrar.counters(
                "portcullis_status_conflicts_total",
                "Writes refused with 409 Conflict because the object had changed since it was read.",
                &["cluster", "controller"],
            )?,
            log_errors: registrar.counters(
                "portcullis_certificate_log_errors_total",
                "Certificates that could not be appended to the certificate log.",
                &["cluster", "controller"],
            )?,
            authority_expiration: registrar.gauges(
                "portcullis_signer_ca_expiration_timestamp_seconds",
                "When the CA certificate of a signer expires.",
                &signer,
            )?,
            token_keys: registrar.gauges(
                "portcullis_signer_token_key_available",
                "Whether the key of a signer in a PKCS#11 token could be used when it was last tried.",
                &signer,
            )?,
            record_size: registrar.gauges(
                "portcullis_signer_record_bytes",
                "Size of a record of a signer of certificates for pods: index, of at most 64 MiB, or revoked, of 28 MiB.",
                &["cluster", "signer", "record"],
            )?,
        })
    }
}
