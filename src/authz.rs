//! What a user may do. A question is a `SubjectAccessReview`, and the API servers of the request's cluster answer it.
//!
//! [`reviewer`] asks, [`question`] makes questions from requests, and [`impersonation`] decides who may act as whom.
//! All answers are cached per cluster and generation of the configuration, never beyond their time.

pub(crate) mod impersonation;
mod question;
mod reviewer;
mod rules;
pub(crate) mod settings;

pub(crate) use reviewer::{AccessReviewer, ReviewError};
