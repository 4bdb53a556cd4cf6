//! The mutating and the validating phase.
//!
//! Both send a request to the webhooks that match it and turn their responses into one result. A request that a phase
//! refuses ends with the `Status` in the error. Warnings, audit annotations and what metrics count are passed to
//! [`Caller::note`], also if the request is refused.
//!
//! What a webhook's `failurePolicy` does if it fails is decided in `mutating.rs` and `validating.rs`; of an object that cannot be
//! shown to it, in the gateway's `pipeline/admission/reviewer.rs`. A webhook whose rules match another version or group of the
//! resource sees the objects in that form (`forms.rs`); if there is no such form, the request is refused. Which webhook is called a second time is in `mutating.rs`.
//!
//! A *shadow* webhook is called to compare only. Its response is reported as [`Event::Shadow`] and has no effect. Those of the
//! validating phase are called beside the others. Those of the mutating phase are called at its end, all at once, with the
//! object that each of them would have seen; if the phase refuses the request, they are not called. Whether the request waits
//! for them, [`Surroundings::shadow`] decides. No object is converted for a shadow webhook alone.
//!
//! [`Caller::note`]: crate::Caller::note
//! [`Surroundings::shadow`]: crate::Surroundings::shadow
//! [`Event::Shadow`]: crate::Event::Shadow

mod annotations;
mod call;
mod forms;
mod mutating;
mod policies;
mod shadow;
#[cfg(test)]
mod tests;
mod validating;

pub use mutating::{Mutated, mutate};
pub use policies::policy_failure;
pub use shadow::ShadowCall;
pub use validating::validate;
