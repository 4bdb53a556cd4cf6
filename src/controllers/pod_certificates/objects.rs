//! The objects that a request is about: the pod, its service account, its node and its namespace. Each is read when the
//! request is processed, from the API server itself: a cache could have a pod that is gone.

use k8s_openapi::jiff::Timestamp;
use kube::api::GetParams;
use kube::core::Request;
use portcullis_go::json::JsonValue;
use portcullis_go::url::path_segment;
use portcullis_system::clock::UnixTime;
use serde_json::Value;

use super::request::PodRequest;
use crate::backend::bounded_client::MaxBytes;
use crate::backend::response_size::is_too_large;
use crate::controllers::ControllerContext;

/// The maximum size of an object in JSON.
const MAX_OBJECT: usize = 1024 * 1024;
/// The maximum number of `{`, `[` and `,` in an object: many small values take a hundred times the memory of their text.
/// A node with fifty images has about 500.
const MAX_VALUES: usize = 10_000;

/// The result of reading an object.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ReadObject {
    Found(Value),
    Gone,
    /// The object would take too much memory.
    TooLarge,
}

/// The objects of a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RequestObjects {
    pub(super) pod: ReadObject,
    pub(super) service_account: ReadObject,
    pub(super) node: ReadObject,
    /// Not read unless an expression uses it.
    pub(super) namespace: Option<ReadObject>,
}

/// Reads the objects of a request. The names in a request are those of the API server, which has checked them.
pub(super) async fn read_objects(
    context: &ControllerContext,
    request: &PodRequest,
    with_namespace: bool,
) -> kube::Result<RequestObjects> {
    let (namespace, spec) = (&*request.metadata.namespace, &request.spec);
    let namespace_read = async {
        if with_namespace { read(context, "/api/v1/namespaces", namespace).await.map(Some) } else { Ok(None) }
    };
    let (pod, service_account, node, namespace) = tokio::try_join!(
        read_pod(context, request),
        read_in(context, namespace, "serviceaccounts", &spec.service_account_name),
        read(context, "/api/v1/nodes", &spec.node_name),
        namespace_read,
    )?;
    Ok(RequestObjects { pod, service_account, node, namespace })
}

/// Reads the pod of a request.
pub(super) async fn read_pod(context: &ControllerContext, request: &PodRequest) -> kube::Result<ReadObject> {
    read_in(context, &request.metadata.namespace, "pods", &request.spec.pod_name).await
}

async fn read_in(
    context: &ControllerContext,
    namespace: &str,
    resource: &str,
    name: &str,
) -> kube::Result<ReadObject> {
    // No object is in a namespace with such a name.
    let Ok(namespace) = path_segment(namespace) else { return Ok(ReadObject::Gone) };
    read(context, &format!("/api/v1/namespaces/{namespace}/{resource}"), name).await
}

/// Reads an object of a collection.
// threat: object-name-escape, pod-request-flood
pub(super) async fn read(
    context: &ControllerContext,
    collection: &str,
    name: &str,
) -> kube::Result<ReadObject> {
    let Ok(at) = path_segment(name) else { return Ok(ReadObject::Gone) };
    let request = Request::new(collection).get(&at, &GetParams::default());
    let mut request = request.map_err(kube::Error::BuildRequest)?;
    request.extensions_mut().insert(MaxBytes(MAX_OBJECT));
    let text = match context.client.request_text(request).await {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(ReadObject::Gone),
        Err(error) if is_too_large(&error) => return Ok(ReadObject::TooLarge),
        text => text?,
    };
    if text.bytes().filter(|byte| b"{[,".contains(byte)).count() > MAX_VALUES {
        return Ok(ReadObject::TooLarge);
    }
    let object = serde_json::from_str::<JsonValue>(&text).map_err(kube::Error::SerdeError)?;
    let JsonValue(mut object) = object;
    if field(&object, &["metadata", "name"]) != name {
        return Ok(ReadObject::Gone);
    }
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.remove("managedFields");
    }
    Ok(ReadObject::Found(object))
}

/// The text of a field; empty if it is absent.
pub(super) fn field<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    path.iter().try_fold(object, |value, key| value.get(key)).and_then(Value::as_str).unwrap_or_default()
}

/// When the object was, or will be, deleted; a time that does not parse is in the past.
pub(super) fn deletion(object: &Value) -> Option<UnixTime> {
    let text = field(object, &["metadata", "deletionTimestamp"]);
    if text.is_empty() {
        return None;
    }
    let seconds = text.parse::<Timestamp>().map_or(0, Timestamp::as_second);
    Some(UnixTime::from_secs(u64::try_from(seconds).unwrap_or_default()))
}
