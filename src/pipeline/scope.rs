//! What one request owns: its audit, its place among the requests in flight, its span, and the count of it in its cluster.
//! The scope begins with the request and moves into the guard of the response body, so that all of it is released when the
//! body ends, for whatever reason, also of a request that is refused or whose client has gone.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::select;
use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, StatusCode};
use portcullis_http::body::{Body, BodyEnd, EndGuard};
use portcullis_http::transport::Incoming;
use portcullis_kubernetes::user::UserInfo;
use portcullis_limits::Owner;
use portcullis_limits::budget::BudgetPermit;

use super::access_log::AccessLog;
use super::audit::AuditedRequest;
use super::credential_end::StreamCredential;
use super::error_map::Refusal;
use super::finished::WriteInProgress;
use super::respond::{self, RefusalRenderer};
use super::session::{self, PermittedSession, SessionObserver, SessionRefusal, SessionRequest};
use super::stages::Impersonated;
use crate::authn::{AuthnError, ProvenIdentity};
use crate::authz::{AccessRefusal, AllowedAccess};
use crate::cluster::Cluster;
use crate::cluster::activity::{ActivityGuard, ActivityKind};
use crate::cluster::router::RouteError;
use crate::limits::InflightPermit;
use crate::listener::{Connection, RequestGuard};
use crate::metrics::Metrics;
use crate::request::cors::AllowedOrigin;
use crate::request::info::RequestInfo;
use crate::telemetry::ClientLogThrottle;
use crate::traces::{ActiveSpan, SpanScope};

/// What one request owns until its response body has ended.
pub(super) struct RequestScope {
    pub(super) log: AccessLog,
    /// Until there is a response: a stream must not keep the configuration of its cluster.
    cluster: Option<Arc<Cluster>>,
    /// The origin whose scripts may read the response, once the request has passed what kube-apiserver does before it looks at it.
    pub(super) allowed_origin: Option<AllowedOrigin>,
    /// Warnings for the client, until there is a response.
    pub(super) warnings: Vec<String>,
    /// Whether the request is long-running, or upgrades its connection.
    pub(super) is_stream: bool,
    /// The credential with which a long-running response ends, until there is one.
    pub(super) credential: Option<Arc<StreamCredential>>,
    /// Whether the client is anonymous or its credential was rejected.
    is_unauthenticated: bool,
    /// In whose share the response counts; `None` if its client is not authenticated.
    owner: Option<Owner>,
    // In the order in which they are released, after the log line is written.
    request: RequestGuard,
    /// The audit of the request; `None` if the policy omits it.
    pub(super) audited: Option<AuditedRequest>,
    /// The place among the requests in flight, also held by a tunnel.
    permit: Option<Arc<InflightPermit>>,
    /// The place among the open requests of tenants, also held by a tunnel.
    open: Option<Arc<BudgetPermit>>,
    /// Counts the request for the status of its cluster.
    activity: Option<ActivityGuard>,
    pub(super) span: Option<Box<ActiveSpan>>,
    /// Whether the request is finished without its client.
    pub(super) write: WriteInProgress,
}

impl RequestScope {
    pub(super) fn begin(
        connection: &Connection,
        request: &Request<Incoming>,
        metrics: &Arc<Metrics>,
        throttle: &Arc<ClientLogThrottle>,
    ) -> Self {
        Self {
            log: AccessLog::begin(connection, request, metrics, throttle),
            cluster: None,
            allowed_origin: None,
            warnings: Vec::new(),
            is_stream: false,
            credential: None,
            is_unauthenticated: false,
            owner: None,
            request: connection.begin_request(),
            audited: None,
            permit: None,
            open: None,
            activity: None,
            span: None,
            write: WriteInProgress::default(),
        }
    }

    /// Whether the client is anonymous or its credential was rejected.
    pub(super) fn is_unauthenticated(&self) -> bool {
        self.is_unauthenticated
    }

    /// Sets in whose share the response counts.
    pub(super) fn set_owner(&mut self, owner: Option<Owner>) {
        self.owner = owner;
    }

    /// In whose share the response counts; `None` if its client is not authenticated.
    pub(super) fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    /// Holds the place among the open requests of tenants to the end of the response.
    pub(super) fn count_request(&mut self, open: Option<BudgetPermit>) {
        self.open = open.map(Arc::new);
    }

    /// The span, to begin others within it, if the request is traced.
    pub(super) fn spans(&self) -> Option<&SpanScope> {
        self.span.as_ref().map(|span| span.scope())
    }

    /// Counts the request in its cluster.
    pub(super) fn note_route(&mut self, cluster: &Arc<Cluster>, info: &RequestInfo) {
        self.cluster = Some(Arc::clone(cluster));
        self.log.note_route(cluster, info);
        self.activity = Some(cluster.activity.enter(activity_kind(info)));
    }

    pub(super) fn note_authentication(
        &mut self,
        verdict: &Result<ProvenIdentity, AuthnError>,
        took: Duration,
        warnings: Vec<String>,
    ) {
        self.warnings = warnings;
        self.is_unauthenticated = verdict.as_ref().map_or(true, |proven| proven.user().is_unauthenticated());
        self.log.note_authentication(verdict, took);
    }

    /// Ends the response also when this impersonated user is denied.
    pub(super) fn end_if_denied(&self, user: &UserInfo) {
        if let Some(credential) = &self.credential {
            credential.note_impersonated(user.clone());
        }
    }

    /// Records the user as whom the request is made, if it is not the client. The log also has one that the backend decides on.
    pub(super) fn note_impersonated(&mut self, request: &Impersonated) {
        let user = request.impersonated();
        self.log.note_impersonated(user.or(request.asked_of_backend()));
        if let (Some(audited), Some(user)) = (&self.audited, user) {
            audited.note_impersonated(user, request.constraint());
        }
    }

    /// Records the decision of the gateway's own authorizers.
    pub(super) fn note_authorization(&self, decided: &Result<AllowedAccess, AccessRefusal>) {
        if let Some(audited) = &self.audited {
            audited.note_authorization(decided);
        }
    }

    /// Holds a place among the requests in flight.
    pub(super) fn hold(&mut self, permit: Option<InflightPermit>) {
        self.permit = permit.map(Arc::new);
    }

    /// What a tunnel holds: it outlives its response.
    pub(super) fn tunnel_guard(&self, connection: &Connection) -> EndGuard {
        Box::new((connection.keep_open(), self.audited.clone(), self.permit.clone(), self.open.clone()))
    }

    /// Opens a session that the policy of its cluster permits. A refusal is in the audit and the metrics.
    pub(super) async fn permit_session(
        &self,
        request: SessionRequest,
        metrics: &Metrics,
    ) -> Result<Box<PermittedSession>, SessionRefusal> {
        let kind = request.kind();
        let permitted = request.permit().await;
        if let Err(refusal) = &permitted {
            metrics.sessions.refused(kind, refusal.reason());
            if let Some(audited) = &self.audited {
                audited.annotate_session(session::annotation_of_refusal(refusal));
            }
        }
        permitted
    }

    /// Observes the session that a tunnel carries, if it is audited or permitted by a session policy.
    pub(super) fn session(
        &self,
        permitted: Option<Box<PermittedSession>>,
        metrics: &Arc<Metrics>,
    ) -> Option<SessionObserver> {
        SessionObserver::new(self.audited.as_ref(), permitted, metrics)
    }

    /// Completes when a stream is to end, because its credential is accepted no longer, or its cluster is no longer served.
    pub(super) fn stream_end(&self) -> Option<BodyEnd> {
        let of_credential = self.credential.as_ref().map(StreamCredential::end);
        let cluster = self.cluster.as_ref().filter(|_| self.is_stream);
        match (of_credential, cluster.and_then(|cluster| cluster.stream_end())) {
            (Some(one), Some(other)) => Some(Box::pin(select(one, other).map(drop))),
            (one, other) => one.or(other),
        }
    }

    /// Why a stream has ended before the API server has responded.
    pub(super) fn ended(&self) -> Refusal {
        match &self.cluster {
            Some(cluster) if cluster.is_over() => RouteError::NotFound.into(),
            _ => Refusal::CredentialEnded,
        }
    }

    /// Completes when a tunnel is to end: with its credential, or because its connection gives way to that of another client.
    pub(super) fn tunnel_end(&self, connection: &Connection) -> BodyEnd {
        let gave_way = connection.gave_way();
        let Some(stream_end) = self.stream_end() else { return gave_way };
        Box::pin(async move {
            tokio::select! {
                () = gave_way => {}
                () = stream_end => {}
            }
        })
    }

    /// Completes the response: renders a refusal, adds the headers of every response, and moves the scope into the body.
    pub(super) fn finish(
        mut self,
        result: Result<Response<Body>, Refusal>,
        renderer: &RefusalRenderer,
        connection: &Connection,
        strict_transport_security: Option<&HeaderValue>,
    ) -> Response<Body> {
        let mut response = match result {
            Ok(mut response) => {
                if let Some(audited) = &self.audited {
                    audited.note_response(&mut response, || renderer.is_unacceptable());
                }
                response
            }
            Err(refusal) => {
                if refusal.is_timeout() {
                    // kube-apiserver's time limit is outside of the filter for origins.
                    self.allowed_origin = None;
                }
                self.log.log_refusal(&refusal, self.cluster.as_deref());
                let response = renderer.render(&refusal, self.log.audit_id().clone(), connection.http2);
                if let Some(audited) = &self.audited {
                    audited.note_refusal(&refusal, response.status(), renderer.is_unacceptable());
                }
                response
            }
        };
        let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        // kube-apiserver writes the header of an upgraded connection past its warnings.
        let warnings = if upgraded { &[] } else { self.warnings.as_slice() };
        respond::add_headers(response.headers_mut(), warnings, strict_transport_security);
        if let Some(origin) = self.allowed_origin.take().filter(|_| !upgraded) {
            origin.allow_in(response.headers_mut());
        }
        let closes = connection.is_draining() || connection.refuses_requests();
        if !connection.http2 && !upgraded && closes {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self.request.note_response();
        self.log.note_response(response.status());
        (self.cluster, self.credential, self.warnings) = (None, None, Vec::new());
        let owner = self.owner.take();
        response.map(|body| body.with_owner(owner).with_guard(Box::new(self)))
    }
}

impl Drop for RequestScope {
    fn drop(&mut self) {
        if let Some(span) = &mut self.span {
            span.note_status(self.log.code());
        }
        self.log.end(self.span.as_deref());
    }
}

fn activity_kind(info: &RequestInfo) -> ActivityKind {
    match (info.is_long_running(), info.verb()) {
        (true, "watch") => ActivityKind::Watch,
        (true, _) => ActivityKind::Stream,
        (false, _) if info.is_mutating() => ActivityKind::Mutating,
        (false, _) => ActivityKind::ReadOnly,
    }
}
