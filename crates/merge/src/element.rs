//! The elements of paths. An element of an associative list is identified by its value or by those of its keys.
//!
//! Follows structured-merge-diff: `fieldpath/element.go`, and `typed/helpers.go` from `getAssociativeKeyDefault` on.

use std::cmp::Ordering;
use std::fmt;

use portcullis_go::quote::QuotedList;
use serde_json::Value;

use crate::schema::{List, Relationship, Types};
use crate::text::{GoNumber, InPath};

/// An element of a path, except that of an associative list: [`Identity`].
#[derive(Debug)]
pub(crate) enum Element<'a> {
    Field(&'a str),
    Index(usize),
}

/// Which element of an associative list it is. Numbers are compared as numbers: `1` is `1.0`.
#[derive(Debug)]
pub(crate) enum Identity<'a> {
    /// Keys and their values, sorted by key.
    Keys(Vec<(&'a str, &'a Value)>),
    Value(&'a Value),
}

impl<'a> Identity<'a> {
    /// The identity of an element of a list; the error is a fault's message without the place.
    pub(crate) fn of(
        types: &'a Types,
        list: &'a List,
        relationship: Relationship,
        item: &'a Value,
    ) -> Result<Self, String> {
        if relationship != Relationship::Associative {
            return Err("invalid indexing of non-associative list".to_owned());
        }
        if list.keys.is_empty() {
            return Self::of_set_item(item).map_err(str::to_owned);
        }
        let fields = match item {
            Value::Object(fields) => fields,
            Value::Null => {
                return Err("associative list with keys may not have a null element".to_owned());
            }
            _ => return Err("associative list with keys may not have non-map elements".to_owned()),
        };
        let mut keys = Vec::with_capacity(list.keys.len());
        for key in &list.keys {
            if let Some(value) = fields.get(&**key) {
                keys.push((&**key, value));
            } else if let Some(value) = default_of(types, list, key)? {
                keys.push((&**key, value));
            }
        }
        if keys.is_empty() {
            return Err(format!(
                "associative list with keys has an element that omits all key fields {} (and doesn't have default values for \
                 any key fields)",
                QuotedList(&list.keys)
            ));
        }
        keys.sort_by_key(|(key, _)| *key);
        Ok(Self::Keys(keys))
    }

    fn of_set_item(item: &'a Value) -> Result<Self, &'static str> {
        match item {
            Value::Object(_) => Err("associative list without keys has an element that's a map type"),
            Value::Array(_) => Err("not supported: associative list with lists as elements"),
            Value::Null => Err("associative list without keys has an element that's an explicit null"),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(Self::Value(item)),
        }
    }
}

fn default_of<'a>(types: &'a Types, list: &'a List, key: &str) -> Result<Option<&'a Value>, String> {
    let failed = |why: &str| Err(format!("couldn't find default value for {key}: {why}"));
    let Some(element) = types.resolve(&list.element) else {
        return failed("invalid elementType for list");
    };
    let Some((map, _)) = element.map else {
        return failed("associative list may not have non-map types");
    };
    Ok(map.field(key).and_then(|field| field.default.as_deref()))
}

impl Ord for Identity<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Keys(left), Self::Keys(right)) => {
                compare_fields(left.iter().copied(), right.iter().copied())
            }
            (Self::Value(left), Self::Value(right)) => compare(left, right),
            (Self::Keys(_), Self::Value(_)) => Ordering::Less,
            (Self::Value(_), Self::Keys(_)) => Ordering::Greater,
        }
    }
}

impl PartialOrd for Identity<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Identity<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Identity<'_> {}

fn compare_fields<'a>(
    mut left: impl Iterator<Item = (&'a str, &'a Value)>,
    mut right: impl Iterator<Item = (&'a str, &'a Value)>,
) -> Ordering {
    loop {
        let order = match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
            (Some((name, value)), Some((other_name, other))) => {
                name.cmp(other_name).then_with(|| compare(value, other))
            }
        };
        if order.is_ne() {
            return order;
        }
    }
}

/// An order of values in which `1` and `1.0` are the same.
fn compare(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => match (left.into(), right.into()) {
            (GoNumber::Int(left), GoNumber::Int(right)) => left.cmp(&right),
            // JSON has no other numbers than those that have an order.
            (left, right) => left.as_double().partial_cmp(&right.as_double()).unwrap_or(Ordering::Equal),
        },
        (Value::String(left), Value::String(right)) => left.cmp(right),
        (Value::Bool(left), Value::Bool(right)) => left.cmp(right),
        (Value::Array(left), Value::Array(right)) => {
            let different =
                left.iter().zip(right).map(|(left, right)| compare(left, right)).find(|order| order.is_ne());
            different.unwrap_or_else(|| left.len().cmp(&right.len()))
        }
        (Value::Object(left), Value::Object(right)) => compare_fields(
            left.iter().map(|(name, value)| (name.as_str(), value)),
            right.iter().map(|(name, value)| (name.as_str(), value)),
        ),
        _ => rank(left).cmp(&rank(right)),
    }
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

impl fmt::Display for Element<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

impl fmt::Display for Identity<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => write!(f, "[={}]", InPath(value)),
            Self::Keys(keys) => {
                f.write_str("[")?;
                for (at, (name, value)) in keys.iter().enumerate() {
                    write!(f, "{}{name}={}", if at == 0 { "" } else { "," }, InPath(value))?;
                }
                f.write_str("]")
            }
        }
    }
}
