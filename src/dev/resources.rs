//! What the embedded backend serves: one table, from which discovery, routing and validation are made.

use k8s_openapi::api::{certificates, coordination, core};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Reads an object as its type and writes it again: what is missing afterwards are fields nobody knows.
type Roundtrip = fn(&Value) -> Result<Value, serde_json::Error>;

/// What may be done with a resource.
#[derive(Debug, Clone, Copy)]
pub(super) enum Does {
    /// Objects of this type are stored.
    Store(Roundtrip),
    /// Lists are always empty: the backend runs nothing, but people ask for pods before anything else.
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
    pub(super) namespaced: bool,
    pub(super) short_name: &'static str,
    pub(super) subresources: &'static [&'static str],
    /// The field selectors beside name and namespace.
    pub(super) fields: &'static [&'static str],
    pub(super) does: Does,
}

impl Resource {
    /// The `apiVersion` of its objects.
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() { "v1".to_owned() } else { format!("{}/v1", self.group) }
    }

    pub(super) fn verbs(&self) -> &'static [&'static str] {
        match self.does {
            Does::Store(_) => {
                &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
            }
            Does::Nothing => &["get", "list", "watch"],
            Does::Review => &["create"],
        }
    }
}

pub(super) const NAMESPACES: &str = "namespaces";
pub(super) const SIGNING_REQUESTS: &str = "certificatesigningrequests";
const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";
const CERTIFICATES: &str = "certificates.k8s.io";
const COORDINATION: &str = "coordination.k8s.io";

/// Every API group that is served; each in version v1 alone.
pub(super) const GROUPS: &[&str] = &["", AUTHENTICATION, AUTHORIZATION, CERTIFICATES, COORDINATION];

const CLUSTER: bool = false;
const NAMESPACED: bool = true;
const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.name",
    "involvedObject.namespace",
    "involvedObject.uid",
    "reason",
    "type",
];

#[rustfmt::skip]
/// Every resource that is served.
pub(super) static RESOURCES: &[Resource] = &[
    row("", "configmaps", "ConfigMap", "cm", NAMESPACED, &[], &[], Does::Store(roundtrip::<core::v1::ConfigMap>)),
    row("", "events", "Event", "ev", NAMESPACED, &[], EVENT_FIELDS, Does::Store(roundtrip::<core::v1::Event>)),
    row("", NAMESPACES, "Namespace", "ns", CLUSTER, &["finalize", "status"], &["status.phase"],
        Does::Store(roundtrip::<core::v1::Namespace>)),
    row("", "nodes", "Node", "no", CLUSTER, &[], &[], Does::Nothing),
    row("", "pods", "Pod", "po", NAMESPACED, &[], &["status.phase", "spec.nodeName"], Does::Nothing),
    row("", "secrets", "Secret", "", NAMESPACED, &[], &["type"], Does::Store(roundtrip::<core::v1::Secret>)),
    row("", "serviceaccounts", "ServiceAccount", "sa", NAMESPACED, &[], &[],
        Does::Store(roundtrip::<core::v1::ServiceAccount>)),
    row("", "services", "Service", "svc", NAMESPACED, &[], &[], Does::Nothing),
    row(AUTHENTICATION, "selfsubjectreviews", "SelfSubjectReview", "", CLUSTER, &[], &[], Does::Review),
    row(AUTHORIZATION, "selfsubjectaccessreviews", "SelfSubjectAccessReview", "", CLUSTER, &[], &[], Does::Review),
    row(AUTHORIZATION, "selfsubjectrulesreviews", "SelfSubjectRulesReview", "", CLUSTER, &[], &[], Does::Review),
    row(AUTHORIZATION, "subjectaccessreviews", "SubjectAccessReview", "", CLUSTER, &[], &[], Does::Review),
    row(CERTIFICATES, SIGNING_REQUESTS, "CertificateSigningRequest", "csr", CLUSTER, &["approval", "status"],
        &["spec.signerName"], Does::Store(roundtrip::<certificates::v1::CertificateSigningRequest>)),
    row(COORDINATION, "leases", "Lease", "", NAMESPACED, &[], &[], Does::Store(roundtrip::<coordination::v1::Lease>)),
];

#[expect(clippy::too_many_arguments, reason = "the columns of the table above")]
const fn row(
    group: &'static str,
    plural: &'static str,
    kind: &'static str,
    short_name: &'static str,
    namespaced: bool,
    subresources: &'static [&'static str],
    fields: &'static [&'static str],
    does: Does,
) -> Resource {
    Resource { group, plural, kind, namespaced, short_name, subresources, fields, does }
}

/// The resources of one group, in the order of the table.
pub(super) fn of_group(group: &str) -> impl Iterator<Item = &'static Resource> {
    RESOURCES.iter().filter(move |resource| resource.group == group)
}

/// The resource called `plural` in `group`.
pub(super) fn find(group: &str, plural: &str) -> Option<&'static Resource> {
    of_group(group).find(|resource| resource.plural == plural)
}

fn roundtrip<T: Serialize + DeserializeOwned>(value: &Value) -> Result<Value, serde_json::Error> {
    serde_json::to_value(serde_json::from_value::<T>(value.clone())?)
}

/// The paths of the fields that are in `given` and not in `known`, as strict decoding reports them.
pub(super) fn unknown_fields(given: &Value, known: &Value, path: &str, unknown: &mut Vec<String>) {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => {
            for (key, value) in given.iter().filter(|(_, value)| !value.is_null()) {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match known.get(key) {
                    Some(known) => unknown_fields(value, known, &path, unknown),
                    None => unknown.push(format!("unknown field {path:?}")),
                }
            }
        }
        (Value::Array(given), Value::Array(known)) => {
            for (index, (given, known)) in given.iter().zip(known).enumerate() {
                unknown_fields(given, known, &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}
