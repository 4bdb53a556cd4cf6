//! Resolves the admission webhooks of a cluster: plugins, `AdmissionConfiguration`, folders of manifests, and the
//! gateway's credentials for the webhooks. An error in any file keeps the whole set from being used.
//!
//! Follows `k8s.io/apiserver/pkg/admission/config.go` and `pkg/admission/plugin/webhook/config/kubeconfig.go`.

pub(super) mod compared;
mod connections;
mod manifests;
mod plugins;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use portcullis_admission::{WebhookKind, Webhooks};
use portcullis_go::quote::Quoted;

use super::{ConfigResolver, listed};
use crate::admission::settings::{AdmissionSettings, WebhookConnections};
use crate::config::admission_configuration::{
    AdmissionConfiguration, AdmissionPluginConfiguration, WebhookAdmissionConfiguration,
};
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

/// The configuration of a webhook plugin, validated.
#[derive(Debug, Default, PartialEq, Eq)]
struct PluginFiles {
    kubeconfig: Option<PathBuf>,
    manifests: Option<PathBuf>,
}

impl ConfigResolver<'_> {
    /// The webhooks; `None` if there are none. Leaves out those with an error; `self.errors` has the errors, and the
    /// configuration then fails as a whole.
    pub(super) fn admission(
        &mut self,
        given: &MergedSection<AdmissionFlags>,
    ) -> Option<Arc<AdmissionSettings>> {
        let before = self.errors.len();
        let enabled = self.enabled_plugins(given);
        let place = given.place(CONFIG);
        let [mutating, validating] = match &given.values.admission_control_config_file {
            Some(file) => self.plugin_files(&place, file, enabled),
            None => [PluginFiles::default(), PluginFiles::default()],
        };
        let has_folder = mutating.manifests.is_some() || validating.manifests.is_some();
        self.admission_mode_problems(given, has_folder, self.errors.len() > before);
        let mut connections = WebhookConnections::default();
        let mut load = |kind, files: &PluginFiles| {
            let webhooks = self.load_webhooks(&place.key, kind, files, &mut connections);
            webhooks.into_iter().map(Arc::new).collect::<Vec<_>>()
        };
        let mutating = load(WebhookKind::Mutating, &mutating);
        let validating = load(WebhookKind::Validating, &validating);
        let webhooks = Webhooks { mutating, validating };
        if self.errors.len() == before {
            self.unknown_shadows(given, &webhooks);
        }
        if self.errors.len() > before || webhooks.mutating.is_empty() && webhooks.validating.is_empty() {
            return None;
        }
        let shadow = listed(&given.values.admission_shadow_webhooks).into_iter().collect();
        let mode = given.values.admission_mode?;
        Some(Arc::new(AdmissionSettings { mode, webhooks, connections, shadow }))
    }

    /// The files of both plugins, from an `AdmissionConfiguration`; those of a disabled plugin are left out.
    // ReadAdmissionConfiguration
    fn plugin_files(
        &mut self,
        place: &KeyLocation,
        file: &Path,
        enabled: EnabledPlugins,
    ) -> [PluginFiles; 2] {
        let file = &place.path(file);
        let Some(text) = self.read(&place.key, file) else { return Default::default() };
        let decoded = decode::<AdmissionConfiguration>(&text).map_err(|error| {
            let problem = format!("failed to read plugin config: {}", error.problem);
            ConfigError::new(&place.key, problem).in_file(file).fix(error.fix)
        });
        let Some((configuration, lines)) = self.ok(decoded) else { return Default::default() };
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
        [WebhookKind::Mutating, WebhookKind::Validating].map(|kind| {
            let name = plugins::name(kind);
            let entry = configuration.plugins.iter().find(|plugin| plugin.name == name);
            match entry.filter(|_| enabled.has(kind)) {
                Some(entry) => self.plugin(&place.key, file, entry).unwrap_or_default(),
                None => PluginFiles::default(),
            }
        })
    }

    /// The files of one plugin.
    // GetAdmissionPluginConfigurationFor, LoadConfig
    fn plugin(
        &mut self,
        key: &str,
        file: &Path,
        entry: &AdmissionPluginConfiguration,
    ) -> Option<PluginFiles> {
        let path = file.parent().unwrap_or(Path::new("")).join(&entry.path);
        let (decoded, file) = match &entry.configuration {
            Some(document) => (decode_value(document), file),
            None if entry.path.is_empty() => return Some(PluginFiles::default()),
            None => {
                let text = self.read(key, &path)?;
                (decode::<WebhookAdmissionConfiguration>(&text).map(|(read, _)| read), path.as_path())
            }
        };
        let init = format!("couldn't init admission plugin {}", Quoted(&entry.name));
        let configuration = decoded.map_err(|DecodeError { problem, fix }| {
            ConfigError::new(key, format!("{init}: {problem}")).in_file(file).fix(fix)
        });
        let WebhookAdmissionConfiguration { kube_config_file, static_manifests_dir, .. } =
            self.ok(configuration)?;
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
                "give the absolute path of a readable folder with webhook configurations"
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
            let problem = "is required with admission webhooks, and has no default: pinnedDryRun shows them the object as \
                           the backend would store it, for an additional dry run of each request, and pins the write \
                           to it; requestLevel shows them the object as the client sent it, without the backend's \
                           defaults, and only CREATE and CONNECT";
            let fix = "give pinnedDryRun or requestLevel. If you may configure the backend, register the webhooks in the \
                       cluster itself instead: they then also see requests that bypass the gateway, converted to the \
                       versions of their rules, and in the transaction of the write";
            self.errors.push(ConfigError::new(given.key(MODE), problem).fix(fix));
        }
        // Without a readable file it is not known whether there are webhooks.
        if !has_folder && !failed {
            for flag in [MODE, SHADOW].into_iter().filter(|flag| given.is_given(flag)) {
                let problem = "is given, but no admission webhooks are";
                let fix = format!(
                    "remove it; or give {} with the staticManifestsDir of an enabled plugin",
                    given.key(CONFIG)
                );
                self.errors.push(ConfigError::new(given.key(flag), problem).fix(fix));
            }
        }
    }

    fn unknown_shadows(&mut self, given: &MergedSection<AdmissionFlags>, webhooks: &Webhooks) {
        let all = webhooks.mutating.iter().chain(&webhooks.validating);
        let names: BTreeSet<&str> = all.map(|webhook| webhook.name.as_str()).collect();
        for name in listed(&given.values.admission_shadow_webhooks) {
            if !names.contains(name.as_str()) && given.values.admission_mode.is_some() {
                let problem = format!("there is no webhook {}", Quoted(&name));
                let fix =
                    "give the name of a webhook, not of its configuration; `portcullis check` lists them";
                self.errors.push(ConfigError::new(given.key(SHADOW), problem).fix(fix));
            }
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
