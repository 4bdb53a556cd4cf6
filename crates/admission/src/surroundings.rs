//! What the phases need of a gateway, for one request.

use std::collections::BTreeMap;
use std::future::{Future, ready};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use portcullis_cel::{AccessDecision, AccessReview, ExplainedPart};
use portcullis_merge::Schemas;
use serde_json::Value;

use crate::matching::InlineCost;
use crate::phases::ShadowCall;
use crate::review::{ReviewRequest, internal_error};
use crate::{GroupVersionKind, Operation, PolicyScope, Webhook};

/// How webhooks are called, and where it is noted.
pub trait Caller: Sync {
    /// Posts a review to a webhook, with `?timeout=` in whole seconds, and waits no longer than `timeout` or the request's
    /// deadline. Redirects, retries and credentials are decided here.
    fn call(
        &self,
        webhook: &Webhook,
        review: &ReviewRequest,
    ) -> impl Future<Output = Result<WebhookResponse, CallError>> + Send;

    /// Takes note of what happened.
    fn note(&self, event: Event<'_>);
}

/// What the phases need, for one request.
pub trait Surroundings: Caller {
    /// The labels of a namespace.
    fn namespace_labels(
        &self,
        namespace: &str,
    ) -> impl Future<Output = Result<BTreeMap<String, String>, MatchError>> + Send;

    /// A namespace, as the API server has it.
    fn namespace(&self, _name: &str) -> impl Future<Output = Result<Value, MatchError>> + Send {
        ready(Err(MatchError::Request(internal_error("namespaces are not read"))))
    }

    /// The schemas that the API server publishes for the group and version of a kind; `None` if it publishes none. The `Status` for the
    /// client if that is not known now.
    fn schemas(
        &self,
        _kind: &GroupVersionKind,
        _purpose: SchemaPurpose,
    ) -> impl Future<Output = Result<Option<Arc<Schemas>>, Box<Status>>> + Send {
        ready(Ok(None))
    }

    /// Whether the objects are as a client has sent them, and not as the API server shows them: they may have what their kinds do not.
    fn are_as_sent(&self) -> bool {
        false
    }

    /// Whether the API server decodes objects of a group into types of its own, which have no other fields. It keeps the fields of custom
    /// resources until they are stored.
    fn is_typed(&self, _group: &str) -> bool {
        true
    }

    /// What the expressions of the request, in all phases, have cost so far on the thread that serves it.
    fn inline_cost(&self) -> &InlineCost;

    /// The authorizer's decision of an access review of an expression about the user of the request; the `Status` for the client if
    /// the review is not decided now. The request then ends: an error of the expression could be ignored by a `failurePolicy`.
    fn authorize(
        &self,
        review: &AccessReview,
    ) -> impl Future<Output = Result<AccessDecision, Box<Status>>> + Send;

    /// Takes note that a webhook does not match. A match condition that excludes a request is an [`Event`].
    fn note_skip(&self, _webhook: &Webhook, _reason: SkipReason) {}

    /// Whether the parts of validations that do not hold, and of mutations that fail, are to be noted: for people, who wait.
    fn wants_explanations(&self) -> bool {
        false
    }

    /// Whether the deadline of the request has passed.
    fn is_late(&self) -> bool;

    /// That deadline, at which what [`Self::compute`] does ends.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Does work that may take long, if `is_long` says so: then not where other requests wait for it. `None` if the work was cancelled.
    fn compute<T: Send + 'static>(
        &self,
        _is_long: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Option<T>> + Send {
        ready(Some(work()))
    }

    /// Lets the call of a shadow webhook [run](ShadowCall::run). A request that waits for this future waits for the webhook.
    fn shadow(&self, call: ShadowCall) -> impl Future<Output = ()> + Send;
}

/// Why it is not known whether a webhook, or a policy, is about a request.
#[derive(Debug, Clone, PartialEq)]
pub enum MatchError {
    /// It can never be: there is no such namespace, or the object has no labels. The `failurePolicy` of a policy decides, as upstream.
    Configuration(Box<Status>),
    /// It is not known now. The request ends with this, whatever a `failurePolicy` says: a client could cause it.
    Request(Box<Status>),
}

impl MatchError {
    /// The `Status` for the client, if the request ends.
    pub fn into_status(self) -> Box<Status> {
        match self {
            Self::Configuration(status) | Self::Request(status) => status,
        }
    }
}

/// What schemas are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchemaPurpose {
    /// An object is merged by them.
    pub is_merge: bool,
    /// A shadow policy is compared: a request does not wait for them for long.
    pub is_shadow: bool,
}

/// What of a webhook does not match a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkipReason {
    /// No webhook sees the resource, whatever its rules.
    Excluded,
    /// None of its `rules`.
    Rules,
    /// Its `objectSelector`.
    ObjectSelector,
    /// Its `namespaceSelector`.
    NamespaceSelector,
}

/// An HTTP response of a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookResponse {
    /// The HTTP status.
    pub status: u16,
    /// The `Content-Type`; empty if there is none.
    pub content_type: String,
    /// The body.
    pub body: Bytes,
}

/// Why a webhook has not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// There is no response. The text is that of Go's client as far as it is known, without secrets.
    #[error("{0}")]
    Failed(String),
    /// The webhook was late.
    #[error("{0}")]
    Late(String),
}

/// A phase, in metrics: `admit` or `validating` for webhooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The mutating phase.
    Mutating,
    /// The validating phase.
    Validating,
}

/// An audit annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotation {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
    /// Whether it belongs to events of level `Request` and above only, not to `Metadata`.
    pub needs_request_level: bool,
}

/// Something that the access log, the metrics, the audit log or the client's warnings show.
#[derive(Debug)]
pub enum Event<'a> {
    /// A webhook was called.
    Called {
        /// The webhook.
        webhook: &'a Webhook,
        /// The operation.
        operation: Operation,
        /// How the call ended, as `webhook_request_total` and `webhook_admission_duration_seconds` label it.
        outcome: CallOutcome,
        /// How long it took.
        took: Duration,
    },
    /// A webhook did not answer, and was skipped by its `failurePolicy`.
    FailedOpen {
        /// The webhook.
        webhook: &'a Webhook,
        /// Why.
        error: &'a str,
    },
    /// A match condition could not be evaluated.
    ConditionFailed(ConditionsOf<'a>, Operation),
    /// A match condition of a webhook excluded the request. Upstream does not count those of policies.
    ConditionExcluded(&'a Webhook, Operation),
    /// Match conditions were evaluated, and are not all true.
    ConditionsEvaluated(ConditionsOf<'a>, Operation, Duration),
    /// A shadow webhook was called, or would have been.
    Shadow {
        /// The webhook.
        webhook: &'a Webhook,
        /// The operation.
        operation: Operation,
        /// What would have happened.
        would: &'a ShadowOutcome,
        /// How long the call took.
        took: Duration,
    },
    /// A validation of a policy did not hold, or had an error; or an audit annotation had one.
    PolicyChecked(PolicyCheck<'a>),
    /// A mutation of a policy was evaluated.
    PolicyMutated(MutationCheck<'a>),
    /// A policy cannot be evaluated for a request, or has an error, which its `failurePolicy` ignores.
    PolicyIgnored(&'a PolicyScope, &'a str),
    /// Why a validation of a policy does not hold, or a mutation fails, if [that is wanted](Surroundings::wants_explanations).
    Explained {
        /// The policy.
        policy: &'a PolicyScope,
        /// The field of its `spec`, such as `validations[0]`.
        place: String,
        /// The parts of its expression.
        parts: Vec<ExplainedPart>,
    },
    /// A shadow policy was evaluated.
    ShadowPolicy {
        /// The policy.
        policy: &'a PolicyScope,
        /// The operation.
        operation: Operation,
        /// What would have happened.
        would: &'a ShadowOutcome,
        /// How long the evaluation took.
        took: Duration,
        /// What its validations or mutations have cost, in units of CEL.
        cost: u64,
    },
    /// A plugin has ended its part of a phase.
    PluginEnded {
        /// The plugin.
        plugin: Plugin,
        /// The operation.
        operation: Operation,
        /// Whether it refused the request.
        rejected: bool,
        /// How long it took.
        took: Duration,
    },
    /// A warning for the client.
    Warning(&'a str),
    /// An audit annotation.
    Annotation(Annotation),
}

/// An admission plugin, by its name.
// kubernetes: pkg/kubeapiserver/options/plugins.go, AllOrderedPlugins
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Plugin {
    /// `MutatingAdmissionPolicy`
    MutatingPolicies,
    /// `MutatingAdmissionWebhook`
    MutatingWebhooks,
    /// `ValidatingAdmissionPolicy`
    ValidatingPolicies,
    /// `ValidatingAdmissionWebhook`
    ValidatingWebhooks,
}

impl Plugin {
    /// All, in the order in which they run.
    pub const ALL: [Self; 4] =
        [Self::MutatingPolicies, Self::MutatingWebhooks, Self::ValidatingPolicies, Self::ValidatingWebhooks];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::MutatingPolicies => "MutatingAdmissionPolicy",
            Self::MutatingWebhooks => "MutatingAdmissionWebhook",
            Self::ValidatingPolicies => "ValidatingAdmissionPolicy",
            Self::ValidatingWebhooks => "ValidatingAdmissionWebhook",
        }
    }

    /// The phase in which it runs.
    pub fn phase(self) -> Phase {
        match self {
            Self::MutatingPolicies | Self::MutatingWebhooks => Phase::Mutating,
            Self::ValidatingPolicies | Self::ValidatingWebhooks => Phase::Validating,
        }
    }
}

/// Whose match conditions are evaluated.
#[derive(Debug, Clone, Copy)]
pub enum ConditionsOf<'a> {
    /// A webhook's.
    Webhook(&'a Webhook),
    /// A policy's.
    Policy(&'a PolicyScope),
}

impl ConditionsOf<'_> {
    /// The name of the webhook, or of the policy.
    pub fn name(&self) -> &str {
        match self {
            Self::Webhook(webhook) => &webhook.name,
            Self::Policy(scope) => &scope.name,
        }
    }
}

/// What followed from a validation of a policy.
// apiserver: pkg/admission/plugin/policy/validating/metrics/metrics.go
#[derive(Debug, Clone, Copy)]
pub struct PolicyCheck<'a> {
    /// The policy.
    pub policy: &'a str,
    /// The binding.
    pub binding: &'a str,
    /// What followed.
    pub action: PolicyAction,
    /// Why.
    pub error: PolicyCheckError,
    /// How long its evaluation took.
    pub took: Duration,
}

/// How a mutation of a policy ended.
// apiserver: pkg/admission/plugin/policy/mutating/metrics/metrics.go
#[derive(Debug, Clone, Copy)]
pub struct MutationCheck<'a> {
    /// The policy.
    pub policy: &'a str,
    /// The binding.
    pub binding: &'a str,
    /// Why it failed.
    pub error: Option<PolicyCheckError>,
    /// How long it took.
    pub took: Duration,
}

/// What follows from a validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyAction {
    /// An error is ignored.
    Allow,
    /// The request is refused.
    Deny,
    /// The audit log shows it.
    Audit,
    /// The client is warned.
    Warn,
}

/// Why a validation did not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyCheckError {
    /// It costs too much.
    OutOfBudget,
    /// It does not hold, or has another error: upstream has one value for both.
    Invalid,
}

impl PolicyAction {
    /// The value of the label `enforcement_action`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Audit => "audit",
            Self::Warn => "warn",
        }
    }
}

impl PolicyCheckError {
    /// That of an error with this message.
    // apiserver: pkg/admission/plugin/policy/validating/errors.go, ErrorType
    pub(crate) fn of(message: &str) -> Self {
        if message.starts_with("validation failed due to running out of cost budget") {
            Self::OutOfBudget
        } else {
            Self::Invalid
        }
    }

    /// The value of the label `error_type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OutOfBudget => "out_of_budget",
            Self::Invalid => "invalid_error",
        }
    }
}

/// How a call of a webhook ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallOutcome {
    /// It allowed the request.
    Allowed,
    /// It denied the request, with this code.
    Denied(u16),
    /// It did not answer, or with an invalid review. The code is that in metrics: 503 if there was no HTTP error.
    Failed(u16),
    /// The gateway failed: a patch does not apply, for example.
    Internal,
    /// It was not called: the objects cannot be converted to the version or group that its rules match.
    Unconverted,
    /// The request ended meanwhile; neither a rejection nor a failure.
    Cancelled,
}

/// What a webhook would have done to a request if it were enforced.
#[derive(Debug, Clone, PartialEq)]
pub enum ShadowOutcome {
    /// It would have allowed the request.
    Allow,
    /// It would have changed the object.
    Change,
    /// It would have denied the request.
    Deny(Box<Status>),
    /// It would have warned the client, or noted it in the audit log. Only a policy does.
    Warn(String),
    /// It did not answer, or its answer cannot be used; its `failurePolicy` would have decided.
    Fail(String),
    /// The request ended before it answered.
    Unfinished,
}

impl ShadowOutcome {
    /// What would have happened in a word, and the message.
    pub fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Allow => ("allow", ""),
            Self::Change => ("change", ""),
            Self::Deny(status) => ("deny", status.message.as_deref().unwrap_or_default()),
            Self::Warn(message) => ("warn", message),
            Self::Fail(error) => ("fail", error),
            Self::Unfinished => ("unfinished", ""),
        }
    }
}
