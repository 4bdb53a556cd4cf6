//! Creates metrics and registers them in one step, so that no metric is counted but never exposed.

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// The registry under construction.
#[derive(Debug, Default)]
pub(super) struct Registrar(Registry);

impl Registrar {
    pub(super) fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        let counter = IntCounter::new(name, help)?;
        self.0.register(Box::new(counter.clone()))?;
        Ok(counter)
    }

    pub(super) fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(counters.clone()))?;
        Ok(counters)
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        let gauge = IntGauge::new(name, help)?;
        self.0.register(Box::new(gauge.clone()))?;
        Ok(gauge)
    }

    pub(super) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        let gauges = IntGaugeVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(gauges.clone()))?;
        Ok(gauges)
    }

    pub(super) fn histogram(
        &self,
        name: &str,
        help: &str,
        buckets: Vec<f64>,
    ) -> prometheus::Result<Histogram> {
        let histogram = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))?;
        self.0.register(Box::new(histogram.clone()))?;
        Ok(histogram)
    }

    pub(super) fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: Vec<f64>,
    ) -> prometheus::Result<HistogramVec> {
        let histograms = HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), labels)?;
        self.0.register(Box::new(histograms.clone()))?;
        Ok(histograms)
    }

    /// The registry, complete.
    pub(super) fn finish(self) -> Registry {
        self.0
    }
}
