//! The resources of the embedded backend: one table, from which discovery, routing and validation are made.

use k8s_openapi::api::{certificates, core, rbac};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Reads an object as its type and writes it again, without the fields that the type does not have.
type Roundtrip = fn(Value) -> Result<Value, serde_json::Error>;

/// The operations on a resource.
#[derive(Debug, Clone, Copy)]
pub(super) enum Does {
    /// Objects of this type are stored, and shown in these columns.
    Store(Roundtrip, &'static [&'static str]),
    /// Lists are always empty: the backend runs nothing, but kubectl users ask for pods first.
    Nothing,
    /// A question is answered and forgotten.
    Review,
}

/// A resource of the embedded backend.
#[derive(Debug)]
pub(super) struct Resource {
    pub(super) group: &'static str,
    pub(super) plural: &'static str,
    pub(super) kind: &'static str,
    pub(super) short_name: &'static str,
    pub(super) namespaced: bool,
    pub(super) does: Does,
}

impl Resource {
    /// The `apiVersion` of its objects.
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() { "v1".to_owned() } else { format!("{}/v1", self.group) }
    }

    pub(super) fn verbs(&self) -> &'static [&'static str] {
        match self.does {
            Does::Store(..) => &["create", "delete", "get", "list", "patch", "update", "watch"],
            Does::Nothing => &["get", "list", "watch"],
            Does::Review => &["create"],
        }
    }

    pub(super) fn columns(&self) -> &'static [&'static str] {
        if let Does::Store(_, columns) = self.does { columns } else { &["Name", "Age"] }
    }
}

pub(super) const NAMESPACES: &str = "namespaces";
pub(super) const SIGNING_REQUESTS: &str = "certificatesigningrequests";
const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";
const CERTIFICATES: &str = "certificates.k8s.io";
/// Kept and shown, and nothing more: who may do what is fixed.
const RBAC: &str = "rbac.authorization.k8s.io";

/// Every API group that is served; each in version v1 alone.
pub(super) const GROUPS: &[&str] = &["", AUTHENTICATION, AUTHORIZATION, CERTIFICATES, RBAC];

const CLUSTER: bool = false;
const NAMESPACED: bool = true;

#[rustfmt::skip]
/// Every resource that is served.
pub(super) static RESOURCES: &[Resource] = &[
    row("", "configmaps", "ConfigMap", "cm", NAMESPACED,
        Does::Store(roundtrip::<core::v1::ConfigMap>, &["Name", "Data", "Age"])),
    row("", "events", "Event", "ev", NAMESPACED, Does::Nothing),
    row("", NAMESPACES, "Namespace", "ns", CLUSTER,
        Does::Store(roundtrip::<core::v1::Namespace>, &["Name", "Status", "Age"])),
    row("", "nodes", "Node", "no", CLUSTER, Does::Nothing),
    row("", "pods", "Pod", "po", NAMESPACED, Does::Nothing),
    row("", "secrets", "Secret", "", NAMESPACED,
        Does::Store(roundtrip::<core::v1::Secret>, &["Name", "Type", "Data", "Age"])),
    row("", "serviceaccounts", "ServiceAccount", "sa", NAMESPACED,
        Does::Store(roundtrip::<core::v1::ServiceAccount>, &["Name", "Secrets", "Age"])),
    row("", "services", "Service", "svc", NAMESPACED, Does::Nothing),
    row(AUTHENTICATION, "selfsubjectreviews", "SelfSubjectReview", "", CLUSTER, Does::Review),
    row(AUTHORIZATION, "selfsubjectaccessreviews", "SelfSubjectAccessReview", "", CLUSTER, Does::Review),
    row(CERTIFICATES, SIGNING_REQUESTS, "CertificateSigningRequest", "csr", CLUSTER,
        Does::Store(roundtrip::<certificates::v1::CertificateSigningRequest>,
            &["Name", "Age", "SignerName", "Requestor", "RequestedDuration", "Condition"])),
    row(RBAC, "rolebindings", "RoleBinding", "", NAMESPACED,
        Does::Store(roundtrip::<rbac::v1::RoleBinding>, &["Name", "Role", "Age"])),
    row(RBAC, "roles", "Role", "", NAMESPACED, Does::Store(roundtrip::<rbac::v1::Role>, &["Name", "Age"])),
];

const fn row(
    group: &'static str,
    plural: &'static str,
    kind: &'static str,
    short_name: &'static str,
    namespaced: bool,
    does: Does,
) -> Resource {
    Resource { group, plural, kind, short_name, namespaced, does }
}

/// The resource called `plural` in `group`.
pub(super) fn find(group: &str, plural: &str) -> Option<&'static Resource> {
    RESOURCES.iter().find(|resource| resource.group == group && resource.plural == plural)
}

fn roundtrip<T: Serialize + DeserializeOwned>(value: Value) -> Result<Value, serde_json::Error> {
    serde_json::to_value(serde_json::from_value::<T>(value)?)
}
