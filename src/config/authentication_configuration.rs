//! The wire types of `AuthenticationConfiguration` (`apiserver.config.k8s.io`): the issuers of JSON Web Tokens, and the
//! paths open to anonymous requests. The three versions have the same fields.
//!
//! Follows `k8s.io/apiserver/pkg/apis/apiserver/{v1,v1beta1,v1alpha1}/types.go`. [`validation`] checks the values.

mod issuer;
#[cfg(test)]
mod tests;
pub(super) mod validation;

use serde::{Deserialize, Serialize};

use super::apiserver_config::ConfigKind;

/// The content of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct AuthenticationConfiguration {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) jwt: Vec<JwtAuthenticator>,
    pub(super) anonymous: Option<AnonymousAuthConfig>,
}

impl ConfigKind for AuthenticationConfiguration {
    const KIND: &'static str = "AuthenticationConfiguration";
    const API_VERSIONS: &'static [&'static str] = super::apiserver_config::ALL_VERSIONS;
    const EMPTY_IS_DEFAULT: bool = false;
}

/// Whether anonymous requests are allowed, and on which paths.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct AnonymousAuthConfig {
    pub(super) enabled: bool,
    pub(super) conditions: Vec<AnonymousAuthCondition>,
}

/// A path open to anonymous requests; no prefix match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct AnonymousAuthCondition {
    pub(super) path: String,
}

/// An issuer, and the rules and mappings for its tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct JwtAuthenticator {
    pub(super) issuer: Issuer,
    pub(super) claim_validation_rules: Vec<ClaimValidationRule>,
    pub(super) claim_mappings: ClaimMappings,
    pub(super) user_validation_rules: Vec<UserValidationRule>,
}

/// The issuer and the audiences of tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Issuer {
    pub(super) url: String,
    #[serde(rename = "discoveryURL")]
    pub(super) discovery_url: String,
    pub(super) certificate_authority: String,
    pub(super) audiences: Vec<String>,
    pub(super) audience_match_policy: String,
    pub(super) egress_selector_type: String,
}

/// A rule for claims: a claim's required value, or an expression.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClaimValidationRule {
    pub(super) claim: String,
    pub(super) required_value: String,
    pub(super) expression: String,
    pub(super) message: String,
}

/// The claims or expressions that give the attributes of the user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClaimMappings {
    pub(super) username: PrefixedClaimOrExpression,
    pub(super) groups: PrefixedClaimOrExpression,
    pub(super) uid: ClaimOrExpression,
    pub(super) extra: Vec<ExtraMapping>,
}

/// A claim and a prefix for its values, or an expression.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PrefixedClaimOrExpression {
    pub(super) claim: String,
    pub(super) prefix: Option<String>,
    pub(super) expression: String,
}

/// A claim, or an expression.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClaimOrExpression {
    pub(super) claim: String,
    pub(super) expression: String,
}

/// The expression of an extra attribute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ExtraMapping {
    pub(super) key: String,
    pub(super) value_expression: String,
}

/// A rule for the user that a token maps to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct UserValidationRule {
    pub(super) expression: String,
    pub(super) message: String,
}
