//! Metrics of the export of spans.

use std::sync::{Arc, Mutex, OnceLock};

use portcullis_otlp::export::ExportCounts;
use portcullis_system::sync::lock;
use prometheus::IntCounter;

use super::registrar::Registrar;

/// Metrics of the export of spans. The exporter counts by itself; each exposition takes over its counts.
#[derive(Debug)]
pub(crate) struct TraceMetrics {
    counts: OnceLock<Arc<ExportCounts>>,
    series: Mutex<TraceSeries>,
}

#[derive(Debug)]
struct TraceSeries {
    exported: IntCounter,
    queue_full: IntCounter,
    failed: IntCounter,
}

impl TraceMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        let exported = registrar.counter(
            "portcullis_trace_spans_exported_total",
            "Spans that the collector of traces has accepted.",
        )?;
        let dropped = registrar.counters(
            "portcullis_trace_spans_dropped_total",
            "Spans that are lost, by the cause: queue_full or failed.",
            &["cause"],
        )?;
        let series = TraceSeries {
            exported,
            queue_full: dropped.with_label_values(&["queue_full"]),
            failed: dropped.with_label_values(&["failed"]),
        };
        Ok(Self { counts: OnceLock::new(), series: Mutex::new(series) })
    }

    /// Exposes the counts of the process's exporter; those of a second one are not exposed.
    pub(crate) fn expose(&self, counts: Arc<ExportCounts>) {
        self.counts.get_or_init(|| counts);
    }

    /// Takes over the exporter's counts.
    pub(super) fn update(&self) {
        let Some(counts) = self.counts.get() else { return };
        // Under the lock, so that two expositions at once do not both add the same difference.
        let series = lock(&self.series);
        for (counter, count) in [
            (&series.exported, counts.exported()),
            (&series.queue_full, counts.queue_full()),
            (&series.failed, counts.failed()),
        ] {
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use portcullis_limits::Owner;
    use portcullis_otlp::context::SpanContext;
    use portcullis_otlp::export::{ExportSettings, Span, SpanKind, exporter};

    use crate::metrics::Metrics;

    fn span() -> Span {
        let parent = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        Span {
            context: SpanContext::parse(parent, None).unwrap(),
            parent: None,
            link: None,
            name: "GET".into(),
            kind: SpanKind::Server,
            start: 1,
            end: 2,
            attributes: Vec::new(),
            failed: false,
        }
    }

    fn lines(metrics: &Metrics) -> Vec<String> {
        let (text, _) = metrics.render();
        text.lines().filter(|line| line.starts_with("portcullis_trace_")).map(str::to_owned).collect()
    }

    #[tokio::test]
    async fn each_exposition_has_the_counts_of_the_exporter() {
        let metrics = Metrics::new();
        let settings =
            ExportSettings { endpoint: "not an address".into(), service: "a".into(), instance: "b".into() };
        let (queue, exporter) = exporter(settings, |_| ());
        metrics.traces.expose(queue.counts().clone());
        // More than may wait: nothing empties the queue yet.
        let mut sent = 0;
        while queue.counts().queue_full() < 3 {
            queue.push(Owner::Gateway, span());
            sent += 1;
            assert!(sent < 100_000, "the queue is bounded");
        }
        let expected = |failed: u64| {
            [
                format!("portcullis_trace_spans_dropped_total{{cause=\"failed\"}} {failed}"),
                "portcullis_trace_spans_dropped_total{cause=\"queue_full\"} 3".to_owned(),
                "portcullis_trace_spans_exported_total 0".to_owned(),
            ]
        };
        assert_eq!(lines(&metrics), expected(0));
        assert_eq!(lines(&metrics), expected(0), "nothing counts twice");
        drop(queue);
        exporter.run(pending()).await;
        assert_eq!(lines(&metrics), expected(sent - 3));
    }
}
