//! A fake management cluster whose Secrets do not change.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::ready;
use futures_util::stream::once;
use http::{Request, Response, StatusCode};
use http_body_util::StreamBody;
use http_body_util::combinators::BoxBody;
use hyper::body::{Frame, Incoming};
use serde_json::{Value, json};
use testkit::self_check::respond;
use testkit::{BoxedBody, BoxedError, FakeBackend, H2, Pki, ResponseFuture};
use tokio::time::sleep;

use super::secret::SecretText;

/// The namespace of the Secrets.
pub(crate) const NAMESPACE: &str = "tenants";
/// How long a watch lasts: less than the gateway waits for its end.
const WATCH: Duration = Duration::from_secs(55);

/// Serves the Secrets, by their names.
pub(crate) async fn serve(pki: &Pki, secrets: &[(&str, SecretText)]) -> FakeBackend {
    let items: Vec<Value> = secrets.iter().map(|(name, data)| object(name, data)).collect();
    let list = json!({"apiVersion": "v1", "kind": "SecretList", "metadata": {"resourceVersion": "1"}, "items": items});
    let answer = move |request: Request<Incoming>| -> ResponseFuture {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let response = if is_watch { Response::new(silence()) } else { respond(StatusCode::OK, &list) };
        Box::pin(ready(response))
    };
    FakeBackend::start(pki, H2, answer).await
}

fn object(name: &str, data: &SecretText) -> Value {
    let data: BTreeMap<_, _> = data.iter().map(|(key, value)| (key, BASE64_STANDARD.encode(value))).collect();
    let labels = json!({"portcullis.dev/secret-type": "cluster"});
    json!({"apiVersion": "v1", "kind": "Secret", "data": data,
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": format!("uid-{name}"), "labels": labels}})
}

/// A watch without events that ends cleanly.
fn silence() -> BoxedBody {
    let end = once(sleep(WATCH)).filter_map(|()| ready(None));
    BoxBody::new(StreamBody::new(end.map(Ok::<Frame<Bytes>, BoxedError>)))
}
