//! What accompanies a request from its first byte to the last of its answer: audit id, the headers every answer has,
//! the one log line, the metrics.

use std::fmt::{self, Write as _};
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

use super::refusal::Refusal;
use crate::authn::{AuthnError, Proven};
use crate::clock::UnixTime;
use crate::clusters::Cluster;
use crate::forward::body::Body;
use crate::forward::{AUDIT_ID, ForwardError, SendError};
use crate::listen::{Busy, Connection};
use crate::metrics::{Metrics, compressed_username, verb_label};
use crate::request::info::RequestInfo;
use crate::request::wellformed::Malformed;
use crate::status::render::{Negotiation, render};
use crate::telemetry::{REQUEST_LOG, in_full};
use crate::transport::Incoming;
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
pub(super) struct Exchange {
    started: Instant,
    http2: bool,
    uri: Uri,
    /// What a `Status` is rendered by.
    asked: [(HeaderName, Option<HeaderValue>); 2],
    cluster: Option<Arc<Cluster>>,
    end: End,
    warnings: Vec<String>,
    /// Whether the client is nobody in particular, or someone else than it says.
    unauthenticated: bool,
}

/// What is told once the answer has ended, however it ends.
struct End {
    started: Instant,
    metrics: Arc<Metrics>,
    verb: &'static str,
    kind: Kind,
    /// `None` while there is no answer: a client that leaves gets none.
    code: Option<StatusCode>,
    line: Line,
    busy: Busy,
}

struct Line {
    audit_id: AuditId,
    peer: std::net::SocketAddr,
    method: Method,
    path: String,
    user: Option<Identity>,
    authenticator: &'static str,
}

impl Line {
    fn user(&self) -> Option<&str> {
        self.user.as_ref().map(|user| user.name.as_str())
    }
}

/// An audit id; written as the log shows it.
struct AuditId(HeaderValue);

impl fmt::Display for AuditId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(self.0.as_bytes());
        text.chars().take(AUDIT_ID_IN_LOGS).try_for_each(|c| f.write_char(c))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unknown,
    ReadOnly,
    Mutating,
    LongRunning,
}

impl Exchange {
    pub(super) fn begin(
        connection: &Connection,
        request: &Request<Incoming>,
        metrics: &Arc<Metrics>,
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
        let line = Line {
            audit_id: AuditId(audit_id),
            peer: connection.info.peer,
            method: request.method().clone(),
            // Never the query: it may carry what is nobody's business.
            path: request.uri().path().to_owned(),
            user: None,
            authenticator: "",
        };
        let end = End {
            started,
            metrics: Arc::clone(metrics),
            verb: "other",
            kind: Kind::Unknown,
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
        self.end.line.audit_id.0.clone()
    }

    pub(super) fn note_cluster(&mut self, cluster: &Arc<Cluster>) {
        self.cluster = Some(Arc::clone(cluster));
    }

    pub(super) fn note_info(&mut self, info: &RequestInfo) {
        self.end.verb = verb_label(info.verb());
        self.end.kind = if info.is_long_running() {
            Kind::LongRunning
        } else if info.is_mutating() {
            Kind::Mutating
        } else {
            Kind::ReadOnly
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
            self.end.metrics.client_certificate_expiration.observe(left);
        }
    }

    pub(super) fn note_authentication(
        &mut self,
        verdict: &Result<Proven, AuthnError>,
        took: Duration,
        warnings: Vec<String>,
    ) {
        self.warnings = warnings;
        self.unauthenticated = verdict.as_ref().map_or(true, |proven| proven.user().is_unauthenticated());
        let metrics = &self.end.metrics;
        let result = match verdict {
            Ok(proven) => {
                self.end.line.user = Some(proven.identity().clone());
                self.end.line.authenticator = proven.method();
                metrics.authenticated_user_requests.of(compressed_username(&proven.user().name)).inc();
                "success"
            }
            Err(AuthnError::Unrecognized) => "failure",
            Err(_) => "error",
        };
        metrics.authentication_attempts.of(result).inc();
        metrics.authentication_duration.of(result).observe(took.as_secs_f64());
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
                self.tell(&refusal);
                self.refuse(&refusal)
            }
        };
        let headers = response.headers_mut();
        add_warnings(headers, &self.warnings);
        if let Some(directives) = strict_transport_security {
            headers.entry(STRICT_TRANSPORT_SECURITY).or_insert_with(|| directives.clone());
        }
        let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if !self.http2 && !upgraded && connection.is_leaving() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if self.http2 && self.unauthenticated {
            // apiserver: pkg/endpoints/filters/authentication.go — one request per connection for nobody in particular
            connection.close_gracefully();
        }
        self.end.code = Some(response.status());
        self.end.busy.note_answer();
        if upgraded {
            let Line { audit_id, peer, path, .. } = &self.end.line;
            info!(%audit_id, %peer, path, user = self.end.line.user(), "connection upgraded");
        }
        response.map(|body| body.holding(Box::new(self.end)))
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
            Refusal::Forward(ForwardError::HeaderTooLarge) => {
                return self.refuse_malformed(Malformed::HeaderTooLarge);
            }
            _ => {}
        }
        let status = refusal.status(&self.end.line.audit_id.to_string());
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
    fn refuse_malformed(&self, malformed: Malformed) -> Response<Body> {
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

    /// The cause, for the operator.
    fn tell(&self, refusal: &Refusal) {
        let Line { audit_id, peer, path, .. } = &self.end.line;
        let user = self.end.line.user();
        if let Some(cause) = refusal.backend_cause() {
            self.end.metrics.backend_errors.with_label_values(&[cause]).inc();
        }
        match refusal {
            Refusal::Unauthenticated(error) => {
                warn!(%audit_id, %peer, path, %error, "unable to authenticate the request");
            }
            Refusal::Forward(ForwardError::UnfitIdentity(error)) => {
                self.end.metrics.unfit_identities.inc();
                warn!(%audit_id, %peer, path, %error, "refused an identity that the backend would not receive as it is");
            }
            Refusal::Panic => error!(%audit_id, %peer, path, "handling the request panicked"),
            Refusal::Forward(ForwardError::Impersonation | ForwardError::HeaderTooLarge) => {
                info!(target: REQUEST_LOG, %audit_id, %peer, path, user, reason = %refusal, "refused");
            }
            Refusal::Forward(ForwardError::RequestBody(error)) => {
                let error = in_full(error);
                info!(target: REQUEST_LOG, %audit_id, %peer, path, user, %error, "the request body broke off");
            }
            Refusal::Forward(error) => {
                let cluster = self.cluster.as_deref();
                let name = cluster.map(|cluster| cluster.name.as_str());
                let is_away =
                    matches!(error, ForwardError::Send(SendError::Connect(_) | SendError::NotTrusted));
                let error = in_full(error);
                // One line says that nobody can be reached; what a request more would say is the same.
                if is_away && cluster.is_some_and(|cluster| !cluster.upstream.note_away()) {
                    info!(target: REQUEST_LOG, %audit_id, %peer, path, user, cluster = name, %error, "no answer from the backend");
                } else {
                    error!(%audit_id, %peer, path, user, cluster = name, %error, "no answer from the backend");
                }
            }
            other => {
                info!(target: REQUEST_LOG, %audit_id, %peer, path, user, reason = %other, "refused");
            }
        }
    }
}

impl End {
    fn begin(&self) {
        match self.kind {
            Kind::ReadOnly => self.metrics.inflight.of("readOnly").inc(),
            Kind::Mutating => self.metrics.inflight.of("mutating").inc(),
            Kind::LongRunning => self.metrics.longrunning.of(self.verb).inc(),
            Kind::Unknown => {}
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let took = self.started.elapsed();
        let Self { metrics, kind, code, line, .. } = self;
        let verb = self.verb;
        match kind {
            Kind::ReadOnly => metrics.inflight.of("readOnly").dec(),
            Kind::Mutating => metrics.inflight.of("mutating").dec(),
            Kind::LongRunning => metrics.longrunning.of(verb).dec(),
            Kind::Unknown => {}
        }
        // Upstream counts a client that left as 499 where it must name a code at all.
        let code = code.map_or(CLIENT_LEFT, |code| code.as_u16());
        metrics.request_ended(verb, code);
        if *kind != Kind::LongRunning {
            metrics.request_duration.of(verb).observe(took.as_secs_f64());
        }
        let line = &*line;
        let user = line.user();
        let Line { audit_id, peer, method, path, authenticator, .. } = line;
        if *kind != Kind::LongRunning && took >= SLOW {
            warn!(target: REQUEST_LOG, %audit_id, %peer, %method, path, verb, user, authenticator, code, ?took, "slow request");
        } else {
            info!(target: REQUEST_LOG, %audit_id, %peer, %method, path, verb, user, authenticator, code, ?took, "request");
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
