//! The responses of the gateway itself, and the headers that the gateway adds to every response.

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, STRICT_TRANSPORT_SECURITY, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use portcullis_http::body::Body;
use portcullis_http::warning;
use portcullis_kubernetes::status::render::{Negotiation, render, render_denial};

use super::audit_id::{AUDIT_ID, shown_audit_id};
use super::error_map::{Refusal, RefusalResponse};

const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache, private");
/// The parts of a request by which the response to its refusal is rendered.
pub(super) struct RefusalRenderer {
    uri: Uri,
    /// The headers by which the encoding of a `Status` is negotiated.
    negotiation_headers: [(HeaderName, Option<HeaderValue>); 2],
}

impl RefusalRenderer {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let negotiation_headers = [ACCEPT, USER_AGENT].map(|name| {
            let value = request.headers().get(&name).cloned();
            (name, value)
        });
        Self { uri: request.uri().clone(), negotiation_headers }
    }

    /// The response to a refused request.
    pub(super) fn render(&self, refusal: &Refusal, audit_id: HeaderValue, http2: bool) -> Response<Body> {
        match refusal.response(&shown_audit_id(&audit_id)) {
            RefusalResponse::Status(status) => {
                let response = self.negotiate(|negotiation| render(&status, negotiation));
                // kube-apiserver sends this response outside of the filter that sets Cache-Control.
                if matches!(refusal, Refusal::RequestInfo(_)) {
                    return with_audit_id(response, audit_id);
                }
                with_common_headers(response, audit_id)
            }
            RefusalResponse::Denial(status) => {
                let response = self.negotiate(|negotiation| render_denial(status, negotiation));
                with_common_headers(response, audit_id)
            }
            RefusalResponse::Bare(code, text) => render_bare(code, text, http2),
        }
    }

    /// Whether the client accepts no encoding of a `Status`.
    pub(super) fn is_unacceptable(&self) -> bool {
        let mut unacceptable = false;
        self.negotiate(|negotiation| {
            unacceptable = negotiation.is_unacceptable();
            Response::new(Bytes::new())
        });
        unacceptable
    }

    fn negotiate(&self, render: impl FnOnce(&Negotiation<'_>) -> Response<Bytes>) -> Response<Body> {
        let headers = self.negotiation_headers.iter();
        let headers = headers.filter_map(|(name, value)| Some((name.clone(), value.clone()?)));
        let headers: HeaderMap = headers.collect();
        render(&Negotiation::of(&headers, self.uri.query())).map(Body::bytes)
    }
}

fn render_bare(code: StatusCode, text: &'static str, http2: bool) -> Response<Body> {
    let mut response = Response::new(Body::bytes(text));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    if !text.is_empty() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    }
    if !http2 {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Adds the headers that every response of the gateway itself has.
pub(super) fn with_common_headers(response: Response<Body>, audit_id: HeaderValue) -> Response<Body> {
    let mut response = with_audit_id(response, audit_id);
    response.headers_mut().insert(CACHE_CONTROL, NO_CACHE);
    response
}

fn with_audit_id(mut response: Response<Body>, audit_id: HeaderValue) -> Response<Body> {
    response.headers_mut().insert(AUDIT_ID, audit_id);
    response
}

/// The response to a browser that asks whether it may send a request of another origin.
// apiserver: pkg/server/config.go, DefaultBuildHandlerChain — WithCORS is outside authentication, and inside the deadline
pub(super) fn to_preflight(audit_id: HeaderValue) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    with_common_headers(response, audit_id)
}

/// Adds the headers that every response has, also one of the backend.
pub(super) fn add_headers(
    headers: &mut HeaderMap,
    warnings: &[String],
    strict_transport_security: Option<&HeaderValue>,
) {
    warning::add(headers, warnings);
    if let Some(directives) = strict_transport_security {
        headers.entry(STRICT_TRANSPORT_SECURITY).or_insert_with(|| directives.clone());
    }
}
