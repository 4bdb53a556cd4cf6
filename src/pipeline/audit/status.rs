//! The result of a request, as audit events have it.

use http::{Response, StatusCode};
use portcullis_audit::event::ResponseStatus;
use portcullis_kubernetes::encoding::Envelope;
use portcullis_kubernetes::status::render::StatusObject;
use prost::Message as _;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};

use super::objects::{self, Encoding};

/// The result of a request with a response that is no `Status`.
pub(super) fn of_code(code: StatusCode) -> ResponseStatus {
    ResponseStatus { code: code.as_u16(), ..ResponseStatus::default() }
}

/// The fields of a `Status` that kube-apiserver copies.
// apiserver: pkg/audit/context.go, LogResponseObject
pub(super) fn of_object(object: StatusObject, code: StatusCode) -> ResponseStatus {
    let StatusObject { status, message, reason, details, .. } = object;
    let details = details.and_then(|details| to_raw_value(&details).ok());
    ResponseStatus { status, message, reason, details, ..of_code(code) }
}

/// The fields of the `Status` in a body; `None` if it is another object.
pub(super) fn of_body(encoding: Encoding, body: &[u8], code: StatusCode) -> Option<ResponseStatus> {
    match encoding {
        Encoding::Json => of_json(body, code),
        Encoding::Yaml => of_json(objects::yaml_as_json(body)?.as_bytes(), code),
        Encoding::Protobuf => Some(of_object(protobuf(body)?, code)),
        Encoding::Other => None,
    }
}

fn of_json(body: &[u8], code: StatusCode) -> Option<ResponseStatus> {
    let read: StatusJson = serde_json::from_slice(body).ok()?;
    let StatusJson { kind, api_version, status, message, reason, details } = read;
    let is_status = kind == "Status" && api_version == "v1";
    is_status.then(|| ResponseStatus { status, message, reason, details, ..of_code(code) })
}

/// The `Status` in protobuf.
pub(super) fn protobuf(body: &[u8]) -> Option<StatusObject> {
    let Envelope { meta, raw, .. } = Envelope::read(body)?;
    let is_status = meta.kind == "Status" && meta.api_version == "v1";
    is_status.then(|| StatusObject::decode(raw.as_slice()).ok())?
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatusJson {
    kind: String,
    api_version: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    details: Option<Box<RawValue>>,
}

/// The result of a request whose handling has panicked.
// apiserver: pkg/endpoints/filters/audit.go
pub(super) fn of_panic() -> ResponseStatus {
    ResponseStatus {
        status: "Failure".to_owned(),
        message: "APIServer panic'd: the gateway's log has the cause".to_owned(),
        reason: "InternalError".to_owned(),
        ..of_code(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

/// The result of a request that has no response.
// apiserver: pkg/endpoints/filters/audit.go, fakedSuccessStatus
pub(super) fn of_no_response() -> ResponseStatus {
    ResponseStatus {
        status: "Success".to_owned(),
        message: "Connection closed early".to_owned(),
        ..of_code(StatusCode::OK)
    }
}

/// Whether a response may be a `Status`, so that its body is of interest at any level.
pub(super) fn may_be_status<B>(response: &Response<B>, is_read: bool) -> bool {
    !is_read || response.status().as_u16() >= 400
}
