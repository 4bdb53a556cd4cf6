//! The rules of a user, from one `SelfSubjectRulesReview`: one access review instead of one for each name.
//!
//! They decide only if the API server says that they are complete. Authorizers that can deny, such as webhooks, do not list
//! their rules, so with one of them no list is complete. A name that no rule allows is asked about again, so that the refusal is the
//! authorizer's.

use serde::Deserialize;

/// A namespace that cannot exist, because it is no DNS label: the rules for it are those of the whole cluster. A role
/// binding in a namespace that could exist would otherwise count for cluster-scoped objects.
pub(super) const NO_NAMESPACE: &str = "*:cluster-scope:*";

/// The response to a `SelfSubjectRulesReview`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct RulesReview {
    #[serde(default)]
    status: Rules,
}

/// What a user may do.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Rules {
    #[serde(default, rename = "resourceRules")]
    of_resources: Option<Vec<ResourceRule>>,
    /// Whether an authorizer did not list its rules. A response without the field says nothing.
    #[serde(default)]
    incomplete: Option<bool>,
    #[serde(default)]
    evaluation_error: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ResourceRule {
    verbs: Vec<String>,
    api_groups: Vec<String>,
    resources: Vec<String>,
    resource_names: Vec<String>,
}

impl RulesReview {
    /// The rules, if they are complete.
    pub(super) fn complete(self) -> Option<Rules> {
        let Self { status } = self;
        let is_complete =
            status.incomplete == Some(false) && status.evaluation_error.as_deref().is_none_or(str::is_empty);
        is_complete.then_some(status)
    }
}

impl Rules {
    /// Whether a rule allows `verb` on the object `name` of a cluster-scoped resource.
    // kubernetes: plugin/pkg/auth/authorizer/rbac/rbac.go, RuleAllows; pkg/apis/rbac/v1/evaluation_helpers.go
    pub(super) fn allow(
        &self,
        verb: &str,
        group: &str,
        resource: &str,
        subresource: &str,
        name: &str,
    ) -> bool {
        let holds = |list: &[String], wanted: &str| list.iter().any(|one| one == "*" || one == wanted);
        let is_of = |rule: &ResourceRule| {
            rule.resources.iter().any(|one| {
                one == "*"
                    || if subresource.is_empty() {
                        one == resource
                    } else {
                        one.strip_prefix(resource).and_then(|rest| rest.strip_prefix('/'))
                            == Some(subresource)
                            || one.strip_prefix("*/") == Some(subresource)
                    }
            })
        };
        self.of_resources.iter().flatten().any(|rule| {
            holds(&rule.verbs, verb)
                && holds(&rule.api_groups, group)
                && is_of(rule)
                // Here an asterisk is a name.
                && (rule.resource_names.is_empty() || rule.resource_names.iter().any(|one| one == name))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules(status: &serde_json::Value) -> Option<Rules> {
        serde_json::from_value::<RulesReview>(json!({ "status": status })).unwrap().complete()
    }

    #[test]
    fn only_complete_rules_count() {
        assert!(
            rules(&json!({"incomplete": false, "resourceRules": null, "nonResourceRules": []})).is_some()
        );
        assert!(rules(&json!({"incomplete": true, "resourceRules": []})).is_none());
        assert!(rules(&json!({"resourceRules": []})).is_none());
        assert!(rules(&json!({"incomplete": false, "evaluationError": "x"})).is_none());
        assert!(serde_json::from_value::<RulesReview>(json!({})).unwrap().complete().is_none());
    }

    #[test]
    fn rules_allow_what_rbac_allows() {
        let allows = |rule: serde_json::Value, subresource: &str, name: &str| {
            let rules = rules(&json!({"incomplete": false, "resourceRules": [rule]})).unwrap();
            let resource = if subresource.is_empty() { "groups" } else { "userextras" };
            rules.allow("impersonate", "", resource, subresource, name)
        };
        let rule = |verb: &str, group: &str, resource: &str, names: &[&str]| json!({"verbs": [verb], "apiGroups": [group], "resources": [resource], "resourceNames": names});
        for (rule, subresource, name, expected) in [
            (rule("impersonate", "", "groups", &[]), "", "a", true),
            (rule("*", "*", "*", &[]), "", "a", true),
            (rule("impersonate", "", "groups", &["a", "b"]), "", "b", true),
            (rule("impersonate", "", "groups", &["a"]), "", "b", false),
            (rule("impersonate", "", "groups", &["*"]), "", "b", false),
            (rule("get", "", "groups", &[]), "", "a", false),
            (rule("impersonate", "x", "groups", &[]), "", "a", false),
            (rule("impersonate", "", "users", &[]), "", "a", false),
            (rule("impersonate", "", "groups/x", &[]), "", "a", false),
            (rule("impersonate", "", "userextras/a/b", &[]), "a/b", "v", true),
            (rule("impersonate", "", "*/a/b", &[]), "a/b", "v", true),
            (rule("impersonate", "", "*", &[]), "a/b", "v", true),
            (rule("impersonate", "", "userextras/*", &[]), "a/b", "v", false),
            (rule("impersonate", "", "userextras", &[]), "a/b", "v", false),
            (rule("impersonate", "", "userextrasa/b", &[]), "a/b", "v", false),
        ] {
            assert_eq!(allows(rule.clone(), subresource, name), expected, "{rule} {subresource} {name}");
        }
    }
}
