//! The functions of lists.
//!
//! The price of a call includes the walk over a list and the elements of the result; the functions charge
//! what it does not include.

use std::cmp::Ordering;

use crate::arithmetic;
use crate::equality::{compare, equal, if_comparable, order, same};
use crate::evaluation::{EvalResult, Evaluation, Halt, error, no_such_overload};
use crate::library::{Call, Library};
use crate::number::length;
use crate::price::{LIST, Price};
use crate::time::Duration;
use crate::types::Type;
use crate::value::{Datum, ListValue};

/// The functions of lists, from cel-go and Kubernetes.
#[derive(Debug)]
pub(crate) struct Lists;

const SIGNATURES: &str = "
indexOf | list(A).(A) -> int
lastIndexOf | list(A).(A) -> int
isSorted | list(C).() -> bool
min | list(C).() -> C
max | list(C).() -> C
sum | list(N).() -> N
sort | list(C).() -> list(C)
@sortByAssociatedKeys | list(T).(list(C)) -> list(T)
distinct | list(T).() -> list(T)
reverse | list(T).() -> list(T)
slice | list(T).(int, int) -> list(T)
flatten | list(list(T)).() -> list(T) | list(dyn).(int) -> list(dyn)
lists.range | (int) -> list(int)
first | list(V).() -> optional_type(V)
last | list(V).() -> optional_type(V)
includes | dyn.(dyn) -> bool
";

impl Library for Lists {
    fn signatures(&self) -> &'static str {
        SIGNATURES
    }

    // cel-go: ext/lists.go; apiserver: pkg/cel/library/cost.go — CallCost
    fn price(&self, call: &Call<'_>) -> Price {
        let first = call.size(0);
        let is_typed = call.only.is_some();
        Price::Units(match call.function {
            "isSorted" | "sum" | "min" | "max" | "indexOf" | "lastIndexOf" | "includes" => {
                return Price::Traversal;
            }
            "lists.range" => 1 + LIST + count(call),
            "slice" => 1 + LIST + taken(call.values).unwrap_or(1),
            // One for an error.
            "reverse" => {
                1 + LIST + if matches!(call.values.first(), Some(Datum::List(_))) { first } else { 1 }
            }
            "flatten" => flattened(first, call),
            "distinct" => pairs(call.values.first()),
            "sort" if is_typed => pairs(call.values.first()),
            "@sortByAssociatedKeys" if is_typed => pairs(call.values.get(1)),
            "sort" => comparisons(first),
            "@sortByAssociatedKeys" => comparisons(call.size(1)),
            _ => 1,
        })
    }

    fn call(&self, evaluation: &mut Evaluation<'_>, call: &Call<'_>) -> EvalResult {
        match (call.function, call.values, call.only) {
            ("sum", [Datum::List(list)], Some(only)) if list.items.is_empty() => Ok(zero(&only.result)),
            ("lists.range", [Datum::Int(count)], _) => range(*count, call.rules.longest_range),
            ("includes", [target, item], _) => includes(evaluation, target, item),
            (function, values, _) => run(evaluation, function, values),
        }
    }

    fn refusal(&self, _evaluation: &Evaluation<'_>, call: &Call<'_>) -> Halt {
        match (call.function, call.values) {
            ("sort", _) if call.is_on_receiver() => Call::unnamed_refusal(),
            ("sort", _) => call.named_refusal(),
            ("@sortByAssociatedKeys", [first, ..]) if !matches!(first, Datum::List(_)) => {
                call.named_refusal()
            }
            ("flatten", [first, rest @ ..]) => {
                let parameters = if matches!(first, Datum::Map(_)) { "(dyn, dyn)" } else { "" };
                let depth = rest.first().map_or("", Datum::type_name);
                Halt::Error(format!("no such overload: {}{parameters}.flatten({depth})", first.type_name()))
            }
            _ => call.refusal(),
        }
    }

    fn has_one_implementation(&self, function: &str) -> bool {
        matches!(function, "sort" | "flatten")
    }
}

fn run(evaluation: &mut Evaluation<'_>, function: &str, values: &[Datum]) -> EvalResult {
    let Some((Datum::List(list), arguments)) = values.split_first() else { return Err(Halt::Unsuited) };
    let items = list.items.as_slice();
    match (function, arguments) {
        ("indexOf", [needle]) => position(evaluation, items.iter().enumerate(), needle),
        ("lastIndexOf", [needle]) => position(evaluation, items.iter().enumerate().rev(), needle),
        ("isSorted", []) if items.first().is_some_and(|first| !is_ordered(first)) => Err(Halt::Unsuited),
        ("isSorted", []) => {
            for (left, right) in items.iter().zip(items.iter().skip(1)) {
                if is_order(left, right, Ordering::Greater)? {
                    return Ok(Datum::Bool(false));
                }
            }
            Ok(Datum::Bool(true))
        }
        ("min", []) => extreme("min", items, Ordering::Greater),
        ("max", []) => extreme("max", items, Ordering::Less),
        ("sum", []) => sum(evaluation, items),
        ("distinct" | "sort", []) if items.is_empty() => Ok(Datum::List(list.clone())),
        ("sort", []) => sorted(evaluation, items, items),
        ("@sortByAssociatedKeys", [Datum::List(keys)]) => sorted(evaluation, items, keys.items.as_slice()),
        ("distinct", []) => {
            let mut kept: Vec<Datum> = Vec::new();
            for item in list.scattered() {
                let mut known = false;
                for other in &kept {
                    known = known || if_comparable(equal(evaluation, &item, other), false)?;
                }
                if !known {
                    kept.push(item);
                }
            }
            Ok(Datum::list(kept))
        }
        ("reverse", []) => Ok(Datum::list(list.scattered().collect::<Vec<_>>().into_iter().rev().collect())),
        ("slice", [Datum::Int(from), Datum::Int(to)]) => slice(list, *from, *to),
        ("flatten", []) => flatten(evaluation, list, 1),
        ("flatten", [Datum::Int(depth)]) if *depth < 0 => error("level must be non-negative"),
        ("flatten", [Datum::Int(depth)]) => flatten(evaluation, list, *depth),
        ("first", []) => Ok(Datum::Optional(list.get(0).map(Into::into))),
        ("last", []) => {
            Ok(Datum::Optional(items.len().checked_sub(1).and_then(|at| list.get(at)).map(Into::into)))
        }
        _ => Err(Halt::Unsuited),
    }
}

/// The numbers up to a count, which may have a limit.
// cel-go: ext/lists.go — genRange
fn range(count: i64, longest: Option<i64>) -> EvalResult {
    match longest {
        Some(_) if count < 0 => error(format!("lists.range: size must be non-negative, got {count}")),
        Some(longest) if count > longest => {
            error(format!("lists.range: size {count} exceeds maximum allowed ({longest})"))
        }
        _ => {
            let count = usize::try_from(count).unwrap_or(0);
            Ok(Datum::list((0..count).map(|at| Datum::Int(length(at))).collect()))
        }
    }
}

/// Whether a list has an item, or a value of another type equals it.
// apiserver: pkg/cel/library/lists.go — includes
fn includes(evaluation: &mut Evaluation<'_>, target: &Datum, item: &Datum) -> EvalResult {
    let Datum::List(list) = target else {
        return if_comparable(same(evaluation, target, item), false).map(Datum::Bool);
    };
    for known in list.items.iter() {
        if if_comparable(same(evaluation, known, item), false)? {
            return Ok(Datum::Bool(true));
        }
    }
    Ok(Datum::Bool(false))
}

fn position<'a>(
    evaluation: &mut Evaluation<'_>,
    items: impl Iterator<Item = (usize, &'a Datum)>,
    needle: &Datum,
) -> EvalResult {
    for (at, item) in items {
        if if_comparable(same(evaluation, item, needle), false)? {
            return Ok(Datum::Int(length(at)));
        }
    }
    Ok(Datum::Int(-1))
}

/// Whether two elements have this order. Values of two types, and a NaN, have none.
fn is_order(left: &Datum, right: &Datum, wanted: Ordering) -> Result<bool, Halt> {
    if !is_ordered(right) {
        return refused(right);
    }
    match order(left, right) {
        Ok(order) => Ok(order == wanted),
        Err(halt) if halt.is_final() => Err(halt),
        Err(_) => Ok(false),
    }
}

/// The error for an operand without an overload, which is its own if it is one.
fn refused<T>(operand: &Datum) -> Result<T, Halt> {
    match operand {
        Datum::Failed(text) => error(&**text),
        _ => no_such_overload(),
    }
}

fn extreme(name: &str, items: &[Datum], replaced: Ordering) -> EvalResult {
    let Some((first, rest)) = items.split_first() else {
        return error(format!("{name} called on empty list"));
    };
    if !is_ordered(first) {
        return Err(Halt::Unsuited);
    }
    let mut best = first;
    for item in rest {
        if is_order(best, item, replaced)? {
            best = item;
        }
    }
    Ok(best.clone())
}

fn sum(evaluation: &mut Evaluation<'_>, items: &[Datum]) -> EvalResult {
    let Some((first, rest)) = items.split_first() else { return Ok(Datum::Int(0)) };
    if !matches!(first, Datum::Int(_) | Datum::Uint(_) | Datum::Double(_) | Datum::Duration(_)) {
        return Err(Halt::Unsuited);
    }
    let mut total = first.clone();
    for item in rest {
        total = match arithmetic::add(evaluation, &total, item) {
            Err(Halt::Unsuited) => return refused(item),
            result => result?,
        };
    }
    Ok(total)
}

/// The sum of an empty list of a type that the checker knows.
fn zero(sum: &Type) -> Datum {
    match sum.parts().0 {
        "uint" => Datum::Uint(0),
        "double" => Datum::Double(0.0),
        "duration" => Datum::Duration(Duration(0)),
        _ => Datum::Int(0),
    }
}

/// Sorts items by their keys; stable.
fn sorted(evaluation: &mut Evaluation<'_>, items: &[Datum], keys: &[Datum]) -> EvalResult {
    // The first key must be comparable, and all others have its type.
    if let Some(first) = keys.first() {
        if !is_ordered(first) {
            return error("list elements must be comparable");
        }
        for key in keys {
            if key.type_name() != first.type_name() {
                return error("list elements must have the same type");
            }
            compare(evaluation, first, key)?;
        }
    }
    let mut pairs: Vec<(&Datum, &Datum)> = keys.iter().zip(items).collect();
    let mut failed = None;
    pairs.sort_by(|(left, _), (right, _)| {
        compare(evaluation, left, right).unwrap_or_else(|halt| {
            failed.get_or_insert(halt);
            Ordering::Equal
        })
    });
    match failed {
        Some(halt) => Err(halt),
        None => Ok(Datum::list(pairs.into_iter().map(|(_, item)| item.clone()).collect())),
    }
}

fn is_ordered(value: &Datum) -> bool {
    matches!(
        value,
        Datum::Bool(_)
            | Datum::Int(_)
            | Datum::Uint(_)
            | Datum::Double(_)
            | Datum::String(_)
            | Datum::Bytes(_)
            | Datum::Duration(_)
            | Datum::Timestamp(_)
    )
}

fn slice(list: &ListValue, from: i64, to: i64) -> EvalResult {
    if from < 0 || to < 0 {
        return error(format!("cannot slice({from}, {to}), negative indexes not supported"));
    }
    if from > to {
        return error(format!(
            "cannot slice({from}, {to}), start index must be less than or equal to end index"
        ));
    }
    let length = length(list.items.len());
    if to > length {
        return error(format!("cannot slice({from}, {to}), list is length {length}"));
    }
    let (from, to) = (usize::try_from(from).unwrap_or(0), usize::try_from(to).unwrap_or(0));
    let items = list.items.get(from..to).unwrap_or_default().iter();
    Ok(Datum::list(items.map(|item| list.taken(item)).collect()))
}

/// Replaces lists by their elements, without recursion.
fn flatten(evaluation: &mut Evaluation<'_>, list: &ListValue, depth: i64) -> EvalResult {
    let depth = usize::try_from(depth).unwrap_or(0);
    // The price includes the elements of the list at each depth, but not those of the lists in it.
    let mut paid = list.items.len().saturating_mul(depth);
    let mut flat = Vec::new();
    let mut open = vec![(list.clone(), 0)];
    while let Some((list, at)) = open.last_mut() {
        let Some(item) = list.get(*at) else {
            open.pop();
            continue;
        };
        *at += 1;
        match item {
            Datum::List(inner) if open.len() <= depth => {
                // One more for the list itself, which may be empty.
                let work = inner.items.len() + 1;
                evaluation.charge(work.saturating_sub(paid))?;
                paid = paid.saturating_sub(work);
                open.push((inner, 0));
            }
            item => flat.push(item),
        }
    }
    Ok(Datum::list(flat))
}

/// The number of elements that `slice` takes, if it does not fail.
fn taken(values: &[Datum]) -> Option<usize> {
    let [Datum::List(list), Datum::Int(from), Datum::Int(to)] = values else { return None };
    let (from, to) = (usize::try_from(*from).ok()?, usize::try_from(*to).ok()?);
    if to > list.items.len() { None } else { to.checked_sub(from) }
}

/// The price of `flatten`: the elements at each depth. Where the reference gives a negative depth a negative price, one below
/// zero is beyond the limit.
// cel-go: ext/lists.go — trackListFlatten
fn flattened(length: usize, call: &Call<'_>) -> usize {
    let base = 1 + LIST;
    match call.values.get(1) {
        Some(Datum::Int(depth)) if *depth >= 0 || call.rules.negative_depth_counts => {
            let work = length.saturating_mul(usize::try_from(depth.unsigned_abs()).unwrap_or(usize::MAX));
            if *depth < 0 { base.checked_sub(work).unwrap_or(usize::MAX) } else { base.saturating_add(work) }
        }
        _ => base.saturating_add(length),
    }
}

/// The number of elements of a range; one instead of an error.
fn count(call: &Call<'_>) -> usize {
    match (call.values.first(), call.rules.longest_range) {
        (Some(Datum::Int(count)), Some(longest)) if !(0..=longest).contains(count) => 1,
        (Some(Datum::Int(count)), _) => usize::try_from(*count).unwrap_or(0),
        _ => 1,
    }
}

/// The comparisons of a sort.
fn comparisons(length: usize) -> usize {
    let rounds = length.checked_ilog2().and_then(|rounds| usize::try_from(rounds).ok()).unwrap_or(0);
    length.saturating_mul(1 + rounds).max(1)
}

/// The reference's price of a sort: twice the square of the length.
// cel-go: ext/lists.go — trackListSelfCompare
fn pairs(list: Option<&Datum>) -> usize {
    let Some(Datum::List(list)) = list else { return 1 + LIST };
    let length = list.items.len();
    let texts = matches!(list.items.first(), Some(Datum::String(_) | Datum::Bytes(_)));
    let tenths = if texts { 21 } else { 20 };
    (length.saturating_mul(length).saturating_mul(tenths) / 10).saturating_add(1 + LIST)
}
