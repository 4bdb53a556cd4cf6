//! The checks that authorize a request, in order, for `portcullis explain`; of a request that is traced, the spans.

use std::sync::Mutex;

use http::Method;
use k8s_openapi::api::authorization::v1::SubjectAccessReviewSpec;
use portcullis_kubernetes::status::{Attempt, AttemptTarget};
use portcullis_system::sync::lock;
use serde::Serialize;

use super::access_review;
use crate::traces::{ActiveSpan, SpanScope};

/// The trace that records nothing.
pub(crate) static NO_TRACE: AuthzTrace = AuthzTrace { checks: None, spans: None };

/// Records checks, if it was made to, or spans of the access reviews.
#[derive(Debug)]
pub(crate) struct AuthzTrace {
    checks: Option<Mutex<Vec<AuthzCheck>>>,
    spans: Option<Box<SpanScope>>,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AuthzCheck {
    /// The authorizer: a webhook by its name, or the API server.
    pub(crate) authorizer: String,
    /// The user, the verb and the object.
    pub(crate) review: String,
    /// `allow`, `deny`, `no opinion` or `error`.
    pub(crate) result: &'static str,
    /// Whether the decision was cached.
    pub(crate) cached: bool,
    /// The reason or the error, in the authorizer's words.
    pub(crate) detail: String,
}

impl AuthzTrace {
    /// A trace that records.
    pub(crate) fn recording() -> Self {
        Self { checks: Some(Mutex::default()), spans: None }
    }

    /// The trace of a request, whose access reviews have spans within `spans`.
    pub(crate) fn within(spans: Option<&SpanScope>) -> Self {
        Self { checks: None, spans: spans.cloned().map(Box::new) }
    }

    /// Begins the span of an access review, if there are any.
    pub(super) fn begin_review(&self) -> Option<Box<ActiveSpan>> {
        self.spans.as_ref().map(|spans| Box::new(spans.request(&Method::POST)))
    }

    /// Records a check.
    pub(super) fn record(
        &self,
        authorizer: &str,
        spec: &SubjectAccessReviewSpec,
        (result, cached): (&'static str, bool),
        detail: &str,
    ) {
        if let Some(checks) = &self.checks {
            lock(checks).push(AuthzCheck {
                authorizer: authorizer.to_owned(),
                review: text(&access_review::attempt(spec)),
                result,
                cached,
                detail: detail.to_owned(),
            });
        }
    }

    /// The checks so far, in order.
    pub(crate) fn into_checks(self) -> Vec<AuthzCheck> {
        let checks = self.checks.map(|checks| std::mem::take(&mut *lock(&checks)));
        checks.unwrap_or_default()
    }
}

/// An access review on one line, such as `alice: get pods/log.apps "p" in namespace "n"`.
fn text(attempt: &Attempt<'_>) -> String {
    let Attempt { user, verb, on } = attempt;
    match on {
        AttemptTarget::Path(path) => format!("{user}: {verb} {path}"),
        AttemptTarget::Resource { group, resource, subresource, namespace, name } => {
            let part = |separator: &str, text: &str| {
                if text.is_empty() { String::new() } else { format!("{separator}{text}") }
            };
            let (group, subresource) = (part(".", group), part("/", subresource));
            let (name, namespace) = (part(" ", name), part(" in namespace ", namespace));
            format!("{user}: {verb} {resource}{group}{subresource}{name}{namespace}")
        }
    }
}
