//! Changes to the backend's response before the client receives it. The kind is decided before the request is sent;
//! most responses pass unchanged.

use std::net::IpAddr;

use http::Response;
use portcullis_http::body::Body;
use portcullis_system::clock::Clock;

use super::error_map::Refusal;
use super::health::{HealthChecks, SingleCheck};
use super::stages::Authorized;
use super::token_review::PendingReview;
use crate::listener::Connection;

/// The change to one response.
pub(super) enum PostProcess {
    /// A single health check: the gateway may have a check of the same name.
    HealthCheck(SingleCheck),
    /// A `TokenReview`: the gateway authenticates tokens that the backend does not know.
    TokenReview(PendingReview),
    /// A watch: it ends without an error when the server shuts down.
    Watch,
    /// Any other response passes unchanged.
    Pass,
}

impl PostProcess {
    /// The change that the response to a request needs.
    pub(super) fn of(authorized: &Authorized, client: IpAddr) -> Self {
        if let Some(check) = SingleCheck::of(authorized) {
            return Self::HealthCheck(check);
        }
        if let Some(review) = PendingReview::of(authorized, client) {
            return Self::TokenReview(review);
        }
        if authorized.info().verb() == "watch" { Self::Watch } else { Self::Pass }
    }

    /// Applies the change.
    pub(super) async fn apply(
        self,
        response: Response<Body>,
        (health, clock): (&HealthChecks, &Clock),
        connection: &Connection,
    ) -> Result<Response<Body>, Refusal> {
        Ok(match self {
            Self::HealthCheck(check) => health.merge_check(response, &check),
            Self::TokenReview(review) => Box::pin(review.complete(response, clock.now())).await?,
            Self::Watch => response.map(|body| body.end_when(connection.watch_end())),
            Self::Pass => response,
        })
    }
}
