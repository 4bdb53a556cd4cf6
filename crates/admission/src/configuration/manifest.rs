//! Static manifests: the webhook configurations in a folder. Each plugin has a folder of its own.
//!
//! Follows `k8s.io/apiserver/pkg/admission/plugin/webhook/manifest/loader/loader.go` and
//! `k8s.io/kubernetes/pkg/admission/plugin/webhook/manifest/loader/loader.go`.

use std::collections::BTreeMap;
use std::fmt;

use portcullis_go::quote::Quoted;
use portcullis_kubernetes::field::FieldError;
use portcullis_kubernetes::release::Release;
use portcullis_kubernetes::strict::{self, DecodeError};
use serde_json::Value;

use super::{FieldWarning, ValidationContext, WebhookConfiguration, wire};
use crate::{Webhook, WebhookKind};

const GROUP_VERSION: &str = "admissionregistration.k8s.io/v1";
/// The end of the names of static configurations, which the API refuses.
// apiserver: pkg/admission/plugin/manifest/validation.go, StaticConfigSuffix
const STATIC_SUFFIX: &str = ".static.k8s.io";
const NAME_FIX: &str = "give metadata.name: NAME.static.k8s.io; only manifests have such names";
const SERVICE_FIX: &str = "give clientConfig.url with an address that the gateway reaches: it does not resolve the \
                           Services of a cluster; or register the webhook in the cluster itself";
/// The versions of the API group, and the kinds of each that kube-apiserver knows beside ours.
const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
const KINDS: [&str; 6] = [
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "MutatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
];

/// An error in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestError {
    /// The file.
    pub file: String,
    /// The number of the object in its folder, from 0.
    pub object: usize,
    /// The number of the document in its file, from 0.
    pub document: usize,
    /// The path of the value in the document, such as `items[0].webhooks[1].name`; empty for the whole document.
    pub field: String,
    /// The problem.
    pub problem: ManifestProblem,
    /// How to fix it.
    pub fix: String,
}

/// What has no effect in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestWarning {
    /// The file.
    pub file: String,
    /// The number of the document in its file, from 0.
    pub document: usize,
    /// The path of the value in the document.
    pub field: String,
    /// kube-apiserver's warning to a client that creates the configuration.
    pub text: String,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManifestProblem {
    /// A value of a configuration breaks a rule of the API.
    Invalid {
        /// The kind and the name of the configuration, as kube-apiserver begins its text.
        configuration: String,
        /// The text of the error.
        error: String,
    },
    /// Anything else.
    Other(String),
}

impl fmt::Display for ManifestProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid { configuration, error } => write!(formatter, "{configuration}: {error}"),
            Self::Other(text) => formatter.write_str(text),
        }
    }
}

/// Collects the webhooks of a folder.
#[derive(Debug)]
pub struct Manifests {
    kind: WebhookKind,
    /// The files of the names.
    names: BTreeMap<String, String>,
    /// The webhooks by configuration: in byte order of the names.
    configurations: BTreeMap<String, Vec<Webhook>>,
    errors: Vec<ManifestError>,
    warnings: Vec<ManifestWarning>,
    release: Release,
    context: ValidationContext,
    /// The number of objects so far.
    objects: usize,
}

/// Where an object is.
#[derive(Clone, Copy)]
struct Place<'a> {
    file: &'a str,
    document: usize,
    /// The path of the object, with a dot at its end unless it is empty.
    path: &'a str,
    /// Whether it is an item of a `List`, whose items are decoded one by one.
    in_list: bool,
}

impl Manifests {
    /// No webhooks yet. `kind` is that of the plugin; the rules are those of `release`.
    pub fn new(kind: WebhookKind, release: Release) -> Self {
        Self {
            kind,
            names: BTreeMap::new(),
            configurations: BTreeMap::new(),
            errors: Vec::new(),
            warnings: Vec::new(),
            release,
            context: ValidationContext::new(release),
            objects: 0,
        }
    }

    /// Adds a document of a file. Add files in alphabetical order and documents in order.
    pub fn add(&mut self, file: &str, document: usize, object: &Value) {
        self.objects += 1;
        self.object(Place { file, document, path: "", in_list: false }, object);
    }

    /// Takes the warnings about what was added.
    pub fn take_warnings(&mut self) -> Vec<ManifestWarning> {
        std::mem::take(&mut self.warnings)
    }

    /// The webhooks: by the names of configurations in byte order, then as listed. Or every error.
    pub fn finish(self) -> Result<Vec<Webhook>, Vec<ManifestError>> {
        if self.errors.is_empty() {
            Ok(self.configurations.into_values().flatten().collect())
        } else {
            Err(self.errors)
        }
    }

    fn fail(&mut self, place: Place<'_>, field: &str, problem: ManifestProblem, fix: impl Into<String>) {
        let field = format!("{}{field}", place.path).trim_end_matches('.').to_owned();
        let Place { file, document, .. } = place;
        self.errors.push(ManifestError {
            file: file.to_owned(),
            object: self.objects,
            document,
            field,
            problem,
            fix: fix.into(),
        });
    }

    fn other(&mut self, place: Place<'_>, field: &str, problem: String, fix: impl Into<String>) {
        self.fail(place, field, ManifestProblem::Other(problem), fix);
    }

    /// An error of decoding an object.
    fn undecodable(&mut self, place: Place<'_>, field: &str, problem: &str, fix: impl Into<String>) {
        let item = if place.in_list { "failed to decode list item: " } else { "" };
        self.other(place, field, format!("{item}{problem}"), fix);
    }

    // acceptFileObject
    fn object(&mut self, place: Place<'_>, object: &Value) {
        let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
        let (version, kind) = (text("apiVersion"), text("kind"));
        let wanted = self.kind.configuration_kind();
        let fix = || format!("give apiVersion: {GROUP_VERSION} and kind: {wanted}");
        let missing =
            [("Kind", kind), ("apiVersion", version)].into_iter().find(|(_, value)| value.is_empty());
        if let Some((key, _)) = missing {
            return self.undecodable(place, "", &format!("Object '{key}' is missing"), fix());
        }
        // kube-apiserver decodes this kind in any version.
        if kind == "List" {
            return self.list(place, object, |manifests, place, item| {
                manifests.object(Place { in_list: true, ..place }, item);
            });
        }
        let api_version = version.strip_prefix("admissionregistration.k8s.io/");
        let api_version = api_version.filter(|version| VERSIONS.contains(version));
        let singular = kind.strip_suffix("List").unwrap_or(kind);
        match api_version {
            Some("v1") if kind == wanted => self.configuration(place, object),
            Some("v1") if singular == wanted => self.list(place, object, Self::configuration),
            Some(api_version) if KINDS.contains(&singular) => {
                let problem = format!("unsupported resource type *{api_version}.{kind}");
                let other = [WebhookKind::Mutating, WebhookKind::Validating]
                    .into_iter()
                    .find(|other| other.configuration_kind() == singular && *other != self.kind);
                let fix = match other {
                    Some(WebhookKind::Mutating) => {
                        "move it to the staticManifestsDir of MutatingAdmissionWebhook".to_owned()
                    }
                    Some(WebhookKind::Validating) => {
                        "move it to the staticManifestsDir of ValidatingAdmissionWebhook".to_owned()
                    }
                    None => fix(),
                };
                self.other(place, "kind", problem, fix);
            }
            _ => {
                let problem =
                    format!("no kind {} is registered for version {}", Quoted(kind), Quoted(version));
                self.undecodable(place, "kind", &problem, fix());
            }
        }
    }

    fn list(&mut self, place: Place<'_>, object: &Value, accept: impl Fn(&mut Self, Place<'_>, &Value)) {
        // Items are decoded by themselves.
        let keep_items = |known: &mut Value| {
            if let (Some(known), Some(items)) = (known.get_mut("items"), object.get("items")) {
                known.clone_from(items);
            }
        };
        match strict::decode::<wire::List>(object, keep_items) {
            Ok(list) => {
                for (index, item) in list.items.iter().enumerate() {
                    let path = format!("{}items[{index}].", place.path);
                    self.objects += 1;
                    accept(self, Place { path: &path, ..place }, item);
                }
            }
            Err(DecodeError { field, problem, fix }) => self.undecodable(place, &field, &problem, fix),
        }
    }

    fn configuration(&mut self, place: Place<'_>, object: &Value) {
        let configuration = match WebhookConfiguration::decode(self.kind, object) {
            Ok(configuration) => configuration,
            Err(DecodeError { field, problem, fix }) => {
                return self.undecodable(place, &field, &problem, fix);
            }
        };
        let before = self.errors.len();
        let name = configuration.name();
        let webhooks = configuration.webhooks(&mut self.context);
        let webhooks = webhooks.unwrap_or_else(|errors| {
            let configuration = format!("{} {}", self.kind.configuration_kind(), Quoted(name));
            for error in errors {
                let text = error.to_string();
                let problem = ManifestProblem::Invalid { configuration: configuration.clone(), error: text };
                let FieldError { field, fix, .. } = error;
                self.fail(place, &field, problem, fix);
            }
            Vec::new()
        });
        self.name(place, name);
        self.client_configs(place, &configuration);
        if self.errors.len() == before {
            for FieldWarning { field, text } in configuration.warnings(self.release) {
                self.warnings.push(ManifestWarning {
                    file: place.file.to_owned(),
                    document: place.document,
                    field: format!("{}{field}", place.path),
                    text: format!("{field}: {text}"),
                });
            }
            self.configurations.insert(name.to_owned(), webhooks);
        }
    }

    // ValidateManifestName
    fn name(&mut self, place: Place<'_>, name: &str) {
        let file = Quoted(place.file);
        // Validation has reported a missing name.
        if name.is_empty() {
            return;
        }
        let quoted = Quoted(name);
        if !name.ends_with(STATIC_SUFFIX) {
            let problem = format!("{quoted} in file {file} must have a name ending with \"{STATIC_SUFFIX}\"");
            return self.other(place, "metadata.name", problem, NAME_FIX);
        }
        if let Some(first) = self.names.get(name) {
            let problem = format!(
                "duplicate name {quoted} found in file {file} (previously seen in {})",
                Quoted(first)
            );
            return self.other(place, "metadata.name", problem, "give each configuration a name of its own");
        }
        self.names.insert(name.to_owned(), place.file.to_owned());
    }

    // ValidateWebhookClientConfig
    fn client_configs(&mut self, place: Place<'_>, configuration: &WebhookConfiguration) {
        for (index, webhook) in configuration.wire.webhooks.iter().enumerate() {
            let config = &webhook.client_config;
            let of = format!(
                "webhook {} in {} (file {})",
                Quoted(&webhook.name),
                Quoted(configuration.name()),
                Quoted(place.file)
            );
            // A missing URL is an error of validation.
            if config.service.is_some() {
                let problem = format!(
                    "{of}: clientConfig.service is not supported for static manifests; use clientConfig.url instead"
                );
                let field = format!("webhooks[{index}].clientConfig.service");
                self.other(place, &field, problem, SERVICE_FIX);
            }
        }
    }
}
