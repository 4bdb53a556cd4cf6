//! The text of a value in a clause.

use portcullis_go::hex;
use portcullis_go::quote::Quoted;

use super::clauses::{Case, Clause, Verb};
use super::numbers::{self, DEFAULT_PRECISION};
use super::output::Output;
use crate::evaluation::{Halt, error};
use crate::value::{Datum, MapKey, MapValue};

type Written = Result<(), Halt>;

/// Writes the value of a clause.
pub(super) fn write(output: &mut Output<'_, '_>, clause: &Clause, value: &Datum) -> Written {
    let Clause { verb, precision } = clause;
    let precision = precision.unwrap_or(DEFAULT_PRECISION);
    match (verb, value) {
        (Verb::String, value) => plain(output, value),
        (Verb::Decimal, Datum::Int(number)) => output.print(number),
        (Verb::Decimal, Datum::Uint(number)) => output.print(number),
        (Verb::Fixed, value) => match double(value) {
            Some(number) => output.push(&numbers::fixed(number, precision)),
            None => mismatch(*verb, value),
        },
        (Verb::Scientific, value) => match double(value) {
            Some(number) => {
                let (spaces, number) = numbers::scientific(number, precision);
                output.charge(spaces)?;
                output.text.extend(std::iter::repeat_n(' ', spaces));
                output.push(&number)
            }
            None => mismatch(*verb, value),
        },
        (Verb::Binary, Datum::Bool(value)) => output.push(if *value { "1" } else { "0" }),
        (Verb::Hex(case), Datum::String(text)) => octets(output, text.as_bytes(), *case),
        (Verb::Hex(case), Datum::Bytes(bytes)) => octets(output, bytes, *case),
        (Verb::Binary | Verb::Hex(_) | Verb::Octal, Datum::Int(number)) => {
            output.push(if *number < 0 { "-" } else { "" })?;
            in_base(output, *verb, number.unsigned_abs())
        }
        (Verb::Binary | Verb::Hex(_) | Verb::Octal, Datum::Uint(number)) => in_base(output, *verb, *number),
        (verb, value) => mismatch(*verb, value),
    }
}

fn mismatch<T>(verb: Verb, value: &Datum) -> Result<T, Halt> {
    error(verb.mismatch(value.type_name()))
}

/// The number of `%f` and `%e`, which also accept three texts.
fn double(value: &Datum) -> Option<f64> {
    match value {
        Datum::Double(number) => Some(*number),
        Datum::String(text) => match text.as_ref() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

fn in_base(output: &mut Output<'_, '_>, verb: Verb, number: u64) -> Written {
    match verb {
        Verb::Binary => output.print(format_args!("{number:b}")),
        Verb::Octal => output.print(format_args!("{number:o}")),
        Verb::Hex(Case::Upper) => output.print(format_args!("{number:X}")),
        _ => output.print(format_args!("{number:x}")),
    }
}

fn octets(output: &mut Output<'_, '_>, bytes: &[u8], case: Case) -> Written {
    output.charge(bytes.len().saturating_mul(2))?;
    let digits = bytes.iter().flat_map(|byte| hex::digits(*byte));
    match case {
        Case::Lower => output.text.extend(digits),
        Case::Upper => output.text.extend(digits.map(|digit| digit.to_ascii_uppercase())),
    }
    Ok(())
}

/// `%s`.
// cel-go: ext/formatting.go — FormatString
fn plain(output: &mut Output<'_, '_>, value: &Datum) -> Written {
    match value {
        Datum::Null => output.push("null"),
        Datum::Bool(_) | Datum::Int(_) | Datum::Uint(_) | Datum::Double(_) => output.push(&value.shown()),
        Datum::String(text) | Datum::Type(text) => output.push(text),
        Datum::Bytes(bytes) => output.push(text_of(bytes)?),
        Datum::List(list) => elements(output, &list.items),
        Datum::Map(map) => entries(output, map),
        Datum::Duration(duration) => output.push(&duration.shown()),
        Datum::Timestamp(timestamp) => output.push(&timestamp.shown()),
        Datum::Optional(_) | Datum::Root(_) | Datum::Native(_) | Datum::Message(_) | Datum::Failed(_) => {
            mismatch(Verb::String, value)
        }
    }
}

/// A value within a list or a map: as a literal of CEL.
// cel-go: ext/formatting.go — clauseForType, quoteForCEL
fn literal(output: &mut Output<'_, '_>, value: &Datum) -> Written {
    match value {
        Datum::String(text) => output.print(Quoted(text)),
        Datum::Bytes(bytes) => {
            let text = text_of(bytes)?;
            output.push("b")?;
            output.print(Quoted(text))
        }
        Datum::Double(number) if number.is_finite() => output.print(format_args!("{number:.6}")),
        Datum::Double(_) => output.print(Quoted(&value.shown())),
        Datum::Duration(duration) => output.print(format_args!("duration({})", Quoted(&duration.shown()))),
        Datum::Timestamp(timestamp) => {
            output.print(format_args!("timestamp({})", Quoted(&timestamp.shown())))
        }
        Datum::Optional(_) | Datum::Root(_) | Datum::Native(_) | Datum::Message(_) => {
            unprintable("", value.type_name())
        }
        other => plain(output, other),
    }
}

fn unprintable<T>(place: &str, given: &str) -> Result<T, Halt> {
    error(format!("error during formatting: no formatting function for {place}{given}"))
}

fn text_of(bytes: &[u8]) -> Result<&str, Halt> {
    std::str::from_utf8(bytes).or_else(|_| {
        error(
            "error during formatting: could not convert argument \
             \"invalid UTF-8 in bytes, cannot convert to string\" to string",
        )
    })
}

fn elements(output: &mut Output<'_, '_>, items: &[Datum]) -> Written {
    output.push("[")?;
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            output.push(", ")?;
        }
        literal(output, item)?;
    }
    output.push("]")
}

/// The entries, in the order of the texts of their keys.
fn entries(output: &mut Output<'_, '_>, map: &MapValue) -> Written {
    let outside = std::mem::take(&mut output.text);
    let mut texts = Vec::with_capacity(map.entries.len());
    for key in map.entries.keys() {
        key_text(output, key)?;
        let text = std::mem::take(&mut output.text);
        // In a token, a key may have a text that selection reads as another one.
        let Some(value) = map.find(&key.datum()) else {
            return error(format!("error during formatting: could not find key: {text}"));
        };
        literal(output, &value)?;
        texts.push((text, std::mem::take(&mut output.text)));
    }
    texts.sort();
    output.text = outside;
    output.push("{")?;
    for (at, (key, value)) in texts.iter().enumerate() {
        let separator = if at > 0 { ", " } else { "" };
        output.print(format_args!("{separator}{key}:{value}"))?;
    }
    output.push("}")
}

fn key_text(output: &mut Output<'_, '_>, key: &MapKey) -> Written {
    match key {
        MapKey::String(text) => output.print(Quoted(text)),
        MapKey::Bool(value) => output.print(value),
        MapKey::Int(number) => output.print(number),
        MapKey::Uint(number) => output.print(number),
        MapKey::Null | MapKey::Double(_) => unprintable("map key of type ", key.datum().type_name()),
    }
}
