//! HTTP interface of the authenticator, a single `GET`, so that tests do not need a network.

use std::fmt;

use http::header::CONTENT_TYPE;
use portcullis_http::https_client::{HttpsClient, HttpsRequest};

use crate::authn::BoxFuture;

/// Fetches documents of issuers over HTTP.
pub(crate) trait DocumentFetcher: Send + Sync + fmt::Debug {
    /// Fetches a document, with an optional bearer token. Limits the time and the response size itself and does not
    /// follow redirects. The error is for the log and never contains the bearer token.
    fn get<'a>(
        &'a self,
        url: &'a str,
        bearer: Option<&'a str>,
    ) -> BoxFuture<'a, Result<FetchedDocument, String>>;
}

/// A response with any status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FetchedDocument {
    /// The status code.
    pub status: u16,
    /// The `Content-Type` header.
    pub content_type: Option<String>,
    /// The complete body.
    pub body: Vec<u8>,
}

impl FetchedDocument {
    /// The status code and reason phrase.
    pub(super) fn status_line(&self) -> String {
        let reason =
            http::StatusCode::from_u16(self.status).ok().and_then(|status| status.canonical_reason());
        format!("{} {}", self.status, reason.unwrap_or_default()).trim_end().to_owned()
    }
}

impl DocumentFetcher for HttpsClient {
    fn get<'a>(
        &'a self,
        url: &'a str,
        bearer: Option<&'a str>,
    ) -> BoxFuture<'a, Result<FetchedDocument, String>> {
        Box::pin(async move {
            let answer =
                self.send(HttpsRequest::get(url).bearer(bearer)).await.map_err(|error| error.to_string())?;
            let content_type = answer.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
            Ok(FetchedDocument {
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

    use portcullis_http::https_client::testing::{H2, TestServer, full, trusting};
    use rustls::crypto::aws_lc_rs::default_provider;
    use testkit::pki::Ca;

    use super::*;

    #[tokio::test]
    async fn responses_are_returned_unchanged() {
        let ca = Ca::new("issuers");
        let peer = TestServer::of(&ca, H2, |asked| {
            let said = format!("{} {:?}", asked.target, asked.headers.get("authorization"));
            let response = http::Response::builder().status(404).header(CONTENT_TYPE, "text/plain");
            Ok(response.body(full(said)).unwrap())
        })
        .await;
        let client = HttpsClient::new(&trusting(&ca), &Arc::new(default_provider())).unwrap();
        let fetched = |body: &str| {
            let content_type = Some("text/plain".to_owned());
            Ok(FetchedDocument { status: 404, content_type, body: body.as_bytes().to_vec() })
        };
        let url = peer.url("/keys?a");
        assert_eq!(client.get(&url, None).await, fetched("/keys?a None"));
        assert_eq!(client.get(&url, Some("t")).await, fetched("/keys?a Some(\"Bearer t\")"));
        let refused = client.get("http://127.0.0.1:1/", None).await;
        assert_eq!(refused, Err("it is not an https:// URL".to_owned()));
    }
}
