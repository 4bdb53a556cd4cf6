//! The tables of admission webhooks and policies: which of them sees which requests.

use portcullis_admission::{
    AnyPolicy, FailurePolicy, Operation, PolicyKind, PolicyScope, Rule, Scope, ValidationAction, Webhook,
    WebhookKind,
};
use portcullis_tools::table;
use serde::Serialize;

use crate::admission::settings::AdmissionSettings;

/// An admission webhook, with one of its rules. A webhook without rules is called for no request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WebhookReport {
    webhook: String,
    configuration: String,
    phase: &'static str,
    operations: String,
    resources: String,
    scope: &'static str,
    failure_policy: &'static str,
    url: String,
    shadow: bool,
}

/// The webhooks in the order of their calls, with a row for each rule.
pub(super) fn reports(settings: &AdmissionSettings) -> Vec<WebhookReport> {
    let webhooks = settings.webhooks.mutating.iter().chain(&settings.webhooks.validating);
    let rows = webhooks.flat_map(|webhook| {
        let rules = webhook.rules.iter().map(Some);
        let none = webhook.rules.is_empty().then_some(None);
        rules.chain(none).map(|rule| WebhookReport::of(webhook, rule, settings.is_shadow(webhook)))
    });
    rows.collect()
}

/// An admission policy, with one of its rules.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PolicyReport {
    policy: String,
    phase: &'static str,
    operations: String,
    resources: String,
    scope: &'static str,
    /// Whether the rule excludes requests.
    excluded: bool,
    failure_policy: &'static str,
    /// Without bindings, a policy is not in force.
    bindings: Vec<BindingReport>,
    shadow: bool,
}

/// A binding of a policy.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct BindingReport {
    binding: String,
    /// None of a mutating policy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    validation_actions: Vec<&'static str>,
}

/// The policies in the order of their evaluation, with a row for each rule.
pub(super) fn policy_reports(settings: &AdmissionSettings) -> Vec<PolicyReport> {
    let rows = settings.policies.all().flat_map(|policy| {
        let scope = policy.scope();
        let included = scope.constraints.rules.iter().map(|rule| (rule, false));
        let excluded = scope.constraints.excluded.iter().map(|rule| (rule, true));
        let shadow = settings.is_shadow_policy(scope);
        included.chain(excluded).map(move |(rule, excluded)| PolicyReport::of(policy, rule, excluded, shadow))
    });
    rows.collect()
}

/// The tables, as lines of one row of the report.
pub(super) fn rows(mode: &str, webhooks: &[WebhookReport], policies: &[PolicyReport]) -> Vec<String> {
    let by = match (webhooks, policies) {
        (_, []) => "webhooks",
        ([], _) => "policies",
        _ => "webhooks and policies",
    };
    let mut rows = vec![format!("by {by} of the gateway, mode {mode}, then by the backend")];
    let mut add = |table: String| rows.extend(table.lines().map(str::to_owned));
    if !webhooks.is_empty() {
        let titles = ["webhook", "phase", "operations", "resources", "scope", "failurePolicy", "url"];
        add(table::columns(titles, webhooks.iter().map(WebhookReport::cells)));
    }
    if !policies.is_empty() {
        let titles = ["policy", "phase", "operations", "resources", "scope", "failurePolicy", "bindings"];
        add(table::columns(titles, policies.iter().map(PolicyReport::cells)));
    }
    rows
}

impl PolicyReport {
    fn of(policy: AnyPolicy<'_>, rule: &Rule, excluded: bool, shadow: bool) -> Self {
        let bindings = policy.bindings().into_iter().map(|binding| BindingReport {
            binding: binding.name.to_owned(),
            validation_actions: binding.actions.iter().copied().map(ValidationAction::as_str).collect(),
        });
        let PolicyScope { kind, name, failure_policy: on_failure, .. } = policy.scope();
        Self {
            policy: name.clone(),
            phase: match kind {
                PolicyKind::Mutating => "mutating",
                PolicyKind::Validating => "validating",
            },
            operations: operations(rule),
            resources: resources(rule),
            scope: scope(rule.scope),
            excluded,
            failure_policy: failure_policy(*on_failure),
            bindings: bindings.collect(),
            shadow,
        }
    }

    fn cells(&self) -> [String; 7] {
        let shadow = if self.shadow { " (shadow)" } else { "" };
        let not = if self.excluded { "not " } else { "" };
        let bindings =
            self.bindings.iter().map(
                |BindingReport { binding, validation_actions }| match validation_actions.as_slice() {
                    [] => binding.clone(),
                    actions => format!("{binding}={}", actions.join(",")),
                },
            );
        let bindings = bindings.collect::<Vec<_>>().join(" ");
        [
            format!("{}{shadow}", self.policy),
            self.phase.to_owned(),
            self.operations.clone(),
            format!("{not}{}", self.resources),
            self.scope.to_owned(),
            self.failure_policy.to_owned(),
            if bindings.is_empty() { "none: not in force".to_owned() } else { bindings },
        ]
    }
}

impl WebhookReport {
    fn of(webhook: &Webhook, rule: Option<&Rule>, shadow: bool) -> Self {
        Self {
            webhook: webhook.name.clone(),
            configuration: webhook.configuration.clone(),
            phase: match webhook.kind {
                WebhookKind::Mutating => "mutating",
                WebhookKind::Validating => "validating",
            },
            operations: rule.map_or_else(|| "none".to_owned(), operations),
            resources: rule.map_or_else(|| "none".to_owned(), resources),
            scope: scope(rule.map_or(Scope::All, |rule| rule.scope)),
            failure_policy: failure_policy(webhook.failure_policy),
            url: webhook.url.clone(),
            shadow,
        }
    }

    fn cells(&self) -> [String; 7] {
        let shadow = if self.shadow { " (shadow)" } else { "" };
        [
            format!("{}{shadow}", self.webhook),
            self.phase.to_owned(),
            self.operations.clone(),
            self.resources.clone(),
            self.scope.to_owned(),
            self.failure_policy.to_owned(),
            self.url.clone(),
        ]
    }
}

fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Cluster => "Cluster",
        Scope::Namespaced => "Namespaced",
        Scope::All => "*",
    }
}

fn failure_policy(policy: FailurePolicy) -> &'static str {
    match policy {
        FailurePolicy::Fail => "Fail",
        FailurePolicy::Ignore => "Ignore",
    }
}

fn operations(rule: &Rule) -> String {
    let Some(operations) = &rule.operations else { return "*".to_owned() };
    operations.iter().map(|operation| Operation::as_str(*operation)).collect::<Vec<_>>().join(",")
}

/// The resources as `GROUP/VERSION/RESOURCE`, without the empty group.
fn resources(rule: &Rule) -> String {
    let of_group = |group: &String| {
        let group = if group.is_empty() { String::new() } else { format!("{group}/") };
        rule.api_versions
            .iter()
            .flat_map(move |version| {
                let group = group.clone();
                rule.resources.iter().map(move |resource| format!("{group}{version}/{resource}"))
            })
            .collect::<Vec<_>>()
    };
    rule.api_groups.iter().flat_map(of_group).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use portcullis_admission::configuration::manifest::Manifests;
    use portcullis_admission::{Policies, Webhooks};
    use portcullis_kubernetes::release::Release;
    use serde_json::json;

    use super::*;
    use crate::admission::settings::{AdmissionMode, WebhookConnections};

    #[test]
    fn the_tables_show_which_webhook_and_policy_sees_which_requests() {
        let mut manifests = Manifests::webhooks(WebhookKind::Validating, Release::default());
        let webhook = |name: &str, rules: serde_json::Value| {
            json!({
                "name": name, "clientConfig": {"url": "https://a.test/v"}, "sideEffects": "None", "rules": rules,
                "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore",
            })
        };
        let rules = json!([
            {"operations": ["CREATE", "DELETE"], "apiGroups": ["", "apps"], "apiVersions": ["v1"], "resources": ["pods", "pods/exec"], "scope": "Namespaced"},
            {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]},
        ]);
        let object = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "a.static.k8s.io"},
            "webhooks": [webhook("a.b.test", rules), webhook("idle.b.test", json!([]))],
        });
        manifests.add("a.yaml", 0, &object);
        let validating = manifests.finish().unwrap().into_iter().map(Arc::new).collect();
        let mut manifests = Manifests::policies(Release::default());
        let rule = |operation: &str| json!({"operations": [operation], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]});
        for (number, name) in ["replicas", "idle"].into_iter().enumerate() {
            let policy = json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
                "metadata": {"name": format!("{name}.static.k8s.io")},
                "spec": {
                    "matchConstraints": {"resourceRules": [rule("CREATE")], "excludeResourceRules": [rule("UPDATE")]},
                    "validations": [{"expression": "true"}],
                },
            });
            manifests.add("p.yaml", number, &policy);
        }
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": "all.static.k8s.io"},
            "spec": {"policyName": "replicas.static.k8s.io", "validationActions": ["Deny", "Audit"]},
        });
        manifests.add("b.yaml", 2, &binding);
        let validating_policies = manifests.finish().unwrap().into_iter().map(Arc::new).collect();
        let mut manifests = Manifests::mutating_policies(Release::default());
        let policy = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": "labels.static.k8s.io"},
            "spec": {
                "matchConstraints": {"resourceRules": [rule("*")]}, "reinvocationPolicy": "Never",
                "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'test', path: '/kind'}]"}}],
            },
        });
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": "all.static.k8s.io"}, "spec": {"policyName": "labels.static.k8s.io"},
        });
        manifests.add("p.yaml", 0, &policy);
        manifests.add("p.yaml", 1, &binding);
        let mutating_policies = manifests.finish().unwrap().into_iter().map(Arc::new).collect();
        let settings = AdmissionSettings {
            mode: AdmissionMode::RequestLevel,
            webhooks: Webhooks { mutating: Vec::new(), validating },
            policies: Policies { mutating: mutating_policies, validating: validating_policies },
            connections: WebhookConnections::default(),
            shadow: BTreeSet::from(["idle.b.test".to_owned()]),
            shadow_policies: BTreeSet::from(["replicas.static.k8s.io".to_owned()]),
        };
        let expected = [
            "by webhooks and policies of the gateway, mode requestLevel, then by the backend",
            "webhook               phase       operations     resources                                     scope       failurePolicy  url",
            "a.b.test              validating  CREATE,DELETE  v1/pods,v1/pods/exec,apps/v1/pods,apps/v1/pods/exec  Namespaced  Ignore         https://a.test/v",
            "a.b.test              validating  *              */*/*/*                                       *           Ignore         https://a.test/v",
            "idle.b.test (shadow)  validating  none           none                                          *           Ignore         https://a.test/v",
            "policy phase operations resources scope failurePolicy bindings",
            "labels.static.k8s.io mutating CREATE,UPDATE,CONNECT apps/v1/deployments * Fail all.static.k8s.io",
            "idle.static.k8s.io validating CREATE apps/v1/deployments * Fail none: not in force",
            "idle.static.k8s.io validating UPDATE not apps/v1/deployments * Fail none: not in force",
            "replicas.static.k8s.io (shadow) validating CREATE apps/v1/deployments * Fail all.static.k8s.io=Deny,Audit",
            "replicas.static.k8s.io (shadow) validating UPDATE not apps/v1/deployments * Fail all.static.k8s.io=Deny,Audit",
        ];
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let rows = rows("requestLevel", &reports(&settings), &policy_reports(&settings));
        assert_eq!(rows.iter().map(|row| words(row)).collect::<Vec<_>>(), expected.map(words));
        let columns: Vec<_> =
            rows.iter().skip(1).filter_map(|row| row.find("https").or(row.find("url"))).collect();
        assert!(columns.windows(2).all(|pair| pair[0] == pair[1]), "{rows:#?}");
    }
}
