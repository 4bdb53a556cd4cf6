//! Which webhooks a request is sent to.
//!
//! [`RuleIndex`] answers for all webhooks at once whether any rule may match, before the objects of a request are known.
//! [`RequestMatcher`] then decides for one webhook after the other, as upstream does: by rules, `objectSelector`,
//! `namespaceSelector` and `matchConditions`.
//!
//! Upstream's order is namespace, object, rules; the verdicts are the same, since an error of a selector only counts if the
//! rules and the other selector match. This order reads no namespace for a webhook that is not called.
//!
//! No resource is exempt here: the configurations that kube-apiserver hides from webhooks are hidden from those of its API only,
//! not from those of static files. Reviews such as `tokenreviews`, which no webhook sees, never come here:
//! [`Release::excludes_from_webhooks`](portcullis_kubernetes::release::Release::excludes_from_webhooks).

mod conditions;
mod evaluation;
mod index;
mod label_syntax;
mod rules;
mod selector;
mod statuses;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use portcullis_cel::Bindings;

use serde_json::Value;

use crate::{
    Attributes, Conversions, GroupVersionKind, MatchError, MatchResources, Operation, ServedResource,
    SharedObjects, SkipReason, Surroundings, Webhook,
};
use conditions::Evaluation;
use rules::{PossibleEquivalents, named_match, possible_match, served_match};
use selector::ObjectLabels;

pub use conditions::MatchCondition;
pub(crate) use conditions::{Failure, hold};
pub use evaluation::InlineCost;
pub(crate) use evaluation::{Expressions, failure};
pub use index::{OperationSet, RuleIndex};
pub use rules::{RuleMatch, RuleSet, equivalent_groups, rule_match};
pub use selector::{LabelSelector, SelectorError};

/// A request, matched with one webhook after the other. What several webhooks need is computed once, by the first.
pub struct RequestMatcher<'a, C> {
    attributes: &'a Attributes,
    conversions: &'a C,
    possible: OnceLock<PossibleEquivalents>,
    served: OnceLock<Option<Vec<Arc<ServedResource>>>>,
    namespace: OnceLock<Result<BTreeMap<String, String>, MatchError>>,
}

/// The objects of a request in the form that a webhook expects.
pub(crate) struct ConditionObjects<'a> {
    pub(crate) kind: &'a GroupVersionKind,
    pub(crate) objects: &'a SharedObjects,
    /// The variables of conditions, once they are made.
    pub(crate) bindings: &'a OnceLock<Arc<Bindings>>,
}

impl<'a, C: Conversions> RequestMatcher<'a, C> {
    /// A matcher for a request.
    pub fn new(attributes: &'a Attributes, conversions: &'a C) -> Self {
        Self {
            attributes,
            conversions,
            possible: OnceLock::new(),
            served: OnceLock::new(),
            namespace: OnceLock::new(),
        }
    }

    /// The request.
    pub(crate) fn attributes(&self) -> &'a Attributes {
        self.attributes
    }

    /// How the rules of a webhook match. The API server is only asked what it serves if that matters.
    pub async fn rule_match(&self, webhook: &Webhook) -> RuleMatch {
        self.rules_match(webhook.into()).await
    }

    async fn rules_match(&self, rules: RuleSet<'_>) -> RuleMatch {
        let possible = possible_match(rules, self.attributes, || {
            self.possible.get_or_init(|| PossibleEquivalents::new(self.attributes))
        });
        if possible != RuleMatch::Possible || named_match(rules, self.attributes) {
            return possible;
        }
        let served = if let Some(served) = self.served.get() {
            served
        } else {
            let served = self.conversions.equivalents(self.attributes).await;
            let served = served.map(|served| served.into_iter().map(Arc::new).collect());
            self.served.get_or_init(|| served)
        };
        served_match(rules, self.attributes, served.as_deref())
    }

    /// How the rules of a webhook match, if its selectors do; the `Status` for the client if that cannot be decided.
    // apiserver: pkg/admission/plugin/webhook/generic/webhook.go, ShouldCallHook
    pub(crate) async fn matches(
        &self,
        webhook: &Webhook,
        objects: &SharedObjects,
        surroundings: &impl Surroundings,
    ) -> Result<RuleMatch, Box<Status>> {
        let skip = |reason| {
            surroundings.note_skip(webhook, reason);
            Ok(RuleMatch::No)
        };
        let rules = self.rule_match(webhook).await;
        if rules == RuleMatch::No {
            return skip(SkipReason::Rules);
        }
        if !self.object_matches(&webhook.object_selector, objects) {
            return skip(SkipReason::ObjectSelector);
        }
        let in_namespace = self.namespace_matches(&webhook.namespace_selector, objects, surroundings).await;
        if !in_namespace.map_err(MatchError::into_status)? {
            return skip(SkipReason::NamespaceSelector);
        }
        Ok(rules)
    }

    /// How the rules of a policy, or of a binding, match, if its selectors do.
    // apiserver: pkg/admission/plugin/policy/matching/matching.go, Matches
    pub(crate) async fn resources_match(
        &self,
        resources: &MatchResources,
        objects: &SharedObjects,
        surroundings: &impl Surroundings,
    ) -> Result<RuleMatch, MatchError> {
        let matched = self.constraints_match(resources, resources.into()).await;
        if matched == RuleMatch::No || !self.object_matches(&resources.object_selector, objects) {
            return Ok(RuleMatch::No);
        }
        if !self.namespace_matches(&resources.namespace_selector, objects, surroundings).await? {
            return Ok(RuleMatch::No);
        }
        Ok(matched)
    }

    /// How the rules match that include requests, `included`, and those that exclude some of them. A request whose name is not known
    /// is only excluded by rules for any name.
    async fn constraints_match(&self, resources: &MatchResources, included: RuleSet<'_>) -> RuleMatch {
        let matched =
            if resources.rules.is_empty() { RuleMatch::Exact } else { self.rules_match(included).await };
        if matched == RuleMatch::No {
            return matched;
        }
        let excluded = RuleSet { rules: &resources.excluded, ..RuleSet::from(resources) };
        match self.rules_match(excluded).await {
            RuleMatch::No => matched,
            RuleMatch::Exact | RuleMatch::Equivalent(_) => RuleMatch::No,
            RuleMatch::Possible => RuleMatch::Possible,
        }
    }

    /// Whether a policy, or a binding, may be about a request, whatever the objects are: its rules match, and the namespace if it is
    /// known.
    pub async fn may_apply(
        &self,
        resources: &MatchResources,
        surroundings: &impl Surroundings,
    ) -> Result<bool, Box<Status>> {
        let included = RuleSet::from(resources).before_naming(self.attributes);
        Ok(self.constraints_match(resources, included).await != RuleMatch::No
            && self.namespace_may_match(&resources.namespace_selector, surroundings).await?)
    }

    /// The values of the variables of a policy; `of_conditions` are those of its conditions.
    pub(crate) async fn policy_bindings(
        &self,
        of_conditions: &Arc<Bindings>,
        (resource, namespace, is_large): (&ServedResource, Option<Arc<Value>>, bool),
        surroundings: &impl Surroundings,
    ) -> Result<Arc<Bindings>, Box<Status>> {
        let (base, attributes) = (Arc::clone(of_conditions), self.attributes.clone());
        let (resource, namespace) = (resource.clone(), namespace.unwrap_or_default());
        let bind = move || Arc::new(conditions::policy_bindings(&base, &attributes, &resource, &namespace));
        surroundings.compute(is_large, bind).await.ok_or_else(evaluation::cancelled)
    }

    /// Whether the match conditions of a webhook hold; the `Status` for the client if that cannot be decided, and its failure
    /// policy does not decide it.
    pub(crate) async fn conditions_hold(
        &self,
        webhook: &Webhook,
        seen: ConditionObjects<'_>,
        surroundings: &impl Surroundings,
    ) -> Result<bool, Box<Status>> {
        if webhook.match_conditions.is_empty() {
            return Ok(true);
        }
        let are_large = seen.objects.are_large;
        let bindings = self.bindings(seen, surroundings).await?;
        let evaluation = Evaluation {
            attributes: self.attributes,
            bindings,
            are_large,
            inline: surroundings.inline_cost(),
        };
        evaluation.holds(webhook, surroundings).await
    }

    /// The variables of conditions.
    pub(crate) async fn bindings(
        &self,
        ConditionObjects { kind, objects, bindings: known }: ConditionObjects<'_>,
        surroundings: &impl Surroundings,
    ) -> Result<Arc<Bindings>, Box<Status>> {
        if let Some(bindings) = known.get() {
            return Ok(Arc::clone(bindings));
        }
        let (request, shared) = (conditions::request_variables(self.attributes, kind), objects.clone());
        let bind = move || Arc::new(conditions::bindings(request, &shared));
        let bindings =
            surroundings.compute(objects.are_large, bind).await.ok_or_else(evaluation::cancelled)?;
        Ok(Arc::clone(known.get_or_init(|| bindings)))
    }

    /// Whether a webhook may be called, whatever the objects are: its rules match, and the namespace if it is known.
    pub async fn may_call(
        &self,
        webhook: &Webhook,
        surroundings: &impl Surroundings,
    ) -> Result<bool, Box<Status>> {
        Ok(self.rule_match(webhook).await != RuleMatch::No
            && self.namespace_may_match(&webhook.namespace_selector, surroundings).await?)
    }

    async fn namespace_may_match(
        &self,
        selector: &LabelSelector,
        surroundings: &impl Surroundings,
    ) -> Result<bool, Box<Status>> {
        // A Namespace object decides by its own labels, which are not known.
        if self.attributes.resource.resource == "namespaces" {
            return Ok(true);
        }
        let matches = self.namespace_matches(selector, &SharedObjects::default(), surroundings).await;
        matches.map_err(MatchError::into_status)
    }

    // apiserver: pkg/admission/plugin/webhook/predicates/object/matcher.go, MatchObjectSelector
    fn object_matches(&self, selector: &LabelSelector, objects: &SharedObjects) -> bool {
        if selector.is_empty() {
            return true;
        }
        // The options of a connection are the only objects of requests that have no metadata.
        let has_metadata = self.attributes.operation != Operation::Connect;
        [&objects.object, &objects.old_object]
            .into_iter()
            .any(|object| selector.matches_object(&ObjectLabels::of(object.as_deref(), has_metadata)))
    }

    // apiserver: pkg/admission/plugin/webhook/predicates/namespace/matcher.go, MatchNamespaceSelector
    async fn namespace_matches(
        &self,
        selector: &LabelSelector,
        objects: &SharedObjects,
        surroundings: &impl Surroundings,
    ) -> Result<bool, MatchError> {
        let Attributes { operation, resource, subresource, namespace, .. } = self.attributes;
        let undecidable = |error| Err(MatchError::Configuration(statuses::internal_error(error)));
        let on_namespaces = resource.resource == "namespaces";
        if selector.is_empty() || (namespace.is_empty() && !on_namespaces) {
            return Ok(true);
        }
        // The stored labels of a Namespace object that is created or changed are not those that it will have.
        if on_namespaces
            && subresource.is_empty()
            && matches!(operation, Operation::Create | Operation::Update)
        {
            let labels = ObjectLabels::of(objects.object.as_deref(), true);
            if labels == ObjectLabels::Inaccessible {
                return undecidable("object does not implement the Object interfaces");
            }
            return Ok(selector.matches_object(&labels));
        }
        if namespace.is_empty() {
            // client-go: rest/request.go, Name
            return undecidable("resource name may not be empty");
        }
        let labels = if let Some(labels) = self.namespace.get() {
            labels
        } else {
            let read = surroundings.namespace_labels(namespace).await;
            self.namespace.get_or_init(|| read)
        };
        labels.as_ref().map(|labels| selector.matches(labels)).map_err(Clone::clone)
    }
}

impl<C> fmt::Debug for RequestMatcher<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestMatcher").field("attributes", self.attributes).finish_non_exhaustive()
    }
}
