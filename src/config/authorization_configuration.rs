//! The wire types of `AuthorizationConfiguration` (`apiserver.config.k8s.io`): the authorizers in order. The three
//! versions have the same fields.
//!
//! Follows `k8s.io/apiserver/pkg/apis/apiserver/{v1,v1beta1,v1alpha1}/types.go`. [`validation`] checks the values by
//! kube-apiserver's rules, [`gateway`] by those of a gateway.

pub(crate) mod chain;
pub(crate) mod gateway;
#[cfg(test)]
mod tests;
pub(super) mod validation;

use portcullis_go::duration::{format_duration, parse_duration};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::apiserver_config::ConfigKind;

/// The content of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct AuthorizationConfiguration {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) authorizers: Vec<AuthorizerConfiguration>,
}

impl ConfigKind for AuthorizationConfiguration {
    const KIND: &'static str = "AuthorizationConfiguration";
    const API_VERSIONS: &'static [&'static str] = super::apiserver_config::ALL_VERSIONS;
    // apiserver: pkg/apis/apiserver/load/load.go, LoadFromData
    const EMPTY_IS_DEFAULT: bool = true;
}

/// An authorizer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct AuthorizerConfiguration {
    #[serde(rename = "type")]
    pub(super) mode: String,
    pub(super) name: String,
    pub(super) webhook: Option<WebhookConfiguration>,
}

/// The settings of a webhook.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WebhookConfiguration {
    #[serde(rename = "authorizedTTL")]
    pub(super) authorized_ttl: WireDuration,
    pub(super) cache_authorized_requests: Option<bool>,
    #[serde(rename = "unauthorizedTTL")]
    pub(super) unauthorized_ttl: WireDuration,
    pub(super) cache_unauthorized_requests: Option<bool>,
    pub(super) timeout: WireDuration,
    pub(super) subject_access_review_version: String,
    pub(super) match_condition_subject_access_review_version: String,
    pub(super) failure_policy: String,
    pub(super) connection_info: WebhookConnectionInfo,
    pub(super) match_conditions: Vec<WebhookMatchCondition>,
}

/// How to reach a webhook.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WebhookConnectionInfo {
    #[serde(rename = "type")]
    pub(super) mode: String,
    pub(super) kube_config_file: Option<String>,
}

/// A condition under which the webhook is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WebhookMatchCondition {
    pub(super) expression: String,
}

/// A duration in nanoseconds, written as Go writes it.
// apimachinery: pkg/apis/meta/v1/duration.go
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WireDuration(pub(super) i64);

impl Serialize for WireDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        format_duration(self.0).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for WireDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text).map(Self).map_err(de::Error::custom)
    }
}
