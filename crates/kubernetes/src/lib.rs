//! What must equal Kubernetes: how it validates and decodes objects, its users and errors, and the texts of its clients.
//!
//! | file | upstream | compared by |
//! |---|---|---|
//! | [`encoding`] | `apimachinery/pkg/runtime/serializer` | the twin |
//! | [`extra_key`] | `headerrequest` of the API server, `transport` of client-go | `tests/it/parsers` |
//! | [`field`] | `apimachinery/pkg/util/validation/field` | `tests/it/compared_configurations.rs` |
//! | [`kubeconfig`] | `client-go/tools/clientcmd` | tables |
//! | [`labels`] | `apimachinery/pkg/apis/meta/v1/validation` | `tests/it/compared_configurations.rs` |
//! | [`metadata`] | `apimachinery/pkg/api/validation/objectmeta.go` | `tests/it/compared_configurations.rs` |
//! | [`names`] | `apimachinery/pkg/api/validate/content` | tables; `tests/it/compared_configurations.rs` |
//! | [`release`] | `apiserver/pkg/features`, `component-base/compatibility` | tables |
//! | [`rest`] | `client-go/rest` | `crates/admission/tests/reference`; the twin |
//! | [`reviews`] | `api/authentication/v1`, `api/authorization/v1` | the twin |
//! | [`selectors`] | `apimachinery/pkg/fields`, `pkg/labels` | tables; the twin |
//! | [`service_account`] | `apiserver/pkg/authentication/serviceaccount` | tables; the twin |
//! | [`status`] | `apimachinery/pkg/api/errors`, `apiserver/pkg/endpoints/handlers/responsewriters` | the twin |
//! | [`strict`] | `apimachinery/pkg/runtime/serializer/json` | `tests/it/compared_configurations.rs` |
//! | [`user`] | `apiserver/pkg/authentication/user` | the twin |
//! | [`yaml`] | `sigs.k8s.io/yaml`, with limits | `tests/it/compared_configurations.rs` |

pub mod encoding;
pub mod extra_key;
pub mod field;
pub mod kubeconfig;
pub mod labels;
pub mod metadata;
pub mod names;
pub mod release;
pub mod rest;
pub mod reviews;
pub mod selectors;
pub mod service_account;
pub mod status;
pub mod strict;
pub mod user;
pub mod yaml;
