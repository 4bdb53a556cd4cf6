//! Creates metrics and registers them in one step, so that no metric is counted but never exposed.

use std::cell::RefCell;
use std::collections::BTreeMap;

use prometheus::core::Collector;
use prometheus::{
    Counter, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry,
};

use super::observations::Observations;

/// The registry under construction, and the labels of each metric by its name.
#[derive(Debug, Default)]
pub(super) struct Registrar(Registry, RefCell<MetricLabels>);

/// The labels of each metric, by its name.
pub(crate) type MetricLabels = BTreeMap<String, Vec<String>>;

impl Registrar {
    pub(super) fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        let counter = IntCounter::new(name, help)?;
        self.register(Box::new(counter.clone()), name, &[])?;
        Ok(counter)
    }

    pub(super) fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
        self.register(Box::new(counters.clone()), name, labels)?;
        Ok(counters)
    }

    pub(super) fn float_counter(&self, name: &str, help: &str) -> prometheus::Result<Counter> {
        let counter = Counter::new(name, help)?;
        self.register(Box::new(counter.clone()), name, &[])?;
        Ok(counter)
    }

    pub(super) fn float_gauge(&self, name: &str, help: &str) -> prometheus::Result<Gauge> {
        let gauge = Gauge::new(name, help)?;
        self.register(Box::new(gauge.clone()), name, &[])?;
        Ok(gauge)
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        let gauge = IntGauge::new(name, help)?;
        self.register(Box::new(gauge.clone()), name, &[])?;
        Ok(gauge)
    }

    pub(super) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        let gauges = IntGaugeVec::new(Opts::new(name, help), labels)?;
        self.register(Box::new(gauges.clone()), name, labels)?;
        Ok(gauges)
    }

    pub(super) fn histogram(
        &self,
        name: &str,
        help: &str,
        buckets: Vec<f64>,
    ) -> prometheus::Result<Histogram> {
        let histogram = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))?;
        self.register(Box::new(histogram.clone()), name, &["le"])?;
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
        self.register(Box::new(histograms.clone()), name, &[labels, &["le"]].concat())?;
        Ok(histograms)
    }

    /// A counter with the number of observations of each series of `histograms`, which have the same labels.
    pub(super) fn observations(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        histograms: &HistogramVec,
    ) -> prometheus::Result<()> {
        let counters = Observations::new(name, help, labels, histograms)?;
        self.register(Box::new(counters), name, labels)
    }

    fn register(&self, collector: Box<dyn Collector>, name: &str, labels: &[&str]) -> prometheus::Result<()> {
        self.0.register(collector)?;
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        self.1.borrow_mut().insert(name.to_owned(), labels);
        Ok(())
    }

    /// The labels of the metrics so far.
    pub(super) fn labels(&self) -> MetricLabels {
        self.1.borrow().clone()
    }

    /// The registry, complete.
    pub(super) fn finish(self) -> Registry {
        self.0
    }
}
