//! Constant folding, as in the reference: an expression with an invalid constant does not compile. Also compiles
//! literal patterns once instead of at each evaluation.

use std::collections::BTreeSet;

use super::cel_go::Rules;
use super::composition::VariableValues;
use super::eval::Evaluator;
use super::evaluation::{Extent, Halt};
use super::faults::CompileFault;
use super::patterns::Patterns;
use super::tree::{ExprNode, NodeKind};
use super::value::{Datum, MapKey};

/// Functions that are folded on constants.
const CONVERSIONS: [&str; 10] =
    ["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"];

/// Folds the constants of a tree, and compiles its literal patterns.
pub(super) fn plan(
    node: &mut ExprNode,
    rules: &'static Rules,
    patterns: &mut Patterns,
) -> Result<(), CompileFault> {
    let at = node.at;
    for child in node.children_mut() {
        plan(child, rules, patterns)?;
    }
    let fault = |text: String| Err(CompileFault::new(at, text));
    if let NodeKind::Call { function, target, arguments, callee } = &node.kind {
        if callee.get().is_some_and(|callee| callee.function.takes_pattern) {
            let pattern = arguments.get(usize::from(target.is_none()));
            if let Some(Datum::String(pattern)) = pattern.and_then(constant) {
                patterns.add(pattern).or_else(fault)?;
            }
        }
        match (function.as_str(), arguments.last().and_then(constant)) {
            ("_[_]" | "_[?_]", Some(index)) if !index.is_index() => {
                return fault(format!("a value of type {} is not an index", index.type_name()));
            }
            _ => {}
        }
    }
    membership(node);
    if !is_constant(node) {
        return Ok(());
    }
    match Evaluator::new(rules, &[], patterns, (&[], &VariableValues::default()), Extent::Whole).eval(node) {
        Ok(value) => node.kind = NodeKind::Literal(value),
        Err(Halt::Error(text) | Halt::Unsupported(text)) => {
            return Err(invalid_time(node).unwrap_or(CompileFault::new(at, text)));
        }
        Err(Halt::Unsuited) => return fault("no such overload".to_owned()),
        // No constant calls the authorizer.
        Err(Halt::Cost | Halt::Long | Halt::Review(_) | Halt::Variable(_)) => {
            return fault("constant is too large".to_owned());
        }
    }
    Ok(())
}

/// Replaces `in` a list of constants by a lookup, which is free in the reference.
// cel-go: interpreter/decorators.go — maybeOptimizeSetMembership
fn membership(node: &mut ExprNode) {
    let NodeKind::Call { function, arguments, callee, .. } = &mut node.kind else { return };
    let only = callee.get().and_then(|callee| callee.only);
    let in_list =
        only.is_some_and(|only| only.parameters.get(1).is_some_and(|list| list.parts().0 == "list"));
    let ("@in", true, [_, list]) = (function.as_str(), in_list, arguments.as_slice()) else { return };
    let Some(Datum::List(list)) = constant(list) else { return };
    if list.items.is_empty() {
        // The operand is not evaluated.
        node.kind = NodeKind::Literal(Datum::Bool(false));
        return;
    }
    let Some(set) = keys(&list.items) else { return };
    arguments.truncate(1);
    if let Some(operand) = arguments.pop() {
        node.kind = NodeKind::Member(Box::new(operand), set);
    }
}

/// The keys that are equal to one of the values, if all are numbers, strings or truth values.
fn keys(values: &[Datum]) -> Option<BTreeSet<MapKey>> {
    let mut set = BTreeSet::new();
    for value in values {
        match value {
            // Equal to nothing.
            Datum::Double(value) if value.is_nan() => {}
            Datum::Bool(_) | Datum::Int(_) | Datum::Uint(_) | Datum::Double(_) | Datum::String(_) => {
                set.extend(MapKey::candidates(value).into_iter().flatten());
            }
            _ => return None,
        }
    }
    Some(set)
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
