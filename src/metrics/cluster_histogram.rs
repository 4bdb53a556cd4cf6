//! A histogram with the label `cluster`. A part of a cluster holds its series: no value costs a lookup by label, and a cluster
//! without values has no series.

use std::sync::OnceLock;
use std::time::Duration;

use prometheus::{Histogram, HistogramVec};

/// The series of one cluster, exposed from its first value on. The default exposes nothing.
#[derive(Debug, Default)]
pub(crate) struct ClusterHistogram {
    of: Option<(HistogramVec, Box<str>)>,
    found: OnceLock<Option<Histogram>>,
}

impl ClusterHistogram {
    pub(super) fn new(all: &HistogramVec, cluster: &str) -> Self {
        Self { of: Some((all.clone(), cluster.into())), found: OnceLock::new() }
    }

    /// Adds a value.
    pub(crate) fn observe(&self, took: Duration) {
        let look_up = || self.of.as_ref().map(|(all, cluster)| all.with_label_values(&[cluster]));
        if let Some(found) = self.found.get_or_init(look_up) {
            found.observe(took.as_secs_f64());
        }
    }
}
