//! What the embedded backend serves: one table, from which discovery, routing and validation are made.

use k8s_openapi::api::{certificates, coordination, core};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Reads an object as its type and writes it again: what is missing afterwards are fields nobody knows.
type Roundtrip = fn(&Value) -> Result<Value, serde_json::Error>;

/// What may be done with a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Objects are stored.
    Stored,
    /// Lists are always empty: the backend runs nothing, but people ask for pods before anything else.
    Empty,
    /// A question that is answered and forgotten.
    Review,
}

/// A resource of the embedded backend.
#[derive(Debug)]
pub(super) struct Resource {
    pub(super) group: &'static str,
    pub(super) plural: &'static str,
    pub(super) singular: &'static str,
    pub(super) kind: &'static str,
    pub(super) namespaced: bool,
    pub(super) short_names: &'static [&'static str],
    pub(super) subresources: &'static [&'static str],
    /// The field selectors beside name and namespace.
    pub(super) fields: &'static [&'static str],
    /// What `kubectl explain` says.
    pub(super) description: &'static str,
    pub(super) does: Kind,
    pub(super) roundtrip: Roundtrip,
}

impl Resource {
    const fn new(
        group: &'static str,
        plural: &'static str,
        singular: &'static str,
        kind: &'static str,
    ) -> Self {
        Self {
            group,
            plural,
            singular,
            kind,
            namespaced: true,
            short_names: &[],
            subresources: &[],
            fields: &[],
            description: "",
            does: Kind::Stored,
            roundtrip: |value| Ok(value.clone()),
        }
    }

    const fn cluster(self) -> Self {
        Self {
            namespaced: false,
            ..self
        }
    }

    const fn review(
        group: &'static str,
        plural: &'static str,
        singular: &'static str,
        kind: &'static str,
    ) -> Self {
        Self {
            does: Kind::Review,
            namespaced: false,
            ..Self::new(group, plural, singular, kind)
        }
    }

    const fn empty(self) -> Self {
        Self {
            does: Kind::Empty,
            description: "Always empty: this backend runs nothing.",
            ..self
        }
    }

    /// `plural.group`, as messages have it.
    pub(super) fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_owned()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// The `apiVersion` of its objects.
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() {
            "v1".to_owned()
        } else {
            format!("{}/v1", self.group)
        }
    }

    pub(super) fn verbs(&self) -> &'static [&'static str] {
        match self.does {
            Kind::Stored => &[
                "create",
                "delete",
                "deletecollection",
                "get",
                "list",
                "patch",
                "update",
                "watch",
            ],
            Kind::Empty => &["get", "list", "watch"],
            Kind::Review => &["create"],
        }
    }
}

/// Every API group that is served; each in version v1 alone.
pub(super) const GROUPS: &[&str] = &[
    "",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "certificates.k8s.io",
    "coordination.k8s.io",
];

/// The finalizer-like subresource names that matter here.
pub(super) const NAMESPACES: &str = "namespaces";

/// Every resource that is served.
pub(super) static RESOURCES: &[Resource] = &[
    Resource {
        short_names: &["cm"],
        description: "ConfigMap holds configuration data for pods to consume.",
        roundtrip: roundtrip::<core::v1::ConfigMap>,
        ..Resource::new("", "configmaps", "configmap", "ConfigMap")
    },
    Resource {
        short_names: &["ev"],
        fields: &[
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.uid",
            "reason",
            "type",
        ],
        description: "Event is a report of an event somewhere in the cluster.",
        roundtrip: roundtrip::<core::v1::Event>,
        ..Resource::new("", "events", "event", "Event")
    },
    Resource {
        short_names: &["ns"],
        subresources: &["finalize", "status"],
        fields: &["status.phase"],
        description: "Namespace provides a scope for Names.",
        roundtrip: roundtrip::<core::v1::Namespace>,
        ..Resource::new("", NAMESPACES, "namespace", "Namespace").cluster()
    },
    Resource {
        short_names: &["no"],
        ..Resource::new("", "nodes", "node", "Node").cluster().empty()
    },
    Resource {
        short_names: &["po"],
        ..Resource::new("", "pods", "pod", "Pod").empty()
    },
    Resource {
        fields: &["type"],
        description: "Secret holds secret data of a certain type.",
        roundtrip: roundtrip::<core::v1::Secret>,
        ..Resource::new("", "secrets", "secret", "Secret")
    },
    Resource {
        short_names: &["sa"],
        description: "ServiceAccount binds together a name and the objects that it may use.",
        roundtrip: roundtrip::<core::v1::ServiceAccount>,
        ..Resource::new("", "serviceaccounts", "serviceaccount", "ServiceAccount")
    },
    Resource {
        short_names: &["svc"],
        ..Resource::new("", "services", "service", "Service").empty()
    },
    Resource::review(
        "authentication.k8s.io",
        "selfsubjectreviews",
        "selfsubjectreview",
        "SelfSubjectReview",
    ),
    Resource::review(
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        "selfsubjectaccessreview",
        "SelfSubjectAccessReview",
    ),
    Resource::review(
        "authorization.k8s.io",
        "selfsubjectrulesreviews",
        "selfsubjectrulesreview",
        "SelfSubjectRulesReview",
    ),
    Resource::review(
        "authorization.k8s.io",
        "subjectaccessreviews",
        "subjectaccessreview",
        "SubjectAccessReview",
    ),
    Resource {
        short_names: &["csr"],
        subresources: &["approval", "status"],
        fields: &["spec.signerName"],
        description: "CertificateSigningRequest asks a signer for a certificate.",
        roundtrip: roundtrip::<certificates::v1::CertificateSigningRequest>,
        ..Resource::new(
            "certificates.k8s.io",
            "certificatesigningrequests",
            "certificatesigningrequest",
            "CertificateSigningRequest",
        )
        .cluster()
    },
    Resource {
        description: "Lease defines a lease concept.",
        roundtrip: roundtrip::<coordination::v1::Lease>,
        ..Resource::new("coordination.k8s.io", "leases", "lease", "Lease")
    },
];

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
            for (key, value) in given {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                match known.get(key) {
                    Some(known) => unknown_fields(value, known, &path, unknown),
                    None if value.is_null() => {}
                    None => unknown.push(path),
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
