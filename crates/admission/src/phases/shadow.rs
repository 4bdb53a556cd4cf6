//! Shadow webhooks: called, reported, not enforced.

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use serde_json::Value;

use super::call::{Rejection, failure_text, send};
use super::forms::{Forms, unconverted, unknown};
use super::mutating::patched;
use crate::matching::{RequestMatcher, RuleMatch};
use crate::review::{ReviewError, ReviewRequest, ReviewResponse, decode_value, denial, encode};
use crate::{
    Attributes, Caller, Conversions, Event, Operation, ShadowOutcome, SideEffects, Surroundings, Webhook,
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
    pub(super) async fn prepare<C: Conversions>(
        webhook: &Arc<Webhook>,
        matched: Result<RuleMatch, Box<Status>>,
        (attributes, forms, matcher): (&Arc<Attributes>, &mut Forms<'_, C>, &RequestMatcher<'_, C>),
        surroundings: &impl Surroundings,
    ) -> Option<Self> {
        let review = match matched {
            Ok(RuleMatch::No) => return None,
            Ok(matched) => {
                let parts = (attributes, &mut *forms, matcher);
                Self::review(webhook, &matched, parts, surroundings).await.transpose()?
            }
            Err(status) => Err(Rejection::Denied(status)),
        };
        let review = review.map_err(|rejection| match rejection {
            Rejection::Failed(error) => failure_text(webhook, &error),
            Rejection::Unconverted(reason) => failure_text(webhook, &reason),
            Rejection::Denied(status) | Rejection::Internal(status) => status.message.unwrap_or_default(),
        });
        let objects = forms.objects();
        let object = match (webhook.kind, &objects.object) {
            (WebhookKind::Mutating, Some(object)) => {
                let object = Arc::clone(object);
                surroundings.compute(objects.are_large, move || encode(&*object)).await
            }
            _ => None,
        };
        Some(Self { webhook: Arc::clone(webhook), operation: attributes.operation, review, object })
    }

    /// What the webhook is sent; `None` if its match conditions do not hold. No object is converted for it: the request would wait.
    async fn review<C: Conversions>(
        webhook: &Webhook,
        matched: &RuleMatch,
        (attributes, forms, matcher): (&Arc<Attributes>, &mut Forms<'_, C>, &RequestMatcher<'_, C>),
        surroundings: &impl Surroundings,
    ) -> Result<Option<ReviewRequest>, Rejection> {
        let requested = Arc::new(attributes.requested());
        let (of, reason) = match matched {
            RuleMatch::Equivalent(of) => (of, "the gateway converts nothing for shadow webhooks alone"),
            _ => (&requested, "another webhook has changed the object in another version"),
        };
        if *matched == RuleMatch::Possible {
            return Err(Rejection::Unconverted(unknown(&attributes.resource)));
        }
        let unconverted =
            |reason: &str| Rejection::Unconverted(unconverted(&attributes.resource, of, reason));
        if !forms.is_known(of) {
            return Err(unconverted(reason));
        }
        forms.convert(of).await.map_err(|reason| unconverted(&reason))?;
        let holds = matcher.conditions_hold(webhook, forms.condition_objects(), surroundings).await;
        if !holds.map_err(Rejection::Denied)? {
            return Ok(None);
        }
        // A webhook that is not enforced must change nothing.
        let dry_run = attributes.dry_run || webhook.side_effects != SideEffects::None;
        let text = forms.text(dry_run, surroundings).await.map_err(Rejection::Failed)?;
        Ok(Some(ReviewRequest::with_text(webhook.review_version, attributes, &text)))
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
        Err(Rejection::Unconverted(reason)) => ShadowOutcome::Fail(failure_text(webhook, &reason)),
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
