//! What is counted of issuers of JSON Web Tokens. An issuer is named by the hash of its URL, as upstream does.
// apiserver: plugin/pkg/authenticator/token/oidc/metrics.go — without the label for one of several API servers

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use prometheus::{HistogramVec, IntGaugeVec};

use crate::clock::Clock;

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
}

/// One issuer.
#[derive(Debug, Clone)]
pub(crate) struct Issuer {
    all: Issuers,
    clock: Clock,
    hash: String,
}

impl Issuers {
    /// The issuer of a URL.
    pub(crate) fn issuer(&self, url: &str, clock: Clock) -> Issuer {
        Issuer { all: self.clone(), clock, hash: sha256(url.as_bytes()) }
    }

    /// An issuer is no longer configured.
    #[cfg_attr(not(test), expect(dead_code, reason = "clusters do not build it yet"))]
    pub(crate) fn forget(&self, url: &str) {
        let issuer = sha256(url.as_bytes());
        for result in ["success", "failure"] {
            // There may have been no such fetch.
            self.fetched.remove_label_values(&[result, &issuer]).ok();
        }
        self.replace_key_set(&issuer, None);
    }

    fn replace_key_set(&self, issuer: &str, hash: Option<String>) {
        let mut hashes = self.hashes.lock().unwrap_or_else(PoisonError::into_inner);
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
        self.all.latency.with_label_values(&[result(success), &self.hash]).observe(took.as_secs_f64());
    }

    /// The key set was asked for; its text, if it is one.
    pub(crate) fn keys_fetched(&self, key_set: Option<&[u8]>) {
        if let Some(key_set) = key_set {
            self.all.replace_key_set(&self.hash, Some(sha256(key_set)));
        }
        let now = i64::try_from(self.clock.now().as_secs()).unwrap_or(i64::MAX);
        self.all.fetched.with_label_values(&[result(key_set.is_some()), &self.hash]).set(now);
    }
}

fn result(success: bool) -> &'static str {
    if success { "success" } else { "failure" }
}

fn sha256(text: &[u8]) -> String {
    digest(&SHA256, text).as_ref().iter().fold("sha256:".to_owned(), |mut shown, byte| {
        // Writing to a text does not fail.
        write!(shown, "{byte:02x}").ok();
        shown
    })
}
