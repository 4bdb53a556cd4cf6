//! Webhooks, with upstream's defaults applied and validated.

use std::sync::Arc;
use std::time::Duration;

use crate::Operation;
use crate::matching::{LabelSelector, MatchCondition};

/// The webhooks of a cluster, in the order in which they are called.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Webhooks {
    /// Those of the mutating phase.
    pub mutating: Vec<Arc<Webhook>>,
    /// Those of the validating phase.
    pub validating: Vec<Arc<Webhook>>,
}

/// The phase in which a webhook is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WebhookKind {
    /// A webhook of a `MutatingWebhookConfiguration`.
    Mutating,
    /// A webhook of a `ValidatingWebhookConfiguration`.
    Validating,
}

/// One webhook.
// api: admissionregistration/v1, MutatingWebhook and ValidatingWebhook
#[derive(Debug, Clone, PartialEq)]
pub struct Webhook {
    /// The name of its configuration object.
    pub configuration: String,
    /// Its name.
    pub name: String,
    /// Its phase.
    pub kind: WebhookKind,
    /// `https://…`, without a query. Services are not supported, as in the static manifests of kube-apiserver.
    pub url: String,
    /// The PEM certificates in `caBundle`; empty if there are none.
    pub ca_bundle: Vec<u8>,
    /// Which requests are sent to it; any of them suffices.
    pub rules: Vec<Rule>,
    /// What happens if it does not answer.
    pub failure_policy: FailurePolicy,
    /// Whether rules also match a request by other versions of its resource.
    pub match_policy: MatchPolicy,
    /// The namespaces whose requests are sent to it.
    pub namespace_selector: LabelSelector,
    /// The objects whose requests are sent to it.
    pub object_selector: LabelSelector,
    /// Whether it may be called for a dry run.
    pub side_effects: SideEffects,
    /// The longest wait for its response: 1 to 30 seconds.
    pub timeout: Duration,
    /// The version of reviews that it receives: the first one in `admissionReviewVersions` that is known.
    pub review_version: ReviewVersion,
    /// Conditions that must all be true.
    pub match_conditions: Vec<MatchCondition>,
    /// Whether it is called again after a later change; `Never` for a validating webhook.
    pub reinvocation_policy: ReinvocationPolicy,
    /// Whether it is called to compare only: its response is reported, and has no effect on the request.
    pub shadow: bool,
}

/// Operations on resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The operations; `None` for `*`.
    pub operations: Option<Vec<Operation>>,
    /// API groups, or `*`.
    pub api_groups: Vec<String>,
    /// API versions, or `*`.
    pub api_versions: Vec<String>,
    /// Resources, `resource/subresource`, `*`, `*/*`, `resource/*`, `*/subresource`.
    pub resources: Vec<String>,
    /// Whether cluster-scoped or namespaced resources match.
    pub scope: Scope,
    /// The names of objects; any if there are none. Only rules of policies have them.
    pub resource_names: Vec<String>,
}

/// The scope of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Cluster-scoped resources, also `namespaces`.
    Cluster,
    /// Resources in a namespace.
    Namespaced,
    /// Both.
    All,
}

/// What happens to a request if the webhook does not answer, or answers with an invalid review.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailurePolicy {
    /// It fails.
    Fail,
    /// The webhook is skipped.
    Ignore,
}

/// Which requests a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatchPolicy {
    /// Those that name the rule's group and version.
    Exact,
    /// Also those that change the same objects through another group or version.
    Equivalent,
}

/// Whether a webhook changes something besides its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SideEffects {
    /// It does not.
    None,
    /// It does, but not for a dry run.
    NoneOnDryRun,
}

/// A version of `AdmissionReview`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReviewVersion {
    /// `admission.k8s.io/v1`
    V1,
    /// `admission.k8s.io/v1beta1`
    V1Beta1,
}

/// Whether a mutating webhook is called again after a later webhook changed the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReinvocationPolicy {
    /// It is called once.
    Never,
    /// It may be called a second time.
    IfNeeded,
}

impl ReviewVersion {
    /// The `apiVersion` of reviews.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "admission.k8s.io/v1",
            Self::V1Beta1 => "admission.k8s.io/v1beta1",
        }
    }

    /// The version without its group.
    pub fn short_name(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V1Beta1 => "v1beta1",
        }
    }
}
