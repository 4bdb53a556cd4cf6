//! Two values of a type into one: what the right one sets is kept, and the rest of the left one.
//!
//! Follows structured-merge-diff: `typed/merge.go`. Faults are rare here, since both values are valid: what is left are types that
//! contradict themselves.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map as JsonMap, Value};

use crate::element::{Element, Identity};
use crate::errors::Faults;
use crate::schema::{List, Map, Relationship, Resolved, TypeRef, Types};
use crate::validation::{invalid_atom, scalar_fault, unresolved};

/// Two values of one type; at least one is there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair<'a> {
    pub(crate) left: Option<&'a Value>,
    pub(crate) right: Option<&'a Value>,
}

/// The merged value; nothing if it has no parts, or faults.
type Merged = (Option<Value>, Faults);

static NULL: Value = Value::Null;

impl Pair<'_> {
    /// The pair as one value.
    fn leaf(self) -> Merged {
        (self.right.or(self.left).cloned(), Faults::NONE)
    }
}

pub(crate) fn merge(types: &Types, kind: &TypeRef, pair: Pair<'_>) -> Merged {
    let Some(resolved) = types.resolve(kind) else {
        return (None, unresolved(types, kind));
    };
    let of = |value: Option<&Value>| value.map_or(resolved, |value| resolved.for_value(value));
    let (left, right) = (of(pair.left), of(pair.right));
    if pair.right.is_none() {
        return merge_kind(types, kind, left, pair);
    }
    if pair.left.is_none() || left.is_same_kind(right) {
        return merge_kind(types, kind, right, pair);
    }
    // The kind has changed. What the left one makes of both is lost; its faults are not.
    let (_, mut faults) = merge_kind(types, kind, left, pair);
    let (merged, others) = merge_kind(types, kind, right, pair);
    faults.append(others);
    (merged, faults)
}

fn merge_kind(types: &Types, kind: &TypeRef, resolved: Resolved<'_>, pair: Pair<'_>) -> Merged {
    let Resolved { scalar, list, map } = resolved;
    if let Some((map, relationship)) = map {
        merge_maps(types, map, relationship, pair)
    } else if let Some(scalar) = scalar {
        // One of the two suffices.
        let fault = |value: Option<&Value>| scalar_fault(scalar, value?);
        if let (Some(left), Some(right)) = (fault(pair.left), fault(pair.right)) {
            let mut faults = Faults::one(format!("lhs: {left}"));
            faults.append(Faults::one(format!("rhs: {right}")));
            return (None, faults);
        }
        pair.leaf()
    } else if let Some((list, relationship)) = list {
        merge_lists(types, list, relationship, pair)
    } else {
        (None, invalid_atom(types, kind))
    }
}

fn merge_maps(types: &Types, map: &Map, relationship: Relationship, pair: Pair<'_>) -> Merged {
    let (left, right) = (pair.left.and_then(Value::as_object), pair.right.and_then(Value::as_object));
    let is_empty = |fields: Option<&JsonMap<_, _>>| fields.is_none_or(JsonMap::is_empty);
    // Null and an empty map are different, and kept as they are.
    if relationship == Relationship::Atomic || (is_empty(left) && is_empty(right)) {
        return pair.leaf();
    }
    let mut merged = JsonMap::new();
    let mut faults = Faults::default();
    let mut field = |name: &String, pair: Pair<'_>| {
        let (value, found) = merge(types, map.type_of(name), pair);
        faults.append(found.within(&Element::Field(name)));
        if let Some(value) = value {
            merged.insert(name.clone(), value);
        }
    };
    for (name, value) in left.into_iter().flatten() {
        field(name, Pair { left: Some(value), right: right.and_then(|right| right.get(name)) });
    }
    for (name, value) in right.into_iter().flatten() {
        if left.is_none_or(|left| !left.contains_key(name)) {
            field(name, Pair { left: None, right: Some(value) });
        }
    }
    ((!merged.is_empty()).then_some(Value::Object(merged)), faults)
}

fn merge_lists(types: &Types, list: &List, relationship: Relationship, pair: Pair<'_>) -> Merged {
    let (left, right) = (pair.left.and_then(Value::as_array), pair.right.and_then(Value::as_array));
    let is_empty = |items: Option<&Vec<_>>| items.is_none_or(Vec::is_empty);
    if relationship == Relationship::Atomic || (is_empty(left) && is_empty(right)) {
        return pair.leaf();
    }
    let (right, mut faults) = identified(types, list, relationship, right, Duplicates::Refused);
    let (left, others) = identified(types, list, relationship, left, Duplicates::Allowed);
    faults.append(others);
    if !faults.is_empty() {
        return (None, faults);
    }
    let numbers: BTreeMap<&Identity<'_>, usize> =
        right.iter().enumerate().map(|(number, (identity, _))| (identity, number)).collect();
    let in_right: Vec<Option<usize>> =
        left.iter().map(|(identity, _)| numbers.get(identity).copied()).collect();
    let mut in_left: Vec<Option<&Value>> = vec![None; right.len()];
    for ((_, item), number) in left.iter().zip(&in_right) {
        if let Some(same) = number.and_then(|number| in_left.get_mut(number)) {
            // Which of several is meant is not known: none is merged.
            *same = Some(if same.is_some() { &NULL } else { item });
        }
    }
    let pairs = places(&in_right, &in_left).into_iter().filter_map(|place| {
        let pair = match place {
            Place::Left(number) => Pair { left: Some(left.get(number)?.1), right: None },
            Place::Right(number) => Pair { left: *in_left.get(number)?, right: Some(right.get(number)?.1) },
        };
        // structured-merge-diff loses the faults of elements.
        merge(types, &list.element, pair).0
    });
    let merged: Vec<Value> = pairs.collect();
    ((!merged.is_empty()).then_some(Value::Array(merged)), Faults::NONE)
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Duplicates {
    Allowed,
    Refused,
}

/// The elements of a list with their identities.
fn identified<'a>(
    types: &'a Types,
    list: &'a List,
    relationship: Relationship,
    items: Option<&'a Vec<Value>>,
    duplicates: Duplicates,
) -> (Vec<(Identity<'a>, &'a Value)>, Faults) {
    let mut faults = Faults::default();
    let mut found = Vec::new();
    for (index, item) in items.into_iter().flatten().enumerate() {
        match Identity::of(types, list, relationship, item) {
            Ok(identity) => found.push((identity, item)),
            Err(why) => faults.append(Faults::one(format!("element {index}: {why}"))),
        }
    }
    if duplicates == Duplicates::Refused {
        let mut seen = BTreeSet::new();
        for (identity, _) in &found {
            if !seen.insert(identity) {
                faults.append(Faults::one(format!("duplicate entries for key {identity}")));
            }
        }
    }
    (found, faults)
}

/// An element of a merged list.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Of the left list alone, by its number there.
    Left(usize),
    /// Of the right list, by its number there; the left one may have it too.
    Right(usize),
}

/// The order of a merged list: that of the right list for its elements; those of the left one alone come as early as that allows.
///
/// `in_right` has the number in the right list for each element of the left one, and `in_left` the reverse.
// structured-merge-diff: typed/merge.go, visitListItems; the order of its conditions is what matters
fn places(in_right: &[Option<usize>], in_left: &[Option<&Value>]) -> Vec<Place> {
    let mut places = Vec::new();
    let mut shared = (0..in_left.len()).filter(|number| in_left.get(*number).is_some_and(Option::is_some));
    let mut next_shared = shared.next();
    let (mut left, mut right) = (0, 0);
    while left < in_right.len() || right < in_left.len() {
        if let Some(same) = in_right.get(left) {
            match *same {
                Some(same) if same == right => {
                    places.push(Place::Right(right));
                    left += 1;
                    right += 1;
                    next_shared = shared.next();
                    continue;
                }
                // It waits for its turn in the right list.
                Some(same) if next_shared.is_some_and(|next| next != same) => {
                    left += 1;
                    continue;
                }
                // It has had its turn, as one of several that are the same.
                Some(same) if same < right => left += 1,
                Some(_) => {}
                None => {
                    places.push(Place::Left(left));
                    left += 1;
                    continue;
                }
            }
        }
        if right < in_left.len() {
            places.push(Place::Right(right));
            right += 1;
        }
    }
    places
}
