//! What a user may do. An access review is a `SubjectAccessReview`.
//!
//! [`access_review`] makes access reviews of requests. [`authorizer`] asks the gateway's own authorizers, such as a [`webhook`];
//! [`reviewer`] asks the API servers of the request's cluster, and [`cluster`] both. [`cached_reviews`] caches, shares and bounds the access reviews of both.
//! [`impersonation`] decides who may act as whom. No decision is used for another cluster, nor beyond its time.

mod access_review;
mod authorizer;
mod cached_reviews;
mod cluster;
pub(crate) mod impersonation;
mod reviewer;
mod rules;
pub(crate) mod settings;
mod trace;
mod webhook;

pub(crate) use access_review::of_expression;
pub(crate) use authorizer::{AccessError, AccessRefusal, AllowedAccess, Authorizer, AuthorizerDeps};
pub(crate) use cached_reviews::ReviewError;
pub(crate) use cluster::ClusterAuthorizer;
pub(crate) use reviewer::AccessReviewer;
pub(crate) use trace::{AuthzCheck, AuthzTrace, NO_TRACE};
