//! What the policies of both phases share: the namespace of a request, and the `Status` of a refusal.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};
use portcullis_go::quote::Quoted;
use serde_json::Value;

use crate::attributes::is_large;
use crate::{Attributes, MatchError, SharedObjects, Surroundings};

/// The namespace of a request, as policies see it.
#[derive(Debug, Clone, Default)]
pub(in crate::phases) struct SeenNamespace {
    /// `None` for a policy that does not use it.
    pub(in crate::phases) object: Option<Arc<Value>>,
    /// Whether it takes long to convert.
    pub(in crate::phases) is_large: bool,
}

/// The namespace of a request, once a policy needs it.
#[derive(Debug, Default)]
pub(in crate::phases) struct RequestNamespace(Option<SeenNamespace>);

impl RequestNamespace {
    /// What a policy sees of it, if it uses it; `null` for an object that is in none.
    // apiserver: pkg/admission/plugin/policy/validating/dispatcher.go, Dispatch; pkg/admission/plugin/cel/condition.go,
    // CreateNamespaceObject
    pub(in crate::phases) async fn get(
        &mut self,
        is_used: bool,
        attributes: &Attributes,
        surroundings: &impl Surroundings,
    ) -> Result<SeenNamespace, Box<Status>> {
        if !is_used {
            return Ok(SeenNamespace::default());
        }
        if let Some(known) = &self.0 {
            return Ok(known.clone());
        }
        let kind = &attributes.kind;
        let is_namespace =
            (kind.group.as_str(), kind.version.as_str(), kind.kind.as_str()) == ("", "v1", "Namespace");
        let name = if is_namespace { "" } else { attributes.namespace.as_str() };
        let object = if name.is_empty() {
            Value::Null
        } else {
            shown(surroundings.namespace(name).await.map_err(MatchError::into_status)?)
        };
        let is_large = is_large(&object);
        Ok(self.0.insert(SeenNamespace { object: Some(Arc::new(object)), is_large }).clone())
    }
}

/// What of the error of an evaluation is for the log: which expression, or which step. The rest may quote an object, such as a Secret.
pub(in crate::phases) fn without_values(error: &str) -> &str {
    let end = error.find(" resulted in error: ").or_else(|| error.find(": "));
    end.and_then(|end| error.get(..end)).unwrap_or(error)
}

/// What policies see of a namespace.
fn shown(namespace: Value) -> Value {
    const METADATA: [&str; 12] = [
        "name",
        "generateName",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "labels",
        "annotations",
        "finalizers",
    ];
    let mut namespace = namespace;
    if let Some(fields) = namespace.as_object_mut() {
        fields.retain(|field, _| matches!(field.as_str(), "metadata" | "spec" | "status"));
    }
    if let Some(metadata) = namespace.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|field, _| METADATA.contains(&field.as_str()));
    }
    namespace
}

/// The object of a request that is refused.
// apiserver: pkg/admission/errors.go, NewForbidden, extractResourceName
pub(in crate::phases) struct RefusedObject<'a> {
    attributes: &'a Attributes,
    name: &'a str,
}

impl<'a> RefusedObject<'a> {
    pub(in crate::phases) fn of(attributes: &'a Attributes, objects: &'a SharedObjects) -> Self {
        let metadata = objects.object.as_ref().and_then(|object| object.get("metadata"));
        let field = |name: &str| {
            let text = metadata.and_then(|metadata| metadata.get(name)).and_then(Value::as_str);
            text.filter(|text| !text.is_empty())
        };
        let name = Some(attributes.name.as_str()).filter(|name| !name.is_empty());
        let name = name.or_else(|| field("name")).or_else(|| field("generateName")).unwrap_or("Unknown");
        Self { attributes, name }
    }

    /// The message of a refusal with this reason.
    pub(in crate::phases) fn is_forbidden(&self, why: &str) -> String {
        let (group, resource) = (&self.attributes.resource.group, &self.attributes.resource.resource);
        let qualified = if group.is_empty() { resource.clone() } else { format!("{resource}.{group}") };
        format!("{qualified} {} is forbidden: {why}", Quoted(self.name))
    }

    /// The refusal.
    pub(in crate::phases) fn status(
        &self,
        message: String,
        causes: Vec<String>,
        (reason, code): (&str, i32),
    ) -> Box<Status> {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let cause = |message| StatusCause { message: Some(message), ..StatusCause::default() };
        Box::new(Status {
            status: Some("Failure".to_owned()),
            code: Some(code),
            reason: Some(reason.to_owned()),
            message: Some(message),
            details: Some(StatusDetails {
                name: text(self.name),
                group: text(&self.attributes.resource.group),
                kind: text(&self.attributes.resource.resource),
                causes: Some(causes.into_iter().map(cause).collect()),
                ..StatusDetails::default()
            }),
            ..Status::default()
        })
    }
}
