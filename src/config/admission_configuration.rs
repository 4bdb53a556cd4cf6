//! The wire types of `AdmissionConfiguration` and `WebhookAdmissionConfiguration` (`apiserver.config.k8s.io`).
//!
//! Follows `k8s.io/apiserver/pkg/apis/apiserver/v1/types.go` and
//! `pkg/admission/plugin/webhook/config/apis/webhookadmission/v1/types.go`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::apiserver_config::ConfigKind;

/// The content of `--admission-control-config-file`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct AdmissionConfiguration {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) plugins: Vec<AdmissionPluginConfiguration>,
}

impl ConfigKind for AdmissionConfiguration {
    const KIND: &'static str = "AdmissionConfiguration";
    const VERSIONS: &'static [&'static str] = &["v1", "v1alpha1"];
    const EMPTY_IS_DEFAULT: bool = false;
}

/// The configuration of one plugin.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct AdmissionPluginConfiguration {
    pub(super) name: String,
    pub(super) path: String,
    /// Takes precedence over `path`.
    pub(super) configuration: Option<Value>,
}

/// The configuration of a webhook plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WebhookAdmissionConfiguration {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) kube_config_file: String,
    pub(super) static_manifests_dir: String,
}

impl ConfigKind for WebhookAdmissionConfiguration {
    const KIND: &'static str = "WebhookAdmissionConfiguration";
    const VERSIONS: &'static [&'static str] = &["v1"];
    const EMPTY_IS_DEFAULT: bool = false;
}
