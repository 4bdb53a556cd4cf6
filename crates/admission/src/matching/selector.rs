//! Label selectors.

use std::collections::BTreeMap;

/// A label selector, compiled.
// apimachinery: pkg/apis/meta/v1/helpers.go, LabelSelectorAsSelector
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {}

/// Why a selector is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub String);

impl LabelSelector {
    /// Compiles a selector.
    pub fn new(
        _selector: &k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector,
    ) -> Result<Self, SelectorError> {
        Ok(Self {})
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether it selects an object with these labels.
    pub fn matches(&self, _labels: &BTreeMap<String, String>) -> bool {
        false
    }
}
