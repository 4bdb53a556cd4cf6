//! Which requests a policy or a binding is about; and parameters, which policies of files do not have, but whose errors are reported.

use std::collections::BTreeSet;

use portcullis_go::url::path_segment_problems;
use portcullis_kubernetes::field::{FieldError, json_string};
use portcullis_kubernetes::labels::selector_errors;
use portcullis_kubernetes::names::{dns_1035_label_problems, dns_subdomain_problems};

use super::wire::{ParamKind, ParamRef, WireMatchResources, WireNamedRule};
use crate::configuration::validation::Validator;
use crate::policy::MatchResources;
use crate::{MatchPolicy, Rule};

impl Validator<'_> {
    // validateMatchResources
    pub(super) fn match_resources(
        &mut self,
        resources: &WireMatchResources,
        field: &str,
    ) -> Option<MatchResources> {
        let field = |name: &str| format!("{field}.{name}");
        let policies = [("Equivalent", MatchPolicy::Equivalent), ("Exact", MatchPolicy::Exact)];
        let match_policy = self.choice(
            resources.match_policy.as_deref(),
            MatchPolicy::Equivalent,
            &policies,
            &field("matchPolicy"),
        );
        let namespace_selector = self.selector(&resources.namespace_selector, &field("namespaceSelector"));
        let object_selector = self.selector(&resources.object_selector, &field("objectSelector"));
        let rules = self.named_rules(&resources.resource_rules, &field("resourceRules"));
        let excluded = self.named_rules(&resources.exclude_resource_rules, &field("excludeResourceRules"));
        Some(MatchResources {
            namespace_selector: namespace_selector?,
            object_selector: object_selector?,
            rules: rules?,
            excluded: excluded?,
            match_policy: match_policy?,
        })
    }

    fn named_rules(&mut self, rules: &[WireNamedRule], field: &str) -> Option<Vec<Rule>> {
        let before = self.errors.len();
        let rules = rules.iter().enumerate();
        let rules: Vec<Rule> =
            rules.filter_map(|(index, rule)| self.named_rule(rule, &format!("{field}[{index}]"))).collect();
        (self.errors.len() == before).then_some(rules)
    }

    // validateNamedRuleWithOperations
    fn named_rule(&mut self, rule: &WireNamedRule, field: &str) -> Option<Rule> {
        let mut seen = BTreeSet::new();
        for (index, name) in rule.resource_names.iter().enumerate() {
            let at = format!("{field}.resourceNames[{index}]");
            for problem in path_segment_problems(name) {
                self.errors.push(FieldError::invalid(&at, name, &problem).fix("give the name of an object"));
            }
            if !seen.insert(name) {
                self.errors.push(FieldError::duplicate(at, name).fix("remove one"));
            }
        }
        let read = self.rule(&rule.rule(), field)?;
        Some(Rule { resource_names: rule.resource_names.clone(), ..read })
    }

    // validateParamKind
    pub(super) fn param_kind(&mut self, ParamKind { api_version, kind }: &ParamKind, field: &str) {
        let at = format!("{field}.apiVersion");
        let fix = "remove paramKind: policies of files have no parameters";
        let mut errors = Vec::new();
        match api_version.split('/').collect::<Vec<_>>().as_slice() {
            _ if api_version.is_empty() => errors.push(FieldError::required(&at, "")),
            [_] | [_, _] => {
                let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
                let problems = dns_subdomain_problems(group);
                if !group.is_empty() && !problems.is_empty() {
                    errors.push(FieldError::invalid(&at, group, &problems.join(",")));
                }
                let problems = dns_1035_label_problems(version);
                if version.is_empty() {
                    errors.push(FieldError::invalid(&at, api_version, "version must be specified"));
                } else if !problems.is_empty() {
                    errors.push(FieldError::invalid(&at, version, &problems.join(",")));
                }
            }
            _ => {
                let problem = format!("unexpected GroupVersion string: {api_version}");
                errors.push(FieldError::invalid(&at, api_version, &problem));
            }
        }
        let at = format!("{field}.kind");
        let lower = kind.to_lowercase();
        let problems = dns_1035_label_problems(&lower);
        if kind.is_empty() {
            errors.push(FieldError::required(&at, ""));
        } else if !problems.is_empty() {
            let problem = format!("may have mixed case, but should otherwise match: {}", problems.join(","));
            errors.push(FieldError::invalid(&at, kind, &problem));
        }
        self.errors.extend(errors.into_iter().map(|error| error.fix(fix)));
    }

    // validateParamRef
    pub(super) fn param_ref(&mut self, reference: &ParamRef, field: &str) {
        let at = |name: &str| format!("{field}.{name}");
        let ParamRef { name, selector, parameter_not_found_action: action, .. } = reference;
        let mut errors = Vec::new();
        if !name.is_empty() {
            let problems = path_segment_problems(name).into_iter();
            errors.extend(problems.map(|problem| FieldError::invalid(at("name"), name, &problem)));
        }
        let both = "name and selector are mutually exclusive";
        if let Some(selector) = selector {
            if !name.is_empty() {
                errors.push(FieldError::forbidden(at("name"), both));
            }
            selector_errors(selector, &at("selector"), &mut errors);
            if !name.is_empty() {
                errors.push(FieldError::forbidden(at("selector"), both));
            }
        } else if name.is_empty() {
            errors.push(FieldError::required(field, "one of name or selector must be specified"));
        }
        let at = at("parameterNotFoundAction");
        match action.as_deref() {
            None | Some("") => errors.push(FieldError::required(at, "")),
            Some("Allow" | "Deny") => {}
            Some(other) => {
                errors.push(FieldError::not_supported_json(at, &json_string(other), &["Deny", "Allow"]));
            }
        }
        let fix = "remove paramRef: policies of files have no parameters";
        self.errors.extend(errors.into_iter().map(|error| error.fix(fix)));
    }
}
