//! Audit annotations.
// apiserver: pkg/admission/attributes.go, AddAnnotationWithLevel

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::review::{ReviewResponse, encode};
use crate::{Annotation, Event, Surroundings, Webhook};

const MUTATION_PREFIX: &str = "mutation.webhook.admission.k8s.io/";
const PATCH_PREFIX: &str = "patch.webhook.admission.k8s.io/";
const VALIDATING_PREFIX: &str = "validating.webhook.admission.k8s.io/";

const MAX_PREFIX_LENGTH: usize = 253;
const MAX_NAME_LENGTH: usize = 63;

/// The annotations of one phase. Of each key the first value is kept.
#[derive(Debug)]
pub(super) struct Annotations<'a, S> {
    surroundings: &'a S,
    keys: Mutex<BTreeSet<String>>,
}

/// The place of a call, in keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallPlace {
    pub(super) round: usize,
    pub(super) index: usize,
}

impl<'a, S: Surroundings> Annotations<'a, S> {
    pub(super) fn new(surroundings: &'a S) -> Self {
        Self { surroundings, keys: Mutex::default() }
    }

    /// The annotations and warnings of a webhook.
    pub(super) fn note_response(&self, webhook: &Webhook, response: &ReviewResponse) {
        for (key, value) in &response.audit_annotations {
            self.add(format!("{}/{key}", webhook.name), value.clone(), false);
        }
        for warning in &response.warnings {
            self.surroundings.note(Event::Warning(warning));
        }
    }

    /// A mutating webhook was called.
    pub(super) fn note_mutation(&self, webhook: &Webhook, place: CallPlace, mutated: bool) {
        let value = format!("{{{},\"mutated\":{mutated}}}", origin(webhook));
        self.add(place.key(MUTATION_PREFIX), value, false);
    }

    /// A patch was applied.
    pub(super) fn note_patch(&self, webhook: &Webhook, place: CallPlace, patch: &str) {
        let value = format!("{{{},\"patch\":{patch},\"patchType\":\"JSONPatch\"}}", origin(webhook));
        self.add(place.key(PATCH_PREFIX), value, true);
    }

    /// A mutating webhook was skipped by its `failurePolicy`.
    pub(super) fn note_mutating_failed_open(&self, webhook: &Webhook, place: CallPlace) {
        self.add(place.key(&format!("failed-open.{MUTATION_PREFIX}")), webhook.name.clone(), false);
    }

    /// A validating webhook was skipped by its `failurePolicy`.
    pub(super) fn note_validating_failed_open(&self, webhook: &Webhook, place: CallPlace) {
        self.add(place.key(&format!("failed-open.{VALIDATING_PREFIX}")), webhook.name.clone(), false);
    }

    pub(super) fn add(&self, key: String, value: String, needs_request_level: bool) {
        if !is_annotation_key(&key) {
            return;
        }
        let is_new = self.keys.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone());
        if is_new {
            self.surroundings.note(Event::Annotation(Annotation { key, value, needs_request_level }));
        }
    }
}

impl CallPlace {
    fn key(self, prefix: &str) -> String {
        format!("{prefix}round_{}_index_{}", self.round, self.index)
    }
}

/// The first fields of the annotations about a webhook.
fn origin(webhook: &Webhook) -> String {
    let text = |text: &String| String::from_utf8_lossy(&encode(text)).into_owned();
    format!("\"configuration\":{},\"webhook\":{}", text(&webhook.configuration), text(&webhook.name))
}

/// Whether this is a qualified name with a prefix.
// apimachinery: pkg/util/validation/validation.go, IsQualifiedName
fn is_annotation_key(key: &str) -> bool {
    let alphanumeric_ends = |text: &str| {
        let is_alphanumeric = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        is_alphanumeric(text.as_bytes().first()) && is_alphanumeric(text.as_bytes().last())
    };
    let Some((prefix, name)) = key.split_once('/') else { return false };
    let is_label = |label: &str| {
        let of_label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        alphanumeric_ends(label) && label.bytes().all(of_label)
    };
    let of_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    prefix.len() <= MAX_PREFIX_LENGTH
        && prefix.split('.').all(is_label)
        && name.len() <= MAX_NAME_LENGTH
        && alphanumeric_ends(name)
        && name.bytes().all(of_name)
}
