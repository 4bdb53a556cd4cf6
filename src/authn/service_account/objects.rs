//! The objects that tokens depend on.
// kubernetes: pkg/controller/serviceaccount/tokengetter.go; client-go: rest/request.go

use std::sync::Arc;

use super::checks::Checks;
use crate::authn::lookup::Found;
use crate::authn::{AuthnError, BoxFuture};
use crate::status::quote::Quoted;

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
