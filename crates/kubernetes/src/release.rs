//! The releases of Kubernetes, and what changed between them in what the gateway answers itself.
//!
//! This is the only place that says in which release a rule changed: a rule is a method of [`Release`], and the constant that
//! it compares with is a row of the table below. The gateway emulates one release (`--emulated-version`), the newest by
//! default, as kube-apiserver emulates one. It has nothing to do with the release of the API servers behind it, except for
//! constrained impersonation, which both must have.
//!
//! Follows `pkg/features/kube_features.go` of `k8s.io/apiserver`, and the files at the constants.

use std::fmt;

use portcullis_go::quote::Quoted;

/// The component of kube-apiserver among those whose versions may be emulated.
const KUBE: &str = "kube";

/// A minor release of Kubernetes 1 whose rules the gateway knows.
// A kube-apiserver of 1.37 emulates the same. apiserver: pkg/util/compatibility/version.go, kubeEffectiveVersionFloors
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names of the releases")]
pub enum Release {
    V1_34,
    V1_35,
    V1_36,
    #[default]
    V1_37,
}

/// The table: the first release with each rule.
mod since {
    use super::Release;

    /// The verbs of constrained impersonation are asked for before `impersonate`.
    // apiserver: pkg/features/kube_features.go, ConstrainedImpersonation
    pub(super) const CONSTRAINED_IMPERSONATION: Release = Release::V1_36;
    /// The reason of an authorizer without an opinion begins with its name.
    // apiserver: pkg/authorization/union/union.go, Authorize
    pub(super) const NAMED_REASONS: Release = Release::V1_37;
    /// Reviews that are not stored reach no admission webhook.
    // apiserver: pkg/features/kube_features.go, ExcludeAdmissionWebhookVirtualResources
    pub(super) const EXCLUDED_REVIEWS: Release = Release::V1_37;
    /// The error of a field of metadata that cannot be changed is reported once, and not by each of two validations.
    // apiserver: pkg/registry/rest/update.go, ValidateUpdate, with declarative validation
    pub(super) const SINGLE_IMMUTABLE: Release = Release::V1_37;
    /// The errors of metadata tell a missing value from an invalid one, and name the place of an owner reference in its list.
    // apimachinery: pkg/api/validation/objectmeta.go, validateOwnerReference;
    // pkg/apis/meta/v1/validation/validation.go, ValidateManagedFields
    pub(super) const PRECISE_METADATA_ERRORS: Release = Release::V1_37;
}

/// The reviews that are answered and not stored, as group and resource, in all versions. No admission policy sees them.
// kubernetes: pkg/kubeapiserver/admission/exclusion/resources.go, excluded
const REVIEWS: [(&str, &str); 6] = [
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
];

/// Whether the objects of a resource are answered and not stored, and belong to authentication or authorization.
pub fn is_review(group: &str, resource: &str) -> bool {
    REVIEWS.contains(&(group, resource))
}

/// The groups of kube-apiserver whose objects are not validated declaratively as a whole, so that their errors stay double.
// apiextensions-apiserver: pkg/registry/customresourcedefinition/strategy.go, strategy;
// kube-aggregator: pkg/registry/apiservice/strategy.go, apiServerStrategy
const NOT_DECLARATIVE: [&str; 2] = ["apiextensions.k8s.io", "apiregistration.k8s.io"];

/// Why `--emulated-version` names no release to emulate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EmulatedVersionError {
    /// It is no version.
    #[error("could not parse {} as version", Quoted(.0))]
    Unreadable(String),
    /// It names a patch release.
    #[error("patch version not allowed, got: {0}={1}")]
    Patch(String, String),
    /// It names a component that kube-apiserver does not have.
    #[error("component not registered: {0}")]
    UnknownComponent(String),
    /// It names the component twice.
    #[error("duplicate version flag, {0} and {1}")]
    Duplicate(String, String),
    /// It is a version whose rules are not known.
    #[error("emulation version {0} is not between [{first}, {last}]", first = Release::OLDEST, last = Release::default())]
    Unknown(String),
}

impl Release {
    /// The oldest that can be emulated.
    pub const OLDEST: Self = Self::V1_34;
    /// All, from the oldest to the newest.
    pub const ALL: [Self; 4] = [Self::V1_34, Self::V1_35, Self::V1_36, Self::V1_37];

    /// The number of the minor release. CEL has rules of its own by it.
    pub const fn minor(self) -> u32 {
        match self {
            Self::V1_34 => 34,
            Self::V1_35 => 35,
            Self::V1_36 => 36,
            Self::V1_37 => 37,
        }
    }

    /// The values of `--emulated-version`: `1.36` or `kube=1.36`. Without any it is the newest release.
    // component-base: compatibility/registry.go, toVersionMap and Set; compatibility/version.go, Validate
    pub fn emulated(versions: &[String]) -> Result<Self, EmulatedVersionError> {
        let mut found: Option<(u32, u32)> = None;
        for given in versions {
            let (component, version) = given.split_once('=').unwrap_or((KUBE, given));
            let (component, version) = (component.trim(), version.trim());
            let (major, minor) = flag_version(component, version)?;
            if component != KUBE {
                return Err(EmulatedVersionError::UnknownComponent(component.to_owned()));
            }
            if let Some((first_major, first_minor)) = found.replace((major, minor)) {
                return Err(EmulatedVersionError::Duplicate(
                    format!("{KUBE}={first_major}.{first_minor}"),
                    format!("{KUBE}={major}.{minor}"),
                ));
            }
        }
        let Some((major, minor)) = found else { return Ok(Self::default()) };
        let known = Self::ALL.into_iter().find(|release| major == 1 && release.minor() == minor);
        known.ok_or_else(|| EmulatedVersionError::Unknown(format!("{major}.{minor}")))
    }

    /// The release of an API server by its `gitVersion`, such as `v1.36.3+k3s1`: of an older one than all that are known the
    /// oldest, of a newer one the newest; `None` if it is not a version of Kubernetes 1.
    pub fn of_server(git_version: &str) -> Option<Self> {
        let minor = minor_of_server(git_version)?;
        Some(Self::ALL.into_iter().rfind(|release| release.minor() <= minor).unwrap_or(Self::OLDEST))
    }

    /// The number of the minor release of an API server, if it is older or newer than all that are known, with which the gateway
    /// is tested.
    pub fn untested_minor(git_version: &str) -> Option<u32> {
        let minor = minor_of_server(git_version)?;
        let is_known = (Self::OLDEST.minor()..=Self::default().minor()).contains(&minor);
        (!is_known).then_some(minor)
    }

    /// Whether impersonation is first allowed by the verbs of constrained impersonation.
    pub fn has_constrained_impersonation(self) -> bool {
        self >= since::CONSTRAINED_IMPERSONATION
    }

    /// The reason of an authorizer without an opinion, as the chain of authorizers reports it.
    pub fn chain_reason(self, authorizer: &str, reason: String) -> String {
        if self >= since::NAMED_REASONS { format!("{authorizer}: {reason}") } else { reason }
    }

    /// Whether admission webhooks are not asked about a resource, whatever their rules.
    pub fn excludes_from_webhooks(self, group: &str, resource: &str) -> bool {
        self >= since::EXCLUDED_REVIEWS && is_review(group, resource)
    }

    /// How often an API server reports that a field of the metadata of an object of this group cannot be changed. Custom
    /// resources have no declarative validation of their own.
    pub fn immutable_causes(self, is_built_in: bool, group: &str) -> usize {
        let is_declarative = is_built_in && !NOT_DECLARATIVE.contains(&group);
        if is_declarative && self >= since::SINGLE_IMMUTABLE { 1 } else { 2 }
    }

    /// Whether the errors of owner references and managed fields are those of 1.37.
    pub fn has_precise_metadata_errors(self) -> bool {
        self >= since::PRECISE_METADATA_ERRORS
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.minor())
    }
}

/// The major and minor version of a component on the command line.
// apimachinery: pkg/util/version/version.go, Parse
fn flag_version(component: &str, version: &str) -> Result<(u32, u32), EmulatedVersionError> {
    let numbers: Option<Vec<u32>> =
        version.strip_prefix('v').unwrap_or(version).split('.').map(number).collect();
    match numbers.as_deref() {
        Some([major, minor] | [major, minor, 0]) => Ok((*major, *minor)),
        Some([_, _, _]) => Err(EmulatedVersionError::Patch(component.to_owned(), version.to_owned())),
        _ => Err(EmulatedVersionError::Unreadable(version.to_owned())),
    }
}

/// The number of the minor release of an API server by its `gitVersion`; `None` if it is not a version of Kubernetes 1.
pub fn minor_of_server(git_version: &str) -> Option<u32> {
    let (minor, _) = git_version.strip_prefix("v1.")?.split_once('.')?;
    number(minor)
}

/// A number in a version has digits alone, and no sign.
fn number(digits: &str) -> Option<u32> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emulated_version_is_read_as_by_kube_apiserver() {
        let cases: [(&[&str], Result<Release, &str>); 14] = [
            (&[], Ok(Release::V1_37)),
            (&["1.36"], Ok(Release::V1_36)),
            (&["kube=1.34"], Ok(Release::V1_34)),
            (&[" kube = 1.35 "], Ok(Release::V1_35)),
            (&["v1.37"], Ok(Release::V1_37)),
            (&["1.36.0"], Ok(Release::V1_36)),
            (&["kube=1.36.3"], Err("patch version not allowed, got: kube=1.36.3")),
            (&["1.33"], Err("emulation version 1.33 is not between [1.34, 1.37]")),
            (&["2.36"], Err("emulation version 2.36 is not between [1.34, 1.37]")),
            (&["1.+36"], Err("could not parse \"1.+36\" as version")),
            (&["1"], Err("could not parse \"1\" as version")),
            (&[""], Err("could not parse \"\" as version")),
            (&["wardle=1.2"], Err("component not registered: wardle")),
            (&["1.36", "kube=1.37"], Err("duplicate version flag, kube=1.36 and kube=1.37")),
        ];
        for (given, expected) in cases {
            let given: Vec<String> = given.iter().map(|&text| text.to_owned()).collect();
            let found = Release::emulated(&given).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{given:?}");
        }
    }

    #[test]
    fn the_release_of_a_server_is_the_nearest_known_one() {
        for (version, expected) in [
            ("v1.36.0", Some(Release::V1_36)),
            ("v1.37.2+k3s1", Some(Release::V1_37)),
            ("v1.36.0-alpha.1", Some(Release::V1_36)),
            ("v1.100.0", Some(Release::V1_37)),
            ("v1.34.4-eks-a1b2", Some(Release::V1_34)),
            ("v1.9.0", Some(Release::V1_34)),
            ("v2.1.0", None),
            ("v1.+36.0", None),
            ("unknown", None),
            ("", None),
        ] {
            assert_eq!(Release::of_server(version), expected, "{version:?}");
        }
    }

    #[test]
    fn untested_releases_are_older_or_newer_than_all_that_are_known() {
        for (version, expected) in [
            ("v1.33.9", Some(33)),
            ("v1.34.0", None),
            ("v1.37.2+k3s1", None),
            ("v1.38.0-alpha.1", Some(38)),
            ("v2.1.0", None),
            ("unknown", None),
        ] {
            assert_eq!(Release::untested_minor(version), expected, "{version:?}");
        }
    }

    /// Each rule, and the releases with it.
    #[test]
    fn rules_hold_from_a_release_on() {
        type Rule = fn(Release) -> bool;
        let rules: [(&str, Rule, &[Release]); 8] = [
            (
                "constrained impersonation",
                Release::has_constrained_impersonation,
                &[Release::V1_36, Release::V1_37],
            ),
            (
                "reasons with names",
                |release| release.chain_reason("rbac", "no".to_owned()) == "rbac: no",
                &[Release::V1_37],
            ),
            (
                "reviews are excluded",
                |release| release.excludes_from_webhooks("authentication.k8s.io", "tokenreviews"),
                &[Release::V1_37],
            ),
            ("all else is not", |release| release.excludes_from_webhooks("", "serviceaccounts"), &[]),
            ("one cause", |release| release.immutable_causes(true, "apps") == 1, &[Release::V1_37]),
            (
                "one cause of a definition",
                |release| release.immutable_causes(true, "apiextensions.k8s.io") == 1,
                &[],
            ),
            ("one cause of a custom resource", |release| release.immutable_causes(false, "apps") == 1, &[]),
            ("errors of metadata", Release::has_precise_metadata_errors, &[Release::V1_37]),
        ];
        for (name, rule, expected) in rules {
            let found: Vec<Release> = Release::ALL.into_iter().filter(|release| rule(*release)).collect();
            assert_eq!(found, expected, "{name}");
        }
    }
}
