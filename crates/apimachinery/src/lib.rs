//! Functions that must equal `k8s.io/apimachinery`: how Kubernetes validates and decodes objects, and the texts of its
//! errors.
//!
//! | file | upstream | compared by |
//! |---|---|---|
//! | [`field`] | `pkg/util/validation/field` | `tests/it/compared_configurations.rs` |
//! | [`labels`] | `pkg/apis/meta/v1/validation` | `tests/it/compared_configurations.rs` |
//! | [`metadata`] | `pkg/api/validation/objectmeta.go` | `tests/it/compared_configurations.rs` |
//! | [`names`] | `pkg/api/validate/content` | tables; `tests/it/compared_configurations.rs` |
//! | [`strict`] | `pkg/runtime/serializer/json` | `tests/it/compared_configurations.rs` |

pub mod field;
pub mod labels;
pub mod metadata;
pub mod names;
pub mod strict;
