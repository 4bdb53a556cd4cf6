//! The audit of a cluster: for which requests how much is recorded, and where.

use portcullis_audit::event::Stage;
use portcullis_audit::policy::{Decision, ResourceRule, Rule};
use portcullis_tools::table;
use serde::Serialize;

use crate::audit::settings::AuditSettings;

/// The audit of a cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuditReport {
    log: Option<String>,
    webhook: Option<String>,
    /// In order; the first that matches decides.
    rules: Vec<RuleReport>,
}

/// A rule of the policy. What is empty matches everything.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RuleReport {
    level: &'static str,
    users: String,
    verbs: String,
    requests: String,
    omitted_stages: String,
    omit_managed_fields: bool,
}

impl AuditReport {
    pub(super) fn of(settings: &AuditSettings) -> Self {
        let AuditSettings { policy, log, webhook } = settings;
        Self {
            log: log.as_ref().map(|log| {
                let (format, mode) = (log.format.as_str(), log.mode.as_str());
                let path = log.path.display();
                format!("{path}, {format}, {mode}")
            }),
            webhook: webhook
                .as_ref()
                .map(|webhook| format!("{}, {}", webhook.url, webhook.options.mode.as_str())),
            rules: policy.rules().iter().map(RuleReport::of).collect(),
        }
    }

    /// The backends, and the table of rules.
    pub(super) fn rows(&self) -> Vec<String> {
        let backends = [("log", &self.log), ("webhook", &self.webhook)];
        let backends = backends
            .into_iter()
            .filter_map(|(name, backend)| backend.as_ref().map(|backend| format!("to the {name} {backend}")));
        let titles = ["level", "users", "verbs", "requests", "without"];
        let rules = table::columns(titles, self.rules.iter().map(RuleReport::cells));
        backends.chain(rules.lines().map(str::to_owned)).collect()
    }
}

impl RuleReport {
    fn of(rule: &Rule) -> Self {
        let Decision { level, omitted, omit_managed_fields } = rule.decision();
        let groups = rule.user_groups.iter().map(|group| format!("group {group}"));
        let users: Vec<String> = rule.users.iter().cloned().chain(groups).collect();
        Self {
            level: level.as_str(),
            // A rule with both needs both.
            users: users.join(if rule.users.is_empty() || rule.user_groups.is_empty() {
                ", "
            } else {
                " and "
            }),
            verbs: rule.verbs.join(", "),
            requests: requests(rule),
            omitted_stages: omitted.iter().map(Stage::as_str).collect::<Vec<_>>().join(", "),
            omit_managed_fields,
        }
    }

    fn cells(&self) -> [String; 5] {
        let any = |text: &str| if text.is_empty() { "any".to_owned() } else { text.to_owned() };
        let mut without = self.omitted_stages.clone();
        if self.omit_managed_fields {
            without.push_str(if without.is_empty() { "managedFields" } else { ", managedFields" });
        }
        [self.level.to_owned(), any(&self.users), any(&self.verbs), any(&self.requests), without]
    }
}

/// What a rule says of resources, namespaces and paths.
fn requests(rule: &Rule) -> String {
    if !rule.non_resource_urls.is_empty() {
        return rule.non_resource_urls.join(", ");
    }
    let resources: Vec<String> = rule.resources.iter().map(resources).collect();
    let namespaces: Vec<&str> = rule
        .namespaces
        .iter()
        .map(|namespace| if namespace.is_empty() { "no namespace" } else { namespace.as_str() })
        .collect();
    match (resources.is_empty(), namespaces.is_empty()) {
        (_, true) => resources.join(", "),
        (true, false) => format!("every resource in {}", namespaces.join(", ")),
        (false, false) => format!("{} in {}", resources.join(", "), namespaces.join(", ")),
    }
}

fn resources(rule: &ResourceRule) -> String {
    let ResourceRule { group, resources, names } = rule;
    let group = if group.is_empty() { "core" } else { group };
    let resources = if resources.is_empty() { "*".to_owned() } else { resources.join(" ") };
    let named = if names.is_empty() { String::new() } else { format!(" named {}", names.join(" ")) };
    format!("{group}: {resources}{named}")
}
