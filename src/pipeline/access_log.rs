//! What accompanies a request from its first byte to the last of its answer: audit id, the headers every answer has,
//! the one log line, the metrics.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{
    ACCEPT, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
    STRICT_TRANSPORT_SECURITY, USER_AGENT, WARNING,
};
use http::{Method, Request, Response, StatusCode, Uri};
use tokio::time::Instant;
use tracing::{error, info, warn};
use uuid::Uuid;

use super::LogThrottle;
use crate::authn::{AuthnError, ProvenIdentity};
use crate::backend::pool::SendError;
use crate::clock::UnixTime;
use crate::cluster::Cluster;
use crate::http::body::Body;
use crate::http::status::render::{Negotiation, render};
use crate::http::transport::Incoming;
use crate::listener::{Connection, RequestGuard};
use crate::metrics::{Metrics, compressed_username, verb_label};
use crate::pipeline::error_map::Refusal;
use crate::pipeline::forward::{AUDIT_ID, ForwardError, PrepareError};
use crate::pipeline::log_throttle::Permit;
use crate::request::info::RequestInfo;
use crate::request::wellformed::MalformedRequest;
use crate::telemetry::{REQUEST_LOG, cut, error_chain};
use crate::user::Identity;

/// A request that is not long-running and took longer is logged.
const SLOW: Duration = Duration::from_secs(5);
/// The code of a request whose client left before its answer.
const CLIENT_LEFT: u16 = 499;
/// As much of a client's audit id as a log line holds.
// apiserver: pkg/audit/context.go
const AUDIT_ID_IN_LOGS: usize = 64;
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache, private");

/// One request and its answer.
pub(super) struct AccessLog {
    started: Instant,
    http2: bool,
    uri: Uri,
    /// What a `Status` is rendered by.
    asked: [(HeaderName, Option<HeaderValue>); 2],
    cluster: Option<Arc<Cluster>>,
    end: AccessLogGuard,
    warnings: Vec<String>,
    /// Whether the client is nobody in particular, or someone else than it says.
    unauthenticated: bool,
}

/// What is told once the answer has ended, however it ends.
struct AccessLogGuard {
    started: Instant,
    metrics: Arc<Metrics>,
    verb: &'static str,
    kind: RequestKind,
    /// `None` while there is no answer: a client that leaves gets none.
    code: Option<StatusCode>,
    line: LogLine,
    busy: RequestGuard,
}

/// What a log line says of a request; what the client chose is cut.
struct LogLine {
    audit_id: HeaderValue,
    peer: SocketAddr,
    method: Method,
    path: String,
    user: Option<Identity>,
    authenticator: &'static str,
    throttle: Arc<LogThrottle>,
}

/// How a refusal is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Severity {
    /// A fault of the gateway or its backend.
    Error,
    /// A client that does not get in.
    Warning,
    /// Like any request.
    Request,
}

impl LogLine {
    fn user(&self) -> Option<Cow<'_, str>> {
        self.user.as_ref().map(|user| cut(&user.name))
    }

    fn method(&self) -> Cow<'_, str> {
        cut(self.method.as_str())
    }

    fn audit_id(&self) -> String {
        String::from_utf8_lossy(self.audit_id.as_bytes()).chars().take(AUDIT_ID_IN_LOGS).collect()
    }

    /// Logs why the request was refused. One client causes so many lines of the higher levels; the rest are `Request`.
    fn log_refusal(&self, severity: Severity, cluster: Option<&str>, error: Option<&str>, message: &str) {
        let Self { peer, path, .. } = self;
        let (audit_id, user) = (self.audit_id(), self.user());
        let user = user.as_deref();
        let error = error.map(cut);
        let error = error.as_deref();
        let permit = if severity == Severity::Request { None } else { self.throttle.permit(self.peer.ip()) };
        match (severity, permit) {
            (Severity::Error, Some(Permit { suppressed })) => {
                error!(audit_id, %peer, path, user, cluster, error, suppressed, "{message}");
            }
            (Severity::Warning, Some(Permit { suppressed })) => {
                warn!(audit_id, %peer, path, user, cluster, error, suppressed, "{message}");
            }
            (_, None) | (Severity::Request, _) => {
                info!(target: REQUEST_LOG, audit_id, %peer, path, user, cluster, error, "{message}");
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestKind {
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
        let started = Instant::now();
        let sent = request.headers().get(AUDIT_ID).filter(|id| !id.is_empty());
        // apiserver: pkg/endpoints/filters/audit_init.go
        let mut audit_id = sent.cloned().unwrap_or_else(new_audit_id);
        // No other request has it: HPACK need not remember it at the expense of what comes again.
        audit_id.set_sensitive(true);
        let asked = [ACCEPT, USER_AGENT].map(|name| {
            let value = request.headers().get(&name).cloned();
            (name, value)
        });
        let line = LogLine {
            audit_id,
            peer: connection.info.peer,
            method: request.method().clone(),
            // Never the query, which may carry secrets.
            path: cut(request.uri().path()).into_owned(),
            user: None,
            authenticator: "",
            throttle: Arc::clone(throttle),
        };
        let end = AccessLogGuard {
            started,
            metrics: Arc::clone(metrics),
            verb: "other",
            kind: RequestKind::Unknown,
            code: None,
            line,
            busy: connection.begin_request(),
        };
        Self {
            started,
            http2: connection.http2,
            uri: request.uri().clone(),
            asked,
            cluster: None,
            end,
            warnings: Vec::new(),
            unauthenticated: false,
        }
    }

    pub(super) fn started(&self) -> Instant {
        self.started
    }

    pub(super) fn audit_id(&self) -> HeaderValue {
        self.end.line.audit_id.clone()
    }

    pub(super) fn note_cluster(&mut self, cluster: &Arc<Cluster>) {
        self.cluster = Some(Arc::clone(cluster));
    }

    pub(super) fn note_info(&mut self, info: &RequestInfo) {
        self.end.verb = verb_label(info.verb());
        self.end.kind = if info.is_long_running() {
            RequestKind::LongRunning
        } else if info.is_mutating() {
            RequestKind::Mutating
        } else {
            RequestKind::ReadOnly
        };
        self.end.begin();
    }

    /// Observed before the certificate is judged, so also for one that has expired.
    // apiserver: pkg/authentication/request/x509/x509.go
    pub(super) fn note_certificate(&self, ends: Option<i64>, now: UnixTime) {
        if let Some(ends) = ends {
            let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
            // A histogram counts in floating point; seconds of certificates are far below its precision.
            #[expect(
                clippy::cast_precision_loss,
                clippy::as_conversions,
                reason = "seconds, for a histogram"
            )]
            let left = ends.saturating_sub(now) as f64;
            self.end.metrics.authentication.client_certificate_expiration.observe(left);
        }
    }

    pub(super) fn note_authentication(
        &mut self,
        verdict: &Result<ProvenIdentity, AuthnError>,
        took: Duration,
        warnings: Vec<String>,
    ) {
        self.warnings = warnings;
        self.unauthenticated = verdict.as_ref().map_or(true, |proven| proven.user().is_unauthenticated());
        let metrics = &self.end.metrics;
        let result = match verdict {
            Ok(proven) => {
                self.end.line.user = Some(proven.identity().clone());
                self.end.line.authenticator = proven.method().name();
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

    /// Makes the answer the client gets, and hands what is to be told to its body.
    pub(super) fn finish(
        mut self,
        answered: Result<Response<Body>, Refusal>,
        connection: &Connection,
        strict_transport_security: Option<&HeaderValue>,
    ) -> Response<Body> {
        let mut response = match answered {
            Ok(response) => response,
            Err(refusal) => {
                self.log_refusal(&refusal);
                self.refuse(&refusal)
            }
        };
        let headers = response.headers_mut();
        add_warnings(headers, &self.warnings);
        if let Some(directives) = strict_transport_security {
            headers.entry(STRICT_TRANSPORT_SECURITY).or_insert_with(|| directives.clone());
        }
        let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if !self.http2 && !upgraded && connection.is_draining() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if self.http2 && self.unauthenticated {
            // apiserver: pkg/endpoints/filters/authentication.go — one request per connection for nobody in particular
            connection.close_gracefully();
        }
        self.end.code = Some(response.status());
        self.end.busy.note_answer();
        if upgraded {
            let line = &self.end.line;
            let LogLine { peer, path, .. } = line;
            info!(audit_id = line.audit_id(), %peer, path, user = line.user().as_deref(), "connection upgraded");
        }
        response.map(|body| body.with_guard(Box::new(self.end)))
    }

    /// An answer of the gateway's own, with what every answer has.
    pub(super) fn own(&self, mut response: Response<Body>) -> Response<Body> {
        let headers = response.headers_mut();
        headers.insert(AUDIT_ID, self.audit_id());
        headers.insert(CACHE_CONTROL, NO_CACHE);
        response
    }

    fn refuse(&self, refusal: &Refusal) -> Response<Body> {
        match refusal {
            Refusal::Malformed(malformed) => return self.refuse_malformed(*malformed),
            Refusal::Prepare(PrepareError::HeaderTooLarge) => {
                return self.refuse_malformed(MalformedRequest::HeaderTooLarge);
            }
            _ => {}
        }
        let status = refusal.status(&self.end.line.audit_id());
        let asked = self.asked.iter().filter_map(|(name, value)| Some((name.clone(), value.clone()?)));
        let asked: HeaderMap = asked.collect();
        let negotiation = Negotiation::of(&asked, self.uri.query());
        let mut response = render(&status, &negotiation);
        let headers = response.headers_mut();
        headers.insert(AUDIT_ID, self.audit_id());
        // The one answer that upstream gives outside of the filter that sets it.
        if !matches!(refusal, Refusal::RequestInfo(_)) {
            headers.insert(CACHE_CONTROL, NO_CACHE);
        }
        response.map(Body::bytes)
    }

    /// As net/http answers before any handler sees a request: bare text, and the end of the connection.
    fn refuse_malformed(&self, malformed: MalformedRequest) -> Response<Body> {
        let (code, text) = malformed.answer();
        let mut response = Response::new(Body::bytes(text));
        *response.status_mut() = code;
        if !text.is_empty() {
            response
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        }
        if !self.http2 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// Logs the cause, for the operator.
    fn log_refusal(&self, refusal: &Refusal) {
        let line = &self.end.line;
        let log = |severity, error: &str, message| line.log_refusal(severity, None, Some(error), message);
        match refusal {
            Refusal::Unauthenticated(error) => {
                log(Severity::Warning, &error.to_string(), "unable to authenticate the request");
            }
            Refusal::UnencodableIdentity(error) => {
                self.end.metrics.backend.unencodable_identities.inc();
                let message = "refused an identity that the backend would not receive as it is";
                log(Severity::Warning, &error.to_string(), message);
            }
            Refusal::Panic => line.log_refusal(Severity::Error, None, None, "handling the request panicked"),
            Refusal::Forward(ForwardError::RequestBody(error)) => {
                log(Severity::Request, &error_chain(error), "the request body broke off");
            }
            Refusal::Forward(error) => match error.backend_cause() {
                Some(cause) => self.log_backend_error(error, cause),
                None => log(Severity::Request, &error.to_string(), "refused"),
            },
            other => log(Severity::Request, &other.to_string(), "refused"),
        }
    }
}

impl AccessLog {
    fn log_backend_error(&self, error: &ForwardError, cause: &str) {
        self.end.metrics.backend.errors.with_label_values(&[cause]).inc();
        let cluster = self.cluster.as_deref();
        // One line reports that no endpoint can be used; those of further requests would repeat it.
        let is_unavailable =
            matches!(error, ForwardError::Send(SendError::Connect(_) | SendError::NotTrusted));
        let is_known = is_unavailable && cluster.is_some_and(|cluster| !cluster.backend.note_unavailable());
        let severity = if is_known { Severity::Request } else { Severity::Error };
        let name = cluster.map(|cluster| cluster.name.as_str());
        self.end.line.log_refusal(severity, name, Some(&error_chain(error)), "no answer from the backend");
    }
}

impl AccessLogGuard {
    fn begin(&self) {
        match self.kind {
            RequestKind::ReadOnly => self.metrics.requests.inflight.of("readOnly").inc(),
            RequestKind::Mutating => self.metrics.requests.inflight.of("mutating").inc(),
            RequestKind::LongRunning => self.metrics.requests.longrunning.of(self.verb).inc(),
            RequestKind::Unknown => {}
        }
    }
}

impl Drop for AccessLogGuard {
    fn drop(&mut self) {
        let took = self.started.elapsed();
        let Self { metrics, kind, code, line, .. } = self;
        let verb = self.verb;
        match kind {
            RequestKind::ReadOnly => metrics.requests.inflight.of("readOnly").dec(),
            RequestKind::Mutating => metrics.requests.inflight.of("mutating").dec(),
            RequestKind::LongRunning => metrics.requests.longrunning.of(verb).dec(),
            RequestKind::Unknown => {}
        }
        // Backend counts a client that left as 499 where it must name a code at all.
        let code = code.map_or(CLIENT_LEFT, |code| code.as_u16());
        metrics.requests.ended(verb, code);
        if *kind != RequestKind::LongRunning {
            metrics.requests.duration.of(verb).observe(took.as_secs_f64());
        }
        let LogLine { peer, path, authenticator, throttle, .. } = &*line;
        let is_slow = *kind != RequestKind::LongRunning && took >= SLOW;
        if is_slow && let Some(Permit { suppressed }) = throttle.permit(peer.ip()) {
            let (audit_id, method, user) = (line.audit_id(), line.method(), line.user());
            let (method, user) = (&*method, user.as_deref());
            warn!(target: REQUEST_LOG, audit_id, %peer, method, path, verb, user, authenticator, code, ?took, suppressed, "slow request");
        } else {
            // The values are made only if the line is written.
            info!(
                target: REQUEST_LOG, audit_id = line.audit_id(), %peer, method = &*line.method(), path, verb,
                user = line.user().as_deref(), authenticator, code, ?took, "request"
            );
        }
    }
}

fn new_audit_id() -> HeaderValue {
    let mut buffer = Uuid::encode_buffer();
    let text = Uuid::new_v4().hyphenated().encode_lower(&mut buffer);
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Adds what the client should know, one header for each text, as upstream does.
// apiserver: pkg/endpoints/filters/warning.go; RFC 7234, section 5.5
fn add_warnings(headers: &mut HeaderMap, warnings: &[String]) {
    for text in warnings {
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
        let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) else {
            continue;
        };
        if !headers.get_all(WARNING).iter().any(|known| known == value) {
            headers.append(WARNING, value);
        }
    }
}
