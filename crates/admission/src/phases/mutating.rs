//! The mutating phase: one policy after the other, then one webhook after the other, each with the object as the ones before have left
//! it; and both again if the object has changed.
// apiserver: pkg/admission/plugin/webhook/mutating/dispatcher.go, reinvocationcontext.go; pkg/admission/reinvocation.go

mod policies;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use portcullis_go::quote::Quoted;
use serde_json::Value;

use super::annotations::{Annotations, CallPlace};
use super::call::{CallReport, Rejection, failure_text, review, timed};
use super::forms::{Forms, unconverted, unknown};
use super::policies::RequestNamespace;
use super::shadow::ShadowCall;
use crate::matching::{RequestMatcher, RuleMatch};
use crate::review::{
    JSON_PATCH, Patch, ReviewError, ReviewResponse, decode_value, denial, encode, internal_error, timeout,
};
use crate::{
    Attributes, CallOutcome, Conversions, Event, FailurePolicy, LARGE, MutatingPolicy, Objects, Operation,
    Plugin, ReinvocationPolicy, SharedObjects, Surroundings, Webhook,
};

/// The first round and that in which policies and webhooks may run again.
const ROUNDS: usize = 2;

/// What the mutating phase did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mutated {
    /// Whether a policy or a webhook changed the object.
    pub changed: bool,
}

/// An object with a patch applied.
#[derive(Debug)]
pub(super) struct PatchedObject {
    /// The object; `None` if the patch does not change it.
    pub(super) changed: Option<Value>,
    /// The patch as audit annotations show it.
    patch: String,
}

/// Runs the mutating phase: `objects.object` is the mutated object afterwards, if the request is not refused.
pub async fn mutate<S: Surroundings, C: Conversions>(
    (policies, webhooks): (&[Arc<MutatingPolicy>], &[Arc<Webhook>]),
    attributes: &Attributes,
    objects: &mut Objects,
    conversions: &C,
    surroundings: &S,
) -> Result<Mutated, Box<Status>> {
    let shared_attributes = Arc::new(attributes.clone());
    let mut phase = MutatingPhase {
        forms: Forms::new(&shared_attributes, SharedObjects::take(objects), conversions),
        attributes: shared_attributes,
        matcher: RequestMatcher::new(attributes, conversions),
        surroundings,
        annotations: Annotations::new(surroundings),
        namespace: RequestNamespace::default(),
        changes: 0,
        is_repeated: false,
        of_policies: Reinvocations::default(),
        of_webhooks: Reinvocations::default(),
    };
    let mutated = phase.run(policies, webhooks).await;
    let shared = phase.into_objects();
    shared.give_back(objects);
    mutated
}

/// The phase of one request.
struct MutatingPhase<'a, S: Surroundings, C> {
    attributes: Arc<Attributes>,
    forms: Forms<'a, C>,
    matcher: RequestMatcher<'a, C>,
    surroundings: &'a S,
    annotations: Annotations<'a, S>,
    namespace: RequestNamespace,
    /// How often the object was changed.
    changes: u64,
    /// Whether there is a second round.
    is_repeated: bool,
    of_policies: Reinvocations<policies::Place>,
    of_webhooks: Reinvocations<usize>,
}

/// What of a plugin runs again in the second round.
// apiserver: pkg/admission/plugin/webhook/mutating/reinvocationcontext.go
#[derive(Debug)]
struct Reinvocations<P> {
    /// Those that ran since the last change, and may run again.
    ran: BTreeSet<P>,
    /// Those that a later change concerns.
    again: BTreeSet<P>,
    /// The changes of the object up to the end of the plugin's first round.
    changes: u64,
}

impl<P: Ord> Default for Reinvocations<P> {
    fn default() -> Self {
        Self { ran: BTreeSet::new(), again: BTreeSet::new(), changes: 0 }
    }
}

impl<P: Ord> Reinvocations<P> {
    /// The object has changed: all that ran before and may run again do so.
    fn require(&mut self) {
        self.again.append(&mut self.ran);
    }

    /// Takes note of one that ran.
    fn note(&mut self, place: P, policy: ReinvocationPolicy) {
        if policy == ReinvocationPolicy::IfNeeded {
            self.ran.insert(place);
        }
    }

    /// Whether one runs in a round. What did not run in the first round does not run in the second one either.
    fn runs(&self, place: &P, round: usize) -> bool {
        round == 0 || self.again.contains(place)
    }

    /// The plugin begins a round.
    fn begin(&mut self, round: usize, changes: u64) {
        if round > 0 && changes != self.changes {
            self.require();
        }
    }

    /// It ends one.
    fn end(&mut self, changes: u64) {
        self.changes = changes;
    }
}

impl<S: Surroundings, C: Conversions> MutatingPhase<'_, S, C> {
    async fn run(
        &mut self,
        policies: &[Arc<MutatingPolicy>],
        webhooks: &[Arc<Webhook>],
    ) -> Result<Mutated, Box<Status>> {
        let (operation, surroundings) = (self.attributes.operation, self.surroundings);
        let mut shadows = Vec::new();
        for round in 0..ROUNDS {
            if round > 0 && !self.is_repeated {
                break;
            }
            // A deletion has no object to change.
            // apiserver: pkg/admission/plugin/policy/mutating/plugin.go, NewPlugin
            if !policies.is_empty() && operation != Operation::Delete {
                self.convert_back().await?;
                self.of_policies.begin(round, self.changes);
                let running = self.run_policies(policies, round);
                timed(Plugin::MutatingPolicies, operation, running, surroundings).await?;
                self.of_policies.end(self.changes);
            }
            self.of_webhooks.begin(round, self.changes);
            let running = self.run_webhooks(webhooks, round, &mut shadows);
            timed(Plugin::MutatingWebhooks, operation, running, surroundings).await?;
            self.of_webhooks.end(self.changes);
        }
        self.convert_back().await?;
        join_all(shadows.into_iter().map(|call| surroundings.shadow(call))).await;
        Ok(Mutated { changed: self.changes > 0 })
    }

    async fn run_webhooks(
        &mut self,
        webhooks: &[Arc<Webhook>],
        round: usize,
        shadows: &mut Vec<ShadowCall>,
    ) -> Result<(), Box<Status>> {
        for (index, webhook) in webhooks.iter().enumerate() {
            if webhook.shadow && round > 0 {
                continue;
            }
            let matched = self.matcher.matches(webhook, self.forms.objects(), self.surroundings).await;
            if webhook.shadow {
                shadows.extend(self.shadow(webhook, matched).await);
                continue;
            }
            let matched = matched?;
            if matched == RuleMatch::No || !self.of_webhooks.runs(&index, round) {
                continue;
            }
            self.call_if_it_holds(webhook, matched, CallPlace { round, index }).await?;
        }
        Ok(())
    }

    /// The object that is written is in the form of the request.
    async fn convert_back(&mut self) -> Result<(), Box<Status>> {
        let converted = self.forms.convert_to_requested().await;
        converted.map_err(|reason| {
            let text = format!("the changes of admission webhooks cannot be converted back: {reason}");
            internal_error(&text)
        })
    }

    fn into_objects(self) -> SharedObjects {
        let Self { forms, .. } = self;
        forms.into_objects()
    }

    async fn shadow(
        &mut self,
        webhook: &Arc<Webhook>,
        matched: Result<RuleMatch, Box<Status>>,
    ) -> Option<ShadowCall> {
        let Self { attributes, forms, matcher, surroundings, .. } = self;
        ShadowCall::prepare(webhook, matched, (attributes, forms, matcher), *surroundings).await
    }

    /// Calls a webhook, if its match conditions hold.
    async fn call_if_it_holds(
        &mut self,
        webhook: &Arc<Webhook>,
        matched: RuleMatch,
        place: CallPlace,
    ) -> Result<(), Box<Status>> {
        let is_converted = expected_form(&mut self.forms, &self.attributes, &matched).await;
        if is_converted.is_ok() {
            let seen = self.forms.condition_objects();
            if !self.matcher.conditions_hold(webhook, seen, self.surroundings).await? {
                return Ok(());
            }
        }
        self.call(webhook, is_converted, place).await
    }

    async fn call(
        &mut self,
        webhook: &Arc<Webhook>,
        is_converted: Result<(), String>,
        place: CallPlace,
    ) -> Result<(), Box<Status>> {
        let report = CallReport::start(self.surroundings, webhook, self.attributes.operation);
        let result = match is_converted {
            Ok(()) => self.review(webhook).await,
            Err(reason) => Err(Rejection::Unconverted(reason)),
        };
        let result = result.map(|patched| self.replace_object(webhook, place, patched));
        let changed = *result.as_ref().unwrap_or(&false);
        self.annotations.note_mutation(webhook, place, changed);
        report.finish(result.as_ref().err().map_or(CallOutcome::Allowed, Rejection::outcome));
        if changed {
            self.changes += 1;
            self.is_repeated = true;
            self.of_webhooks.require();
        }
        self.of_webhooks.note(place.index, webhook.reinvocation_policy);
        match result {
            Ok(_) => Ok(()),
            Err(Rejection::Denied(status) | Rejection::Internal(status)) => Err(status),
            Err(Rejection::Unconverted(reason)) => Err(internal_error(&failure_text(webhook, &reason))),
            Err(Rejection::Failed(error)) => {
                let text = failure_text(webhook, &error);
                if webhook.failure_policy == FailurePolicy::Ignore {
                    self.surroundings.note(Event::FailedOpen { webhook, error: &text });
                    self.annotations.note_mutating_failed_open(webhook, place);
                }
                // The client of kube-apiserver sees the timeout of the whole request then, not that of the webhook.
                match webhook.failure_policy {
                    _ if self.surroundings.is_late() => Err(timeout()),
                    FailurePolicy::Ignore => Ok(()),
                    FailurePolicy::Fail => Err(internal_error(&text)),
                }
            }
        }
    }

    async fn review(&mut self, webhook: &Arc<Webhook>) -> Result<Option<PatchedObject>, Rejection> {
        let Self { attributes, forms, surroundings, .. } = self;
        let text = forms.text(attributes.dry_run, *surroundings).await;
        let text = text.map_err(Rejection::Failed)?;
        let response = review(webhook, attributes, &text, *surroundings).await;
        let response = response.map_err(Rejection::Failed)?;
        self.annotations.note_response(webhook, &response);
        if !response.allowed {
            return Err(Rejection::Denied(denial(&webhook.name, response.result)));
        }
        if response.patch.is_empty() {
            return Ok(None);
        }
        let objects = self.forms.objects();
        let is_long = objects.are_large || response.patch.len() > LARGE;
        let (webhook, object) = (Arc::clone(webhook), objects.object.clone());
        let deadline = self.surroundings.deadline();
        let patch = move || patched(&webhook, &response, object.as_deref(), deadline);
        let patched = self.surroundings.compute(is_long, patch).await;
        patched.unwrap_or_else(|| Err(Rejection::internal("the gateway has cancelled the review")))
    }

    /// Takes over a patched object; whether it differs.
    fn replace_object(
        &mut self,
        webhook: &Webhook,
        place: CallPlace,
        patched: Option<PatchedObject>,
    ) -> bool {
        let Some(PatchedObject { changed, patch }) = patched else { return false };
        self.annotations.note_patch(webhook, place, &patch);
        let Some(object) = changed else { return false };
        self.forms.replace(object);
        true
    }
}

/// Makes the form that a webhook expects the current one; the reason, if there is none.
pub(super) async fn expected_form<C: Conversions>(
    forms: &mut Forms<'_, C>,
    attributes: &Attributes,
    matched: &RuleMatch,
) -> Result<(), String> {
    match matched {
        RuleMatch::No | RuleMatch::Exact => forms.convert_to_requested().await,
        RuleMatch::Equivalent(to) => {
            let converted = forms.convert(to).await;
            converted.map_err(|reason| unconverted(&attributes.resource, to, &reason))
        }
        RuleMatch::Possible => Err(unknown(&attributes.resource)),
    }
}

/// The object with the patch of a response; `None` if there is no patch. Ends at the deadline.
pub(super) fn patched(
    webhook: &Webhook,
    response: &ReviewResponse,
    object: Option<&Value>,
    deadline: Option<Instant>,
) -> Result<Option<PatchedObject>, Rejection> {
    if response.patch.is_empty() {
        return Ok(None);
    }
    let patch = Patch::decode(&response.patch).map_err(|error| {
        let text = format!("received undecodable patch in webhook response: {error}");
        Rejection::Failed(ReviewError { text, code: 503 })
    })?;
    if patch.is_empty() {
        return Ok(None);
    }
    let Some(object) = object else {
        return Err(Rejection::internal(&format!(
            "admission webhook {} attempted to modify the object, which is not supported for this operation",
            Quoted(&webhook.name)
        )));
    };
    if response.patch_type != JSON_PATCH {
        let text = format!("unsupported patch type {}", Quoted(&response.patch_type));
        return Err(Rejection::Failed(ReviewError { text, code: 400 }));
    }
    let text = patch
        .apply_until(deadline, encode(object))
        .map_err(|error| Rejection::internal(&error.to_string()))?;
    let patched = decode_value(&text).map_err(|error| Rejection::internal(&error))?;
    // Upstream decodes the result as an object of a kind. Without the kinds, at least this one must not change.
    if !patched.is_object()
        || ["apiVersion", "kind"].iter().any(|field| patched.get(field) != object.get(field))
    {
        return Err(Rejection::internal(&format!(
            "the patch of admission webhook {} changes the apiVersion or the kind of the object",
            Quoted(&webhook.name)
        )));
    }
    let changed = (patched != *object).then_some(patched);
    Ok(Some(PatchedObject { changed, patch: String::from_utf8_lossy(&patch.to_json()).into_owned() }))
}
