//! `portcullis admit`: shows a manifest, or a recorded review, to the configured admission webhooks and policies, without a cluster.

mod report;
mod type_warnings;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use portcullis_admission::{
    Attributes, GroupVersionKind, GroupVersionResource, Objects, Operation, UserInfo,
};
use portcullis_kubernetes::yaml;
use portcullis_merge::{Declarations, SchemaError, Schemas};
use portcullis_tools::output::{Output, print};
use rustls::crypto::aws_lc_rs::default_provider;
use serde_json::{Value, json};

use self::report::{AdmitReport, ListReport};
use self::type_warnings::expression_warnings;
use super::{failed, misconfigured};
use crate::admission::Trial;
use crate::config::flags::ServeFlags;
use crate::state::effective_config::EffectiveConfig;

/// The largest file.
const MAX_FILE_BYTES: u64 = 16 << 20;

pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis admit --config gateway.yaml -f deployment.yaml
  portcullis admit --config gateway.yaml -f new.yaml --old old.yaml --operation update --user alice
  portcullis admit --config gateway.yaml -f recorded-review.json --output json | jq .allowed
  kubectl get configmaps -o yaml | portcullis admit --config gateway.yaml -f -

A List is shown object by object. Each object is shown as it is in the file: without the defaults of an API server.";

/// The flags of `portcullis admit`: those of `serve`, and the request.
#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub(super) struct AdmitFlags {
    /// The object, a List of objects, or an AdmissionReview, in YAML or JSON; - for standard input.
    #[arg(short, long, value_name = "FILE", help_heading = "Request")]
    filename: PathBuf,
    /// The stored object, of an update or a deletion.
    #[arg(long, value_name = "FILE", help_heading = "Request")]
    old: Option<PathBuf>,
    /// What the request does. Default: update with --old, else create.
    #[arg(long, value_enum, value_name = "OPERATION", help_heading = "Request")]
    operation: Option<OperationFlag>,
    /// The resource, in the plural, if it is not the plural of the kind.
    #[arg(long, value_name = "RESOURCE[/SUBRESOURCE]", help_heading = "Request")]
    resource: Option<String>,
    /// The user who makes the request.
    #[arg(long, value_name = "USER", default_value = "kubernetes-admin", help_heading = "Request")]
    user: String,
    /// A group of the user. Repeat for several groups.
    #[arg(long, value_name = "GROUP", help_heading = "Request")]
    group: Vec<String>,
    /// A label of the namespace. Repeat for several labels.
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Request")]
    namespace_label: Vec<String>,
    /// An OpenAPI document of an API server, as `kubectl get --raw /openapi/v3/apis/apps/v1` writes it: an ApplyConfiguration
    /// of a mutating policy is merged by it, and the types of the policies' expressions are checked. Repeat for several groups
    /// and versions.
    #[arg(long, value_name = "FILE", help_heading = "Request")]
    openapi: Vec<PathBuf>,
    /// The cluster whose webhooks and policies are used, if the configuration has several.
    #[arg(long, value_name = "NAME", help_heading = "Request")]
    cluster: Option<String>,
    /// How to print the result.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
    // Last: the command's own flags are first in its help.
    #[command(flatten)]
    pub(super) serve: ServeFlags,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OperationFlag {
    Create,
    Update,
    Delete,
    Connect,
}

pub(super) fn run(flags: &AdmitFlags) -> ExitCode {
    let settings = match EffectiveConfig::load(&flags.serve) {
        Ok(config) => config.settings,
        Err(errors) => return misconfigured(&errors),
    };
    let mut clusters = settings.clusters.iter();
    let cluster = match &flags.cluster {
        Some(name) => clusters.find(|cluster| cluster.name == *name),
        None if settings.clusters.len() == 1 => clusters.next(),
        None => None,
    };
    let Some(cluster) = cluster else {
        let names: Vec<_> = settings.clusters.iter().map(|cluster| cluster.name.as_str()).collect();
        return failed(&format!("--cluster: give one of {}", names.join(", ")));
    };
    let Some(admission) = &cluster.admission else {
        return failed(&format!("the cluster {} has no admission webhooks or policies", cluster.name));
    };
    let (requests, labels) = match flags.requests() {
        Ok(requests) => requests,
        Err(problem) => return failed(&problem),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.to_string()),
    };
    let documents = match flags.openapi.iter().map(document).collect::<Result<Vec<_>, String>>() {
        Ok(documents) => documents,
        Err(problem) => return failed(&problem),
    };
    let (schemas, declarations): (_, Vec<_>) = documents.into_iter().unzip();
    let expression_warnings = expression_warnings(&admission.policies, &declarations);
    let provider = Arc::new(default_provider());
    let trial = match Trial::new(admission, cluster.release, &provider, runtime.handle(), schemas) {
        Ok(trial) => trial,
        Err(error) => return failed(&error.to_string()),
    };
    let report = |(attributes, objects): (Attributes, Objects)| {
        let before = objects.object.clone();
        let result = runtime.block_on(trial.run(&attributes, objects, labels.clone()));
        AdmitReport::of(&attributes, result, before.as_ref())
    };
    let (allowed, printed) = match requests {
        Requests::One(request) => {
            let report = report(*request).with(expression_warnings);
            let text = flags.output.rendered(&report).unwrap_or_else(|| report.table());
            (report.allowed, print(&text))
        }
        Requests::List(requests) => {
            let items: Vec<_> = requests.into_iter().map(report).collect();
            let allowed = items.iter().all(|item| item.allowed);
            let list = ListReport { allowed, items, expression_warnings };
            let text = flags.output.rendered(&list).unwrap_or_else(|| list.table());
            (list.allowed, print(&text))
        }
    };
    if allowed { printed } else { ExitCode::FAILURE }
}

/// The schemas of a document, and its types for expressions.
fn document(file: &PathBuf) -> Result<(Arc<Schemas>, Declarations), String> {
    let problem = |error: &dyn std::fmt::Display| format!("--openapi {}: {error}", file.display());
    let text = std::fs::read(file).map_err(|error| problem(&error))?;
    let read = || Ok((Arc::new(Schemas::read(&text)?), Declarations::read(&text)?));
    read().map_err(|error: SchemaError| {
        problem(&format_args!("{error}; give a document of /openapi/v3, such as /openapi/v3/apis/apps/v1"))
    })
}

/// What the files describe.
enum Requests {
    One(Box<(Attributes, Objects)>),
    /// A request for each object of a `List`.
    List(Vec<(Attributes, Objects)>),
}

impl AdmitFlags {
    /// The requests that the flags and the files describe, and the labels of the namespace.
    fn requests(&self) -> Result<(Requests, BTreeMap<String, String>), String> {
        let labels = self.namespace_label.iter().map(|label| {
            let (key, value) =
                label.split_once('=').ok_or(format!("--namespace-label {label:?}: give KEY=VALUE"))?;
            Ok((key.to_owned(), value.to_owned()))
        });
        let labels = labels.collect::<Result<_, String>>()?;
        let given = read(&self.filename)?;
        let old = self.old.as_ref().map(read).transpose()?;
        if text(&given, "kind") == "AdmissionReview" {
            let request = given.get("request").and_then(recorded);
            let request = request.ok_or("the AdmissionReview has no request with an operation")?;
            return Ok((Requests::One(Box::new(request)), labels));
        }
        let given = match items_of(given)? {
            Items::Object(given) => given,
            Items::List(_) if old.is_some() || self.resource.is_some() => {
                return Err(format!(
                    "{}: it is a List; --old and --resource go with one object",
                    self.filename.display()
                ));
            }
            Items::List(items) => {
                let requests = items.into_iter().map(|item| self.described(item, None)).collect();
                return Ok((Requests::List(requests), labels));
            }
        };
        Ok((Requests::One(Box::new(self.described(given, old))), labels))
    }

    fn described(&self, given: Value, old: Option<Value>) -> (Attributes, Objects) {
        let operation = match self.operation {
            Some(OperationFlag::Update) => Operation::Update,
            Some(OperationFlag::Delete) => Operation::Delete,
            Some(OperationFlag::Connect) => Operation::Connect,
            None if old.is_some() => Operation::Update,
            Some(OperationFlag::Create) | None => Operation::Create,
        };
        let kind = kind_of(&given);
        let resource = self.resource.clone().unwrap_or_else(|| plural(&kind.kind));
        let (resource, subresource) = resource.split_once('/').unwrap_or((&resource, ""));
        let metadata = given.get("metadata").cloned().unwrap_or_default();
        let name = text(&metadata, "name").to_owned();
        let is_namespace = kind.group.is_empty() && resource == "namespaces";
        let options = match operation {
            Operation::Create => Some("CreateOptions"),
            Operation::Update => Some("UpdateOptions"),
            Operation::Delete => Some("DeleteOptions"),
            Operation::Connect => None,
        };
        let attributes = Attributes {
            operation,
            resource: GroupVersionResource {
                group: kind.group.clone(),
                version: kind.version.clone(),
                resource: resource.to_owned(),
            },
            kind,
            subresource: subresource.to_owned(),
            namespace: if is_namespace { name.clone() } else { text(&metadata, "namespace").to_owned() },
            name,
            user: UserInfo {
                username: self.user.clone(),
                groups: self.group.iter().cloned().chain(["system:authenticated".to_owned()]).collect(),
                ..UserInfo::default()
            },
            dry_run: true,
            options: options
                .map(|kind| json!({"kind": kind, "apiVersion": "meta.k8s.io/v1", "dryRun": ["All"]})),
        };
        let objects = match operation {
            Operation::Delete => Objects { object: None, old_object: Some(old.unwrap_or(given)) },
            _ => Objects { object: Some(given), old_object: old },
        };
        (attributes, objects)
    }
}

/// The request of a recorded review. Webhooks are called for a dry run.
fn recorded(request: &Value) -> Option<(Attributes, Objects)> {
    let operation = [Operation::Create, Operation::Update, Operation::Delete, Operation::Connect]
        .into_iter()
        .find(|operation| operation.as_str() == text(request, "operation"))?;
    let part = |object: &str, field: &str| {
        request.get(object).map(|object| text(object, field).to_owned()).unwrap_or_default()
    };
    let object = |name: &str| request.get(name).filter(|object| !object.is_null()).cloned();
    let user = request.get("userInfo").cloned().unwrap_or_default();
    let strings = |value: Option<&Value>| -> Vec<String> {
        value
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|item| Some(item.as_str()?.to_owned()))
            .collect()
    };
    let attributes = Attributes {
        operation,
        kind: GroupVersionKind {
            group: part("kind", "group"),
            version: part("kind", "version"),
            kind: part("kind", "kind"),
        },
        resource: GroupVersionResource {
            group: part("resource", "group"),
            version: part("resource", "version"),
            resource: part("resource", "resource"),
        },
        subresource: text(request, "subResource").to_owned(),
        name: text(request, "name").to_owned(),
        namespace: text(request, "namespace").to_owned(),
        user: UserInfo {
            username: text(&user, "username").to_owned(),
            uid: text(&user, "uid").to_owned(),
            groups: strings(user.get("groups")),
            extra: user
                .get("extra")
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
                .map(|(key, values)| (key.clone(), strings(Some(values))))
                .collect(),
        },
        dry_run: true,
        options: object("options"),
    };
    Some((attributes, Objects { object: object("object"), old_object: object("oldObject") }))
}

fn read(path: &PathBuf) -> Result<Value, String> {
    let problem = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let mut content = Vec::new();
    if path.as_os_str() == "-" {
        std::io::stdin().take(MAX_FILE_BYTES).read_to_end(&mut content).map_err(|error| problem(&error))?;
    } else {
        let file = std::fs::File::open(path).map_err(|error| problem(&error))?;
        file.take(MAX_FILE_BYTES).read_to_end(&mut content).map_err(|error| problem(&error))?;
    }
    let object = yaml::object(&content).map_err(|error| problem(&error))?;
    if text(&object, "kind").is_empty() {
        return Err(problem(&"it has no kind: give one object, or an AdmissionReview"));
    }
    Ok(object)
}

/// An object, or those of a `List`.
enum Items {
    Object(Value),
    List(Vec<Value>),
}

/// Takes the objects out of a `List`. Those of a list of one kind have the kind of the list, if they name none.
fn items_of(mut given: Value) -> Result<Items, String> {
    let (version, kind) = (text(&given, "apiVersion").to_owned(), text(&given, "kind").to_owned());
    let Some(of) = kind.strip_suffix("List") else { return Ok(Items::Object(given)) };
    let items = match given.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        Some(Value::Null) => Vec::new(),
        // A kind whose name ends so.
        None => return Ok(Items::Object(given)),
        Some(_) => return Err(format!("the items of the {kind} are not a list")),
    };
    let complete = |(index, mut item): (usize, Value)| {
        let fields =
            item.as_object_mut().ok_or_else(|| format!("items[{index}] of the {kind} is no object"))?;
        if !of.is_empty() {
            fields.entry("apiVersion").or_insert_with(|| version.clone().into());
            fields.entry("kind").or_insert_with(|| of.into());
        }
        if text(&item, "kind").is_empty() {
            return Err(format!("items[{index}] of the {kind} has no kind"));
        }
        Ok(item)
    };
    items.into_iter().enumerate().map(complete).collect::<Result<_, _>>().map(Items::List)
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn kind_of(object: &Value) -> GroupVersionKind {
    let (group, version) =
        text(object, "apiVersion").split_once('/').unwrap_or(("", text(object, "apiVersion")));
    GroupVersionKind {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: text(object, "kind").to_owned(),
    }
}

/// The plural of a kind.
// apimachinery: pkg/api/meta/restmapper.go, UnsafeGuessKindToResource
fn plural(kind: &str) -> String {
    let singular = kind.to_lowercase();
    if singular.ends_with("endpoints") {
        return singular;
    }
    match singular.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if singular.ends_with('s') => format!("{singular}es"),
        None => format!("{singular}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resource_is_the_plural_of_the_kind() {
        let cases = [
            ("Pod", "pods"),
            ("NetworkPolicy", "networkpolicies"),
            ("Ingress", "ingresses"),
            ("Endpoints", "endpoints"),
        ];
        for (kind, expected) in cases {
            assert_eq!(plural(kind), expected);
        }
    }

    #[test]
    fn a_list_is_its_objects() {
        let kinds = |given: Value| match items_of(given) {
            Ok(Items::List(items)) => items.iter().map(|item| text(item, "kind").to_owned()).collect(),
            Ok(Items::Object(object)) => vec![format!("one {}", text(&object, "kind"))],
            Err(problem) => vec![problem],
        };
        let pod = json!({"apiVersion": "v1", "kind": "Pod"});
        let table = [
            (
                json!({"apiVersion": "v1", "kind": "List", "items": [pod, {"kind": "Job"}]}),
                vec!["Pod", "Job"],
            ),
            (json!({"apiVersion": "v1", "kind": "PodList", "items": [{}, pod]}), vec!["Pod", "Pod"]),
            (json!({"apiVersion": "v1", "kind": "PodList", "items": null}), vec![]),
            (
                json!({"apiVersion": "v1", "kind": "List", "items": [{}]}),
                vec!["items[0] of the List has no kind"],
            ),
            (
                json!({"apiVersion": "v1", "kind": "List", "items": [1]}),
                vec!["items[0] of the List is no object"],
            ),
            (
                json!({"apiVersion": "v1", "kind": "List", "items": {}}),
                vec!["the items of the List are not a list"],
            ),
            (json!({"apiVersion": "x/v1", "kind": "AllowList", "spec": {}}), vec!["one AllowList"]),
        ];
        for (given, expected) in table {
            assert_eq!(kinds(given.clone()), expected, "{given}");
        }
    }

    #[test]
    fn a_recorded_review_is_the_request() {
        let review = json!({"operation": "UPDATE", "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
            "resource": {"group": "apps", "version": "v1", "resource": "deployments"}, "subResource": "scale",
            "name": "d", "namespace": "n", "userInfo": {"username": "u", "groups": ["g"], "extra": {"k": ["v"]}},
            "object": {"a": 1}, "oldObject": null, "options": null});
        let (attributes, objects) = recorded(&review).unwrap();
        assert_eq!((attributes.operation, attributes.subresource.as_str()), (Operation::Update, "scale"));
        assert_eq!(attributes.user.extra["k"], ["v"]);
        assert_eq!(objects, Objects { object: Some(json!({"a": 1})), old_object: None });
        assert!(recorded(&json!({"operation": "READ"})).is_none());
    }
}
