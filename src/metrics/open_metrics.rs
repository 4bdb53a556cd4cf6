//! The exposition in `OpenMetrics` 1.0, which has exemplars: the `prometheus` crate writes the text format alone, and
//! records none.
// prometheus/common: expfmt/openmetrics_create.go

use std::fmt;

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

use super::exemplars::{Exemplars, RecordedExemplar};

/// Its content type.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A format of `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exposition {
    /// The text format 0.0.4.
    Text,
    /// `OpenMetrics` 1.0.
    OpenMetrics,
}

impl Exposition {
    /// The format that a scraper prefers by its `Accept`: `OpenMetrics` only if that says so.
    // prometheus/common: expfmt/encode.go, NegotiateIncludingOpenMetrics
    pub(crate) fn accepted_by(accept: &str) -> Self {
        let preferred =
            accept.split(',').filter_map(acceptable).rev().max_by(|one, other| one.0.total_cmp(&other.0));
        preferred.map_or(Self::Text, |(_, exposition)| exposition)
    }
}

/// A format with its quality, if a part of `Accept` names one that there is.
fn acceptable(part: &str) -> Option<(f32, Exposition)> {
    let mut parameters = part.split(';').map(str::trim);
    let media_type = parameters.next()?;
    let (mut quality, mut version) = (1.0, "");
    for (name, value) in parameters.filter_map(|parameter| parameter.split_once('=')) {
        match name.trim() {
            "q" => quality = value.trim().parse().ok()?,
            "version" => version = value.trim(),
            _ => {}
        }
    }
    let exposition = match media_type {
        "application/openmetrics-text" if version.is_empty() || version == "1.0.0" => Exposition::OpenMetrics,
        "text/plain" if version.is_empty() || version == "0.0.4" => Exposition::Text,
        _ => return None,
    };
    Some((quality, exposition))
}

/// Metrics as text.
pub(super) struct OpenMetrics<'a> {
    pub(super) families: &'a [MetricFamily],
    pub(super) exemplars: &'a Exemplars,
}

impl fmt::Display for OpenMetrics<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.families.iter().try_for_each(|family| self.write_family(family, f))?;
        f.write_str("# EOF\n")
    }
}

impl OpenMetrics<'_> {
    fn write_family(&self, family: &MetricFamily, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = family.name();
        let (base, kind) = match (family.get_field_type(), name.strip_suffix("_total")) {
            (MetricType::COUNTER, Some(base)) => (base, "counter"),
            // kube-apiserver has counters without the suffix, which the specification wants.
            (MetricType::COUNTER, None) => (name, "unknown"),
            (MetricType::GAUGE, _) => (name, "gauge"),
            (MetricType::HISTOGRAM, _) => (name, "histogram"),
            // There is none.
            (MetricType::SUMMARY | MetricType::UNTYPED, _) => return Ok(()),
        };
        writeln!(f, "# HELP {base} {}", Escaped(family.help()))?;
        writeln!(f, "# TYPE {base} {kind}")?;
        for metric in family.get_metric() {
            match family.get_field_type() {
                MetricType::COUNTER => {
                    writeln!(
                        f,
                        "{name}{} {}",
                        Labels(metric, None),
                        Float(metric.get_counter().get_value())
                    )?;
                }
                MetricType::GAUGE => {
                    writeln!(f, "{name}{} {}", Labels(metric, None), Float(metric.get_gauge().get_value()))?;
                }
                _ => self.write_histogram(name, metric, f)?,
            }
        }
        Ok(())
    }

    fn write_histogram(&self, name: &str, metric: &Metric, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let histogram = metric.get_histogram();
        let buckets = histogram.get_bucket().iter();
        let buckets = buckets.map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()));
        let all = (f64::INFINITY, histogram.get_sample_count());
        let labels: Vec<&str> = metric.get_label().iter().map(LabelPair::value).collect();
        let exemplars = self.exemplars.of(name, &labels);
        for (index, (bound, count)) in buckets.chain([all]).enumerate() {
            write!(f, "{name}_bucket{} {count}", Labels(metric, Some(bound)))?;
            if let Some((_, exemplar)) = exemplars.iter().find(|(bucket, _)| *bucket == index) {
                write_exemplar(exemplar, f)?;
            }
            f.write_str("\n")?;
        }
        let labels = Labels(metric, None);
        writeln!(f, "{name}_sum{labels} {}", Float(histogram.get_sample_sum()))?;
        writeln!(f, "{name}_count{labels} {}", histogram.get_sample_count())
    }
}

fn write_exemplar(exemplar: &RecordedExemplar, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let RecordedExemplar { trace_id, span_id, value, at } = exemplar;
    let (trace_id, span_id) = (u128::from_be_bytes(*trace_id), u64::from_be_bytes(*span_id));
    let at = format_args!("{}.{:03}", at.as_secs(), at.subsec_millis());
    write!(f, " # {{trace_id=\"{trace_id:032x}\",span_id=\"{span_id:016x}\"}} {} {at}", Float(*value))
}

/// The labels of a sample, with the upper bound of a bucket.
#[derive(Clone, Copy)]
struct Labels<'a>(&'a Metric, Option<f64>);

impl fmt::Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(metric, bound) = self;
        let mut separator = "{";
        for label in metric.get_label() {
            write!(f, "{separator}{}=\"{}\"", label.name(), Escaped(label.value()))?;
            separator = ",";
        }
        if let Some(bound) = bound {
            write!(f, "{separator}le=\"{}\"", Float(*bound))?;
            separator = ",";
        }
        if separator == "{" { Ok(()) } else { f.write_str("}") }
    }
}

/// A number that shows that it is not an integer.
struct Float(f64);

impl fmt::Display for Float {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            value if value == f64::INFINITY => f.write_str("+Inf"),
            value if value == f64::NEG_INFINITY => f.write_str("-Inf"),
            value => write!(f, "{value:?}"),
        }
    }
}

struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '\n' => f.write_str("\\n"),
            '"' => f.write_str("\\\""),
            c => write!(f, "{c}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use portcullis_system::clock::UnixTime;

    use super::*;
    use crate::metrics::{Exemplar, Metrics};

    #[test]
    fn the_scrapers_preference_decides() {
        const PROMETHEUS: &str = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
            application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, expected) in [
            ("", Exposition::Text),
            ("*/*", Exposition::Text),
            (PROMETHEUS, Exposition::OpenMetrics),
            ("application/openmetrics-text", Exposition::OpenMetrics),
            ("application/openmetrics-text; version=1.0.0; charset=utf-8", Exposition::OpenMetrics),
            ("application/openmetrics-text; version=0.0.1", Exposition::Text),
            ("text/plain;version=0.0.4;q=0.9, application/openmetrics-text;q=0.4", Exposition::Text),
            ("text/plain, application/openmetrics-text", Exposition::Text),
            ("application/openmetrics-text;q=x", Exposition::Text),
            ("application/json", Exposition::Text),
        ] {
            assert_eq!(Exposition::accepted_by(accept), expected, "{accept}");
        }
    }

    #[test]
    fn samples_have_their_type_and_the_exemplar_of_their_bucket() {
        let metrics = Metrics::new();
        metrics.authentication.attempts.of("success").inc();
        metrics.requests.ended("GET", 200);
        let exemplar =
            Exemplar { trace_id: [0xab; 16], span_id: [1; 8], at: UnixTime::from_millis(1_700_000_000_250) };
        for (verb, millis, exemplar) in
            [("GET", 5, Some(exemplar)), ("GET", 70_000, Some(exemplar)), ("LIST", 1, None)]
        {
            metrics.requests.answered(verb, Duration::from_millis(millis), exemplar);
        }
        let (text, content_type) = metrics.expose(Exposition::OpenMetrics);
        assert_eq!(content_type, CONTENT_TYPE);
        let id = "abababababababababababababababab";
        for line in [
            "# TYPE apiserver_request counter".to_owned(),
            "apiserver_request_total{code=\"200\",verb=\"GET\"} 1.0".to_owned(),
            "# TYPE authentication_attempts unknown".to_owned(),
            "authentication_attempts{result=\"success\"} 1.0".to_owned(),
            "portcullis_config_generation 0.0".to_owned(),
            // The bound belongs to the bucket.
            format!(
                "apiserver_request_duration_seconds_bucket{{verb=\"GET\",le=\"0.005\"}} 1 # {{trace_id=\"{id}\",\
                 span_id=\"0101010101010101\"}} 0.005 1700000000.250"
            ),
            "apiserver_request_duration_seconds_bucket{verb=\"GET\",le=\"1.0\"} 1".to_owned(),
            format!(
                "apiserver_request_duration_seconds_bucket{{verb=\"GET\",le=\"+Inf\"}} 2 # {{trace_id=\"{id}\",\
                 span_id=\"0101010101010101\"}} 70.0 1700000000.250"
            ),
            "apiserver_request_duration_seconds_bucket{verb=\"LIST\",le=\"0.005\"} 1".to_owned(),
            "apiserver_request_duration_seconds_count{verb=\"GET\"} 2".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
        assert!(text.ends_with("\n# EOF\n"));
        let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
        let mut families: Vec<&str> = families.collect();
        let all = families.len();
        families.sort_unstable();
        families.dedup();
        assert_eq!(families.len(), all, "two families have one name without `_total`");
        let (text, _) = metrics.expose(Exposition::Text);
        assert!(!text.contains("trace_id"));
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(Escaped("a\"b\\c\nd").to_string(), "a\\\"b\\\\c\\nd");
    }
}
