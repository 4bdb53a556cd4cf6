//! A request for a resource of the embedded backend, understood; and the refusals that name one.

use std::borrow::Cow;
use std::sync::Arc;

use super::resources::Resource;
use super::store::{Key, Store};
use super::table::Table;
use crate::query;
use crate::status::{Cause, Details, Reason, Status};
use crate::user::UserInfo;

/// Everything about a request for a resource. What the path does not say is empty.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) store: &'a Arc<Store>,
    pub(super) user: &'a UserInfo,
    pub(super) verb: &'a str,
    pub(super) resource: &'static Resource,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) subresource: &'a str,
    pub(super) query: &'a str,
    pub(super) table: Option<Table>,
    pub(super) content_type: &'a str,
    pub(super) body: &'a [u8],
}

impl<'a> Ask<'a> {
    pub(super) fn key(&self) -> Key {
        Key { plural: self.resource.plural, namespace: self.namespace.to_owned(), name: self.name.to_owned() }
    }

    /// The namespace as a filter: `None` for all.
    pub(super) fn scope(&self) -> Option<&'a str> {
        (!self.namespace.is_empty()).then_some(self.namespace)
    }

    /// The first value of a parameter; empty if it is not there.
    pub(super) fn parameter(&self, key: &str) -> Cow<'a, str> {
        query::first(self.query, key).unwrap_or_default()
    }

    pub(super) fn is_true(&self, key: &str) -> bool {
        matches!(&*self.parameter(key), "true" | "1")
    }

    pub(super) fn dry_run(&self) -> bool {
        self.parameter("dryRun") == "All"
    }

    /// The media type of the body, without parameters.
    pub(super) fn media_type(&self) -> &'a str {
        self.content_type.split(';').next().unwrap_or_default().trim()
    }
}

impl Resource {
    pub(super) fn not_found(&self, name: &str) -> Status {
        Status::object_not_found(self.group, self.plural, name)
    }

    pub(super) fn already_exists(&self, name: &str) -> Status {
        self.refusal(Reason::AlreadyExists, name, format!("{} {name:?} already exists", self.qualified()))
    }

    pub(super) fn conflict(&self, name: &str, why: &str) -> Status {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", self.qualified());
        self.refusal(Reason::Conflict, name, message)
    }

    pub(super) fn forbidden(&self, name: &str, why: &str) -> Status {
        self.refusal(Reason::Forbidden, name, format!("{} {name:?} is forbidden: {why}", self.qualified()))
    }

    /// One invalid field.
    pub(super) fn invalid(&self, name: &str, field: &str, message: &str) -> Status {
        let kind = if self.group.is_empty() {
            self.kind.to_owned()
        } else {
            format!("{}.{}", self.kind, self.group)
        };
        let required = message.starts_with("Required");
        let cause = Cause {
            kind: if required { "FieldValueRequired" } else { "FieldValueInvalid" }.to_owned(),
            message: message.to_owned(),
            field: field.to_owned(),
        };
        let mut status =
            self.refusal(Reason::Invalid, name, format!("{kind} {name:?} is invalid: {field}: {message}"));
        if let Some(details) = &mut status.details {
            self.kind.clone_into(&mut details.kind);
            details.causes = vec![cause];
        }
        status
    }

    pub(super) fn unreadable(&self, error: impl std::fmt::Display) -> Status {
        let kind = self.kind;
        Status::bad_request(format!("{kind} in version \"v1\" cannot be handled as a {kind}: {error}"))
    }

    /// `plural.group`, as messages have it.
    fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    fn refusal(&self, reason: Reason, name: &str, message: String) -> Status {
        let (name, group, kind) = (name.to_owned(), self.group.to_owned(), self.plural.to_owned());
        Status {
            details: Some(Details { name, group, kind, ..Details::default() }),
            ..Status::new(reason, message)
        }
    }
}

pub(super) fn unsupported_media_type(accepted: &str) -> Status {
    let message = "the body of the request was in an unknown format - accepted media types include";
    Status::new(Reason::UnsupportedMediaType, format!("{message}: {accepted}"))
}
