//! Admission webhooks and validating admission policies as kube-apiserver runs them: the same ones see a request, in the same order,
//! with the same `AdmissionReview` or variables, and their responses and values lead to the same result.
//!
//! This crate knows nothing of the gateway. It reads webhook configurations and policies ([`configuration`]), decides which of them
//! match a request ([`matching`]), writes `AdmissionReview`s and checks their responses ([`review`]), and runs the two
//! phases ([`phases`]). Everything that needs the network, the API server or a clock is behind [`Surroundings`].
//!
//! | module | upstream (`k8s.io/apiserver/pkg/admission/plugin/webhook`) |
//! |---|---|
//! | [`configuration`] | `pkg/apis/admissionregistration/{v1,validation}`, `manifest/loader` |
//! | [`matching`] | `predicates`, `matchconditions`, `generic` |
//! | [`review`] | `request`, `errors` |
//! | [`phases`] | `mutating`, `validating`, `pkg/admission/reinvocation.go`; `pkg/admission/plugin/policy/validating` |
//! | `type_warnings` | `pkg/admission/plugin/policy/validating/typechecking.go` |
//!
//! What differs from kube-apiserver, and why, is in `docs/admission.md`.

mod attributes;
pub mod configuration;
mod conversions;
pub mod matching;
pub mod phases;
mod policy;
pub mod review;
mod surroundings;
mod type_warnings;
mod webhook;

pub(crate) use attributes::SharedObjects;
pub use attributes::{
    Attributes, DEEP, GroupVersionKind, GroupVersionResource, LARGE, Objects, Operation, ServedResource,
    UserInfo,
};
pub use conversions::{Conversions, NoConversions};
pub use matching::InlineCost;
pub use policy::{
    AnyBinding, AnyPolicy, AuditAnnotation, MatchResources, MutatingBinding, MutatingPolicy, Mutation,
    Policies, PolicyBinding, PolicyKind, PolicyScope, Reason, ValidatingPolicy, Validation, ValidationAction,
};
pub use surroundings::{
    Annotation, CallError, CallOutcome, Caller, ConditionsOf, Event, MatchError, MutationCheck, Phase,
    Plugin, PolicyAction, PolicyCheck, PolicyCheckError, SchemaPurpose, ShadowOutcome, SkipReason,
    Surroundings, WebhookResponse,
};
pub use type_warnings::{KindError, TypeWarning};
pub use webhook::{
    FailurePolicy, MatchPolicy, ReinvocationPolicy, ReviewVersion, Rule, Scope, SideEffects, Webhook,
    WebhookKind, Webhooks,
};
