//! Constant folding, as in the reference: an expression with an invalid constant does not compile. Also compiles
//! literal patterns once instead of at each evaluation.

use super::eval::{Halt, Machine, is_index};
use super::faults::CompileFault;
use super::pattern::Patterns;
use super::syntax::{ExprNode, NodeKind};
use super::value::Datum;

/// Functions that are folded on constants.
const CONVERSIONS: [&str; 10] =
    ["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"];

/// Folds the constants of a tree, and compiles its literal patterns.
pub(super) fn plan(node: &mut ExprNode, patterns: &mut Patterns) -> Result<(), CompileFault> {
    let at = node.at;
    for child in node.children_mut() {
        plan(child, patterns)?;
    }
    let fault = |text: String| Err(CompileFault::new(at, text));
    if let NodeKind::Call { function, target, arguments, .. } = &node.kind {
        let last = arguments.last().and_then(constant);
        match (function.as_str(), last) {
            ("matches" | "find" | "findAll", _) => {
                let pattern = arguments.get(usize::from(target.is_none()));
                if let Some(Datum::String(pattern)) = pattern.and_then(constant) {
                    patterns.add(pattern).or_else(fault)?;
                }
            }
            ("_[_]" | "_[?_]", Some(index)) if !is_index(index) => {
                return fault(format!("a value of type {} is not an index", index.type_name()));
            }
            _ => {}
        }
    }
    // `in` an empty list is false without evaluation of the operand.
    if let NodeKind::Call { function, arguments, .. } = &node.kind
        && function == "@in"
        && matches!(arguments.last().and_then(constant), Some(Datum::List(list)) if list.items.is_empty())
    {
        node.kind = NodeKind::Literal(Datum::Bool(false));
    }
    if !is_constant(node) {
        return Ok(());
    }
    match Machine::new(&[], patterns, &[]).eval(node) {
        Ok(value) => node.kind = NodeKind::Literal(value),
        Err(Halt::Error(text)) => return Err(invalid_time(node).unwrap_or(CompileFault::new(at, text))),
        Err(Halt::Unsuited) => return fault("no such overload".to_owned()),
        // No constant calls the authorizer.
        Err(Halt::Cost | Halt::Ask(_)) => return fault("constant is too large".to_owned()),
    }
    Ok(())
}

/// The reference's error for the literal of a duration or a timestamp.
// cel-go: cel/validator.go — ValidateDurationLiterals, ValidateTimestampLiterals
fn invalid_time(node: &ExprNode) -> Option<CompileFault> {
    let NodeKind::Call { function, arguments, .. } = &node.kind else { return None };
    let fix = match function.as_str() {
        "duration" => "write a duration as '1h30m'",
        "timestamp" => "write a timestamp as '2024-01-31T00:00:00Z', of the years 1 to 9999",
        _ => return None,
    };
    let at = arguments.first().map_or(node.at, |argument| argument.at);
    Some(CompileFault::new(at, format!("invalid {function} argument")).with_fix(fix))
}

fn constant(node: &ExprNode) -> Option<&Datum> {
    match &node.kind {
        NodeKind::Literal(value) => Some(value),
        _ => None,
    }
}

/// A literal of constants, or the conversion of one.
fn is_constant(node: &ExprNode) -> bool {
    match &node.kind {
        NodeKind::List(elements) => {
            elements.iter().all(|(element, optional)| !optional && constant(element).is_some())
        }
        NodeKind::Map(entries) => entries
            .iter()
            .all(|(key, value, optional)| !optional && constant(key).is_some() && constant(value).is_some()),
        NodeKind::Call { function, target: None, arguments, .. } => {
            CONVERSIONS.contains(&function.as_str())
                && arguments.len() == 1
                && arguments.iter().all(|argument| constant(argument).is_some())
        }
        _ => false,
    }
}
