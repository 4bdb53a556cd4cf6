//! Which webhooks a request is sent to.
//!
//! [`RuleIndex`] answers for all webhooks at once whether any rule may match, before the objects of a request are known.
//! [`RequestMatcher`] then decides for one webhook after the other, as upstream does: by rules, `objectSelector`,
//! `namespaceSelector` and `matchConditions`.
//!
//! Upstream's order is namespace, object, rules; the verdicts are the same, since an error of a selector only counts if the
//! rules and the other selector match. This order reads no namespace for a webhook that is not called.
//!
//! No resource is exempt: the configurations that kube-apiserver hides from webhooks are hidden from those of its API only,
//! not from those of static files; and it sends virtual resources such as `tokenreviews` to webhooks.

mod conditions;
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

use crate::{Attributes, Operation, SharedObjects, SkipReason, Surroundings, Webhook};
use conditions::Evaluation;
use rules::{Equivalents, rule_match_with};
use selector::ObjectLabels;

pub use conditions::MatchCondition;
pub use index::{OperationSet, RuleIndex};
pub use rules::{RuleMatch, ServedResources, rule_match};
pub use selector::{LabelSelector, SelectorError};

/// What to do with a webhook for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It does not apply.
    Skip,
    /// Send it the request.
    Call,
    /// It expects an object of another version or group, or may do so, and nothing here can convert objects: refuse the
    /// request. Its match conditions have not been evaluated, since they are about that object.
    NeedsConversion,
}

/// A request, matched with one webhook after the other. What several webhooks need is computed once, by the first.
pub struct RequestMatcher<'a> {
    attributes: &'a Attributes,
    served: Option<&'a dyn ServedResources>,
    equivalents: OnceLock<Equivalents>,
    bindings: OnceLock<Arc<Bindings>>,
    namespace: OnceLock<Result<BTreeMap<String, String>, Box<Status>>>,
}

impl<'a> RequestMatcher<'a> {
    /// A matcher for a request. Without `served`, all resources that could be equivalent to the requested one count.
    pub fn new(attributes: &'a Attributes, served: Option<&'a dyn ServedResources>) -> Self {
        Self {
            attributes,
            served,
            equivalents: OnceLock::new(),
            bindings: OnceLock::new(),
            namespace: OnceLock::new(),
        }
    }

    /// How the rules of a webhook match.
    pub fn rule_match(&self, webhook: &Webhook) -> RuleMatch {
        rule_match_with(webhook, self.attributes, || {
            self.equivalents.get_or_init(|| Equivalents::new(self.attributes, self.served))
        })
    }

    /// Takes note that the objects have changed.
    pub(crate) fn forget_objects(&mut self) {
        self.bindings = OnceLock::new();
    }

    /// Whether a webhook is called with `objects`, the same ones in all calls until [`Self::forget_objects`]; the `Status` for
    /// the client if that cannot be decided, and its failure policy does not decide it.
    // apiserver: pkg/admission/plugin/webhook/generic/webhook.go, ShouldCallHook
    pub(crate) async fn should_call(
        &self,
        webhook: &Webhook,
        objects: &SharedObjects,
        surroundings: &impl Surroundings,
    ) -> Result<Verdict, Box<Status>> {
        let skip = |reason| {
            surroundings.note_skip(webhook, reason);
            Ok(Verdict::Skip)
        };
        let rules = self.rule_match(webhook);
        if rules == RuleMatch::No {
            return skip(SkipReason::Rules);
        }
        if !self.object_matches(&webhook.object_selector, objects) {
            return skip(SkipReason::ObjectSelector);
        }
        if !self.namespace_matches(&webhook.namespace_selector, objects, surroundings).await? {
            return skip(SkipReason::NamespaceSelector);
        }
        if rules == RuleMatch::EquivalentOnly {
            return Ok(Verdict::NeedsConversion);
        }
        if !webhook.match_conditions.is_empty() {
            let bindings = self.bindings(objects, surroundings).await?;
            let evaluation =
                Evaluation { attributes: self.attributes, bindings, are_large: objects.are_large };
            if !evaluation.holds(webhook, surroundings).await? {
                return Ok(Verdict::Skip);
            }
        }
        Ok(Verdict::Call)
    }

    /// The variables of conditions.
    async fn bindings(
        &self,
        objects: &SharedObjects,
        surroundings: &impl Surroundings,
    ) -> Result<Arc<Bindings>, Box<Status>> {
        if let Some(bindings) = self.bindings.get() {
            return Ok(Arc::clone(bindings));
        }
        let (request, shared) = (conditions::request_variables(self.attributes), objects.clone());
        let bind = move || Arc::new(conditions::bindings(request, &shared));
        let bindings =
            surroundings.compute(objects.are_large, bind).await.ok_or_else(conditions::cancelled)?;
        Ok(Arc::clone(self.bindings.get_or_init(|| bindings)))
    }

    /// Whether a webhook may be called, whatever the objects are: its rules match, and the namespace if it is known.
    pub async fn may_call(
        &self,
        webhook: &Webhook,
        surroundings: &impl Surroundings,
    ) -> Result<bool, Box<Status>> {
        if self.rule_match(webhook) == RuleMatch::No {
            return Ok(false);
        }
        // A Namespace object decides by its own labels, which are not known.
        if self.attributes.resource.resource == "namespaces" {
            return Ok(true);
        }
        let objects = SharedObjects::default();
        self.namespace_matches(&webhook.namespace_selector, &objects, surroundings).await
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
    ) -> Result<bool, Box<Status>> {
        let Attributes { operation, resource, subresource, namespace, .. } = self.attributes;
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
                return Err(statuses::internal_error("object does not implement the Object interfaces"));
            }
            return Ok(selector.matches_object(&labels));
        }
        if namespace.is_empty() {
            // client-go: rest/request.go, Name
            return Err(statuses::internal_error("resource name may not be empty"));
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

impl fmt::Debug for RequestMatcher<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestMatcher").field("attributes", self.attributes).finish_non_exhaustive()
    }
}
