//! The access reviews that expressions need, and the authorizer's decisions.

/// An access review: may the user, or a service account, do this?
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AccessReview {
    /// The service account that the review is about; without one, the user of the request.
    pub service_account: Option<ServiceAccount>,
    /// The verb of the API or of HTTP.
    pub verb: String,
    /// What the verb applies to.
    pub target: AccessTarget,
}

/// A service account.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServiceAccount {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What an access review is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AccessTarget {
    /// A path that is not a resource's.
    Path(String),
    /// A resource, in any version.
    Resource(ResourceTarget),
}

/// The attributes of a resource. Empty: any, or none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ResourceTarget {
    /// The API group.
    pub group: String,
    /// The plural name.
    pub resource: String,
    /// The subresource.
    pub subresource: String,
    /// The namespace.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// A field selector, not parsed.
    pub field_selector: String,
    /// A label selector, not parsed.
    pub label_selector: String,
}

/// The decision of an access review.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessDecision {
    /// Whether the access is allowed.
    pub allowed: bool,
    /// The authorizer's reason.
    pub reason: String,
    /// Why the review could not be decided.
    pub error: Option<String>,
}

impl ResourceTarget {
    /// The length of all texts.
    pub(super) fn size(&self) -> usize {
        let Self { group, resource, subresource, namespace, name, field_selector, label_selector } = self;
        let texts = [group, resource, subresource, namespace, name, field_selector, label_selector];
        texts.into_iter().map(String::len).fold(0, usize::saturating_add)
    }
}
