//! Limits on requests in flight: which requests count, what those beyond a limit are answered, and that one flooding user
//! takes nothing from the others. Which request gets a free place is tested in `src/limits/`.

mod compared;
mod flows;
mod places;
mod settings;
mod tenants;

use std::sync::Arc;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::json;
use testkit::body::endless;
use testkit::client::Client;
use testkit::self_check::{self, respond};
use testkit::{FakeBackend, Gateway, H2, Http2, Pki, empty, flags, full, text, until};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::gateway::InProcess as _;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// The backend holds the responses to requests with this in their path.
const HELD: &str = "/api/v1/namespaces/n/held";

/// A backend that holds requests until the test releases them, and allows every access review.
struct Holding {
    backend: FakeBackend,
    released: Arc<Semaphore>,
}

impl Holding {
    async fn start(pki: &Pki) -> Self {
        let released = Arc::new(Semaphore::new(0));
        let releases = Arc::clone(&released);
        let self_check = |request: &Request<Incoming>| {
            if request.uri().path() == REVIEWS { None } else { self_check::answer(request) }
        };
        let backend = FakeBackend::with_self_check(pki, H2, self_check, move |request: Request<Incoming>| {
            let releases = Arc::clone(&releases);
            Box::pin(async move {
                let path = request.uri().path();
                if path == REVIEWS {
                    return respond(StatusCode::CREATED, &json!({"status": {"allowed": true}}));
                }
                if path.contains("endless") {
                    return Response::new(endless().0);
                }
                if path.contains("held") {
                    releases.acquire().await.unwrap().forget();
                }
                Response::new(full("ok"))
            })
        })
        .await;
        Self { backend, released }
    }

    fn gateway(&self, pki: &Pki, more: &[&str]) -> Gateway {
        let all = flags(pki, self.backend.address);
        Gateway::with(all.into_iter().chain(more.iter().map(|&flag| flag.to_owned())).collect())
    }

    /// Lets this many held requests end.
    fn release(&self, count: usize) {
        self.released.add_permits(count);
    }

    /// Waits until the backend has received this many requests that were not taken.
    async fn received(&self, count: usize) {
        until("the requests at the backend", || self.backend.pending() >= count).await;
        assert_eq!(self.backend.pending(), count);
    }

    /// The users of the requests that the backend has received, in order.
    fn users(&self) -> Vec<String> {
        let received = std::iter::from_fn(|| self.backend.take());
        received.map(|request| request.all("x-remote-user").join(",")).collect()
    }
}

/// The status code of a request, sent by a task of its own. Aborting the task resets the stream.
fn send(client: &Http2, method: &str, path: &str, headers: &[(&str, &str)]) -> JoinHandle<StatusCode> {
    let mut client = client.share();
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(empty()).unwrap();
    tokio::spawn(async move {
        let response = client.send(request).await.unwrap();
        let code = response.status();
        text(response).await;
        code
    })
}

/// A held GET.
fn hold(client: &Http2) -> JoinHandle<StatusCode> {
    send(client, "GET", HELD, &[])
}

/// Checks that a response is kube-apiserver's refusal.
async fn is_refused(response: Response<Incoming>) {
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let headers = response.headers();
    let expected = [
        ("content-type", "text/plain; charset=utf-8"),
        ("retry-after", "1"),
        ("x-content-type-options", "nosniff"),
        ("cache-control", "no-cache, private"),
    ];
    for (name, value) in expected {
        assert_eq!(headers[name], value, "{name}");
    }
    assert!(headers.contains_key("audit-id"));
    assert_eq!(text(response).await, "Too many requests, please try again later.\n");
}

/// Waits until a request is answered with 200: a place is free.
async fn until_served(client: &mut Client) {
    testkit::in_time(async { while client.code(&[]).await != StatusCode::OK {} }).await;
}

/// The metric of the places that are taken.
fn taken(cluster: &str, kind: &str, count: usize) -> String {
    format!("portcullis_inflight_requests{{cluster=\"{cluster}\",request_kind=\"{kind}\"}} {count}")
}

/// The metric of the requests in the queue.
fn queued(kind: &str, count: usize) -> String {
    format!("portcullis_inqueue_requests{{cluster=\"backend\",request_kind=\"{kind}\"}} {count}")
}

/// The metric of the requests that were refused.
fn rejected(kind: &str, reason: &str) -> String {
    format!(
        "portcullis_inflight_rejected_requests_total{{cluster=\"backend\",reason=\"{reason}\",request_kind=\"{kind}\"}}"
    )
}
