//! Validating policies.

use portcullis_kubernetes::field::{FieldError, json_string, json_strings};
use portcullis_kubernetes::strict::{self, DecodeError};
use serde_json::Value;

use super::{FolderPolicy, ReadBinding, ReadPolicy, Scoped, wire};
use crate::configuration::ValidationContext;
use crate::configuration::validation::Validator;
use crate::policy::{PolicyBinding, PolicyKind, ValidatingPolicy, ValidationAction};

impl FolderPolicy for ValidatingPolicy {
    type Binding = PolicyBinding;

    const KINDS: [&'static str; 2] = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];

    // validateValidatingAdmissionPolicy
    fn read(object: &Value, context: &mut ValidationContext) -> Result<ReadPolicy<Self>, DecodeError> {
        let wire::Policy { metadata, spec, .. } = strict::decode(object, |_| {})?;
        let mut validator = Validator::of_object(&metadata, context);
        let Scoped { variables, scope } =
            validator.scope((PolicyKind::Validating, &metadata.name), spec.scope(), spec.expressions());
        let validations = validator.validations(&spec, &variables);
        let audit_annotations = validator.audit_annotations(&metadata.name, &spec, &variables);
        let policy = scope.map(|scope| Self { scope, validations, audit_annotations, bindings: Vec::new() });
        let has_parameters = spec.param_kind.is_some();
        Ok(ReadPolicy { validated: validator.result(policy), name: metadata.name, has_parameters })
    }
    // validateValidatingAdmissionPolicyBinding
    fn read_binding(
        object: &Value,
        context: &mut ValidationContext,
    ) -> Result<ReadBinding<PolicyBinding>, DecodeError> {
        let wire::Binding { metadata, spec, .. } = strict::decode(object, |_| {})?;
        let mut validator = Validator::of_object(&metadata, context);
        let (parameters, resources) = (spec.param_ref.as_ref(), spec.match_resources.as_ref());
        let resources = validator.bound(&spec.policy_name, parameters, resources);
        let actions = validator.validation_actions(&spec.validation_actions, "spec.validationActions");
        let binding = PolicyBinding { name: metadata.name.clone(), resources, actions };
        Ok(ReadBinding {
            validated: validator.result(Some(binding)),
            name: metadata.name,
            has_parameters: parameters.is_some(),
            policy: spec.policy_name,
        })
    }

    fn bind(&mut self, binding: PolicyBinding) {
        self.bindings.push(binding);
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
            let given = json_strings(names);
            self.errors.push(FieldError::invalid_json(field, &given, problem).fix(fix));
        }
        if names.is_empty() {
            self.errors
                .push(FieldError::required(field, "at least one validation action is required").fix(fix));
        }
        actions
    }
}
