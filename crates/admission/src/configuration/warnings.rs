//! What the API warns of when it stores a configuration.
//!
//! Follows `k8s.io/kubernetes/pkg/apis/admissionregistration/validation/warnings.go`.

use std::collections::BTreeSet;

use portcullis_kubernetes::release::Release;

use super::wire::WebhookConfiguration;

/// A warning about one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldWarning {
    /// The path of the field, such as `webhooks[0].rules[1]`.
    pub field: String,
    /// The warning, without the path.
    pub text: String,
}

/// Warnings for rules that name a resource which no webhook sees. One with `*` may mean other resources.
// warningsForExcludedRules, excludedResourcesNamedByRule
pub(super) fn excluded_resources(
    configuration: &WebhookConfiguration,
    release: Release,
) -> Vec<FieldWarning> {
    let mut warnings = Vec::new();
    for (index, webhook) in configuration.webhooks.iter().enumerate() {
        for (number, rule) in webhook.rules.iter().enumerate() {
            let is_any = |names: &[String]| names.iter().any(|name| name == "*");
            if is_any(&rule.api_groups) || is_any(&rule.resources) {
                continue;
            }
            let pairs = rule
                .api_groups
                .iter()
                .flat_map(|group| rule.resources.iter().map(move |resource| (group, resource)));
            let mut seen = BTreeSet::new();
            for (group, resource) in pairs {
                if release.excludes_from_webhooks(group, resource) && seen.insert((group, resource)) {
                    warnings.push(FieldWarning {
                        field: format!("webhooks[{index}].rules[{number}]"),
                        text: format!(
                            "{resource}.{group} is excluded from admission webhooks; this rule will have no effect"
                        ),
                    });
                }
            }
        }
    }
    warnings
}
