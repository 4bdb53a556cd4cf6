//! What the gateway reads from the files of admission, for tests that compare it with kube-apiserver's own code.

use std::path::Path;

use portcullis_admission::configuration::manifest::{ManifestProblem, Manifests};
use portcullis_admission::{Webhook, WebhookKind};
use portcullis_go::quote::Quoted;
use portcullis_go::url::Url;
use portcullis_kubernetes::release::Release;
use portcullis_kubernetes::yaml;

use super::super::ConfigResolver;
use super::connections::{request_url, server_of};
use super::plugins::EnabledPlugins;
use crate::authn::BearerToken;
use crate::config::flags::AdmissionFlags;
use crate::config::inputs::InputReader;
use crate::config::kubeconfig::WebhookUsers;
use crate::config::manifest_files::documents;
use crate::config::sections::{ConfigLayer, MergedSection};

/// The webhooks of a manifest; or the text before the errors of validation, and those errors. As kube-apiserver, reports
/// only the errors of the first object that has any, and nothing else if it is invalid.
pub fn webhook_manifest(
    kind: WebhookKind,
    file: &str,
    content: &str,
) -> Result<Vec<Webhook>, (String, Vec<String>)> {
    let other = |problem: String| (problem, Vec::new());
    let unsplit = |problem: String| {
        other(format!("failed to split YAML documents in file {}: {problem}", Quoted(file)))
    };
    let mut manifests = Manifests::webhooks(kind, Release::default());
    for (number, document) in documents(content).map_err(unsplit)?.into_iter().enumerate() {
        let parsed = yaml::parse(document.text.as_bytes()).map_err(other)?;
        manifests.add(file, number, &parsed.value);
    }
    manifests.finish().map_err(|errors| {
        let loading = format!("error loading {file}: ");
        let first = errors.first().map(|error| error.object);
        let mut found = (String::new(), Vec::new());
        for error in errors.into_iter().filter(|error| Some(error.object) == first) {
            match error.problem {
                ManifestProblem::Invalid { configuration, error } => {
                    found.0 = format!("{loading}{configuration}: ");
                    found.1.push(error);
                }
                ManifestProblem::Other(problem) if found.0.is_empty() => {
                    return (format!("{loading}{problem}"), Vec::new());
                }
                ManifestProblem::Other(_) => break,
            }
        }
        found
    })
}

/// The errors of an `AdmissionConfiguration` and the configurations of its plugins.
pub fn admission_configuration_errors(file: &Path) -> Vec<String> {
    let mut inputs = InputReader::default();
    let mut resolver = ConfigResolver::new(&mut inputs, false, Release::default());
    let no_flags: [ConfigLayer; 0] = [];
    let given = MergedSection::<AdmissionFlags>::read(no_flags, &mut resolver.unread);
    if let Some(given) = given {
        resolver.plugin_files(&given.place(super::CONFIG), file, &EnabledPlugins::all());
    }
    resolver.errors.into_iter().map(|error| error.problem).collect()
}

/// The bearer token for the webhook at a URL, and the URL of its requests; `None` for an invalid kubeconfig.
pub fn webhook_request(kubeconfig: &Path, url: &str) -> Option<(Option<String>, String)> {
    let (mut inputs, mut errors) = (InputReader::default(), Vec::new());
    let mut users = WebhookUsers::load("", kubeconfig, &mut inputs, &mut errors)?;
    let url = Url::parse(url).ok()?;
    let credential = users.credential(&server_of(&url), "", &mut inputs, &mut errors)?;
    Some((credential.token.as_ref().map(BearerToken::expose).map(str::to_owned), request_url(&url)))
}
