//! How long a request may take: `?timeout=`, within the limit of the server.
//!
//! Follows `k8s.io/apiserver/pkg/endpoints/filters/request_deadline.go`. Requests that run long by nature have no
//! deadline, and their `timeout` is not even read.

use std::time::Duration;

use super::info::RequestInfo;
use crate::go::duration::{DurationError, parse_duration};
use crate::go::url::query;
use crate::http::status::Status;

/// The limit unless `--request-timeout` says otherwise.
pub const DEFAULT_LIMIT: Duration = Duration::from_mins(1);

/// A `?timeout=` that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid timeout specified in the request URL - {0}")]
pub struct BadTimeout(DurationError);

impl From<BadTimeout> for Status {
    fn from(error: BadTimeout) -> Self {
        Self::bad_request(error.to_string())
    }
}

/// The time a request may take from its receipt on; `None` for a request that may run for long. A `timeout` of
/// nothing, less than nothing or more than the limit asks for the limit.
pub fn deadline(
    info: &RequestInfo,
    query: Option<&str>,
    limit: Duration,
) -> Result<Option<Duration>, BadTimeout> {
    if info.is_long_running() {
        return Ok(None);
    }
    let asked = match query.and_then(|query| query::first(query, "timeout")) {
        Some(text) if !text.is_empty() => parse_duration(&text).map_err(BadTimeout)?,
        _ => return Ok(Some(limit)),
    };
    let asked = u64::try_from(asked).map(Duration::from_nanos).unwrap_or_default();
    Ok(Some(if asked.is_zero() || asked > limit { limit } else { asked }))
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    #[test]
    fn the_deadline_is_what_was_asked_within_the_limit() {
        type Case = (&'static str, Option<&'static str>, Result<Option<Duration>, &'static str>);
        let limit = DEFAULT_LIMIT;
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

    #[test]
    fn a_bad_timeout_is_a_bad_request() {
        let info = RequestInfo::parse(&Method::GET, "/", None).expect("readable");
        let status = Status::from(deadline(&info, Some("timeout=5"), DEFAULT_LIMIT).expect_err("no unit"));
        assert_eq!(status.code, http::StatusCode::BAD_REQUEST);
        assert!(!status.nosniff);
    }
}
