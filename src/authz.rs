//! What a user may do. A question is a `SubjectAccessReview`.
//!
//! [`question`] makes questions from requests. [`authorizer`] asks the gateway's own authorizers, such as a [`webhook`];
//! [`reviewer`] asks the API servers of the request's cluster, and [`cluster`] both. [`answers`] caches, shares and bounds the questions of both.
//! [`impersonation`] decides who may act as whom. No answer is used for another cluster, nor beyond its time.

mod answers;
mod authorizer;
mod cluster;
pub(crate) mod impersonation;
mod question;
mod reviewer;
mod rules;
pub(crate) mod settings;
mod trace;
mod webhook;

pub(crate) use answers::ReviewError;
pub(crate) use authorizer::{AccessError, AccessRefusal, AllowedAccess, Authorizer};
pub(crate) use cluster::ClusterAuthorizer;
pub(crate) use question::of_expression;
pub(crate) use reviewer::AccessReviewer;
pub(crate) use trace::{AuthzCheck, AuthzTrace, NO_TRACE};
