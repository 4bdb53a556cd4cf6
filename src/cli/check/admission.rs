//! The table of admission webhooks: which webhook sees which requests.

use portcullis_admission::{FailurePolicy, Operation, Rule, Scope, Webhook, WebhookKind};
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

/// The table, as lines of one row of the report.
pub(super) fn rows(mode: &str, webhooks: &[WebhookReport]) -> Vec<String> {
    let titles = ["webhook", "phase", "operations", "resources", "scope", "failurePolicy", "url"];
    let table = table::columns(titles, webhooks.iter().map(WebhookReport::cells));
    std::iter::once(format!("by webhooks of the gateway, mode {mode}, then by the backend"))
        .chain(table.lines().map(str::to_owned))
        .collect()
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
            scope: match rule.map(|rule| rule.scope) {
                Some(Scope::Cluster) => "Cluster",
                Some(Scope::Namespaced) => "Namespaced",
                Some(Scope::All) | None => "*",
            },
            failure_policy: match webhook.failure_policy {
                FailurePolicy::Fail => "Fail",
                FailurePolicy::Ignore => "Ignore",
            },
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

    use portcullis_admission::Webhooks;
    use portcullis_admission::configuration::manifest::Manifests;
    use portcullis_kubernetes::release::Release;
    use serde_json::json;

    use super::*;
    use crate::admission::settings::{AdmissionMode, WebhookConnections};

    #[test]
    fn the_table_shows_which_webhook_sees_which_requests() {
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
        let settings = AdmissionSettings {
            mode: AdmissionMode::RequestLevel,
            webhooks: Webhooks { mutating: Vec::new(), validating },
            connections: WebhookConnections::default(),
            shadow: BTreeSet::from(["idle.b.test".to_owned()]),
        };
        let expected = [
            "by webhooks of the gateway, mode requestLevel, then by the backend",
            "webhook               phase       operations     resources                                     scope       failurePolicy  url",
            "a.b.test              validating  CREATE,DELETE  v1/pods,v1/pods/exec,apps/v1/pods,apps/v1/pods/exec  Namespaced  Ignore         https://a.test/v",
            "a.b.test              validating  *              */*/*/*                                       *           Ignore         https://a.test/v",
            "idle.b.test (shadow)  validating  none           none                                          *           Ignore         https://a.test/v",
        ];
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let rows = rows("requestLevel", &reports(&settings));
        assert_eq!(rows.iter().map(|row| words(row)).collect::<Vec<_>>(), expected.map(words));
        let columns: Vec<_> =
            rows.iter().skip(1).filter_map(|row| row.find("https").or(row.find("url"))).collect();
        assert!(columns.windows(2).all(|pair| pair[0] == pair[1]), "{rows:#?}");
    }
}
