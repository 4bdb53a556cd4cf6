//! Resolves the admission webhooks and policies of a cluster: plugins, `AdmissionConfiguration`, folders of manifests, and the
//! gateway's credentials for the webhooks. An error in any file keeps the whole set from being used.
//!
//! Follows `k8s.io/apiserver/pkg/admission/config.go`, `pkg/admission/plugin/webhook/config/kubeconfig.go` and
//! `pkg/admission/plugin/policy/config/config.go`.

pub(super) mod compared;
mod connections;
mod manifests;
mod plugins;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use portcullis_admission::configuration::manifest::{FolderContent, Manifests};
use portcullis_admission::{Plugin, Policies, WebhookKind, Webhooks};
use portcullis_go::quote::Quoted;
use portcullis_kubernetes::release::Release;
use serde_json::Value;

use super::{ConfigResolver, listed};
use crate::admission::settings::{AdmissionSettings, WebhookConnections};
use crate::config::admission_configuration::{
    AdmissionConfiguration, AdmissionPluginConfiguration, MutatingAdmissionPolicyConfiguration,
    ValidatingAdmissionPolicyConfiguration, WebhookAdmissionConfiguration,
};
use crate::config::apiserver_config::ConfigKind;
use crate::config::apiserver_config::decode::{DecodeError, decode, decode_value};
use crate::config::apiserver_config::field::FieldError;
use crate::config::error::ConfigError;
use crate::config::flags::AdmissionFlags;
use crate::config::sections::{KeyLocation, MergedSection};
use plugins::EnabledPlugins;
pub(crate) use plugins::is_backend_plugin;

const CONFIG: &str = "admission-control-config-file";
const MODE: &str = "admission-mode";
const SHADOW: &str = "admission-shadow-webhooks";
const SHADOW_POLICIES: &str = "admission-shadow-policies";

/// The configuration of a plugin, validated.
#[derive(Debug, Default, PartialEq, Eq)]
struct PluginFiles {
    kubeconfig: Option<PathBuf>,
    manifests: Option<PathBuf>,
}

/// The configurations of the enabled plugins.
type FilesByPlugin = HashMap<Plugin, PluginFiles>;

impl ConfigResolver<'_> {
    /// The webhooks and policies; `None` if there are none. Leaves out those with an error; `self.errors` has the errors, and the
    /// configuration then fails as a whole.
    pub(super) fn admission(
        &mut self,
        given: &MergedSection<AdmissionFlags>,
    ) -> Option<Arc<AdmissionSettings>> {
        let before = self.errors.len();
        let enabled = self.enabled_plugins(given);
        let place = given.place(CONFIG);
        let files = match &given.values.admission_control_config_file {
            Some(file) => self.plugin_files(&place, file, &enabled),
            None => FilesByPlugin::default(),
        };
        let has_folder = files.values().any(|files| files.manifests.is_some());
        self.admission_mode_problems(given, has_folder, self.errors.len() > before);
        let mut connections = WebhookConnections::default();
        let mut webhooks = |plugin, kind| {
            let files = files.get(&plugin);
            let loaded = files.map(|files| self.load_webhooks(&place.key, kind, files, &mut connections));
            loaded.into_iter().flatten().map(Arc::new).collect::<Vec<_>>()
        };
        let webhooks = Webhooks {
            mutating: webhooks(Plugin::MutatingWebhooks, WebhookKind::Mutating),
            validating: webhooks(Plugin::ValidatingWebhooks, WebhookKind::Validating),
        };
        let folder = |plugin| files.get(&plugin).and_then(|files| files.manifests.as_deref());
        let policies = Policies {
            mutating: self.policies(
                &place.key,
                folder(Plugin::MutatingPolicies),
                Manifests::mutating_policies,
            ),
            validating: self.policies(&place.key, folder(Plugin::ValidatingPolicies), Manifests::policies),
        };
        if self.errors.len() == before {
            self.unknown_shadows(given, &webhooks, &policies);
        }
        let settings = AdmissionSettings {
            mode: given.values.admission_mode?,
            webhooks,
            policies,
            connections,
            shadow: listed(&given.values.admission_shadow_webhooks).into_iter().collect(),
            shadow_policies: listed(&given.values.admission_shadow_policies).into_iter().collect(),
        };
        (self.errors.len() == before && !settings.is_empty()).then(|| Arc::new(settings))
    }

    /// The policies of a folder.
    fn policies<C: FolderContent>(
        &mut self,
        key: &str,
        folder: Option<&Path>,
        manifests: impl FnOnce(Release) -> Manifests<C>,
    ) -> Vec<Arc<C::Item>> {
        let loaded = folder.map(|folder| self.manifests(key, folder, manifests(self.release)));
        loaded.into_iter().flatten().map(Arc::new).collect()
    }

    /// The files of all plugins, from an `AdmissionConfiguration`; those of a disabled plugin are left out.
    // ReadAdmissionConfiguration
    fn plugin_files(&mut self, place: &KeyLocation, file: &Path, enabled: &EnabledPlugins) -> FilesByPlugin {
        let file = &place.path(file);
        let Some(text) = self.read(&place.key, file) else { return FilesByPlugin::default() };
        let decoded = decode::<AdmissionConfiguration>(&text).map_err(|error| {
            let problem = format!("failed to read plugin config: {}", error.problem);
            ConfigError::new(&place.key, problem).in_file(file).fix(error.fix)
        });
        let Some((configuration, lines)) = self.ok(decoded) else { return FilesByPlugin::default() };
        let warning = |field: &str, text: &str| {
            format!("{}: {}: line {}: {text}", place.key, file.display(), lines.of(field))
        };
        for (index, plugin) in configuration.plugins.iter().enumerate() {
            let field = format!("plugins[{index}].name");
            if self.leaves_to_backend && is_backend_plugin(&plugin.name) {
                let text = format!("the backend decides by {}, as it is configured there", plugin.name);
                self.warnings.push(warning(&field, &text));
            } else if let Some((problem, fix)) = plugins::problem(&plugin.name) {
                let error = ConfigError::new(&place.key, format!("{field}: {problem}")).in_file(file);
                self.errors.push(error.fix(format!("line {}: {fix}", lines.of(&field))));
            } else if configuration.plugins.iter().take(index).any(|first| first.name == plugin.name) {
                let text = format!("the second entry of {} has no effect: the first one counts", plugin.name);
                self.warnings.push(warning(&field, &text));
            }
        }
        let enabled = Plugin::ALL.into_iter().filter(|plugin| enabled.has(*plugin));
        let files = enabled.filter_map(|plugin| {
            let entry = configuration.plugins.iter().find(|entry| entry.name == plugin.name())?;
            Some((plugin, self.plugin(&place.key, file, entry, plugin)?))
        });
        files.collect()
    }

    /// The files of one plugin.
    // GetAdmissionPluginConfigurationFor, LoadConfig
    fn plugin(
        &mut self,
        key: &str,
        file: &Path,
        entry: &AdmissionPluginConfiguration,
        plugin: Plugin,
    ) -> Option<PluginFiles> {
        let path = file.parent().unwrap_or(Path::new("")).join(&entry.path);
        let (decoded, file) = match &entry.configuration {
            Some(document) => (paths_of(plugin, &Source::Value(document)), file),
            None if entry.path.is_empty() => return Some(PluginFiles::default()),
            None => {
                let text = self.read(key, &path)?;
                (paths_of(plugin, &Source::Text(&text)), path.as_path())
            }
        };
        let init = format!("couldn't init admission plugin {}", Quoted(&entry.name));
        let configuration = decoded.map_err(|DecodeError { problem, fix }| {
            ConfigError::new(key, format!("{init}: {problem}")).in_file(file).fix(fix)
        });
        let PluginPaths { kube_config_file, static_manifests_dir } = self.ok(configuration)?;
        let mut problems = Vec::new();
        if !kube_config_file.is_empty() && !kube_config_file.starts_with('/') {
            let problem = "must be an absolute file path";
            problems.push(FieldError::invalid("kubeConfigFile", &kube_config_file, problem));
        }
        if let Some(problem) = folder_problem(&static_manifests_dir) {
            problems.push(FieldError::invalid("staticManifestsDir", &static_manifests_dir, &problem));
        }
        // Loads the configuration again when the folder appears.
        if static_manifests_dir.starts_with('/') {
            self.inputs.manifests(Path::new(&static_manifests_dir)).ok();
        }
        for problem in &problems {
            let fix = if problem.field == "kubeConfigFile" {
                "give the absolute path of a kubeconfig with the credentials for webhooks"
            } else {
                "give the absolute path of a readable folder with the manifests of the plugin"
            };
            self.errors.push(ConfigError::new(key, format!("{init}: {problem}")).in_file(file).fix(fix));
        }
        let given = |path: String| (!path.is_empty()).then(|| PathBuf::from(path));
        problems.is_empty().then(|| PluginFiles {
            kubeconfig: given(kube_config_file),
            manifests: given(static_manifests_dir),
        })
    }

    /// The mode has no default: either choice has a cost that the operator must know.
    fn admission_mode_problems(
        &mut self,
        given: &MergedSection<AdmissionFlags>,
        has_folder: bool,
        failed: bool,
    ) {
        let mode = given.values.admission_mode;
        if has_folder && mode.is_none() {
            let problem = "is required with admission webhooks and policies, and has no default: pinnedDryRun shows them the object as \
                           the backend would store it, for an additional dry run of each request, and pins the write \
                           to it; requestLevel shows them the object as the client sent it, without the backend's \
                           defaults, and only CREATE and CONNECT";
            let fix = "give pinnedDryRun or requestLevel. If you may configure the backend, register them in the \
                       cluster itself instead: they then also see requests that bypass the gateway, converted to the \
                       versions of their rules, and in the transaction of the write";
            self.errors.push(ConfigError::new(given.key(MODE), problem).fix(fix));
        }
        // Without a readable file it is not known whether there are webhooks.
        if !has_folder && !failed {
            for flag in [MODE, SHADOW, SHADOW_POLICIES].into_iter().filter(|flag| given.is_given(flag)) {
                let problem = "is given, but no admission webhooks or policies are";
                let fix = format!(
                    "remove it; or give {} with the staticManifestsDir of an enabled plugin",
                    given.key(CONFIG)
                );
                self.errors.push(ConfigError::new(given.key(flag), problem).fix(fix));
            }
        }
    }

    fn unknown_shadows(
        &mut self,
        given: &MergedSection<AdmissionFlags>,
        webhooks: &Webhooks,
        policies: &Policies,
    ) {
        let all = webhooks.mutating.iter().chain(&webhooks.validating);
        let webhooks: BTreeSet<&str> = all.map(|webhook| webhook.name.as_str()).collect();
        let policies = policies.all().map(|policy| policy.scope().name.as_str()).collect();
        for (flag, shadows, known, what, fix) in [
            (
                SHADOW,
                &given.values.admission_shadow_webhooks,
                webhooks,
                "webhook",
                "give the name of a webhook, not of its configuration; `portcullis check` lists them",
            ),
            (
                SHADOW_POLICIES,
                &given.values.admission_shadow_policies,
                policies,
                "policy",
                "give the metadata.name of a policy; `portcullis check` lists them",
            ),
        ] {
            for name in listed(shadows) {
                if !known.contains(name.as_str()) && given.values.admission_mode.is_some() {
                    let problem = format!("there is no {what} {}", Quoted(&name));
                    self.errors.push(ConfigError::new(given.key(flag), problem).fix(fix));
                }
            }
        }
    }
}

/// The paths in the configuration of a plugin.
struct PluginPaths {
    kube_config_file: String,
    static_manifests_dir: String,
}

/// A configuration in a file of its own, or within another one.
enum Source<'a> {
    Text(&'a [u8]),
    Value(&'a Value),
}

impl Source<'_> {
    fn decode<T: ConfigKind>(&self) -> Result<T, DecodeError> {
        match self {
            Self::Text(text) => decode(text).map(|(read, _)| read),
            Self::Value(document) => decode_value(document),
        }
    }
}

fn paths_of(plugin: Plugin, source: &Source<'_>) -> Result<PluginPaths, DecodeError> {
    match plugin {
        Plugin::MutatingWebhooks | Plugin::ValidatingWebhooks => source.decode().map(
            |WebhookAdmissionConfiguration { kube_config_file, static_manifests_dir, .. }| PluginPaths {
                kube_config_file,
                static_manifests_dir,
            },
        ),
        Plugin::MutatingPolicies => {
            source.decode().map(|MutatingAdmissionPolicyConfiguration { static_manifests_dir, .. }| {
                PluginPaths { kube_config_file: String::new(), static_manifests_dir }
            })
        }
        Plugin::ValidatingPolicies => {
            source.decode().map(|ValidatingAdmissionPolicyConfiguration { static_manifests_dir, .. }| {
                PluginPaths { kube_config_file: String::new(), static_manifests_dir }
            })
        }
    }
}

/// Why a folder cannot be read, in kube-apiserver's words.
// apiserver: pkg/admission/plugin/manifest/validation.go, ValidateStaticManifestsDir
fn folder_problem(folder: &str) -> Option<String> {
    if folder.is_empty() {
        return None;
    }
    if !folder.starts_with('/') {
        return Some("must be an absolute file path".to_owned());
    }
    match std::fs::metadata(folder) {
        Err(error) => {
            let text = super::authorization::errno_text(&error);
            Some(format!("unable to read: stat {folder}: {text}"))
        }
        Ok(metadata) if !metadata.is_dir() => Some("must be a directory".to_owned()),
        Ok(_) => None,
    }
}
