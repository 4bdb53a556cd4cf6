//! Metrics in the text format of Prometheus.

/// The sum of a metric over all series with these labels, in the text that a server exposes.
pub fn sum_metric(metrics: &str, metric: &str, labels: &[&str]) -> u64 {
    let of_metric = |line: &&str| line.strip_prefix(metric).is_some_and(|rest| rest.starts_with('{'));
    let labelled = |line: &&str| labels.iter().all(|label| line.contains(label));
    let value = |line: &str| line.rsplit(' ').next()?.parse::<u64>().ok();
    metrics.lines().filter(of_metric).filter(labelled).filter_map(value).sum()
}
