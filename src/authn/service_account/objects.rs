//! Lookups of the objects that tokens depend on.
// kubernetes: pkg/controller/serviceaccount/tokengetter.go; client-go: rest/request.go

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use portcullis_go::quote::Quoted;
use tokio::time::timeout;

use super::checks::CheckRecorder;
use crate::authn::token_getter::GetResult;
use crate::authn::trace::Check;
use crate::authn::{AuthnError, BoxFuture};

/// Timeout for all object lookups of one token: the first result must not become stale before the verdict.
const OBJECTS_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits lookups to [`OBJECTS_TIMEOUT`]. Starts no timer if cached objects suffice.
// threat: deleted-account
pub(super) async fn within_timeout<T>(
    checks: CheckRecorder<'_>,
    lookups: impl Future<Output = Result<T, AuthnError>>,
) -> Result<T, AuthnError> {
    let mut lookups = pin!(lookups);
    if let Poll::Ready(outcome) = poll!(lookups.as_mut()) {
        return outcome;
    }
    let late = |_| {
        Err(checks.unavailable(
            Check::Other("objects"),
            format!("object lookups did not finish within {OBJECTS_TIMEOUT:?}"),
        ))
    };
    timeout(OBJECTS_TIMEOUT, lookups).await.unwrap_or_else(late)
}

/// Kind and name of an object to look up.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObjectLookup<'a> {
    /// The kind, in lower case.
    pub(super) kind: &'static str,
    /// The namespace; `None` for cluster-scoped objects.
    pub(super) namespace: Option<&'a str>,
    /// The name.
    pub(super) name: &'a str,
}

impl ObjectLookup<'_> {
    /// Returns the object, or the reason that it does not exist. An invalid name fails without a lookup.
    pub(super) async fn get<T>(
        self,
        lookup: BoxFuture<'_, GetResult<T>>,
        checks: CheckRecorder<'_>,
    ) -> Result<Result<Arc<T>, String>, AuthnError> {
        if let Some(problem) = self.problem() {
            return Ok(Err(problem));
        }
        match lookup.await {
            Ok(Some(found)) => Ok(Ok(found)),
            Ok(None) => Ok(Err(format!("{}s {} not found", self.kind, Quoted(self.name)))),
            Err(error) => Err(checks.unavailable(Check::Other(self.kind), error.to_string())),
        }
    }

    fn problem(self) -> Option<String> {
        let in_segment = |what: &str, text: &str| {
            let problem = segment_problem(text)?;
            Some(format!("invalid {what} {}: [{problem}]", Quoted(text)))
        };
        self.namespace
            .and_then(|namespace| in_segment("namespace", namespace))
            .or_else(|| self.name.is_empty().then(|| "resource name may not be empty".to_owned()))
            .or_else(|| in_segment("resource name", self.name))
            .or_else(|| {
                let empty = self.namespace.is_some_and(str::is_empty);
                // The API server's response to a path with an empty namespace.
                empty.then(|| "the server could not find the requested resource".to_owned())
            })
    }
}

/// Why a text cannot be a path segment.
// client-go: rest/request.go, IsValidPathSegmentName, which need not look for what ends a path: it is encoded there
fn segment_problem(text: &str) -> Option<String> {
    if matches!(text, "." | "..") {
        return Some(format!("may not be '{text}'"));
    }
    let found: Vec<_> = ['/', '%', '?', '#'].into_iter().filter(|c| text.contains(*c)).collect();
    let problems: Vec<_> = found.into_iter().map(|c| format!("may not contain '{c}'")).collect();
    (!problems.is_empty()).then(|| problems.join(" "))
}
