//! What the phases of admission need for one request.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use http::{HeaderMap, Method};
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use portcullis_admission::phases::ShadowCall;
use portcullis_admission::review::{ReviewRequest, internal_error};
use portcullis_admission::{
    Annotation, Attributes, CallError, Caller, Event, GroupVersionKind, GroupVersionResource, InlineCost,
    MatchError, Plugin, PolicyScope, SchemaPurpose, ServedResource, Surroundings, Webhook, WebhookKind,
    WebhookResponse,
};
use portcullis_cel::{AccessDecision, AccessReview};
use portcullis_kubernetes::user::UserInfo;
use portcullis_limits::Owner;
use portcullis_merge::Schemas;
use portcullis_system::sync::lock;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::callers::{BUSY, CallFailure};
use super::shadow::ShadowCaller;
use super::{ClusterAdmission, DryRun, Namespaces, ReadError, Strategy};
use crate::authz::{AccessError, AccessRefusal, AuthzTrace, ReviewError, of_expression};
use crate::backend::sharing::is_built_in;
use crate::request::info::RequestInfo;
use crate::traces::{ActiveSpan, SpanScope};

/// A request, as far as the phases need it.
#[derive(Clone, Copy)]
pub(crate) struct RequestParts<'a> {
    /// In whose share it counts what the request makes the gateway ask.
    pub(crate) flow: &'a str,
    /// The same for what the process has once.
    pub(crate) owner: &'a Owner,
    /// The user under whose identity it is made.
    pub(crate) user: &'a UserInfo,
    /// Its end.
    pub(crate) deadline: Option<Instant>,
    /// The span of the request, if requests are traced.
    pub(crate) spans: Option<&'a SpanScope>,
}

/// What the phases need for one request, and what they say about it.
pub(crate) struct RequestSurroundings<'a> {
    admission: &'a Arc<ClusterAdmission>,
    request: RequestParts<'a>,
    notes: Mutex<AdmissionNotes>,
    /// Whether a webhook was not called because too many calls are in progress.
    is_busy: AtomicBool,
    /// Whether the objects are as the client has sent them.
    are_as_sent: AtomicBool,
    /// Until when the request waits for what only shadow policies need, once it does.
    shadow_wait: OnceLock<Instant>,
    /// What the expressions have cost where the request is served.
    inline_cost: InlineCost,
}

/// What admission says about a request.
#[derive(Debug, Default)]
pub(crate) struct AdmissionNotes {
    /// Warnings for the client.
    pub(crate) warnings: Vec<String>,
    /// Audit annotations.
    pub(crate) annotations: Vec<Annotation>,
    known_warnings: HashSet<String>,
    known_keys: HashSet<String>,
    warning_bytes: usize,
    annotation_bytes: usize,
}

/// How long a request waits for the schemas of all its shadow policies.
// threat: silent-backend
const SHADOW_SCHEMAS_TIMEOUT: Duration = Duration::from_millis(500);
/// How much of the message of a shadow policy is logged.
const MAX_LOGGED_CHARACTERS: usize = 300;
/// How many bytes of warnings are kept: more than the headers of a response take.
const MAX_WARNING_BYTES: usize = 64 << 10;
/// How many bytes of annotations are kept: more than one event of audit is to have.
const MAX_ANNOTATION_BYTES: usize = 1 << 20;

impl AdmissionNotes {
    /// Keeps a warning once, as far as a response may have them. The deletion of a collection warns for each object.
    // threat: buffered-bytes-flood
    fn warn(&mut self, text: &str) {
        if self.warning_bytes < MAX_WARNING_BYTES && self.known_warnings.insert(text.to_owned()) {
            self.warning_bytes += text.len();
            self.warnings.push(text.to_owned());
        }
    }

    /// Keeps the first annotation of a key, as the API server does.
    // apiserver: pkg/audit/context.go, addEventAnnotation
    fn annotate(&mut self, annotation: Annotation) {
        if self.annotation_bytes < MAX_ANNOTATION_BYTES && self.known_keys.insert(annotation.key.clone()) {
            self.annotation_bytes += annotation.key.len() + annotation.value.len();
            self.annotations.push(annotation);
        }
    }
}

impl<'a> RequestSurroundings<'a> {
    pub(super) fn new(admission: &'a Arc<ClusterAdmission>, request: RequestParts<'a>) -> Self {
        Self {
            admission,
            request,
            notes: Mutex::default(),
            is_busy: AtomicBool::new(false),
            are_as_sent: AtomicBool::new(false),
            shadow_wait: OnceLock::new(),
            inline_cost: InlineCost::default(),
        }
    }

    /// Whether a webhook was not called because too many calls are in progress: that is no fault of the webhook, and its
    /// `failurePolicy` does not decide.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_busy.load(Ordering::Relaxed)
    }

    /// Takes the warnings and annotations so far.
    pub(crate) fn take_notes(&self) -> AdmissionNotes {
        mem::take(&mut lock(&self.notes))
    }

    /// Says that the objects under review are as the client has sent them.
    pub(crate) fn note_as_sent(&self) {
        self.are_as_sent.store(true, Ordering::Relaxed);
    }

    /// A line about a document that each request may need.
    fn warn_of_document(&self, (group, version): (&str, &str), error: &str) {
        let about = format!("{group}/{version}");
        let permit = lock(&self.admission.policy_lines).take(&about, Instant::now());
        let Some(suppressed) = permit else { return };
        let cluster = &self.admission.cluster;
        tracing::warn!(
            cluster,
            group,
            version,
            error,
            suppressed,
            "cannot use the OpenAPI document of an API group"
        );
    }

    /// A client can cause an error with each request.
    // threat: log-flood
    fn warn_of_ignored(&self, policy: &PolicyScope, error: &str) {
        let permit = lock(&self.admission.policy_lines).take(&policy.name, Instant::now());
        let Some(suppressed) = permit else { return };
        let (cluster, policy) = (&self.admission.cluster, &policy.name);
        let error = error.chars().take(MAX_LOGGED_CHARACTERS).collect::<String>();
        tracing::warn!(
            cluster,
            policy,
            error,
            suppressed,
            "an error of an admission policy is ignored by its failurePolicy, failing open"
        );
    }

    fn namespaces(&self) -> Result<&Namespaces, MatchError> {
        let unwatched = || MatchError::Request(internal_error("namespaces are not watched"));
        self.admission.namespaces.as_deref().ok_or_else(unwatched)
    }

    /// What a dry run of a write means; the reason, if that cannot be told.
    pub(crate) async fn dry_run(
        &self,
        resource: &GroupVersionResource,
        subresource: &str,
        method: &Method,
    ) -> Result<DryRun, ReadError> {
        self.admission.dry_runs.of(self.request.flow, resource, subresource, method).await
    }

    /// The resources by which the API servers serve the objects of the request; `None` if that is not known.
    pub(crate) async fn equivalents(
        &self,
        attributes: &Attributes,
    ) -> Result<Option<Vec<ServedResource>>, ReadError> {
        let equivalents = self.admission.served.equivalents(self.request.flow, attributes).await;
        if let Err(ReadError::Unreadable(error)) = &equivalents {
            let (cluster, resource) = (&self.admission.cluster, &attributes.resource);
            tracing::warn!(cluster, %resource, error, "cannot read which versions of a resource the API server serves");
        }
        equivalents
    }

    /// How the API servers convert the objects of a resource.
    pub(crate) async fn strategy(&self, resource: &GroupVersionResource) -> Result<Strategy, ReadError> {
        self.admission.served.strategy(self.request.flow, resource).await
    }

    /// Asks the API servers whether the user may make the request, where no dry run does.
    pub(crate) async fn authorize_request(&self, info: &RequestInfo) -> Result<(), AccessRefusal> {
        let authorizer = &self.admission.authorizer;
        let trace = AuthzTrace::within(self.request.spans);
        authorizer.authorize_at_api_servers(self.request.flow, self.request.user, info, &trace).await
    }
}

/// The refusal of a request by a bound of the gateway.
pub(super) fn too_many_requests() -> Box<meta::Status> {
    undecided(&ReviewError::Overloaded)
}

/// The refusal of a request of which an access review of an expression is not decided now, as of one that itself is not.
fn undecided(error: &ReviewError) -> Box<meta::Status> {
    let (code, reason, message) = match error {
        ReviewError::Overloaded => (429, "TooManyRequests", "Too many requests, please try again later."),
        ReviewError::TooLarge => (
            400,
            "BadRequest",
            "the user and the selectors of an expression are too long for an access review",
        ),
        ReviewError::Unavailable(_)
        | ReviewError::Forbidden(_)
        | ReviewError::Unusable(_)
        | ReviewError::Webhook { .. } => (
            503,
            "ServiceUnavailable",
            "this gateway cannot decide an access review of an admission expression now, try again later",
        ),
    };
    let details = meta::StatusDetails {
        retry_after_seconds: (code != 400).then_some(1),
        ..meta::StatusDetails::default()
    };
    Box::new(meta::Status {
        code: Some(code),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        status: Some("Failure".to_owned()),
        details: Some(details),
        ..meta::Status::default()
    })
}

/// The spans of one call: the outer one ends last.
struct CallSpans {
    request: Box<ActiveSpan>,
    call: Option<Box<ActiveSpan>>,
}

impl CallSpans {
    // apiserver: pkg/admission/plugin/webhook/{mutating,validating}/dispatcher.go
    fn begin(spans: Option<&SpanScope>, webhook: &Webhook, review: &ReviewRequest) -> Option<Self> {
        let spans = spans?;
        let name = match webhook.kind {
            WebhookKind::Mutating => "Call mutating webhook",
            WebhookKind::Validating => "Call validating webhook",
        };
        let call = spans.stage(
            name,
            &[
                ("configuration", &webhook.configuration),
                ("webhook", &webhook.name),
                ("resource", &review.resource.to_string()),
                ("subresource", &review.subresource),
                ("operation", review.operation.as_str()),
                ("UID", &review.uid),
            ],
        );
        let request = call.as_deref().map_or(spans, ActiveSpan::scope).request(&Method::POST);
        Some(Self { request: Box::new(request), call })
    }

    fn fail(mut self) {
        self.request.fail();
        if let Some(call) = &mut self.call {
            call.fail();
        }
    }
}

impl Caller for RequestSurroundings<'_> {
    async fn call(&self, webhook: &Webhook, review: &ReviewRequest) -> Result<WebhookResponse, CallError> {
        let spans = CallSpans::begin(self.request.spans, webhook, review);
        let mut headers = HeaderMap::new();
        if let Some(spans) = &spans {
            spans.request.inject(&mut headers);
        }
        let called = self
            .admission
            .callers
            .call(webhook, review, headers, self.request.flow, self.request.deadline)
            .await;
        if let (Err(_), Some(spans)) = (&called, spans) {
            spans.fail();
        }
        match called {
            Ok(response) => Ok(response),
            Err(CallFailure::Webhook(error)) => Err(error),
            Err(CallFailure::Busy) => {
                self.is_busy.store(true, Ordering::Relaxed);
                Err(CallError::Failed(BUSY.to_owned()))
            }
        }
    }

    fn note(&self, event: Event<'_>) {
        self.admission.metrics.admission.note(&event);
        match event {
            Event::Warning(text) => lock(&self.notes).warn(text),
            Event::Annotation(annotation) => lock(&self.notes).annotate(annotation),
            Event::FailedOpen { webhook, error } => {
                let (cluster, webhook) = (&self.admission.cluster, &webhook.name);
                tracing::warn!(cluster, webhook, error, "failed calling webhook, failing open");
            }
            Event::PolicyIgnored(policy, error) => {
                self.warn_of_ignored(policy, error);
            }
            Event::ShadowPolicy { policy, would, took, .. } => {
                let (would, message) = would.parts();
                let message: String = message.chars().take(MAX_LOGGED_CHARACTERS).collect();
                let (cluster, policy) = (&self.admission.cluster, &policy.name);
                if would != "allow" {
                    tracing::info!(cluster, policy, would, message, ?took, "shadow policy");
                }
            }
            Event::PluginEnded { plugin, took, .. } => {
                let name = match plugin {
                    Plugin::MutatingPolicies => "Evaluate mutating policies",
                    Plugin::ValidatingPolicies => "Evaluate validating policies",
                    // Each call has a span.
                    Plugin::MutatingWebhooks | Plugin::ValidatingWebhooks => return,
                };
                if let Some(spans) = self.request.spans {
                    spans.record_ended(name, took);
                }
            }
            Event::Shadow { .. }
            | Event::Explained { .. }
            | Event::Called { .. }
            | Event::ConditionFailed(..)
            | Event::ConditionExcluded(..)
            | Event::ConditionsEvaluated(..)
            | Event::PolicyChecked(_)
            | Event::PolicyMutated(_) => {}
        }
    }
}

impl Surroundings for RequestSurroundings<'_> {
    async fn namespace_labels(&self, namespace: &str) -> Result<BTreeMap<String, String>, MatchError> {
        self.namespaces()?.labels(self.request.flow, namespace).await
    }

    async fn namespace(&self, name: &str) -> Result<Value, MatchError> {
        self.namespaces()?.object(self.request.flow, name).await
    }

    async fn schemas(
        &self,
        kind: &GroupVersionKind,
        purpose: SchemaPurpose,
    ) -> Result<Option<Arc<Schemas>>, Box<meta::Status>> {
        let GroupVersionKind { group, version, .. } = kind;
        let reading = self.admission.schemas.of((self.request.flow, self.request.owner), group, version);
        if purpose.is_shadow {
            // What has no effect ends no request, and delays it only briefly.
            let until = self.shadow_wait.get_or_init(|| Instant::now() + SHADOW_SCHEMAS_TIMEOUT);
            let read = timeout_at(*until, reading).await;
            return read
                .map_or(Err(ReadError::Busy), |read| read)
                .map_err(|error| internal_error(&error.to_string()));
        }
        match reading.await {
            Ok(schemas) => Ok(schemas),
            Err(ReadError::Busy) => {
                self.is_busy.store(true, Ordering::Relaxed);
                Err(internal_error(BUSY))
            }
            Err(ReadError::Unreadable(error)) => {
                self.warn_of_document((group, version), &error);
                Ok(None)
            }
        }
    }

    fn are_as_sent(&self) -> bool {
        self.are_as_sent.load(Ordering::Relaxed)
    }

    fn is_typed(&self, group: &str) -> bool {
        group.is_empty() || is_built_in(group)
    }

    fn inline_cost(&self) -> &InlineCost {
        &self.inline_cost
    }

    // threat: unreviewed-write
    async fn authorize(&self, review: &AccessReview) -> Result<AccessDecision, Box<meta::Status>> {
        let review = of_expression(self.request.user, review);
        let no = |reason, error| Ok(AccessDecision { allowed: false, reason, error });
        let trace = AuthzTrace::within(self.request.spans);
        match self.admission.authorizer.authorize(self.request.flow, &review, &trace).await {
            Ok(allowed) => Ok(AccessDecision { allowed: true, reason: allowed.reason, error: None }),
            Err(AccessError::Forbidden { reason, .. }) => no(reason, None),
            Err(AccessError::Failed { error, reason }) => no(reason, Some(error)),
            // The gateway's own bounds and its network decide about no expression.
            Err(AccessError::Undecided(error)) => Err(undecided(&error)),
        }
    }

    fn is_late(&self) -> bool {
        self.request.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    fn deadline(&self) -> Option<std::time::Instant> {
        self.request.deadline.map(Instant::into_std)
    }

    async fn compute<T: Send + 'static>(
        &self,
        is_long: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if !is_long {
            return Some(work());
        }
        self.admission.compute(self.request.owner, work).await
    }

    async fn shadow(&self, call: ShadowCall) {
        ShadowCaller::new(self.admission, self.request.flow).start(call);
    }
}

impl fmt::Debug for RequestSurroundings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestSurroundings").field("flow", &self.request.flow).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two thousand objects in one request.
    #[test]
    fn notes_are_bounded() {
        let mut notes = AdmissionNotes::default();
        for number in 0..2_000 {
            notes.warn(&format!("{number}{}", "x".repeat(5 << 10)));
            notes.warn("again");
            let annotation = |value: String| Annotation {
                key: "policy/key".to_owned(),
                value,
                needs_request_level: false,
            };
            notes.annotate(annotation("y".repeat(10 << 10)));
            let key = format!("webhook/{number}");
            notes.annotate(Annotation { key, ..annotation("z".repeat(10 << 10)) });
        }
        let bytes: usize = notes.warnings.iter().map(String::len).sum();
        assert!((MAX_WARNING_BYTES..MAX_WARNING_BYTES + (6 << 10)).contains(&bytes), "{bytes}");
        assert_eq!(notes.warnings.iter().filter(|text| *text == "again").count(), 1);
        let of_key = |key: &str| notes.annotations.iter().filter(|annotation| annotation.key == key).count();
        assert_eq!(of_key("policy/key"), 1);
        let bytes: usize = notes.annotations.iter().map(|annotation| annotation.value.len()).sum();
        assert!(bytes < MAX_ANNOTATION_BYTES + (11 << 10), "{bytes}");
    }
}
