//! The wire type of a policy, and its validation.
// apiserver: pkg/apis/audit/v1/types.go, pkg/apis/audit/validation/validation.go

use std::sync::Arc;

use portcullis_kubernetes::field::{FieldError, json_strings};
use portcullis_kubernetes::metadata::ObjectMeta;
use portcullis_kubernetes::names::dns_subdomain_problems;
use serde::{Deserialize, Serialize};

use super::rules::{self, Rule};
use super::{Decision, Rules, Stages};
use crate::event::{Level, Stage};

/// A policy as written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Policy {
    api_version: String,
    kind: String,
    metadata: ObjectMeta,
    rules: Vec<PolicyRule>,
    omit_stages: Vec<String>,
    omit_managed_fields: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PolicyRule {
    level: String,
    users: Vec<String>,
    user_groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<GroupResources>,
    namespaces: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    omit_stages: Vec<String>,
    omit_managed_fields: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct GroupResources {
    group: String,
    resources: Vec<String>,
    resource_names: Vec<String>,
}

impl Policy {
    /// The policy; adds its errors.
    // ValidatePolicy
    pub(super) fn validate(self, errors: &mut Vec<FieldError>) -> super::Policy {
        let Self { rules, omit_stages, omit_managed_fields, .. } = self;
        let omitted = stages(&omit_stages, "omitStages", errors);
        let default = Decision { level: Level::None, omitted, omit_managed_fields };
        let rules = rules.into_iter().enumerate();
        let rules = rules.map(|(index, rule)| rule.validate(&format!("rules[{index}]"), default, errors));
        super::Policy(Arc::new(Rules { rules: rules.collect(), default }))
    }
}

impl PolicyRule {
    // validatePolicyRule
    fn validate(self, path: &str, default: Decision, errors: &mut Vec<FieldError>) -> Rule {
        let level = level(&self.level, &format!("{path}.level"), errors);
        let urls = format!("{path}.nonResourceURLs");
        for (index, url) in self.non_resource_urls.iter().enumerate() {
            non_resource_url(url, &format!("{urls}[{index}]"), errors);
        }
        for resources in &self.resources {
            resources.validate(&format!("{path}.resources"), errors);
        }
        let omitted = stages(&self.omit_stages, &format!("{path}.omitStages"), errors);
        let is_of_resources = !self.resources.is_empty() || !self.namespaces.is_empty();
        if !self.non_resource_urls.is_empty() && is_of_resources {
            let value = json_strings(&self.non_resource_urls);
            let detail = "rules cannot apply to both regular resources and non-resource URLs";
            errors.push(FieldError::invalid_json(urls, &value, detail).fix("write two rules"));
        }
        Rule {
            users: self.users,
            user_groups: self.user_groups,
            verbs: self.verbs,
            resources: self.resources.into_iter().map(Into::into).collect(),
            namespaces: self.namespaces,
            non_resource_urls: self.non_resource_urls,
            decision: Decision {
                level,
                omitted: default.omitted.union(omitted),
                omit_managed_fields: self.omit_managed_fields.unwrap_or(default.omit_managed_fields),
            },
        }
    }
}

impl GroupResources {
    // validateResources
    fn validate(&self, path: &str, errors: &mut Vec<FieldError>) {
        if !self.group.is_empty() && self.group != "*" {
            let problems = dns_subdomain_problems(&self.group);
            if !problems.is_empty() {
                let error = FieldError::invalid(format!("{path}.group"), &self.group, &problems.join(","));
                errors.push(error.fix("give the name of an API group, without a version"));
            }
        }
        if !self.resource_names.is_empty() && self.resources.is_empty() {
            let value = json_strings(&self.resource_names);
            let detail = "using resourceNames requires at least one resource";
            let error = FieldError::invalid_json(format!("{path}.resourceNames"), &value, detail);
            errors.push(error.fix("name the resources, too"));
        }
    }
}

impl From<GroupResources> for rules::Resource {
    fn from(GroupResources { group, resources, resource_names }: GroupResources) -> Self {
        Self { group, resources, names: resource_names }
    }
}

fn level(text: &str, path: &str, errors: &mut Vec<FieldError>) -> Level {
    let names = Level::ALL.map(Level::as_str);
    if text.is_empty() {
        errors.push(FieldError::required(path, "").fix(format!("give {}", names.join(" or "))));
    } else if !names.contains(&text) {
        errors.push(FieldError::not_supported(path, text, &names));
    }
    Level::ALL.into_iter().find(|level| level.as_str() == text).unwrap_or(Level::None)
}

fn non_resource_url(url: &str, path: &str, errors: &mut Vec<FieldError>) {
    if url == "*" {
        return;
    }
    if !url.starts_with('/') {
        let detail = "non-resource URL rules must begin with a '/' character";
        errors.push(FieldError::invalid(path, url, detail).fix("begin the path with /"));
    }
    let mut before_last = url.chars();
    before_last.next_back();
    if before_last.as_str().contains('*') {
        let detail = "non-resource URL wildcards '*' must be the final character of the rule";
        errors.push(FieldError::invalid(path, url, detail).fix("end the path with *, or give none"));
    }
}

fn stages(texts: &[String], path: &str, errors: &mut Vec<FieldError>) -> Stages {
    let mut stages = Stages::default();
    for (index, text) in texts.iter().enumerate() {
        if let Some(stage) = Stage::ALL.into_iter().find(|stage| stage.as_str() == text) {
            stages.insert(stage);
        } else {
            let names = Stage::ALL.map(Stage::as_str).join(",");
            let error =
                FieldError::invalid(format!("{path}[{index}]"), text, &format!("allowed stages are {names}"));
            errors.push(error.fix(format!("give one of {names}")));
        }
    }
    stages
}
