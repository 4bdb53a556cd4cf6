//! Requests, responses and their bodies.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;

use crate::waiting::in_time;

/// An error of a body.
pub type BoxedError = Box<dyn std::error::Error + Send + Sync>;
/// Any body.
pub type BoxedBody = BoxBody<Bytes, BoxedError>;
/// A future of a response.
pub type ResponseFuture = Pin<Box<dyn Future<Output = Response<BoxedBody>> + Send>>;

/// A body of these bytes.
pub fn full(bytes: impl Into<Bytes>) -> BoxedBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

/// A body without content.
pub fn empty() -> BoxedBody {
    Empty::new().map_err(|never| match never {}).boxed()
}

/// A GET request with these headers.
pub fn get(path: &str, headers: &[(&str, &str)]) -> Request<BoxedBody> {
    let mut request = Request::builder().uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(empty()).unwrap()
}

/// The body of a response as text.
pub async fn text(response: Response<Incoming>) -> String {
    let bytes = in_time(response.into_body().collect()).await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The status code and the JSON body of a response, such as the `Status` of a refusal.
pub async fn status(response: Response<Incoming>) -> (StatusCode, serde_json::Value) {
    let code = response.status();
    let body = text(response).await;
    (code, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{code} {body:?}: {error}")))
}
