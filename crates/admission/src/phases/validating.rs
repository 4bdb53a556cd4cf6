//! The validating phase: all webhooks at once.
// apiserver: pkg/admission/plugin/webhook/validating/dispatcher.go

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;

use super::annotations::{Annotations, CallPlace};
use super::call::{CallReport, Rejection, failure_text, review, timed};
use super::forms::Forms;
use super::mutating::expected_form;
use super::policies::validate_policies;
use super::shadow::ShadowCall;
use crate::matching::{RequestMatcher, RuleMatch};
use crate::review::{ReviewText, denial, internal_error, timeout};
use crate::{
    Attributes, CallOutcome, Conversions, Event, FailurePolicy, Objects, Plugin, SharedObjects, Surroundings,
    ValidatingPolicy, Webhook,
};

/// Runs the validating phase: the policies, and if none refuses the request, the webhooks. All of these that match are called, and all
/// are waited for; of several refusals the first one to arrive is returned. `objects` are the same afterwards.
// kubernetes: pkg/kubeapiserver/options/plugins.go, AllOrderedPlugins
pub async fn validate<S: Surroundings, C: Conversions>(
    (policies, webhooks): (&[Arc<ValidatingPolicy>], &[Arc<Webhook>]),
    attributes: &Attributes,
    objects: &mut Objects,
    conversions: &C,
    surroundings: &S,
) -> Result<(), Box<Status>> {
    let shared = SharedObjects::take(objects);
    let requested = shared.clone();
    let validated =
        validate_shared((policies, webhooks), attributes, shared, conversions, surroundings).await;
    requested.give_back(objects);
    validated
}

/// A webhook, and what it is sent.
type MatchedWebhook<'a> = (&'a Webhook, Result<ReviewText, Rejection>);

async fn validate_shared<S: Surroundings, C: Conversions>(
    (policies, webhooks): (&[Arc<ValidatingPolicy>], &[Arc<Webhook>]),
    attributes: &Attributes,
    objects: SharedObjects,
    conversions: &C,
    surroundings: &S,
) -> Result<(), Box<Status>> {
    let matcher = RequestMatcher::new(attributes, conversions);
    let attributes = &Arc::new(attributes.clone());
    let mut forms = Forms::new(attributes, objects.clone(), conversions);
    if !policies.is_empty() {
        let shown = (&matcher, &mut forms);
        let validating = validate_policies(policies, (attributes, &objects), shown, surroundings);
        timed(Plugin::ValidatingPolicies, attributes.operation, validating, surroundings).await?;
    }
    let calling = call_webhooks(webhooks, (attributes, objects), (matcher, forms), surroundings);
    timed(Plugin::ValidatingWebhooks, attributes.operation, calling, surroundings).await
}

async fn call_webhooks<S: Surroundings, C: Conversions>(
    webhooks: &[Arc<Webhook>],
    (attributes, objects): (&Arc<Attributes>, SharedObjects),
    (matcher, mut forms): (RequestMatcher<'_, C>, Forms<'_, C>),
    surroundings: &S,
) -> Result<(), Box<Status>> {
    let (mut matched, mut shadows) = (Vec::new(), Vec::new());
    for webhook in webhooks {
        let rules = matcher.matches(webhook, &objects, surroundings).await;
        if webhook.shadow {
            let parts = (attributes, &mut forms, &matcher);
            shadows.extend(ShadowCall::prepare(webhook, rules, parts, surroundings).await);
            continue;
        }
        let rules = rules?;
        if rules == RuleMatch::No {
            continue;
        }
        let is_converted = expected_form(&mut forms, attributes, &rules).await;
        if is_converted.is_ok() {
            let seen = forms.condition_objects();
            if !matcher.conditions_hold(webhook, seen, surroundings).await? {
                continue;
            }
        }
        matched.push((&**webhook, rules, is_converted));
    }
    if !matched.is_empty() && surroundings.is_late() {
        return Err(timeout());
    }
    drop((matcher, objects));
    let mut reviewed = Vec::with_capacity(matched.len());
    for (webhook, rules, is_converted) in matched {
        reviewed
            .push((webhook, text_for(&mut forms, attributes, (&rules, is_converted), surroundings).await));
    }
    drop(forms);
    let phase = ValidatingPhase { attributes, surroundings, annotations: Annotations::new(surroundings) };
    join_all(shadows.into_iter().map(|call| surroundings.shadow(call))).await;
    phase.run(reviewed).await
}

/// What a webhook is sent. All that expect the same form share one text.
async fn text_for<C: Conversions>(
    forms: &mut Forms<'_, C>,
    attributes: &Attributes,
    (rules, is_converted): (&RuleMatch, Result<(), String>),
    surroundings: &impl Surroundings,
) -> Result<ReviewText, Rejection> {
    is_converted.map_err(Rejection::Unconverted)?;
    // Known by now.
    expected_form(forms, attributes, rules).await.map_err(Rejection::Unconverted)?;
    forms.text(attributes.dry_run, surroundings).await.map_err(Rejection::Failed)
}

struct ValidatingPhase<'a, S: Surroundings> {
    attributes: &'a Attributes,
    surroundings: &'a S,
    annotations: Annotations<'a, S>,
}

impl<S: Surroundings> ValidatingPhase<'_, S> {
    async fn run(&self, matched: Vec<MatchedWebhook<'_>>) -> Result<(), Box<Status>> {
        if matched.is_empty() {
            return Ok(());
        }
        let calls = matched.into_iter().enumerate();
        let calls =
            calls.map(|(index, (webhook, text))| self.call(webhook, text, CallPlace { round: 0, index }));
        let mut calls: FuturesUnordered<_> = calls.collect();
        let mut first = Ok(());
        while let Some(result) = calls.next().await {
            first = first.and(result);
        }
        // The client of kube-apiserver sees the timeout of the whole request then.
        if self.surroundings.is_late() { Err(timeout()) } else { first }
    }

    async fn call(
        &self,
        webhook: &Webhook,
        text: Result<ReviewText, Rejection>,
        place: CallPlace,
    ) -> Result<(), Box<Status>> {
        let report = CallReport::start(self.surroundings, webhook, self.attributes.operation);
        let result = match text {
            Ok(text) => self.review(webhook, &text).await,
            Err(rejection) => Err(rejection),
        };
        report.finish(result.as_ref().err().map_or(CallOutcome::Allowed, Rejection::outcome));
        match result {
            Ok(()) => Ok(()),
            Err(Rejection::Denied(status) | Rejection::Internal(status)) => Err(status),
            Err(Rejection::Unconverted(reason)) => Err(internal_error(&failure_text(webhook, &reason))),
            Err(Rejection::Failed(error)) => {
                let text = failure_text(webhook, &error);
                if webhook.failure_policy == FailurePolicy::Fail {
                    return Err(internal_error(&text));
                }
                self.surroundings.note(Event::FailedOpen { webhook, error: &text });
                self.annotations.note_validating_failed_open(webhook, place);
                Ok(())
            }
        }
    }

    async fn review(&self, webhook: &Webhook, text: &ReviewText) -> Result<(), Rejection> {
        let response = review(webhook, self.attributes, text, self.surroundings).await;
        let response = response.map_err(Rejection::Failed)?;
        self.annotations.note_response(webhook, &response);
        if response.allowed {
            return Ok(());
        }
        Err(Rejection::Denied(denial(&webhook.name, response.result)))
    }
}
