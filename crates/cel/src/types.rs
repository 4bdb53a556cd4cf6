//! The types of the checker, and assignability between them.
//!
//! Follows the reference's checker: it solves type parameters by unification, `dyn` and `any` are assignable to and
//! from everything, `null` to object types.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::declared::{Declared, ObjectFields};
use super::value::{Datum, RESERVED, escape, unescape};

/// The types that an expression may name, with their names in the checker.
const TYPE_NAMES: [(&str, &str); 15] = [
    ("bool", "bool"),
    ("bytes", "bytes"),
    ("double", "double"),
    ("google.protobuf.Duration", "duration"),
    ("google.protobuf.Timestamp", "timestamp"),
    ("int", "int"),
    ("list", "list"),
    ("map", "map"),
    ("net.CIDR", "net.CIDR"),
    ("net.IP", "net.IP"),
    ("null_type", "null_type"),
    ("optional_type", "optional_type"),
    ("string", "string"),
    ("type", "type"),
    ("uint", "uint"),
];

/// The type with this name, if any.
pub(super) fn type_named(name: &str) -> Option<&'static str> {
    TYPE_NAMES.iter().find(|(known, _)| *known == name).map(|(known, _)| *known)
}

/// The most bytes of names of fields that an error shows.
const MAX_SHOWN_NAMES: usize = 300;

/// A type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Type {
    /// A named type; `list`, `map`, `optional_type` and `type` have parameters.
    Named(&'static str, Vec<Self>),
    /// The type of an object that an expression makes: `Object`, or a path of fields from it.
    Object(Arc<str>),
    /// The type of an object whose fields are declared.
    Declared(DeclaredObject),
    /// An unsolved type parameter.
    Parameter(u32),
}

/// An object whose fields are declared, with the name of its type: a kind, and the path of fields from it.
#[derive(Debug, Clone)]
pub(super) struct DeclaredObject {
    name: Arc<str>,
    fields: Arc<dyn ObjectFields>,
}

/// A name has one type.
impl PartialEq for DeclaredObject {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for DeclaredObject {}

impl DeclaredObject {
    /// The type of a field by its name in an expression, where special characters and reserved words are escaped; reserved words may
    /// also stand for themselves.
    // apiserver: pkg/cel/types.go — FindStructFieldType
    pub(super) fn field(&self, field: &str) -> Option<Type> {
        let name = unescape(field).filter(|name| escape(name).is_some_and(|escaped| escaped == field));
        let found = name.and_then(|name| self.fields.field(&name)).map(|found| (field.to_owned(), found));
        let reserved = || RESERVED.contains(&field).then(|| self.fields.field(field)).flatten();
        let (escaped, found) = found.or_else(|| Some((format!("__{field}__"), reserved()?)))?;
        Some(Type::declared(&format!("{}.{escaped}", self.name), &found))
    }

    /// The names of the fields, as far as a line has room for them, as expressions have them.
    pub(super) fn names(&self) -> String {
        let shown = |name: String| if RESERVED.contains(&&*name) { Some(name) } else { escape(&name) };
        let mut names = String::new();
        for name in self.fields.names().into_iter().filter_map(shown) {
            let separator = if names.is_empty() { "" } else { ", " };
            if names.len() + name.len() > MAX_SHOWN_NAMES {
                return names + separator + "…";
            }
            names += separator;
            names += &name;
        }
        names
    }
}

impl Type {
    pub(super) const BOOL: Self = Self::Named("bool", Vec::new());
    pub(super) const INT: Self = Self::Named("int", Vec::new());
    pub(super) const NULL: Self = Self::Named("null_type", Vec::new());
    pub(super) const STRING: Self = Self::Named("string", Vec::new());
    pub(super) const DYN: Self = Self::Named("dyn", Vec::new());
    /// The type of a part with an error, about which nothing else is wrong.
    pub(super) const ERROR: Self = Self::Named("!error!", Vec::new());

    /// A declared type. The name is that of the first object in it: `.@idx` and `.@elem` follow for the elements of lists and maps.
    // apiserver: pkg/cel/types.go — MaybeAssignTypeName
    pub(super) fn declared(name: &str, declared: &Declared) -> Self {
        let plain = |name| Self::Named(name, Vec::new());
        match declared {
            Declared::Anything => Self::DYN,
            Declared::Bool => Self::BOOL,
            Declared::Int => Self::INT,
            Declared::Double => plain("double"),
            Declared::String => Self::STRING,
            Declared::Bytes => plain("bytes"),
            Declared::Duration => plain("duration"),
            Declared::Timestamp => plain("timestamp"),
            Declared::List(element) => Self::list(Self::declared(&format!("{name}.@idx"), element)),
            Declared::Map(value) => Self::map(Self::STRING, Self::declared(&format!("{name}.@elem"), value)),
            Declared::Object(fields) => {
                Self::Declared(DeclaredObject { name: name.into(), fields: Arc::clone(fields) })
            }
        }
    }

    /// The type of a constant.
    pub(super) fn of(value: &Datum) -> Self {
        let known = |name: &str| TYPE_NAMES.iter().find(|(known, _)| *known == name).map(|(_, name)| *name);
        match value {
            Datum::Type(name) => {
                let parameters = match name.as_ref() {
                    "list" | "optional_type" => vec![Self::DYN],
                    "map" => vec![Self::DYN, Self::DYN],
                    _ => Vec::new(),
                };
                Self::Named("type", vec![Self::Named(known(name).unwrap_or("dyn"), parameters)])
            }
            other => Self::Named(known(other.type_name()).unwrap_or("dyn"), Vec::new()),
        }
    }

    pub(super) fn list(element: Self) -> Self {
        Self::Named("list", vec![element])
    }

    pub(super) fn map(key: Self, value: Self) -> Self {
        Self::Named("map", vec![key, value])
    }

    pub(super) fn optional(value: Self) -> Self {
        Self::Named("optional_type", vec![value])
    }

    pub(super) fn is_dynamic(&self) -> bool {
        matches!(self, Self::Named("dyn" | "any", _))
    }

    /// Whether it goes with every type.
    pub(super) fn is_unknown(&self) -> bool {
        self.is_dynamic() || matches!(self, Self::Named("!error!", _))
    }

    /// The name and the parameters of a solved type.
    pub(super) fn parts(&self) -> (&str, &[Self]) {
        match self {
            Self::Named(name, parameters) => (name, parameters),
            Self::Object(name) => (name, &[]),
            Self::Declared(object) => (&object.name, &[]),
            Self::Parameter(_) => ("", &[]),
        }
    }

    /// The parameter of an `optional_type`, and whether it was one.
    pub(super) fn unwrapped(self) -> (Self, bool) {
        match self {
            Self::Named("optional_type", mut parameters) => (parameters.pop().unwrap_or(Self::DYN), true),
            other => (other, false),
        }
    }

    /// Whether `null` is assignable to the type.
    fn takes_null(&self) -> bool {
        !matches!(
            self,
            Self::Named("bool" | "int" | "uint" | "double" | "string" | "bytes" | "list" | "map" | "type", _)
        )
    }

    /// Whether `other` is at least as specific.
    fn is_equal_or_less_specific(&self, other: &Self) -> bool {
        if self.is_dynamic() || matches!(self, Self::Parameter(_)) {
            return true;
        }
        if other.is_dynamic() || matches!(other, Self::Parameter(_)) {
            return false;
        }
        let ((name, mine), (other_name, theirs)) = (self.parts(), other.parts());
        name == other_name
            && (name == "type"
                || mine.len() == theirs.len()
                    && mine.iter().zip(theirs).all(|(mine, theirs)| mine.is_equal_or_less_specific(theirs)))
    }

    /// The less specific of two compatible types.
    pub(super) fn most_general(self, other: Self) -> Self {
        if self.is_equal_or_less_specific(&other) { self } else { other }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Parameters of the function table are letters.
            Self::Parameter(number) => match u8::try_from(*number) {
                Ok(letter @ b'A'..=b'Z') => write!(out, "{}", char::from(letter)),
                _ => out.write_str("dyn"),
            },
            // The reference has two forms of a type, one of them for the type of a whole expression.
            Self::Named("null_type", _) if !out.alternate() => out.write_str("null"),
            Self::Named(name @ ("duration" | "timestamp"), _) if out.alternate() => {
                let known = TYPE_NAMES.iter().find(|(_, known)| known == name);
                out.write_str(known.map_or(*name, |(full, _)| full))
            }
            Self::Object(name) => out.write_str(name),
            Self::Declared(object) => out.write_str(&object.name),
            Self::Named(name, parameters) if parameters.is_empty() => out.write_str(name),
            Self::Named(name, parameters) => {
                write!(out, "{name}(")?;
                for (index, parameter) in parameters.iter().enumerate() {
                    out.write_str(if index > 0 { ", " } else { "" })?;
                    parameter.fmt(out)?;
                }
                out.write_str(")")
            }
        }
    }
}

/// The substitution of type parameters. A failed assignment is rolled back.
#[derive(Debug, Default)]
pub(super) struct Solution {
    known: HashMap<u32, Type>,
    /// The entries to restore if the current assignment fails.
    undo: Vec<(u32, Option<Type>)>,
    next: u32,
}

impl Solution {
    /// A fresh type parameter.
    pub(super) fn fresh(&mut self) -> Type {
        self.next += 1;
        // Numbers beyond the letters of the function table.
        Type::Parameter(self.next + 0x100)
    }

    /// Unifies `from` with `to`, if it is assignable.
    pub(super) fn assign(&mut self, from: &Type, to: &Type) -> bool {
        self.assign_all(std::slice::from_ref(from), std::slice::from_ref(to))
    }

    /// Unifies lists of types, all or none.
    pub(super) fn assign_all(&mut self, from: &[Type], to: &[Type]) -> bool {
        self.undo.clear();
        let fits = self.fit_all(from, to);
        if !fits {
            while let Some((parameter, before)) = self.undo.pop() {
                match before {
                    Some(before) => self.known.insert(parameter, before),
                    None => self.known.remove(&parameter),
                };
            }
        }
        fits
    }

    fn fit_all(&mut self, from: &[Type], to: &[Type]) -> bool {
        from.len() == to.len() && from.iter().zip(to).all(|(from, to)| self.fit(from, to))
    }

    fn fit(&mut self, from: &Type, to: &Type) -> bool {
        if let Type::Parameter(parameter) = to {
            match self.substitute_for(from, *parameter) {
                (true, _) => return true,
                (false, true) => return false,
                (false, false) => {}
            }
        }
        if let Type::Parameter(parameter) = from {
            return self.substitute_for(to, *parameter).0;
        }
        if from.is_unknown() || to.is_unknown() {
            return true;
        }
        let ((name, mine), (other, theirs)) = (from.parts(), to.parts());
        match (name, other) {
            ("null_type", _) => to.takes_null(),
            (_, "null_type") => from.takes_null(),
            ("type", _) => other == "type",
            _ => {
                let is_declared = |side: &Type| matches!(side, Type::Declared(_));
                is_declared(from) == is_declared(to) && name == other && self.fit_all(mine, theirs)
            }
        }
    }

    /// Whether a parameter can be substituted by `wanted`, and whether it had a substitution before.
    fn substitute_for(&mut self, wanted: &Type, parameter: u32) -> (bool, bool) {
        if *wanted == Type::Parameter(parameter) {
            return (true, true);
        }
        if let Some(known) = self.known.get(&parameter).cloned() {
            if *wanted == known {
                return (true, true);
            }
            if !self.fit(wanted, &known) {
                return (false, true);
            }
            let general = wanted.clone().most_general(known);
            if !self.occurs(parameter, &general) {
                self.learn(parameter, general);
            }
            return (true, true);
        }
        if self.occurs(parameter, wanted) {
            return (false, false);
        }
        self.learn(parameter, wanted.clone());
        (true, false)
    }

    fn learn(&mut self, parameter: u32, what: Type) {
        let before = self.known.insert(parameter, what);
        self.undo.push((parameter, before));
    }

    /// The occurs check: a parameter cannot be substituted by a type that contains it.
    fn occurs(&self, parameter: u32, within: &Type) -> bool {
        match within {
            Type::Parameter(other) if *other == parameter => true,
            Type::Parameter(other) => {
                self.known.get(other).is_some_and(|known| self.occurs(parameter, known))
            }
            Type::Named(_, parameters) => parameters.iter().any(|within| self.occurs(parameter, within)),
            Type::Object(_) | Type::Declared(_) => false,
        }
    }

    /// Applies the substitution to a type; with `finally`, unsolved parameters become `dyn`.
    pub(super) fn solve(&self, what: &Type, finally: bool) -> Type {
        match what {
            Type::Parameter(parameter) => match self.known.get(parameter) {
                Some(known) => self.solve(known, finally),
                None if finally => Type::DYN,
                None => what.clone(),
            },
            Type::Object(_) | Type::Declared(_) => what.clone(),
            Type::Named(name, parameters) => {
                Type::Named(name, parameters.iter().map(|part| self.solve(part, finally)).collect())
            }
        }
    }
}
