//! Exemplars: for each bucket of the duration of requests the last sampled request, so that a slow one leads to its trace.
//!
//! Only sampled requests come here, so that a lock is cheap. At most one exemplar is kept for each verb and bucket.
// component-base: metrics/histogram.go, exemplarHistogramVec

use std::collections::BTreeMap;
use std::sync::Mutex;

use portcullis_system::clock::UnixTime;
use portcullis_system::sync::lock;

/// The span of a sampled request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exemplar {
    /// Its trace.
    pub(crate) trace_id: [u8; 16],
    /// The span.
    pub(crate) span_id: [u8; 8],
    /// When it ended.
    pub(crate) at: UnixTime,
}

/// An exemplar with its value.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecordedExemplar {
    pub(super) trace_id: [u8; 16],
    pub(super) span_id: [u8; 8],
    pub(super) value: f64,
    pub(super) at: UnixTime,
}

/// The exemplars of one histogram with one label, whose values are few and known.
#[derive(Debug)]
pub(super) struct Exemplars {
    histogram: &'static str,
    bounds: Vec<f64>,
    /// By the value of the label, and the index of the bucket.
    last: Mutex<BTreeMap<(&'static str, usize), RecordedExemplar>>,
}

impl Exemplars {
    pub(super) fn new(histogram: &'static str, bounds: Vec<f64>) -> Self {
        Self { histogram, bounds, last: Mutex::default() }
    }

    /// Keeps an exemplar, in the place of the one before in its bucket.
    pub(super) fn record(&self, label: &'static str, value: f64, exemplar: Exemplar) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        let Exemplar { trace_id, span_id, at } = exemplar;
        lock(&self.last).insert((label, bucket), RecordedExemplar { trace_id, span_id, value, at });
    }

    /// The exemplars of a series, with the index of their bucket.
    pub(super) fn of(&self, histogram: &str, labels: &[&str]) -> Vec<(usize, RecordedExemplar)> {
        let [label] = labels else { return Vec::new() };
        if histogram != self.histogram {
            return Vec::new();
        }
        let last = lock(&self.last);
        let of_series = last.iter().filter(|((known, _), _)| known == label);
        of_series.map(|((_, bucket), exemplar)| (*bucket, *exemplar)).collect()
    }
}
