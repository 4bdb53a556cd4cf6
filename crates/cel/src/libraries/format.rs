//! `format` of strings: `'%s: %.2f'.format([name, share])`.
//!
//! Kubernetes loads version 2 of the library, which prints numbers for English readers: `1,234.500000`, `1.5×10⁰⁶`, `∞`.

mod check;
mod clauses;
mod numbers;
mod values;

use std::fmt;

use crate::eval::{EvalResult, Halt, Machine, error};
use crate::value::Datum;

pub(crate) use check::check;

// cel-go: ext/formatting.go — parseFormatString
pub(crate) fn call(machine: &mut Machine<'_>, _function: &str, values: &[Datum]) -> EvalResult {
    let [Datum::String(format), Datum::List(arguments)] = values else { return Err(Halt::Unsuited) };
    // The call itself has a cost of 1.
    machine.charge(format.len().div_ceil(10).saturating_sub(1))?;
    let mut output = Output::new(machine);
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

/// The result so far. Ten bytes cost as much as in other functions, and are paid before they are written.
struct Output<'m, 'a> {
    machine: &'m mut Machine<'a>,
    text: String,
    length: usize,
}

impl<'m, 'a> Output<'m, 'a> {
    fn new(machine: &'m mut Machine<'a>) -> Self {
        Self { machine, text: String::new(), length: 0 }
    }

    fn charge(&mut self, length: usize) -> Result<(), Halt> {
        let before = self.length / 10;
        self.length = self.length.saturating_add(length);
        self.machine.charge(self.length / 10 - before)
    }

    fn push(&mut self, text: &str) -> Result<(), Halt> {
        self.charge(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    /// Writes what is longer than its source, such as a quoted text.
    fn print(&mut self, what: impl fmt::Display) -> Result<(), Halt> {
        // Writing fails only where the cost limit is exceeded.
        fmt::write(self, format_args!("{what}")).map_err(|fmt::Error| Halt::Cost)
    }
}

impl fmt::Write for Output<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text).map_err(|_| fmt::Error)
    }
}
