//! The resources of the embedded backend, in one table. Discovery, routing and validation use it.

use std::fmt::Display;

use k8s_openapi::Resource;
use k8s_openapi::api::{authentication, authorization, certificates, core, rbac};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use portcullis_kubernetes::status::{Reason, Status};

/// Deserializes an object as its type and serializes it again, which removes unknown fields.
type Roundtrip = fn(Value) -> Result<Value, serde_json::Error>;

/// A resource; its version is always v1.
#[derive(Debug)]
pub(super) struct ResourceType {
    pub(super) group: &'static str,
    pub(super) api_version: &'static str,
    pub(super) plural: &'static str,
    pub(super) kind: &'static str,
    pub(super) short_name: &'static str,
    pub(super) namespaced: bool,
    pub(super) verbs: &'static [&'static str],
    /// The columns of a `Table`.
    pub(super) columns: &'static [&'static str],
    pub(super) roundtrip: Roundtrip,
}

pub(super) const NAMESPACES: &str = "namespaces";
pub(super) const SECRETS: &str = "secrets";
pub(super) const SIGNING_REQUESTS: &str = "certificatesigningrequests";
pub(super) const SUBJECT_ACCESS_REVIEWS: &str = "subjectaccessreviews";

const CLUSTER: bool = false;
const NAMESPACED: bool = true;
const ALL_VERBS: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];
/// The verbs of a resource without objects: the backend runs no workload, but users list Pods.
pub(super) const READ_VERBS: &[&str] = &["get", "list", "watch"];
/// The verbs of a review: the response to a create has a computed status, and nothing is stored.
pub(super) const REVIEW_VERBS: &[&str] = &["create"];
const CSR_COLUMNS: &[&str] = &["Name", "Age", "SignerName", "Requestor", "RequestedDuration", "Condition"];

/// Every resource, sorted by group. The backend stores and shows RBAC objects, but does not enforce them.
pub(super) static RESOURCES: &[ResourceType] = &[
    resource::<core::v1::ConfigMap>("cm", NAMESPACED, ALL_VERBS, &["Name", "Data", "Age"]),
    resource::<core::v1::Event>("ev", NAMESPACED, READ_VERBS, &["Name", "Age"]),
    resource::<core::v1::Namespace>("ns", CLUSTER, ALL_VERBS, &["Name", "Status", "Age"]),
    resource::<core::v1::Node>("no", CLUSTER, READ_VERBS, &["Name", "Age"]),
    resource::<core::v1::Pod>("po", NAMESPACED, READ_VERBS, &["Name", "Age"]),
    resource::<core::v1::Secret>("", NAMESPACED, ALL_VERBS, &["Name", "Type", "Data", "Age"]),
    resource::<core::v1::ServiceAccount>("sa", NAMESPACED, ALL_VERBS, &["Name", "Secrets", "Age"]),
    resource::<core::v1::Service>("svc", NAMESPACED, READ_VERBS, &["Name", "Age"]),
    resource::<authentication::v1::SelfSubjectReview>("", CLUSTER, REVIEW_VERBS, &["Name", "Age"]),
    resource::<authorization::v1::SelfSubjectAccessReview>("", CLUSTER, REVIEW_VERBS, &["Name", "Age"]),
    resource::<authorization::v1::SubjectAccessReview>("", CLUSTER, REVIEW_VERBS, &["Name", "Age"]),
    resource::<certificates::v1::CertificateSigningRequest>("csr", CLUSTER, ALL_VERBS, CSR_COLUMNS),
    resource::<rbac::v1::RoleBinding>("", NAMESPACED, ALL_VERBS, &["Name", "Role", "Age"]),
    resource::<rbac::v1::Role>("", NAMESPACED, ALL_VERBS, &["Name", "Age"]),
];

const fn resource<T: Resource + Serialize + DeserializeOwned>(
    short_name: &'static str,
    namespaced: bool,
    verbs: &'static [&'static str],
    columns: &'static [&'static str],
) -> ResourceType {
    ResourceType {
        group: T::GROUP,
        api_version: T::API_VERSION,
        plural: T::URL_PATH_SEGMENT,
        kind: T::KIND,
        short_name,
        namespaced,
        verbs,
        columns,
        roundtrip: |object| serde_json::to_value(serde_json::from_value::<T>(object)?),
    }
}

pub(super) fn find(group: &str, plural: &str) -> Option<&'static ResourceType> {
    RESOURCES.iter().find(|resource| resource.group == group && resource.plural == plural)
}

impl ResourceType {
    pub(super) fn not_found(&self, name: &str) -> Status {
        Status::object_not_found(self.group, self.plural, name)
    }

    pub(super) fn unreadable(&self, error: impl Display) -> Status {
        let kind = self.kind;
        Status::bad_request(format!("{kind} in version \"v1\" cannot be handled as a {kind}: {error}"))
    }

    /// A refusal; the message names the object between `before` and `after`.
    pub(super) fn refusal(&self, reason: Reason, name: &str, before: &str, after: &str) -> Status {
        let dot = if self.group.is_empty() { "" } else { "." };
        let message = format!("{before}{}{dot}{} {name:?}{after}", self.plural, self.group);
        Status { details: self.not_found(name).details, ..Status::new(reason, message) }
    }
}
