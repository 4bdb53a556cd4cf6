//! The objects that tokens depend on.
// kubernetes: pkg/controller/serviceaccount/tokengetter.go; client-go: rest/request.go

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use tokio::time::timeout;

use super::checks::Checks;
use crate::authn::token_getter::Found;
use crate::authn::{AuthnError, BoxFuture};
use crate::go::quote::Quoted;

/// How long the objects of one token may take, all together: what was found first is not believed for longer.
const OBJECTS_TIMEOUT: Duration = Duration::from_secs(10);

/// The outcome of questions about objects, if it comes in time. What is known needs no timer.
// threat: deleted-account
pub(super) async fn in_time<T>(
    checks: Checks<'_>,
    asking: impl Future<Output = Result<T, AuthnError>>,
) -> Result<T, AuthnError> {
    let mut asking = pin!(asking);
    if let Poll::Ready(outcome) = poll!(asking.as_mut()) {
        return outcome;
    }
    let late = |_| {
        Err(checks.unavailable("objects", format!("they were not all looked up within {OBJECTS_TIMEOUT:?}")))
    };
    timeout(OBJECTS_TIMEOUT, asking).await.unwrap_or_else(late)
}

/// Which object it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    /// What kind of object, in lower case.
    pub(super) kind: &'static str,
    /// Its namespace, if it has one.
    pub(super) namespace: Option<&'a str>,
    /// Its name.
    pub(super) name: &'a str,
}

impl Place<'_> {
    /// The object, or why there is none. Nothing is asked for what cannot be a name.
    pub(super) async fn ask<T>(
        self,
        asked: BoxFuture<'_, Found<T>>,
        checks: Checks<'_>,
    ) -> Result<Result<Arc<T>, String>, AuthnError> {
        if let Some(problem) = self.problem() {
            return Ok(Err(problem));
        }
        match asked.await {
            Ok(Some(found)) => Ok(Ok(found)),
            Ok(None) => Ok(Err(format!("{}s {} not found", self.kind, Quoted(self.name)))),
            Err(error) => Err(checks.unavailable(self.kind, error.to_string())),
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
                // What an API server says to a path without one.
                empty.then(|| "the server could not find the requested resource".to_owned())
            })
    }
}

/// Why it cannot be one segment of a path.
// client-go: rest/request.go, IsValidPathSegmentName, which need not look for what ends a path: it is encoded there
fn segment_problem(text: &str) -> Option<String> {
    if matches!(text, "." | "..") {
        return Some(format!("may not be '{text}'"));
    }
    let found: Vec<_> = ['/', '%', '?', '#'].into_iter().filter(|c| text.contains(*c)).collect();
    let problems: Vec<_> = found.into_iter().map(|c| format!("may not contain '{c}'")).collect();
    (!problems.is_empty()).then(|| problems.join(" "))
}
