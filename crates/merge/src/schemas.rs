//! A document of schemas, and the steps of a merge.
//!
//! Follows kube-apiserver: `admission/plugin/policy/mutating/patch/smd.go`, `ApplyStructuredMergeDiff`, and apimachinery's
//! `managedfields/internal/typeconverter.go`.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::document::{self, Kinds, walk};
use crate::errors::{Faults, MAX_DEPTH, MergeError, SchemaError};
use crate::merging::{self, Pair};
use crate::schema::{TypeRef, Types};
use crate::text::type_name;
use crate::undeclared::undeclared;
use crate::validation::{Validation, atomic_paths};

/// The schemas of a group and version, as an API server publishes them.
#[derive(Debug)]
pub struct Schemas {
    types: Types,
    kinds: Kinds,
    size: usize,
}

impl Schemas {
    /// Reads an OpenAPI v3 document, such as the answer to `/openapi/v3/apis/apps/v1`. It takes time and memory in proportion to
    /// the size of the document; schemas that are nested more than sixty levels deep are refused.
    pub fn read(document: &[u8]) -> Result<Self, SchemaError> {
        let contents = document::read(document)?;
        let size = size_of::<Self>() + contents.size;
        Ok(Self { types: contents.types, kinds: contents.kinds, size })
    }

    /// How much memory [`Self::read`] takes at most for a document, in bytes, beside its text and the result.
    pub fn memory_to_read(document: &[u8]) -> Result<usize, SchemaError> {
        walk::memory(document)
    }

    /// How many bytes of memory the schemas take, approximately.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether there is a schema for a kind.
    pub fn knows(&self, group: &str, version: &str, kind: &str) -> bool {
        self.find(&GroupVersionKind { group, version, kind }).is_some()
    }

    /// Sets the fields of an apply configuration in a copy of an object. The patch says that it is of the object's `apiVersion` and
    /// `kind`.
    ///
    /// Fields are visited in the order of their names, which is the order of faults.
    pub fn merge(&self, original: &Value, patch: &Value) -> Result<Value, MergeError> {
        for (value, name) in [(original, "object"), (patch, "patch")] {
            if is_deeper(value, MAX_DEPTH) {
                return Err(MergeError::TooDeep(name));
            }
        }
        let kind = GroupVersionKind::of(original);
        if GroupVersionKind::of(patch) != kind {
            return Err(MergeError::OtherKind {
                patch: GroupVersionKind::of(patch).to_string(),
                original: kind.to_string(),
            });
        }
        let root = self.find(&kind).ok_or_else(|| MergeError::Patch(Faults::no_type(&kind)))?;
        self.validate(&root, patch, false).map_err(MergeError::Patch)?;
        let atomic = atomic_paths(&self.types, &root, patch);
        if !atomic.is_empty() {
            return Err(MergeError::Atomic(atomic));
        }
        self.validate(&root, original, true).map_err(MergeError::Original)?;
        let pair = Pair { left: Some(original), right: Some(patch) };
        let (merged, faults) = merging::merge(&self.types, &root, pair);
        if !faults.is_empty() {
            return Err(MergeError::Merge(faults));
        }
        match merged {
            Some(merged @ Value::Object(_)) => Ok(merged),
            other => Err(MergeError::NoObject(type_name(&other.unwrap_or_default()))),
        }
    }

    /// The fields of an object that its kind does not have, such as `spec.containers[0].absent`: a hundred of them at most, and none of
    /// an object of an unknown kind, or of one that is nested too deep to be merged. A type without fields is published as one that has any.
    pub fn undeclared(&self, object: &Value) -> Vec<String> {
        let root = self.find(&GroupVersionKind::of(object)).filter(|_| !is_deeper(object, MAX_DEPTH));
        root.map(|root| undeclared(&self.types, &root, object)).unwrap_or_default()
    }

    fn validate(&self, root: &TypeRef, value: &Value, allow_duplicates: bool) -> Result<(), Faults> {
        let faults = Validation { types: &self.types, allow_duplicates }.faults(root, value);
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    fn find(&self, kind: &GroupVersionKind<'_>) -> Option<TypeRef> {
        let key = [kind.group, kind.version, kind.kind].map(Arc::<str>::from);
        self.kinds.get(&key).map(|number| TypeRef::Named(*number, None))
    }
}

/// A group, version and kind.
#[derive(Debug, PartialEq)]
struct GroupVersionKind<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
}

impl<'a> GroupVersionKind<'a> {
    /// That of an object; empty where the object says none, or an `apiVersion` with several slashes.
    fn of(object: &'a Value) -> Self {
        let text = |name| object.get(name).and_then(Value::as_str).unwrap_or_default();
        let nothing = Self { group: "", version: "", kind: "" };
        match text("apiVersion").split_once('/') {
            None => Self { version: text("apiVersion"), kind: text("kind"), ..nothing },
            Some(("", "")) => Self { kind: text("kind"), ..nothing },
            Some((_, version)) if version.contains('/') => nothing,
            Some((group, version)) => Self { group, version, kind: text("kind") },
        }
    }
}

impl fmt::Display for GroupVersionKind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Kind={}", self.group, self.version, self.kind)
    }
}

/// Whether a value is nested deeper than this, found without recursion.
fn is_deeper(value: &Value, depth: usize) -> bool {
    let mut open = vec![(value, 1)];
    while let Some((value, level)) = open.pop() {
        if level > depth {
            return true;
        }
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, level + 1))),
            Value::Object(fields) => open.extend(fields.values().map(|value| (value, level + 1))),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests;
