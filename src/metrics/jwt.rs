//! Metrics of JWT issuers. The label of an issuer is the hash of its URL, as in kube-apiserver.
// apiserver: plugin/pkg/authenticator/token/oidc/metrics.go — without the label for one of several API servers

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use portcullis_go::hex::hex;
use portcullis_system::clock::Clock;
use portcullis_system::sync::lock;
use prometheus::{HistogramVec, IntGaugeVec};

use super::registrar::Registrar;

/// Metrics of all JWT issuers.
#[derive(Debug, Clone)]
pub(crate) struct JwtMetrics {
    /// By `result` and issuer.
    latency: HistogramVec,
    /// By `result` and issuer.
    fetched: IntGaugeVec,
    /// By issuer and hash; 1 for the key set of the last fetch.
    key_set: IntGaugeVec,
    /// The hash of the last key set of each issuer.
    hashes: Arc<Mutex<BTreeMap<String, String>>>,
    /// The issuers in the configuration.
    configured: Arc<Mutex<BTreeMap<String, Weak<IssuerSeries>>>>,
}

/// The metrics of one issuer, shared by all clusters that trust it. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct JwtIssuerMetrics(Arc<IssuerSeries>);

/// The exposed series of an issuer; dropping it removes them.
#[derive(Debug)]
struct IssuerSeries {
    all: JwtMetrics,
    clock: Clock,
    hash: String,
}

impl JwtMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        Ok(Self {
            latency: registrar.histograms(
                "apiserver_authentication_jwt_authenticator_latency_seconds",
                "Latency of jwt authentication operations in seconds, for tokens that were not cached.",
                &["result", "jwt_issuer_hash"],
                vec![0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0],
            )?,
            fetched: registrar.gauges(
                "apiserver_authentication_jwt_authenticator_jwks_fetch_last_timestamp_seconds",
                "Timestamp of the last fetch of an issuer's keys, by result and issuer.",
                &["result", "jwt_issuer_hash"],
            )?,
            key_set: registrar.gauges(
                "apiserver_authentication_jwt_authenticator_jwks_fetch_last_key_set_info",
                "The last fetched key set of an issuer, by its hash.",
                &["jwt_issuer_hash", "hash"],
            )?,
            hashes: Arc::default(),
            configured: Arc::default(),
        })
    }

    /// The metrics of the issuer with this URL.
    pub(crate) fn issuer(&self, url: &str, clock: Clock) -> JwtIssuerMetrics {
        let hash = sha256(url.as_bytes());
        let mut configured = lock(&self.configured);
        if let Some(known) = configured.get(&hash).and_then(Weak::upgrade) {
            return JwtIssuerMetrics(known);
        }
        let series = Arc::new(IssuerSeries { all: self.clone(), clock, hash: hash.clone() });
        configured.insert(hash, Arc::downgrade(&series));
        JwtIssuerMetrics(series)
    }

    fn replace_key_set(&self, issuer: &str, hash: Option<String>) {
        let mut hashes = lock(&self.hashes);
        if let Some(old) = hashes.remove(issuer) {
            self.key_set.remove_label_values(&[issuer, &old]).ok();
        }
        if let Some(hash) = hash {
            self.key_set.with_label_values(&[issuer, &hash]).set(1);
            hashes.insert(issuer.to_owned(), hash);
        }
    }
}

impl JwtIssuerMetrics {
    /// Records the validation of a token of this issuer.
    pub(crate) fn validated(&self, success: bool, took: Duration) {
        let IssuerSeries { all, hash, .. } = &*self.0;
        all.latency.with_label_values(&[result(success), hash]).observe(took.as_secs_f64());
    }

    /// Records a fetch of the key set; `None` is a failed fetch.
    pub(crate) fn keys_fetched(&self, key_set: Option<&[u8]>) {
        let IssuerSeries { all, clock, hash } = &*self.0;
        if let Some(key_set) = key_set {
            all.replace_key_set(hash, Some(sha256(key_set)));
        }
        let now = i64::try_from(clock.now().as_secs()).unwrap_or(i64::MAX);
        all.fetched.with_label_values(&[result(key_set.is_some()), hash]).set(now);
    }
}

impl Drop for IssuerSeries {
    fn drop(&mut self) {
        let mut configured = lock(&self.all.configured);
        // A reload may have configured the issuer again.
        if configured.get(&self.hash).is_none_or(|known| known.strong_count() > 0) {
            return;
        }
        configured.remove(&self.hash);
        for labels in [true, false].map(|success| [result(success), &self.hash]) {
            // A series without a fetch or a token does not exist.
            self.all.fetched.remove_label_values(&labels).ok();
            self.all.latency.remove_label_values(&labels).ok();
        }
        self.all.replace_key_set(&self.hash, None);
    }
}

fn result(success: bool) -> &'static str {
    if success { "success" } else { "failure" }
}

fn sha256(text: &[u8]) -> String {
    format!("sha256:{}", hex(digest(&SHA256, text).as_ref()))
}
