//! Which webhook is asked, how, and for how long its answers hold.

use std::time::Duration;

use crate::authn::BearerToken;
use crate::http::client_tls::Tls;

/// A webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    /// Where it is: an `https` URL without a query.
    pub url: String,
    /// How it is known, and what it is shown.
    pub tls: Tls,
    /// What it is shown in `Authorization`.
    pub bearer_token: Option<BearerToken>,
    /// The version of TokenReview it speaks.
    pub version: Version,
    /// How long its answers hold, good or bad; zero for not at all.
    pub cache_ttl: Duration,
}

/// A version of TokenReview.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// `authentication.k8s.io/v1`.
    V1,
    /// `authentication.k8s.io/v1beta1`.
    V1Beta1,
}

/// The version of a flag is none of those.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unsupported authentication webhook version {}, supported versions are \"v1\", \"v1beta1\"",
    crate::go::quote::Quoted(.0)
)]
pub struct UnsupportedVersion(pub String);

impl Version {
    /// As it stands in a flag.
    pub fn parse(text: &str) -> Result<Self, UnsupportedVersion> {
        match text {
            "v1" => Ok(Self::V1),
            "v1beta1" => Ok(Self::V1Beta1),
            other => Err(UnsupportedVersion(other.to_owned())),
        }
    }

    /// As it stands in `apiVersion`.
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
    fn other_versions_are_refused_in_the_words_of_kube_apiserver() {
        assert_eq!(Version::parse("v1"), Ok(Version::V1));
        assert_eq!(Version::parse("v1beta1"), Ok(Version::V1Beta1));
        assert_eq!(
            Version::parse("v2\n").unwrap_err().to_string(),
            r#"unsupported authentication webhook version "v2\n", supported versions are "v1", "v1beta1""#
        );
    }
}
