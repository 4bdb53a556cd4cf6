//! What a call costs before it is made.
//!
//! The prices are the reference's, where a text counts as its bytes: work is done on bytes, and a character has at least
//! one. A call costs more than in the reference where its work would otherwise be free: `split`, `replace` and `flatten`
//! pay for a result that is longer than what they read (see there), and calls on values of type `dyn`, one unit in the
//! reference, pay as those on typed values.

use super::eval::{Halt, Machine};
use super::native::Native;
use super::signatures::Overload;
use super::types::Type;
use super::value::Datum;

/// The cost of creating a list.
// cel-go: common/cost.go
pub(super) const LIST: usize = 10;
/// The cost of creating a map.
pub(super) const MAP: usize = 30;
/// The cost of creating an object.
const STRUCT: usize = 40;

/// The cost of a tenth of a unit for each byte or element.
pub(super) fn tenth(length: usize) -> usize {
    length.div_ceil(10)
}

/// Charges a call on these values.
pub(super) fn charge(
    machine: &mut Machine<'_>,
    function: &str,
    only: Option<&Overload>,
    values: &[Datum],
) -> Result<(), Halt> {
    match (function, values.first()) {
        ("isSorted" | "sum" | "min" | "max" | "indexOf" | "lastIndexOf", Some(value)) => {
            traverse(machine, value)
        }
        _ => machine.charge(of(function, only, values)),
    }
}

/// The price of a call. Functions that are not listed here cost one unit; their libraries charge the rest.
///
/// `only` is the overload that the checker selected: the reference knows the price of most functions by it.
// cel-go: interpreter/runtimecost.go — costCall; ext/lists.go, ext/sets.go; apiserver: pkg/cel/library/cost.go — CallCost
fn of(function: &str, only: Option<&Overload>, values: &[Datum]) -> usize {
    let sizes: Vec<usize> = values.iter().take(2).map(size).collect();
    let first = sizes.first().copied().unwrap_or(1);
    let second = sizes.get(1).copied().unwrap_or(1);
    // An untyped call costs one unit at least.
    let typed = |price: usize| if only.is_some() { price } else { price.max(1) };
    match function {
        // The comparison charges the length.
        "_==_" if matches!(values.first(), Some(Datum::Native(_))) => 1,
        "_==_" | "_!=_" => tenth(first.min(second)),
        "_<_" | "_<=_" | "_>_" | "_>=_" => by_text(only, values, first.min(second)),
        "_+_" => by_text(only, values, first.saturating_add(second)),
        "bytes" | "string" => by_text(only, values, first),
        "@in" => match (only.and_then(|only| only.parameters.get(1)), values.get(1)) {
            (Some(Type::Named("list", _)), _) => second,
            (None, Some(Datum::List(_))) => second.max(1),
            _ => 1,
        },
        "startsWith" | "endsWith" | "strings.quote" | "lowerAscii" | "upperAscii" | "substring" | "trim" => {
            typed(tenth(first))
        }
        "contains" => typed(tenth(first).saturating_mul(tenth(second))),
        "matches" | "find" | "findAll" => tenth(first.saturating_add(1))
            .saturating_mul(second.div_ceil(4))
            .max(usize::from(function == "matches")),
        "replace" | "split" | "ip.isCanonical" => first.div_ceil(5),
        "ip" if matches!(values, [Datum::Native(Native::Cidr(_))]) => 1,
        "ip"
        | "cidr"
        | "isIP"
        | "isCIDR"
        | "url"
        | "quantity"
        | "isQuantity"
        | "semver"
        | "isSemver"
        | "jsonpatch.escapeKey" => tenth(first),
        // The comparison of bytes, and the text of the other.
        "containsIP" => tenth(first.saturating_mul(2)) + text_of(values.get(1)),
        "containsCIDR" => tenth(first.saturating_mul(2)) + tenth(first) + 1 + text_of(values.get(1)),
        "validate" => match values.first() {
            Some(Datum::Native(Native::NamedFormat(format))) => {
                tenth(second.saturating_add(1)).saturating_mul(format.pattern_size().div_ceil(4))
            }
            _ => 1,
        },
        // One unit in the reference, however long versions are.
        "compareTo" | "isLessThan" | "isGreaterThan" => 1 + compared(values) / 10,
        // One unit in the reference, however long the text is.
        "charAt" | "bool" | "double" | "int" | "uint" | "isURL" => tenth(first).max(1),
        // By the length of the result.
        "join" => match values {
            [Datum::List(list)] | [Datum::List(list), Datum::String(_)] => {
                usize::from(list.items.first().is_some_and(|first| !matches!(first, Datum::String(_))))
            }
            _ => 1,
        },
        "lists.range" => 1 + LIST + count(values.first()),
        "slice" => 1 + LIST + taken(values).unwrap_or(1),
        "reverse" => 1 + LIST + first,
        "flatten" => flattened(first, values.get(1)),
        "distinct" => pairs(values.first()),
        "sort" if only.is_some() => pairs(values.first()),
        "@sortByAssociatedKeys" if only.is_some() => pairs(values.get(1)),
        "sort" => comparisons(first),
        "@sortByAssociatedKeys" => comparisons(second),
        "sets.contains" | "sets.intersects" => first.saturating_mul(second).saturating_add(1),
        "sets.equivalent" => first.saturating_mul(second).saturating_mul(2).saturating_add(1),
        // A check is for two questions in an expression.
        "check" => 350_000,
        // A list, and for every two characters a requirement with a list.
        "fieldSelector" | "labelSelector" => {
            second.div_ceil(2).saturating_mul(LIST + STRUCT).saturating_add(LIST + tenth(second))
        }
        _ => 1,
    }
}

/// The number of bytes, elements or entries; one of all other values.
pub(super) fn size(value: &Datum) -> usize {
    match value {
        Datum::String(text) => text.len(),
        Datum::Bytes(bytes) => bytes.len(),
        Datum::List(list) => list.items.len(),
        Datum::Map(map) => map.entries.len(),
        Datum::Root(root) => root.fields.len(),
        Datum::Optional(Some(held)) => size(held),
        Datum::Native(Native::Ip(address)) => {
            if address.is_ipv4() {
                4
            } else {
                16
            }
        }
        Datum::Native(Native::Cidr(network)) => usize::from(network.bits).div_ceil(8),
        _ => 1,
    }
}

/// What a comparison of values of libraries reads.
fn compared(values: &[Datum]) -> usize {
    let sizes = values.iter().filter_map(|value| match value {
        Datum::Native(native) => Some(native.size()),
        _ => None,
    });
    sizes.min().unwrap_or(1)
}

/// The price of reading an operand that is a text.
fn text_of(value: Option<&Datum>) -> usize {
    match value {
        Some(Datum::Native(_)) | None => 0,
        Some(value) => tenth(size(value)),
    }
}

/// The price of a function that reads texts by one of its overloads, and costs one unit by the others.
fn by_text(only: Option<&Overload>, values: &[Datum], length: usize) -> usize {
    let declared = only.and_then(|only| only.parameters.first());
    if matches!(declared, Some(Type::Named("string" | "bytes", _))) {
        // `string(string)` is one unit in the reference.
        let same = only.is_some_and(|only| values.len() == 1 && Some(&only.result) == declared);
        return if same { tenth(length).max(1) } else { tenth(length) };
    }
    match values.first() {
        Some(Datum::String(_) | Datum::Bytes(_)) => tenth(length).max(1),
        _ => 1,
    }
}

/// Charges a walk through all that a value contains.
// apiserver: pkg/cel/library/cost.go — traversalCost
fn traverse(machine: &mut Machine<'_>, value: &Datum) -> Result<(), Halt> {
    let before = machine.spent();
    match value {
        Datum::String(_) | Datum::Bytes(_) => return machine.charge(size(value) / 10),
        Datum::List(list) => list.items.iter().try_for_each(|item| traverse(machine, item))?,
        Datum::Map(map) => map.entries.iter().try_for_each(|(key, value)| {
            traverse(machine, &key.datum())?;
            traverse(machine, value)
        })?,
        Datum::Root(root) => root.fields.iter().try_for_each(|(key, value)| {
            machine.charge(key.len() / 10)?;
            traverse(machine, value)
        })?,
        _ => return machine.charge(1),
    }
    // Short texts are free in the reference.
    let paid = usize::try_from(machine.spent() - before).unwrap_or(usize::MAX);
    machine.charge(tenth(size(value)).saturating_sub(paid))
}

/// The number of elements that `slice` takes, if it does not fail.
fn taken(values: &[Datum]) -> Option<usize> {
    let [Datum::List(list), Datum::Int(from), Datum::Int(to)] = values else { return None };
    let (from, to) = (usize::try_from(*from).ok()?, usize::try_from(*to).ok()?);
    if to > list.items.len() { None } else { to.checked_sub(from) }
}

/// The price of `flatten`: the elements at each depth. As in the reference, a negative depth gives a negative price, and one
/// below zero is beyond the limit.
// cel-go: ext/lists.go — trackListFlatten
fn flattened(length: usize, depth: Option<&Datum>) -> usize {
    let base = 1 + LIST;
    match depth {
        Some(Datum::Int(depth)) => {
            let work = length.saturating_mul(usize::try_from(depth.unsigned_abs()).unwrap_or(usize::MAX));
            if *depth < 0 { base.checked_sub(work).unwrap_or(usize::MAX) } else { base.saturating_add(work) }
        }
        _ => base.saturating_add(length),
    }
}

/// A number of elements; one instead of an error.
fn count(value: Option<&Datum>) -> usize {
    match value {
        Some(Datum::Int(count)) => usize::try_from(*count).unwrap_or(0),
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
