//! What is done once instead of at each evaluation, as the reference does it: constants are computed, so that an
//! expression whose constants are faulty does not compile.

use super::eval::{Halt, Machine, is_index};
use super::pattern::Patterns;
use super::syntax::{Fault, Kind, Node};
use super::value::Datum;

/// Functions whose calls on a constant are constants.
const CONVERSIONS: [&str; 8] = ["bool", "bytes", "double", "dyn", "int", "string", "type", "uint"];

/// Computes the constants of a tree, and compiles the patterns that it contains.
pub(super) fn plan(node: &mut Node, patterns: &mut Patterns) -> Result<(), Fault> {
    let at = node.at;
    for child in node.children_mut() {
        plan(child, patterns)?;
    }
    let fault = |text: String| Err(Fault { at, text });
    if let Kind::Call { function, target, arguments, .. } = &node.kind {
        let last = arguments.last().and_then(constant);
        match (function.as_str(), last) {
            ("matches" | "find" | "findAll", _) => {
                let pattern = arguments.get(usize::from(target.is_none()));
                if let Some(Datum::String(pattern)) = pattern.and_then(constant) {
                    patterns.add(pattern).or_else(fault)?;
                }
            }
            ("_[_]" | "_[?_]", Some(index)) if !is_index(index) => {
                return fault(format!("a value of type {} is no index", index.type_name()));
            }
            _ => {}
        }
    }
    // Nothing is in an empty list, and what is not looked at does not fail.
    if let Kind::Call { function, arguments, .. } = &node.kind
        && function == "@in"
        && matches!(arguments.last().and_then(constant), Some(Datum::List(list)) if list.items.is_empty())
    {
        node.kind = Kind::Literal(Datum::Bool(false));
    }
    if !is_constant(node) {
        return Ok(());
    }
    match Machine::new("", Datum::Null, patterns).eval(node) {
        Ok(value) => node.kind = Kind::Literal(value),
        Err(Halt::Error(text)) => return fault(text),
        Err(Halt::Unsuited) => return fault("no such overload".to_owned()),
        Err(Halt::Cost) => return fault("constant is too large".to_owned()),
    }
    Ok(())
}

fn constant(node: &Node) -> Option<&Datum> {
    match &node.kind {
        Kind::Literal(value) => Some(value),
        _ => None,
    }
}

/// A literal of constants or a conversion of one.
fn is_constant(node: &Node) -> bool {
    match &node.kind {
        Kind::List(elements) => {
            elements.iter().all(|(element, optional)| !optional && constant(element).is_some())
        }
        Kind::Map(entries) => entries
            .iter()
            .all(|(key, value, optional)| !optional && constant(key).is_some() && constant(value).is_some()),
        Kind::Call { function, target: None, arguments, .. } => {
            CONVERSIONS.contains(&function.as_str())
                && arguments.len() == 1
                && arguments.iter().all(|argument| constant(argument).is_some())
        }
        _ => false,
    }
}
