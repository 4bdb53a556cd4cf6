//! JSON patches, with the semantics of the library that kube-apiserver uses.
//!
//! It is not RFC 6902 to the letter: negative indices count from the end, `replace` and `copy` of a member that does not
//! exist set it, a `test` compares numbers and strings by the bytes with which they are written, and a path may lack its
//! first slash. A patch that would make kube-apiserver panic fails.
//!
//! Memory is bounded: copies by upstream's limit, the result by [`MAX_PATCHED_SIZE`], and the nesting of what is patched. Time is
//! bounded by a deadline: what an operation moves or reads counts as steps.
// gopkg.in/evanphx/json-patch.v4: patch.go

mod document;
mod steps;

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;
use serde_json::{Map, Value};

use document::TOO_LARGE;
use document::{Compared, Document};
use portcullis_go::json::raw::{self as json, JsonType};
use steps::{DEADLINE_EXCEEDED, Steps};

/// The copies that a patch may make.
// apiserver: pkg/server/config.go, JSONPatchMaxCopyBytes
const MAX_COPIED_SIZE: usize = 3 * 1024 * 1024;

/// The size of an object with a patch applied: three times the largest body of a request.
const MAX_PATCHED_SIZE: usize = 3 * MAX_COPIED_SIZE;

const PANIC: &str =
    "kube-apiserver panics at this patch: it uses a null, or a member that is missing, as a value";

/// Why a patch cannot be decoded or does not apply, in Go's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PatchError(String);

/// The end of the error of a `test` that does not hold.
const TEST_FAILED: &str = ": test failed";

impl PatchError {
    /// Whether the patch is beyond a bound, which the API server does not have or ends the request at: here, or at its deadline.
    pub fn is_of_bound(&self) -> bool {
        [PANIC, DEADLINE_EXCEEDED, TOO_LARGE].contains(&self.0.as_str())
    }

    /// Whether a `test` of the patch does not hold.
    pub fn is_failed_test(&self) -> bool {
        self.0.ends_with(TEST_FAILED)
    }
}

/// A patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch(Vec<Operation>);

/// An operation: `None` for `null`, of the operation or of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Operation(Option<BTreeMap<String, Option<Bytes>>>);

impl Patch {
    /// Decodes a patch.
    pub fn decode(data: &[u8]) -> Result<Self, PatchError> {
        json::check(data).map_err(PatchError)?;
        let data = Bytes::copy_from_slice(data.trim_ascii());
        match JsonType::of(&data) {
            JsonType::Null => Ok(Self(Vec::new())),
            JsonType::Array => {
                let operations = json::elements(&data).into_iter();
                Ok(Self(
                    operations
                        .map(|range| Operation::decode(&data.slice(range)))
                        .collect::<Result<_, _>>()?,
                ))
            }
            other => Err(type_error(other, "jsonpatch.Patch")),
        }
    }

    /// The patch with these operations. A `null` is a value of its own.
    // apiserver: pkg/admission/plugin/policy/mutating/patch/json_patch.go, evaluatePatchExpression
    pub fn of_values(operations: &[Map<String, Value>]) -> Self {
        let member =
            |(name, value): (&String, &Value)| (name.clone(), Some(Bytes::from(super::encode(value))));
        let operation = |members: &Map<String, Value>| Operation(Some(members.iter().map(member).collect()));
        Self(operations.iter().map(operation).collect())
    }

    /// Whether it has no operation.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The patch as audit annotations show it.
    pub fn to_json(&self) -> Vec<u8> {
        let operations = self.0.iter().map(Operation::to_json).collect::<Vec<_>>();
        [b"[".as_slice(), &operations.join(&b','), b"]"].concat()
    }

    /// The document with the patch applied.
    pub fn apply(&self, document: Vec<u8>) -> Result<Vec<u8>, PatchError> {
        self.apply_until(None, document)
    }

    /// The same; fails at the deadline.
    pub fn apply_until(&self, deadline: Option<Instant>, document: Vec<u8>) -> Result<Vec<u8>, PatchError> {
        let mut document = Document::new(&document.into(), Steps::until(deadline)).map_err(PatchError)?;
        for operation in &self.0 {
            document.apply(operation).map_err(PatchError)?;
        }
        document.into_text().map_err(PatchError)
    }
}

impl Operation {
    fn decode(data: &Bytes) -> Result<Self, PatchError> {
        match JsonType::of(data) {
            JsonType::Null => Ok(Self(None)),
            JsonType::Object => {
                let members = json::members(data).into_iter();
                Ok(Self(Some(members.map(|(key, range)| (key, not_null(data.slice(range)))).collect())))
            }
            other => Err(type_error(other, "jsonpatch.Operation")),
        }
    }

    fn to_json(&self) -> Vec<u8> {
        let Some(members) = &self.0 else { return b"null".to_vec() };
        let mut out = vec![b'{'];
        for (key, value) in members {
            if out.len() > 1 {
                out.push(b',');
            }
            out.extend(portcullis_go::json::encode(key));
            out.push(b':');
            portcullis_go::json::compact_into(&mut out, value.as_deref().unwrap_or(b"null"));
        }
        out.push(b'}');
        out
    }

    fn member(&self, name: &str) -> Option<&Option<Bytes>> {
        self.0.as_ref()?.get(name)
    }

    fn kind(&self) -> String {
        match self.member("op") {
            Some(Some(op)) if JsonType::of(op) == JsonType::String => json::string(op),
            _ => "unknown".to_owned(),
        }
    }

    fn pointer(&self, name: &str, missing: &str) -> Result<String, String> {
        match self.member(name) {
            Some(Some(path)) => match JsonType::of(path) {
                JsonType::String => Ok(json::string(path)),
                other => Err(format!("json: cannot unmarshal {} into Go value of type string", other.name())),
            },
            _ => Err(format!("{missing}: missing value")),
        }
    }

    fn path(&self) -> Result<String, String> {
        self.pointer("path", "operation missing path field")
    }

    fn from(&self) -> Result<String, String> {
        self.pointer("from", "operation, missing from field")
    }
}

fn type_error(found: JsonType, expected: &str) -> PatchError {
    PatchError(format!("json: cannot unmarshal {} into Go value of type {expected}", found.name()))
}

fn not_null(value: Bytes) -> Option<Bytes> {
    (JsonType::of(&value) != JsonType::Null).then_some(value)
}

impl Document {
    fn apply(&mut self, operation: &Operation) -> Result<(), String> {
        match operation.kind().as_str() {
            "add" => self.add(operation),
            "remove" => self.remove(operation),
            "replace" => self.replace(operation),
            "move" => self.relocate(operation),
            "test" => self.test(operation),
            "copy" => self.copy(operation),
            kind => Err(format!("Unexpected kind: {kind}")),
        }
    }

    fn add(&mut self, operation: &Operation) -> Result<(), String> {
        let path = operation.path();
        let path = path.map_err(|_| "add operation failed to decode path: missing value".to_owned())?;
        let (container, key) = self.find(&path)?.ok_or_else(|| {
            format!("add operation does not apply: doc is missing path: \"{path}\": missing value")
        })?;
        let value = self.value(operation.member("value"))?;
        self.add_member(container, key, value)
            .map_err(|error| format!("error in add for path: '{path}': {error}"))
    }

    fn remove(&mut self, operation: &Operation) -> Result<(), String> {
        let path = operation.path();
        let path = path.map_err(|_| "remove operation failed to decode path: missing value".to_owned())?;
        let (container, key) = self.find(&path)?.ok_or_else(|| {
            format!("remove operation does not apply: doc is missing path: \"{path}\": missing value")
        })?;
        self.remove_member(container, &key)
            .map_err(|error| format!("error in remove for path: '{path}': {error}"))
    }

    fn replace(&mut self, operation: &Operation) -> Result<(), String> {
        let path = operation.path();
        let path = path.map_err(|error| format!("replace operation failed to decode path: {error}"))?;
        if path.is_empty() {
            return self.replace_root(operation);
        }
        let (container, key) = self.find(&path)?.ok_or_else(|| {
            format!("replace operation does not apply: doc is missing path: {path}: missing value")
        })?;
        self.member(container, &key).map_err(|_| {
            format!("replace operation does not apply: doc is missing key: {path}: missing value")
        })?;
        let value = self.value(operation.member("value"))?;
        self.set_member(container, key, value)
            .map_err(|error| format!("error in remove for path: '{path}': {error}"))
    }

    fn replace_root(&mut self, operation: &Operation) -> Result<(), String> {
        let value = operation.member("value").ok_or(PANIC)?.as_ref();
        // Go formats an error that is not there.
        let not_a_document = "replace operation value must be object or array: %!w(<nil>)";
        let is_document = value.map(|value| self.set_root(value)).transpose()?.unwrap_or_default();
        if is_document { Ok(()) } else { Err(not_a_document.to_owned()) }
    }

    fn relocate(&mut self, operation: &Operation) -> Result<(), String> {
        let from = operation.from();
        let from = from.map_err(|error| format!("move operation failed to decode from: {error}"))?;
        let (container, key) = self.find(&from)?.ok_or_else(|| {
            format!("move operation does not apply: doc is missing from path: {from}: missing value")
        })?;
        let value = self.member(container, &key);
        let value = value.map_err(|error| format!("error in move for path: '{key}': {error}"))?;
        self.remove_member(container, &key)
            .map_err(|error| format!("error in move for path: '{key}': {error}"))?;
        let path = operation.path();
        let path = path.map_err(|error| format!("move operation failed to decode path: {error}"))?;
        let (container, key) = self.find(&path)?.ok_or_else(|| {
            format!("move operation does not apply: doc is missing destination path: {path}: missing value")
        })?;
        self.add_member(container, key, value)
            .map_err(|error| format!("error in move for path: '{path}': {error}"))
    }

    fn test(&mut self, operation: &Operation) -> Result<(), String> {
        let path = operation.path();
        let path = path.map_err(|error| format!("test operation failed to decode path: {error}"))?;
        let failed = || format!("testing value {path} failed{TEST_FAILED}");
        let expected = operation.member("value").map(|value| Compared::Text(value.clone()));
        if path.is_empty() {
            let expected = expected.ok_or(PANIC)?;
            return if self.equal(&Compared::Node(self.root), &expected)? { Ok(()) } else { Err(failed()) };
        }
        let (container, key) = self.find(&path)?.ok_or_else(|| {
            format!("test operation does not apply: is missing path: {path}: missing value")
        })?;
        let value = self.member(container, &key);
        let value = value.map_err(|error| format!("error in test for path: '{path}': {error}"))?;
        let passed = match (value, expected) {
            (None, None | Some(Compared::Text(None))) => true,
            (None, Some(_)) | (Some(_), None) => false,
            (Some(value), Some(expected)) => self.equal(&Compared::Node(value), &expected)?,
        };
        if passed { Ok(()) } else { Err(failed()) }
    }

    fn copy(&mut self, operation: &Operation) -> Result<(), String> {
        let from = operation.from();
        let from = from.map_err(|error| format!("copy operation failed to decode from: {error}"))?;
        let (container, key) = self.find(&from)?.ok_or_else(|| {
            format!("copy operation does not apply: doc is missing from path: {from}: missing value")
        })?;
        let value = self.member(container, &key);
        let value = value.map_err(|error| format!("error in copy for from: '{from}': {error}"))?;
        let path = operation.path();
        let path = path.map_err(|_| "copy operation failed to decode path: missing value".to_owned())?;
        let (container, key) = self.find(&path)?.ok_or_else(|| {
            format!("copy operation does not apply: doc is missing destination path: {path}: missing value")
        })?;
        let copy = self.copied_value(value)?;
        self.add_member(container, key, copy)
            .map_err(|error| format!("error while adding value during copy: {error}"))
    }
}
