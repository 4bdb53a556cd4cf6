//! The check of a literal format with a list of arguments when an expression is compiled.

use super::clauses::{self, Verb};
use crate::faults::CompileFault;
use crate::library::Operand;

/// Checks that the arguments suit the clauses, all and no more.
// cel-go: ext/formatting.go — stringFormatValidator
pub(super) fn check(at: usize, format: &str, arguments: &[Operand]) -> Result<(), CompileFault> {
    let fault = |text: String| CompileFault::new(at, text);
    let mut rest = format;
    let mut count = 0;
    while let Some((_, after)) = rest.split_once('%') {
        if let Some(after) = after.strip_prefix('%') {
            rest = after;
            continue;
        }
        let (clause, after) = clauses::read(after).map_err(fault)?;
        let Some(argument) = arguments.get(count) else {
            return Err(fault(format!("index {count} out of range")));
        };
        suits(clause.verb, argument)?;
        rest = after;
        count += 1;
    }
    if arguments.len() > count {
        let given = arguments.len();
        return Err(fault(format!(
            "too many arguments supplied to string.format (expected {count}, got {given})"
        )));
    }
    Ok(())
}

/// Whether a verb prints an argument; `%s` also looks into literals.
fn suits(verb: Verb, argument: &Operand) -> Result<(), CompileFault> {
    let name = argument.kind.parts().0;
    let allowed: &[&str] = match verb {
        Verb::String => &[
            "list",
            "map",
            "int",
            "uint",
            "double",
            "bool",
            "string",
            "timestamp",
            "bytes",
            "duration",
            "type",
            "null_type",
        ],
        Verb::Decimal | Verb::Octal => &["int", "uint"],
        Verb::Fixed | Verb::Scientific => &["double", "string"],
        Verb::Binary => &["int", "uint", "bool"],
        Verb::Hex(_) => &["int", "uint", "string", "bytes"],
    };
    if name != "dyn" && !allowed.contains(&name) {
        let name = if name == "any" { "google.protobuf.Any" } else { name };
        return Err(CompileFault::new(argument.at, verb.mismatch(name)));
    }
    match verb {
        Verb::String => argument.elements.iter().try_for_each(|element| suits(verb, element)),
        _ => Ok(()),
    }
}
