//! The error of one field, with Kubernetes' text, and its fix.
//!
//! Follows `k8s.io/apimachinery/pkg/util/validation/field/errors.go`.

use std::borrow::Cow;
use std::fmt;

use crate::go::quote::Quoted;

/// The error of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::config) struct FieldError {
    /// The path of the field, such as `jwt[0].issuer.url`.
    pub(in crate::config) field: String,
    /// The problem, without the path.
    pub(in crate::config) body: String,
    /// How to fix it.
    pub(in crate::config) fix: Cow<'static, str>,
}

impl FieldError {
    fn new(field: impl Into<String>, kind: &str, detail: &str) -> Self {
        let separator = if detail.is_empty() { "" } else { ": " };
        Self { field: field.into(), body: format!("{kind}{separator}{detail}"), fix: Cow::Borrowed("") }
    }

    /// A required value is missing.
    pub(super) fn required(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, "Required value", detail)
    }

    /// A unique value occurs twice.
    pub(super) fn duplicate(field: impl Into<String>, value: &str) -> Self {
        Self::new(field, "Duplicate value", &Quoted(value).to_string()).fix("remove one of the two")
    }

    /// A string value is invalid.
    pub(super) fn invalid(field: impl Into<String>, value: &str, detail: &str) -> Self {
        Self::invalid_json(field, &Quoted(value).to_string(), detail)
    }

    /// A value of another type is invalid; `value` is its JSON.
    pub(super) fn invalid_json(field: impl Into<String>, value: &str, detail: &str) -> Self {
        Self::new(field, &format!("Invalid value: {value}"), detail)
    }

    /// A list is too long.
    pub(super) fn too_many(field: impl Into<String>, count: usize, most: usize) -> Self {
        Self::new(field, &format!("Too many: {count}"), &format!("must have at most {most} items"))
    }

    /// A value is not allowed together with another.
    pub(in crate::config) fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, "Forbidden", detail)
    }

    /// Adds the fix.
    #[must_use]
    pub(in crate::config) fn fix(mut self, fix: impl Into<Cow<'static, str>>) -> Self {
        self.fix = fix.into();
        self
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body)
    }
}
