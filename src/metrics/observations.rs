//! Counters of what histograms observe, for metrics that kube-apiserver has as both: a request counts once.

use prometheus::HistogramVec;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Metric, MetricFamily, MetricType};

/// A counter for each series of a histogram, with the number of its observations.
pub(super) struct Observations {
    histograms: HistogramVec,
    desc: Desc,
}

impl Observations {
    pub(super) fn new(
        name: &str,
        help: &str,
        labels: &[&str],
        histograms: &HistogramVec,
    ) -> prometheus::Result<Self> {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let desc = Desc::new(name.to_owned(), help.to_owned(), labels, std::collections::HashMap::new())?;
        Ok(Self { histograms: histograms.clone(), desc })
    }
}

impl Collector for Observations {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let counted = self.histograms.collect().into_iter().map(|observed| {
            let mut family = MetricFamily::default();
            family.set_name(self.desc.fq_name.clone());
            family.set_help(self.desc.help.clone());
            family.set_field_type(MetricType::COUNTER);
            family.set_metric(observed.get_metric().iter().map(counter).collect());
            family
        });
        counted.collect()
    }
}

/// The counter of one series.
fn counter(observed: &Metric) -> Metric {
    let mut counter = Counter::default();
    #[expect(
        clippy::cast_precision_loss,
        clippy::as_conversions,
        reason = "counters in this format are floats"
    )]
    counter.set_value(observed.get_histogram().get_sample_count() as f64);
    let mut metric = Metric::from_label(observed.get_label().to_vec());
    metric.set_counter(counter);
    metric
}

#[cfg(test)]
mod tests {
    use prometheus::{HistogramOpts, Registry, TextEncoder};

    use super::*;

    #[test]
    fn each_series_counts_its_observations() {
        let registry = Registry::new();
        let histograms =
            HistogramVec::new(HistogramOpts::new("attempts_duration_seconds", "Latency."), &["mode"])
                .unwrap();
        let counters = Observations::new("attempts_total", "Attempts.", &["mode"], &histograms).unwrap();
        registry.register(Box::new(counters)).unwrap();
        let text = || TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        assert_eq!(text(), "", "nothing is exposed before its first use");
        for mode in ["legacy", "user-info", "legacy"] {
            histograms.with_label_values(&[mode]).observe(0.5);
        }
        assert_eq!(
            text(),
            "# HELP attempts_total Attempts.\n\
             # TYPE attempts_total counter\n\
             attempts_total{mode=\"legacy\"} 2\n\
             attempts_total{mode=\"user-info\"} 1\n"
        );
    }
}
