//! Metrics of configuration reloads.

use std::time::Duration;

use portcullis_system::clock::UnixTime;
use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::registrar::Registrar;

/// A cluster that keeps an old configuration, and why: `refused`, `pending`.
pub(crate) type StaleCluster = (String, &'static str);

/// Metrics of configuration reloads.
#[derive(Debug)]
pub(crate) struct ConfigMetrics {
    /// By `result`: success, failure.
    reloads: IntCounterVec,
    reload_duration: Histogram,
    last_reload_successful: IntGauge,
    last_success: IntGauge,
    generation: IntGauge,
    clusters: IntGauge,
    clusters_rebuilt: IntCounter,
    clusters_refused: IntGauge,
    refusals: IntCounter,
    /// By cluster and `cause`.
    clusters_stale: IntGaugeVec,
    /// By `result`.
    management_syncs: IntCounterVec,
    management_last_sync: IntGauge,
}

impl ConfigMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        Ok(Self {
            reloads: registrar.counters(
                "portcullis_config_reloads_total",
                "Configuration loads, the first one included, by result.",
                &["result"],
            )?,
            reload_duration: registrar.histogram(
                "portcullis_config_reload_duration_seconds",
                "Time to read a changed configuration, and to build and use the new generation, if it can be used.",
                vec![0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0],
            )?,
            clusters_stale: registrar.gauges(
                "portcullis_cluster_stale",
                "1 for a cluster whose configuration in use is not the one in its file or Secret, by cause.",
                &["cluster", "cause"],
            )?,
            last_reload_successful: registrar.gauge(
                "portcullis_config_last_reload_successful",
                "Whether the configuration in use is the one in the files: 0 after a failed reload.",
            )?,
            last_success: registrar.gauge(
                "portcullis_config_last_reload_success_timestamp_seconds",
                "When the configuration in use was loaded.",
            )?,
            generation: registrar
                .gauge("portcullis_config_generation", "The generation of the configuration in use.")?,
            clusters: registrar.gauge("portcullis_clusters", "The clusters in use.")?,
            clusters_rebuilt: registrar.counter(
                "portcullis_clusters_rebuilt_total",
                "Clusters that a load of the configuration has built; unchanged ones are kept.",
            )?,
            clusters_refused: registrar.gauge(
                "portcullis_clusters_refused",
                "Clusters whose own file is refused: they are as before, or not served.",
            )?,
            refusals: registrar.counter(
                "portcullis_cluster_refusals_total",
                "How often the own file of a cluster was refused.",
            )?,
            management_syncs: registrar.counters(
                "portcullis_management_cluster_syncs_total",
                "Reads of the management cluster's Secrets, by result.",
                &["result"],
            )?,
            management_last_sync: registrar.gauge(
                "portcullis_management_cluster_last_sync_timestamp_seconds",
                "When the management cluster's Secrets were last known to be up to date.",
            )?,
        })
    }

    /// Records a configuration that came into use.
    pub(crate) fn reloaded(&self, generation: u64, now: UnixTime) {
        self.reloads.with_label_values(&["success"]).inc();
        self.last_reload_successful.set(1);
        self.last_success.set(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        self.generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
    }

    /// Records the clusters that came into use, and how many of them were built anew.
    pub(crate) fn clusters_in_use(&self, clusters: usize, rebuilt: usize) {
        self.clusters.set(i64::try_from(clusters).unwrap_or(i64::MAX));
        self.clusters_rebuilt.inc_by(u64::try_from(rebuilt).unwrap_or_default());
    }

    /// Records how many clusters are refused.
    pub(crate) fn refused_clusters(&self, refused: usize) {
        self.clusters_refused.set(i64::try_from(refused).unwrap_or(i64::MAX));
    }

    /// Records how long an attempt to reload took.
    pub(crate) fn reload_took(&self, took: Duration) {
        self.reload_duration.observe(took.as_secs_f64());
    }

    /// Replaces the clusters that keep an old configuration, each with its cause, by others.
    pub(crate) fn replace_stale(&self, before: &[StaleCluster], now: &[StaleCluster]) {
        let labels = |(cluster, cause): &StaleCluster| [cluster.clone(), (*cause).to_owned()];
        for old in before.iter().filter(|old| !now.contains(old)) {
            // It was set when it became stale.
            self.clusters_stale.remove_label_values(&labels(old)).ok();
        }
        for stale in now {
            self.clusters_stale.with_label_values(&labels(stale)).set(1);
        }
    }

    /// Counts a refusal of one cluster's configuration.
    pub(crate) fn cluster_refused(&self) {
        self.refusals.inc();
    }

    /// The Secrets of the management cluster were read.
    pub(crate) fn management_synced(&self, now: UnixTime) {
        self.management_syncs.with_label_values(&["success"]).inc();
        self.management_last_sync.set(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    }

    /// The Secrets of the management cluster could not be read.
    pub(crate) fn management_failed(&self) {
        self.management_syncs.with_label_values(&["failure"]).inc();
    }

    /// Records a failed reload; the previous configuration stays in use.
    pub(crate) fn refused(&self) {
        self.reloads.with_label_values(&["failure"]).inc();
        self.last_reload_successful.set(0);
    }
}
