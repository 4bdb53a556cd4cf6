//! Decides what a bundle must contain: a pure function of the object, the signer and the time.
//!
//! A trust anchor stays until the last certificate that was signed under it can have expired. So each has a record in an
//! annotation: the longest lifetime of certificates while the signer uses it, then the time until which it is needed.
//! A record never gets shorter, and without a readable record an anchor stays until it expires itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use portcullis_go::hex::hex;
use portcullis_go::pem::{authorities, encode_pem};
use portcullis_go::time::{self, Time};
use portcullis_pki::x509::certificate::Certificate;
use portcullis_system::clock::UnixTime;
use serde::{Deserialize, Serialize};

use super::object::{
    ANCHORS, MANAGED_BY, MAX_TRUST_BUNDLE, PUBLISHER, TrustBundle, TrustBundleSpec, bundle_name,
};

/// Added to the time until which a former anchor is needed: for signatures in progress, and clocks that differ.
const MARGIN: Duration = Duration::from_hours(1);

/// The trust anchors of a signer, to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedSigner {
    /// The name of the signer.
    pub name: String,
    /// The certificates of its CAs.
    pub anchors: Vec<TrustAnchor>,
    /// The longest lifetime of a certificate; `None` if another program signs, so that only the CA limits it.
    pub max_lifetime: Option<Duration>,
}

impl PublishedSigner {
    /// Adds another signer of the same name.
    pub fn add(&mut self, other: Self) {
        for anchor in other.anchors {
            if !self.anchors.contains(&anchor) {
                self.anchors.push(anchor);
            }
        }
        // Without a longest lifetime only the CA limits it.
        self.max_lifetime = self.max_lifetime.zip(other.max_lifetime).map(|(one, another)| one.max(another));
    }
}

/// A trusted certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustAnchor {
    der: Vec<u8>,
    not_after: UnixTime,
}

impl TrustAnchor {
    /// The certificate of a CA.
    pub fn of(certificate: &Certificate) -> Self {
        let seconds = u64::try_from(certificate.not_after).unwrap_or_default();
        Self { der: certificate.der.to_vec(), not_after: Duration::from_secs(seconds) }
    }

    fn sha256(&self) -> String {
        hex(digest(&SHA256, &self.der).as_ref())
    }
}

/// What the annotation says of an anchor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AnchorRecord {
    /// In use: the longest lifetime of a certificate that may have been signed. Absent if only the CA limits it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    max_lifetime_seconds: Option<u64>,
    /// Not in use: until when certificates signed under it may be valid.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    until: Option<String>,
}

/// What must be done with a bundle.
#[derive(Debug, PartialEq)]
pub(super) enum BundlePlan {
    /// Nothing.
    Keep,
    Create(Box<TrustBundle>),
    Replace(Box<TrustBundle>),
    Delete,
    /// The object is not the gateway's: the text says why.
    NotOurs(String),
    /// The anchors that are needed do not fit.
    TooLarge(usize),
}

/// The plan for the bundle of a signer, and when the next anchor is not needed any more. `signer` is `None` for a bundle
/// whose signer is not configured.
// threat: foreign-trust-bundle
pub(super) fn plan(
    existing: Option<&TrustBundle>,
    signer: Option<&PublishedSigner>,
    publisher: &str,
    now: UnixTime,
) -> (BundlePlan, Option<Duration>) {
    if let Some(bundle) = existing
        && let Err(why) = belongs_to(bundle, signer, publisher)
    {
        return (BundlePlan::NotOurs(why), None);
    }
    let known = existing.map(KnownAnchors::of).unwrap_or_default();
    let mut records = BTreeMap::new();
    let mut anchors: Vec<&TrustAnchor> = Vec::new();
    let mut next = None;
    for anchor in signer.iter().flat_map(|signer| &signer.anchors) {
        let sha256 = anchor.sha256();
        let lifetime = signer.and_then(|signer| signer.max_lifetime);
        let record = known.in_use(&sha256, anchor, lifetime, now);
        if records.insert(sha256, record).is_none() {
            anchors.push(anchor);
        }
    }
    for anchor in &known.anchors {
        let sha256 = anchor.sha256();
        if records.contains_key(&sha256) {
            continue;
        }
        let Some(until) = known.needed_until(&sha256, anchor, now) else { continue };
        let Some(remaining) = until.checked_sub(now).filter(|remaining| !remaining.is_zero()) else {
            continue;
        };
        next = Some(next.map_or(remaining, |next: Duration| next.min(remaining)));
        let until = Some(time::format_since_epoch(until));
        records.insert(sha256, AnchorRecord { max_lifetime_seconds: None, until });
        anchors.push(anchor);
    }
    (planned(existing, signer, publisher, &anchors, &records), next)
}

fn planned(
    existing: Option<&TrustBundle>,
    signer: Option<&PublishedSigner>,
    publisher: &str,
    anchors: &[&TrustAnchor],
    records: &BTreeMap<String, AnchorRecord>,
) -> BundlePlan {
    let pem: String = anchors.iter().map(|anchor| encode_pem("CERTIFICATE", &anchor.der)).collect();
    let signer = signer.map(|signer| signer.name.as_str());
    let Some(signer) = signer.or(existing.map(|bundle| bundle.spec.signer_name.as_str())) else {
        return BundlePlan::Keep;
    };
    if anchors.is_empty() {
        return if existing.is_some() { BundlePlan::Delete } else { BundlePlan::Keep };
    }
    if pem.len() > MAX_TRUST_BUNDLE {
        return BundlePlan::TooLarge(pem.len());
    }
    let mut bundle = existing.cloned().unwrap_or_default();
    bundle.metadata.name = Some(bundle_name(signer));
    bundle.spec = TrustBundleSpec { signer_name: signer.to_owned(), trust_bundle: pem };
    let (label, value) = MANAGED_BY;
    TrustBundle::set(&mut bundle.metadata.labels, label, value);
    TrustBundle::set(&mut bundle.metadata.annotations, PUBLISHER, publisher);
    let text = serde_json::to_string(records).unwrap_or_default();
    TrustBundle::set(&mut bundle.metadata.annotations, ANCHORS, &text);
    match existing {
        None => BundlePlan::Create(Box::new(bundle)),
        Some(existing) if *existing == bundle => BundlePlan::Keep,
        Some(_) => BundlePlan::Replace(Box::new(bundle)),
    }
}

/// Fails with the reason if a bundle is not one of this publisher.
fn belongs_to(bundle: &TrustBundle, signer: Option<&PublishedSigner>, publisher: &str) -> Result<(), String> {
    let signer = signer.map_or(bundle.spec.signer_name.as_str(), |signer| signer.name.as_str());
    if !bundle.is_managed() {
        return Err(format!("it has no label {}={}", MANAGED_BY.0, MANAGED_BY.1));
    }
    if bundle.spec.signer_name != signer || bundle.metadata.name.as_deref() != Some(&bundle_name(signer)) {
        return Err(format!("its signer is {:?}", bundle.spec.signer_name));
    }
    match bundle.annotation(PUBLISHER) {
        Some(other) if other == publisher => Ok(()),
        Some(other) => {
            Err(format!("gateways with the lease {other} publish it, and this gateway has {publisher}"))
        }
        None => Err(format!("it has no annotation {PUBLISHER}")),
    }
}

/// The anchors of an existing bundle.
#[derive(Default)]
struct KnownAnchors {
    anchors: Vec<TrustAnchor>,
    /// `None` if the annotation is not readable.
    records: Option<BTreeMap<String, AnchorRecord>>,
}

impl KnownAnchors {
    fn of(bundle: &TrustBundle) -> Self {
        let certificates = authorities(bundle.spec.trust_bundle.as_bytes()).into_iter();
        let mut seen = BTreeSet::new();
        let anchors = certificates
            .filter_map(|der| Certificate::parse(der).ok())
            .map(|certificate| TrustAnchor::of(&certificate))
            .filter(|anchor| seen.insert(anchor.sha256()))
            .collect();
        let records = bundle.annotation(ANCHORS).and_then(|text| serde_json::from_str(text).ok());
        Self { anchors, records }
    }

    fn record(&self, sha256: &str) -> Option<&AnchorRecord> {
        self.records.as_ref()?.get(sha256)
    }

    /// The record of an anchor that the signer uses. What was signed before may live longer than what is signed now.
    fn in_use(
        &self,
        sha256: &str,
        anchor: &TrustAnchor,
        lifetime: Option<Duration>,
        now: UnixTime,
    ) -> AnchorRecord {
        let before = match self.record(sha256) {
            Some(AnchorRecord { until: Some(until), .. }) => {
                // It is in use again, such as after a rotation that was reverted.
                let until = Time::parse_rfc3339(until).map_or(anchor.not_after, |until| until.since_epoch());
                Some(until.saturating_sub(now))
            }
            Some(AnchorRecord { max_lifetime_seconds, .. }) => match max_lifetime_seconds {
                Some(seconds) => Some(Duration::from_secs(*seconds)),
                None => return AnchorRecord { max_lifetime_seconds: None, until: None },
            },
            // Published, and nothing says with which lifetimes it has signed.
            None if self.anchors.contains(anchor) => {
                return AnchorRecord { max_lifetime_seconds: None, until: None };
            }
            None => None,
        };
        let longest = lifetime.map(|lifetime| lifetime.max(before.unwrap_or_default()));
        AnchorRecord { max_lifetime_seconds: longest.map(|longest| longest.as_secs()), until: None }
    }

    /// Until when an anchor that the signer does not use is needed; `None` if it is not the gateway's.
    fn needed_until(&self, sha256: &str, anchor: &TrustAnchor, now: UnixTime) -> Option<UnixTime> {
        if self.records.is_none() {
            return Some(anchor.not_after);
        }
        let until = match self.record(sha256)? {
            AnchorRecord { until: Some(until), .. } => {
                Time::parse_rfc3339(until).map_or(anchor.not_after, |until| until.since_epoch())
            }
            AnchorRecord { max_lifetime_seconds: Some(seconds), .. } => {
                now.saturating_add(Duration::from_secs(*seconds)).saturating_add(MARGIN)
            }
            AnchorRecord { .. } => anchor.not_after,
        };
        // No certificate outlives its CA.
        Some(until.min(anchor.not_after))
    }
}

#[cfg(test)]
pub(super) mod tests;
