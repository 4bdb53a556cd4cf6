//! The names of the controllers, and the list syntax of `--controllers`.
// kubernetes: cmd/kube-controller-manager/names/controller_names.go, app/certificates.go, app/bootstrap.go

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ControllerName {
    /// Signs approved certificate signing requests.
    CsrSigning,
    /// Approves certificate signing requests of kubelets.
    CsrApproving,
    /// Deletes old certificate signing requests.
    CsrCleaner,
    /// Deletes bootstrap tokens that have expired.
    TokenCleaner,
    /// Signs the `cluster-info` that joining nodes read.
    BootstrapSigner,
    /// Signs requests for certificates of pods. kube-controller-manager has no such controller.
    PodCertificateSigning,
    /// Publishes the CAs of signers as `ClusterTrustBundle` objects.
    TrustBundlePublishing,
}

impl ControllerName {
    /// All controllers.
    pub const ALL: [Self; 7] = [
        Self::CsrSigning,
        Self::CsrApproving,
        Self::CsrCleaner,
        Self::TokenCleaner,
        Self::BootstrapSigner,
        Self::PodCertificateSigning,
        Self::TrustBundlePublishing,
    ];

    /// The older name of kube-controller-manager, or a name of the gateway's own, used in logs and metrics.
    pub const fn alias(self) -> &'static str {
        match self {
            Self::CsrSigning => "csrsigning",
            Self::CsrApproving => "csrapproving",
            Self::CsrCleaner => "csrcleaner",
            Self::TokenCleaner => "tokencleaner",
            Self::BootstrapSigner => "bootstrapsigner",
            Self::PodCertificateSigning => "podcertificaterequest-signing",
            Self::TrustBundlePublishing => "clustertrustbundle-publishing",
        }
    }

    /// The name in kube-controller-manager, or one of its form.
    pub const fn canonical(self) -> &'static str {
        match self {
            Self::CsrSigning => "certificatesigningrequest-signing-controller",
            Self::CsrApproving => "certificatesigningrequest-approving-controller",
            Self::CsrCleaner => "certificatesigningrequest-cleaner-controller",
            Self::TokenCleaner => "token-cleaner-controller",
            Self::BootstrapSigner => "bootstrap-signer-controller",
            Self::PodCertificateSigning => "podcertificaterequest-signing-controller",
            Self::TrustBundlePublishing => "clustertrustbundle-publishing-controller",
        }
    }

    /// Whether `*` includes the controller.
    // kubernetes: cmd/kube-controller-manager/app/{controllermanager,bootstrap}.go, ControllersDisabledByDefault
    const fn is_in_star(self) -> bool {
        !matches!(
            self,
            Self::TokenCleaner
                | Self::BootstrapSigner
                | Self::PodCertificateSigning
                | Self::TrustBundlePublishing
        )
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|name| name.alias() == text || name.canonical() == text)
    }
}

impl fmt::Display for ControllerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.alias())
    }
}

/// The controllers that a list enables: `name` enables a controller, `-name` disables it, and `*` enables those that
/// are on by default. The first entry for a controller counts. Returns unknown names as the error.
// controller-manager: app/helper.go, IsControllerEnabled
pub(crate) fn selected(list: &[String]) -> Result<BTreeSet<ControllerName>, Vec<String>> {
    let (mut explicit, mut unknown) = (BTreeMap::new(), Vec::new());
    let mut star = false;
    for item in list {
        if item == "*" {
            star = true;
            continue;
        }
        let (on, text) = item.strip_prefix('-').map_or((true, item.as_str()), |text| (false, text));
        match ControllerName::parse(text) {
            Some(name) => {
                explicit.entry(name).or_insert(on);
            }
            None => unknown.push(text.to_owned()),
        }
    }
    if !unknown.is_empty() {
        return Err(unknown);
    }
    let is_on = |name: &ControllerName| explicit.get(name).copied().unwrap_or(star && name.is_in_star());
    Ok(ControllerName::ALL.into_iter().filter(is_on).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_enables_controllers_as_in_kube_controller_manager() {
        let cases: [(&[&str], &[ControllerName]); 10] = [
            (&[], &[]),
            (&["csrsigning"], &[ControllerName::CsrSigning]),
            (&["certificatesigningrequest-signing-controller"], &[ControllerName::CsrSigning]),
            (&["*"], &[ControllerName::CsrSigning, ControllerName::CsrApproving, ControllerName::CsrCleaner]),
            (&["*", "-csrcleaner"], &[ControllerName::CsrSigning, ControllerName::CsrApproving]),
            (
                &["*", "-certificatesigningrequest-cleaner-controller"],
                &[ControllerName::CsrSigning, ControllerName::CsrApproving],
            ),
            (
                &[
                    "*",
                    "bootstrapsigner",
                    "tokencleaner",
                    "podcertificaterequest-signing",
                    "clustertrustbundle-publishing",
                ],
                &ControllerName::ALL,
            ),
            (&["podcertificaterequest-signing-controller"], &[ControllerName::PodCertificateSigning]),
            (&["csrsigning", "-csrsigning"], &[ControllerName::CsrSigning]),
            (&["-csrsigning", "csrsigning"], &[]),
        ];
        for (list, expected) in cases {
            let given: Vec<String> = list.iter().map(|&item| item.to_owned()).collect();
            assert_eq!(selected(&given), Ok(expected.iter().copied().collect()), "{list:?}");
        }
    }

    #[test]
    fn unknown_names_are_returned() {
        let given = ["*", "-csrsinging", "replicaset-controller"].map(str::to_owned);
        assert_eq!(selected(&given), Err(vec!["csrsinging".to_owned(), "replicaset-controller".to_owned()]));
    }
}
