//! Posts audit events to a webhook, over the HTTPS client of all webhooks: it follows no redirect, uses no proxy from the
//! environment, and reads a bounded response, of which only the status matters.
// apiserver: plugin/pkg/audit/webhook/webhook.go

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use portcullis_audit::sink::{Post, PostError};
use portcullis_http::client_tls::ClientTls;
use portcullis_http::https_client::HTTPS_TIMEOUT;
use portcullis_http::webhook::{WebhookClient, WebhookError};
use rustls::crypto::CryptoProvider;
use tokio::time::sleep;

use crate::authn::BearerToken;
use crate::metrics::Metrics;

/// How often a webhook may ask within one attempt to be called again.
// client-go: rest/request.go, maxRetries
const MAX_RETRIES: usize = 10;

/// The connection to an audit webhook, and the gateway's credential for it. A reload makes another one with the current
/// credential, which [`portcullis_audit::sink::Generation`] then uses for all events.
#[derive(Debug)]
pub(crate) struct AuditWebhook {
    client: WebhookClient,
    bearer_token: Option<BearerToken>,
}

impl AuditWebhook {
    /// Fails if the client certificate and its key do not match.
    pub(crate) fn new(
        url: &str,
        tls: &ClientTls,
        bearer_token: Option<BearerToken>,
        provider: &Arc<CryptoProvider>,
        metrics: &Metrics,
    ) -> Result<Self, rustls::Error> {
        let missing_san = metrics.authentication.webhook_missing_san.clone();
        let client = WebhookClient::new(tls, url, HTTPS_TIMEOUT, provider, missing_san)?;
        Ok(Self { client, bearer_token })
    }

    async fn send(&self, body: Bytes) -> Result<(), WebhookError> {
        let bearer = self.bearer_token.as_ref().map(BearerToken::expose);
        for _ in 0..MAX_RETRIES {
            match self.client.post_once(bearer, body.clone()).await {
                // The caller limits the time.
                Err(WebhookError { retry_after: Some(wait), .. }) if !wait.is_zero() => sleep(wait).await,
                result => return result,
            }
        }
        self.client.post_once(bearer, body).await
    }
}

impl Post for AuditWebhook {
    fn post(&self, body: Bytes) -> BoxFuture<'_, Result<(), PostError>> {
        // webhook.go, retryOnError: any error is worth another attempt.
        let sent = async {
            self.send(body).await.map_err(|error| PostError { text: error.text, is_retryable: true })
        };
        sent.boxed()
    }
}

#[cfg(test)]
mod tests;
