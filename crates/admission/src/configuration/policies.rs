//! Policies and bindings: decoding, defaults and validation, with kube-apiserver's errors.
//!
//! Follows `k8s.io/kubernetes/pkg/apis/admissionregistration/validation/validation.go` and `pkg/apis/admissionregistration/v1/defaults.go`.

mod expressions;
mod resources;
mod wire;

use portcullis_kubernetes::field::{FieldError, json_string};
use portcullis_kubernetes::metadata::cluster_object_errors;
use portcullis_kubernetes::names::dns_subdomain_problems;
use portcullis_kubernetes::strict::{self, DecodeError};
use serde_json::Value;

use super::ValidationContext;
use super::validation::Validator;
use crate::FailurePolicy;
use crate::policy::{PolicyBinding, ValidatingPolicy, ValidationAction};

/// The variable with the namespace of the request.
const NAMESPACE_OBJECT: &str = "namespaceObject";

/// A decoded policy, not validated yet.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Policy(wire::Policy);

/// A decoded binding, not validated yet.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Binding(wire::Binding);

impl Policy {
    /// Decodes a policy strictly. Does not look at its kind.
    pub(super) fn decode(object: &Value) -> Result<Self, DecodeError> {
        Ok(Self(strict::decode(object, |_| {})?))
    }

    /// The name of the object.
    pub(super) fn name(&self) -> &str {
        &self.0.metadata.name
    }

    /// Whether it has parameters, which a policy of a file may not have.
    pub(super) fn has_parameters(&self) -> bool {
        self.0.spec.param_kind.is_some()
    }

    /// The policy without bindings, with defaults; or every error.
    // validateValidatingAdmissionPolicy
    pub(super) fn validated(
        &self,
        context: &mut ValidationContext,
    ) -> Result<ValidatingPolicy, Vec<FieldError>> {
        let wire::Policy { metadata, spec, .. } = &self.0;
        let errors = cluster_object_errors(metadata, "metadata", context.release);
        let mut validator = Validator { errors, context };
        let policies = [("Fail", FailurePolicy::Fail), ("Ignore", FailurePolicy::Ignore)];
        let failure_policy = validator.choice(
            spec.failure_policy.as_deref(),
            FailurePolicy::Fail,
            &policies,
            "spec.failurePolicy",
        );
        if let Some(kind) = &spec.param_kind {
            validator.param_kind(kind, "spec.paramKind");
        }
        let constraints = match &spec.match_constraints {
            Some(constraints) => validator.match_resources(constraints, "spec.matchConstraints"),
            None => validator.fail(
                FieldError::required("spec.matchConstraints", "")
                    .fix("give resourceRules with the requests that the policy is about"),
            ),
        };
        if spec.match_constraints.as_ref().is_some_and(|constraints| constraints.resource_rules.is_empty()) {
            let error = FieldError::required("spec.matchConstraints.resourceRules", "");
            validator.errors.push(error.fix("give the requests that the policy is about"));
        }
        let match_conditions = validator.match_conditions(&spec.match_conditions, "spec.matchConditions");
        let variables = validator.variables(spec);
        let validations = validator.validations(spec, &variables);
        let audit_annotations = validator.audit_annotations(&metadata.name, spec, &variables);
        let Validator { errors, .. } = validator;
        let uses_namespace = spec.expressions().any(|text| text.contains(NAMESPACE_OBJECT));
        match (failure_policy, constraints) {
            (Some(failure_policy), Some(constraints)) if errors.is_empty() => Ok(ValidatingPolicy {
                name: metadata.name.clone(),
                failure_policy,
                constraints,
                match_conditions,
                variables: variables.into(),
                validations,
                audit_annotations,
                uses_namespace,
                bindings: Vec::new(),
                shadow: false,
            }),
            _ => Err(errors),
        }
    }
}

impl Binding {
    /// Decodes a binding strictly. Does not look at its kind.
    pub(super) fn decode(object: &Value) -> Result<Self, DecodeError> {
        Ok(Self(strict::decode(object, |_| {})?))
    }

    /// The name of the object.
    pub(super) fn name(&self) -> &str {
        &self.0.metadata.name
    }

    /// The policy that it puts in force.
    pub(super) fn policy(&self) -> &str {
        &self.0.spec.policy_name
    }

    /// Whether it names parameters, which a binding of a file may not do.
    pub(super) fn has_parameters(&self) -> bool {
        self.0.spec.param_ref.is_some()
    }

    /// The binding with defaults; or every error.
    // validateValidatingAdmissionPolicyBinding
    pub(super) fn validated(
        &self,
        context: &mut ValidationContext,
    ) -> Result<PolicyBinding, Vec<FieldError>> {
        let wire::Binding { metadata, spec, .. } = &self.0;
        let errors = cluster_object_errors(metadata, "metadata", context.release);
        let mut validator = Validator { errors, context };
        let fix = "give the metadata.name of the policy";
        if spec.policy_name.is_empty() {
            validator.errors.push(FieldError::required("spec.policyName", "").fix(fix));
        }
        for problem in
            dns_subdomain_problems(&spec.policy_name).iter().filter(|_| !spec.policy_name.is_empty())
        {
            validator
                .errors
                .push(FieldError::invalid("spec.policyName", &spec.policy_name, problem).fix(fix));
        }
        if let Some(reference) = &spec.param_ref {
            validator.param_ref(reference, "spec.paramRef");
        }
        let resources = spec.match_resources.as_ref();
        let resources =
            resources.map(|resources| validator.match_resources(resources, "spec.matchResources"));
        let actions = validator.validation_actions(&spec.validation_actions, "spec.validationActions");
        let Validator { errors, .. } = validator;
        if errors.is_empty() {
            Ok(PolicyBinding { name: metadata.name.clone(), resources: resources.flatten(), actions })
        } else {
            Err(errors)
        }
    }
}

impl Validator<'_> {
    // validateValidationActions
    fn validation_actions(&mut self, names: &[String], field: &str) -> Vec<ValidationAction> {
        let known = [ValidationAction::Audit, ValidationAction::Deny, ValidationAction::Warn];
        let fix = "give [Deny], [Warn], [Audit], [Deny, Audit] or [Warn, Audit]";
        let mut actions = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let at = format!("{field}[{index}]");
            match known.iter().find(|action| action.as_str() == name) {
                Some(action) => actions.push(*action),
                None => self.errors.push(FieldError::not_supported_json(
                    &at,
                    &json_string(name),
                    &known.map(ValidationAction::as_str),
                )),
            }
            if names.iter().take(index).any(|before| before == name) {
                self.errors.push(FieldError::duplicate(at, name).fix("remove one"));
            }
        }
        if actions.contains(&ValidationAction::Deny) && actions.contains(&ValidationAction::Warn) {
            let problem = "must not contain both Deny and Warn (repeating the same validation failure information in the \
                           API response and headers serves no purpose)";
            let given = portcullis_kubernetes::field::json_strings(names);
            self.errors.push(FieldError::invalid_json(field, &given, problem).fix(fix));
        }
        if names.is_empty() {
            self.errors
                .push(FieldError::required(field, "at least one validation action is required").fix(fix));
        }
        actions
    }
}
