//! The values of the variables.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::access::ResourceTarget;
use super::environment::VARIABLES;
use super::libraries::authorizer;
use super::value::{Datum, GoForm, MAX_DEPTH, Numbers, RootVariable};

const AUTHORIZER: [&str; 2] = ["authorizer", "authorizer.requestResource"];
/// The values of an environment's variables; build them once for many expressions.
///
/// A value of more than 250 levels is not read: an evaluation that uses the variable ends with
/// [`Outcome::Unsupported`](crate::Outcome::Unsupported).
#[derive(Debug, Clone, Default)]
pub struct Bindings(pub(super) Vec<(&'static str, Datum)>);

impl Bindings {
    /// The variable of [`Environment::CLAIMS`](crate::Environment::CLAIMS).
    pub fn claims(claims: &serde_json::Map<String, serde_json::Value>) -> Self {
        if claims.values().any(is_too_deep) {
            return Self(vec![("claims", unread("claims"))]);
        }
        let read = |value| Datum::from_json(value, Numbers::Doubles, GoForm::Plain);
        let fields = claims.iter().map(|(name, value)| (name.clone(), read(value))).collect();
        Self(vec![("claims", root("kubernetes.claims", fields))])
    }

    /// The variable of [`Environment::USER`](crate::Environment::USER).
    pub fn user(username: &str, uid: &str, groups: &[String], extra: &BTreeMap<String, Vec<String>>) -> Self {
        let list = |items: &[String]| Datum::list(items.iter().map(|item| Datum::string(item)).collect());
        let extra = extra.iter().map(|(key, values)| (key.as_str().into(), list(values))).collect();
        let fields = [
            ("username", Datum::string(username)),
            ("uid", Datum::string(uid)),
            ("groups", list(groups)),
            ("extra", Datum::map(extra)),
        ];
        let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self(vec![("user", root("kubernetes.UserInfo", fields))])
    }

    /// Adds a variable with the value of a Kubernetes object, or of a part of one; replaces one of this name.
    #[must_use]
    pub fn with(self, name: &'static str, value: &serde_json::Value) -> Self {
        self.with_form(name, value, GoForm::Plain)
    }

    /// The same of a value which is one of a type of Go in the reference, not one of JSON: `request` and `namespaceObject`. An
    /// operation of a JSON patch cannot hold its lists and maps.
    // apiserver: pkg/cel/common/valuesschemalesstyped.go
    #[must_use]
    pub fn with_typed(self, name: &'static str, value: &serde_json::Value) -> Self {
        self.with_form(name, value, GoForm::Typed)
    }

    fn with_form(mut self, name: &'static str, value: &serde_json::Value, form: GoForm) -> Self {
        self.0.retain(|(known, _)| *known != name);
        let is_read = !is_too_deep(value);
        self.0.push((
            name,
            if is_read { Datum::from_json(value, Numbers::Integers, form) } else { unread(name) },
        ));
        self
    }

    /// The same without `authorizer`.
    #[must_use]
    pub fn without_authorizer(mut self) -> Self {
        self.0.retain(|(name, _)| !AUTHORIZER.contains(name));
        self
    }

    /// Adds `variables`: those of a policy.
    #[must_use]
    pub fn with_variables(mut self) -> Self {
        self.0.push(("variables", root(VARIABLES, BTreeMap::new())));
        self
    }

    /// Adds `authorizer`, and `authorizer.requestResource` with the attributes of the request.
    #[must_use]
    pub fn with_authorizer(mut self, request: ResourceTarget) -> Self {
        self.0.extend(AUTHORIZER.into_iter().zip(authorizer::variables(request)));
        self
    }
}

/// The value of a variable that is not read.
fn unread(name: &str) -> Datum {
    Datum::Failed(format!("{name} has more than {MAX_DEPTH} levels, which are not read here").into())
}

/// Whether a value is deeper than evaluation may recurse.
fn is_too_deep(value: &serde_json::Value) -> bool {
    exceeds(value, MAX_DEPTH)
}

/// Whether a value has so many levels below it; recurses no deeper.
fn exceeds(value: &serde_json::Value, levels: usize) -> bool {
    let Some(levels) = levels.checked_sub(1) else { return true };
    match value {
        serde_json::Value::Array(values) => values.iter().any(|value| exceeds(value, levels)),
        serde_json::Value::Object(fields) => fields.values().any(|value| exceeds(value, levels)),
        _ => false,
    }
}

fn root(type_name: &'static str, fields: BTreeMap<String, Datum>) -> Datum {
    Datum::Root(Arc::new(RootVariable { type_name, fields }))
}
