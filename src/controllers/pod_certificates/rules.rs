//! The expressions of a signer for pods: its rules, and the names of its certificates.
//!
//! Fails closed: a rule that cannot be evaluated is not satisfied, and a name that cannot be evaluated is no name.

use std::collections::BTreeSet;

use portcullis_cel::{Bindings, Environment, Expression, Value};
use portcullis_pki::issuance::pod::PodNames;

/// The variables of all expressions.
pub(crate) const ENVIRONMENT: Environment = Environment::POD_CERTIFICATE;
/// The variable whose object is read only for expressions that use it.
const NAMESPACE: &str = "namespaceObject";

/// The expressions of a signer, and the annotations that it knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodSignerRules {
    /// The keys that `spec.unverifiedUserAnnotations` may have.
    pub user_annotations: BTreeSet<String>,
    /// All must be true.
    pub rules: Vec<PodRule>,
    /// A string: the common name of the subject.
    pub common_name: Option<Expression>,
    /// A list of strings: the organizations of the subject.
    pub organizations: Option<Expression>,
    /// A list of strings.
    pub dns_names: Option<Expression>,
    /// A list of strings.
    pub uris: Option<Expression>,
}

/// A rule: what must be true of a pod that gets a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRule {
    /// A boolean.
    pub expression: Expression,
    /// Tells the author of the pod what to do; the expression if there is none.
    pub message: Option<String>,
}

impl PodSignerRules {
    /// Whether an expression may use the namespace.
    pub(super) fn uses_namespace(&self) -> bool {
        let names = [&self.common_name, &self.organizations, &self.dns_names, &self.uris];
        let rules = self.rules.iter().map(|rule| &rule.expression);
        rules.chain(names.into_iter().flatten()).any(|expression| expression.text().contains(NAMESPACE))
    }

    /// Checks the rules in order; the error says which one is not satisfied.
    // threat: pod-certificate-rules
    pub(super) fn check(&self, bindings: &Bindings) -> Result<(), String> {
        for (index, rule) in self.rules.iter().enumerate() {
            let text = rule.expression.text();
            match rule.expression.evaluate(bindings) {
                Ok(Value::Bool(true)) => {}
                Ok(_) => {
                    return Err(rule
                        .message
                        .clone()
                        .unwrap_or_else(|| format!("rule {index} of the signer is not satisfied: {text}")));
                }
                Err(error) => {
                    return Err(format!("rule {index} of the signer cannot be evaluated: {error}: {text}"));
                }
            }
        }
        Ok(())
    }

    /// The names of the certificate.
    pub(super) fn names(&self, bindings: &Bindings) -> Result<PodNames, String> {
        let common_name = self.common_name.as_ref().map(|name| string("commonName", name, bindings));
        let list = |key, names: &Option<Expression>| {
            names.as_ref().map_or(Ok(Vec::new()), |names| strings(key, names, bindings))
        };
        let names = PodNames::new(
            common_name.transpose()?,
            list("organizations", &self.organizations)?,
            list("dnsNames", &self.dns_names)?,
            list("uris", &self.uris)?,
        );
        names.map_err(|error| error.to_string())
    }
}

fn evaluated(key: &str, expression: &Expression, bindings: &Bindings) -> Result<Value, String> {
    expression.evaluate(bindings).map_err(|error| format!("{key} cannot be evaluated: {error}"))
}

fn string(key: &str, expression: &Expression, bindings: &Bindings) -> Result<String, String> {
    match evaluated(key, expression, bindings)? {
        Value::String(text) => Ok(text),
        other => Err(format!("{key} is {}, not a string", kind(&other))),
    }
}

fn strings(key: &str, expression: &Expression, bindings: &Bindings) -> Result<Vec<String>, String> {
    let items = match evaluated(key, expression, bindings)? {
        Value::List(items) => items,
        other => return Err(format!("{key} is {}, not a list of strings", kind(&other))),
    };
    let text = |item| match item {
        Value::String(text) => Ok(text),
        other => Err(format!("{key} has an element that is {}, not a string", kind(&other))),
    };
    items.into_iter().map(text).collect()
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "a boolean".to_owned(),
        Value::String(_) => "a string".to_owned(),
        Value::List(_) => "a list".to_owned(),
        Value::Other(name) => format!("of the type {name}"),
    }
}
