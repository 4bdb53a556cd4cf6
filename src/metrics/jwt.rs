//! What is counted of issuers of JSON Web Tokens. An issuer is named by the hash of its URL, as upstream does.
// apiserver: plugin/pkg/authenticator/token/oidc/metrics.go — without the label for one of several API servers

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use prometheus::{HistogramVec, IntGaugeVec};

use crate::clock::Clock;
use crate::go::hex::hex;
use crate::sync::lock;

/// All issuers.
#[derive(Debug, Clone)]
pub(crate) struct Issuers {
    /// By `result` and issuer.
    pub(super) latency: HistogramVec,
    /// By `result` and issuer.
    pub(super) fetched: IntGaugeVec,
    /// By issuer and hash; 1 for the key set of the last fetch.
    pub(super) key_set: IntGaugeVec,
    /// The hashes of the last fetches, by issuer.
    pub(super) hashes: Arc<Mutex<BTreeMap<String, String>>>,
    /// Those that are configured.
    pub(super) configured: Arc<Mutex<BTreeMap<String, Weak<Series>>>>,
}

/// One issuer, in as many clusters as have it. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Issuer(Arc<Series>);

/// What is shown of an issuer; nothing any more when it is dropped.
#[derive(Debug)]
pub(super) struct Series {
    all: Issuers,
    clock: Clock,
    hash: String,
}

impl Issuers {
    /// The issuer of a URL.
    pub(crate) fn issuer(&self, url: &str, clock: Clock) -> Issuer {
        let hash = sha256(url.as_bytes());
        let mut configured = lock(&self.configured);
        if let Some(known) = configured.get(&hash).and_then(Weak::upgrade) {
            return Issuer(known);
        }
        let series = Arc::new(Series { all: self.clone(), clock, hash: hash.clone() });
        configured.insert(hash, Arc::downgrade(&series));
        Issuer(series)
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

impl Issuer {
    /// A token of the issuer was judged.
    pub(crate) fn judged(&self, success: bool, took: Duration) {
        let Series { all, hash, .. } = &*self.0;
        all.latency.with_label_values(&[result(success), hash]).observe(took.as_secs_f64());
    }

    /// The key set was asked for; its text, if it is one.
    pub(crate) fn keys_fetched(&self, key_set: Option<&[u8]>) {
        let Series { all, clock, hash } = &*self.0;
        if let Some(key_set) = key_set {
            all.replace_key_set(hash, Some(sha256(key_set)));
        }
        let now = i64::try_from(clock.now().as_secs()).unwrap_or(i64::MAX);
        all.fetched.with_label_values(&[result(key_set.is_some()), hash]).set(now);
    }
}

impl Drop for Series {
    fn drop(&mut self) {
        let mut configured = lock(&self.all.configured);
        // It may be configured again already.
        if configured.get(&self.hash).is_none_or(|known| known.strong_count() > 0) {
            return;
        }
        configured.remove(&self.hash);
        for labels in [true, false].map(|success| [result(success), &self.hash]) {
            // There may have been no such fetch, and no such token.
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
