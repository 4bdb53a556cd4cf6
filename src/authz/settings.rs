//! Settings of the gateway's own authorizers.

use std::time::Duration;

use portcullis_cel::Expression;
use portcullis_http::client_tls::ClientTls;

use crate::authn::BearerToken;

/// Authorizers in order. The first that allows or denies decides; if none does, the request is refused.
#[derive(Debug, Clone, PartialEq)]
pub struct Authorization {
    /// At least one.
    pub authorizers: Vec<AuthorizerSettings>,
}

/// An authorizer.
#[derive(Debug, Clone, PartialEq)]
pub enum AuthorizerSettings {
    /// Leaves every request to the backend.
    AlwaysAllow,
    /// Never allows a request.
    AlwaysDeny,
    /// A webhook, which receives a `SubjectAccessReview`.
    Webhook(Box<AuthorizationWebhook>),
}

/// An authorization webhook.
// apiserver: pkg/apis/apiserver/v1/types.go, WebhookConfiguration
#[derive(Debug, Clone, PartialEq)]
pub struct AuthorizationWebhook {
    /// The unique name, in metrics and logs.
    pub name: String,
    /// The `https` URL, without a query.
    pub url: String,
    /// TLS: the trusted CAs and the client certificate.
    pub tls: ClientTls,
    /// The bearer token sent to the webhook.
    pub bearer_token: Option<BearerToken>,
    /// The version of the `SubjectAccessReview`.
    pub version: SubjectAccessReviewVersion,
    /// The timeout of one attempt, at most 30 seconds.
    pub timeout: Duration,
    /// How long an allowing decision counts; zero: it is not cached.
    pub authorized_ttl: Duration,
    /// How long any other decision counts; zero: it is not cached.
    pub unauthorized_ttl: Duration,
    /// The decision if the webhook makes none.
    pub failure_policy: FailurePolicy,
    /// The conditions under which the webhook is asked, over `request`, a `SubjectAccessReviewSpec` of v1.
    pub match_conditions: Vec<Expression>,
}

/// The decision of a webhook that does not answer, or whose conditions cannot be evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailurePolicy {
    /// The next authorizer decides.
    NoOpinion,
    /// The request is refused.
    Deny,
}

/// A version of `SubjectAccessReview`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubjectAccessReviewVersion {
    /// `authorization.k8s.io/v1`.
    V1,
    /// `authorization.k8s.io/v1beta1`, which calls the user's groups `group`.
    V1Beta1,
}

impl SubjectAccessReviewVersion {
    /// The version of this name; `None` for another.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "v1" => Some(Self::V1),
            "v1beta1" => Some(Self::V1Beta1),
            _ => None,
        }
    }

    /// The value of `apiVersion`.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "authorization.k8s.io/v1",
            Self::V1Beta1 => "authorization.k8s.io/v1beta1",
        }
    }
}
