//! Admission policies with their bindings, with upstream's defaults applied and validated. Those of files have no parameters.

use std::sync::Arc;

use portcullis_cel::{Expression, Variables};

use crate::matching::{LabelSelector, MatchCondition};
use crate::{FailurePolicy, MatchPolicy, ReinvocationPolicy, Rule};

/// A kind of policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyKind {
    /// It changes objects.
    Mutating,
    /// It refuses requests.
    Validating,
}

impl PolicyKind {
    /// The kind in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mutating => "MutatingAdmissionPolicy",
            Self::Validating => "ValidatingAdmissionPolicy",
        }
    }
}

/// What a policy is about, whatever it then does.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyScope {
    /// Its kind.
    pub kind: PolicyKind,
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
    /// Whether an expression may use the namespace of the request.
    pub uses_namespace: bool,
    /// Whether it is evaluated to compare only: what it finds is reported, and has no effect on the request.
    pub shadow: bool,
}

/// A `ValidatingAdmissionPolicy`, and the bindings that put it in force.
// api: admissionregistration/v1, ValidatingAdmissionPolicySpec
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatingPolicy {
    /// Which requests it is about.
    pub scope: PolicyScope,
    /// What must hold.
    pub validations: Vec<Validation>,
    /// What is written into the audit log.
    pub audit_annotations: Vec<AuditAnnotation>,
    /// What puts it in force, by name.
    pub bindings: Vec<PolicyBinding>,
}

/// A `MutatingAdmissionPolicy`, and the bindings that put it in force.
// api: admissionregistration/v1, MutatingAdmissionPolicySpec
#[derive(Debug, Clone, PartialEq)]
pub struct MutatingPolicy {
    /// Which requests it is about.
    pub scope: PolicyScope,
    /// How it changes an object, in this order.
    pub mutations: Vec<Mutation>,
    /// Whether it runs again if something changes the object after it.
    pub reinvocation_policy: ReinvocationPolicy,
    /// What puts it in force, by name.
    pub bindings: Vec<MutatingBinding>,
}

/// The policies of a cluster, in the order in which they are evaluated.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Policies {
    /// Those of the mutating phase.
    pub mutating: Vec<Arc<MutatingPolicy>>,
    /// Those of the validating phase.
    pub validating: Vec<Arc<ValidatingPolicy>>,
}

impl Policies {
    /// All, the mutating ones first.
    pub fn all(&self) -> impl Iterator<Item = AnyPolicy<'_>> {
        let mutating = self.mutating.iter().map(|policy| AnyPolicy::Mutating(policy));
        mutating.chain(self.validating.iter().map(|policy| AnyPolicy::Validating(policy)))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.mutating.is_empty() && self.validating.is_empty()
    }

    /// The same with those as shadow policies of which this holds.
    #[must_use]
    pub fn with_shadows(&self, is_shadow: impl Fn(&PolicyScope) -> bool) -> Self {
        let mutating = self.mutating.iter().map(|policy| match policy {
            policy if is_shadow(&policy.scope) => Arc::new(MutatingPolicy::clone(policy).into_shadow()),
            policy => Arc::clone(policy),
        });
        let validating = self.validating.iter().map(|policy| match policy {
            policy if is_shadow(&policy.scope) => Arc::new(ValidatingPolicy::clone(policy).into_shadow()),
            policy => Arc::clone(policy),
        });
        Self { mutating: mutating.collect(), validating: validating.collect() }
    }
}

impl ValidatingPolicy {
    /// The same one, evaluated to compare only.
    #[must_use]
    pub fn into_shadow(self) -> Self {
        Self { scope: PolicyScope { shadow: true, ..self.scope }, ..self }
    }
}

impl MutatingPolicy {
    /// The same one, evaluated to compare only.
    #[must_use]
    pub fn into_shadow(self) -> Self {
        Self { scope: PolicyScope { shadow: true, ..self.scope }, ..self }
    }
}

/// A policy of either kind.
#[derive(Debug, Clone, Copy)]
pub enum AnyPolicy<'a> {
    /// A mutating one.
    Mutating(&'a MutatingPolicy),
    /// A validating one.
    Validating(&'a ValidatingPolicy),
}

/// A binding of a policy of either kind.
#[derive(Debug, Clone, Copy)]
pub struct AnyBinding<'a> {
    /// Its name.
    pub name: &'a str,
    /// The requests that it restricts the policy to.
    pub resources: Option<&'a MatchResources>,
    /// What follows from a validation that fails; none for a mutating policy.
    pub actions: &'a [ValidationAction],
    /// Whether the policy may change or refuse a request by it. Else it only warns, or takes note.
    pub has_effect: bool,
}

impl<'a> AnyPolicy<'a> {
    /// What it is about.
    pub fn scope(self) -> &'a PolicyScope {
        match self {
            Self::Mutating(policy) => &policy.scope,
            Self::Validating(policy) => &policy.scope,
        }
    }

    /// What puts it in force.
    pub fn bindings(self) -> Vec<AnyBinding<'a>> {
        match self {
            Self::Mutating(policy) => {
                let binding = |binding: &'a MutatingBinding| AnyBinding {
                    name: &binding.name,
                    resources: binding.resources.as_ref(),
                    actions: &[],
                    has_effect: true,
                };
                policy.bindings.iter().map(binding).collect()
            }
            Self::Validating(policy) => {
                let binding = |binding: &'a PolicyBinding| AnyBinding {
                    name: &binding.name,
                    resources: binding.resources.as_ref(),
                    actions: &binding.actions,
                    // An audit annotation that fails refuses, too.
                    has_effect: binding.actions.contains(&ValidationAction::Deny)
                        || !policy.audit_annotations.is_empty(),
                };
                policy.bindings.iter().map(binding).collect()
            }
        }
    }

    /// Whether it, or a binding, selects requests by the labels of their namespaces.
    pub fn selects_namespaces(self) -> bool {
        let of_bindings = self.bindings().into_iter().filter_map(|binding| binding.resources);
        of_bindings
            .chain([&self.scope().constraints])
            .any(|resources| !resources.namespace_selector.is_empty())
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

/// How a policy changes an object. The result of the expression is [an `Outcome::Patch`](portcullis_cel::Outcome::Patch).
// api: admissionregistration/v1, Mutation
#[derive(Debug, Clone, PartialEq)]
pub enum Mutation {
    /// The expression of an `Object`, which is merged as server-side apply does.
    ApplyConfiguration(Expression),
    /// The expression of a list of `JSONPatch`.
    JsonPatch(Expression),
}

impl Mutation {
    /// Its expression.
    pub fn expression(&self) -> &Expression {
        match self {
            Self::ApplyConfiguration(expression) | Self::JsonPatch(expression) => expression,
        }
    }
}

/// A `MutatingAdmissionPolicyBinding`.
#[derive(Debug, Clone, PartialEq)]
pub struct MutatingBinding {
    /// Its name.
    pub name: String,
    /// The requests that it restricts the policy to.
    pub resources: Option<MatchResources>,
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
