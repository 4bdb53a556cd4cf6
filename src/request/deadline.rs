//! The deadline of a request: `?timeout=`, limited by `--request-timeout`.
//!
//! Follows `k8s.io/apiserver/pkg/endpoints/filters/request_deadline.go`. Long-running requests have no deadline, and
//! their `timeout` is not parsed. The backend ends a watch at its `timeoutSeconds`; the gateway ends one only at a
//! shutdown (`listener::watches`) and, for an anonymous client, after `--request-timeout`.

use std::time::Duration;

use portcullis_go::duration::{DurationError, parse_duration};
use portcullis_go::url::query;

use super::info::RequestInfo;

/// A `?timeout=` that does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid timeout specified in the request URL - {0}")]
pub(crate) struct BadTimeout(DurationError);

/// The time that a request may take after its receipt; `None` for a long-running request. A zero or negative `timeout`,
/// or one above `limit`, results in `limit`.
pub(crate) fn deadline(
    info: &RequestInfo,
    query: Option<&str>,
    limit: Duration,
) -> Result<Option<Duration>, BadTimeout> {
    if info.is_long_running() {
        return Ok(None);
    }
    let requested = match query.and_then(|query| query::first(query, "timeout")) {
        Some(text) if !text.is_empty() => parse_duration(&text).map_err(BadTimeout)?,
        _ => return Ok(Some(limit)),
    };
    let requested = u64::try_from(requested).map(Duration::from_nanos).unwrap_or_default();
    Ok(Some(if requested.is_zero() || requested > limit { limit } else { requested }))
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    #[test]
    fn the_deadline_is_the_requested_timeout_within_the_limit() {
        type Case = (&'static str, Option<&'static str>, Result<Option<Duration>, &'static str>);
        let limit = Duration::from_mins(1);
        let seconds = Duration::from_secs;
        let cases: &[Case] = &[
            ("/api/v1/pods", None, Ok(Some(limit))),
            ("/api/v1/pods", Some("timeout=5s"), Ok(Some(seconds(5)))),
            ("/api/v1/pods", Some("timeout=5s&timeout=foo"), Ok(Some(seconds(5)))),
            ("/api/v1/pods", Some("timeout="), Ok(Some(limit))),
            ("/api/v1/pods", Some("timeout=&timeout=5s"), Ok(Some(limit))),
            ("/api/v1/pods", Some("timeout=0"), Ok(Some(limit))),
            ("/api/v1/pods", Some("timeout=-1s"), Ok(Some(limit))),
            ("/api/v1/pods", Some("timeout=60s"), Ok(Some(limit))),
            ("/api/v1/pods", Some("timeout=2m"), Ok(Some(limit))),
            ("/healthz", Some("timeout=1ms"), Ok(Some(Duration::from_millis(1)))),
            ("/api/v1/pods", Some("timeout=5"), Err("time: missing unit in duration \"5\"")),
            ("/api/v1/pods", Some("timeout=foo"), Err("time: invalid duration \"foo\"")),
            ("/healthz", Some("timeout=foo"), Err("time: invalid duration \"foo\"")),
            ("/api/v1/pods", Some("watch=1&timeout=foo"), Ok(None)),
            ("/api/v1/namespaces/a/pods/b/exec", Some("timeout=foo"), Ok(None)),
        ];
        for (path, query, expected) in cases {
            let info = RequestInfo::parse(&Method::GET, path, *query).expect("readable");
            let found = deadline(&info, *query, limit).map_err(|error| error.to_string());
            let expected =
                expected.map_err(|error| format!("invalid timeout specified in the request URL - {error}"));
            assert_eq!(found, expected, "{path} {query:?}");
        }
    }
}
