//! Metric vectors whose first label has few, known values. Each series is resolved once, on first use: a lookup by
//! label for every request would cost more than the increment.

use std::ops::Deref;
use std::sync::OnceLock;

use prometheus::core::{MetricVec, MetricVecBuilder};

/// A metric vector.
pub(crate) trait LabelledVec {
    /// One series of the vector.
    type Metric: Clone;
    /// The series with these label values.
    fn look_up(&self, labels: &[&str]) -> Self::Metric;
}

impl<B: MetricVecBuilder> LabelledVec for MetricVec<B> {
    type Metric = B::M;

    fn look_up(&self, labels: &[&str]) -> B::M {
        self.with_label_values(labels)
    }
}

/// A metric vector that caches the series of the known values of its first label.
#[derive(Debug)]
pub(crate) struct CachedMetricVec<V: LabelledVec> {
    all: V,
    values: &'static [&'static str],
    /// The values of the labels after the first.
    others: &'static [&'static str],
    found: Box<[OnceLock<V::Metric>]>,
}

/// A series, cached or looked up.
pub(crate) enum Series<'a, M> {
    /// A cached one: to clone it would cost more than the increment.
    Cached(&'a M),
    /// One of a value that is not known.
    LookedUp(M),
}

impl<M> Deref for Series<'_, M> {
    type Target = M;

    fn deref(&self) -> &M {
        match self {
            Self::Cached(series) => series,
            Self::LookedUp(series) => series,
        }
    }
}

impl<V: LabelledVec> CachedMetricVec<V> {
    /// Caches the series of `all` whose first label is one of `values` and whose other labels are `others`. A series is
    /// exposed only after its first use.
    pub(super) fn new(all: V, values: &'static [&'static str], others: &'static [&'static str]) -> Self {
        let found = values.iter().map(|_| OnceLock::new()).collect();
        Self { all, values, others, found }
    }

    /// The series with this value of the first label.
    pub(crate) fn of(&self, value: &str) -> Series<'_, V::Metric> {
        let look_up = || {
            let labels: Vec<&str> = std::iter::once(value).chain(self.others.iter().copied()).collect();
            self.all.look_up(&labels)
        };
        let at = self.values.iter().position(|known| *known == value);
        match at.and_then(|at| self.found.get(at)) {
            Some(found) => Series::Cached(found.get_or_init(look_up)),
            None => Series::LookedUp(look_up()),
        }
    }

    /// The underlying vector.
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
    fn each_value_has_its_own_series_and_an_unused_series_is_not_exposed() {
        let all = IntCounterVec::new(Opts::new("requests", "Requests."), &["verb", "code"]).unwrap();
        let cached = CachedMetricVec::new(all, &["GET", "LIST"], &["200"]);
        for verb in ["LIST", "LIST", "PATCH"] {
            cached.of(verb).inc();
        }
        assert_eq!(cached.of("LIST").get(), 2);
        assert_eq!(cached.all().with_label_values(&["PATCH", "200"]).get(), 1);
        let shown: usize = cached.all().collect().iter().map(|family| family.get_metric().len()).sum();
        assert_eq!(shown, 2);
    }
}
