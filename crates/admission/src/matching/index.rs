//! An index of the rules of all webhooks, or of all policies, for requests that none of them is interested in.

use std::collections::HashMap;
use std::sync::Arc;

use super::rules::{RuleSet, aliases, split_resource};
use crate::{AnyPolicy, MatchPolicy, Operation, Rule, Webhook};

/// The most entries of one rule; a rule with more of them is entered for any version, or for any group and version.
const MAX_ENTRIES: usize = 1_000;

/// A set of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct OperationSet(u8);

impl OperationSet {
    /// All operations.
    pub const ALL: Self = Self(0b1111);

    /// Whether the sets have an operation in common.
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl From<Operation> for OperationSet {
    fn from(operation: Operation) -> Self {
        Self(match operation {
            Operation::Create => 0b0001,
            Operation::Update => 0b0010,
            Operation::Delete => 0b0100,
            Operation::Connect => 0b1000,
        })
    }
}

impl FromIterator<Operation> for OperationSet {
    fn from_iter<T: IntoIterator<Item = Operation>>(operations: T) -> Self {
        operations.into_iter().fold(Self::default(), |set, operation| Self(set.0 | Self::from(operation).0))
    }
}

/// The rules of webhooks, or of policies, prepared for one question: can any of them match?
#[derive(Debug, Clone, Default)]
pub struct RuleIndex {
    /// By resource, subresource, group and version.
    operations: Level<Level<Level<Level<OperationSet>>>>,
}

impl RuleIndex {
    /// Prepares the rules of webhooks.
    pub fn of_webhooks<'a>(webhooks: impl IntoIterator<Item = &'a Arc<Webhook>>) -> Self {
        let mut index = Self::default();
        for webhook in webhooks {
            index.insert(webhook.as_ref().into());
        }
        index
    }

    /// Prepares the rules of policies. Those that they exclude do not count; a policy without bindings is not in force.
    pub fn of_policies<'a>(policies: impl IntoIterator<Item = AnyPolicy<'a>>) -> Self {
        let mut index = Self::default();
        for policy in policies {
            if !policy.bindings().is_empty() {
                index.insert((&policy.scope().constraints).into());
            }
        }
        index
    }

    /// Whether a rule may match a request with one of these operations, directly or by an equivalent resource.
    ///
    /// `false` is certain: [`rule_match`](super::rule_match) is [`No`](super::RuleMatch::No) for each of them, in every
    /// namespace. Takes at most 15 look-ups, however many there are, and does not allocate.
    pub fn may_match(
        &self,
        operations: OperationSet,
        group: &str,
        version: &str,
        resource: &str,
        subresource: &str,
    ) -> bool {
        self.operations
            .at(resource)
            .flat_map(|level| level.at(subresource))
            .flat_map(|level| level.at(group))
            .flat_map(|level| level.at(version))
            .any(|known| known.intersects(operations))
    }

    fn insert(&mut self, RuleSet { rules, match_policy, .. }: RuleSet<'_>) {
        for rule in rules {
            let operations: OperationSet = match &rule.operations {
                Some(operations) => operations.iter().copied().collect(),
                None => OperationSet::ALL,
            };
            match match_policy {
                MatchPolicy::Exact => self.insert_exact(rule, operations),
                MatchPolicy::Equivalent => self.insert_equivalent(rule, operations),
            }
        }
    }

    fn insert_exact(&mut self, rule: &Rule, operations: OperationSet) {
        let any = ["*".to_owned()];
        let resources = rule.resources.len();
        let is_small = |groups: usize, versions: usize| {
            resources.saturating_mul(groups).saturating_mul(versions) <= MAX_ENTRIES
        };
        let (mut groups, mut versions) = (rule.api_groups.as_slice(), rule.api_versions.as_slice());
        // A list without entries matches nothing, which the wildcard must not change.
        if groups.is_empty() || versions.is_empty() {
            return;
        }
        if !is_small(groups.len(), versions.len()) {
            versions = &any;
        }
        if !is_small(groups.len(), versions.len()) {
            groups = &any;
        }
        for resource in &rule.resources {
            for group in groups {
                for version in versions {
                    self.add(resource, group, version, operations);
                }
            }
        }
    }

    /// Enters the rule for any version of its groups, and for the aliases of its resources.
    fn insert_equivalent(&mut self, rule: &Rule, operations: OperationSet) {
        if rule.api_versions.is_empty() || rule.api_groups.is_empty() {
            return;
        }
        let any = ["*".to_owned()];
        let is_large = rule.resources.len().saturating_mul(rule.api_groups.len()) > MAX_ENTRIES;
        let groups = if is_large { any.as_slice() } else { rule.api_groups.as_slice() };
        for resource in &rule.resources {
            for group in groups {
                self.add(resource, group, "*", operations);
                let (name, subresource) = split_resource(resource);
                for (alias, members) in aliases() {
                    if (name == "*" || name == alias) && members.contains(&group.as_str()) {
                        for member in members {
                            self.add_split(alias, subresource, member, "*", operations);
                        }
                    }
                }
            }
        }
    }

    fn add(&mut self, resource: &str, group: &str, version: &str, operations: OperationSet) {
        let (resource, subresource) = split_resource(resource);
        self.add_split(resource, subresource, group, version, operations);
    }

    fn add_split(
        &mut self,
        resource: &str,
        subresource: &str,
        group: &str,
        version: &str,
        operations: OperationSet,
    ) {
        let known = self.operations.entry(resource).entry(subresource).entry(group).entry(version);
        *known = OperationSet(known.0 | operations.0);
    }
}

/// A level of the index: the entry of the wildcard, and those of names.
#[derive(Debug, Clone, Default)]
struct Level<T> {
    any: T,
    named: HashMap<Box<str>, T>,
}

impl<T: Default> Level<T> {
    fn entry(&mut self, name: &str) -> &mut T {
        if name == "*" { &mut self.any } else { self.named.entry(name.into()).or_default() }
    }

    /// The entries for a name.
    fn at(&self, name: &str) -> impl Iterator<Item = &T> {
        std::iter::once(&self.any).chain(self.named.get(name))
    }
}
