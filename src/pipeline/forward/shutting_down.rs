//! Recognizes the responses by which an API server that shuts down refuses a request before it does anything with it: two
//! filters outside authentication write them. Such a request may be sent to another endpoint, as one whose stream was
//! refused.
//!
//! A response that is mistaken for one of these would repeat a write. So everything about it must be as the filters
//! write it, and [`may_be_refused`] leaves out requests whose response a pod, a node or an aggregated API server could
//! have chosen. An API server that has authenticated the request says so by the header of its flow schema.
// apiserver: pkg/server/filters/waitgroup.go, waitGroupWriteRetryAfterToResponse; with_retry_after.go, WithRetryAfter

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use http::{Method, Response, StatusCode};
use portcullis_http::body::Body;
use portcullis_http::transport::BodyError;

use super::{FLOW_SCHEMA_UID, is_proxied};
use crate::backend::sharing::extension_group;
use crate::request::info::RequestInfo;

/// More than either body has.
const MAX_BODY_BYTES: u64 = 512;

/// A response as a filter of kube-apiserver writes it.
struct ShutdownRefusal {
    status: StatusCode,
    content_type: &'static str,
    retry_after: &'static str,
    /// Without the line feeds at its end.
    body: &'static str,
}

const REFUSALS: [ShutdownRefusal; 2] = [
    ShutdownRefusal {
        status: StatusCode::SERVICE_UNAVAILABLE,
        content_type: "application/json",
        retry_after: "1",
        body: r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"apiserver is shutting down","reason":"ServiceUnavailable","code":503}"#,
    },
    // With --shutdown-send-retry-after.
    ShutdownRefusal {
        status: StatusCode::TOO_MANY_REQUESTS,
        content_type: "text/plain; charset=utf-8",
        retry_after: "5",
        body: "The apiserver is shutting down, please try again later.",
    },
];

/// Whether such a response to the request can only be that of the API server itself, or does no harm: a read may be repeated.
/// Custom resources look like the objects of an aggregated API server, which could answer a write that it has stored so.
// threat: forged-shutdown
pub(super) fn may_be_refused(method: &Method, info: &RequestInfo) -> bool {
    // A server in front of the API server may read an empty segment away.
    let is_of_api_server = extension_group(info.path()).is_none() && !info.path().contains("//");
    !is_proxied(info) && (method.is_safe() || is_of_api_server)
}

/// Whether the header is that of a refusal.
pub(super) fn may_be_refusal(response: &Response<Body>) -> bool {
    REFUSALS.iter().any(|refusal| refusal.has_header_of(response))
}

/// Reads the body of a response that may be a refusal. Returns the response, and whether it is one.
pub(super) async fn read(response: Response<Body>) -> Result<(Response<Body>, bool), BodyError> {
    let Some(refusal) = REFUSALS.iter().find(|refusal| refusal.has_header_of(&response)) else {
        return Ok((response, false));
    };
    let (head, body) = response.into_parts();
    let body = body.read_up_to(MAX_BODY_BYTES).await?;
    let is_refusal = body.whole().is_some_and(|bytes| bytes.trim_ascii_end() == refusal.body.as_bytes());
    Ok((Response::from_parts(head, body), is_refusal))
}

impl ShutdownRefusal {
    fn has_header_of(&self, response: &Response<Body>) -> bool {
        let headers = response.headers();
        let has_only = |name: HeaderName, expected: &str| {
            let mut values = headers.get_all(name).iter();
            values.next().is_some_and(|value| value == expected) && values.next().is_none()
        };
        // Both are short, so that Go's server states the length.
        let is_short = |length: &str| length.parse::<u64>().is_ok_and(|length| length <= MAX_BODY_BYTES);
        response.status() == self.status
            && has_only(CONTENT_TYPE, self.content_type)
            && has_only(RETRY_AFTER, self.retry_after)
            && has_only(X_CONTENT_TYPE_OPTIONS, "nosniff")
            && !headers.contains_key(FLOW_SCHEMA_UID)
            && headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()).is_some_and(is_short)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_that_another_server_may_have_processed_are_never_taken_for_refused() {
        let cases = [
            ("GET", "/api/v1/namespaces/n/pods", true),
            ("GET", "/api/v1/namespaces/n/pods?watch=true", true),
            ("POST", "/api/v1/namespaces/n/pods", true),
            ("DELETE", "/apis/apps/v1/namespaces/n/deployments/d", true),
            ("POST", "/api/v1/namespaces/n/pods/p/eviction", true),
            ("POST", "/api/v1/namespaces/n/serviceaccounts/s/token", true),
            ("GET", "/api", true),
            // An aggregated API server, or a custom resource.
            ("GET", "/apis/example.com/v1/things", true),
            ("POST", "/apis/example.com/v1/things", false),
            ("PATCH", "/apis/metrics.k8s.io/v1beta1/nodes/n", false),
            ("POST", "/apis//example.com/v1/things", false),
            // Pods and nodes.
            ("GET", "/api/v1/namespaces/n/pods/p/log", false),
            ("POST", "/api/v1/namespaces/n/pods/p/exec?command=x", false),
            ("GET", "/api/v1/namespaces/n/services/s/proxy/x", false),
            ("POST", "/api/v1/namespaces/n/services/s/proxy/x", false),
            ("POST", "/api/v1/nodes/n/proxy/run", false),
            ("POST", "/api/v1/proxy/nodes/n/x", false),
        ];
        for (method, target, expected) in cases {
            let method: Method = method.parse().unwrap();
            let (path, query) =
                target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
            let info = RequestInfo::parse(&method, path, query).unwrap();
            assert_eq!(may_be_refused(&method, &info), expected, "{method} {target}");
        }
    }
}
