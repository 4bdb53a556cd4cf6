//! `format` of strings: `'%s: %.2f'.format([name, share])`.
//!
//! Kubernetes loads version 2 of the library, which prints numbers for English readers: `1,234.500000`, `1.5×10⁰⁶`, `∞`.

mod check;
mod clauses;
mod numbers;
mod output;
mod values;

use crate::evaluation::{EvalResult, Evaluation, Halt, error};
use crate::library::{Call, Library, LiteralCheck};
use crate::value::Datum;

use output::Output;

/// `format`, from cel-go.
#[derive(Debug)]
pub(crate) struct Format;

impl Library for Format {
    fn signatures(&self) -> &'static str {
        "format | string.(list(dyn)) -> string"
    }

    fn call(&self, evaluation: &mut Evaluation<'_>, call: &Call<'_>) -> EvalResult {
        format(evaluation, call.values)
    }

    fn literal_check(&self, _function: &str) -> Option<LiteralCheck> {
        Some(check::check)
    }
}

// cel-go: ext/formatting.go — parseFormatString
fn format(evaluation: &mut Evaluation<'_>, values: &[Datum]) -> EvalResult {
    let [Datum::String(format), Datum::List(arguments)] = values else { return Err(Halt::Unsuited) };
    // The call itself has a cost of 1.
    evaluation.charge(format.len().div_ceil(10).saturating_sub(1))?;
    let mut output = Output::new(evaluation);
    let mut rest: &str = format;
    let mut count = 0;
    while let Some((text, after)) = rest.split_once('%') {
        output.push(text)?;
        if let Some(after) = after.strip_prefix('%') {
            output.push("%")?;
            rest = after;
            continue;
        }
        let Some(argument) = arguments.get(count) else {
            return error(format!("index {count} out of range"));
        };
        let (clause, after) = clauses::read(after).map_err(Halt::Error)?;
        values::write(&mut output, &clause, &argument)?;
        rest = after;
        count += 1;
    }
    output.push(rest)?;
    Ok(Datum::String(output.text.into()))
}
