//! What the authenticator asks of HTTP: one `GET`, so that tests need no network.

use std::fmt;

use crate::authn::BoxFuture;

/// Fetches documents of issuers.
pub trait Fetch: Send + Sync + fmt::Debug {
    /// Gets a document, with a bearer token if one is given. Ends in time by itself, follows no redirect and takes no
    /// answer beyond a size. The error is for the log and never holds the bearer token.
    fn get<'a>(&'a self, url: &'a str, bearer: Option<&'a str>) -> BoxFuture<'a, Result<Fetched, String>>;
}

/// An answer, whatever its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The status.
    pub status: u16,
    /// What the body is said to be.
    pub content_type: Option<String>,
    /// The body, complete.
    pub body: Vec<u8>,
}

impl Fetched {
    /// The status as logs have it.
    pub(super) fn status_line(&self) -> String {
        let reason =
            http::StatusCode::from_u16(self.status).ok().and_then(|status| status.canonical_reason());
        format!("{} {}", self.status, reason.unwrap_or_default()).trim_end().to_owned()
    }
}
