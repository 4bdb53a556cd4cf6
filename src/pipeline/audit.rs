//! The audit of one request: makes its events, stage by stage, and hands them to the sinks of its cluster.
//!
//! The event `ResponseComplete` is made when the last [`AuditedRequest`] of a request is dropped: at the end of the response body
//! or of the tunnel, however it ends. So no early exit of the request path can miss it. Where requests wait for a backend, it is
//! stored before the client has the end of the response.
//!
//! Whether a backend that cannot store an event refuses the request is decided in `crates/audit/src/sink.rs`.
//! Rules match the client, never the impersonated user. What differs from kube-apiserver is in `docs/conformance.md`.
// apiserver: pkg/endpoints/filters/audit.go, pkg/audit/{context,request}.go

mod capture;
mod objects;
mod parts;
mod source;
mod status;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body as _;
use portcullis_admission::Annotation;
use portcullis_audit::event::{AuthenticationMetadata, Event, Level, ResponseStatus, Stage};
use portcullis_audit::policy::Decision;
use portcullis_audit::sink::{EventOwner, NotStored, Storing};
use portcullis_http::body::{Body, BodyEnd};
use portcullis_http::identity::Identity;
use portcullis_kubernetes::status::Form;
use portcullis_kubernetes::status::render::{self, StatusObject};
use portcullis_kubernetes::user::EncodedUser;
use portcullis_limits::budget::BudgetPermit;
use portcullis_sessions::decoder::SessionKind;
use portcullis_system::clock::UnixTime;
use portcullis_system::sync::lock;
use tokio::time::timeout;

use super::error_map::{Refusal, RefusalResponse};
use super::session;
use crate::audit::{ClusterAudit, attributes, event_owner};
use crate::authz::{AccessRefusal, AllowedAccess};
use crate::metrics::Metrics;
use crate::request::info::RequestInfo;
use capture::{Capture, Direction, Interest, Observer};
use objects::Encoding;
use parts::{LastStage, Parts, RequestCapture, RequestObject, ResponseCapture};
use source::Source;

// apiserver: pkg/endpoints/filters/authorization.go
const DECISION: &str = "authorization.k8s.io/decision";
const REASON: &str = "authorization.k8s.io/reason";
/// The cluster of a request, if the gateway serves several.
const CLUSTER: &str = "audit.portcullis.dev/cluster";

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
    /// The client; `None` if it is not authenticated.
    client: Option<Identity>,
    /// The kind of session that it opens.
    session: Option<SessionKind>,
    /// In whose share its events count, and their objects.
    owner: EventOwner,
    decision: Decision,
    source: Source,
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
        if !self.is_awaited() {
            record.store(&record.parts(), Stage::RequestReceived);
            return None;
        }
        let is_omitted = record.decision.omitted.contains(Stage::RequestReceived);
        if is_omitted && (record.is_long_running() || record.audit.sinks.has_room(&record.owner)) {
            return None;
        }
        Some(self.wait_for_received())
    }

    async fn wait_for_received(&self) -> Result<(), NotStored> {
        let Self(record) = self;
        let sinks = &record.audit.sinks;
        if !record.is_long_running() {
            sinks.ready(&record.owner).await;
        }
        let storing = {
            let parts = record.parts();
            record
                .event_of(&parts, Stage::RequestReceived)
                .map(|event| sinks.store_first(&record.owner, &event))
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
        if audit.is_one_of_several {
            annotations.insert(CLUSTER.to_owned(), audit.cluster.cluster().to_string());
        }
        let session = session::kind_of(info);
        if let Some(kind) = session {
            let of_session = session::annotations_of_request(kind, request.uri().query());
            annotations.extend(of_session.map(|(key, value)| (key.to_owned(), value)));
        }
        let parts = Parts::new(decision, annotations);
        let subject = Subject {
            audit: Arc::clone(audit),
            client: user.cloned(),
            session,
            owner: event_owner(&audit.cluster, user, facts.peer),
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
            Err(AccessRefusal::Failed(_) | AccessRefusal::Undecided(_)) => (None, "internal error"),
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

    /// The kind of session that the request opens, if it opens one.
    pub(super) fn session(&self) -> Option<SessionKind> {
        self.0.session
    }

    /// Adds annotations of the session. One without a value is removed.
    pub(super) fn annotate_session<const N: usize>(&self, annotations: [(&str, Option<String>); N]) {
        let mut parts = self.0.parts();
        for (key, value) in annotations {
            match value {
                Some(value) => parts.annotate(key, &value),
                None => parts.remove_annotation(key),
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
            self.0.store_started();
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
            record.store_started();
        }
    }

    /// Whether requests wait for a backend that stores its events.
    pub(super) fn is_awaited(&self) -> bool {
        !self.0.audit.sinks.never_wait()
    }

    /// Stores the last event before the client has the end of the response: waits for at most `limit`.
    // apiserver: pkg/endpoints/filters/audit.go, WithAudit — the last event is processed before the handler returns, and Go's server
    // then sends the end of the response
    pub(super) async fn store_before_end(
        self,
        response: Response<Body>,
        is_head: bool,
        limit: Duration,
    ) -> Response<Body> {
        let started = self.0.parts().started.take();
        let _late = timeout(limit, finished(started)).await;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return response;
        }
        let has_body = !matches!(response.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let is_empty = response.body().is_end_stream() || response.body().size_hint().exact() == Some(0);
        if is_head || !has_body || is_empty {
            let stored = self.0.complete(&mut self.0.parts());
            let _late = timeout(limit, finished(stored)).await;
            return response;
        }
        // The response of a client that does not read ends by its deadline, and with it the last holder of the record.
        let record = Arc::downgrade(&self.0);
        let stored = move || -> BodyEnd {
            let stored = record.upgrade().map(|record| record.complete(&mut record.parts()));
            Box::pin(async move {
                let _late = timeout(limit, finished(stored.into_iter().flatten())).await;
            })
        };
        response.map(|body| body.with_last_step(Box::new(stored)))
    }
}

impl Record {
    fn parts(&self) -> MutexGuard<'_, Parts> {
        lock(&self.parts)
    }

    /// Stores the event of the start of the response. Who waits for backends waits for it.
    fn store_started(&self) {
        let mut parts = self.parts();
        let Some(event) = self.event_of(&parts, Stage::ResponseStarted) else { return };
        let stored = self.audit.sinks.store_awaited(&self.owner, &event);
        drop(event);
        parts.started = Some(stored);
    }

    /// The response of a long-running request is no `Status`: nothing of its body is awaited.
    fn note_no_status(&self) {
        let mut parts = self.parts();
        if parts.last_stage != LastStage::StartedAndComplete {
            return;
        }
        parts.last_stage = LastStage::Complete;
        drop(parts);
        self.store_started();
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
            self.audit.sinks.store(&self.owner, &event);
        }
    }

    /// Stores the events with which the request ends, once.
    fn complete(&self, parts: &mut Parts) -> impl Iterator<Item = Storing> + use<> {
        parts.read_request();
        parts.read_response();
        parts.note_omitted();
        if parts.response_status.is_none() {
            parts.response_status = Some(status::of_no_response());
            if self.is_long_running() && parts.last_stage == LastStage::Complete {
                parts.last_stage = LastStage::StartedAndComplete;
            }
        }
        let stages = match std::mem::replace(&mut parts.last_stage, LastStage::Nothing) {
            LastStage::Nothing | LastStage::Started => [None, None],
            LastStage::Panic => [None, Some(Stage::Panic)],
            LastStage::Complete => [None, Some(Stage::ResponseComplete)],
            LastStage::StartedAndComplete => [Some(Stage::ResponseStarted), Some(Stage::ResponseComplete)],
        };
        let stored = stages
            .map(|stage| Some(self.audit.sinks.store_awaited(&self.owner, &self.event_of(parts, stage?)?)));
        stored.into_iter().flatten().chain(parts.started.take())
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

    /// Memory for a copy of a body, in the share of its owner.
    fn reserve(&self) -> BudgetPermit {
        self.audit.memory.reserve(self.owner.owner().clone())
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

impl Drop for Record {
    fn drop(&mut self) {
        let Self { subject, parts } = self;
        // Nothing else holds it any more, so it needs no lock.
        let parts = parts.get_mut().unwrap_or_else(PoisonError::into_inner);
        // The client is gone: the sinks have the events, and no response waits for them.
        drop(subject.complete(parts));
    }
}

/// Waits until the events are stored.
async fn finished(storing: impl IntoIterator<Item = Storing>) {
    for storing in storing {
        storing.finished().await;
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
    let token = query.and_then(|query| portcullis_go::url::query::first(query, "access_token"));
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
