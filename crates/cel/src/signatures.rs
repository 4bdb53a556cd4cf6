//! The notation in which libraries declare their functions: a line for each, with its name and its overloads.
//!
//! ```text
//! startsWith | string.(string) -> bool
//! semver | (string) -> kubernetes.Semver | (string, bool) -> kubernetes.Semver
//! ```
//!
//! A single capital letter is a type parameter, but `C` expands to each comparable type and `N` to each summable type.

use std::fmt;

use super::types::Type;
use super::value::Datum;

/// The overloads of every comparison operator.
const COMPARED: &str = "(bool, bool) -> bool | (int, int) -> bool | (int, double) -> bool | (int, uint) -> bool | (uint, uint) -> bool | (uint, double) -> bool | (uint, int) -> bool | (double, double) -> bool | (double, int) -> bool | (double, uint) -> bool | (string, string) -> bool | (bytes, bytes) -> bool | (timestamp, timestamp) -> bool | (duration, duration) -> bool";
const ORDERED: [&str; 8] = ["int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes"];
const SUMMED: [&str; 4] = ["int", "uint", "double", "duration"];

/// One overload of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Overload {
    pub(super) member: bool,
    /// The first is the target of a member function.
    pub(super) parameters: Vec<Type>,
    pub(super) result: Type,
}

impl Overload {
    /// Whether the first parameter accepts the first value.
    pub(super) fn takes_first(&self, values: &[Datum]) -> bool {
        self.parameters.first().zip(values.first()).is_some_and(|(parameter, value)| fits(parameter, value))
    }

    /// Whether the overload accepts the values. Like the reference, checks only the first element of a list.
    pub(super) fn takes(&self, values: &[Datum]) -> bool {
        self.parameters.len() == values.len()
            && self.parameters.iter().zip(values).all(|(parameter, value)| fits(parameter, value))
    }
}

fn fits(parameter: &Type, value: &Datum) -> bool {
    let (name, parameters) = match parameter {
        Type::Parameter(_) => return true,
        named => named.parts(),
    };
    match (name, value) {
        ("dyn" | "any", _) | ("duration", Datum::Duration(_)) | ("timestamp", Datum::Timestamp(_)) => true,
        ("list", Datum::List(list)) => match (parameters.first(), list.items.first()) {
            (Some(element), Some(first)) => fits(element, first),
            _ => true,
        },
        (name, value) => name == value.type_name(),
    }
}

impl fmt::Display for Overload {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parameters = self.parameters.iter();
        if self.member
            && let Some(target) = parameters.next()
        {
            write!(out, "{target}.")?;
        }
        let parameters: Vec<String> = parameters.map(Type::to_string).collect();
        write!(out, "({}) -> {}", parameters.join(", "), self.result)
    }
}

/// The functions of a table, each with its overloads. Their order matters: the first match determines the type
/// parameters.
pub(super) fn read(table: &'static str) -> impl Iterator<Item = (&'static str, Vec<Overload>)> {
    table.lines().filter(|line| !line.is_empty()).map(|line| {
        let mut parts = line.split(" | ");
        let name = parts.next().unwrap_or_default();
        let texts =
            parts.flat_map(|text| if text == "COMPARED" { COMPARED.split(" | ") } else { text.split(" | ") });
        (name, texts.flat_map(expanded).collect())
    })
}

/// A type in the notation of the declarations.
pub(super) fn read_type(text: &'static str) -> Option<Type> {
    SignatureReader { rest: text, letter: None }.read()
}

/// Expands `C` or `N` to an overload for each type.
fn expanded(text: &'static str) -> Vec<Overload> {
    for (letter, names) in [(b'C', &ORDERED[..]), (b'N', &SUMMED[..])] {
        if has_letter(text, letter) {
            return names.iter().filter_map(|name| overload(text, Some((letter, name)))).collect();
        }
    }
    overload(text, None).into_iter().collect()
}

fn has_letter(text: &str, letter: u8) -> bool {
    let bytes = text.as_bytes();
    let word = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    bytes.iter().enumerate().any(|(at, byte)| {
        *byte == letter
            && !word(bytes.get(at + 1))
            && !word(at.checked_sub(1).and_then(|before| bytes.get(before)))
    })
}

fn overload(text: &'static str, letter: Option<(u8, &'static str)>) -> Option<Overload> {
    let mut reader = SignatureReader { rest: text, letter };
    let mut parameters = Vec::new();
    let member = !text.starts_with('(');
    if member {
        parameters.push(reader.read()?);
        reader.rest = reader.rest.strip_prefix('.')?;
    }
    parameters.extend(reader.list()?);
    reader.rest = reader.rest.strip_prefix(" -> ")?;
    Some(Overload { member, parameters, result: reader.read()? })
}

/// Parses the types of a declaration.
struct SignatureReader {
    rest: &'static str,
    letter: Option<(u8, &'static str)>,
}

impl SignatureReader {
    fn read(&mut self) -> Option<Type> {
        let end = self.rest.find([',', '(', ')', ' ']).unwrap_or(self.rest.len());
        // `string.(…)`: the dot ends the target type.
        let end = self.rest.find(".(").map_or(end, |dot| dot.min(end));
        let (name, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        if let ([letter], Some((standing, name))) = (name.as_bytes(), self.letter)
            && *letter == standing
        {
            return Some(Type::Named(name, Vec::new()));
        }
        if let [letter @ b'A'..=b'Z'] = name.as_bytes() {
            return Some(Type::Parameter(u32::from(*letter)));
        }
        let parameters = if rest.starts_with('(') { self.list()? } else { Vec::new() };
        Some(Type::Named(name, parameters))
    }

    fn list(&mut self) -> Option<Vec<Type>> {
        self.rest = self.rest.strip_prefix('(')?;
        let mut found = Vec::new();
        while !self.rest.starts_with(')') {
            found.push(self.read()?);
            self.rest = self.rest.strip_prefix(", ").unwrap_or(self.rest);
        }
        self.rest = self.rest.strip_prefix(')')?;
        Some(found)
    }
}
