//! What expressions know of the `variables` of a policy: their types when they are compiled, their values when they are evaluated.
// apiserver: pkg/admission/plugin/cel/composition.go

use std::collections::BTreeMap;

use super::evaluation::Halt;
use super::types::Type;
use super::value::{Datum, unescape};

/// The types of variables, in the order of their declaration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct VariableTypes(Vec<(String, Type)>);

/// The values of variables that one evaluation of several expressions knows so far, or their errors.
#[derive(Debug, Clone, Default)]
pub struct VariableValues {
    by_name: BTreeMap<String, Result<Datum, String>>,
    /// Whether the cost limit has ended the evaluation of one that the reference might have finished.
    pub has_ended_early: bool,
}

impl VariableTypes {
    /// Declares a variable whose expression has a result of this type.
    pub(super) fn add(&mut self, name: &str, result: &Type) {
        self.0.push((name.to_owned(), declared(result)));
    }

    /// The type of a field of `variables`.
    pub(super) fn get(&self, name: &str) -> Option<&Type> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, kind)| kind)
    }

    /// The names of the variables.
    pub(super) fn names(&self) -> String {
        let names: Vec<&str> = self.0.iter().map(|(name, _)| name.as_str()).collect();
        names.join(", ")
    }
}

impl VariableValues {
    /// Keeps the value of a variable.
    pub(super) fn know(&mut self, name: &str, value: Datum) {
        self.by_name.insert(name.to_owned(), Ok(value));
    }

    /// Has each use of a variable fail.
    pub fn fail(&mut self, name: &str, error: &str) {
        let text = format!("composited variable {name:?} fails to evaluate: {error}");
        self.by_name.insert(name.to_owned(), Err(text));
    }

    /// The value of the variable that an expression selects.
    pub(super) fn selected(&self, field: &str) -> Result<Datum, Halt> {
        let Some(name) = unescape(field) else { return Err(no_such_key(field)) };
        match self.by_name.get(&name) {
            Some(Ok(value)) => Ok(value.clone()),
            Some(Err(text)) => Err(Halt::Error(text.clone())),
            None => Err(Halt::Variable(name)),
        }
    }
}

fn no_such_key(field: &str) -> Halt {
    Halt::Error(format!("no such key: {field}"))
}

/// The type of a variable as later expressions see it: only plain types, lists and maps are known.
// composition.go — convertCelTypeToDeclType
fn declared(kind: &Type) -> Type {
    if matches!(kind, Type::Declared(_)) {
        return Type::DYN;
    }
    let (name, parameters) = kind.parts();
    match (name, parameters) {
        ("list", [element]) => Type::list(declared(element)),
        ("map", [key, value]) => Type::map(declared(key), declared(value)),
        (
            "any" | "bool" | "bytes" | "double" | "duration" | "int" | "null_type" | "string" | "timestamp"
            | "uint",
            _,
        ) => kind.clone(),
        _ => Type::DYN,
    }
}
