//! The wire types of `AdmissionConfiguration` and of the configurations of plugins (`apiserver.config.k8s.io`).
//!
//! Follows `k8s.io/apiserver/pkg/apis/apiserver/v1/types.go` and
//! `pkg/admission/plugin/webhook/config/apis/webhookadmission/v1/types.go` and
//! `pkg/admission/plugin/policy/config/apis/policyconfig/v1/types.go`.

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
    // The alpha version is in a group of another name.
    const API_VERSIONS: &'static [&'static str] =
        &["apiserver.config.k8s.io/v1", "apiserver.k8s.io/v1alpha1"];
    const EMPTY_IS_DEFAULT: bool = false;

    /// Any field of a plugin's own configuration is known here.
    fn prune(given: &Value, known: &mut Value) {
        let plugins = |value: &Value| value.get("plugins").and_then(Value::as_array).cloned();
        let known = known.get_mut("plugins").and_then(Value::as_array_mut).into_iter().flatten();
        for (known, given) in known.zip(plugins(given).into_iter().flatten()) {
            if let (Some(known), Some(given)) = (known.get_mut("configuration"), given.get("configuration")) {
                known.clone_from(given);
            }
        }
    }
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
    const API_VERSIONS: &'static [&'static str] = &["apiserver.config.k8s.io/v1"];
    const EMPTY_IS_DEFAULT: bool = false;
}

/// The configuration of the plugin `ValidatingAdmissionPolicy`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ValidatingAdmissionPolicyConfiguration {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) static_manifests_dir: String,
}

impl ConfigKind for ValidatingAdmissionPolicyConfiguration {
    const KIND: &'static str = "ValidatingAdmissionPolicyConfiguration";
    const API_VERSIONS: &'static [&'static str] = &["apiserver.config.k8s.io/v1"];
    const EMPTY_IS_DEFAULT: bool = false;
}

/// The configuration of the plugin `MutatingAdmissionPolicy`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct MutatingAdmissionPolicyConfiguration {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) static_manifests_dir: String,
}

impl ConfigKind for MutatingAdmissionPolicyConfiguration {
    const KIND: &'static str = "MutatingAdmissionPolicyConfiguration";
    const API_VERSIONS: &'static [&'static str] = &["apiserver.config.k8s.io/v1"];
    const EMPTY_IS_DEFAULT: bool = false;
}
