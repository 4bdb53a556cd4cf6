//! Validating admission policies with their bindings, with upstream's defaults applied and validated.

use std::sync::Arc;

use portcullis_cel::{Expression, Variables};

use crate::matching::{LabelSelector, MatchCondition};
use crate::{FailurePolicy, MatchPolicy, Rule};

/// A `ValidatingAdmissionPolicy`, and the bindings that put it in force. One of a file has no parameters.
// api: admissionregistration/v1, ValidatingAdmissionPolicySpec
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatingPolicy {
    /// Its name.
    pub name: String,
    /// What happens if it cannot be evaluated.
    pub failure_policy: FailurePolicy,
    /// Which requests it is about.
    pub constraints: MatchResources,
    /// Conditions that must all be true.
    pub match_conditions: Vec<MatchCondition>,
    /// What its expressions share.
    pub variables: Arc<Variables>,
    /// What must hold.
    pub validations: Vec<Validation>,
    /// What is written into the audit log.
    pub audit_annotations: Vec<AuditAnnotation>,
    /// Whether an expression may use the namespace of the request.
    pub uses_namespace: bool,
    /// What puts it in force, by name.
    pub bindings: Vec<PolicyBinding>,
    /// Whether it is evaluated to compare only: what it finds is reported, and has no effect on the request.
    pub shadow: bool,
}

/// The policies of a cluster, in the order in which they are evaluated.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Policies {
    /// Those of the validating phase.
    pub validating: Vec<Arc<ValidatingPolicy>>,
}

impl ValidatingPolicy {
    /// Whether it, or a binding, selects requests by the labels of their namespaces.
    pub fn selects_namespaces(&self) -> bool {
        let of_bindings = self.bindings.iter().filter_map(|binding| binding.resources.as_ref());
        of_bindings.chain([&self.constraints]).any(|resources| !resources.namespace_selector.is_empty())
    }
}

/// Which requests a policy, or a binding, is about.
// api: admissionregistration/v1, MatchResources
#[derive(Debug, Clone, PartialEq)]
pub struct MatchResources {
    /// The namespaces.
    pub namespace_selector: LabelSelector,
    /// The objects.
    pub object_selector: LabelSelector,
    /// The operations on resources; any of them suffices. Every request, if a binding has none.
    pub rules: Vec<Rule>,
    /// The operations that it is not about.
    pub excluded: Vec<Rule>,
    /// Whether the rules also match a request by other versions of its resource.
    pub match_policy: MatchPolicy,
}

/// An expression that must be true, and what a refusal says.
// api: admissionregistration/v1, Validation
#[derive(Debug, Clone, PartialEq)]
pub struct Validation {
    /// The expression.
    pub expression: Expression,
    /// The message; empty if there is none.
    pub message: String,
    /// The expression of the message.
    pub message_expression: Option<Expression>,
    /// The reason of the refusal.
    pub reason: Reason,
}

/// The reason of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// 403
    Forbidden,
    /// 422
    Invalid,
    /// 413
    RequestEntityTooLarge,
}

/// An audit annotation, whose value is a text or null.
// api: admissionregistration/v1, AuditAnnotation
#[derive(Debug, Clone, PartialEq)]
pub struct AuditAnnotation {
    /// The key, without the name of the policy.
    pub key: String,
    /// The expression of the value.
    pub value: Expression,
}

/// A `ValidatingAdmissionPolicyBinding`.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyBinding {
    /// Its name.
    pub name: String,
    /// The requests that it restricts the policy to.
    pub resources: Option<MatchResources>,
    /// What follows from a validation that fails.
    pub actions: Vec<ValidationAction>,
}

/// What follows from a validation that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValidationAction {
    /// The request is refused.
    Deny,
    /// The client is warned.
    Warn,
    /// The audit log shows it.
    Audit,
}

impl Reason {
    /// The reason, and the HTTP status, of the `Status`.
    pub fn parts(self) -> (&'static str, i32) {
        match self {
            Self::Forbidden => ("Forbidden", 403),
            Self::Invalid => ("Invalid", 422),
            Self::RequestEntityTooLarge => ("RequestEntityTooLarge", 413),
        }
    }
}

impl ValidationAction {
    /// The name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "Deny",
            Self::Warn => "Warn",
            Self::Audit => "Audit",
        }
    }
}
