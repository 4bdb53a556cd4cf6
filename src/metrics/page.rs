//! Metrics of the page.

use http::StatusCode;
use prometheus::IntCounterVec;

use super::registrar::Registrar;

/// Metrics of the page.
#[derive(Debug)]
pub(crate) struct PageMetrics {
    /// By `code`.
    requests: IntCounterVec,
}

impl PageMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        Ok(Self {
            requests: registrar.counters(
                "portcullis_page_requests_total",
                "Requests to the page of the clusters, by status code.",
                &["code"],
            )?,
        })
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, code: StatusCode) {
        self.requests.with_label_values(&[code.as_str()]).inc();
    }
}
