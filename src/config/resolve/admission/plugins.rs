//! The names of admission plugins, and which of those of the gateway are enabled.
//!
//! Follows `k8s.io/apiserver/pkg/server/options/admission.go` and
//! `k8s.io/kubernetes/pkg/kubeapiserver/options/plugins.go`.

use std::collections::BTreeSet;

use portcullis_admission::Plugin;
use portcullis_go::quote::Quoted;

use super::super::{ConfigResolver, listed};
use crate::config::error::ConfigError;
use crate::config::flags::AdmissionFlags;
use crate::config::sections::MergedSection;

const ENABLE: &str = "enable-admission-plugins";
const DISABLE: &str = "disable-admission-plugins";

/// The other plugins of kube-apiserver.
// AllOrderedPlugins
const BACKEND_PLUGINS: [&str; 37] = [
    "AlwaysAdmit",
    "NamespaceAutoProvision",
    "NamespaceLifecycle",
    "NamespaceExists",
    "LimitPodHardAntiAffinityTopology",
    "LimitRanger",
    "ServiceAccount",
    "NodeRestriction",
    "TaintNodesByCondition",
    "AlwaysPullImages",
    "ImagePolicyWebhook",
    "PodSecurity",
    "PodNodeSelector",
    "Priority",
    "DefaultTolerationSeconds",
    "PodTolerationRestriction",
    "EventRateLimit",
    "ExtendedResourceToleration",
    "DefaultStorageClass",
    "StorageObjectInUseProtection",
    "PodGroupProtection",
    "OwnerReferencesPermissionEnforcement",
    "PersistentVolumeClaimResize",
    "RuntimeClass",
    "CertificateApproval",
    "CertificateSigning",
    "ClusterTrustBundleAttest",
    "CertificateSubjectRestriction",
    "DefaultIngressClass",
    "DenyServiceExternalIPs",
    "PodTopologyLabels",
    "PodGroupWorkloadExists",
    "NodeDeclaredFeatureValidator",
    "JobValidation",
    "PodResizeValidator",
    "ResourceQuota",
    "AlwaysDeny",
];

/// The plugins of the gateway that are enabled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EnabledPlugins(Vec<Plugin>);

impl EnabledPlugins {
    /// The default.
    pub(super) fn all() -> Self {
        Self(Plugin::ALL.to_vec())
    }

    pub(super) fn has(&self, plugin: Plugin) -> bool {
        self.0.contains(&plugin)
    }
}

/// Whether only the backend has this plugin.
pub(crate) fn is_backend_plugin(plugin: &str) -> bool {
    BACKEND_PLUGINS.contains(&plugin)
}

/// Why a gateway cannot have this plugin, and the fix.
pub(super) fn problem(plugin: &str) -> Option<(String, &'static str)> {
    if Plugin::ALL.iter().any(|known| known.name() == plugin) {
        return None;
    }
    let plugin_name = Quoted(plugin);
    Some(if is_backend_plugin(plugin) {
        (
            format!("plugin {plugin_name} runs in the backend"),
            "remove it here, and configure it in the backend; or give --ignore-unknown-apiserver-flags",
        )
    } else {
        (
            format!("plugin {plugin_name} is unknown"),
            "give MutatingAdmissionPolicy, MutatingAdmissionWebhook, ValidatingAdmissionPolicy or \
             ValidatingAdmissionWebhook",
        )
    })
}

impl ConfigResolver<'_> {
    // AdmissionOptions.Validate
    pub(super) fn enabled_plugins(&mut self, given: &MergedSection<AdmissionFlags>) -> EnabledPlugins {
        let enabled = listed(&given.values.enable_admission_plugins);
        let disabled = listed(&given.values.disable_admission_plugins);
        for (flag, plugins, effect) in [(ENABLE, &enabled, "enable"), (DISABLE, &disabled, "disable")] {
            let (of_backend, others): (Vec<&str>, Vec<&str>) = plugins
                .iter()
                .map(String::as_str)
                .partition(|plugin| self.leaves_to_backend && is_backend_plugin(plugin));
            if !of_backend.is_empty() {
                let (names, key) = (of_backend.join(", "), given.key(flag));
                self.warnings.push(format!("{key}: only the backend has {names}: {effect} them there"));
            }
            for plugin in others {
                if let Some((problem, fix)) = problem(plugin) {
                    self.errors.push(ConfigError::new(given.key(flag), format!("{flag} {problem}")).fix(fix));
                }
            }
        }
        let both: BTreeSet<&str> =
            enabled.iter().filter(|plugin| disabled.contains(plugin)).map(String::as_str).collect();
        if !both.is_empty() {
            let names = both.into_iter().collect::<Vec<_>>().join(" ");
            let problem = format!("[{names}] in {ENABLE} and {DISABLE} overlapped");
            self.errors
                .push(ConfigError::new(given.key(DISABLE), problem).fix("remove it from one of the two"));
        }
        let is_enabled = |plugin: &Plugin| !disabled.iter().any(|name| name == plugin.name());
        EnabledPlugins(Plugin::ALL.into_iter().filter(is_enabled).collect())
    }
}
