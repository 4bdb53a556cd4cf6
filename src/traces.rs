//! The spans of requests: one for each request whose client is authenticated, and within it one for each stage that may
//! wait for something, for each call of a webhook, and for each request to the backend. The collector gets those that are
//! sampled; the backend and admission webhooks continue the trace of every request.
//!
//! A span never has a credential or an identity: its attributes are those of kube-apiserver, without the query.
// apiserver: pkg/endpoints/filters/traces.go; pkg/endpoints/filterlatency/filterlatency.go

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use portcullis_limits::Owner;
use portcullis_otlp::context::SpanContext;
use portcullis_otlp::export::{
    AttributeValue, ExportCounts, ExportSettings, Exporter, Span, SpanKind, SpanQueue, SpanText, exporter,
};
use portcullis_otlp::sampling::{Sampler, SpanStart, random_span_id};
use portcullis_system::clock::{Clock, UnixTime};

use crate::metrics::Exemplar;
use crate::operator::OperatorUser;
use crate::request::info::RequestInfo;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// The name of the service.
// apiserver: pkg/server/options/tracing.go, apiserverService
const SERVICE: &str = "apiserver";
/// The most spans within one request: a client must not fill the queue with those of a write that is reviewed again and again.
// threat: span-flood
const MAX_SPANS: usize = 64;

/// The settings of traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracingSettings {
    /// Host and port of the collector.
    pub endpoint: String,
    /// How many of a million requests are sampled.
    pub rate_per_million: u32,
}

/// Begins the spans of requests.
#[derive(Debug)]
pub(crate) struct Tracer {
    sampler: Sampler,
    queue: SpanQueue,
    clock: Clock,
}

/// A span that has begun; it ends when it is dropped.
#[derive(Debug)]
pub(crate) struct ActiveSpan {
    scope: SpanScope,
    parent: Option<[u8; 8]>,
    link: Option<SpanContext>,
    /// Of a sampled span alone.
    record: Option<SpanRecord>,
}

/// A span by which others begin within it.
#[derive(Debug, Clone)]
pub(crate) struct SpanScope {
    tracer: Arc<Tracer>,
    context: SpanContext,
    /// `None` if the request is not sampled.
    sampled: Option<Arc<SampledRequest>>,
}

/// The spans of one request.
#[derive(Debug)]
struct SampledRequest {
    /// In whose share they wait.
    owner: Owner,
    /// How many the request may still have.
    left: AtomicUsize,
}

/// The attributes of a span, with kube-apiserver's names.
pub(crate) type SpanAttributes<'a> = &'a [(&'static str, &'a str)];

#[derive(Debug)]
struct SpanRecord {
    name: SpanText,
    kind: SpanKind,
    began: UnixTime,
    /// `None` until it ends.
    ended: Option<UnixTime>,
    attributes: Vec<(&'static str, AttributeValue)>,
    failed: bool,
}

/// The facts about a request that its span has.
#[derive(Debug)]
pub(crate) struct TracedRequest<'a> {
    /// Its method.
    pub(crate) method: &'a Method,
    /// Its headers.
    pub(crate) headers: &'a HeaderMap,
    /// Its meaning.
    pub(crate) info: &'a RequestInfo,
    /// Its audit ID.
    pub(crate) audit_id: &'a HeaderValue,
    /// When it arrived.
    pub(crate) began: UnixTime,
    /// Whose it is; `None` if its client is not authenticated.
    pub(crate) owner: Option<&'a Owner>,
}

impl Tracer {
    /// A tracer, and the exporter to run.
    pub(crate) fn new(settings: &TracingSettings, clock: Clock) -> (Arc<Self>, Exporter) {
        let export = ExportSettings {
            endpoint: settings.endpoint.clone(),
            service: SERVICE.to_owned(),
            instance: uuid::Uuid::new_v4().to_string(),
        };
        let (queue, exporter) = exporter(export, |error| tracing::warn!(error, "spans not exported"));
        let sampler = Sampler::new(settings.rate_per_million);
        (Arc::new(Self { sampler, queue, clock }), exporter)
    }

    /// What became of the spans.
    pub(crate) fn export_counts(&self) -> Arc<ExportCounts> {
        Arc::clone(self.queue.counts())
    }

    /// Begins the span of a request. `user` is `None` if a tenant says who the user is: such a user is not trusted with the
    /// traces of all.
    // threat: forced-traces, tenant-privilege
    pub(crate) fn begin(
        self: &Arc<Self>,
        request: &TracedRequest<'_>,
        user: Option<OperatorUser<'_>>,
    ) -> ActiveSpan {
        let header = |name: &HeaderName| request.headers.get(name).map(HeaderValue::as_bytes);
        let parent = header(&TRACEPARENT).and_then(|parent| SpanContext::parse(parent, header(&TRACESTATE)));
        let groups = user.into_iter().flat_map(OperatorUser::groups);
        let SpanStart { context, parent, link } = self.sampler.begin(parent, groups);
        let record = context.sampled.then(|| SpanRecord {
            name: span_name(known(request.method), request.info).as_str().into(),
            kind: SpanKind::Server,
            began: request.began,
            ended: None,
            attributes: vec![
                ("http.method", text(known(request.method))),
                ("http.target", text(request.info.path())),
                ("audit-id", text(&String::from_utf8_lossy(request.audit_id.as_bytes()))),
            ],
            failed: false,
        });
        let sampled = context.sampled.then(|| {
            let owner = request.owner.cloned().unwrap_or(Owner::ALL_NETWORKS);
            Arc::new(SampledRequest { owner, left: AtomicUsize::new(MAX_SPANS) })
        });
        ActiveSpan { scope: SpanScope { tracer: Arc::clone(self), context, sampled }, parent, link, record }
    }
}

impl SpanScope {
    /// Begins a span for a stage of the request; `None` if the request is not sampled, or has had its spans.
    pub(crate) fn stage(&self, name: &str, attributes: SpanAttributes<'_>) -> Option<Box<ActiveSpan>> {
        self.sampled.as_ref()?;
        // Boxed: few requests have any, and the future of each is moved several times.
        let span = Box::new(self.child(SpanKind::Internal, || name.into(), attributes));
        span.record.is_some().then_some(span)
    }

    /// Records a stage that has ended.
    pub(crate) fn record(&self, name: &str, began: UnixTime, ended: UnixTime) {
        if let Some(record) = self.stage(name, &[]).as_mut().and_then(|span| span.record.as_mut()) {
            (record.began, record.ended) = (began, Some(ended));
        }
    }

    /// The same of one that ends now.
    pub(crate) fn record_ended(&self, name: &str, took: Duration) {
        let now = self.tracer.clock.now();
        self.record(name, now.saturating_sub(took), now);
    }

    /// Begins the span of a request of the gateway to another server. It has a context in any case, which that server
    /// continues.
    pub(crate) fn request(&self, method: &Method) -> ActiveSpan {
        let method = known(method);
        self.child(SpanKind::Client, || format!("HTTP {method}").as_str().into(), &[("http.method", method)])
    }

    fn child(
        &self,
        kind: SpanKind,
        name: impl FnOnce() -> SpanText,
        attributes: SpanAttributes<'_>,
    ) -> ActiveSpan {
        let is_recorded = self.sampled.as_ref().is_some_and(|sampled| {
            sampled
                .left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                .is_ok()
        });
        let record = is_recorded.then(|| SpanRecord {
            name: name(),
            kind,
            began: self.tracer.clock.now(),
            ended: None,
            attributes: attributes.iter().map(|(key, value)| (*key, text(value))).collect(),
            failed: false,
        });
        let scope = Self { context: self.context.child(random_span_id()), ..self.clone() };
        ActiveSpan { scope, parent: Some(self.context.span_id), link: None, record }
    }
}

impl ActiveSpan {
    /// The span, to begin others within it.
    pub(crate) fn scope(&self) -> &SpanScope {
        &self.scope
    }

    /// The span as the exemplar of a metric, if it is sampled.
    pub(crate) fn exemplar(&self) -> Option<Exemplar> {
        self.record.as_ref()?;
        let SpanScope { context, tracer, .. } = &self.scope;
        Some(Exemplar { trace_id: context.trace_id, span_id: context.span_id, at: tracer.clock.now() })
    }

    /// The span is not recorded.
    pub(crate) fn discard(mut self) {
        self.record = None;
    }

    /// The step has failed.
    pub(crate) fn fail(&mut self) {
        if let Some(record) = &mut self.record {
            record.failed = true;
        }
    }

    /// Writes the context for the server, in place of the client's.
    pub(crate) fn inject(&self, headers: &mut HeaderMap) {
        headers.remove(TRACESTATE);
        headers.remove(TRACEPARENT);
        let context = &self.scope.context;
        if let Ok(parent) = HeaderValue::try_from(context.traceparent()) {
            headers.insert(TRACEPARENT, parent);
        }
        if !context.trace_state.is_empty()
            && let Ok(state) = HeaderValue::try_from(context.trace_state.as_str())
        {
            headers.insert(TRACESTATE, state);
        }
    }

    /// Records the status of the response.
    pub(crate) fn note_status(&mut self, code: u16) {
        if let Some(record) = &mut self.record {
            record.attributes.push(("http.status_code", AttributeValue::Number(code.into())));
            record.failed = code >= 500;
        }
    }
}

impl Drop for ActiveSpan {
    fn drop(&mut self) {
        let Some(record) = self.record.take() else { return };
        let SpanRecord { name, kind, began, ended, attributes, failed } = record;
        let Self { scope: SpanScope { tracer, context, sampled }, parent, link, .. } = self;
        let Some(sampled) = sampled else { return };
        let nanoseconds = |time: UnixTime| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let span = Span {
            context: context.clone(),
            parent: *parent,
            link: link.take(),
            name,
            kind,
            start: nanoseconds(began),
            end: nanoseconds(ended.unwrap_or_else(|| tracer.clock.now())),
            attributes,
            failed,
        };
        tracer.queue.push(sampled.owner.clone(), span);
    }
}

fn text(text: &str) -> AttributeValue {
    AttributeValue::Text(text.into())
}

/// The method, if it is a standard one: others are text of the client.
// threat: span-flood
// go.opentelemetry.io/otel: semconv, HTTPRequestMethodOther
fn known(method: &Method) -> &str {
    const METHODS: [Method; 9] = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
        Method::CONNECT,
        Method::TRACE,
    ];
    if METHODS.contains(method) { method.as_str() } else { "_OTHER" }
}

/// The name of a request's span, without names of objects.
// apiserver: pkg/endpoints/filters/traces.go, getSpanNameFromRequestInfo
fn span_name(method: &str, info: &RequestInfo) -> String {
    let Some(resource) = info.resource() else { return method.to_owned() };
    let mut name = format!("{method} /{}", resource.api_prefix);
    let parts = [
        (!resource.group.is_empty(), resource.group),
        (true, resource.version),
        (!resource.namespace.is_empty(), "namespaces/{:namespace}"),
        (true, resource.resource),
        (!resource.name.is_empty(), "{:name}"),
        (!resource.subresource.is_empty(), resource.subresource),
    ];
    for (_, part) in parts.into_iter().filter(|(is_present, _)| *is_present) {
        name.push('/');
        name.push_str(part);
    }
    name
}

#[cfg(test)]
mod tests {
    use portcullis_kubernetes::user::UserInfo;

    use super::*;

    #[test]
    fn only_standard_methods_are_recorded() {
        let long = Method::from_bytes("A".repeat(100_000).as_bytes()).unwrap();
        let cases =
            [(Method::PATCH, "PATCH"), (long, "_OTHER"), (Method::from_bytes(b"get").unwrap(), "_OTHER")];
        for (method, expected) in cases {
            assert_eq!(known(&method), expected);
        }
    }

    #[test]
    fn a_tenant_cannot_force_traces_by_the_groups_of_its_users() {
        let settings = TracingSettings { endpoint: "127.0.0.1:1".to_owned(), rate_per_million: 0 };
        let (tracer, _exporter) = Tracer::new(&settings, Clock::system());
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let headers = HeaderMap::from_iter([(TRACEPARENT, HeaderValue::from_static(parent))]);
        let info = RequestInfo::parse(&Method::GET, "/api/v1/pods", None).unwrap();
        for is_of_tenant in [false, true] {
            let request = TracedRequest {
                method: &Method::GET,
                headers: &headers,
                info: &info,
                audit_id: &HeaderValue::from_static("a"),
                began: UnixTime::from_secs(0),
                owner: None,
            };
            let user = UserInfo { groups: vec!["system:masters".to_owned()], ..UserInfo::named("root") };
            let of_operator = OperatorUser::vouched(&user);
            let span = tracer.begin(&request, (!is_of_tenant).then_some(of_operator));
            assert_eq!(span.record.is_some(), !is_of_tenant);
            assert_eq!(span.scope.stage("authorization", &[]).is_some(), !is_of_tenant);
            assert_eq!(span.scope.context.traceparent().contains("0af7651916cd43dd"), !is_of_tenant);
        }
    }

    #[test]
    fn a_request_has_a_bounded_number_of_spans() {
        let settings = TracingSettings { endpoint: "127.0.0.1:1".to_owned(), rate_per_million: 1_000_000 };
        let (tracer, _exporter) = Tracer::new(&settings, Clock::system());
        let info = RequestInfo::parse(&Method::GET, "/api/v1/pods", None).unwrap();
        let request = TracedRequest {
            method: &Method::GET,
            headers: &HeaderMap::new(),
            info: &info,
            audit_id: &HeaderValue::from_static("a"),
            began: UnixTime::from_secs(0),
            owner: None,
        };
        let span = tracer.begin(&request, None);
        // Those within its spans count as well.
        let inner = span.scope.stage("authorization", &[]).unwrap();
        let recorded = (0..2 * MAX_SPANS).filter(|_| inner.scope.stage("a", &[]).is_some()).count();
        assert_eq!(recorded, MAX_SPANS - 1);
        let request = span.scope.request(&Method::GET);
        assert!(request.record.is_none(), "it is not recorded");
        let mut headers = HeaderMap::new();
        request.inject(&mut headers);
        assert!(headers.contains_key(TRACEPARENT), "and has a context all the same");
    }
}
