//! The mutating and the validating phase.
//!
//! Both send a request to the webhooks that match it and turn their responses into one result. A request that a phase
//! refuses ends with the `Status` in the error. Warnings, audit annotations and what metrics count are passed to
//! [`Surroundings::note`], also if the request is refused.
//!
//! A *shadow* webhook is called to compare only. Its response is reported as [`Event::Shadow`] and has no effect. Those of the
//! validating phase are called beside the others. Those of the mutating phase are called at its end, all at once, with the
//! object that each of them would have seen; if the phase refuses the request, they are not called. No refusal waits for a
//! shadow webhook; a request that is allowed waits no longer than the webhook's own timeout.
//!
//! [`Surroundings::note`]: crate::Surroundings::note
//! [`Event::Shadow`]: crate::Event::Shadow

mod annotations;
mod call;
mod mutating;
mod shadow;
#[cfg(test)]
mod tests;
mod validating;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;

use crate::{Attributes, Objects, Surroundings, Webhook};

pub use mutating::{Mutated, mutate};
pub use validating::validate;

/// What to do with a webhook for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It does not apply.
    Skip,
    /// Send it the request.
    Call,
    /// It expects an object of another version or group, which cannot be made here: its `failurePolicy` decides.
    NeedsConversion,
}

/// Decides which webhooks a request is sent to.
pub trait MatchWebhooks: Sync {
    /// What to do with a webhook; the `Status` for the client if that cannot be decided. `objects` are those that the webhook
    /// would be sent.
    // apiserver: pkg/admission/plugin/webhook/generic/webhook.go, ShouldCallHook
    fn should_call<S: Surroundings>(
        &self,
        webhook: &Webhook,
        attributes: &Attributes,
        objects: &Objects,
        surroundings: &S,
    ) -> impl Future<Output = Result<Verdict, Box<Status>>> + Send;
}
