//! What the gateway does to an answer of the backend before the client receives it. One of these, decided before the
//! request is sent; most answers pass unchanged.

use http::Response;

use super::Gateway;
use super::error_map::Refusal;
use super::health::SingleCheck;
use super::stages::Admitted;
use super::token_review::PendingReview;
use crate::http::body::Body;
use crate::listener::Connection;

/// The treatment of one answer.
pub(super) enum PostProcess {
    /// A single health check: the gateway's own may stand in for the backend's.
    HealthCheck(SingleCheck),
    /// A `TokenReview`: the gateway knows tokens that the backend does not.
    TokenReview(PendingReview),
    /// A watch: it ends in good order when the server shuts down.
    Watch,
    /// Any other answer passes as it is.
    Pass,
}

impl PostProcess {
    /// The treatment of the answer to a request.
    pub(super) fn of(admitted: &Admitted) -> Self {
        if let Some(check) = SingleCheck::of(admitted.authorized()) {
            return Self::HealthCheck(check);
        }
        if let Some(review) = PendingReview::of(admitted) {
            return Self::TokenReview(review);
        }
        if admitted.info().verb() == "watch" { Self::Watch } else { Self::Pass }
    }

    /// Treats the answer.
    pub(super) async fn apply(
        self,
        answer: Response<Body>,
        gateway: &Gateway,
        connection: &Connection,
    ) -> Result<Response<Body>, Refusal> {
        Ok(match self {
            Self::HealthCheck(check) => gateway.health.stand_in(answer, &check),
            Self::TokenReview(review) => Box::pin(review.complete(answer, gateway.clock.now())).await?,
            Self::Watch => answer.map(|body| body.end_when(connection.watch_end())),
            Self::Pass => answer,
        })
    }
}
