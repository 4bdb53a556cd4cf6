//! Metrics of configuration reloads.

use prometheus::{IntCounterVec, IntGauge};

use super::registrar::Registrar;
use crate::clock::UnixTime;

/// Metrics of configuration reloads.
#[derive(Debug)]
pub(crate) struct ConfigMetrics {
    /// By `result`: success, failure.
    reloads: IntCounterVec,
    last_reload_successful: IntGauge,
    last_success: IntGauge,
    generation: IntGauge,
}

impl ConfigMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        Ok(Self {
            reloads: registrar.counters(
                "portcullis_config_reloads_total",
                "Configuration loads, the first one included, by result.",
                &["result"],
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
        })
    }

    /// Records a configuration that came into use.
    pub(crate) fn reloaded(&self, generation: u64, now: UnixTime) {
        self.reloads.with_label_values(&["success"]).inc();
        self.last_reload_successful.set(1);
        self.last_success.set(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        self.generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
    }

    /// Records a failed reload; the previous configuration stays in use.
    pub(crate) fn refused(&self) {
        self.reloads.with_label_values(&["failure"]).inc();
        self.last_reload_successful.set(0);
    }
}
