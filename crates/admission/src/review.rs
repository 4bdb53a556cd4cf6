//! `AdmissionReview`s, and the statuses that follow from their responses.
//!
//! [`ReviewRequest`] writes a review, [`ReviewResponse`] reads and verifies the response, [`Patch`] changes the object.

mod base64;
mod decode;
mod denial;
mod patch;
mod request;
mod response;
#[cfg(test)]
mod tests;

pub use portcullis_go::json::encode;
pub use portcullis_go::json::raw::{DecodedSize, decode as decode_value};

pub use denial::{denial, internal_error, timeout};
pub use patch::{Patch, PatchError};
pub use request::ReviewRequest;
pub(crate) use request::ReviewText;
pub use response::{JSON_PATCH, ReviewError, ReviewResponse};
