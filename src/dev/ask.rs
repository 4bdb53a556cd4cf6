//! A request for a resource of the embedded backend, understood; and the refusals that name one.

use std::borrow::Cow;
use std::sync::Arc;

use super::resources::Resource;
use super::store::{Key, Store};
use crate::go::url::query;
use crate::http::status::{Details, Reason, Status};
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
    /// Whether the answer is to be a table.
    pub(super) table: bool,
    /// The media type of the body, without parameters.
    pub(super) media_type: &'a str,
    pub(super) body: &'a [u8],
}

impl<'a> Ask<'a> {
    /// Where the object of that name is.
    pub(super) fn key(&self, name: &str) -> Key {
        Key { plural: self.resource.plural, namespace: self.namespace.to_owned(), name: name.to_owned() }
    }

    /// The first value of a parameter; empty if it is not there.
    pub(super) fn parameter(&self, key: &str) -> Cow<'a, str> {
        query::first(self.query, key).unwrap_or_default()
    }
}

impl Resource {
    pub(super) fn not_found(&self, name: &str) -> Status {
        Status::object_not_found(self.group, self.plural, name)
    }

    pub(super) fn unreadable(&self, error: impl std::fmt::Display) -> Status {
        let kind = self.kind;
        Status::bad_request(format!("{kind} in version \"v1\" cannot be handled as a {kind}: {error}"))
    }

    /// A refusal about one object, which the message names between `before` and `after`.
    pub(super) fn refusal(&self, reason: Reason, name: &str, before: &str, after: &str) -> Status {
        let (name, group, kind) = (name.to_owned(), self.group.to_owned(), self.plural.to_owned());
        let dot = if group.is_empty() { "" } else { "." };
        let message = format!("{before}{kind}{dot}{group} {name:?}{after}");
        let details = Some(Details { name, group, kind, ..Details::default() });
        Status { details, ..Status::new(reason, message) }
    }
}
