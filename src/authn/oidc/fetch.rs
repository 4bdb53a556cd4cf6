//! What the authenticator asks of HTTP: one `GET`, so that tests need no network.

use std::fmt;

use http::header::CONTENT_TYPE;

use crate::authn::BoxFuture;
use crate::http::https_client::{Client, Question};

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

impl Fetch for Client {
    fn get<'a>(&'a self, url: &'a str, bearer: Option<&'a str>) -> BoxFuture<'a, Result<Fetched, String>> {
        Box::pin(async move {
            let answer =
                self.ask(Question::get(url).bearer(bearer)).await.map_err(|error| error.to_string())?;
            let content_type = answer.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
            Ok(Fetched {
                status: answer.status.as_u16(),
                content_type: content_type.map(str::to_owned),
                body: answer.body.to_vec(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::crypto::aws_lc_rs::default_provider;
    use testkit::pki::Ca;

    use super::*;
    use crate::http::https_client::testing::{H2, Peer, full, trusting};

    #[tokio::test]
    async fn documents_of_an_issuer_come_as_they_are() {
        let ca = Ca::new("issuers");
        let peer = Peer::of(&ca, H2, |asked| {
            let said = format!("{} {:?}", asked.target, asked.headers.get("authorization"));
            let response = http::Response::builder().status(404).header(CONTENT_TYPE, "text/plain");
            Ok(response.body(full(said)).unwrap())
        })
        .await;
        let client = Client::new(&trusting(&ca), &Arc::new(default_provider())).unwrap();
        let fetched = |body: &str| {
            let content_type = Some("text/plain".to_owned());
            Ok(Fetched { status: 404, content_type, body: body.as_bytes().to_vec() })
        };
        let url = peer.url("/keys?a");
        assert_eq!(client.get(&url, None).await, fetched("/keys?a None"));
        assert_eq!(client.get(&url, Some("t")).await, fetched("/keys?a Some(\"Bearer t\")"));
        let refused = client.get("http://127.0.0.1:1/", None).await;
        assert_eq!(refused, Err("it is not an https:// URL".to_owned()));
    }
}
