//! Metrics whose label has few values, all known beforehand. Each is looked up by its label once, when it is first
//! needed: with every request it would cost more than counting does.

use std::sync::OnceLock;

use prometheus::core::{MetricVec, MetricVecBuilder};

/// A metric for each set of labels.
pub(crate) trait LabelledVec {
    /// One of them.
    type Metric: Clone;
    /// The one with these labels.
    fn look_up(&self, labels: &[&str]) -> Self::Metric;
}

impl<B: MetricVecBuilder> LabelledVec for MetricVec<B> {
    type Metric = B::M;

    fn look_up(&self, labels: &[&str]) -> B::M {
        self.with_label_values(labels)
    }
}

/// Those whose first label has one of some values.
#[derive(Debug)]
pub(crate) struct CachedMetricVec<V: LabelledVec> {
    all: V,
    values: &'static [&'static str],
    /// What the labels after the first have for values.
    others: &'static [&'static str],
    found: Box<[OnceLock<V::Metric>]>,
}

impl<V: LabelledVec> CachedMetricVec<V> {
    /// Those of `all` whose first label has one of `values`, and whose others have `others`. None of them is shown
    /// before it is needed.
    pub(super) fn new(all: V, values: &'static [&'static str], others: &'static [&'static str]) -> Self {
        let found = values.iter().map(|_| OnceLock::new()).collect();
        Self { all, values, others, found }
    }

    /// The one for this value.
    pub(crate) fn of(&self, value: &str) -> V::Metric {
        let look_up = || {
            let labels: Vec<&str> = std::iter::once(value).chain(self.others.iter().copied()).collect();
            self.all.look_up(&labels)
        };
        let at = self.values.iter().position(|known| *known == value);
        match at.and_then(|at| self.found.get(at)) {
            Some(found) => found.get_or_init(look_up).clone(),
            None => look_up(),
        }
    }

    /// All there are.
    pub(super) fn all(&self) -> &V {
        &self.all
    }
}

#[cfg(test)]
mod tests {
    use prometheus::core::Collector as _;
    use prometheus::{IntCounterVec, Opts};

    use super::*;

    #[test]
    fn each_value_has_its_own_and_none_is_shown_before_it_is_needed() {
        let all = IntCounterVec::new(Opts::new("requests", "Requests."), &["verb", "code"]).unwrap();
        let known = CachedMetricVec::new(all, &["GET", "LIST"], &["200"]);
        for verb in ["LIST", "LIST", "PATCH"] {
            known.of(verb).inc();
        }
        assert_eq!(known.of("LIST").get(), 2);
        assert_eq!(known.all().with_label_values(&["PATCH", "200"]).get(), 1);
        let shown: usize = known.all().collect().iter().map(|family| family.get_metric().len()).sum();
        assert_eq!(shown, 2);
    }
}
