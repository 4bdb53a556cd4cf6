//! The log lines and the metrics of each request.
//!
//! Queries are never logged: they may carry secrets.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderValue;
use http::{Method, Request, StatusCode};
use portcullis_http::identity::Identity;
use portcullis_http::transport::Incoming;
use portcullis_system::clock::UnixTime;
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::audit_id::{self, shown_audit_id};
use super::error_map::Refusal;
use super::forward_error::ForwardError;
use crate::authn::{AuthnError, ProvenIdentity};
use crate::authz::impersonation::ImpersonationError;
use crate::authz::{AccessRefusal, ReviewError};
use crate::backend::pool::SendError;
use crate::cluster::Cluster;
use crate::listener::Connection;
use crate::metrics::{Metrics, compressed_username, verb_label};
use crate::request::info::RequestInfo;
use crate::telemetry::{ClientLogThrottle, LogPermit, REQUEST_LOG, cut, error_chain};
use crate::traces::ActiveSpan;

/// Requests that took longer are logged as slow, unless they are long-running.
const SLOW_REQUEST_THRESHOLD: Duration = Duration::from_secs(5);
/// The code of a request whose client has disconnected before the response.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Writes the lines and the metrics of one request.
pub(super) struct AccessLog {
    started: Instant,
    metrics: Arc<Metrics>,
    verb: &'static str,
    kind: InflightKind,
    /// `None` until there is a response.
    code: Option<StatusCode>,
    line: LogLine,
}

/// The fields of a request's log lines. Values that the client chose are truncated.
struct LogLine {
    audit_id: HeaderValue,
    peer: SocketAddr,
    method: Method,
    path: String,
    user: Option<Identity>,
    /// The impersonated user, if there is one.
    impersonated_user: Option<Identity>,
    authenticator: &'static str,
    /// The cluster, if it is a tenant's.
    tenant: Option<Arc<Cluster>>,
    throttle: Arc<ClientLogThrottle>,
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
    /// The name of the cluster, if it is a tenant's: lines with it are limited for each tenant.
    fn tenant(&self) -> Option<&str> {
        self.tenant.as_ref().map(|cluster| cluster.name.as_str())
    }

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
        let (cluster, error) = (cluster.or(self.tenant()), error.map(cut));
        let error = error.as_deref();
        let permit = if severity == RefusalSeverity::Request {
            None
        } else {
            self.throttle.permit_client(self.peer.ip())
        };
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
        throttle: &Arc<ClientLogThrottle>,
    ) -> Self {
        let line = LogLine {
            audit_id: audit_id::chosen_or_new(request.headers()),
            peer: connection.info.peer,
            method: request.method().clone(),
            // Without the query, which may carry secrets.
            path: cut(request.uri().path()).into_owned(),
            user: None,
            impersonated_user: None,
            authenticator: "",
            tenant: None,
            throttle: Arc::clone(throttle),
        };
        Self {
            started: Instant::now(),
            metrics: Arc::clone(metrics),
            verb: "other",
            kind: InflightKind::Unknown,
            code: None,
            line,
        }
    }

    /// When the request was received.
    pub(super) fn started(&self) -> Instant {
        self.started
    }

    pub(super) fn audit_id(&self) -> &HeaderValue {
        &self.line.audit_id
    }

    /// Counts the request among those in flight.
    pub(super) fn note_route(&mut self, cluster: &Arc<Cluster>, info: &RequestInfo) {
        self.line.tenant = cluster.settings.origin.is_of_tenant().then(|| Arc::clone(cluster));
        self.verb = verb_label(info.verb());
        self.kind = if info.is_long_running() {
            InflightKind::LongRunning
        } else if info.is_mutating() {
            InflightKind::Mutating
        } else {
            InflightKind::ReadOnly
        };
        match self.kind {
            InflightKind::ReadOnly => self.metrics.requests.inflight.of("readOnly").inc(),
            InflightKind::Mutating => self.metrics.requests.inflight.of("mutating").inc(),
            InflightKind::LongRunning => self.metrics.requests.longrunning.of(self.verb).inc(),
            InflightKind::Unknown => {}
        }
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
            self.metrics.authentication.client_certificate_expiration.observe(left);
        }
    }

    pub(super) fn note_authentication(
        &mut self,
        verdict: &Result<ProvenIdentity, AuthnError>,
        took: Duration,
    ) {
        let metrics = &self.metrics;
        let result = match verdict {
            Ok(proven) => {
                self.line.user = Some(proven.identity().clone());
                self.line.authenticator = proven.method().name();
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

    /// Records the user as whom the request is made, if it is not the client.
    pub(super) fn note_impersonated(&mut self, user: Option<&Identity>) {
        self.line.impersonated_user = user.cloned();
    }

    /// Records the response, and logs a connection that it upgrades.
    pub(super) fn note_response(&mut self, code: StatusCode) {
        self.code = Some(code);
        if code == StatusCode::SWITCHING_PROTOCOLS {
            let line = &self.line;
            let LogLine { peer, path, .. } = line;
            let (user, impersonated_user) = (line.user(), line.impersonated_user());
            let (user, impersonated_user) = (user.as_deref(), impersonated_user.as_deref());
            let (audit_id, cluster) = (line.audit_id(), line.tenant());
            if let Some(LogPermit { suppressed }) = line.throttle.permit_client(peer.ip()) {
                info!(audit_id, %peer, path, user, impersonated_user, cluster, suppressed, "connection upgraded");
            }
        }
    }

    /// Logs the cause of a refusal, which the client does not see.
    pub(super) fn log_refusal(&self, refusal: &Refusal, cluster: Option<&Cluster>) {
        let line = &self.line;
        let log = |severity, error: &str, message| line.log_refusal(severity, None, Some(error), message);
        match refusal {
            Refusal::Unauthenticated(error) => {
                log(RefusalSeverity::Warning, &error.to_string(), "unable to authenticate the request");
            }
            Refusal::UnencodableIdentity(error) => {
                self.metrics.backend.unencodable_identities.inc();
                let message = "refused an identity that HTTP headers cannot carry unchanged";
                log(RefusalSeverity::Warning, &error.to_string(), message);
            }
            Refusal::Impersonation(ImpersonationError::Undecided(error)) => {
                log(undecided_severity(error), &error.to_string(), "impersonation could not be checked");
            }
            Refusal::Access(AccessRefusal::Undecided(error)) => {
                log(undecided_severity(error), &error.to_string(), "authorization could not be decided");
            }
            Refusal::Panic => {
                line.log_refusal(RefusalSeverity::Error, None, None, "handling the request panicked");
            }
            Refusal::Forward(ForwardError::RequestBody(error)) => {
                log(RefusalSeverity::Request, &error_chain(error), "the request body broke off");
            }
            Refusal::Forward(error) => match error.backend_cause() {
                Some(cause) => self.log_backend_error(error, cause, cluster),
                None => log(RefusalSeverity::Request, &error.to_string(), "refused"),
            },
            Refusal::TooManyRequests(exceeded) => {
                self.metrics.limits.terminations.with_label_values(&[self.verb, "429"]).inc();
                log(RefusalSeverity::Request, &exceeded.to_string(), "too many requests in flight");
            }
            other => log(RefusalSeverity::Request, &other.to_string(), "refused"),
        }
    }

    fn log_backend_error(&self, error: &ForwardError, cause: &str, cluster: Option<&Cluster>) {
        self.metrics.backend.errors.with_label_values(&[cause]).inc();
        // One line reports that no endpoint is usable; further requests would repeat it.
        let is_known = cluster.is_some_and(|cluster| match error {
            ForwardError::Send(SendError::Connect(_)) => !cluster.backend.note_unavailable(),
            ForwardError::Send(SendError::NotTrusted) => !cluster.backend.note_untrusted(),
            _ => false,
        });
        let severity = if is_known { RefusalSeverity::Request } else { RefusalSeverity::Error };
        let name = cluster.map(|cluster| cluster.name.as_str());
        self.line.log_refusal(severity, name, Some(&error_chain(error)), "no answer from the backend");
    }

    /// The code of the response. kube-apiserver reports a client that has disconnected as 499 where it needs one.
    pub(super) fn code(&self) -> u16 {
        self.code.map_or(CLIENT_CLOSED_REQUEST, |code| code.as_u16())
    }

    /// Writes the line and the metrics of the request, whose response body has ended.
    pub(super) fn end(&self, span: Option<&ActiveSpan>) {
        let took = self.started.elapsed();
        let Self { metrics, kind, line, .. } = self;
        let verb = self.verb;
        match kind {
            InflightKind::ReadOnly => metrics.requests.inflight.of("readOnly").dec(),
            InflightKind::Mutating => metrics.requests.inflight.of("mutating").dec(),
            InflightKind::LongRunning => metrics.requests.longrunning.of(verb).dec(),
            InflightKind::Unknown => {}
        }
        let code = self.code();
        metrics.requests.ended(verb, code);
        if *kind != InflightKind::LongRunning {
            metrics.requests.answered(verb, took, span.and_then(ActiveSpan::exemplar));
        }
        let LogLine { peer, path, authenticator, throttle, .. } = line;
        let is_slow = *kind != InflightKind::LongRunning && took >= SLOW_REQUEST_THRESHOLD;
        if is_slow && let Some(LogPermit { suppressed }) = throttle.permit_client(peer.ip()) {
            let (audit_id, method, user) = (line.audit_id(), line.method(), line.user());
            let (method, user, impersonated_user) = (&*method, user.as_deref(), line.impersonated_user());
            let impersonated_user = impersonated_user.as_deref();
            let cluster = line.tenant();
            warn!(target: REQUEST_LOG, audit_id, %peer, method, path, verb, user, impersonated_user, authenticator, code, ?took, cluster, suppressed, "slow request");
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

/// A client that asks for too much is at fault itself.
fn undecided_severity(error: &ReviewError) -> RefusalSeverity {
    match error {
        ReviewError::Overloaded | ReviewError::TooLarge => RefusalSeverity::Warning,
        ReviewError::Unavailable(_)
        | ReviewError::Forbidden(_)
        | ReviewError::Webhook { .. }
        | ReviewError::Unusable(_) => RefusalSeverity::Error,
    }
}
