//! An audit event, `audit.k8s.io/v1` `Event`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use portcullis_go::time::Date;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// How much of a request is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Level {
    /// Nothing.
    None,
    /// Who did what to which object, and with what result.
    Metadata,
    /// Also the object or patch of the request.
    Request,
    /// Also the object of the response.
    RequestResponse,
}

/// When an event of a request is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Stage {
    /// The client is authenticated.
    RequestReceived,
    /// The header of the response to a long-running request is sent.
    ResponseStarted,
    /// The response has ended.
    ResponseComplete,
    /// Handling the request panicked.
    Panic,
}

/// An audit event. Its fields, and their order, are those of `audit.k8s.io/v1`; `kind` and `apiVersion` are written by
/// the sinks, since the items of an `EventList` have none.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// The level of the rule that matched.
    pub level: Level,
    /// The ID of the request, which all its events and the API server's share.
    #[serde(rename = "auditID")]
    pub audit_id: String,
    /// The stage.
    pub stage: Stage,
    /// The path and query.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// The verb of Kubernetes; for a request without a resource the method in lower case.
    pub verb: Cow<'static, str>,
    /// The client.
    pub user: Arc<UserInfo>,
    /// The user as whom the request is made, if it is not the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impersonated_user: Option<Arc<UserInfo>>,
    /// How the impersonation was authorized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentication_metadata: Option<AuthenticationMetadata>,
    /// The addresses from which the request came, the client's first.
    #[serde(rename = "sourceIPs", skip_serializing_if = "Vec::is_empty")]
    pub source_ips: Vec<String>,
    /// The `User-Agent` header, cut at 1,024 bytes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user_agent: String,
    /// The object that the request names; `None` for a request without a resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_ref: Option<ObjectReference>,
    /// The result; `None` while there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_status: Option<ResponseStatus>,
    /// The object or patch of the request, as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_object: Option<Arc<RawValue>>,
    /// The object of the response, as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_object: Option<Arc<RawValue>>,
    /// When the request was received.
    #[serde(serialize_with = "micro_time")]
    pub request_received_timestamp: SystemTime,
    /// When the stage was reached.
    #[serde(serialize_with = "micro_time")]
    pub stage_timestamp: SystemTime,
    /// What authentication, authorization and admission have noted.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A user, `authentication.k8s.io/v1` `UserInfo`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct UserInfo {
    /// The name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub username: String,
    /// The unique ID.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Further attributes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// How a request was authenticated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthenticationMetadata {
    /// The verb of the constrained impersonation that was authorized.
    pub impersonation_constraint: String,
}

/// The object that a request names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    /// The resource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource: String,
    /// The namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The UID.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The API group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    /// The version of the API group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// The resource version.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// The subresource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subresource: String,
}

/// The result of a request: the fields of a `Status` that kube-apiserver copies.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ResponseStatus {
    /// Always empty.
    pub metadata: Empty,
    /// `Success` or `Failure`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// The message for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The reason for programs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The details, as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Box<RawValue>>,
    /// The status code of HTTP.
    #[serde(skip_serializing_if = "is_zero")]
    pub code: u16,
}

/// An empty JSON object.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Empty {}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature of serde")]
fn is_zero(code: &u16) -> bool {
    *code == 0
}

/// `metav1.MicroTime`: UTC, six digits of a second.
fn micro_time<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let date = Date::of(i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
    let Date { year, month, day, hour, minute, second, .. } = date;
    let micros = since.subsec_micros();
    serializer.collect_str(&format_args!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z"
    ))
}
