//! The expressions of a policy.

use portcullis_cel::{CompileError, Environment, Expression, ResultType, Variables, is_identifier};
use portcullis_kubernetes::field::{FieldError, json_string};
use portcullis_kubernetes::labels::label_key_errors;

use super::wire::{PolicySpec, ScopeSpec, WireValidation};
use crate::configuration::validation::Validator;
use crate::policy::{AuditAnnotation, Reason, Validation};

const MAX_AUDIT_ANNOTATIONS: usize = 20;
const MAX_VALUE_EXPRESSION_BYTES: usize = 5 * 1024;
const EXPRESSION_FIX: &str =
    "give a CEL expression over object, oldObject, request, namespaceObject, authorizer and variables";

impl Validator<'_> {
    /// The variables. One with an error is known to the expressions after it, as upstream.
    // validateVariable
    pub(super) fn variables(&mut self, spec: ScopeSpec<'_>) -> Variables {
        let mut variables = Variables::default();
        for (index, variable) in spec.variables.iter().enumerate() {
            let field = |name: &str| format!("spec.variables[{index}].{name}");
            let (name, text) = (&variable.name, &variable.expression);
            let fix = "give a name such as replicas, which expressions use as variables.replicas";
            if name.trim().is_empty() {
                self.errors.push(FieldError::required(field("name"), "name is not specified").fix(fix));
            } else if !is_identifier(name) {
                let problem = "must be a valid CEL identifier";
                self.errors.push(FieldError::invalid(field("name"), name, problem).fix(fix));
            } else if variables.contains(name) {
                // Upstream takes the last one for all, also where an expression between them means the first.
                let error = FieldError::duplicate(field("name"), name);
                self.errors.push(error.fix("give each variable a name of its own"));
                continue;
            }
            if text.trim().is_empty() {
                let error = FieldError::required(field("expression"), "expression is not specified");
                self.errors.push(error.fix(EXPRESSION_FIX));
                continue;
            }
            let environment = self.environment(spec, Environment::ADMISSION);
            if let Err(error) = variables.add(name, text, environment) {
                self.uncompiled(&field("expression"), text, &error);
            }
        }
        variables
    }

    /// The environment of an expression. `variables` is only declared if there are any.
    fn environment(&self, spec: ScopeSpec<'_>, environment: Environment) -> Environment {
        // A policy with parameters is refused for these, and not for its expressions.
        let environment = if spec.param_kind.is_some() { Environment::POLICY } else { environment };
        let environment = self.context.of_release(environment);
        if spec.variables.is_empty() { environment } else { environment.composed() }
    }

    fn uncompiled(&mut self, field: &str, text: &str, error: &CompileError) {
        let fix = error.fix().unwrap_or(EXPRESSION_FIX).to_owned();
        self.errors.push(FieldError::invalid(field, text, &error.to_string()).fix(fix));
    }

    fn compiled(
        &mut self,
        (field, text): (&str, &str),
        variables: &Variables,
        environment: Environment,
        result: ResultType,
    ) -> Option<Expression> {
        match variables.compile(text, environment, result) {
            Ok(expression) => Some(expression),
            Err(error) => {
                self.uncompiled(field, text, &error);
                None
            }
        }
    }

    /// The expression of a patch. kube-apiserver validates it without the blanks around it, and evaluates it with them.
    // validateApplyConfiguration, validateJSONPatch
    pub(super) fn patch_expression(
        &mut self,
        (field, text): (&str, &str),
        variables: &Variables,
        spec: ScopeSpec<'_>,
        result: ResultType,
    ) -> Option<Expression> {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return self.fail(FieldError::required(field, "").fix(match result {
                ResultType::JsonPatch => "give a CEL expression of a list such as [JSONPatch{op: 'add', path: '/spec/a', value: 1}]",
                _ => "give a CEL expression of an object such as Object{spec: Object.spec{a: 1}}",
            }));
        }
        let environment = match spec.param_kind {
            Some(_) => Environment::MUTATION,
            None => Environment::MUTATION_WITHOUT_PARAMS,
        };
        // `variables` is declared also if there are none, unlike in a validating policy.
        let environment = self.context.of_release(environment).composed();
        let compiled = self.compiled((field, trimmed), variables, environment, result)?;
        if trimmed.len() == text.len() {
            return Some(compiled);
        }
        self.compiled((field, text), variables, environment, result)
    }

    pub(super) fn validations(&mut self, spec: &PolicySpec, variables: &Variables) -> Vec<Validation> {
        if spec.validations.is_empty() && spec.audit_annotations.is_empty() {
            let problem = "validations or auditAnnotations must contain at least one item";
            for field in ["spec.validations", "spec.auditAnnotations"] {
                self.errors
                    .push(FieldError::required(field, problem).fix("give a validation with an expression"));
            }
        }
        let validations = spec.validations.iter().enumerate();
        validations
            .filter_map(|(index, validation)| {
                self.validation(validation, spec, variables, &format!("spec.validations[{index}]"))
            })
            .collect()
    }

    // validateValidation
    fn validation(
        &mut self,
        validation: &WireValidation,
        spec: &PolicySpec,
        variables: &Variables,
        field: &str,
    ) -> Option<Validation> {
        let field = |name: &str| format!("{field}.{name}");
        let WireValidation { expression: text, message, reason, message_expression } = validation;
        let expression = if text.trim().is_empty() {
            let error = FieldError::required(field("expression"), "expression is not specified");
            self.fail(error.fix(EXPRESSION_FIX))
        } else {
            let environment = self.environment(spec.scope(), Environment::ADMISSION);
            self.compiled((&field("expression"), text), variables, environment, ResultType::Bool)
        };
        let empty = "must be non-empty if specified";
        let message_expression = if message_expression.is_empty() {
            None
        } else if message_expression.trim().is_empty() {
            let error = FieldError::invalid(field("messageExpression"), message_expression, empty);
            self.fail(error.fix("remove it, or give an expression of a text"))
        } else {
            let environment = self.environment(spec.scope(), Environment::MESSAGE);
            let at = field("messageExpression");
            self.compiled((&at, message_expression), variables, environment, ResultType::String)
        };
        let trimmed = message.trim();
        if !message.is_empty() && trimmed.is_empty() {
            self.errors
                .push(FieldError::invalid(field("message"), message, empty).fix("remove it, or give a text"));
        } else if trimmed.contains(['\n', '\r']) {
            let error = FieldError::invalid(field("message"), message, "must not contain line breaks");
            self.errors.push(error.fix("give a text of one line"));
        }
        let reasons = [
            ("Forbidden", Reason::Forbidden),
            ("Invalid", Reason::Invalid),
            ("RequestEntityTooLarge", Reason::RequestEntityTooLarge),
        ];
        let reason = self.choice(reason.as_deref(), Reason::Invalid, &reasons, &field("reason"));
        Some(Validation {
            expression: expression?,
            message: message.clone(),
            message_expression,
            reason: reason?,
        })
    }

    // validateAuditAnnotation
    pub(super) fn audit_annotations(
        &mut self,
        policy: &str,
        spec: &PolicySpec,
        variables: &Variables,
    ) -> Vec<AuditAnnotation> {
        let given = &spec.audit_annotations;
        if given.len() > MAX_AUDIT_ANNOTATIONS {
            let items: Vec<String> = given.iter().map(wire_json).collect();
            let problem = format!("must not have more than {MAX_AUDIT_ANNOTATIONS} auditAnnotations");
            let error = FieldError::invalid_json(
                "spec.auditAnnotations",
                &format!("[{}]", items.join(",")),
                &problem,
            );
            self.errors.push(error.fix("join values in one annotation"));
        }
        let mut annotations = Vec::new();
        for (index, annotation) in given.iter().enumerate() {
            let field = |name: &str| format!("spec.auditAnnotations[{index}].{name}");
            let (key, text) = (&annotation.key, &annotation.value_expression);
            if policy.is_empty() {
                let problem = "requires metadata.name be non-empty";
                self.errors.push(FieldError::invalid(field("key"), key, problem).fix("give metadata.name"));
            } else {
                label_key_errors(&format!("{policy}/{key}"), &field("key"), &mut self.errors);
            }
            let at = field("valueExpression");
            let trimmed = text.trim();
            if trimmed.is_empty() {
                let error = FieldError::required(at, "valueExpression is not specified");
                self.errors.push(error.fix("give an expression of a text, or of null"));
            } else if trimmed.len() > MAX_VALUE_EXPRESSION_BYTES {
                let problem = format!("must not exceed {MAX_VALUE_EXPRESSION_BYTES} bytes in length");
                self.errors.push(FieldError::required(at, &problem).fix("give a shorter expression"));
            } else {
                let environment = self.environment(spec.scope(), Environment::ADMISSION);
                match variables.compile(trimmed, environment, ResultType::StringOrNull) {
                    Ok(value) => annotations.push(AuditAnnotation { key: key.clone(), value }),
                    Err(error) => self.uncompiled(&at, text, &error),
                }
            }
            if given.iter().take(index).any(|before| before.key == *key) {
                let error = FieldError::duplicate(field("key"), key);
                self.errors.push(error.fix("give each annotation a key of its own"));
            }
        }
        annotations
    }
}

/// An annotation as the reference's error shows it.
fn wire_json(annotation: &super::wire::WireAuditAnnotation) -> String {
    let (key, value) = (json_string(&annotation.key), json_string(&annotation.value_expression));
    format!("{{\"Key\":{key},\"ValueExpression\":{value}}}")
}
