//! Posts events to a webhook over the gateway's own HTTPS client: no redirects, no proxy from the environment, short responses.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use portcullis_audit::sink::{Post, PostError};
use rustls::crypto::CryptoProvider;

use super::settings::AuditWebhook;
use crate::authn::BearerToken;
use crate::http::https_client::{HttpsClient, HttpsRequest};

/// A connection to a webhook.
pub(super) struct WebhookPost {
    client: HttpsClient,
    url: String,
    bearer: Option<BearerToken>,
}

impl WebhookPost {
    /// Fails if the client certificate and its key do not match.
    pub(super) fn new(webhook: &AuditWebhook, provider: &Arc<CryptoProvider>) -> Result<Self, rustls::Error> {
        let AuditWebhook { url, tls, bearer_token, .. } = webhook;
        Ok(Self { client: HttpsClient::new(tls, provider)?, url: url.clone(), bearer: bearer_token.clone() })
    }
}

impl Post for WebhookPost {
    fn post(&self, body: Bytes) -> BoxFuture<'_, Result<(), PostError>> {
        // kube-apiserver tries again after every error.
        let error = |text| PostError { text, is_retryable: true };
        Box::pin(async move {
            let bearer = self.bearer.as_ref().map(BearerToken::expose);
            let request = HttpsRequest::post(&self.url, body).bearer(bearer);
            let response = self.client.send(request).await.map_err(|cause| error(cause.to_string()))?;
            if response.status.is_success() {
                return Ok(());
            }
            Err(error(format!("the webhook answered {}", response.status)))
        })
    }
}
