//! What becomes known of an audited request while it is in progress, and what its events take from the bodies.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use portcullis_audit::event::{Level, ResponseStatus};
use portcullis_audit::policy::Decision;
use portcullis_audit::sink::Storing;
use portcullis_http::identity::Identity;
use portcullis_kubernetes::status::render;
use portcullis_limits::budget::BudgetPermit;
use serde_json::value::RawValue;

use super::capture::{self, Capture, Direction};
use super::objects::{self, Encoding};
use super::status;

/// The objects that an event lacks, and why.
const OMITTED: &str = "audit.portcullis.dev/omitted";
/// Why an object lacks all other fields.
const IN_PROTOBUF: &str = "all but kind and metadata, of an object in protobuf";
/// Why an event does not name an object that the gateway cannot read, although the API server may.
const UNREADABLE: &str = "the object cannot be read";

/// What the events of a request have beside its [`Source`](super::source::Source).
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) level: Level,
    pub(super) impersonated_user: Option<Identity>,
    /// The verb of constrained impersonation.
    pub(super) constraint: Option<&'static str>,
    /// What the object in the body of the request says of itself.
    pub(super) object: objects::Metadata,
    pub(super) response_status: Option<ResponseStatus>,
    pub(super) request_object: Option<Arc<RawValue>>,
    pub(super) response_object: Option<Arc<RawValue>>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) last_stage: LastStage,
    /// The event of the start of the response, until the response waits for it.
    pub(super) started: Option<Storing>,
    // Boxed: few requests have them.
    pub(super) request: Option<Box<RequestCapture>>,
    pub(super) response: Option<Box<ResponseCapture>>,
    omit_managed_fields: bool,
    /// The memory of the objects in the event.
    memory: Vec<BudgetPermit>,
    /// The fields that the event lacks, and why.
    omitted: Vec<(&'static str, &'static str)>,
}

/// The event with which a request ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastStage {
    /// The response has ended.
    Complete,
    /// As before, but the event of its start is to be stored before, since the body has the result.
    StartedAndComplete,
    Panic,
    /// None: the request failed before it was authenticated, and has an event when its response starts.
    Started,
    /// None: no event can be stored.
    Nothing,
}

/// What an event takes from the body of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestObject {
    /// The metadata of the object that is created or updated.
    Named,
    /// Nothing but the object.
    Options,
    /// Nothing but the patch.
    Patch,
}

/// The copy of the body of a request.
#[derive(Debug)]
pub(super) struct RequestCapture {
    pub(super) kind: RequestObject,
    pub(super) encoding: Encoding,
    pub(super) copy: Capture,
}

/// The copy of the body of a response.
#[derive(Debug)]
pub(super) struct ResponseCapture {
    pub(super) code: StatusCode,
    pub(super) encoding: Encoding,
    pub(super) is_compressed: bool,
    pub(super) copy: Capture,
}

impl Parts {
    /// Those of a request that has just begun.
    pub(super) fn new(decision: Decision, annotations: BTreeMap<String, String>) -> Self {
        Self {
            level: decision.level,
            impersonated_user: None,
            constraint: None,
            object: objects::Metadata::default(),
            response_status: None,
            request_object: None,
            response_object: None,
            annotations,
            last_stage: LastStage::Complete,
            started: None,
            request: None,
            response: None,
            omit_managed_fields: decision.omit_managed_fields,
            memory: Vec::new(),
            omitted: Vec::new(),
        }
    }

    /// Adds an annotation; the first value of a key stays.
    pub(super) fn annotate(&mut self, key: &str, value: &str) {
        self.annotations.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }

    pub(super) fn remove_annotation(&mut self, key: &str) {
        self.annotations.remove(key);
    }

    pub(super) fn capture(&mut self, direction: Direction) -> Option<&mut Capture> {
        match direction {
            Direction::Request => self.request.as_mut().map(|request| &mut request.copy),
            Direction::Response => self.response.as_mut().map(|response| &mut response.copy),
        }
    }

    /// Reads the copy of the request's body, and frees it.
    // apiserver: pkg/audit/request.go, LogRequestObject and LogRequestPatch
    pub(super) fn read_request(&mut self) {
        let Some(capture) = self.request.take() else { return };
        let RequestCapture { kind, encoding, copy } = *capture;
        let is_named = kind == RequestObject::Named;
        let with_object = self.level >= Level::Request;
        let field = if with_object { "requestObject" } else { "objectRef" };
        let (bytes, memory) = match copy.finish() {
            Some(Ok(copied)) => copied,
            Some(Err(reason)) => return self.omit(field, reason),
            None => return,
        };
        if kind == RequestObject::Patch {
            // YAML becomes JSON, which may be longer.
            match objects::patch(encoding, &bytes) {
                Ok(patch) => self.request_object = self.held(Some(patch), memory, field),
                Err(reason) => self.omit(field, reason),
            }
            return;
        }
        let (encoding, bytes) = match objects::without_yaml(encoding, &bytes) {
            Ok(read) => read,
            Err(reason) => return self.omit(field, reason),
        };
        if is_named {
            match objects::metadata(encoding, &bytes) {
                Some(found) => self.object = found,
                None => self.omit("objectRef", UNREADABLE),
            }
        }
        if with_object {
            match objects::as_json(encoding, &bytes, self.omit_managed_fields) {
                Ok(object) => {
                    self.request_object = self.held(object, memory, "requestObject");
                    self.note_encoding("requestObject", encoding);
                }
                Err(reason) => self.omit("requestObject", reason),
            }
        }
    }

    /// The object, if there is memory for it.
    fn held(
        &mut self,
        object: Option<Arc<RawValue>>,
        mut memory: BudgetPermit,
        field: &'static str,
    ) -> Option<Arc<RawValue>> {
        let object = object?;
        if !memory.resize(object.get().len()) {
            self.omit(field, capture::NO_MEMORY);
            return None;
        }
        self.memory.push(memory);
        Some(object)
    }

    /// Reads the copy of the response's body, and frees it.
    // apiserver: pkg/audit/context.go, LogResponseObject
    pub(super) fn read_response(&mut self) {
        let Some(capture) = self.response.take() else { return };
        let ResponseCapture { code, encoding, is_compressed, copy } = *capture;
        let (bytes, memory) = match copy.finish() {
            Some(Ok((bytes, mut memory))) if is_compressed => {
                match objects::decompress(&bytes, capture::MAX_OBJECT_BYTES) {
                    Ok(bytes) if memory.resize(bytes.len()) => (bytes, memory),
                    Ok(_) => return self.omit("responseObject", capture::NO_MEMORY),
                    Err(reason) => return self.omit("responseObject", reason),
                }
            }
            Some(Ok(copied)) => copied,
            Some(Err(reason)) => return self.omit("responseObject", reason),
            None => return,
        };
        let (encoding, bytes) = match objects::without_yaml(encoding, &bytes) {
            Ok(read) => read,
            Err(reason) => return self.omit("responseObject", reason),
        };
        if let Some(status) = status::of_body(encoding, &bytes, code) {
            self.response_status = Some(status);
        }
        if self.level < Level::RequestResponse {
            return;
        }
        if encoding == Encoding::Protobuf
            && let Some(status) = status::protobuf(&bytes)
        {
            self.response_object = render::as_json(status).ok().map(Into::into);
            return;
        }
        match objects::as_json(encoding, &bytes, self.omit_managed_fields) {
            Ok(object) => {
                self.response_object = self.held(object, memory, "responseObject");
                self.note_encoding("responseObject", encoding);
            }
            Err(reason) => self.omit("responseObject", reason),
        }
    }

    /// An object that lacks its content must not look as if it had none.
    fn note_encoding(&mut self, field: &'static str, encoding: Encoding) {
        if encoding == Encoding::Protobuf {
            self.omit(field, IN_PROTOBUF);
        }
    }

    fn omit(&mut self, field: &'static str, reason: &'static str) {
        self.omitted.push((field, reason));
    }

    pub(super) fn note_omitted(&mut self) {
        if self.omitted.is_empty() {
            return;
        }
        let status = self.response_status.as_ref();
        // The API server does not read the object either.
        let unread =
            [StatusCode::BAD_REQUEST, StatusCode::PAYLOAD_TOO_LARGE, StatusCode::UNSUPPORTED_MEDIA_TYPE];
        let is_unread = status.is_some_and(|status| unread.iter().any(|code| code.as_u16() == status.code));
        // Nor that of a request that it does not authorize.
        let is_forbidden = status.is_some_and(|status| status.code == StatusCode::FORBIDDEN.as_u16());
        self.omitted.retain(|(_, reason)| !is_forbidden || *reason != UNREADABLE);
        if self.omitted.is_empty() || is_unread {
            return;
        }
        let notes: Vec<String> =
            self.omitted.iter().map(|(field, reason)| format!("{field}: {reason}")).collect();
        self.annotate(OMITTED, &notes.join("; "));
    }
}
