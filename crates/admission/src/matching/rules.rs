//! Whether the rules of a webhook match a request.
//!
//! If none matches the resource as requested, one may match another version of it, or the same objects in another group: the
//! webhook then sees the objects converted. Which of them the API server serves is not known here, so a match is possible first
//! ([`RuleMatch::Possible`]), and decided with the list of those that are served.
// apiserver: pkg/admission/plugin/webhook/predicates/rules/rules.go

use std::sync::Arc;

use crate::{Attributes, MatchPolicy, MatchResources, Operation, Rule, Scope, ServedResource, Webhook};

/// How the rules of a webhook match a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RuleMatch {
    /// No rule matches.
    No,
    /// A rule matches the resource as requested.
    Exact,
    /// No rule matches the resource as requested, but one matches this one: the webhook expects its kind.
    Equivalent(Arc<ServedResource>),
    /// No rule matches the resource as requested, but one may match an equivalent resource: it is not known which are served.
    Possible,
}

/// Rules of which any may match: those of a webhook, or of the constraints of a policy.
#[derive(Debug, Clone, Copy)]
pub struct RuleSet<'a> {
    pub(super) rules: &'a [Rule],
    pub(super) match_policy: MatchPolicy,
    /// Whether the name of the object is not known.
    pub(super) any_name: bool,
}

impl RuleSet<'_> {
    /// The rules for this request, whose object may have no name yet: then one for a name makes a match
    /// [possible](RuleMatch::Possible).
    #[must_use]
    pub fn before_naming(self, attributes: &Attributes) -> Self {
        let any_name = attributes.operation == Operation::Create && attributes.name.is_empty();
        Self { any_name, ..self }
    }
}

impl<'a> From<&'a Webhook> for RuleSet<'a> {
    fn from(webhook: &'a Webhook) -> Self {
        Self { rules: &webhook.rules, match_policy: webhook.match_policy, any_name: false }
    }
}

impl<'a> From<&'a MatchResources> for RuleSet<'a> {
    fn from(resources: &'a MatchResources) -> Self {
        Self { rules: &resources.rules, match_policy: resources.match_policy, any_name: false }
    }
}

/// How rules match a request. `equivalents` are the other resources by which the API server serves the objects; without them, each
/// that could be one counts.
// apiserver: pkg/admission/plugin/webhook/generic/webhook.go, ShouldCallHook
pub fn rule_match<'a>(
    rules: impl Into<RuleSet<'a>>,
    attributes: &Attributes,
    equivalents: Option<&[Arc<ServedResource>]>,
) -> RuleMatch {
    let rules = rules.into();
    match possible_match(rules, attributes, || PossibleEquivalents::new(attributes)) {
        RuleMatch::Possible if !named_match(rules, attributes) => {
            served_match(rules, attributes, equivalents)
        }
        known => known,
    }
}

/// How they match if it is not known which resources are served. The equivalents are only computed if they matter.
pub(super) fn possible_match<E: std::borrow::Borrow<PossibleEquivalents>>(
    set @ RuleSet { rules, match_policy, any_name }: RuleSet<'_>,
    attributes: &Attributes,
    equivalents: impl FnOnce() -> E,
) -> RuleMatch {
    if rules.iter().any(|rule| names(rule, attributes) && matches(rule, attributes)) {
        return RuleMatch::Exact;
    }
    if named_match(set, attributes) {
        return RuleMatch::Possible;
    }
    let rules = || rules.iter().filter(|rule| any_name || names(rule, attributes));
    let may_convert = || rules().any(|rule| operation(rule, attributes) && resource(rule, attributes));
    if match_policy == MatchPolicy::Exact || !may_convert() {
        return RuleMatch::No;
    }
    let equivalents = equivalents();
    if rules().any(|rule| equivalents.borrow().matches(rule, attributes)) {
        RuleMatch::Possible
    } else {
        RuleMatch::No
    }
}

/// Whether a rule matches as requested if it is for the name, where that is not known.
pub(super) fn named_match(RuleSet { rules, any_name, .. }: RuleSet<'_>, attributes: &Attributes) -> bool {
    any_name && rules.iter().any(|rule| matches(rule, attributes))
}

/// Decides a possible match: the first rule that matches a served resource, and the first one of those.
// threat: unreviewed-write
pub(super) fn served_match(
    RuleSet { rules, any_name, .. }: RuleSet<'_>,
    attributes: &Attributes,
    equivalents: Option<&[Arc<ServedResource>]>,
) -> RuleMatch {
    let Some(equivalents) = equivalents else { return RuleMatch::Possible };
    let others = || equivalents.iter().filter(|other| other.resource != attributes.resource);
    let of_name = |rule: &&Rule| any_name || names(rule, attributes);
    let first = rules.iter().filter(of_name).find_map(|rule| {
        others().find(|other| {
            let on = &other.resource;
            matches_at(rule, attributes, &on.group, &on.version)
        })
    });
    first.map_or(RuleMatch::No, |first| RuleMatch::Equivalent(Arc::clone(first)))
}

/// Whether a rule matches a request as it is.
// rules.go, Matcher.Matches
pub(super) fn matches(rule: &Rule, attributes: &Attributes) -> bool {
    matches_at(rule, attributes, &attributes.resource.group, &attributes.resource.version)
}

/// The same for a request in this group and version.
fn matches_at(rule: &Rule, attributes: &Attributes, group: &str, version: &str) -> bool {
    scope(rule, attributes, group, version)
        && operation(rule, attributes)
        && exact_or_wildcard(&rule.api_groups, group)
        && exact_or_wildcard(&rule.api_versions, version)
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

// apiserver: pkg/admission/plugin/policy/matching/matching.go, matchesResourceRules
fn names(rule: &Rule, attributes: &Attributes) -> bool {
    rule.resource_names.is_empty() || rule.resource_names.contains(&attributes.name)
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

/// The groups of a resource and of those with the same objects, its own first.
pub fn equivalent_groups<'a>(group: &'a str, resource: &'a str) -> impl Iterator<Item = &'a str> {
    let others = aliases()
        .filter(move |(alias, groups)| *alias == resource && groups.contains(&group))
        .flat_map(|(_, groups)| groups)
        .filter(move |other| *other != group);
    std::iter::once(group).chain(others)
}

/// The groups and versions through which the objects of a request may be reached, besides its own.
// apimachinery: pkg/runtime/mapper.go, EquivalentResourcesFor
#[derive(Debug)]
pub(super) struct PossibleEquivalents(Vec<(String, Versions)>);

#[derive(Debug)]
enum Versions {
    Known(&'static [&'static str]),
    /// Any version but the requested one.
    Any,
}

impl PossibleEquivalents {
    pub(super) fn new(attributes: &Attributes) -> Self {
        let on = &attributes.resource;
        let versions = |group: &str| match (group.is_empty(), on.group.is_empty()) {
            // The core group has one version.
            (true, true) => Versions::Known(&[]),
            (true, false) => Versions::Known(&["v1"]),
            (false, _) => Versions::Any,
        };
        let groups = equivalent_groups(&on.group, &on.resource);
        Self(groups.map(|group| (group.to_owned(), versions(group))).collect())
    }

    /// Whether a rule may match one of them.
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
