//! Settings of the authentication webhook.

use std::time::Duration;

use portcullis_http::client_tls::ClientTls;

use crate::authn::BearerToken;

/// An authentication webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookSettings {
    /// The `https` URL, without a query.
    pub url: String,
    /// TLS: the trusted CAs and the client certificate.
    pub tls: ClientTls,
    /// The bearer token sent to the webhook.
    pub bearer_token: Option<BearerToken>,
    /// The TokenReview version.
    pub version: TokenReviewVersion,
    /// TTL of cached verdicts, positive and negative; zero disables the cache.
    pub cache_ttl: Duration,
}

/// A version of TokenReview.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenReviewVersion {
    /// `authentication.k8s.io/v1`.
    V1,
    /// `authentication.k8s.io/v1beta1`.
    V1Beta1,
}

/// A flag names another version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unsupported authentication webhook version {}, supported versions are \"v1\", \"v1beta1\"",
    portcullis_go::quote::Quoted(.0)
)]
pub struct UnsupportedTokenReviewVersion(pub String);

impl TokenReviewVersion {
    /// Parses the value of a flag.
    pub fn parse(text: &str) -> Result<Self, UnsupportedTokenReviewVersion> {
        match text {
            "v1" => Ok(Self::V1),
            "v1beta1" => Ok(Self::V1Beta1),
            other => Err(UnsupportedTokenReviewVersion(other.to_owned())),
        }
    }

    /// The value of `apiVersion`.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "authentication.k8s.io/v1",
            Self::V1Beta1 => "authentication.k8s.io/v1beta1",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_versions_are_refused_with_kube_apiservers_message() {
        assert_eq!(TokenReviewVersion::parse("v1"), Ok(TokenReviewVersion::V1));
        assert_eq!(TokenReviewVersion::parse("v1beta1"), Ok(TokenReviewVersion::V1Beta1));
        assert_eq!(
            TokenReviewVersion::parse("v2\n").unwrap_err().to_string(),
            r#"unsupported authentication webhook version "v2\n", supported versions are "v1", "v1beta1""#
        );
    }
}
