//! The log line, the metrics and the audit ID of each request, until the end of its response body.
//!
//! Queries are never logged: they may carry secrets.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use portcullis_http::body::Body;
use portcullis_http::identity::Identity;
use portcullis_http::transport::Incoming;
use portcullis_system::clock::{Clock, UnixTime};
use tokio::time::Instant;
use tracing::{error, info, warn};
use uuid::Uuid;

use super::audit::AuditedRequest;
use super::respond::{self, RefusalRenderer, shown_audit_id};
use super::{AUDIT_ID, LogThrottle};
use crate::authn::trace::TraceRecord;
use crate::authn::{AuthnError, ProvenIdentity};
use crate::authz::impersonation::ImpersonationError;
use crate::authz::{AccessRefusal, ReviewError};
use crate::backend::pool::SendError;
use crate::cluster::Cluster;
use crate::cluster::activity::{ActivityGuard, ActivityKind};
use crate::limits::InflightPermit;
use crate::listener::{Connection, RequestGuard};
use crate::metrics::{Metrics, compressed_username, verb_label};
use crate::pipeline::error_map::Refusal;
use crate::pipeline::forward::ForwardError;
use crate::pipeline::log_throttle::LogPermit;
use crate::request::info::RequestInfo;
use crate::telemetry::{REQUEST_LOG, cut, error_chain};
use crate::traces::{ActiveSpan, SpanScope};

/// Requests that took longer are logged as slow, unless they are long-running.
const SLOW_REQUEST_THRESHOLD: Duration = Duration::from_secs(5);
/// The code of a request whose client has disconnected before the response.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// The facts about a request that its log line, its metrics and its response need.
pub(super) struct AccessLog {
    renderer: RefusalRenderer,
    cluster: Option<Arc<Cluster>>,
    guard: AccessLogGuard,
    warnings: Vec<String>,
    /// Annotations of authentication for the audit.
    annotations: BTreeMap<String, String>,
    /// Whether the client is anonymous or its credential was rejected.
    unauthenticated: bool,
    /// The time before authentication, which begins when the request is received.
    received: Option<UnixTime>,
    /// How long authentication has taken.
    authentication_took: Duration,
}

/// Writes the log line and the metrics when the response body ends, for whatever reason.
struct AccessLogGuard {
    started: Instant,
    metrics: Arc<Metrics>,
    verb: &'static str,
    kind: InflightKind,
    /// `None` until there is a response.
    code: Option<StatusCode>,
    line: LogLine,
    request: RequestGuard,
    audited: Option<AuditedRequest>,
    /// The place among the requests in flight, returned with the rest, or at the end of a tunnel.
    permit: Option<Arc<InflightPermit>>,
    /// Counts the request for the status of its cluster.
    activity: Option<ActivityGuard>,
    /// The span, which ends with the request or its tunnel.
    span: Option<Box<ActiveSpan>>,
}

/// The fields of a request's log lines. Values that the client chose are truncated.
struct LogLine {
    audit_id: HeaderValue,
    peer: SocketAddr,
    method: Method,
    path: String,
    user: Option<Identity>,
    /// The user as whom the request is made, if it is another one.
    impersonated_user: Option<Identity>,
    authenticator: &'static str,
    throttle: Arc<LogThrottle>,
}

/// The log level of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RefusalSeverity {
    /// A fault of the gateway or of the backend.
    Error,
    /// A client that cannot authenticate.
    Warning,
    /// The level of all requests.
    Request,
}

impl LogLine {
    fn user(&self) -> Option<Cow<'_, str>> {
        self.user.as_ref().map(|user| cut(&user.name))
    }

    fn impersonated_user(&self) -> Option<Cow<'_, str>> {
        self.impersonated_user.as_ref().map(|user| cut(&user.name))
    }

    fn method(&self) -> Cow<'_, str> {
        cut(self.method.as_str())
    }

    fn audit_id(&self) -> String {
        shown_audit_id(&self.audit_id)
    }

    /// Logs the reason of a refusal. Warnings and errors beyond the client's budget get the level `Request`.
    fn log_refusal(
        &self,
        severity: RefusalSeverity,
        cluster: Option<&str>,
        error: Option<&str>,
        message: &str,
    ) {
        let Self { peer, path, .. } = self;
        let (audit_id, user) = (self.audit_id(), self.user());
        let user = user.as_deref();
        let error = error.map(cut);
        let error = error.as_deref();
        let permit =
            if severity == RefusalSeverity::Request { None } else { self.throttle.permit(self.peer.ip()) };
        match (severity, permit) {
            (RefusalSeverity::Error, Some(LogPermit { suppressed })) => {
                error!(audit_id, %peer, path, user, cluster, error, suppressed, "{message}");
            }
            (RefusalSeverity::Warning, Some(LogPermit { suppressed })) => {
                warn!(audit_id, %peer, path, user, cluster, error, suppressed, "{message}");
            }
            (_, None) | (RefusalSeverity::Request, _) => {
                info!(target: REQUEST_LOG, audit_id, %peer, path, user, cluster, error, "{message}");
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum InflightKind {
    Unknown,
    ReadOnly,
    Mutating,
    LongRunning,
}

impl AccessLog {
    pub(super) fn begin(
        connection: &Connection,
        request: &Request<Incoming>,
        metrics: &Arc<Metrics>,
        throttle: &Arc<LogThrottle>,
    ) -> Self {
        let client_id = request.headers().get(AUDIT_ID).filter(|id| !id.is_empty());
        // apiserver: pkg/endpoints/filters/audit_init.go
        // A copy: the client's is a part of the buffer of the header, and this one stays until a watch ends.
        let client_id = client_id.and_then(|id| HeaderValue::from_bytes(id.as_bytes()).ok());
        let mut audit_id = client_id.unwrap_or_else(new_audit_id);
        // It is unique, so HPACK should not evict repeated headers for it.
        audit_id.set_sensitive(true);
        let line = LogLine {
            audit_id,
            peer: connection.info.peer,
            method: request.method().clone(),
            // Without the query, which may carry secrets.
            path: cut(request.uri().path()).into_owned(),
            user: None,
            impersonated_user: None,
            authenticator: "",
            throttle: Arc::clone(throttle),
        };
        let guard = AccessLogGuard {
            started: Instant::now(),
            metrics: Arc::clone(metrics),
            verb: "other",
            kind: InflightKind::Unknown,
            code: None,
            line,
            request: connection.begin_request(),
            audited: None,
            permit: None,
            activity: None,
            span: None,
        };
        Self {
            renderer: RefusalRenderer::of(request),
            cluster: None,
            guard,
            warnings: Vec::new(),
            annotations: BTreeMap::new(),
            unauthenticated: false,
            received: None,
            authentication_took: Duration::ZERO,
        }
    }

    /// When the request was received.
    pub(super) fn received(&self, clock: &Clock) -> UnixTime {
        self.received.unwrap_or_else(|| clock.now().saturating_sub(self.started().elapsed()))
    }

    pub(super) fn note_received(&mut self, now: UnixTime) {
        self.received = Some(now);
    }

    pub(super) fn started(&self) -> Instant {
        self.guard.started
    }

    /// Whether the client is anonymous or its credential was rejected.
    pub(super) fn is_unauthenticated(&self) -> bool {
        self.unauthenticated
    }

    pub(super) fn audit_id(&self) -> HeaderValue {
        self.guard.line.audit_id.clone()
    }

    pub(super) fn note_cluster(&mut self, cluster: &Arc<Cluster>) {
        self.cluster = Some(Arc::clone(cluster));
    }

    pub(super) fn note_info(&mut self, info: &RequestInfo) {
        self.guard.verb = verb_label(info.verb());
        self.guard.kind = if info.is_long_running() {
            InflightKind::LongRunning
        } else if info.is_mutating() {
            InflightKind::Mutating
        } else {
            InflightKind::ReadOnly
        };
        let activity = match (self.guard.kind, info.verb()) {
            (InflightKind::LongRunning, "watch") => ActivityKind::Watch,
            (InflightKind::LongRunning, _) => ActivityKind::Stream,
            (InflightKind::Mutating, _) => ActivityKind::Mutating,
            (InflightKind::ReadOnly | InflightKind::Unknown, _) => ActivityKind::ReadOnly,
        };
        self.guard.activity = self.cluster.as_ref().map(|cluster| cluster.activity.enter(activity));
        self.guard.begin();
    }

    /// Holds a place among the requests in flight until the response body has ended.
    pub(super) fn hold(&mut self, permit: Option<InflightPermit>) {
        self.guard.permit = permit.map(Arc::new);
    }

    /// The place that is held.
    pub(super) fn place(&self) -> Option<Arc<InflightPermit>> {
        self.guard.permit.clone()
    }

    /// Adds warnings for the client.
    pub(super) fn note_warnings(&mut self, warnings: Vec<String>) {
        self.warnings.extend(warnings);
    }

    /// Records the remaining lifetime of the client's certificate before it is verified, so also for an expired one.
    // apiserver: pkg/authentication/request/x509/x509.go
    pub(super) fn note_certificate(&self, not_after: Option<i64>, now: UnixTime) {
        if let Some(not_after) = not_after {
            let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
            // An `f64` holds the seconds of a certificate's lifetime exactly.
            #[expect(
                clippy::cast_precision_loss,
                clippy::as_conversions,
                reason = "seconds, for a histogram"
            )]
            let left = not_after.saturating_sub(now) as f64;
            self.guard.metrics.authentication.client_certificate_expiration.observe(left);
        }
    }

    pub(super) fn note_authentication(
        &mut self,
        verdict: &Result<ProvenIdentity, AuthnError>,
        took: Duration,
        trace: TraceRecord,
    ) {
        self.authentication_took = took;
        self.warnings = trace.warnings;
        self.annotations = trace.annotations;
        self.unauthenticated = verdict.as_ref().map_or(true, |proven| proven.user().is_unauthenticated());
        let metrics = &self.guard.metrics;
        let result = match verdict {
            Ok(proven) => {
                self.guard.line.user = Some(proven.identity().clone());
                self.guard.line.authenticator = proven.method().name();
                metrics.authentication.user_requests.of(compressed_username(&proven.user().name)).inc();
                "success"
            }
            Err(AuthnError::Unrecognized) => "failure",
            Err(error) => {
                if let AuthnError::Reserved(method) = error {
                    metrics.authentication.reserved_identities.with_label_values(&[method.name()]).inc();
                }
                "error"
            }
        };
        metrics.authentication.attempts.of(result).inc();
        metrics.authentication.duration.of(result).observe(took.as_secs_f64());
    }

    /// Takes the annotations of authentication for the audit.
    pub(super) fn take_annotations(&mut self) -> BTreeMap<String, String> {
        std::mem::take(&mut self.annotations)
    }

    /// The request is traced until it ends. Authentication, which has decided whether it is, is recorded afterwards.
    pub(super) fn note_span(&mut self, span: ActiveSpan) {
        if let Some(began) = self.received {
            span.scope().record("authentication", began, began + self.authentication_took);
        }
        self.guard.span = Some(Box::new(span));
    }

    /// The span, to begin others within it, if the request is traced.
    pub(super) fn spans(&self) -> Option<&SpanScope> {
        self.guard.span.as_ref().map(|span| span.scope())
    }

    /// The request is audited until it ends.
    pub(super) fn note_audited(&mut self, audited: Option<AuditedRequest>) -> Option<&AuditedRequest> {
        self.guard.audited = audited;
        self.guard.audited.as_ref()
    }

    /// The audit of the request; `None` if the policy omits it.
    pub(super) fn audited(&self) -> Option<&AuditedRequest> {
        self.guard.audited.as_ref()
    }

    /// Records the user as whom the request is made, if it is not the client.
    pub(super) fn note_impersonated(&mut self, user: Option<&Identity>, constraint: Option<&'static str>) {
        self.guard.line.impersonated_user = user.cloned();
        if let (Some(audited), Some(user)) = (&self.guard.audited, user) {
            audited.note_impersonated(user, constraint);
        }
    }

    /// Completes the response: renders a refusal, adds the headers of every response, and attaches the guard to the body.
    pub(super) fn finish(
        mut self,
        result: Result<Response<Body>, Refusal>,
        connection: &Connection,
        strict_transport_security: Option<&HeaderValue>,
    ) -> Response<Body> {
        let audited = self.guard.audited.as_ref();
        let mut response = match result {
            Ok(mut response) => {
                if let Some(audited) = audited {
                    audited.note_response(&mut response, || self.renderer.is_unacceptable());
                }
                response
            }
            Err(refusal) => {
                self.log_refusal(&refusal);
                let response = self.renderer.render(&refusal, self.audit_id(), connection.http2);
                if let Some(audited) = audited {
                    audited.note_refusal(&refusal, response.status(), self.renderer.is_unacceptable());
                }
                response
            }
        };
        let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        // kube-apiserver writes the header of an upgraded connection past its warnings.
        let warnings = if upgraded { &[] } else { self.warnings.as_slice() };
        respond::add_headers(response.headers_mut(), warnings, strict_transport_security);
        let closes = connection.is_draining() || connection.refuses_requests();
        if !connection.http2 && !upgraded && closes {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self.guard.code = Some(response.status());
        self.guard.request.note_response();
        if upgraded {
            let line = &self.guard.line;
            let LogLine { peer, path, .. } = line;
            let (user, impersonated_user) = (line.user(), line.impersonated_user());
            let (user, impersonated_user) = (user.as_deref(), impersonated_user.as_deref());
            info!(audit_id = line.audit_id(), %peer, path, user, impersonated_user, "connection upgraded");
        }
        response.map(|body| body.with_guard(Box::new(self.guard)))
    }

    /// Logs the cause of a refusal, which the client does not see.
    fn log_refusal(&self, refusal: &Refusal) {
        let line = &self.guard.line;
        let log = |severity, error: &str, message| line.log_refusal(severity, None, Some(error), message);
        match refusal {
            Refusal::Unauthenticated(error) => {
                log(RefusalSeverity::Warning, &error.to_string(), "unable to authenticate the request");
            }
            Refusal::UnencodableIdentity(error) => {
                self.guard.metrics.backend.unencodable_identities.inc();
                let message = "refused an identity that HTTP headers cannot carry unchanged";
                log(RefusalSeverity::Warning, &error.to_string(), message);
            }
            Refusal::Impersonation(ImpersonationError::Unanswered(error)) => {
                log(unanswered_severity(error), &error.to_string(), "impersonation could not be checked");
            }
            Refusal::Access(AccessRefusal::Unanswered(error)) => {
                log(unanswered_severity(error), &error.to_string(), "authorization could not be decided");
            }
            Refusal::Panic => {
                line.log_refusal(RefusalSeverity::Error, None, None, "handling the request panicked");
            }
            Refusal::Forward(ForwardError::RequestBody(error)) => {
                log(RefusalSeverity::Request, &error_chain(error), "the request body broke off");
            }
            Refusal::Forward(error) => match error.backend_cause() {
                Some(cause) => self.log_backend_error(error, cause),
                None => log(RefusalSeverity::Request, &error.to_string(), "refused"),
            },
            Refusal::TooManyRequests(exceeded) => {
                self.guard.metrics.limits.terminations.with_label_values(&[self.guard.verb, "429"]).inc();
                log(RefusalSeverity::Request, &exceeded.to_string(), "too many requests in flight");
            }
            other => log(RefusalSeverity::Request, &other.to_string(), "refused"),
        }
    }

    fn log_backend_error(&self, error: &ForwardError, cause: &str) {
        self.guard.metrics.backend.errors.with_label_values(&[cause]).inc();
        let cluster = self.cluster.as_deref();
        // One line reports that no endpoint is usable; further requests would repeat it.
        let is_known = cluster.is_some_and(|cluster| match error {
            ForwardError::Send(SendError::Connect(_)) => !cluster.backend.note_unavailable(),
            ForwardError::Send(SendError::NotTrusted) => !cluster.backend.note_untrusted(),
            _ => false,
        });
        let severity = if is_known { RefusalSeverity::Request } else { RefusalSeverity::Error };
        let name = cluster.map(|cluster| cluster.name.as_str());
        self.guard.line.log_refusal(severity, name, Some(&error_chain(error)), "no answer from the backend");
    }
}

/// A client that asks for too much is at fault itself.
fn unanswered_severity(error: &ReviewError) -> RefusalSeverity {
    match error {
        ReviewError::Overloaded | ReviewError::TooLarge => RefusalSeverity::Warning,
        ReviewError::Unavailable(_)
        | ReviewError::Forbidden(_)
        | ReviewError::Webhook { .. }
        | ReviewError::Unusable(_) => RefusalSeverity::Error,
    }
}

impl AccessLogGuard {
    fn begin(&self) {
        match self.kind {
            InflightKind::ReadOnly => self.metrics.requests.inflight.of("readOnly").inc(),
            InflightKind::Mutating => self.metrics.requests.inflight.of("mutating").inc(),
            InflightKind::LongRunning => self.metrics.requests.longrunning.of(self.verb).inc(),
            InflightKind::Unknown => {}
        }
    }
}

impl Drop for AccessLogGuard {
    fn drop(&mut self) {
        let took = self.started.elapsed();
        if let Some(span) = &mut self.span {
            span.note_status(self.code.map_or(CLIENT_CLOSED_REQUEST, |code| code.as_u16()));
        }
        let Self { metrics, kind, code, line, .. } = self;
        let verb = self.verb;
        match kind {
            InflightKind::ReadOnly => metrics.requests.inflight.of("readOnly").dec(),
            InflightKind::Mutating => metrics.requests.inflight.of("mutating").dec(),
            InflightKind::LongRunning => metrics.requests.longrunning.of(verb).dec(),
            InflightKind::Unknown => {}
        }
        // kube-apiserver reports a client that has disconnected as 499 where it needs a code.
        let code = code.map_or(CLIENT_CLOSED_REQUEST, |code| code.as_u16());
        metrics.requests.ended(verb, code);
        if *kind != InflightKind::LongRunning {
            metrics.requests.answered(verb, took, self.span.as_ref().and_then(|span| span.exemplar()));
        }
        let LogLine { peer, path, authenticator, throttle, .. } = &*line;
        let is_slow = *kind != InflightKind::LongRunning && took >= SLOW_REQUEST_THRESHOLD;
        if is_slow && let Some(LogPermit { suppressed }) = throttle.permit(peer.ip()) {
            let (audit_id, method, user) = (line.audit_id(), line.method(), line.user());
            let (method, user, impersonated_user) = (&*method, user.as_deref(), line.impersonated_user());
            let impersonated_user = impersonated_user.as_deref();
            warn!(target: REQUEST_LOG, audit_id, %peer, method, path, verb, user, impersonated_user, authenticator, code, ?took, suppressed, "slow request");
        } else {
            // Inline, so that the values are computed only if the line is written.
            info!(
                target: REQUEST_LOG, audit_id = line.audit_id(), %peer, method = &*line.method(), path, verb,
                user = line.user().as_deref(), impersonated_user = line.impersonated_user().as_deref(), authenticator,
                code, ?took, "request"
            );
        }
    }
}

fn new_audit_id() -> HeaderValue {
    let mut buffer = Uuid::encode_buffer();
    let text = Uuid::new_v4().hyphenated().encode_lower(&mut buffer);
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}
