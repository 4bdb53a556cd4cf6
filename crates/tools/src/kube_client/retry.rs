//! Repeats requests as client-go does: when the API server asks for it by `Retry-After`, and never otherwise. The policy of `kube`
//! repeats each request, also a creation, after any 429, 503 or 504, which may come after the API server has done it.
// client-go: rest/with_retry.go, IsNextRetry

use std::time::Duration;

use http::{Request, Response};
use kube::client::Body;
use portcullis_kubernetes::rest::retry_wait;
use tokio::time::{Sleep, sleep};
use tower::BoxError;
use tower::retry::Policy;

/// client-go: rest/request.go, maxRetries
const MAX_RETRIES: usize = 10;

/// The requests that one call makes.
#[derive(Debug, Clone, Default)]
pub(super) struct RetryAfter {
    retries: usize,
}

impl<B> Policy<Request<Body>, Response<B>, BoxError> for RetryAfter {
    type Future = Sleep;

    fn retry(&mut self, _: &mut Request<Body>, result: &mut Result<Response<B>, BoxError>) -> Option<Sleep> {
        let response = result.as_ref().ok()?;
        let wait: Duration = retry_wait(response.status().as_u16(), response.headers())?;
        self.retries += 1;
        (self.retries <= MAX_RETRIES).then(|| sleep(wait))
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        let body = request.body().try_clone()?;
        let mut again = Request::new(body);
        *again.method_mut() = request.method().clone();
        *again.uri_mut() = request.uri().clone();
        *again.headers_mut() = request.headers().clone();
        *again.extensions_mut() = request.extensions().clone();
        Some(again)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tower::retry::RetryLayer;
    use tower::{Layer as _, Service as _, ServiceExt as _, service_fn};

    use super::*;

    /// How often a POST is sent to a server that always responds so.
    async fn sent(status: u16, retry_after: Option<&'static str>) -> usize {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let server = service_fn(move |_: Request<Body>| {
            counted.fetch_add(1, Ordering::Relaxed);
            let mut response = Response::builder().status(status);
            if let Some(seconds) = retry_after {
                response = response.header("retry-after", seconds);
            }
            async move { Ok::<_, Infallible>(response.body(()).unwrap()) }
        });
        let mut client = RetryLayer::new(RetryAfter::default()).layer(server.map_err(BoxError::from));
        let request = Request::post("/api/v1/namespaces").body(Body::from(b"{}".to_vec())).unwrap();
        let response = client.ready().await.unwrap().call(request).await.unwrap();
        assert_eq!(response.status(), status);
        count.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn a_creation_is_repeated_only_when_the_server_asks_for_it() {
        assert_eq!(sent(503, None).await, 1);
        assert_eq!(sent(504, None).await, 1);
        assert_eq!(sent(429, None).await, 1);
        assert_eq!(sent(201, Some("1")).await, 1);
        assert_eq!(sent(429, Some("1")).await, 1 + MAX_RETRIES);
        assert_eq!(sent(503, Some("0")).await, 1 + MAX_RETRIES);
    }
}
