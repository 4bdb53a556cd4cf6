//! The audit of one request: makes its events, stage by stage, and hands them to the sinks of its cluster.
//!
//! The event `ResponseComplete` is made when the last [`AuditedRequest`] of a request is dropped: at the end of the response body
//! or of the tunnel, however it ends. So no early exit of the request path can miss it.
//!
//! Rules match the client, never the impersonated user. What differs from kube-apiserver is in `docs/conformance.md`.
// apiserver: pkg/endpoints/filters/audit.go, pkg/audit/{context,request}.go

mod capture;
mod objects;
mod source;
mod status;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use portcullis_admission::Annotation;
use portcullis_audit::event::{AuthenticationMetadata, EncodedUser, Event, Level, ResponseStatus, Stage};
use portcullis_audit::policy::Decision;
use portcullis_audit::sink::NotStored;
use serde_json::value::RawValue;

use super::error_map::{Refusal, RefusalResponse};
use super::stages::share_of;
use crate::audit::{ClusterAudit, ReservedMemory, attributes};
use crate::authz::{AccessRefusal, AllowedAccess};
use crate::clock::UnixTime;
use crate::http::body::Body;
use crate::http::status::Form;
use crate::http::status::render::{self, StatusObject};
use crate::metrics::Metrics;
use crate::request::info::RequestInfo;
use crate::sync::lock;
use crate::user::Identity;
use capture::{Capture, Direction, Interest, Observer};
use objects::Encoding;
use source::Source;

// apiserver: pkg/endpoints/filters/authorization.go
const DECISION: &str = "authorization.k8s.io/decision";
const REASON: &str = "authorization.k8s.io/reason";
/// The cluster of a request, if the gateway serves several.
const CLUSTER: &str = "audit.portcullis.dev/cluster";
/// The objects that an event lacks, and why.
const OMITTED: &str = "audit.portcullis.dev/omitted";

/// Why an event does not name an object that the gateway cannot read, although the API server may.
const UNREADABLE: &str = "the object cannot be read";

/// A request that is audited. Whatever keeps it in progress holds a clone.
#[derive(Debug, Clone)]
pub(super) struct AuditedRequest(Arc<Record>);

/// The facts by which a request is audited.
pub(super) struct Facts<'a> {
    pub(super) audit: &'a Arc<ClusterAudit>,
    pub(super) metrics: &'a Arc<Metrics>,
    /// When the request was received.
    pub(super) received: UnixTime,
    pub(super) audit_id: HeaderValue,
    pub(super) peer: IpAddr,
    pub(super) info: &'a Arc<RequestInfo>,
    /// Whether the addresses in the request's header are trusted.
    pub(super) is_from_front_proxy: bool,
}

/// What is known of a request in progress.
#[derive(Debug)]
pub(super) struct Record {
    subject: Subject,
    parts: Mutex<Parts>,
}

/// What does not change while a request is in progress.
#[derive(Debug)]
pub(super) struct Subject {
    audit: Arc<ClusterAudit>,
    /// The client, whose objects have a part of the memory; `None` if it is not authenticated.
    client: Option<Identity>,
    peer: IpAddr,
    decision: Decision,
    source: Source,
}

/// What the events of a request have beside its [`Source`].
#[derive(Debug)]
pub(super) struct Parts {
    level: Level,
    impersonated_user: Option<Identity>,
    /// The verb of constrained impersonation.
    constraint: Option<&'static str>,
    /// What the object in the body of the request says of itself.
    object: objects::Metadata,
    response_status: Option<ResponseStatus>,
    request_object: Option<Arc<RawValue>>,
    response_object: Option<Arc<RawValue>>,
    annotations: BTreeMap<String, String>,
    last_stage: LastStage,
    // Boxed: few requests have them.
    request: Option<Box<RequestCapture>>,
    response: Option<Box<ResponseCapture>>,
    omit_managed_fields: bool,
    /// The memory of the objects in the event.
    memory: Vec<ReservedMemory>,
    /// The fields that the event lacks, and why.
    omitted: Vec<(&'static str, &'static str)>,
}

/// The event with which a request ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastStage {
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
enum RequestObject {
    /// The metadata of the object that is created or updated.
    Named,
    /// Nothing but the object.
    Options,
    /// Nothing but the patch.
    Patch,
}

#[derive(Debug)]
struct RequestCapture {
    kind: RequestObject,
    encoding: Encoding,
    copy: Capture,
}

#[derive(Debug)]
struct ResponseCapture {
    code: StatusCode,
    encoding: Encoding,
    is_compressed: bool,
    copy: Capture,
}

impl AuditedRequest {
    /// Begins the audit of a request whose client is authenticated; `None` if the policy omits it.
    // apiserver: pkg/endpoints/filters/audit.go, WithAudit
    pub(super) fn begin(
        facts: Facts<'_>,
        user: &Identity,
        annotations: BTreeMap<String, String>,
        request: &mut Request<Body>,
    ) -> Option<Self> {
        let audited = Self::new(facts, Some(user), annotations, request)?;
        audited.0.observe_request(request);
        Some(audited)
    }

    /// Stores the event of the stage `RequestReceived`, before the request goes on. `Some` is to be awaited: the sinks are
    /// configured so.
    pub(super) fn store_received(&self) -> Option<impl Future<Output = Result<(), NotStored>>> {
        let Self(record) = self;
        if record.audit.sinks.never_wait() {
            record.store(Stage::RequestReceived);
            return None;
        }
        let is_omitted = record.decision.omitted.contains(Stage::RequestReceived);
        if is_omitted && (record.is_long_running() || record.audit.sinks.has_room()) {
            return None;
        }
        Some(self.wait_for_received())
    }

    async fn wait_for_received(&self) -> Result<(), NotStored> {
        let Self(record) = self;
        let sinks = &record.audit.sinks;
        if !record.is_long_running() {
            sinks.ready().await;
        }
        let storing = {
            let parts = record.parts();
            record.event_of(&parts, Stage::RequestReceived).map(|event| sinks.store_first(&event))
        };
        let Some(storing) = storing else { return Ok(()) };
        let stored = storing.await;
        if stored.is_err() {
            record.parts().last_stage = LastStage::Nothing;
        }
        stored
    }

    /// Audits a request that fails before its client is authenticated: one event, when the response starts.
    // apiserver: pkg/endpoints/filters/{authn_audit,request_deadline}.go
    pub(super) fn failed<B>(facts: Facts<'_>, request: &Request<B>, message: String) -> Option<Self> {
        let audited = Self::new(facts, None, BTreeMap::new(), request)?;
        let mut parts = audited.0.parts();
        parts.last_stage = LastStage::Started;
        parts.response_status = Some(ResponseStatus { message, ..ResponseStatus::default() });
        drop(parts);
        Some(audited)
    }

    fn new<B>(
        facts: Facts<'_>,
        user: Option<&Identity>,
        mut annotations: BTreeMap<String, String>,
        request: &Request<B>,
    ) -> Option<Self> {
        let Facts { audit, metrics, info, .. } = facts;
        let decision = audit.policy.evaluate(&attributes(user, info));
        metrics.audit.level(decision.level);
        if decision.level == Level::None {
            return None;
        }
        if let Some(name) = &audit.cluster {
            annotations.insert(CLUSTER.to_owned(), name.to_string());
        }
        let parts = Parts {
            level: decision.level,
            impersonated_user: None,
            constraint: None,
            object: objects::Metadata::default(),
            response_status: None,
            request_object: None,
            response_object: None,
            annotations,
            last_stage: LastStage::Complete,
            request: None,
            response: None,
            omit_managed_fields: decision.omit_managed_fields,
            memory: Vec::new(),
            omitted: Vec::new(),
        };
        let subject = Subject {
            audit: Arc::clone(audit),
            client: user.cloned(),
            peer: facts.peer,
            decision,
            source: Source::of(facts, request),
        };
        Some(Self(Arc::new(Record { subject, parts: Mutex::new(parts) })))
    }

    /// Records the impersonated user, and the verb of constrained impersonation.
    pub(super) fn note_impersonated(&self, user: &Identity, constraint: Option<&'static str>) {
        let mut parts = self.0.parts();
        parts.impersonated_user = Some(user.clone());
        parts.constraint = constraint;
    }

    /// Records the decision of the gateway's own authorizers.
    // apiserver: pkg/endpoints/filters/authorization.go, WithAuthorization
    pub(super) fn note_authorization(&self, decided: &Result<AllowedAccess, AccessRefusal>) {
        let (decision, reason) = match decided {
            Ok(allowed) => (Some("allow"), allowed.reason.as_str()),
            Err(AccessRefusal::Forbidden { reason, .. }) => (Some("forbid"), reason.as_str()),
            Err(AccessRefusal::Failed(_) | AccessRefusal::Unanswered(_)) => (None, "internal error"),
        };
        let mut parts = self.0.parts();
        if let Some(decision) = decision {
            parts.annotate(DECISION, decision);
        }
        parts.annotate(REASON, reason);
    }

    /// Adds the annotations of admission.
    pub(super) fn note_admission(&self, annotations: &[Annotation]) {
        let mut parts = self.0.parts();
        for Annotation { key, value, needs_request_level } in annotations {
            if !needs_request_level || parts.level >= Level::Request {
                parts.annotate(key, value);
            }
        }
    }

    /// Records a refusal.
    pub(super) fn note_refusal(&self, refusal: &Refusal, code: StatusCode, is_raw: bool) {
        let mut parts = self.0.parts();
        if matches!(refusal, Refusal::Panic) {
            parts.response_status = Some(status::of_panic());
            parts.last_stage = LastStage::Panic;
            return;
        }
        let object = match refusal.response("") {
            _ if is_raw => None,
            RefusalResponse::Status(status) if status.form == Form::Negotiated => {
                Some(StatusObject::from(&status))
            }
            RefusalResponse::Denial(status) => Some(StatusObject::from(status)),
            RefusalResponse::Status(_) | RefusalResponse::Bare(..) => None,
        };
        match object {
            Some(object) => {
                if parts.level >= Level::RequestResponse {
                    parts.response_object = render::as_json(object.clone()).ok().map(Into::into);
                }
                parts.response_status = Some(status::of_object(object, code));
            }
            None => parts.response_status.get_or_insert_default().code = code.as_u16(),
        }
        let is_started = match parts.last_stage {
            LastStage::Started => true,
            LastStage::Nothing => false,
            _ => self.0.is_long_running(),
        };
        drop(parts);
        if is_started {
            self.0.store(Stage::ResponseStarted);
        }
    }

    /// Records a response of the backend, or of a health check. `is_raw`: whether the client accepts no encoding of objects;
    /// an error is no object then.
    pub(super) fn note_response(&self, response: &mut Response<Body>, is_raw: impl FnOnce() -> bool) {
        let Self(record) = self;
        let code = response.status();
        let mut parts = record.parts();
        parts.response_status = Some(status::of_code(code));
        if code.as_u16() < 400 || !is_raw() {
            parts.response = record.response_capture(response);
        }
        let waits_for_status = parts.response.is_some() && code.as_u16() >= 400;
        if waits_for_status && record.is_long_running() {
            parts.last_stage = LastStage::StartedAndComplete;
        }
        if parts.response.is_some() {
            let observer = Observer::new(Arc::downgrade(record), Direction::Response);
            response.body_mut().set_observer(Box::new(observer));
        }
        drop(parts);
        if record.is_long_running() && !waits_for_status {
            record.store(Stage::ResponseStarted);
        }
    }
}

impl Record {
    fn parts(&self) -> MutexGuard<'_, Parts> {
        lock(&self.parts)
    }

    fn store(&self, stage: Stage) {
        self.subject.store(&self.parts(), stage);
    }

    /// The response of a long-running request is no `Status`: nothing of its body is awaited.
    fn note_no_status(&self) {
        let mut parts = self.parts();
        if parts.last_stage != LastStage::StartedAndComplete {
            return;
        }
        parts.last_stage = LastStage::Complete;
        drop(parts);
        self.store(Stage::ResponseStarted);
    }

    /// Copies the body of the request, if the event needs a part of it.
    fn observe_request(self: &Arc<Self>, request: &mut Request<Body>) {
        let Some(kind) = self.request_object(request.method()) else { return };
        let encoding = Encoding::of(request.headers().get(CONTENT_TYPE));
        let copy = Capture::new(self.reserve(), Interest::All);
        self.parts().request = Some(Box::new(RequestCapture { kind, encoding, copy }));
        let observer = Observer::new(Arc::downgrade(self), Direction::Request);
        request.body_mut().set_observer(Box::new(observer));
    }
}

impl Deref for Record {
    type Target = Subject;

    fn deref(&self) -> &Subject {
        &self.subject
    }
}

impl Subject {
    fn is_long_running(&self) -> bool {
        self.source.info.is_long_running()
    }

    /// The event of a stage; `None` if the policy omits it.
    fn event_of<'a>(&'a self, parts: &'a Parts, stage: Stage) -> Option<Event<'a>> {
        if self.decision.omitted.contains(stage) {
            return None;
        }
        let Self { source, .. } = self;
        let stage_timestamp = match stage {
            Stage::RequestReceived => source.received,
            _ => SystemTime::UNIX_EPOCH + self.audit.clock.now(),
        };
        let verb = |verb: &'static str| AuthenticationMetadata { impersonation_constraint: verb.into() };
        Some(Event {
            level: parts.level,
            audit_id: source.audit_id(),
            stage,
            request_uri: source.request_uri(),
            verb: source.info.verb().into(),
            user: match &self.client {
                Some(client) => client.audited(),
                None => EncodedUser::unknown(),
            },
            impersonated_user: parts.impersonated_user.as_ref().map(Identity::audited),
            authentication_metadata: parts.constraint.map(verb),
            source_ips: source.addresses(),
            user_agent: source.user_agent(),
            object_ref: source.object_ref(&parts.object),
            response_status: parts.response_status.as_ref().map(Cow::Borrowed),
            request_object: parts.request_object.clone(),
            response_object: parts.response_object.clone(),
            request_received_timestamp: source.received,
            stage_timestamp,
            annotations: Cow::Borrowed(&parts.annotations),
        })
    }

    fn store(&self, parts: &Parts, stage: Stage) {
        if let Some(event) = self.event_of(parts, stage) {
            self.audit.sinks.store(&event);
        }
    }

    /// What the event takes from the body of the request.
    // apiserver: pkg/endpoints/handlers/{create,update,patch,delete}.go
    fn request_object(&self, method: &Method) -> Option<RequestObject> {
        if self.is_long_running() || !self.source.info.is_resource() {
            return None;
        }
        let with_object = self.decision.level >= Level::Request;
        match *method {
            Method::POST | Method::PUT => Some(RequestObject::Named),
            Method::PATCH if with_object => Some(RequestObject::Patch),
            Method::DELETE if with_object => Some(RequestObject::Options),
            _ => None,
        }
    }

    /// Memory for a copy of a body, in the share of the client.
    fn reserve(&self) -> ReservedMemory {
        let share = self.client.as_ref().map_or_else(Cow::default, |client| share_of(client, self.peer));
        self.audit.memory.reserve(&share.into())
    }

    fn response_capture(&self, response: &Response<Body>) -> Option<Box<ResponseCapture>> {
        let is_read = matches!(self.source.info.verb(), "get" | "list" | "watch" | "head");
        let interest = if self.decision.level >= Level::RequestResponse && !self.is_long_running() {
            // Paths without a resource have discovery, and much that is no object.
            if self.source.info.is_resource() { Interest::All } else { Interest::Object }
        } else if status::may_be_status(response, is_read) {
            Interest::Status
        } else {
            return None;
        };
        let headers = response.headers();
        let encoding = Encoding::of(headers.get(CONTENT_TYPE));
        let code = response.status();
        if encoding == Encoding::Other || code == StatusCode::SWITCHING_PROTOCOLS {
            return None;
        }
        let copy = Capture::new(self.reserve(), interest);
        let is_compressed = headers.contains_key(CONTENT_ENCODING);
        Some(Box::new(ResponseCapture { code, encoding, is_compressed, copy }))
    }
}

impl Parts {
    /// Adds an annotation; the first value of a key stays.
    fn annotate(&mut self, key: &str, value: &str) {
        self.annotations.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }

    fn capture(&mut self, direction: Direction) -> Option<&mut Capture> {
        match direction {
            Direction::Request => self.request.as_mut().map(|request| &mut request.copy),
            Direction::Response => self.response.as_mut().map(|response| &mut response.copy),
        }
    }

    /// Reads the copy of the request's body, and frees it.
    // apiserver: pkg/audit/request.go, LogRequestObject and LogRequestPatch
    fn read_request(&mut self) {
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
            self.request_object = objects::patch(&bytes);
            self.memory.push(memory);
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
                Ok(object) => self.request_object = self.held(object, memory, "requestObject"),
                Err(reason) => self.omit("requestObject", reason),
            }
        }
    }

    /// The object, if there is memory for it.
    fn held(
        &mut self,
        object: Option<Arc<RawValue>>,
        mut memory: ReservedMemory,
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
    fn read_response(&mut self) {
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
            Ok(object) => self.response_object = self.held(object, memory, "responseObject"),
            Err(reason) => self.omit("responseObject", reason),
        }
    }

    fn omit(&mut self, field: &'static str, reason: &'static str) {
        self.omitted.push((field, reason));
    }

    fn note_omitted(&mut self) {
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

impl Drop for Record {
    fn drop(&mut self) {
        let Self { subject, parts } = self;
        // Nothing else holds it any more, so it needs no lock.
        let parts = parts.get_mut().unwrap_or_else(PoisonError::into_inner);
        parts.read_request();
        parts.read_response();
        parts.note_omitted();
        if parts.response_status.is_none() {
            parts.response_status = Some(status::of_no_response());
            if subject.is_long_running() && parts.last_stage == LastStage::Complete {
                parts.last_stage = LastStage::StartedAndComplete;
            }
        }
        match parts.last_stage {
            LastStage::Nothing | LastStage::Started => {}
            LastStage::Panic => subject.store(parts, Stage::Panic),
            LastStage::Complete => subject.store(parts, Stage::ResponseComplete),
            LastStage::StartedAndComplete => {
                subject.store(parts, Stage::ResponseStarted);
                subject.store(parts, Stage::ResponseComplete);
            }
        }
    }
}

/// What a client has tried to authenticate with.
// apiserver: pkg/endpoints/filters/authn_audit.go, getAuthMethods
pub(super) fn attempted(authorization: Option<&str>, query: Option<&str>, has_certificate: bool) -> String {
    let authorization = authorization.unwrap_or_default();
    let mut methods = Vec::new();
    let is_scheme = |scheme: &str| {
        authorization.split_once(' ').is_some_and(|(found, _)| found.eq_ignore_ascii_case(scheme))
    };
    if is_scheme("basic") {
        methods.push("basic");
    }
    if authorization.trim().split_once(' ').is_some_and(|(found, _)| found.eq_ignore_ascii_case("bearer")) {
        methods.push("bearer");
    }
    let token = query.and_then(|query| crate::go::url::query::first(query, "access_token"));
    if token.is_some_and(|token| !token.trim().is_empty()) {
        methods.push("access_token");
    }
    if has_certificate {
        methods.push("x509");
    }
    if methods.is_empty() {
        "Authentication failed, no credentials provided".to_owned()
    } else {
        format!("Authentication failed, attempted: {}", methods.join(", "))
    }
}
