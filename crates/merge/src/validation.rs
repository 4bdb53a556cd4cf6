//! Whether a value is of a type, and which of its parts are atomic.
//!
//! Follows structured-merge-diff: `typed/validate.go`, and kube-apiserver's `admission/plugin/policy/mutating/patch/smd.go`,
//! `findAtomics`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Map as JsonMap, Value};

use crate::element::{Element, Identity};
use crate::errors::Faults;
use crate::schema::{List, Map, Relationship, Resolved, Scalar, TypeRef, Types};
use crate::text::{Plain, Syntax, type_name};

/// The most bytes of paths to atomic parts that are kept.
const MAX_PATHS: usize = 1 << 20;

/// The rules of a validation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Validation<'a> {
    pub(crate) types: &'a Types,
    /// Whether elements of associative lists may have the same identity.
    pub(crate) allow_duplicates: bool,
}

impl Validation<'_> {
    /// What is wrong with a value of a type.
    pub(crate) fn faults(self, kind: &TypeRef, value: &Value) -> Faults {
        let Some(resolved) = self.types.resolve(kind) else {
            return unresolved(self.types, kind);
        };
        let Resolved { scalar, list, map } = resolved.for_value(value);
        // The order of structured-merge-diff's handleAtom: it decides which fault a value of a wrong kind has.
        if let Some((map, _)) = map {
            match value {
                Value::Null => Faults::default(),
                Value::Object(fields) => self.map_faults(map, fields),
                _ => Faults::one(format!("expected map, got {}", held(value))),
            }
        } else if let Some(scalar) = scalar {
            scalar_fault(scalar, value).map(Faults::one).unwrap_or_default()
        } else if let Some((list, relationship)) = list {
            match value {
                Value::Null => Faults::default(),
                Value::Array(items) => self.list_faults(list, relationship, items),
                _ => Faults::one(format!("expected list, got {}", held(value))),
            }
        } else {
            invalid_atom(self.types, kind)
        }
    }

    fn map_faults(self, map: &Map, fields: &JsonMap<String, Value>) -> Faults {
        let mut faults = Faults::default();
        for (name, value) in fields {
            let kind = map.type_of(name);
            if matches!(kind, TypeRef::Nothing) {
                let undeclared = Faults::one("field not declared in schema".to_owned());
                faults.append(undeclared.within(&Element::Field(name)));
                // The other fields are not looked at.
                return faults;
            }
            faults.append(self.faults(kind, value).within(&Element::Field(name)));
        }
        faults
    }

    fn list_faults(self, list: &List, relationship: Relationship, items: &[Value]) -> Faults {
        let mut faults = Faults::default();
        let mut seen = BTreeSet::new();
        for (index, item) in items.iter().enumerate() {
            let item_faults = || self.faults(&list.element, item);
            if relationship != Relationship::Associative {
                faults.append(item_faults().within(&Element::Index(index)));
                continue;
            }
            let identity = match Identity::of(self.types, list, relationship, item) {
                Ok(identity) => identity,
                Err(why) => {
                    faults.append(Faults::one(format!("element {index}: {why}")));
                    return faults;
                }
            };
            if !self.allow_duplicates && seen.contains(&identity) {
                faults.append(Faults::one(format!("duplicate entries for key {identity}")));
            }
            faults.append(item_faults().within(&identity));
            seen.insert(identity);
        }
        faults
    }
}

/// The fault of a scalar, if it has one.
pub(crate) fn scalar_fault(scalar: Scalar, value: &Value) -> Option<String> {
    match (scalar, value) {
        (_, Value::Null)
        | (Scalar::Numeric, Value::Number(_))
        | (Scalar::String, Value::String(_))
        | (Scalar::Boolean, Value::Bool(_))
        | (Scalar::Untyped, Value::Number(_) | Value::String(_) | Value::Bool(_)) => None,
        (Scalar::Numeric, _) => Some(format!("expected numeric (int or float), got {}", type_name(value))),
        (Scalar::String, _) => {
            Some(format!("expected string, got &value.valueUnstructured{{Value:{}}}", Syntax(value)))
        }
        (Scalar::Boolean, _) => Some(format!("expected boolean, got {}", held(value))),
        (Scalar::Untyped, _) => Some(format!("expected any scalar, got {}", held(value))),
    }
}

/// A value as Go prints what structured-merge-diff holds it in.
fn held(value: &Value) -> String {
    format!("&{{{}}}", Plain(value))
}

pub(crate) fn unresolved(types: &Types, kind: &TypeRef) -> Faults {
    let name = types.name(kind).unwrap_or("inlined type");
    Faults::one(format!("schema error: no type found matching: {name}"))
}

pub(crate) fn invalid_atom(types: &Types, kind: &TypeRef) -> Faults {
    let name = types.name(kind).map_or_else(|| "inlined".to_owned(), |name| format!("named type: {name}"));
    Faults::one(format!("schema error: invalid atom: {name}"))
}

/// The paths of the atomic lists and maps that a valid value sets, each before those in it; nothing if there are none.
// kube-apiserver looks into declared fields alone, not into those that a map has by `additionalProperties`.
pub(crate) fn atomic_paths(types: &Types, kind: &TypeRef, value: &Value) -> String {
    let mut search = AtomicSearch { types, path: String::new(), found: String::new() };
    search.visit(kind, value);
    search.found
}

struct AtomicSearch<'a> {
    types: &'a Types,
    path: String,
    found: String,
}

impl AtomicSearch<'_> {
    fn visit(&mut self, kind: &TypeRef, value: &Value) {
        let Some(resolved) = self.types.resolve(kind) else { return };
        match (value, resolved.map, resolved.list) {
            (Value::Object(fields), Some((map, relationship)), _) => {
                self.note(relationship);
                for (name, value) in fields {
                    if let Some(field) = map.field(name) {
                        self.descend(&Element::Field(name), &field.kind, value);
                    }
                }
            }
            (Value::Array(items), _, Some((list, relationship))) => {
                self.note(relationship);
                for (index, item) in items.iter().enumerate() {
                    self.descend(&Element::Index(index), &list.element, item);
                }
            }
            _ => {}
        }
    }

    fn descend(&mut self, element: &Element<'_>, kind: &TypeRef, value: &Value) {
        let length = self.path.len();
        // Writing into a string does not fail.
        let _ = write!(self.path, "{element}");
        self.visit(kind, value);
        self.path.truncate(length);
    }

    fn note(&mut self, relationship: Relationship) {
        if relationship != Relationship::Atomic || self.found.len() > MAX_PATHS {
            return;
        }
        if !self.found.is_empty() {
            self.found.push_str(", ");
        }
        self.found.push_str(&self.path);
    }
}
