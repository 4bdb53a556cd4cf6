//! What client-go makes of the response to a request: its error texts, and whether to retry.
// client-go: rest/request.go, transformResponse, Result.Into and Result.Error; rest/with_retry.go

use std::time::Duration;

use http::HeaderMap;
use http::header::RETRY_AFTER;
use portcullis_go::quote::Quoted;

/// The text that an error quotes of a response.
// client-go: rest/request.go, maxUnstructuredResponseTextBytes
pub const MAX_ERROR_TEXT: usize = 2048;

/// The text of a response that client-go does not quote.
pub const UNKNOWN_TEXT: &str = "unknown";

/// The retries of one request by client-go, beside those of its caller.
// client-go: rest/request.go, maxRetries
pub const MAX_RETRIES: u32 = 10;

/// Whether a status code is a success.
pub fn is_success(status: u16) -> bool {
    status == 101 || (200..=206).contains(&status)
}

/// The error of a success without a body.
pub fn empty_response(status: u16, content_type: &str) -> String {
    let content_type = if content_type.is_empty() { "application/json" } else { content_type };
    format!("0-length response with status code: {status} and content type: {content_type}")
}

/// The error of a failure whose body is not a `Status`; `text` is of its body, or [`UNKNOWN_TEXT`].
// apimachinery: pkg/api/errors/errors.go, NewGenericServerResponse
pub fn error_of_status_code(status: u16, text: &str) -> String {
    match status {
        400 => "the server rejected our request for an unknown reason",
        401 => "the server has asked for the client to provide credentials",
        404 => "the server could not find the requested resource",
        405 => "the server does not allow this method on the requested resource",
        406 if matches!(text, "" | UNKNOWN_TEXT) => {
            "the server was unable to respond with a content type that the client supports"
        }
        403 | 406 | 415 => text,
        409 => "the server reported a conflict",
        422 => "the server rejected our request due to an error in our request",
        429 => "the server has received too many requests and has asked us to try again later",
        503 => "the server is currently unable to handle the request",
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
        }
        500.. => {
            let text = Quoted(text);
            return format!("an error on the server ({text}) has prevented the request from succeeding");
        }
        _ => {
            return format!(
                "the server responded with the status code {status} but did not return more information"
            );
        }
    }
    .to_owned()
}

/// The seconds of `Retry-After`, if it has a number of them.
pub fn retry_after_seconds(headers: &HeaderMap) -> Option<u32> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()
}

/// The wait after which client-go repeats a request by itself: an overloaded or failed server asks for it.
// client-go: rest/with_retry.go, checkWait
pub fn retry_wait(status: u16, headers: &HeaderMap) -> Option<Duration> {
    let is_retried = status == 429 || (500..600).contains(&status);
    let seconds = is_retried.then(|| retry_after_seconds(headers)).flatten()?;
    Some(Duration::from_secs(seconds.into()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_overloaded_and_failed_servers_are_asked_again() {
        let cases = [
            (429, Some("2"), Some(2)),
            (503, Some("0"), Some(0)),
            (599, Some("1"), Some(1)),
            (200, Some("1"), None),
            (404, Some("1"), None),
            (600, Some("1"), None),
            (503, None, None),
            (503, Some("-1"), None),
            (503, Some("Wed, 21 Oct 2026 07:28:00 GMT"), None),
        ];
        for (status, value, expected) in cases {
            let headers = value.map(|value| (RETRY_AFTER, HeaderValue::from_static(value)));
            let wait = retry_wait(status, &headers.into_iter().collect());
            assert_eq!(wait, expected.map(Duration::from_secs), "{status} {value:?}");
        }
    }
}
