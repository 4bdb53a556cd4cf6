//! The rules of a policy.
// apiserver: pkg/audit/policy/checker.go

use super::{Attributes, Decision};

/// A rule of a policy. An empty list is no constraint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The names of users.
    pub users: Vec<String>,
    /// The groups of users; one is enough.
    pub user_groups: Vec<String>,
    /// The verbs.
    pub verbs: Vec<String>,
    /// The resources.
    pub resources: Vec<Resource>,
    /// The namespaces; the empty one has the resources without a namespace.
    pub namespaces: Vec<String>,
    /// The paths without a resource; a `*` at the end matches any rest.
    pub non_resource_urls: Vec<String>,
    pub(super) decision: Decision,
}

/// Resources of an API group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// The API group; `*` is any.
    pub group: String,
    /// The resources and subresources.
    pub resources: Vec<String>,
    /// The names of objects.
    pub names: Vec<String>,
}

impl Rule {
    /// What the rule says of the requests that it matches.
    pub fn decision(&self) -> Decision {
        self.decision
    }

    // ruleMatches
    pub(super) fn matches(&self, attributes: &Attributes<'_>) -> bool {
        let Self { users, user_groups, verbs, resources, namespaces, non_resource_urls, .. } = self;
        let user = attributes.user;
        let is_user = || user.is_some_and(|user| has(users, user.name));
        let is_member = || user.is_some_and(|user| user.groups.iter().any(|group| has(user_groups, group)));
        if !users.is_empty() && !is_user()
            || !user_groups.is_empty() && !is_member()
            || !verbs.is_empty() && !has(verbs, attributes.verb)
        {
            return false;
        }
        if !namespaces.is_empty() || !resources.is_empty() {
            return attributes.resource.is_some_and(|resource| self.matches_resource(&resource));
        }
        non_resource_urls.is_empty()
            || attributes.resource.is_none()
                && non_resource_urls.iter().any(|url| matches_path(url, attributes.path))
    }

    // ruleMatchesResource
    fn matches_resource(&self, resource: &super::Resource<'_>) -> bool {
        (self.namespaces.is_empty() || has(&self.namespaces, resource.namespace))
            && (self.resources.is_empty() || self.resources.iter().any(|rule| rule.matches(resource)))
    }
}

impl Resource {
    fn matches(&self, asked: &super::Resource<'_>) -> bool {
        if self.group != "*" && self.group != asked.api_group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        (self.names.is_empty() || has(&self.names, asked.name))
            && self.resources.iter().any(|resource| matches_resource(resource, asked))
    }
}

fn matches_resource(rule: &str, asked: &super::Resource<'_>) -> bool {
    let super::Resource { resource, subresource, .. } = *asked;
    if rule == "*" {
        return true;
    }
    let is_exact = if subresource.is_empty() {
        rule == resource
    } else {
        rule.strip_prefix(resource).and_then(|rest| rest.strip_prefix('/')) == Some(subresource)
    };
    is_exact
        || !subresource.is_empty() && rule.strip_prefix("*/") == Some(subresource)
        || rule.strip_suffix("/*") == Some(resource)
}

// pathMatches
fn matches_path(rule: &str, path: &str) -> bool {
    rule == "*" || rule == path || rule.ends_with('*') && path.starts_with(rule.trim_end_matches('*'))
}

fn has(list: &[String], value: &str) -> bool {
    list.iter().any(|item| item == value)
}
