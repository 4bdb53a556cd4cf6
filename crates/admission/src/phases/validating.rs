//! The validating phase: all webhooks at once.
// apiserver: pkg/admission/plugin/webhook/validating/dispatcher.go

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;

use super::annotations::{Annotations, CallPlace};
use super::call::{CallReport, Rejection, ReviewTexts, failure_text, review};
use super::shadow::ShadowCall;
use crate::matching::{RequestMatcher, ServedResources, Verdict};
use crate::review::{ReviewError, ReviewText, denial, internal_error, timeout};
use crate::{Attributes, CallOutcome, Event, FailurePolicy, Objects, SharedObjects, Surroundings, Webhook};

/// Runs the validating phase; `served` as for the mutating one. All webhooks that match are called, and all are waited for; of
/// several refusals the first one to arrive is returned. `objects` are the same afterwards.
pub async fn validate<S: Surroundings>(
    webhooks: &[Arc<Webhook>],
    attributes: &Attributes,
    objects: &mut Objects,
    served: Option<&dyn ServedResources>,
    surroundings: &S,
) -> Result<(), Box<Status>> {
    let shared = SharedObjects::take(objects);
    let validated = validate_shared(webhooks, attributes, &shared, served, surroundings).await;
    shared.give_back(objects);
    validated
}

async fn validate_shared<S: Surroundings>(
    webhooks: &[Arc<Webhook>],
    attributes: &Attributes,
    objects: &SharedObjects,
    served: Option<&dyn ServedResources>,
    surroundings: &S,
) -> Result<(), Box<Status>> {
    let matcher = RequestMatcher::new(attributes, served);
    let attributes = &Arc::new(attributes.clone());
    let mut texts = ReviewTexts::default();
    let (mut matched, mut shadows) = (Vec::new(), Vec::new());
    for webhook in webhooks {
        let verdict = matcher.should_call(webhook, objects, surroundings).await;
        if webhook.shadow {
            let parts = (attributes, objects, &mut texts);
            shadows.extend(ShadowCall::prepare(webhook, verdict, parts, surroundings).await);
            continue;
        }
        match verdict? {
            Verdict::Skip => {}
            verdict => matched.push((&**webhook, verdict)),
        }
    }
    if !matched.is_empty() && surroundings.is_late() {
        return Err(timeout());
    }
    drop(matcher);
    // Once for all webhooks.
    let text = if matched.iter().any(|(_, verdict)| *verdict == Verdict::Call) {
        Some(texts.of(attributes, objects, attributes.dry_run, surroundings).await)
    } else {
        None
    };
    let phase =
        ValidatingPhase { attributes, text, surroundings, annotations: Annotations::new(surroundings) };
    join_all(shadows.into_iter().map(|call| surroundings.shadow(call))).await;
    phase.run(matched).await
}

struct ValidatingPhase<'a, S: Surroundings> {
    attributes: &'a Attributes,
    /// The review; `None` if no webhook is sent one.
    text: Option<Result<ReviewText, ReviewError>>,
    surroundings: &'a S,
    annotations: Annotations<'a, S>,
}

impl<S: Surroundings> ValidatingPhase<'_, S> {
    async fn run(&self, matched: Vec<(&Webhook, Verdict)>) -> Result<(), Box<Status>> {
        if matched.is_empty() {
            return Ok(());
        }
        let calls = matched.into_iter().enumerate();
        let calls = calls
            .map(|(index, (webhook, verdict))| self.call(webhook, verdict, CallPlace { round: 0, index }));
        let mut calls: FuturesUnordered<_> = calls.collect();
        let mut first = Ok(());
        while let Some(result) = calls.next().await {
            first = first.and(result);
        }
        // The client of kube-apiserver sees the timeout of the whole request then.
        if self.surroundings.is_late() { Err(timeout()) } else { first }
    }

    async fn call(&self, webhook: &Webhook, verdict: Verdict, place: CallPlace) -> Result<(), Box<Status>> {
        let report = CallReport::start(self.surroundings, webhook, self.attributes.operation);
        let result = self.review(webhook, verdict).await;
        report.finish(result.as_ref().err().map_or(CallOutcome::Allowed, Rejection::outcome));
        match result {
            Ok(()) => Ok(()),
            Err(Rejection::Denied(status) | Rejection::Internal(status)) => Err(status),
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

    async fn review(&self, webhook: &Webhook, verdict: Verdict) -> Result<(), Rejection> {
        let Some(text) = self.text.as_ref().filter(|_| verdict == Verdict::Call) else {
            return Err(Rejection::needs_conversion());
        };
        let text = text.as_ref().map_err(|error| Rejection::Failed(error.clone()))?;
        let response = review(webhook, self.attributes, text, self.surroundings).await;
        let response = response.map_err(Rejection::Failed)?;
        self.annotations.note_response(webhook, &response);
        if response.allowed {
            return Ok(());
        }
        Err(Rejection::Denied(denial(&webhook.name, response.result)))
    }
}
