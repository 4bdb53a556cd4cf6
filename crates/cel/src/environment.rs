//! What an expression may refer to: the variables of its purpose, and the object types of those.
//!
//! The functions are the same for every purpose, but for those of JSON patches, and for those that a release of Kubernetes
//! adds: an expression of a new object must be one for the release before it, too.

use std::sync::LazyLock;

use super::cel_go::{CelGo, DECLARED_0_26, DECLARED_0_29_NEW, DECLARED_0_29_STORED, Declared, Origin, Rules};
use super::libraries;
use super::registry::Registry;
use super::signatures::read_type;
use super::types::Type;
use super::value::JSON_PATCH;

/// The functions of one release.
struct Functions {
    /// Those of most environments.
    base: Registry,
    /// Those with the functions of JSON patches.
    with_patches: Registry,
}

impl Functions {
    fn new(declared: &'static Declared) -> Self {
        let base = || libraries::base(declared.lists_come_last);
        Self {
            base: Registry::new(base(), declared),
            with_patches: Registry::new(base().chain([libraries::PATCHES]), declared),
        }
    }
}

static FUNCTIONS_0_26: LazyLock<Functions> = LazyLock::new(|| Functions::new(&DECLARED_0_26));
static FUNCTIONS_0_29_NEW: LazyLock<Functions> = LazyLock::new(|| Functions::new(&DECLARED_0_29_NEW));
static FUNCTIONS_0_29_STORED: LazyLock<Functions> = LazyLock::new(|| Functions::new(&DECLARED_0_29_STORED));

/// The variables that an expression may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Environment {
    /// Names, which may contain dots, and types in the notation of `signatures`.
    variables: &'static [(&'static str, &'static str)],
    /// Whether the functions of JSON patches, and the objects of patches, are declared.
    patches: bool,
    /// Whether `variables` is declared.
    composed: bool,
    /// Whether the reference's error for a wrong result type names the type found.
    // apiserver: pkg/authentication/cel/compile.go omits it; pkg/authorization/cel and pkg/admission/plugin/cel do not
    pub(super) names_wrong_result: bool,
    origin: Origin,
    cel_go: CelGo,
}

/// What expressions of admission may use; each environment has the first ones.
const ADMISSION_VARIABLES: &[(&str, &str)] = &[
    ("object", "dyn"),
    ("oldObject", "dyn"),
    ("namespaceObject", "kubernetes.Namespace"),
    ("request", "kubernetes.AdmissionRequest"),
    ("authorizer", "kubernetes.authorization.Authorizer"),
    ("authorizer.requestResource", "kubernetes.authorization.ResourceCheck"),
    ("params", "dyn"),
];

/// The types that an expression may have as its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultType {
    /// Any type.
    Any,
    /// A boolean.
    Bool,
    /// A string.
    String,
    /// A string or `null`.
    StringOrNull,
    /// A string, perhaps of a part of an object that has no type: the value may be another one.
    DynamicString,
    /// A list of strings, with the same exception.
    DynamicStrings,
    /// An `Object`: its [outcome](crate::Outcome::Patch) is a JSON object.
    ApplyConfiguration,
    /// A list of `JSONPatch`: its [outcome](crate::Outcome::Patch) is a JSON list of operations (RFC 6902).
    JsonPatch,
}

/// The type of the object that a patch changes; those of its parts follow it with their path.
const OBJECT: &str = "Object";

/// The type of `variables`.
pub(super) const VARIABLES: &str = "kubernetes.variables";

impl Environment {
    /// `claims`: the claims of a token.
    // apiserver: pkg/authentication/cel/compile.go
    pub const CLAIMS: Self =
        Self { names_wrong_result: false, ..Self::stored_with(&[("claims", "map(string, any)")]) };
    /// `user`: the user that a token was mapped to.
    pub const USER: Self =
        Self { names_wrong_result: false, ..Self::stored_with(&[("user", "kubernetes.UserInfo")]) };
    /// `request`: the specification of a `SubjectAccessReview`, for the `matchConditions` of an authorization webhook.
    // apiserver: pkg/authorization/cel/compile.go
    pub const SUBJECT_ACCESS_REVIEW: Self =
        Self::stored_with(&[("request", "kubernetes.SubjectAccessReviewSpec")]);
    /// `request`, `pod`, `serviceAccount`, `namespaceObject`, `node`: the rules and names of a signer for the certificates of
    /// pods. The word `namespace` is reserved.
    pub const POD_CERTIFICATE: Self = Self::stored_with(&[
        ("request", "kubernetes.PodCertificateRequest"),
        ("pod", "dyn"),
        ("serviceAccount", "dyn"),
        ("namespaceObject", "dyn"),
        ("node", "dyn"),
    ]);
    /// `object`, `oldObject`, `request`, `namespaceObject`, `authorizer`: the `matchConditions` of an admission webhook, as
    /// kube-apiserver reads those of a new object.
    // apiserver: pkg/admission/plugin/cel/compile.go
    pub const ADMISSION: Self = Self::of_admission(6);
    /// As [`Self::ADMISSION`], without `authorizer`: the `messageExpression` of a validation.
    pub const MESSAGE: Self = Self::of_admission(4);
    /// As [`Self::ADMISSION`], with `params`: the validations of a `ValidatingAdmissionPolicy` that has parameters.
    pub const POLICY: Self = Self::of_admission(ADMISSION_VARIABLES.len());
    /// As [`Self::ADMISSION`], with what patches need: the types `Object` and `JSONPatch`, and `jsonpatch.escapeKey`. For the mutations
    /// of a `MutatingAdmissionPolicy`; its variables and match conditions have [`Self::ADMISSION`].
    pub const MUTATION_WITHOUT_PARAMS: Self = Self { patches: true, ..Self::ADMISSION };
    /// The same with `params`.
    pub const MUTATION: Self = Self { patches: true, ..Self::POLICY };

    /// The first so many of the variables of admission, in expressions of a new object.
    const fn of_admission(count: usize) -> Self {
        let (variables, _) = ADMISSION_VARIABLES.split_at(count);
        Self { origin: Origin::New, ..Self::stored_with(variables) }
    }

    /// The environment of expressions in stored objects and in files.
    const fn stored_with(variables: &'static [(&'static str, &'static str)]) -> Self {
        Self {
            variables,
            patches: false,
            composed: false,
            names_wrong_result: true,
            origin: Origin::Stored,
            cel_go: CelGo::REFERENCE,
        }
    }

    /// The same environment with `variables`: those of a policy, with [`Variables::compile`](crate::Variables::compile).
    #[must_use]
    pub const fn composed(self) -> Self {
        Self { composed: true, ..self }
    }

    /// The same environment in this release of cel-go.
    #[must_use]
    pub const fn of(self, cel_go: CelGo) -> Self {
        Self { cel_go, ..self }
    }

    /// The environment for expressions of stored objects, which may use the functions that the release adds.
    #[must_use]
    pub const fn stored(self) -> Self {
        Self { origin: Origin::Stored, ..self }
    }

    /// The rules of the release.
    pub(super) fn rules(self) -> &'static Rules {
        self.cel_go.rules()
    }

    /// The type of a variable.
    pub(super) fn variable(self, name: &str) -> Option<Type> {
        if self.composed && name == "variables" {
            return Some(Type::Named(VARIABLES, Vec::new()));
        }
        self.variables.iter().find(|(known, _)| *known == name).and_then(|(_, text)| read_type(text))
    }

    /// Whether the variables include this name.
    pub(super) fn declares(self, name: &str) -> bool {
        self.composed && name == "variables" || self.variables.iter().any(|(known, _)| *known == name)
    }

    /// The type of an object that expressions may make.
    // apiserver: pkg/cel/mutation/typeresolver.go
    pub(super) fn message_type(self, name: &str) -> Option<Type> {
        if name == JSON_PATCH && self.patches {
            return Some(Type::Named(JSON_PATCH, Vec::new()));
        }
        let fields = name.strip_prefix(OBJECT).filter(|_| self.patches)?;
        (fields.is_empty() || fields.starts_with('.')).then(|| Type::Object(name.into()))
    }

    /// The names of the variables.
    pub(super) fn names(self) -> String {
        let composed = self.composed.then_some("variables");
        let names: Vec<&str> = self.variables.iter().map(|(name, _)| *name).chain(composed).collect();
        names.join(", ")
    }

    /// The functions.
    pub(super) fn functions(self) -> &'static Registry {
        let functions = match (self.cel_go, self.origin) {
            (CelGo::V0_26, _) => &*FUNCTIONS_0_26,
            (CelGo::V0_29, Origin::New) => &*FUNCTIONS_0_29_NEW,
            (CelGo::V0_29, Origin::Stored) => &*FUNCTIONS_0_29_STORED,
        };
        if self.patches { &functions.with_patches } else { &functions.base }
    }
}

impl ResultType {
    /// The only type that an error of another one names, beside those that are unknown.
    pub(super) fn named(self) -> Option<Type> {
        match self {
            Self::DynamicString => Some(Type::STRING),
            Self::DynamicStrings => Some(Type::list(Type::STRING)),
            _ => None,
        }
    }

    /// The types that the result may have; none if it may have any.
    pub(super) fn permitted(self) -> Vec<Type> {
        match self {
            Self::Any => Vec::new(),
            Self::Bool => vec![Type::BOOL],
            Self::String => vec![Type::STRING],
            Self::StringOrNull => vec![Type::STRING, Type::NULL],
            Self::DynamicString => vec![Type::STRING, Type::DYN],
            Self::DynamicStrings => vec![Type::list(Type::STRING), Type::list(Type::DYN), Type::DYN],
            Self::ApplyConfiguration => vec![Type::Object(OBJECT.into())],
            Self::JsonPatch => vec![Type::list(Type::Named(JSON_PATCH, Vec::new()))],
        }
    }
}

/// The object types, with their fields.
const OBJECTS: &[(&str, &[(&str, &str)])] = &[
    (
        "kubernetes.UserInfo",
        &[
            ("username", "string"),
            ("uid", "string"),
            ("groups", "list(string)"),
            ("extra", "map(string, list(string))"),
        ],
    ),
    // apiserver: pkg/authorization/cel/compile.go — buildRequestType
    (
        "kubernetes.SubjectAccessReviewSpec",
        &[
            ("resourceAttributes", "kubernetes.ResourceAttributes"),
            ("nonResourceAttributes", "kubernetes.NonResourceAttributes"),
            ("user", "string"),
            ("groups", "list(string)"),
            ("extra", "map(string, list(string))"),
            ("uid", "string"),
        ],
    ),
    (
        "kubernetes.ResourceAttributes",
        &[
            ("namespace", "string"),
            ("verb", "string"),
            ("group", "string"),
            ("version", "string"),
            ("resource", "string"),
            ("subresource", "string"),
            ("name", "string"),
            ("fieldSelector", "kubernetes.FieldSelectorAttributes"),
            ("labelSelector", "kubernetes.LabelSelectorAttributes"),
        ],
    ),
    (
        "kubernetes.FieldSelectorAttributes",
        &[("rawSelector", "string"), ("requirements", "list(kubernetes.SelectorRequirement)")],
    ),
    (
        "kubernetes.LabelSelectorAttributes",
        &[("rawSelector", "string"), ("requirements", "list(kubernetes.SelectorRequirement)")],
    ),
    (
        "kubernetes.SelectorRequirement",
        &[("key", "string"), ("operator", "string"), ("values", "list(string)")],
    ),
    ("kubernetes.NonResourceAttributes", &[("path", "string"), ("verb", "string")]),
    // api: certificates/v1/types.go
    (
        "kubernetes.PodCertificateRequest",
        &[
            ("metadata", "kubernetes.PodCertificateRequestMetadata"),
            ("spec", "kubernetes.PodCertificateRequestSpec"),
        ],
    ),
    (
        "kubernetes.PodCertificateRequestMetadata",
        &[("name", "string"), ("namespace", "string"), ("uid", "string")],
    ),
    (
        "kubernetes.PodCertificateRequestSpec",
        &[
            ("signerName", "string"),
            ("podName", "string"),
            ("podUID", "string"),
            ("serviceAccountName", "string"),
            ("serviceAccountUID", "string"),
            ("nodeName", "string"),
            ("nodeUID", "string"),
            ("maxExpirationSeconds", "int"),
            ("unverifiedUserAnnotations", "map(string, string)"),
        ],
    ),
    // apiserver: pkg/admission/plugin/cel/compile.go — BuildRequestType
    (
        "kubernetes.AdmissionRequest",
        &[
            ("kind", "kubernetes.GroupVersionKind"),
            ("resource", "kubernetes.GroupVersionResource"),
            ("subResource", "string"),
            ("requestKind", "kubernetes.GroupVersionKind"),
            ("requestResource", "kubernetes.GroupVersionResource"),
            ("requestSubResource", "string"),
            ("name", "string"),
            ("namespace", "string"),
            ("operation", "string"),
            ("userInfo", "kubernetes.UserInfo"),
            ("dryRun", "bool"),
            ("options", "dyn"),
        ],
    ),
    // apiserver: pkg/cel/mutation/jsonpatch.go
    (JSON_PATCH, &[("op", "string"), ("path", "string"), ("from", "string"), ("value", "dyn")]),
    ("kubernetes.GroupVersionKind", &[("group", "string"), ("version", "string"), ("kind", "string")]),
    (
        "kubernetes.GroupVersionResource",
        &[("group", "string"), ("version", "string"), ("resource", "string")],
    ),
    // apiserver: pkg/admission/plugin/cel/compile.go — BuildNamespaceType
    (
        "kubernetes.Namespace",
        &[
            ("metadata", "kubernetes.NamespaceMetadata"),
            ("spec", "kubernetes.NamespaceSpec"),
            ("status", "kubernetes.NamespaceStatus"),
        ],
    ),
    (
        "kubernetes.NamespaceMetadata",
        &[
            ("name", "string"),
            ("generateName", "string"),
            ("namespace", "string"),
            ("labels", "map(string, string)"),
            ("annotations", "map(string, string)"),
            ("UID", "string"),
            ("creationTimestamp", "timestamp"),
            ("deletionGracePeriodSeconds", "int"),
            ("deletionTimestamp", "timestamp"),
            ("generation", "int"),
            ("resourceVersion", "string"),
            ("finalizers", "list(string)"),
        ],
    ),
    ("kubernetes.NamespaceSpec", &[("finalizers", "list(string)")]),
    (
        "kubernetes.NamespaceStatus",
        &[("conditions", "list(kubernetes.NamespaceCondition)"), ("phase", "string")],
    ),
    (
        "kubernetes.NamespaceCondition",
        &[
            ("status", "string"),
            ("type", "string"),
            ("lastTransitionTime", "timestamp"),
            ("message", "string"),
            ("reason", "string"),
        ],
    ),
];

/// The type of an object type's field: `Err` if `object` is no object type, `Ok(None)` if it lacks the field.
pub(super) fn field_type(object: &str, field: &str) -> Result<Option<Type>, NotAnObject> {
    let (_, fields) = OBJECTS.iter().find(|(name, _)| *name == object).ok_or(NotAnObject)?;
    Ok(fields.iter().find(|(name, _)| *name == field).and_then(|(_, text)| read_type(text)))
}

/// The fields of an object type.
pub(super) fn field_names(object: &str) -> String {
    let fields =
        OBJECTS.iter().find(|(name, _)| *name == object).map(|(_, fields)| *fields).unwrap_or_default();
    fields.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// The type has no fields.
#[derive(Debug)]
pub(super) struct NotAnObject;
