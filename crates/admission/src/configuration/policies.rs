//! Policies and bindings: decoding, defaults and validation, with kube-apiserver's errors.
//!
//! Follows `k8s.io/kubernetes/pkg/apis/admissionregistration/validation/validation.go` and `pkg/apis/admissionregistration/v1/defaults.go`.

mod expressions;
mod mutating;
mod resources;
mod validating;
mod wire;

use std::sync::Arc;

use portcullis_cel::Variables;
use portcullis_kubernetes::field::FieldError;
use portcullis_kubernetes::metadata::{ObjectMeta, cluster_object_errors};
use portcullis_kubernetes::names::dns_subdomain_problems;
use portcullis_kubernetes::strict::DecodeError;
use serde_json::Value;

use super::ValidationContext;
use super::validation::Validator;
use crate::FailurePolicy;
use crate::policy::{MatchResources, PolicyKind, PolicyScope};
use wire::{ParamRef, ScopeSpec, WireMatchResources};

/// The variable with the namespace of the request.
const NAMESPACE_OBJECT: &str = "namespaceObject";

/// The policies of a folder: of one kind, with the kind of their bindings.
pub trait FolderPolicy: Sized {
    /// A binding.
    type Binding;

    /// The kinds of a policy and of a binding.
    const KINDS: [&'static str; 2];

    /// Decodes a policy strictly, without bindings, and validates it. Does not look at its kind.
    fn read(object: &Value, context: &mut ValidationContext) -> Result<ReadPolicy<Self>, DecodeError>;

    /// Decodes a binding strictly, and validates it. Does not look at its kind.
    fn read_binding(
        object: &Value,
        context: &mut ValidationContext,
    ) -> Result<ReadBinding<Self::Binding>, DecodeError>;

    /// Puts the policy in force.
    fn bind(&mut self, binding: Self::Binding);
}

/// A decoded policy.
#[derive(Debug)]
pub struct ReadPolicy<P> {
    pub(super) name: String,
    /// Whether it has parameters, which a policy of a file may not have.
    pub(super) has_parameters: bool,
    /// The policy with defaults; or every error.
    pub(super) validated: Result<P, Vec<FieldError>>,
}

/// A decoded binding.
#[derive(Debug)]
pub struct ReadBinding<B> {
    pub(super) name: String,
    /// The policy that it puts in force.
    pub(super) policy: String,
    /// Whether it names parameters, which a binding of a file may not do.
    pub(super) has_parameters: bool,
    /// The binding with defaults; or every error.
    pub(super) validated: Result<B, Vec<FieldError>>,
}

/// What policies of both kinds have.
struct Scoped {
    variables: Arc<Variables>,
    /// `None` if it has an error.
    scope: Option<PolicyScope>,
}

impl<'a> Validator<'a> {
    /// Begins with the metadata of an object.
    fn of_object(metadata: &ObjectMeta, context: &'a mut ValidationContext) -> Self {
        Self { errors: cluster_object_errors(metadata, "metadata", context.release), context }
    }

    /// What policies of both kinds have. `expressions` are those that may use the namespace of the request, but for those of the
    /// variables.
    // validateValidatingAdmissionPolicySpec, validateMutatingAdmissionPolicySpec
    fn scope<'s>(
        &mut self,
        (kind, name): (PolicyKind, &str),
        spec: ScopeSpec<'s>,
        expressions: impl Iterator<Item = &'s str>,
    ) -> Scoped {
        let policies = [("Fail", FailurePolicy::Fail), ("Ignore", FailurePolicy::Ignore)];
        let failure_policy =
            self.choice(spec.failure_policy, FailurePolicy::Fail, &policies, "spec.failurePolicy");
        if let Some(kind) = spec.param_kind {
            self.param_kind(kind, "spec.paramKind");
        }
        let constraints = match spec.match_constraints {
            Some(constraints) => self.match_resources(constraints, "spec.matchConstraints"),
            None => self.fail(
                FieldError::required("spec.matchConstraints", "")
                    .fix("give resourceRules with the requests that the policy is about"),
            ),
        };
        if spec.match_constraints.is_some_and(|constraints| constraints.resource_rules.is_empty()) {
            let error = FieldError::required("spec.matchConstraints.resourceRules", "");
            self.errors.push(error.fix("give the requests that the policy is about"));
        }
        let match_conditions = self.match_conditions(spec.match_conditions, "spec.matchConditions");
        let variables = Arc::new(self.variables(spec));
        let mut expressions = expressions.chain(spec.variables.iter().map(|of| of.expression.as_str()));
        let uses_namespace = expressions.any(|text| text.contains(NAMESPACE_OBJECT));
        let scope = failure_policy.zip(constraints).map(|(failure_policy, constraints)| PolicyScope {
            kind,
            name: name.to_owned(),
            failure_policy,
            constraints,
            match_conditions,
            variables: Arc::clone(&variables),
            uses_namespace,
            shadow: false,
        });
        Scoped { variables, scope }
    }

    /// What bindings of both kinds have: the policy, parameters and the requests.
    fn bound(
        &mut self,
        policy: &str,
        parameters: Option<&ParamRef>,
        resources: Option<&WireMatchResources>,
    ) -> Option<MatchResources> {
        let fix = "give the metadata.name of the policy";
        if policy.is_empty() {
            self.errors.push(FieldError::required("spec.policyName", "").fix(fix));
        }
        for problem in dns_subdomain_problems(policy).iter().filter(|_| !policy.is_empty()) {
            self.errors.push(FieldError::invalid("spec.policyName", policy, problem).fix(fix));
        }
        if let Some(reference) = parameters {
            self.param_ref(reference, "spec.paramRef");
        }
        resources.and_then(|resources| self.match_resources(resources, "spec.matchResources"))
    }

    /// What was validated, or every error.
    fn result<T>(self, validated: Option<T>) -> Result<T, Vec<FieldError>> {
        match validated {
            Some(validated) if self.errors.is_empty() => Ok(validated),
            _ => Err(self.errors),
        }
    }
}
