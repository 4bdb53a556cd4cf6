//! The embedded backend's errors, as the `Status` objects of kube-apiserver (`apimachinery/pkg/api/errors`).

use serde_json::{Value, json};

use super::resources::Resource;

/// An answer that is not a success.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) code: u16,
    reason: &'static str,
    message: String,
    details: Value,
}

impl Failure {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: json!({}),
        }
    }

    fn about(mut self, resource: &Resource, name: &str) -> Self {
        self.details = details(resource, resource.plural, name);
        self
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        let mut failure = Self::new(400, "BadRequest", message);
        failure.details = Value::Null;
        failure
    }

    pub(super) fn unauthorized() -> Self {
        let mut failure = Self::new(401, "Unauthorized", "Unauthorized");
        failure.details = Value::Null;
        failure
    }

    pub(super) fn forbidden(message: impl Into<String>, resource: Option<(&Resource, &str)>) -> Self {
        let failure = Self::new(403, "Forbidden", message);
        match resource {
            Some((resource, name)) => failure.about(resource, name),
            None => failure,
        }
    }

    pub(super) fn unknown_path() -> Self {
        Self::new(
            404,
            "NotFound",
            "the server could not find the requested resource",
        )
    }

    pub(super) fn not_found(resource: &Resource, name: &str) -> Self {
        Self::new(
            404,
            "NotFound",
            format!("{} \"{name}\" not found", resource.qualified()),
        )
        .about(resource, name)
    }

    pub(super) fn method_not_allowed() -> Self {
        Self::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    }

    pub(super) fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", resource.qualified());
        Self::new(409, "AlreadyExists", message).about(resource, name)
    }

    pub(super) fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": {why}",
            resource.qualified()
        );
        Self::new(409, "Conflict", message).about(resource, name)
    }

    pub(super) fn modified(resource: &Resource, name: &str) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, why)
    }

    pub(super) fn expired(asked: u64, oldest: u64) -> Self {
        let mut failure = Self::new(
            410,
            "Expired",
            format!("too old resource version: {asked} ({oldest})"),
        );
        failure.details = Value::Null;
        failure
    }

    pub(super) fn too_large() -> Self {
        Self::new(
            413,
            "RequestEntityTooLarge",
            "Request entity too large: limit is 3145728",
        )
    }

    pub(super) fn media_type(accepted: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// One invalid field; `reason` is a `CauseType` such as `FieldValueRequired`.
    pub(super) fn invalid(resource: &Resource, name: &str, reason: &str, field: &str, message: &str) -> Self {
        let group = if resource.group.is_empty() {
            String::new()
        } else {
            format!(".{}", resource.group)
        };
        let text = format!(
            "{}{group} \"{name}\" is invalid: {field}: {message}",
            resource.kind
        );
        let mut failure = Self::new(422, "Invalid", text);
        failure.details = details(resource, resource.kind, name);
        if let Some(details) = failure.details.as_object_mut() {
            details.insert(
                "causes".to_owned(),
                json!([{"reason": reason, "message": message, "field": field}]),
            );
        }
        failure
    }

    pub(super) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let (false, Some(fields)) = (self.details.is_null(), status.as_object_mut()) {
            fields.insert("details".to_owned(), self.details.clone());
        }
        status
    }
}

/// `details` of a `Status`: empty fields are left out.
pub(super) fn details(resource: &Resource, kind: &str, name: &str) -> Value {
    [("name", name), ("group", resource.group), ("kind", kind)]
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(key, value)| (key.to_owned(), Value::from(value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
