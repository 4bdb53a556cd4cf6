//! The rules of a webhook.

use std::collections::BTreeSet;

use portcullis_kubernetes::field::{FieldError, json_string, json_strings};

use super::Validator;
use crate::configuration::wire::WireRule;
use crate::{Operation, Rule, Scope};

/// In alphabetical order.
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];

impl Validator<'_> {
    /// The rules; `None` if any has an error.
    pub(in crate::configuration) fn rules(&mut self, rules: &[WireRule], field: &str) -> Option<Vec<Rule>> {
        let before = self.errors.len();
        let rules = rules.iter().enumerate();
        let rules: Vec<Rule> =
            rules.filter_map(|(index, rule)| self.rule(rule, &format!("{field}[{index}]"))).collect();
        (self.errors.len() == before).then_some(rules)
    }

    // validateRuleWithOperations, validateRule
    pub(in crate::configuration) fn rule(&mut self, rule: &WireRule, field: &str) -> Option<Rule> {
        let field = |name: &str| format!("{field}.{name}");
        let operations = self.operations(&rule.operations, &field("operations"));
        let groups = field("apiGroups");
        self.not_empty(&rule.api_groups, &groups, "give the API groups, or \"*\"; \"\" is the core group");
        self.wildcard_alone(
            &rule.api_groups,
            &groups,
            "if '*' is present, must not specify other API groups",
        );
        let versions = field("apiVersions");
        self.not_empty(&rule.api_versions, &versions, "give the API versions, or \"*\"");
        let problem = "if '*' is present, must not specify other API versions";
        self.wildcard_alone(&rule.api_versions, &versions, problem);
        for (index, _) in rule.api_versions.iter().enumerate().filter(|(_, version)| version.is_empty()) {
            let error = FieldError::required(format!("{versions}[{index}]"), "");
            self.errors.push(error.fix("give a version such as v1, or \"*\""));
        }
        self.resources(&rule.resources, &field("resources"));
        let scopes = [("*", Scope::All), ("Cluster", Scope::Cluster), ("Namespaced", Scope::Namespaced)];
        let scope = self.choice(rule.scope.as_deref(), Scope::All, &scopes, &field("scope"));
        Some(Rule {
            operations,
            api_groups: rule.api_groups.clone(),
            api_versions: rule.api_versions.clone(),
            resources: rule.resources.clone(),
            scope: scope?,
            resource_names: Vec::new(),
        })
    }

    fn not_empty(&mut self, values: &[String], field: &str, fix: &'static str) {
        if values.is_empty() {
            self.errors.push(FieldError::required(field, "").fix(fix));
        }
    }

    fn wildcard_alone(&mut self, values: &[String], field: &str, problem: &str) {
        if values.len() > 1 && values.iter().any(|value| value == "*") {
            let error = FieldError::invalid_json(field, &json_strings(values), problem);
            self.errors.push(error.fix("give \"*\" alone, or remove it"));
        }
    }

    /// The operations; `None` for `*`.
    fn operations(&mut self, names: &[String], field: &str) -> Option<Vec<Operation>> {
        self.not_empty(names, field, "give operations such as [CREATE, UPDATE], or [\"*\"]");
        self.wildcard_alone(names, field, "if '*' is present, must not specify other operations");
        let mut operations = Vec::with_capacity(names.len());
        for (index, name) in names.iter().enumerate() {
            match name.as_str() {
                "CREATE" => operations.push(Operation::Create),
                "UPDATE" => operations.push(Operation::Update),
                "DELETE" => operations.push(Operation::Delete),
                "CONNECT" => operations.push(Operation::Connect),
                "*" => {}
                name => {
                    let field = format!("{field}[{index}]");
                    self.errors.push(FieldError::not_supported_json(field, &json_string(name), &OPERATIONS));
                }
            }
        }
        (!names.iter().any(|name| name == "*")).then_some(operations)
    }

    // validateResources
    fn resources(&mut self, resources: &[String], field: &str) {
        self.not_empty(resources, field, "give resources such as pods or pods/exec, or \"*\"");
        let (mut with_any_subresource, mut of_any_resource) = (BTreeSet::new(), BTreeSet::new());
        let mut has_plain = false;
        for (index, resource) in resources.iter().enumerate() {
            let field = format!("{field}[{index}]");
            if resource.is_empty() {
                self.errors.push(FieldError::required(field, "").fix("give a resource such as pods"));
                continue;
            }
            let Some((name, subresource)) = resource.split_once('/') else {
                // As upstream: the last resource without a subresource decides.
                has_plain = resource != "*";
                continue;
            };
            let fix = "remove it";
            if with_any_subresource.contains(name) {
                let problem = format!("if '{name}/*' is present, must not specify {resource}");
                self.errors.push(FieldError::invalid(&field, resource, &problem).fix(fix));
            }
            if of_any_resource.contains(subresource) {
                let problem = format!("if '*/{subresource}' is present, must not specify {resource}");
                self.errors.push(FieldError::invalid(&field, resource, &problem).fix(fix));
            }
            if subresource == "*" {
                with_any_subresource.insert(name);
            }
            if name == "*" {
                of_any_resource.insert(subresource);
            }
        }
        let has = |wanted: &str| resources.iter().any(|resource| resource == wanted);
        let mut conflict = |problem: &str| {
            let error = FieldError::invalid_json(field, &json_strings(resources), problem);
            self.errors.push(error.fix("remove the resources that the wildcard includes"));
        };
        if resources.len() > 1 && has("*/*") {
            conflict("if '*/*' is present, must not specify other resources");
        }
        if has("*") && has_plain {
            conflict("if '*' is present, must not specify other resources without subresources");
        }
    }
}
