//! Whether the rules of a webhook match a request.
//!
//! Upstream converts the object of a request when only a rule for another version of its resource matches. That needs the
//! API server's types, so such a match is reported as [`RuleMatch::EquivalentOnly`], also where it is only possible.
// apiserver: pkg/admission/plugin/webhook/predicates/rules/rules.go

use crate::{Attributes, MatchPolicy, Rule, Scope, Webhook};

/// How the rules of a webhook match a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RuleMatch {
    /// No rule matches.
    No,
    /// A rule matches the resource as requested.
    Exact,
    /// No rule matches the resource as requested, but one matches, or may match, another version of it or the same
    /// objects in another group: the webhook expects a converted object.
    EquivalentOnly,
}

/// What is known of the resources that the API server stores itself.
pub trait ServedResources: Send + Sync {
    /// The versions at which a resource is served, with the subresource if it is not empty. `None` if that is not known;
    /// an empty list if it is not served at all.
    fn versions(&self, group: &str, resource: &str, subresource: &str) -> Option<Vec<String>>;
}

/// How the rules of a webhook match a request.
///
/// Without `served`, a rule for any other version of the resource, or of its aliases in other groups, may match.
// apiserver: pkg/admission/plugin/webhook/generic/webhook.go, ShouldCallHook
pub fn rule_match(
    webhook: &Webhook,
    attributes: &Attributes,
    served: Option<&dyn ServedResources>,
) -> RuleMatch {
    rule_match_with(webhook, attributes, || Equivalents::new(attributes, served))
}

/// As [`rule_match`]; the equivalents of the request are only computed if they matter.
pub(super) fn rule_match_with<E: std::borrow::Borrow<Equivalents>>(
    webhook: &Webhook,
    attributes: &Attributes,
    equivalents: impl FnOnce() -> E,
) -> RuleMatch {
    if webhook.rules.iter().any(|rule| matches(rule, attributes)) {
        return RuleMatch::Exact;
    }
    let may_convert =
        || webhook.rules.iter().any(|rule| operation(rule, attributes) && resource(rule, attributes));
    if webhook.match_policy == MatchPolicy::Exact || !may_convert() {
        return RuleMatch::No;
    }
    let equivalents = equivalents();
    if webhook.rules.iter().any(|rule| equivalents.borrow().matches(rule, attributes)) {
        RuleMatch::EquivalentOnly
    } else {
        RuleMatch::No
    }
}

/// Whether a rule matches a request as it is.
// rules.go, Matcher.Matches
pub(super) fn matches(rule: &Rule, attributes: &Attributes) -> bool {
    let on = &attributes.resource;
    scope(rule, attributes, &on.group, &on.version)
        && operation(rule, attributes)
        && exact_or_wildcard(&rule.api_groups, &on.group)
        && exact_or_wildcard(&rule.api_versions, &on.version)
        && resource(rule, attributes)
}

fn exact_or_wildcard(items: &[String], requested: &str) -> bool {
    items.iter().any(|item| item == "*" || item == requested)
}

/// The namespace of a request for a Namespace object is its own name, but the object is cluster-scoped.
pub(super) fn scope(rule: &Rule, attributes: &Attributes, group: &str, version: &str) -> bool {
    let of_namespace = group.is_empty() && version == "v1" && attributes.resource.resource == "namespaces";
    let in_namespace = !of_namespace && !attributes.namespace.is_empty();
    match rule.scope {
        Scope::All => true,
        Scope::Namespaced => in_namespace,
        Scope::Cluster => !in_namespace,
    }
}

pub(super) fn operation(rule: &Rule, attributes: &Attributes) -> bool {
    rule.operations.as_ref().is_none_or(|operations| operations.contains(&attributes.operation))
}

pub(super) fn resource(rule: &Rule, attributes: &Attributes) -> bool {
    rule.resources.iter().any(|item| {
        let (resource, subresource) = split_resource(item);
        (resource == "*" || resource == attributes.resource.resource)
            && (subresource == "*" || subresource == attributes.subresource)
    })
}

/// The resource and the subresource of an entry of `resources`; the latter is empty if the entry has none.
pub(super) fn split_resource(item: &str) -> (&str, &str) {
    item.split_once('/').unwrap_or((item, ""))
}

/// Resources that several groups serve from the same storage.
// kubernetes: pkg/kubeapiserver/default_storage_factory_builder.go, AddCohabitatingResources
const ALIASES: &[(&str, [&str; 2])] = &[
    ("networkpolicies", ["networking.k8s.io", "extensions"]),
    ("deployments", ["apps", "extensions"]),
    ("daemonsets", ["apps", "extensions"]),
    ("replicasets", ["apps", "extensions"]),
    ("events", ["", "events.k8s.io"]),
    ("replicationcontrollers", ["", "extensions"]),
    ("podsecuritypolicies", ["policy", "extensions"]),
    ("ingresses", ["networking.k8s.io", "extensions"]),
];

/// The resources of other groups with the same objects, by group.
pub(super) fn aliases() -> impl Iterator<Item = (&'static str, [&'static str; 2])> {
    ALIASES.iter().copied()
}

/// The groups and versions through which the objects of a request can be reached, besides its own.
// apimachinery: pkg/runtime/mapper.go, EquivalentResourcesFor
#[derive(Debug)]
pub(super) struct Equivalents(Vec<(String, Versions)>);

#[derive(Debug)]
enum Versions {
    Known(Vec<String>),
    /// Any version but the requested one.
    Any,
}

impl Equivalents {
    pub(super) fn new(attributes: &Attributes, served: Option<&dyn ServedResources>) -> Self {
        let on = &attributes.resource;
        let others = aliases()
            .filter(|(resource, groups)| *resource == on.resource && groups.contains(&on.group.as_str()))
            .flat_map(|(_, groups)| groups)
            .filter(|group| *group != on.group);
        let groups = std::iter::once(on.group.as_str()).chain(others);
        let versions = |group: &str| {
            let known =
                served.and_then(|served| served.versions(group, &on.resource, &attributes.subresource));
            match known {
                Some(mut versions) => {
                    versions.retain(|version| group != on.group || *version != on.version);
                    Versions::Known(versions)
                }
                // The core group has one version.
                None if group.is_empty() && on.group.is_empty() => Versions::Known(Vec::new()),
                None if group.is_empty() => Versions::Known(vec!["v1".to_owned()]),
                None => Versions::Any,
            }
        };
        Self(groups.map(|group| (group.to_owned(), versions(group))).collect())
    }

    /// Whether a rule matches, or may match, one of them.
    fn matches(&self, rule: &Rule, attributes: &Attributes) -> bool {
        let on = &attributes.resource;
        operation(rule, attributes)
            && resource(rule, attributes)
            && self.0.iter().any(|(group, versions)| {
                exact_or_wildcard(&rule.api_groups, group)
                    && match versions {
                        Versions::Known(versions) => versions.iter().any(|version| {
                            exact_or_wildcard(&rule.api_versions, version)
                                && scope(rule, attributes, group, version)
                        }),
                        Versions::Any => {
                            let other = |version: &String| *group != on.group || *version != on.version;
                            rule.api_versions.iter().any(other) && scope(rule, attributes, group, "")
                        }
                    }
            })
    }
}
