//! Metrics of revocation.

use prometheus::{IntCounterVec, IntGauge};

use super::registrar::Registrar;

/// Metrics of revocation.
#[derive(Debug)]
pub(crate) struct RevocationMetrics {
    /// By `source`: crl, `stale_crl`, `deny_list`.
    pub(crate) revoked: IntCounterVec,
    /// By `result`: success, failure.
    pub(crate) deny_list_reloads: IntCounterVec,
    /// The CRLs in use that are stale.
    pub(crate) stale_crls: IntGauge,
}

impl RevocationMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        Ok(Self {
            revoked: registrar.counters(
                "portcullis_revoked_credentials_total",
                "Credentials refused because they are revoked, by source: crl, stale_crl, deny_list.",
                &["source"],
            )?,
            deny_list_reloads: registrar.counters(
                "portcullis_credential_deny_list_reloads_total",
                "Changes of credential deny lists, by result: after a failure the old list stays in force.",
                &["result"],
            )?,
            stale_crls: registrar
                .gauge("portcullis_client_crls_stale", "Client CRLs in use whose nextUpdate has passed.")?,
        })
    }
}
