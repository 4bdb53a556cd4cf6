//! The wire types of `admissionregistration.k8s.io/v1`. Serializing writes every field, as strict decoding needs it.
// api: admissionregistration/v1/types.go

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_go::base64::decode;
use portcullis_kubernetes::labels::LabelSelector;
use portcullis_kubernetes::metadata::{ListMeta, ObjectMeta};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

use crate::WebhookKind;

/// A `MutatingWebhookConfiguration` or `ValidatingWebhookConfiguration`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WebhookConfiguration {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) metadata: ObjectMeta,
    pub(super) webhooks: Vec<WireWebhook>,
}

/// A list of configurations, or of anything.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct List {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) metadata: ListMeta,
    pub(super) items: Vec<Value>,
}

/// A webhook.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WireWebhook {
    pub(super) name: String,
    pub(super) client_config: ClientConfig,
    pub(super) rules: Vec<WireRule>,
    pub(super) failure_policy: Option<String>,
    pub(super) match_policy: Option<String>,
    pub(super) namespace_selector: LabelSelector,
    pub(super) object_selector: LabelSelector,
    pub(super) side_effects: Option<String>,
    pub(super) timeout_seconds: Option<i32>,
    pub(super) admission_review_versions: Vec<String>,
    /// Only of mutating webhooks.
    pub(super) reinvocation_policy: Option<String>,
    pub(super) match_conditions: Vec<WireMatchCondition>,
}

/// How to reach a webhook.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClientConfig {
    pub(super) url: Option<String>,
    pub(super) service: Option<ServiceReference>,
    pub(super) ca_bundle: Octets,
}

/// A Service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServiceReference {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) path: Option<String>,
    pub(super) port: Option<i32>,
}

/// A rule with its operations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WireRule {
    pub(super) operations: Vec<String>,
    pub(super) api_groups: Vec<String>,
    pub(super) api_versions: Vec<String>,
    pub(super) resources: Vec<String>,
    pub(super) scope: Option<String>,
}

/// A match condition.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WireMatchCondition {
    pub(super) name: String,
    pub(super) expression: String,
}

/// Bytes in base64.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Octets(pub(super) Vec<u8>);

/// Removes fields that a kind does not have.
pub(super) fn remove_foreign_fields(kind: WebhookKind, configuration: &mut Value) {
    if kind == WebhookKind::Mutating {
        return;
    }
    let webhooks = configuration.get_mut("webhooks").and_then(Value::as_array_mut);
    for webhook in webhooks.into_iter().flatten().filter_map(Value::as_object_mut) {
        webhook.remove("reinvocationPolicy");
    }
}

impl fmt::Debug for Octets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} bytes", self.0.len())
    }
}

impl Serialize for Octets {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        STANDARD.encode(&self.0).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Octets {
    // encoding/base64: line breaks are ignored
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?.replace(['\r', '\n'], "");
        decode(&text).map(Self).map_err(|_| de::Error::custom("not base64"))
    }
}
