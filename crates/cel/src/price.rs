//! What calls cost before they are made, as far as libraries have it in common; each states the prices of its functions.
//!
//! The prices are the reference's, where a text counts as its bytes: work is done on bytes, and a character has at least
//! one. A call costs more than in the reference where its work would otherwise be free: `split`, `replace` and `flatten`
//! pay for a result that is longer than what they read (see there), and calls on values of type `dyn`, one unit in the
//! reference, pay as those on typed values.

use super::evaluation::{Evaluation, Halt};
use super::value::Datum;

/// The cost of creating a list.
// cel-go: common/cost.go
pub(super) const LIST: usize = 10;
/// The cost of creating a map.
pub(super) const MAP: usize = 30;
/// The cost of creating an object.
pub(super) const STRUCT: usize = 40;

/// The cost of a tenth of a unit for each byte or element.
pub(super) fn tenth(length: usize) -> usize {
    length.div_ceil(10)
}

/// What a call costs before it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Price {
    Units(usize),
    /// A walk through all that the first value contains, which is charged as it goes.
    Traversal,
}

impl Price {
    /// The price of a function that is cheap on any values.
    pub(super) const ONE: Self = Self::Units(1);

    /// Charges a call on these values.
    pub(super) fn charge(self, evaluation: &mut Evaluation<'_>, values: &[Datum]) -> Result<(), Halt> {
        match (self, values.first()) {
            (Self::Units(units), _) => evaluation.charge(units),
            (Self::Traversal, Some(value)) => traverse(evaluation, value),
            (Self::Traversal, None) => evaluation.charge(1),
        }
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
        Datum::Native(native) => native.length(),
        _ => 1,
    }
}

/// What a comparison of values of libraries reads.
pub(super) fn compared(values: &[Datum]) -> usize {
    let lengths = values.iter().filter_map(|value| match value {
        Datum::Native(native) => Some(native.compared_length()),
        Datum::Duration(_) | Datum::Timestamp(_) => Some(1),
        _ => None,
    });
    lengths.min().unwrap_or(1)
}

/// Charges a walk through all that a value contains.
// apiserver: pkg/cel/library/cost.go — traversalCost
fn traverse(evaluation: &mut Evaluation<'_>, value: &Datum) -> Result<(), Halt> {
    let before = evaluation.spent();
    match value {
        Datum::String(_) | Datum::Bytes(_) => return evaluation.charge(size(value) / 10),
        Datum::List(list) => list.items.iter().try_for_each(|item| traverse(evaluation, item))?,
        Datum::Map(map) => map.entries.iter().try_for_each(|(key, value)| {
            traverse(evaluation, &key.datum())?;
            traverse(evaluation, value)
        })?,
        // The reference iterates over the values there, and looks each up as a key.
        Datum::Root(root) => root.fields.values().try_for_each(|value| {
            traverse(evaluation, value)?;
            match value {
                Datum::String(name) => match root.find(name) {
                    Some(found) => traverse(evaluation, &found),
                    None => evaluation.charge(1),
                },
                _ => evaluation.charge(1),
            }
        })?,
        _ => return evaluation.charge(1),
    }
    // Short texts are free in the reference.
    let paid = usize::try_from(evaluation.spent() - before).unwrap_or(usize::MAX);
    evaluation.charge(tenth(size(value)).saturating_sub(paid))
}
