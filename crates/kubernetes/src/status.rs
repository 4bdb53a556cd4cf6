//! Responses that the gateway sends itself, as kube-apiserver sends them.
//!
//! A [`Status`] is data: the fields of `meta/v1 Status`, and the form in which kube-apiserver writes this response
//! (negotiated, bare JSON, plain text, with or without `nosniff`). [`render`] encodes it. Bodies of the backend are
//! never parsed into a `Status`: they pass unchanged.
//!
//! Follows `k8s.io/apimachinery/pkg/api/errors/errors.go` and
//! `k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go`. The text of a response must never contain a
//! credential, nor the cause of a failure between the gateway and the backend.

pub mod render;

use http::StatusCode;
use prost::Message;
use serde::Serialize;

use portcullis_go::quote::Quoted;

/// The reason of a failure, for programs: those of kube-apiserver that the gateway uses.
// apimachinery: pkg/apis/meta/v1/types.go, StatusReason
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No reason; the field is omitted.
    Unknown,
    /// 401
    Unauthorized,
    /// 403
    Forbidden,
    /// 404
    NotFound,
    /// 409, the object to create exists
    AlreadyExists,
    /// 409
    Conflict,
    /// 422
    Invalid,
    /// 504
    Timeout,
    /// 429
    TooManyRequests,
    /// 400
    BadRequest,
    /// 405
    MethodNotAllowed,
    /// 413
    RequestEntityTooLarge,
    /// 500
    InternalError,
    /// 410, a resource version or continue token is too old
    Expired,
    /// 503
    ServiceUnavailable,
}

impl Reason {
    /// Every reason, in kube-apiserver's order.
    #[cfg(test)]
    pub const ALL: [Self; 15] = [
        Self::Unknown,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::AlreadyExists,
        Self::Conflict,
        Self::Invalid,
        Self::Timeout,
        Self::TooManyRequests,
        Self::BadRequest,
        Self::MethodNotAllowed,
        Self::RequestEntityTooLarge,
        Self::InternalError,
        Self::Expired,
        Self::ServiceUnavailable,
    ];

    /// The text in the JSON; empty for [`Reason::Unknown`].
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::Conflict => "Conflict",
            Self::Invalid => "Invalid",
            Self::Timeout => "Timeout",
            Self::TooManyRequests => "TooManyRequests",
            Self::BadRequest => "BadRequest",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::RequestEntityTooLarge => "RequestEntityTooLarge",
            Self::InternalError => "InternalError",
            Self::Expired => "Expired",
            Self::ServiceUnavailable => "ServiceUnavailable",
        }
    }

    /// The default status code of a response with this reason.
    pub(crate) const fn default_code(self) -> StatusCode {
        match self {
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists | Self::Conflict => StatusCode::CONFLICT,
            Self::Expired => StatusCode::GONE,
            Self::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Self::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            Self::BadRequest => StatusCode::BAD_REQUEST,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::RequestEntityTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::ServiceUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unknown | Self::InternalError => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// The form of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// JSON, YAML or protobuf, by the request's `Accept`.
    Negotiated,
    /// JSON without kind and apiVersion, with a text content type.
    // apiserver: pkg/server/filters/timeout.go — the bare Go struct is encoded, net/http guesses the type
    Untyped,
    /// The message and a newline as plain text.
    // net/http: Error
    Text,
}

/// The details of a `Status`. Fields are in the order of kube-apiserver's JSON.
// apimachinery: pkg/apis/meta/v1/generated.proto, StatusDetails
#[derive(Clone, PartialEq, Eq, Message, Serialize)]
pub struct Details {
    /// The name of the object.
    #[prost(string, required, tag = "1")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The API group of the resource.
    #[prost(string, required, tag = "2")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The resource (for historic reasons under the name of kind).
    #[prost(string, required, tag = "3")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The uid of the object.
    #[prost(string, required, tag = "6")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The causes.
    #[prost(message, repeated, tag = "4")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// The seconds after which the client may retry; zero is omitted. Also sent as `Retry-After`.
    // int32 there: the same bytes.
    #[prost(uint32, required, tag = "5")]
    #[serde(rename = "retryAfterSeconds", skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
}

/// One cause of a failure.
// apimachinery: pkg/apis/meta/v1/generated.proto, StatusCause
#[derive(Clone, PartialEq, Eq, Message, Serialize)]
pub struct Cause {
    /// The reason, for programs.
    #[prost(string, required, tag = "1")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The message, for people.
    #[prost(string, required, tag = "2")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The field of the object.
    #[prost(string, required, tag = "3")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The response to a request that ends at the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The HTTP status code.
    pub code: StatusCode,
    /// The reason, for programs.
    pub reason: Reason,
    /// The message, for people. With [`Form::Text`] it is the whole body.
    pub message: String,
    /// The details; `Some` of an empty value is written as `{}`, as kube-apiserver does.
    pub details: Option<Details>,
    /// `Retry-After` that is not in the body; the value of `details` wins.
    pub retry_after: Option<u32>,
    /// The form.
    pub form: Form,
    /// Whether to send `X-Content-Type-Options: nosniff`; text always has it.
    pub nosniff: bool,
}

/// An action that a user was not allowed to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt<'a> {
    /// The user name.
    pub user: &'a str,
    /// The Kubernetes verb.
    pub verb: &'a str,
    /// The target.
    pub on: AttemptTarget<'a>,
}

/// The target of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptTarget<'a> {
    /// A path that is not a resource.
    Path(&'a str),
    /// A resource. Absent fields are empty.
    Resource {
        /// The API group.
        group: &'a str,
        /// The resource.
        resource: &'a str,
        /// The subresource.
        subresource: &'a str,
        /// The namespace.
        namespace: &'a str,
        /// The name of the object.
        name: &'a str,
    },
}

/// The message when no endpoint has passed the self-check. The self-check of another gateway recognizes it.
pub const NO_USABLE_BACKEND: &str =
    "no usable backend: the API server has not passed the identity self-check; try again later";

impl Status {
    /// A negotiated response with the reason's default code.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            code: reason.default_code(),
            reason,
            message: message.into(),
            details: None,
            retry_after: None,
            form: Form::Negotiated,
            nosniff: false,
        }
    }

    /// 401. The text is fixed: only the log has the reason of a refusal.
    // apiserver: pkg/endpoints/filters/authentication.go, Unauthorized
    pub fn unauthorized() -> Self {
        Self::new(Reason::Unauthorized, "Unauthorized")
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    /// 400 with `nosniff`, for invalid `Impersonate-*` headers.
    // apiserver: pkg/endpoints/filters/impersonation — RespondWithError
    pub fn bad_impersonation(message: impl Into<String>) -> Self {
        Self { nosniff: true, ..Self::bad_request(message) }
    }

    /// 403. `reason` is the text of the authorizer; it may be empty.
    // apiserver: pkg/endpoints/handlers/responsewriters/errors.go, ForbiddenStatusError; apimachinery: pkg/api/errors, NewForbidden
    pub fn forbidden(attempt: &Attempt<'_>, reason: &str) -> Self {
        // kube-apiserver escapes only the attempt, not the reason, nor the name before it.
        let mut said = sanitize(&attempt.to_string());
        if !reason.is_empty() {
            said.push_str(": ");
            said.push_str(reason);
        }
        let (group, resource, name) = match attempt.on {
            AttemptTarget::Path(_) => ("", "", ""),
            AttemptTarget::Resource { group, resource, name, .. } => (group, resource, name),
        };
        let message = if group.is_empty() && resource.is_empty() {
            format!("forbidden: {said}")
        } else if name.is_empty() {
            format!("{} is forbidden: {said}", group_resource(group, resource))
        } else {
            format!("{} {} is forbidden: {said}", group_resource(group, resource), Quoted(name))
        };
        Self {
            details: Some(about(group, resource, name)),
            nosniff: true,
            ..Self::new(Reason::Forbidden, message)
        }
    }

    /// 404 for a path that no handler serves.
    // apimachinery: pkg/api/errors, NewGenericServerResponse
    pub fn not_found() -> Self {
        let message = "the server could not find the requested resource";
        Self { details: Some(Details::default()), ..Self::new(Reason::NotFound, message) }
    }

    /// 404 for an object.
    // apimachinery: pkg/api/errors, NewNotFound
    pub fn object_not_found(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} {} not found", group_resource(group, resource), Quoted(name));
        Self { details: Some(about(group, resource, name)), ..Self::new(Reason::NotFound, message) }
    }

    /// 405.
    // apimachinery: pkg/api/errors, NewGenericServerResponse
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self { details: Some(Details::default()), ..Self::new(Reason::MethodNotAllowed, message) }
    }

    /// 413.
    // apimachinery: pkg/api/errors, NewRequestEntityTooLargeError
    pub fn request_entity_too_large(message: &str) -> Self {
        Self::new(Reason::RequestEntityTooLarge, format!("Request entity is too large: {message}"))
    }

    /// 421: the TLS server name and the `Host` are those of different clusters.
    pub fn misdirected() -> Self {
        let message = "the requested host is not served on this connection";
        Self { code: StatusCode::MISDIRECTED_REQUEST, ..Self::new(Reason::Unknown, message) }
    }

    /// 508: the request comes from this gateway itself.
    pub fn loop_detected(message: impl Into<String>) -> Self {
        Self { code: StatusCode::LOOP_DETECTED, ..Self::new(Reason::Unknown, message) }
    }

    /// 429: too many requests are in flight.
    // apiserver: pkg/server/filters/maxinflight.go, tooManyRequests
    pub fn too_many_requests(retry_after: u32) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::text(Reason::TooManyRequests, "Too many requests, please try again later.")
        }
    }

    /// 429: the server is shutting down.
    // apiserver: pkg/server/filters/with_retry_after.go
    pub fn shutting_down_try_later() -> Self {
        let message = "The apiserver is shutting down, please try again later.";
        Self { retry_after: Some(5), ..Self::text(Reason::TooManyRequests, message) }
    }

    /// 503: this part of the service is away for now.
    pub fn service_unavailable(message: impl Into<String>, retry_after_seconds: Option<u32>) -> Self {
        let details = retry_after_seconds
            .map(|retry_after_seconds| Details { retry_after_seconds, ..Details::default() });
        Self { details, ..Self::new(Reason::ServiceUnavailable, message) }
    }

    /// 502: the backend did not answer as a backend should. The cause is in the log, under the id.
    pub fn bad_gateway(request_id: &str) -> Self {
        let message = format!(
            "the gateway could not get an answer from the API server; the log says why, under request id {request_id}"
        );
        Self { code: StatusCode::BAD_GATEWAY, ..Self::new(Reason::InternalError, message) }
    }

    /// 504: the request's time is up and nothing was written yet.
    // apiserver: pkg/server/filters/timeout.go; apimachinery: pkg/api/errors, NewTimeoutError
    pub fn timeout() -> Self {
        let message = "Timeout: request did not complete within the allotted timeout";
        Self { details: Some(Details::default()), form: Form::Untyped, ..Self::new(Reason::Timeout, message) }
    }

    /// 500 as text, for a request that cannot even be understood or recorded. `target` is the request target as sent.
    // apiserver: pkg/endpoints/handlers/responsewriters/errors.go, InternalError
    pub fn internal_error_text(target: &str, message: &str) -> Self {
        let text = sanitize(&format!("Internal Server Error: {}: {message}", Quoted(target)));
        Self::text(Reason::InternalError, text)
    }

    /// 500 as text, for a bug.
    // apiserver: pkg/server/filters/wrap.go
    pub fn panicked() -> Self {
        let message = "This request caused apiserver to panic. Look in the logs for details.";
        Self::text(Reason::InternalError, message)
    }

    fn text(reason: Reason, message: impl Into<String>) -> Self {
        Self { form: Form::Text, nosniff: true, ..Self::new(reason, message) }
    }

    /// The value of `Retry-After`, if the answer has one.
    // apiserver: pkg/endpoints/handlers/responsewriters/writers.go, ErrorNegotiated
    pub fn retry_after(&self) -> Option<u32> {
        match &self.details {
            Some(details) if details.retry_after_seconds > 0 => Some(details.retry_after_seconds),
            _ => self.retry_after,
        }
    }
}

// apiserver: pkg/endpoints/handlers/responsewriters/errors.go, forbiddenMessage
impl std::fmt::Display for Attempt<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "User {} cannot {} ", Quoted(self.user), self.verb)?;
        match self.on {
            AttemptTarget::Path(path) => write!(f, "path {}", Quoted(path)),
            AttemptTarget::Resource { group, resource, subresource, namespace, .. } => {
                if subresource.is_empty() {
                    write!(f, "resource {} ", Quoted(resource))?;
                } else {
                    write!(f, "resource {} ", Quoted(&format!("{resource}/{subresource}")))?;
                }
                write!(f, "in API group {} ", Quoted(group))?;
                if namespace.is_empty() {
                    f.write_str("at the cluster scope")
                } else {
                    write!(f, "in the namespace {}", Quoted(namespace))
                }
            }
        }
    }
}

/// A resource with its group, as messages name it.
// apimachinery: pkg/runtime/schema/group_version.go, GroupResource.String
fn group_resource(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

fn about(group: &str, resource: &str, name: &str) -> Details {
    Details {
        name: name.to_owned(),
        group: group.to_owned(),
        kind: resource.to_owned(),
        ..Details::default()
    }
}

/// Escapes HTML characters in a text.
// apiserver: pkg/endpoints/handlers/responsewriters/errors.go, sanitizer
fn sanitize(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    const PODS: AttemptTarget<'_> =
        AttemptTarget::Resource { group: "", resource: "pods", subresource: "", namespace: "ns", name: "x" };

    #[test]
    fn forbidden_messages_are_those_of_kube_apiserver() {
        struct Case {
            name: &'static str,
            attempt: Attempt<'static>,
            reason: &'static str,
            message: &'static str,
        }
        let cases = [
            Case {
                name: "a named resource",
                attempt: Attempt { user: "y", verb: "get", on: PODS },
                reason: "why",
                message: r#"pods "x" is forbidden: User "y" cannot get resource "pods" in API group "" in the namespace "ns": why"#,
            },
            Case {
                name: "cluster scope, a group and a subresource",
                attempt: Attempt {
                    user: "y",
                    verb: "update",
                    on: AttemptTarget::Resource {
                        group: "apps",
                        resource: "deployments",
                        subresource: "scale",
                        namespace: "",
                        name: "",
                    },
                },
                reason: "",
                message: r#"deployments.apps is forbidden: User "y" cannot update resource "deployments/scale" in API group "apps" at the cluster scope"#,
            },
            Case {
                name: "a path; the attempt is made safe, the reason is not",
                attempt: Attempt { user: "<a>&\"b\"", verb: "get", on: AttemptTarget::Path("/<") },
                reason: "a<b",
                message: r#"forbidden: User "&lt;a&gt;&amp;\"b\"" cannot get path "/&lt;": a<b"#,
            },
            Case {
                name: "an unknown method and a resource without a name of its own",
                attempt: Attempt {
                    user: "",
                    verb: "",
                    on: AttemptTarget::Resource {
                        group: "",
                        resource: "",
                        subresource: "",
                        namespace: "",
                        name: "pods",
                    },
                },
                reason: "",
                message: r#"forbidden: User "" cannot  resource "" in API group "" at the cluster scope"#,
            },
        ];
        for case in &cases {
            let status = Status::forbidden(&case.attempt, case.reason);
            assert_eq!(status.message, case.message, "{}", case.name);
            assert!(status.nosniff, "{}", case.name);
        }
    }

    #[test]
    fn reasons_have_distinct_names_and_error_codes() {
        let names: std::collections::HashSet<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(names.len(), Reason::ALL.len());
        for reason in Reason::ALL {
            assert!(reason.default_code().as_u16() >= 400, "{reason:?}");
        }
    }

    #[test]
    fn text_answers_quote_and_sanitize_the_request_target() {
        let status = Status::internal_error_text(
            "/api/v1/watch?<",
            "failed to create RequestInfo: unable to determine kind and namespace from url, /api/v1/watch?<",
        );
        assert_eq!(
            status.message,
            "Internal Server Error: \"/api/v1/watch?&lt;\": failed to create RequestInfo: \
             unable to determine kind and namespace from url, /api/v1/watch?&lt;"
        );
    }
}
