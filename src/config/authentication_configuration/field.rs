//! What is wrong with one field, in Kubernetes' words, and the way out.
//!
//! Follows `k8s.io/apimachinery/pkg/util/validation/field/errors.go`.

use std::fmt;

use crate::go::quote::Quoted;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::config) struct FieldError {
    /// The path of the field, such as `jwt[0].issuer.url`.
    pub(in crate::config) field: String,
    /// What is wrong with it.
    pub(in crate::config) body: String,
    /// What to do about it.
    pub(in crate::config) fix: &'static str,
}

impl FieldError {
    fn new(field: impl Into<String>, kind: &str, detail: &str) -> Self {
        let separator = if detail.is_empty() { "" } else { ": " };
        Self { field: field.into(), body: format!("{kind}{separator}{detail}"), fix: "" }
    }

    /// A value is missing.
    pub(super) fn required(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, "Required value", detail)
    }

    /// A value that must be unique is not.
    pub(super) fn duplicate(field: impl Into<String>, value: &str) -> Self {
        Self::new(field, "Duplicate value", &Quoted(value).to_string()).fix("remove one of the two")
    }

    /// A value cannot be used.
    pub(super) fn invalid(field: impl Into<String>, value: &str, detail: &str) -> Self {
        Self::invalid_json(field, &Quoted(value).to_string(), detail)
    }

    /// A value that is no text cannot be used; `value` is JSON.
    pub(super) fn invalid_json(field: impl Into<String>, value: &str, detail: &str) -> Self {
        Self::new(field, &format!("Invalid value: {value}"), detail)
    }

    /// A list is too long.
    pub(super) fn too_many(field: impl Into<String>, count: usize, most: usize) -> Self {
        Self::new(field, &format!("Too many: {count}"), &format!("must have at most {most} items"))
    }

    /// A value is not allowed beside something else.
    pub(in crate::config) fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, "Forbidden", detail)
    }

    /// The same error, with the way out.
    #[must_use]
    pub(in crate::config) fn fix(mut self, fix: &'static str) -> Self {
        self.fix = fix;
        self
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body)
    }
}
