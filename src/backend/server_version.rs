//! The version of the API servers of a cluster, and which rules of authorization it has.

use std::sync::Arc;

use arc_swap::ArcSwapOption;

/// What an API server has said last, if any has. Cheap to clone: a clone is the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServerVersion(Arc<ArcSwapOption<String>>);

/// The first minor release of Kubernetes 1 whose API servers ask for the verbs of constrained impersonation by default.
// apiserver: pkg/features/kube_features.go, ConstrainedImpersonation
const CONSTRAINED_IMPERSONATION: u32 = 36;

impl ServerVersion {
    /// As the API server writes it, such as `v1.36.3+k3s1`.
    pub(crate) fn text(&self) -> Option<String> {
        self.0.load().as_deref().cloned()
    }

    #[cfg(test)]
    pub(crate) fn of_test(text: Option<&str>) -> Self {
        Self(Arc::new(ArcSwapOption::from_pointee(text.map(str::to_owned))))
    }

    pub(super) fn learn(&self, version: String) {
        self.0.store(Some(Arc::new(version)));
    }

    /// Whether the verbs of constrained impersonation mean something to the API servers. To older ones a role may have them
    /// without meaning it. Not known to be older is taken for the reference release.
    pub(crate) fn has_constrained_impersonation(&self) -> bool {
        let version = self.0.load();
        version.as_deref().and_then(|text| minor(text)).is_none_or(|minor| minor >= CONSTRAINED_IMPERSONATION)
    }
}

/// The minor release of Kubernetes 1; `None` of other versions.
fn minor(version: &str) -> Option<u32> {
    let (minor, _) = version.strip_prefix("v1.")?.split_once('.')?;
    minor.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constrained_impersonation_needs_a_release_that_has_it() {
        for (text, expected) in [
            (None, true),
            (Some("v1.36.0"), true),
            (Some("v1.37.2+k3s1"), true),
            (Some("v1.36.0-alpha.1"), true),
            (Some("v1.100.0"), true),
            (Some("v1.35.9"), false),
            (Some("v1.34.4-eks-a1b2"), false),
            (Some("v1.9.0"), false),
            (Some("v2.1.0"), true),
            (Some("unknown"), true),
        ] {
            let version = ServerVersion::of_test(text);
            assert_eq!(version.has_constrained_impersonation(), expected, "{text:?}");
        }
    }
}
