//! Calls webhooks, as `k8s.io/apiserver/pkg/util/webhook/client.go` does.
//!
//! Never follows a redirect, never uses a proxy from the environment, and never reads more than [`MAX_RESPONSE_BYTES`]. A user
//! has a bounded share of the calls of each webhook, and of those of a cluster: one whose requests wait for a webhook delays no
//! other user's, and a webhook that does not answer delays no requests that it does not see.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use portcullis_admission::review::ReviewRequest;
use portcullis_admission::{CallError, Webhook, WebhookResponse};
use portcullis_go::quote::Quoted;
use portcullis_http::https_client::{HttpsClient, HttpsError, HttpsRequest, HttpsResponse};
use portcullis_kubernetes::rest;
use portcullis_limits::fair_limiter::{FairLimiter, Shares};
use rustls::crypto::CryptoProvider;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::settings::{AdmissionSettings, WebhookConnection, WebhookConnections};
use crate::authn::BearerToken;

/// The largest response: a patch, in base64, of the largest object that a patch may make, and annotations.
const MAX_RESPONSE_BYTES: usize = 16 << 20;
/// Why a webhook is not called while the gateway has too many calls in progress.
pub(super) const BUSY: &str = "too many calls of webhooks are in progress";

/// Calls of one webhook: fewer than the streams that one HTTP/2 connection to a Go server has, beyond which calls would wait for
/// those of other users.
// Go: net/http/h2_bundle.go, defaultMaxStreams
// threat: silent-webhook
const WEBHOOK_SHARES: Shares = Shares::new(224, 32).with_queue(4096, 256);
/// Calls of all webhooks of a cluster: those of several webhooks that do not answer, and room for the others.
// threat: silent-webhook
const CLUSTER_SHARES: Shares = Shares::new(1792, 128).with_queue(4096, 256);
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

/// The clients of all webhooks of a cluster.
pub(super) struct Callers {
    connections: WebhookConnections,
    /// By the connection, and whether the webhook is a shadow: those take nothing from the others.
    clients: HashMap<ClientKey, WebhookClient>,
    shares: ByShadow<CallLimiter>,
    runtime: Handle,
}

type CallLimiter = FairLimiter<Arc<str>>;

/// The address of a connection's settings, and whether it is that of a shadow webhook.
type ClientKey = (usize, bool);

/// One for webhooks that are enforced, and one for shadow webhooks.
#[derive(Clone)]
struct ByShadow<T> {
    enforced: T,
    shadow: T,
}

/// Why a call has no response.
#[derive(Debug)]
pub(super) enum CallFailure {
    /// The webhook is at fault: its `failurePolicy` decides.
    Webhook(CallError),
    /// The gateway has too many calls in progress.
    Busy,
}

impl From<CallError> for CallFailure {
    fn from(error: CallError) -> Self {
        Self::Webhook(error)
    }
}

/// A client with the settings that it was built from.
#[derive(Clone)]
struct WebhookClient {
    connection: Arc<WebhookConnection>,
    client: HttpsClient,
    shares: CallLimiter,
}

impl Callers {
    /// Keeps the open connections of `before` to the same servers with the same credentials.
    pub(super) fn build(
        settings: &AdmissionSettings,
        provider: &Arc<CryptoProvider>,
        runtime: &Handle,
        before: Option<&Self>,
    ) -> Result<Self, rustls::Error> {
        let connections = settings.connections.clone();
        let mut clients = HashMap::new();
        let webhooks = settings.webhooks.mutating.iter().chain(&settings.webhooks.validating);
        for webhook in webhooks {
            let Some(connection) = connections.of(webhook) else { continue };
            let key = key(connection, settings.is_shadow(webhook));
            if clients.contains_key(&key) {
                continue;
            }
            let is_same = |(known, of): &(&ClientKey, &WebhookClient)| {
                known.1 == key.1 && *of.connection == **connection
            };
            let known = before.and_then(|before| before.clients.iter().find(is_same));
            let (client, shares) = match known {
                Some((_, known)) => (known.client.clone(), known.shares.clone()),
                None => (
                    HttpsClient::with_versions(&connection.tls, provider, connection.http2)?,
                    FairLimiter::new(WEBHOOK_SHARES),
                ),
            };
            clients.insert(key, WebhookClient { connection: Arc::clone(connection), client, shares });
        }
        let new = || FairLimiter::new(CLUSTER_SHARES);
        let shares = before.map(|before| before.shares.clone());
        let shares = shares.unwrap_or_else(|| ByShadow { enforced: new(), shadow: new() });
        Ok(Self { connections, clients, shares, runtime: runtime.clone() })
    }

    /// Where calls run.
    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Posts a review, with further headers. The call ends with the webhook's timeout or `deadline`, or when this future is dropped.
    pub(super) async fn call(
        &self,
        webhook: &Webhook,
        review: &ReviewRequest,
        headers: HeaderMap,
        flow: &str,
        deadline: Option<Instant>,
    ) -> Result<WebhookResponse, CallFailure> {
        let connection = self.connections.of(webhook);
        let client = connection.and_then(|connection| self.clients.get(&key(connection, webhook.shadow)));
        let Some(WebhookClient { connection, client, shares }) = client.cloned() else {
            return Err(CallError::Failed("no connection is configured".to_owned()).into());
        };
        let url = format!("{}?timeout={}s", connection.url, webhook.timeout.as_secs());
        let late = || CallError::Late(format!("Post {}: context deadline exceeded", Quoted(&url)));
        let queued_until = Instant::now() + QUEUE_TIMEOUT;
        let of_cluster = if webhook.shadow { &self.shares.shadow } else { &self.shares.enforced };
        // First that of the webhook: a call that waits for it takes nothing from other webhooks.
        let of_webhook = shares.acquire(flow.into(), 1, queued_until).await.map_err(|_| CallFailure::Busy)?;
        let of_cluster = of_cluster.acquire(flow.into(), 1, queued_until).await;
        let permits = (of_webhook, of_cluster.map_err(|_| CallFailure::Busy)?);
        // Only now: the webhook is not at fault for the wait.
        let until = Instant::now() + webhook.timeout;
        let until = deadline.map_or(until, |deadline| deadline.min(until));
        let body = (review.head.clone(), review.rest.clone());
        let posting = post(client, connection, url.clone(), (headers, body), until);
        let call = AbortOnDropHandle::new(self.runtime.spawn(async move {
            let _permits = permits;
            posting.await
        }));
        // The thread of the call may be busy.
        match timeout_at(until, call).await {
            Ok(Ok(response)) => Ok(response?),
            Ok(Err(_)) => Err(CallError::Failed("the call was cancelled".to_owned()).into()),
            Err(_) => Err(late().into()),
        }
    }
}

fn key(connection: &Arc<WebhookConnection>, is_shadow: bool) -> ClientKey {
    (Arc::as_ptr(connection).addr(), is_shadow)
}

/// Posts a review, and again if the webhook asks for it.
async fn post(
    client: HttpsClient,
    connection: Arc<WebhookConnection>,
    url: String,
    (headers, (head, rest)): (HeaderMap, (Bytes, Bytes)),
    until: Instant,
) -> Result<WebhookResponse, CallError> {
    let bearer = connection.bearer_token.as_ref().map(BearerToken::expose);
    for attempt in 0.. {
        let left = until.saturating_duration_since(Instant::now());
        let request = HttpsRequest::post(&url, head.clone()).followed_by(rest.clone());
        let request = request.with_headers(headers.clone());
        let request = request.bearer(bearer).within(left).of_at_most(MAX_RESPONSE_BYTES);
        let response = client.send(request).await.map_err(|error| call_error(&url, &error))?;
        match rest::retry_wait(response.status.as_u16(), &response.headers) {
            // Beyond the timeout, the caller ends the wait.
            Some(wait) if attempt < rest::MAX_RETRIES => sleep(wait).await,
            _ => return Ok(webhook_response(response)),
        }
    }
    Err(CallError::Failed("the webhook did not answer".to_owned()))
}

fn webhook_response(response: HttpsResponse) -> WebhookResponse {
    let content_type = response.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    WebhookResponse {
        status: response.status.as_u16(),
        content_type: content_type.unwrap_or_default().to_owned(),
        body: response.body,
    }
}

/// An error in the words of Go's client, as far as they are known.
// Go: net/url/url.go, Error; net/net.go, OpError
fn call_error(url: &str, error: &HttpsError) -> CallError {
    let text = match error {
        HttpsError::Timeout { .. } => "context deadline exceeded".to_owned(),
        HttpsError::Connect { host, cause } if cause.starts_with("Connection refused") => {
            format!("dial tcp {}: connect: connection refused", with_port(host))
        }
        HttpsError::Certificate { refusal, .. } => refusal.to_string(),
        HttpsError::Lost { .. } => "EOF".to_owned(),
        error => error.to_string(),
    };
    let text = format!("Post {}: {text}", Quoted(url));
    if matches!(error, HttpsError::Timeout { .. }) { CallError::Late(text) } else { CallError::Failed(text) }
}

/// `host` with the port that HTTPS implies.
fn with_port(host: &str) -> String {
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if has_port { host.to_owned() } else { format!("{host}:443") }
}

impl fmt::Debug for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callers").field("connections", &self.connections).finish_non_exhaustive()
    }
}
