//! The functions of lists.
//!
//! The price of a call (`price`) includes the walk over a list and the elements of the result; the functions charge
//! what it does not include.

use std::cmp::Ordering;

use crate::equality::{compare, equal, if_comparable, order, same};
use crate::eval::{EvalResult, Halt, Machine, error, no_such_overload};
use crate::functions::{self, length};
use crate::libraries::strings;
use crate::libraries::time::Duration;
use crate::native::Native;
use crate::types::Type;
use crate::value::{Datum, ListValue};

pub(crate) fn call(machine: &mut Machine<'_>, function: &str, values: &[Datum]) -> EvalResult {
    if let ("lists.range", [Datum::Int(count)]) = (function, values) {
        let count = usize::try_from(*count).unwrap_or(0);
        return Ok(Datum::list((0..count).map(|at| Datum::Int(length(at))).collect()));
    }
    let Some((Datum::List(list), arguments)) = values.split_first() else { return Err(Halt::Unsuited) };
    let items = list.items.as_slice();
    match (function, arguments) {
        ("join", []) => strings::join(machine, items, ""),
        ("join", [Datum::String(separator)]) => strings::join(machine, items, separator),
        ("indexOf", [needle]) => position(machine, items.iter().enumerate(), needle),
        ("lastIndexOf", [needle]) => position(machine, items.iter().enumerate().rev(), needle),
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
        ("sum", []) => sum(machine, items),
        ("distinct" | "sort", []) if items.is_empty() => Ok(Datum::List(list.clone())),
        ("sort", []) => sorted(machine, items, items),
        ("@sortByAssociatedKeys", [Datum::List(keys)]) => sorted(machine, items, keys.items.as_slice()),
        ("distinct", []) => {
            let mut kept: Vec<Datum> = Vec::new();
            for item in list.scattered() {
                let mut known = false;
                for other in &kept {
                    known = known || if_comparable(equal(machine, &item, other), false)?;
                }
                if !known {
                    kept.push(item);
                }
            }
            Ok(Datum::list(kept))
        }
        ("reverse", []) => Ok(Datum::list(list.scattered().collect::<Vec<_>>().into_iter().rev().collect())),
        ("slice", [Datum::Int(from), Datum::Int(to)]) => slice(list, *from, *to),
        ("flatten", []) => flatten(machine, list, 1),
        ("flatten", [Datum::Int(depth)]) if *depth < 0 => error("level must be non-negative"),
        ("flatten", [Datum::Int(depth)]) => flatten(machine, list, *depth),
        ("first", []) => Ok(Datum::Optional(list.get(0).map(Into::into))),
        ("last", []) => {
            Ok(Datum::Optional(items.len().checked_sub(1).and_then(|at| list.get(at)).map(Into::into)))
        }
        ("sets.contains", [Datum::List(part)]) => {
            Ok(Datum::Bool(covers(machine, items, part.items.as_slice())?))
        }
        ("sets.equivalent", [Datum::List(other)]) => {
            let other = other.items.as_slice();
            Ok(Datum::Bool(covers(machine, items, other)? && covers(machine, other, items)?))
        }
        ("sets.intersects", [Datum::List(other)]) => {
            for item in items {
                if covers(machine, other.items.as_slice(), std::slice::from_ref(item))? {
                    return Ok(Datum::Bool(true));
                }
            }
            Ok(Datum::Bool(false))
        }
        _ => Err(Halt::Unsuited),
    }
}

fn position<'a>(
    machine: &mut Machine<'_>,
    items: impl Iterator<Item = (usize, &'a Datum)>,
    needle: &Datum,
) -> EvalResult {
    for (at, item) in items {
        if if_comparable(same(machine, item, needle), false)? {
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

fn sum(machine: &mut Machine<'_>, items: &[Datum]) -> EvalResult {
    let Some((first, rest)) = items.split_first() else { return Ok(Datum::Int(0)) };
    if !matches!(
        first,
        Datum::Int(_) | Datum::Uint(_) | Datum::Double(_) | Datum::Native(Native::Duration(_))
    ) {
        return Err(Halt::Unsuited);
    }
    let mut total = first.clone();
    for item in rest {
        total = match functions::add(machine, &total, item) {
            Err(Halt::Unsuited) => return refused(item),
            result => result?,
        };
    }
    Ok(total)
}

/// The sum of an empty list of a type that the checker knows.
pub(crate) fn zero(sum: &Type) -> Datum {
    match sum.parts().0 {
        "uint" => Datum::Uint(0),
        "double" => Datum::Double(0.0),
        "duration" => Datum::Native(Native::Duration(Duration(0))),
        _ => Datum::Int(0),
    }
}

/// Sorts items by their keys; stable.
fn sorted(machine: &mut Machine<'_>, items: &[Datum], keys: &[Datum]) -> EvalResult {
    // The first key must be comparable, and all others have its type.
    if let Some(first) = keys.first() {
        if !is_ordered(first) {
            return error("list elements must be comparable");
        }
        for key in keys {
            if key.type_name() != first.type_name() {
                return error("list elements must have the same type");
            }
            compare(machine, first, key)?;
        }
    }
    let mut pairs: Vec<(&Datum, &Datum)> = keys.iter().zip(items).collect();
    let mut failed = None;
    pairs.sort_by(|(left, _), (right, _)| {
        compare(machine, left, right).unwrap_or_else(|halt| {
            failed = Some(halt);
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
            | Datum::Native(Native::Duration(_) | Native::Timestamp(_))
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
fn flatten(machine: &mut Machine<'_>, list: &ListValue, depth: i64) -> EvalResult {
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
                machine.charge(work.saturating_sub(paid))?;
                paid = paid.saturating_sub(work);
                open.push((inner, 0));
            }
            item => flat.push(item),
        }
    }
    Ok(Datum::list(flat))
}

/// Whether each element of `part` equals one of `items`. It is the left operand of the equality, which is not symmetric.
// cel-go: common/types/list.go — Contains
fn covers(machine: &mut Machine<'_>, items: &[Datum], part: &[Datum]) -> Result<bool, Halt> {
    for needle in part {
        let mut found = false;
        for item in items {
            found = found || if_comparable(equal(machine, needle, item), false)?;
        }
        if !found {
            return Ok(false);
        }
    }
    Ok(true)
}
