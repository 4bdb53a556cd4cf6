//! Fetches the key set that an API server publishes for its own service-account tokens.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::ACCEPT;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use kube::Client;
use kube::client::Body;
use portcullis_openid::jwt::key_set::JwksSource;
use tokio::time::timeout;

use crate::authn::BoxFuture;
use crate::metrics::Metrics;

const JWKS_PATH: &str = "/openid/v1/jwks";
/// Longer than the client's own timeout for the head, after which the client abandons the connection, too.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(12);
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// The JWKS endpoint of an API server.
pub(super) struct PublishedKeys {
    client: Client,
    cluster: String,
    metrics: Arc<Metrics>,
}

impl PublishedKeys {
    pub(super) fn new(client: Client, cluster: &str, metrics: &Arc<Metrics>) -> Self {
        Self { client, cluster: cluster.to_owned(), metrics: Arc::clone(metrics) }
    }

    async fn get(&self) -> Result<Vec<u8>, String> {
        let request = Request::get(JWKS_PATH).header(ACCEPT, "application/jwk-set+json, application/json");
        let request = request.body(Body::empty()).map_err(|error| error.to_string())?;
        let response = self.client.send(request).await.map_err(|error| error.to_string())?;
        if response.status() != StatusCode::OK {
            return Err(response.status().to_string());
        }
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
        Ok(body.map_err(|error| error.to_string())?.to_bytes().to_vec())
    }
}

impl JwksSource for PublishedKeys {
    fn fetch(&self) -> BoxFuture<'_, Result<Vec<u8>, String>> {
        Box::pin(async move {
            let late = |_| Err(format!("no response within {RESPONSE_TIMEOUT:?}"));
            let keys = timeout(RESPONSE_TIMEOUT, self.get()).await.unwrap_or_else(late);
            let result = if keys.is_ok() { "success" } else { "failure" };
            self.metrics.token_objects.key_fetches.with_label_values(&[self.cluster.as_str(), result]).inc();
            keys.map_err(|error| format!("cannot read {JWKS_PATH}: {error}"))
        })
    }

    fn name(&self) -> String {
        format!("the API server of cluster {}", self.cluster)
    }
}

impl fmt::Debug for PublishedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PublishedKeys")
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::Response;
    use tower::service_fn;

    use super::*;

    /// The outcome for a response of this status and length, after this time.
    async fn fetched(status: u16, length: usize, after: Duration) -> Result<usize, String> {
        let service = service_fn(move |request: Request<Body>| async move {
            assert_eq!(request.uri().path(), "/openid/v1/jwks");
            tokio::time::sleep(after).await;
            let response = Response::builder().status(status).body(Body::from(vec![b' '; length]));
            Ok::<_, Infallible>(response.unwrap())
        });
        let (client, metrics) = (Client::new(service, "default"), Arc::new(Metrics::new()));
        let fetched = PublishedKeys::new(client, "c", &metrics).fetch().await;
        let result = if fetched.is_ok() { "success" } else { "failure" };
        assert_eq!(metrics.token_objects.key_fetches.with_label_values(&["c", result]).get(), 1);
        fetched.map(|keys| keys.len())
    }

    #[tokio::test(start_paused = true)]
    async fn responses_of_limited_size_are_accepted() {
        let soon = Duration::from_secs(9);
        assert_eq!(fetched(200, 1 << 20, soon).await, Ok(1 << 20));
        let cannot = |why: &str| Err(format!("cannot read /openid/v1/jwks: {why}"));
        assert_eq!(fetched(200, (1 << 20) + 1, soon).await, cannot("length limit exceeded"));
        assert_eq!(fetched(403, 10, soon).await, cannot("403 Forbidden"));
        assert_eq!(fetched(301, 10, soon).await, cannot("301 Moved Permanently"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_fetch_times_out() {
        let found = fetched(200, 10, Duration::from_hours(1)).await;
        assert_eq!(found, Err("cannot read /openid/v1/jwks: no response within 12s".to_owned()));
    }
}
