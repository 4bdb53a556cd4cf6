//! Shadow webhooks: called, reported, not enforced.

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use serde_json::Value;

use super::call::{Rejection, ReviewTexts, failure_text, send};
use super::mutating::patched;
use crate::matching::Verdict;
use crate::review::{ReviewError, ReviewRequest, ReviewResponse, decode_value, denial, encode};
use crate::{
    Attributes, Caller, Event, Operation, ShadowOutcome, SharedObjects, SideEffects, Surroundings, Webhook,
    WebhookKind,
};

/// A call of a shadow webhook, prepared when its turn came. It needs nothing of the request any longer.
#[derive(Debug)]
pub struct ShadowCall {
    webhook: Arc<Webhook>,
    operation: Operation,
    review: Result<ReviewRequest, String>,
    /// The object that a patch would change, as text.
    object: Option<Vec<u8>>,
}

impl ShadowCall {
    /// Prepares the call; `None` if the webhook does not match.
    pub(super) async fn prepare(
        webhook: &Arc<Webhook>,
        verdict: Result<Verdict, Box<Status>>,
        (attributes, objects, texts): (&Arc<Attributes>, &SharedObjects, &mut ReviewTexts),
        surroundings: &impl Surroundings,
    ) -> Option<Self> {
        let review = match verdict {
            Ok(Verdict::Skip) => return None,
            Ok(Verdict::Call) => {
                // A webhook that is not enforced must change nothing.
                let dry_run = attributes.dry_run || webhook.side_effects != SideEffects::None;
                let text = texts.of(attributes, objects, dry_run, surroundings).await;
                text.map(|text| ReviewRequest::with_text(webhook.review_version, attributes, &text))
                    .map_err(Rejection::Failed)
            }
            Ok(Verdict::NeedsConversion) => Err(Rejection::needs_conversion()),
            Err(status) => Err(Rejection::Denied(status)),
        };
        let review = review.map_err(|rejection| match rejection {
            Rejection::Failed(error) => failure_text(webhook, &error),
            Rejection::Denied(status) | Rejection::Internal(status) => status.message.unwrap_or_default(),
        });
        let object = match (webhook.kind, &objects.object) {
            (WebhookKind::Mutating, Some(object)) => {
                let object = Arc::clone(object);
                surroundings.compute(objects.are_large, move || encode(&*object)).await
            }
            _ => None,
        };
        Some(Self { webhook: Arc::clone(webhook), operation: attributes.operation, review, object })
    }

    /// The call of a webhook that may match a request of which there is nothing to show: it fails.
    pub fn unshown(webhook: Arc<Webhook>, operation: Operation, reason: &str) -> Self {
        let error = ReviewError { text: reason.to_owned(), code: 500 };
        let review = Err(failure_text(&webhook, &error));
        Self { webhook, operation, review, object: None }
    }

    /// The bytes that the call holds.
    pub fn size(&self) -> usize {
        let review = self.review.as_ref().map_or(0, |review| review.head.len() + review.rest.len());
        review + self.object.as_ref().map_or(0, Vec::len)
    }

    /// Calls the webhook and reports what it would have done.
    pub async fn run(self, caller: &impl Caller) {
        let Self { webhook, operation, review, object } = self;
        let mut report = ShadowReport {
            caller,
            webhook: &webhook,
            operation,
            started: Instant::now(),
            would: ShadowOutcome::Unfinished,
        };
        report.would = match review {
            Err(text) => ShadowOutcome::Fail(text),
            Ok(review) => match send(&webhook, &review, caller).await {
                Err(error) => ShadowOutcome::Fail(failure_text(&webhook, &error)),
                Ok(response) => outcome(&webhook, response, object.as_deref()),
            },
        };
    }

    /// Reports that the webhook is not called, for this reason.
    pub fn fail(self, reason: &str, caller: &impl Caller) {
        let error = ReviewError { text: reason.to_owned(), code: 503 };
        let would = ShadowOutcome::Fail(failure_text(&self.webhook, &error));
        let Self { webhook, operation, .. } = self;
        drop(ShadowReport { caller, webhook: &webhook, operation, started: Instant::now(), would });
    }
}

fn outcome(webhook: &Webhook, response: ReviewResponse, object: Option<&[u8]>) -> ShadowOutcome {
    if !response.allowed {
        return ShadowOutcome::Deny(denial(&webhook.name, response.result));
    }
    let object: Option<Value> = object.and_then(|object| decode_value(object).ok());
    let deadline = Some(Instant::now() + webhook.timeout);
    match patched(webhook, &response, object.as_ref(), deadline) {
        Ok(Some(patched)) if patched.changed.is_some() => ShadowOutcome::Change,
        Ok(_) => ShadowOutcome::Allow,
        Err(Rejection::Failed(error)) => ShadowOutcome::Fail(failure_text(webhook, &error)),
        Err(Rejection::Denied(status) | Rejection::Internal(status)) => ShadowOutcome::Deny(status),
    }
}

/// Reports a call when it ends, also if the request ends before.
struct ShadowReport<'a, C: Caller> {
    caller: &'a C,
    webhook: &'a Webhook,
    operation: Operation,
    started: Instant,
    would: ShadowOutcome,
}

impl<C: Caller> Drop for ShadowReport<'_, C> {
    fn drop(&mut self) {
        self.caller.note(Event::Shadow {
            webhook: self.webhook,
            operation: self.operation,
            would: &self.would,
            took: self.started.elapsed(),
        });
    }
}
