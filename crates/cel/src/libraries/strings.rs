//! The functions of strings, and of regular expressions on them. Indices count characters.
//!
//! The price of a call includes reading the string; the functions charge what it does not include.

use std::sync::Arc;

use portcullis_go::regexp::{self, Pattern};

use crate::evaluation::{EvalResult, Evaluation, Halt, error};
use crate::library::{Call, Library};
use crate::number::length;
use crate::price::{Price, tenth};
use crate::value::Datum;

/// The functions of strings and of regular expressions, from cel-go and Kubernetes.
#[derive(Debug)]
pub(crate) struct Strings;

const SIGNATURES: &str = "
charAt | string.(int) -> string
contains | string.(string) -> bool
endsWith | string.(string) -> bool
startsWith | string.(string) -> bool
matches | (string, string) -> bool | string.(string) -> bool
find | string.(string) -> string
findAll | string.(string) -> list(string) | string.(string, int) -> list(string)
join | list(string).() -> string | list(string).(string) -> string
lowerAscii | string.() -> string
upperAscii | string.() -> string
replace | string.(string, string) -> string | string.(string, string, int) -> string
split | string.(string) -> list(string) | string.(string, int) -> list(string)
substring | string.(int) -> string | string.(int, int) -> string
trim | string.() -> string
strings.quote | (string) -> string
indexOf | string.(string) -> int | string.(string, int) -> int
lastIndexOf | string.(string) -> int | string.(string, int) -> int
";

impl Library for Strings {
    fn signatures(&self) -> &'static str {
        SIGNATURES
    }

    // cel-go: interpreter/runtimecost.go — costCall; apiserver: pkg/cel/library/cost.go — CallCost
    fn price(&self, call: &Call<'_>) -> Price {
        let (first, second) = (call.size(0), call.size(1));
        // An untyped call costs one unit at least.
        let typed = |price: usize| if call.only.is_some() { price } else { price.max(1) };
        Price::Units(match call.function {
            "indexOf" | "lastIndexOf" => return Price::Traversal,
            "startsWith" | "endsWith" => typed(tenth(call.size(call.rules.affix_price))),
            "strings.quote" | "lowerAscii" | "upperAscii" | "substring" | "trim" => typed(tenth(first)),
            "contains" => typed(tenth(first).saturating_mul(tenth(second))),
            "matches" | "find" | "findAll" => tenth(first.saturating_add(1))
                .saturating_mul(second.div_ceil(4))
                .max(usize::from(call.function == "matches")),
            "replace" | "split" => first.div_ceil(5),
            // One unit in the reference, however long the text is.
            "charAt" => tenth(first).max(1),
            // By the length of the result.
            "join" => match call.values {
                [Datum::List(list)] | [Datum::List(list), Datum::String(_)] => {
                    usize::from(list.items.first().is_some_and(|first| !matches!(first, Datum::String(_))))
                }
                _ => 1,
            },
            _ => 1,
        })
    }

    fn call(&self, evaluation: &mut Evaluation<'_>, call: &Call<'_>) -> EvalResult {
        match (call.function, call.values) {
            ("indexOf" | "lastIndexOf", [Datum::String(text), Datum::String(part), Datum::Int(from)])
                if part.is_empty() && call.rules.empty_needle_is_placed =>
            {
                place(text, *from)
            }
            ("join", [Datum::List(list)]) => join(evaluation, &list.items, ""),
            ("join", [Datum::List(list), Datum::String(separator)]) => {
                join(evaluation, &list.items, separator)
            }
            (function, values) => run(evaluation, function, values),
        }
    }

    fn refusal(&self, evaluation: &Evaluation<'_>, call: &Call<'_>) -> Halt {
        // The reference compiles a call with a literal pattern to another function.
        let literal_pattern = || match call.values.get(1) {
            Some(Datum::String(pattern)) => !evaluation.patterns().is_new(pattern),
            _ => false,
        };
        match call.function {
            "contains" | "startsWith" | "endsWith" => Call::unnamed_refusal(),
            "matches" | "find" | "findAll" if literal_pattern() => Call::unnamed_refusal(),
            "matches" if call.is_on_receiver() => Call::unnamed_refusal(),
            "matches" => call.named_refusal(),
            _ => call.refusal(),
        }
    }

    fn has_one_implementation(&self, function: &str) -> bool {
        matches!(function, "contains" | "startsWith" | "endsWith" | "matches")
    }

    fn takes_pattern(&self, function: &str) -> bool {
        matches!(function, "matches" | "find" | "findAll")
    }
}

fn run(evaluation: &mut Evaluation<'_>, function: &str, values: &[Datum]) -> EvalResult {
    let Some((Datum::String(text), arguments)) = values.split_first() else { return Err(Halt::Unsuited) };
    match (function, arguments) {
        ("contains", [Datum::String(part)]) => Ok(Datum::Bool(text.contains(part.as_ref()))),
        ("startsWith", [Datum::String(part)]) => Ok(Datum::Bool(text.starts_with(part.as_ref()))),
        ("endsWith", [Datum::String(part)]) => Ok(Datum::Bool(text.ends_with(part.as_ref()))),
        ("matches", [Datum::String(pattern)]) => {
            let compiled = pattern_for(evaluation, pattern)?;
            Ok(Datum::Bool(compiled.is_match(text.as_ref())))
        }
        ("find", [Datum::String(pattern)]) => {
            let compiled = pattern_for(evaluation, pattern)?;
            let found = compiled.find(text.as_ref()).and_then(|found| text.get(found.range()));
            Ok(Datum::string(found.unwrap_or_default()))
        }
        ("findAll", [Datum::String(pattern)]) => find_all(evaluation, text, pattern, -1),
        ("findAll", [Datum::String(pattern), Datum::Int(limit)]) => {
            find_all(evaluation, text, pattern, *limit)
        }
        ("charAt", [Datum::Int(at)]) => char_at(text, *at),
        ("indexOf", [Datum::String(part)]) => index_of(evaluation, text, part, 0),
        ("indexOf", [Datum::String(part), Datum::Int(from)]) => index_of(evaluation, text, part, *from),
        ("lastIndexOf", [Datum::String(part)]) => last_index_of(evaluation, text, part, None),
        ("lastIndexOf", [Datum::String(part), Datum::Int(to)]) => {
            last_index_of(evaluation, text, part, Some(*to))
        }
        ("lowerAscii", []) => Ok(Datum::String(text.to_ascii_lowercase().into())),
        ("upperAscii", []) => Ok(Datum::String(text.to_ascii_uppercase().into())),
        ("trim", []) => Ok(Datum::string(text.trim_matches(is_go_space))),
        ("replace", [Datum::String(old), Datum::String(new)]) => replace(evaluation, text, old, new, -1),
        ("replace", [Datum::String(old), Datum::String(new), Datum::Int(limit)]) => {
            replace(evaluation, text, old, new, *limit)
        }
        ("split", [Datum::String(separator)]) => split(evaluation, text, separator, -1),
        ("split", [Datum::String(separator), Datum::Int(limit)]) => {
            split(evaluation, text, separator, *limit)
        }
        ("substring", [Datum::Int(from)]) => match byte_offset(text, *from) {
            Some(start) => Ok(Datum::string(text.get(start..).unwrap_or_default())),
            None => out_of_range(*from),
        },
        ("substring", [Datum::Int(from), Datum::Int(to)]) => substring(text, *from, *to),
        ("strings.quote", []) => Ok(quote(text)),
        _ => Err(Halt::Unsuited),
    }
}

// threat: pattern-exhaustion
fn pattern_for(evaluation: &mut Evaluation<'_>, text: &str) -> Result<Arc<Pattern>, Halt> {
    if let Some(known) = evaluation.pattern(text) {
        return Ok(known);
    }
    // Compilation has a cost, too: for the text and its large classes before, and for the automaton after it.
    let classes = text.matches("\\p").count() + text.matches("\\P").count();
    let reading = text.len().saturating_mul(30).saturating_add(classes.saturating_mul(250));
    evaluation.charge(reading)?;
    let compiled = regexp::computed(text);
    let size = compiled.as_ref().map_or(regexp::MAX_COMPUTED, |compiled| compiled.memory_usage());
    evaluation.charge(size / 32)?;
    let compiled = compiled.map_err(|refused| {
        let text = refused.to_string();
        if refused.is_of_bound() { Halt::Unsupported(text) } else { Halt::Error(text) }
    })?;
    evaluation.keep_pattern(text, Arc::clone(&compiled));
    Ok(compiled)
}

fn find_all(evaluation: &mut Evaluation<'_>, text: &str, pattern: &str, limit: i64) -> EvalResult {
    let compiled = pattern_for(evaluation, pattern)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    // Each match is an allocated string; the price includes some.
    let mut paid = text.len().div_ceil(10).saturating_mul(pattern.len().div_ceil(4));
    let mut found = Vec::new();
    // A search may read beyond its match, up to the end of the text: all of them a multiple of its length.
    let longest = compiled.longest.unwrap_or(usize::MAX);
    for part in compiled.find_iter(text).take(limit) {
        if paid == 0 {
            evaluation.charge(1)?;
        }
        paid = paid.saturating_sub(1);
        evaluation.charge((text.len() - part.end()).min(longest) / 100)?;
        found.extend(text.get(part.range()));
    }
    Ok(Datum::strings(found))
}

fn out_of_range<T>(at: i64) -> Result<T, Halt> {
    error(format!("index out of range: {at}"))
}

/// The byte offset of a character position, including the end.
fn byte_offset(text: &str, at: i64) -> Option<usize> {
    let at = usize::try_from(at).ok()?;
    text.char_indices().map(|(offset, _)| offset).chain([text.len()]).nth(at)
}

fn char_at(text: &str, at: i64) -> EvalResult {
    match byte_offset(text, at).and_then(|offset| text.get(offset..)) {
        Some(rest) => Ok(Datum::String(rest.chars().take(1).collect::<String>().into())),
        None => out_of_range(at),
    }
}

fn substring(text: &str, from: i64, to: i64) -> EvalResult {
    if from > to {
        return error(format!("invalid substring range. start: {from}, end: {to}"));
    }
    let Some(start) = byte_offset(text, from) else { return out_of_range(from) };
    let Some(end) = byte_offset(text, to) else { return out_of_range(to) };
    Ok(Datum::string(text.get(start..end).unwrap_or_default()))
}

/// The position that an empty text is found at.
// cel-go: ext/strings.go — indexOfOffset, lastIndexOfOffset
fn place(text: &str, from: i64) -> EvalResult {
    if from < 0 { out_of_range(from) } else { Ok(Datum::Int(from.min(length(text.chars().count())))) }
}

fn index_of(evaluation: &mut Evaluation<'_>, text: &str, part: &str, from: i64) -> EvalResult {
    charge_needle(evaluation, text, part)?;
    if part.is_empty() {
        return Ok(Datum::Int(from));
    }
    if from < 0 {
        return out_of_range(from);
    }
    let found = byte_offset(text, from).and_then(|start| Some((start, text.get(start..)?.find(part)?)));
    let before = found.and_then(|(start, at)| text.get(..start + at));
    Ok(Datum::Int(before.map_or(-1, |before| length(before.chars().count()))))
}

fn last_index_of(evaluation: &mut Evaluation<'_>, text: &str, part: &str, to: Option<i64>) -> EvalResult {
    charge_needle(evaluation, text, part)?;
    let characters = length(text.chars().count());
    match to {
        Some(to) if part.is_empty() => return Ok(Datum::Int(to)),
        None if part.is_empty() => return Ok(Datum::Int(characters)),
        Some(to) if to < 0 => return out_of_range(to),
        Some(to) if to >= characters => return Ok(Datum::Int(-1)),
        _ => {}
    }
    // A match may begin up to this position, and end after it.
    let start = to.and_then(|to| byte_offset(text, to)).unwrap_or(text.len());
    let end = text.floor_char_boundary(start.saturating_add(part.len()));
    let matches = text.get(..end).and_then(|head| head.rfind(part)).filter(|at| *at <= start);
    let before = matches.and_then(|at| text.get(..at));
    Ok(Datum::Int(before.map_or(-1, |before| length(before.chars().count()))))
}

/// Charges the preparation of a search for a part that is longer than the text.
fn charge_needle(evaluation: &mut Evaluation<'_>, text: &str, part: &str) -> Result<(), Halt> {
    evaluation.charge_reading(part.len().saturating_sub(text.len()))
}

fn replace(evaluation: &mut Evaluation<'_>, text: &str, old: &str, new: &str, limit: i64) -> EvalResult {
    charge_needle(evaluation, text, old)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let count = text.matches(old).take(limit).count();
    // Charged before it is created: the result may be far longer than the text, which the price includes.
    evaluation.charge_reading(count.saturating_mul(new.len().saturating_sub(old.len())))?;
    Ok(Datum::String(text.replacen(old, new, count).into()))
}

fn split(evaluation: &mut Evaluation<'_>, text: &str, separator: &str, limit: i64) -> EvalResult {
    charge_needle(evaluation, text, separator)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    // Each part is an allocated string.
    let parts = text.matches(separator).take(limit).count();
    evaluation.charge(parts.saturating_sub(text.len().div_ceil(5)))?;
    if limit == 0 {
        return Ok(Datum::strings([]));
    }
    if !separator.is_empty() {
        return Ok(Datum::strings(text.splitn(limit, separator)));
    }
    let ends: Vec<usize> = text.char_indices().map(|(offset, _)| offset).skip(1).take(limit - 1).collect();
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let ends = ends.iter().copied().chain([text.len()]);
    let parts = starts.zip(ends).filter_map(|(start, end)| text.get(start..end));
    Ok(Datum::strings(parts.filter(|part| !part.is_empty())))
}

/// Go's `unicode.IsSpace`, which agrees with Rust's definition.
fn is_go_space(character: char) -> bool {
    character.is_whitespace()
}

fn quote(text: &str) -> Datum {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    Datum::String(quoted.into())
}

/// Joins a list of strings.
fn join(evaluation: &mut Evaluation<'_>, items: &[Datum], separator: &str) -> EvalResult {
    // An element is a tenth at least; the reference charges for the result alone.
    evaluation.charge_reading(items.len())?;
    let mut length = 0_usize;
    for (at, item) in items.iter().enumerate() {
        let Datum::String(text) = item else {
            return error(format!("join: invalid input: {}", item.shown()));
        };
        length = length.saturating_add(text.len()).saturating_add(if at > 0 { separator.len() } else { 0 });
    }
    evaluation.charge(length.div_ceil(5).saturating_sub(tenth(items.len())))?;
    let mut joined = String::with_capacity(length);
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            joined.push_str(separator);
        }
        if let Datum::String(text) = item {
            joined.push_str(text);
        }
    }
    Ok(Datum::String(joined.into()))
}
