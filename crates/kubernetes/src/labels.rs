//! Labels, annotations and label selectors as Kubernetes validates them.
//!
//! Follows `pkg/apis/meta/v1/validation/validation.go` and `pkg/api/validation/objectmeta.go`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::field::{FieldError, json_string};
use crate::names::{label_key_problems, label_value_problems};

const KEY_FIX: &str = "give a key such as example.com/name";
const VALUE_FIX: &str = "give at most 63 letters, digits, '-', '_' or '.'";
/// The longest annotations of an object, keys and values together.
const MAX_ANNOTATIONS: usize = 256 << 10;

/// A label selector.
// apimachinery: pkg/apis/meta/v1/types.go
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LabelSelector {
    /// The values of labels.
    pub match_labels: BTreeMap<String, String>,
    /// Requirements beside them.
    pub match_expressions: Vec<LabelSelectorRequirement>,
}

/// A requirement of a label selector.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LabelSelectorRequirement {
    /// The label.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// The values.
    pub values: Vec<String>,
}

/// The errors of labels. Kubernetes reports them in any order.
// ValidateLabels
pub(crate) fn label_errors(labels: &BTreeMap<String, String>, field: &str, errors: &mut Vec<FieldError>) {
    for (key, value) in labels {
        label_key_errors(key, field, errors);
        let problems = label_value_problems(value).into_iter();
        errors.extend(problems.map(|problem| FieldError::invalid(field, value, problem).fix(VALUE_FIX)));
    }
}

/// The errors of a label key, which is also called a qualified name.
// ValidateLabelName, ValidateQualifiedName
pub fn label_key_errors(key: &str, field: &str, errors: &mut Vec<FieldError>) {
    let problems = label_key_problems(key).into_iter();
    errors.extend(problems.map(|problem| FieldError::invalid(field, key, &problem).fix(KEY_FIX)));
}

/// The errors of annotations. Kubernetes reports them in any order.
// ValidateAnnotations
pub(crate) fn annotation_errors(
    annotations: &BTreeMap<String, String>,
    field: &str,
    errors: &mut Vec<FieldError>,
) {
    for key in annotations.keys() {
        let problems = label_key_problems(&key.to_lowercase()).into_iter();
        errors.extend(problems.map(|problem| FieldError::invalid(field, key, &problem).fix(KEY_FIX)));
    }
    let size: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > MAX_ANNOTATIONS {
        errors.push(FieldError::too_long(field, MAX_ANNOTATIONS).fix("remove annotations"));
    }
}

/// The errors of a label selector.
// ValidateLabelSelector, ValidateLabelSelectorRequirement
pub fn selector_errors(selector: &LabelSelector, field: &str, errors: &mut Vec<FieldError>) {
    label_errors(&selector.match_labels, &format!("{field}.matchLabels"), errors);
    for (index, requirement) in selector.match_expressions.iter().enumerate() {
        let LabelSelectorRequirement { key, operator, values } = requirement;
        let field = |name: &str| format!("{field}.matchExpressions[{index}].{name}");
        match operator.as_str() {
            "In" | "NotIn" if values.is_empty() => {
                let problem = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(field("values"), problem).fix("give at least one value"));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let problem = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                let error = FieldError::forbidden(field("values"), problem);
                errors.push(error.fix("remove the values, or give In or NotIn"));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                let problem = "not a valid selector operator";
                let error = FieldError::invalid_json(field("operator"), &json_string(other), problem);
                errors.push(error.fix("give In, NotIn, Exists or DoesNotExist"));
            }
        }
        label_key_errors(key, &field("key"), errors);
        for (index, value) in values.iter().enumerate() {
            let field = format!("{}[{index}]", field("values"));
            let problems = label_value_problems(value).into_iter();
            errors.extend(problems.map(|problem| FieldError::invalid(&field, value, problem).fix(VALUE_FIX)));
        }
    }
}
