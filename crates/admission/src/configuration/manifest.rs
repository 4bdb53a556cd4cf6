//! Static manifests: the objects in a folder. Each plugin has a folder of its own.
//!
//! Follows `k8s.io/apiserver/pkg/admission/plugin/{webhook,policy}/manifest/loader/loader.go` and
//! `k8s.io/kubernetes/pkg/admission/plugin/{webhook,policy}/manifest/loader`.

mod policies;
mod webhooks;

use std::collections::BTreeMap;
use std::fmt;

use portcullis_go::quote::Quoted;
use portcullis_kubernetes::field::FieldError;
use portcullis_kubernetes::release::Release;
use portcullis_kubernetes::strict::{self, DecodeError};
use serde_json::Value;

use super::{FieldWarning, ValidationContext, wire};
pub use policies::PoliciesOfFolder;
pub use webhooks::WebhooksOfFolder;

const GROUP_VERSION: &str = "admissionregistration.k8s.io/v1";
/// The end of the names of static configurations, which the API refuses.
// apiserver: pkg/admission/plugin/manifest/validation.go, StaticConfigSuffix
const STATIC_SUFFIX: &str = ".static.k8s.io";
const NAME_FIX: &str = "give metadata.name: NAME.static.k8s.io; only manifests have such names";
/// The versions of the API group, and the kinds of each that kube-apiserver knows, with the plugin here that reads them.
const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
const KINDS: [(&str, Option<&str>); 6] = [
    ("MutatingAdmissionPolicy", Some("MutatingAdmissionPolicy")),
    ("MutatingAdmissionPolicyBinding", Some("MutatingAdmissionPolicy")),
    ("MutatingWebhookConfiguration", Some("MutatingAdmissionWebhook")),
    ("ValidatingAdmissionPolicy", Some("ValidatingAdmissionPolicy")),
    ("ValidatingAdmissionPolicyBinding", Some("ValidatingAdmissionPolicy")),
    ("ValidatingWebhookConfiguration", Some("ValidatingAdmissionWebhook")),
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

/// What a plugin reads of its folder.
pub trait FolderContent {
    /// What it makes of the objects.
    type Item;

    /// The kinds of the objects; the first one is in the advice for others.
    fn kinds(&self) -> &'static [&'static str];

    /// Takes an object of one of these kinds.
    fn accept(&mut self, kind: &str, object: &Value, at: Place<'_>, folder: &mut Folder);

    /// The result, when all objects are known.
    fn finish(self, folder: &mut Folder) -> Vec<Self::Item>;
}

/// Collects the objects of a folder.
#[derive(Debug)]
pub struct Manifests<C> {
    content: C,
    folder: Folder,
}

/// What is known of a folder, whatever its objects are.
#[derive(Debug)]
pub struct Folder {
    release: Release,
    context: ValidationContext,
    errors: Vec<ManifestError>,
    warnings: Vec<ManifestWarning>,
    /// The number of objects so far.
    objects: usize,
}

/// Where an object is.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    file: &'a str,
    document: usize,
    /// The path of the object, with a dot at its end unless it is empty.
    path: &'a str,
    /// Whether it is an item of a `List`, whose items are decoded one by one.
    in_list: bool,
}

impl<C: FolderContent> Manifests<C> {
    fn of(content: C, release: Release) -> Self {
        let (errors, warnings) = (Vec::new(), Vec::new());
        let context = ValidationContext::new(release);
        Self { content, folder: Folder { release, context, errors, warnings, objects: 0 } }
    }

    /// Adds a document of a file. Add files in alphabetical order and documents in order.
    pub fn add(&mut self, file: &str, document: usize, object: &Value) {
        self.folder.objects += 1;
        self.object(Place { file, document, path: "", in_list: false }, object);
    }

    /// Takes the warnings about what was added.
    pub fn take_warnings(&mut self) -> Vec<ManifestWarning> {
        std::mem::take(&mut self.folder.warnings)
    }

    /// What the plugin has: by names in byte order, then as listed. Or every error.
    pub fn finish(mut self) -> Result<Vec<C::Item>, Vec<ManifestError>> {
        let items = self.content.finish(&mut self.folder);
        if self.folder.errors.is_empty() { Ok(items) } else { Err(self.folder.errors) }
    }

    // acceptFileObject
    fn object(&mut self, place: Place<'_>, object: &Value) {
        let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
        let (version, kind) = (text("apiVersion"), text("kind"));
        let ours = self.content.kinds();
        let fix = || format!("give apiVersion: {GROUP_VERSION} and kind: {}", ours.join(" or "));
        let missing =
            [("Kind", kind), ("apiVersion", version)].into_iter().find(|(_, value)| value.is_empty());
        if let Some((key, _)) = missing {
            return self.folder.undecodable(place, "", &format!("Object '{key}' is missing"), fix());
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
        let known = KINDS.iter().find(|(known, _)| *known == singular);
        match (api_version, known) {
            (Some("v1"), _) if ours.contains(&kind) => {
                self.content.accept(kind, object, place, &mut self.folder);
            }
            (Some("v1"), _) if ours.contains(&singular) => {
                self.list(place, object, |manifests, place, item| {
                    manifests.content.accept(singular, item, place, &mut manifests.folder);
                });
            }
            (Some(api_version), Some((_, plugin))) => {
                let problem = format!("unsupported resource type *{api_version}.{kind}");
                let fix = match plugin {
                    Some(plugin) if !ours.contains(&singular) => {
                        format!("move it to the staticManifestsDir of {plugin}")
                    }
                    _ => fix(),
                };
                self.folder.other(place, "kind", problem, fix);
            }
            _ => {
                let problem =
                    format!("no kind {} is registered for version {}", Quoted(kind), Quoted(version));
                self.folder.undecodable(place, "kind", &problem, fix());
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
                    self.folder.objects += 1;
                    accept(self, Place { path: &path, ..place }, item);
                }
            }
            Err(DecodeError { field, problem, fix }) => {
                self.folder.undecodable(place, &field, &problem, fix);
            }
        }
    }
}

impl Folder {
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

    /// The errors of validating an object.
    fn invalid(&mut self, place: Place<'_>, (kind, name): (&str, &str), errors: Vec<FieldError>) {
        let configuration = format!("{kind} {}", Quoted(name));
        for error in errors {
            let text = error.to_string();
            let problem = ManifestProblem::Invalid { configuration: configuration.clone(), error: text };
            let FieldError { field, fix, .. } = error;
            self.fail(place, &field, problem, fix);
        }
    }

    fn warn(&mut self, place: Place<'_>, FieldWarning { field, text }: FieldWarning) {
        self.warnings.push(ManifestWarning {
            file: place.file.to_owned(),
            document: place.document,
            field: format!("{}{field}", place.path),
            text: format!("{field}: {text}"),
        });
    }

    /// Checks the name of an object, beside those of its kind so far with their files.
    // ValidateManifestName
    fn name(&mut self, place: Place<'_>, name: &str, names: &mut BTreeMap<String, String>) {
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
        if let Some(first) = names.get(name) {
            let problem = format!(
                "duplicate name {quoted} found in file {file} (previously seen in {})",
                Quoted(first)
            );
            return self.other(place, "metadata.name", problem, "give each configuration a name of its own");
        }
        names.insert(name.to_owned(), place.file.to_owned());
    }
}
