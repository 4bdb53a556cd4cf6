//! The call of one webhook.

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use portcullis_go::quote::Quoted;

use crate::review::{ReviewError, ReviewRequest, ReviewResponse, ReviewText, internal_error};
use crate::{
    Attributes, CallOutcome, Caller, Event, LARGE, Operation, Plugin, ServedResource, SharedObjects,
    Surroundings, Webhook, WebhookResponse,
};

/// Why a webhook does not let a request pass.
#[derive(Debug)]
pub(super) enum Rejection {
    /// It did not answer, or its answer cannot be used: its `failurePolicy` decides, in `mutating.rs` and `validating.rs`.
    Failed(ReviewError),
    /// It denied the request.
    Denied(Box<Status>),
    /// Its patch cannot be applied.
    Internal(Box<Status>),
    /// The objects cannot be shown to it in the version or group that it expects. The client has chosen another one, so that the
    /// `failurePolicy` does not decide.
    Unconverted(String),
}

impl Rejection {
    pub(super) fn internal(text: &str) -> Self {
        Self::Internal(internal_error(text))
    }

    /// How metrics show the call.
    pub(super) fn outcome(&self) -> CallOutcome {
        match self {
            Self::Failed(error) => CallOutcome::Failed(error.code),
            Self::Denied(status) => {
                let code = status.code.and_then(|code| u16::try_from(code).ok());
                CallOutcome::Denied(code.unwrap_or(u16::MAX))
            }
            Self::Internal(_) => CallOutcome::Internal,
            Self::Unconverted(_) => CallOutcome::Unconverted,
        }
    }
}

/// The text of a failed call.
// apiserver: pkg/util/webhook/error.go, ErrCallingWebhook
pub(super) fn failure_text(webhook: &Webhook, error: &dyn std::fmt::Display) -> String {
    format!("failed calling webhook {}: {error}", Quoted(&webhook.name))
}

/// The texts of reviews, which webhooks share as long as the objects are the same.
#[derive(Default)]
pub(super) struct ReviewTexts {
    enforced: Option<ReviewText>,
    dry_run: Option<ReviewText>,
}

impl ReviewTexts {
    /// The text for these objects.
    pub(super) async fn of(
        &mut self,
        (attributes, of, objects): (&Arc<Attributes>, &Arc<ServedResource>, &SharedObjects),
        dry_run: bool,
        surroundings: &impl Surroundings,
    ) -> Result<ReviewText, ReviewError> {
        let place = if dry_run { &mut self.dry_run } else { &mut self.enforced };
        if let Some(text) = place {
            return Ok(text.clone());
        }
        let (attributes, of, shared) = (Arc::clone(attributes), Arc::clone(of), objects.clone());
        let write = move || ReviewText::new(&attributes, &of, &shared, dry_run);
        let text = surroundings.compute(objects.are_large, write).await.ok_or_else(cancelled)?;
        Ok(place.insert(text).clone())
    }
}

fn cancelled() -> ReviewError {
    ReviewError { text: "the gateway has cancelled the review".to_owned(), code: 500 }
}

/// Sends a review and verifies the response.
pub(super) async fn review(
    webhook: &Webhook,
    attributes: &Attributes,
    text: &ReviewText,
    surroundings: &impl Surroundings,
) -> Result<ReviewResponse, ReviewError> {
    let request = ReviewRequest::with_text(webhook.review_version, attributes, text);
    let response = called(webhook, &request, surroundings).await?;
    let (version, kind, uid) = (webhook.review_version, webhook.kind, request.uid);
    let is_large = response.body.len() > LARGE;
    let read = move || ReviewResponse::read(version, kind, &uid, &response);
    surroundings.compute(is_large, read).await.unwrap_or_else(|| Err(cancelled()))
}

/// Sends a review that has been written before.
pub(super) async fn send(
    webhook: &Webhook,
    request: &ReviewRequest,
    caller: &impl Caller,
) -> Result<ReviewResponse, ReviewError> {
    let response = called(webhook, request, caller).await?;
    ReviewResponse::read(webhook.review_version, webhook.kind, &request.uid, &response)
}

async fn called(
    webhook: &Webhook,
    request: &ReviewRequest,
    caller: &impl Caller,
) -> Result<WebhookResponse, ReviewError> {
    let response = caller.call(webhook, request).await;
    response.map_err(|error| ReviewError { text: format!("failed to call webhook: {error}"), code: 503 })
}

/// Runs a plugin's part of a phase, and takes note of its end.
pub(super) async fn timed<T>(
    plugin: Plugin,
    operation: Operation,
    part: impl Future<Output = Result<T, Box<Status>>>,
    surroundings: &impl Surroundings,
) -> Result<T, Box<Status>> {
    let began = Instant::now();
    let result = part.await;
    let (rejected, took) = (result.is_err(), began.elapsed());
    surroundings.note(Event::PluginEnded { plugin, operation, rejected, took });
    result
}

/// Reports a call when it ends, also if the request ends before.
pub(super) struct CallReport<'a, C: Caller> {
    caller: &'a C,
    webhook: &'a Webhook,
    operation: Operation,
    started: Instant,
    outcome: CallOutcome,
}

impl<'a, C: Caller> CallReport<'a, C> {
    pub(super) fn start(caller: &'a C, webhook: &'a Webhook, operation: Operation) -> Self {
        Self { caller, webhook, operation, started: Instant::now(), outcome: CallOutcome::Cancelled }
    }

    pub(super) fn finish(mut self, outcome: CallOutcome) {
        self.outcome = outcome;
    }
}

impl<C: Caller> Drop for CallReport<'_, C> {
    fn drop(&mut self) {
        self.caller.note(Event::Called {
            webhook: self.webhook,
            operation: self.operation,
            outcome: self.outcome.clone(),
            took: self.started.elapsed(),
        });
    }
}
