//! Label selectors.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector as WireSelector;
use portcullis_go::quote::Quoted;
use serde_json::{Map, Value};

use super::label_syntax::{key_errors, value_errors};
use super::statuses::aggregate;

/// A label selector, compiled.
// apimachinery: pkg/apis/meta/v1/helpers.go, LabelSelectorAsSelector
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {
    /// All must match.
    requirements: Vec<Requirement>,
}

/// What one label must be.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
    /// In order.
    values: Vec<String>,
}

/// `matchLabels` are [`Self::In`] with one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

/// Why a selector is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub String);

impl LabelSelector {
    /// Compiles a selector. An error is that of the first invalid requirement; those of `matchLabels` come first, by key.
    pub fn new(selector: &WireSelector) -> Result<Self, SelectorError> {
        let labels = selector.match_labels.iter().flatten();
        let mut requirements = labels
            .map(|(key, value)| Requirement::new(key, Operator::In, std::slice::from_ref(value)))
            .collect::<Result<Vec<_>, _>>()?;
        for expression in selector.match_expressions.iter().flatten() {
            let operator = Operator::parse(&expression.operator)?;
            let values = expression.values.as_deref().unwrap_or_default();
            requirements.push(Requirement::new(&expression.key, operator, values)?);
        }
        Ok(Self { requirements })
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether it selects an object with these labels.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_by(|key| labels.get(key).map(String::as_str))
    }

    /// Whether it selects an object with these labels, as JSON.
    pub(super) fn matches_object(&self, labels: &ObjectLabels<'_>) -> bool {
        match labels {
            ObjectLabels::Inaccessible => false,
            ObjectLabels::Invalid => true,
            ObjectLabels::None => self.matches_by(|_| None),
            ObjectLabels::Some(labels) => {
                self.matches_by(|key| labels.get(key).map(|value| value.as_str().unwrap_or_default()))
            }
        }
    }

    fn matches_by<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(label(&requirement.key)))
    }
}

impl Requirement {
    // apimachinery: pkg/labels/selector.go, NewRequirement
    fn new(key: &str, operator: Operator, values: &[String]) -> Result<Self, SelectorError> {
        let mut errors = Vec::new();
        let of_key = key_errors(key);
        if !of_key.is_empty() {
            errors.push(format!("key: Invalid value: {}: {}", Quoted(key), of_key.join("; ")));
        }
        let complaint = match operator {
            Operator::In | Operator::NotIn if values.is_empty() => {
                Some("for 'in', 'notin' operators, values set can't be empty")
            }
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                Some("values set must be empty for exists and does not exist")
            }
            _ => None,
        };
        if let Some(complaint) = complaint {
            errors.push(format!("values: Invalid value: {}: {complaint}", shown(values)));
        }
        for (index, value) in values.iter().enumerate() {
            let of_value = value_errors(value);
            if !of_value.is_empty() {
                let value = Quoted(value);
                errors
                    .push(format!("values[{index}][{key}]: Invalid value: {value}: {}", of_value.join("; ")));
            }
        }
        if let Some(text) = aggregate(&errors) {
            return Err(SelectorError(text));
        }
        let mut values = values.to_vec();
        values.sort_unstable();
        Ok(Self { key: key.to_owned(), operator, values })
    }

    // apimachinery: pkg/labels/selector.go, Requirement.Matches
    fn matches(&self, label: Option<&str>) -> bool {
        let has = |value: &str| self.values.binary_search_by(|each| each.as_str().cmp(value)).is_ok();
        match self.operator {
            Operator::In => label.is_some_and(has),
            Operator::NotIn => !label.is_some_and(has),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
        }
    }
}

impl Operator {
    fn parse(text: &str) -> Result<Self, SelectorError> {
        Ok(match text {
            "In" => Self::In,
            "NotIn" => Self::NotIn,
            "Exists" => Self::Exists,
            "DoesNotExist" => Self::DoesNotExist,
            other => {
                return Err(SelectorError(format!(
                    "{} is not a valid label selector operator",
                    Quoted(other)
                )));
            }
        })
    }
}

/// A list as Go's `json.Marshal` writes it.
fn shown(values: &[String]) -> String {
    if values.is_empty() {
        return "null".to_owned();
    }
    let json = Value::from(values).to_string();
    [('<', "\\u003c"), ('>', "\\u003e"), ('&', "\\u0026"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")]
        .into_iter()
        .fold(json, |json, (character, escape)| json.replace(character, escape))
}

/// The labels of an object, as JSON.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ObjectLabels<'a> {
    /// There is no object, or one of a kind without metadata: no selector matches it.
    Inaccessible,
    /// The metadata or the labels have a wrong type. The API server refuses such an object before it calls webhooks;
    /// every selector matches it here, so that no reading of it avoids a webhook.
    Invalid,
    /// The object has no labels.
    None,
    /// The labels; their values are strings, or `null` for the empty string.
    Some(&'a Map<String, Value>),
}

impl<'a> ObjectLabels<'a> {
    /// The labels of an object. `has_metadata`: objects of its kind have metadata, even if this one's JSON omits it.
    pub(super) fn of(object: Option<&'a Value>, has_metadata: bool) -> Self {
        let Some(object) = object else { return Self::Inaccessible };
        let Some(fields) = object.as_object() else { return Self::Invalid };
        match fields.get("metadata") {
            None if !has_metadata => Self::Inaccessible,
            None | Some(Value::Null) => Self::None,
            Some(Value::Object(metadata)) => match metadata.get("labels") {
                None | Some(Value::Null) => Self::None,
                Some(Value::Object(labels)) if labels.values().all(is_label_value) => Self::Some(labels),
                Some(_) => Self::Invalid,
            },
            Some(_) => Self::Invalid,
        }
    }
}

/// Whether a value can be that of a label; Go's decoder reads `null` as the empty string.
fn is_label_value(value: &Value) -> bool {
    value.is_string() || value.is_null()
}
