//! The request that webhooks review.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// It creates an object.
    Create,
    /// It changes an object.
    Update,
    /// It deletes an object.
    Delete,
    /// It opens a connection, to a pod for example.
    Connect,
}

/// A kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize)]
pub struct GroupVersionKind {
    /// The API group; empty for the core group.
    pub group: String,
    /// The API version.
    pub version: String,
    /// The kind.
    pub kind: String,
}

/// A resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize)]
pub struct GroupVersionResource {
    /// The API group; empty for the core group.
    pub group: String,
    /// The API version.
    pub version: String,
    /// The resource, in the plural.
    pub resource: String,
}

impl GroupVersionKind {
    /// The group and version as objects write them.
    pub fn api_version(&self) -> String {
        group_version(&self.group, &self.version)
    }
}

impl GroupVersionResource {
    /// The group and version as objects write them.
    pub fn api_version(&self) -> String {
        group_version(&self.group, &self.version)
    }
}

// apimachinery: pkg/runtime/schema/group_version.go, GroupVersion.String
fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

// apimachinery: pkg/runtime/schema/group_version.go, GroupVersionKind.String
impl fmt::Display for GroupVersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Kind={}", self.group, self.version, self.kind)
    }
}

// apimachinery: pkg/runtime/schema/group_version.go, GroupVersionResource.String
impl fmt::Display for GroupVersionResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Resource={}", self.group, self.version, self.resource)
    }
}

/// A resource by which the API server serves objects, and their kind there: as requested, or in another version or group.
// apiserver: pkg/admission/plugin/webhook/generic/interfaces.go, WebhookInvocation
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ServedResource {
    /// The resource, with its group and version.
    pub resource: GroupVersionResource,
    /// The kind of the objects, or of the subresource.
    pub kind: GroupVersionKind,
}

/// The user who makes a request.
// api: authentication/v1, UserInfo
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct UserInfo {
    /// The name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub username: String,
    /// The unique ID.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Further attributes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A request, without the objects.
// apiserver: pkg/admission/attributes.go
#[derive(Debug, Clone, PartialEq)]
pub struct Attributes {
    /// What it does.
    pub operation: Operation,
    /// The kind of its object.
    pub kind: GroupVersionKind,
    /// Its resource.
    pub resource: GroupVersionResource,
    /// Its subresource; empty if there is none.
    pub subresource: String,
    /// The name of the object; empty if the server generates it.
    pub name: String,
    /// The namespace; empty for a cluster-scoped resource. For a Namespace object its own name.
    pub namespace: String,
    /// The user.
    pub user: UserInfo,
    /// Whether nothing is to be stored.
    pub dry_run: bool,
    /// `CreateOptions`, `UpdateOptions` or `DeleteOptions` with kind and version; `None` for `CONNECT`.
    pub options: Option<Value>,
}

impl Attributes {
    /// The resource of the request, and its kind.
    pub fn requested(&self) -> ServedResource {
        ServedResource { resource: self.resource.clone(), kind: self.kind.clone() }
    }
}

/// The objects of a request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Objects {
    /// The object after the request; `None` for `DELETE`.
    pub object: Option<Value>,
    /// The stored object; `None` for `CREATE` and `CONNECT`.
    pub old_object: Option<Value>,
}

/// The objects of a request while a phase works on them, also on other threads.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedObjects {
    pub(crate) object: Option<Arc<Value>>,
    pub(crate) old_object: Option<Arc<Value>>,
    /// Whether work on them takes long enough for others to notice.
    pub(crate) are_large: bool,
}

/// The size beyond which work on a value is not done where other requests wait, in bytes of text.
pub const LARGE: usize = 64 << 10;
/// The same in levels, each of which takes some of the stack.
pub const DEEP: usize = 128;

impl SharedObjects {
    /// Takes the objects out of `objects`, until [`Self::give_back`].
    pub(crate) fn take(objects: &mut Objects) -> Self {
        let [object, old_object] =
            [&mut objects.object, &mut objects.old_object].map(|object| object.take().map(Arc::new));
        Self::of(object, old_object)
    }

    pub(crate) fn of(object: Option<Arc<Value>>, old_object: Option<Arc<Value>>) -> Self {
        Self { object, old_object, are_large: false }.measured()
    }

    pub(crate) fn give_back(self, objects: &mut Objects) {
        objects.object = self.object.map(Arc::unwrap_or_clone);
        objects.old_object = self.old_object.map(Arc::unwrap_or_clone);
    }

    pub(crate) fn set_object(&mut self, object: Value) {
        *self = Self::of(Some(Arc::new(object)), self.old_object.take());
    }

    fn measured(self) -> Self {
        let are_large = [&self.object, &self.old_object].into_iter().flatten().any(|object| is_large(object));
        Self { are_large, ..self }
    }
}

/// Whether a value is larger than [`LARGE`] or deeper than [`DEEP`]. Looks at no more of it than that.
pub(crate) fn is_large(value: &Value) -> bool {
    let (mut size, mut pending) = (0_usize, vec![(value, 0)]);
    while let Some((value, depth)) = pending.pop() {
        size += match value {
            Value::String(text) => text.len() + 3,
            Value::Object(fields) => {
                pending.extend(fields.values().map(|value| (value, depth + 1)));
                fields.keys().map(|key| key.len() + 3).sum::<usize>() + 2
            }
            Value::Array(items) => {
                pending.extend(items.iter().map(|value| (value, depth + 1)));
                items.len() + 2
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => 4,
        };
        if size > LARGE || depth > DEEP {
            return true;
        }
    }
    false
}

impl Operation {
    /// The name in reviews and metrics labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}
