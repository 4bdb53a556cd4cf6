//! `AdmissionReview` and `Status` objects, decoded as Kubernetes decodes them: names are case-sensitive, of repeated ones the
//! last value wins and objects are merged, `null` is the zero value, and errors have Go's texts.
// apimachinery: pkg/runtime/serializer/json/json.go, Serializer.Decode; sigs.k8s.io/json

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, Status, StatusCause, StatusDetails};
use portcullis_go::json::raw::{self as json, JsonType};
use portcullis_go::quote::Quoted;

use super::base64;
use crate::ReviewVersion;

/// The name of the registry of types that is in kube-apiserver's error texts.
const SCHEME: &str = "pkg/runtime/scheme.go:111";

const GROUP: &str = "admission.k8s.io";

/// Kinds that kube-apiserver's decoder knows in the groups of all its types.
const OPTION_KINDS: &[&str] = &[
    "CreateOptions",
    "DeleteOptions",
    "GetOptions",
    "ListOptions",
    "PatchOptions",
    "UpdateOptions",
    "WatchEvent",
];

/// Kinds that it knows in any group.
const UNVERSIONED_KINDS: &[&str] = &["Status", "APIVersions", "APIGroup", "APIGroupList", "APIResourceList"];

/// A review, as far as it matters in a response.
#[derive(Debug, Default)]
pub(super) struct Review {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) response: Option<Response>,
}

#[derive(Debug, Default)]
pub(super) struct Response {
    pub(super) uid: String,
    pub(super) allowed: bool,
    pub(super) result: Option<Status>,
    pub(super) patch: Vec<u8>,
    pub(super) patch_type: Option<String>,
    pub(super) audit_annotations: BTreeMap<String, String>,
    pub(super) warnings: Vec<String>,
}

/// A field, for errors: the Go type that has it, its path and its own Go type.
#[derive(Clone, Copy)]
struct Field<'a>(&'a str, &'a str, &'a str);

impl Field<'_> {
    fn error(self, found: &str) -> String {
        let Self(owner, path, go_type) = self;
        format!("json: cannot unmarshal {found} into Go struct field {owner}.{path} of type {go_type}")
    }
}

/// Decodes a review of a version.
pub(super) fn review(version: ReviewVersion, body: &[u8]) -> Result<Review, String> {
    let short = version.short_name();
    let (group, found, kind) = interpret(body)?;
    let (group, found) = match (group.as_str(), found.as_str()) {
        ("" | GROUP, "") => (GROUP.to_owned(), short.to_owned()),
        (_, "") => return Err("Object 'apiVersion' is missing in the response".to_owned()),
        _ => (group, found),
    };
    let kind = if kind.is_empty() { "AdmissionReview" } else { kind.as_str() };
    if kind != "AdmissionReview" || group != GROUP || found != short {
        let is_known_version = group == GROUP && matches!(found.as_str(), "v1" | "v1beta1");
        let go_version = match kind {
            _ if UNVERSIONED_KINDS.contains(&kind) => "v1",
            "AdmissionReview" if is_known_version => found.as_str(),
            _ if is_known_version && OPTION_KINDS.contains(&kind) => "v1",
            _ => {
                let version = if group.is_empty() { found.clone() } else { format!("{group}/{found}") };
                let (kind, version) = (Quoted(kind), Quoted(&version));
                return Err(format!(
                    "no kind {kind} is registered for version {version} in scheme \"{SCHEME}\""
                ));
            }
        };
        if kind == "AdmissionReview" {
            // It is decoded before it would be converted.
            members_of_review(body, &found)?;
        }
        return Err(format!(
            "converting ({go_version}.{kind}) to ({short}.AdmissionReview): unknown conversion"
        ));
    }
    members_of_review(body, short)
}

fn members_of_review(body: &[u8], version: &str) -> Result<Review, String> {
    let mut review = Review::default();
    for (name, value) in members(body) {
        match name.as_str() {
            "apiVersion" => {
                text(&mut review.api_version, value, Field("AdmissionReview", "apiVersion", "string"))?;
            }
            "kind" => text(&mut review.kind, value, Field("AdmissionReview", "kind", "string"))?,
            "response" if is_null(value) => review.response = None,
            "response" => {
                object(value, Field("AdmissionReview", "response", &format!("{version}.AdmissionResponse")))?;
                response(review.response.get_or_insert_default(), value, version)?;
            }
            _ => {}
        }
    }
    Ok(review)
}

/// The `Status` in the body of an HTTP error, if it is one that tells a failure.
pub(super) fn failure(body: &[u8]) -> Option<Status> {
    let (group, version, kind) = interpret(body).ok()?;
    if kind != "Status" || (version.is_empty() && !group.is_empty()) || JsonType::of(body) != JsonType::Object
    {
        return None;
    }
    let mut status = Status::default();
    for (name, value) in members(body) {
        status_field(&mut status, &name, value, "").ok()?;
    }
    (status.status.as_deref() == Some("Failure")).then_some(status)
}

/// Group, version and kind. Here names differ in case only, as in Go's own decoder.
// apimachinery: pkg/runtime/serializer/json/meta.go, Interpret
fn interpret(body: &[u8]) -> Result<(String, String, String), String> {
    let failed = |text: String| format!("couldn't get version/kind; json parse error: {text}");
    json::check(body).map_err(failed)?;
    let (mut api_version, mut kind) = (String::new(), String::new());
    match JsonType::of(body) {
        JsonType::Object | JsonType::Null => {}
        other => {
            let fields = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
            return Err(failed(format!(
                "json: cannot unmarshal {} into Go value of type {fields}",
                other.name()
            )));
        }
    }
    for (name, value) in members(body) {
        let (place, field) = match folded(&name).as_str() {
            "apiversion" => (&mut api_version, "apiVersion"),
            "kind" => (&mut kind, "kind"),
            _ => continue,
        };
        text(place, value, Field("", field, "string")).map_err(failed)?;
    }
    let (group, version) = match api_version.matches('/').count() {
        0 => ("", api_version.as_str()),
        1 => api_version.split_once('/').unwrap_or_default(),
        _ => return Err(format!("unexpected GroupVersion string: {api_version}")),
    };
    Ok((group.to_owned(), version.to_owned(), kind))
}

/// A name in lower case, where two characters have an ASCII letter as their lower case.
// go: encoding/json, foldName
fn folded(name: &str) -> String {
    let fold = |c| match c {
        '\u{212a}' => 'k',
        '\u{17f}' => 's',
        c => c.to_ascii_lowercase(),
    };
    name.chars().map(fold).collect()
}

fn response(response: &mut Response, value: &[u8], short: &str) -> Result<(), String> {
    const OWNER: &str = "AdmissionResponse";
    for (name, value) in members(value) {
        match name.as_str() {
            "uid" => text(&mut response.uid, value, Field(OWNER, "response.uid", "types.UID"))?,
            "allowed" => match JsonType::of(value) {
                JsonType::Bool => response.allowed = value.first() == Some(&b't'),
                JsonType::Null => {}
                other => return Err(Field(OWNER, "response.allowed", "bool").error(other.name())),
            },
            "status" if is_null(value) => response.result = None,
            "status" => {
                object(value, Field(OWNER, "response.status", "v1.Status"))?;
                let status = response.result.get_or_insert_default();
                for (name, value) in members(value) {
                    status_field(status, &name, value, "response.status.")?;
                }
            }
            "patch" => octets(&mut response.patch, value, Field(OWNER, "response.patch", "[]uint8"))?,
            "patchType" if is_null(value) => response.patch_type = None,
            "patchType" => {
                let go_type = format!("{short}.PatchType");
                let place = response.patch_type.get_or_insert_default();
                text(place, value, Field(OWNER, "response.patchType", &go_type))?;
            }
            "auditAnnotations" => annotations(&mut response.audit_annotations, value)?,
            "warnings" => warnings(&mut response.warnings, value)?,
            _ => {}
        }
    }
    Ok(())
}

fn annotations(annotations: &mut BTreeMap<String, String>, value: &[u8]) -> Result<(), String> {
    const PATH: &str = "response.auditAnnotations";
    if is_null(value) {
        annotations.clear();
        return Ok(());
    }
    object(value, Field("AdmissionResponse", PATH, "map[string]string"))?;
    for (key, value) in members(value) {
        let mut annotation = String::new();
        text(&mut annotation, value, Field("AdmissionResponse", PATH, "string"))?;
        annotations.insert(key, annotation);
    }
    Ok(())
}

fn warnings(warnings: &mut Vec<String>, value: &[u8]) -> Result<(), String> {
    const PATH: &str = "response.warnings";
    warnings.clear();
    if is_null(value) {
        return Ok(());
    }
    for value in items(value, Field("AdmissionResponse", PATH, "[]string"))? {
        let mut warning = String::new();
        text(&mut warning, value, Field("AdmissionResponse", PATH, "string"))?;
        warnings.push(warning);
    }
    Ok(())
}

/// Base64, or a list of numbers, as Go accepts it.
fn octets(octets: &mut Vec<u8>, value: &[u8], field: Field<'_>) -> Result<(), String> {
    match JsonType::of(value) {
        JsonType::Null => octets.clear(),
        JsonType::String => *octets = base64::decode(json::string(value).as_bytes())?,
        JsonType::Array => {
            octets.clear();
            for item in items(value, field)? {
                octets.push(match JsonType::of(item) {
                    JsonType::Null => 0,
                    JsonType::Number => {
                        let text = String::from_utf8_lossy(item);
                        let number = text.parse::<u8>().ok();
                        number.ok_or_else(|| {
                            Field(field.0, field.1, "uint8").error(&format!("number {text}"))
                        })?
                    }
                    other => return Err(Field(field.0, field.1, "uint8").error(other.name())),
                });
            }
        }
        other => return Err(field.error(other.name())),
    }
    Ok(())
}

// apimachinery: pkg/apis/meta/v1/types.go, Status
fn status_field(status: &mut Status, name: &str, value: &[u8], prefix: &str) -> Result<(), String> {
    let path = format!("{prefix}{name}");
    let field = |go_type| Field("Status", &path, go_type);
    match name {
        "status" => optional_text(&mut status.status, value, field("string")),
        "message" => optional_text(&mut status.message, value, field("string")),
        "reason" => optional_text(&mut status.reason, value, field("v1.StatusReason")),
        "code" => integer(&mut status.code, value, field("int32")),
        "metadata" if is_null(value) => Ok(()),
        "metadata" => {
            object(value, field("v1.ListMeta"))?;
            metadata(&mut status.metadata, value, &path)
        }
        "details" if is_null(value) => {
            status.details = None;
            Ok(())
        }
        "details" => {
            object(value, field("v1.StatusDetails"))?;
            details(status.details.get_or_insert_default(), value, &path)
        }
        "kind" | "apiVersion" => text(&mut String::new(), value, field("string")),
        _ => Ok(()),
    }
}

fn metadata(metadata: &mut ListMeta, value: &[u8], path: &str) -> Result<(), String> {
    for (name, value) in members(value) {
        let path = format!("{path}.{name}");
        let field = |go_type| Field("ListMeta", &path, go_type);
        match name.as_str() {
            "selfLink" => optional_text(&mut metadata.self_link, value, field("string"))?,
            "resourceVersion" => optional_text(&mut metadata.resource_version, value, field("string"))?,
            "continue" => optional_text(&mut metadata.continue_, value, field("string"))?,
            "remainingItemCount" if is_null(value) => metadata.remaining_item_count = None,
            "remainingItemCount" => integer(&mut metadata.remaining_item_count, value, field("int64"))?,
            _ => {}
        }
    }
    Ok(())
}

fn details(details: &mut StatusDetails, value: &[u8], path: &str) -> Result<(), String> {
    for (name, value) in members(value) {
        let path = format!("{path}.{name}");
        let field = |go_type| Field("StatusDetails", &path, go_type);
        match name.as_str() {
            "name" => optional_text(&mut details.name, value, field("string"))?,
            "group" => optional_text(&mut details.group, value, field("string"))?,
            "kind" => optional_text(&mut details.kind, value, field("string"))?,
            "uid" => optional_text(&mut details.uid, value, field("types.UID"))?,
            "retryAfterSeconds" => integer(&mut details.retry_after_seconds, value, field("int32"))?,
            "causes" if is_null(value) => details.causes = None,
            "causes" => {
                let values = items(value, field("[]v1.StatusCause"))?;
                let causes = values.into_iter().map(|value| cause(value, &path));
                details.causes = Some(causes.collect::<Result<_, _>>()?);
            }
            _ => {}
        }
    }
    Ok(())
}

fn cause(value: &[u8], path: &str) -> Result<StatusCause, String> {
    let mut cause = StatusCause::default();
    if is_null(value) {
        return Ok(cause);
    }
    object(value, Field("StatusDetails", path, "v1.StatusCause"))?;
    for (name, value) in members(value) {
        let path = format!("{path}.{name}");
        let field = |go_type| Field("StatusCause", &path, go_type);
        match name.as_str() {
            "reason" => optional_text(&mut cause.reason, value, field("v1.CauseType"))?,
            "message" => optional_text(&mut cause.message, value, field("string"))?,
            "field" => optional_text(&mut cause.field, value, field("string"))?,
            _ => {}
        }
    }
    Ok(cause)
}

fn members(value: &[u8]) -> impl Iterator<Item = (String, &[u8])> {
    json::members(value).into_iter().map(|(name, range)| (name, value.get(range).unwrap_or_default()))
}

fn items<'a>(value: &'a [u8], field: Field<'_>) -> Result<Vec<&'a [u8]>, String> {
    match JsonType::of(value) {
        JsonType::Array => {
            Ok(json::elements(value).into_iter().map(|range| value.get(range).unwrap_or_default()).collect())
        }
        other => Err(field.error(other.name())),
    }
}

fn is_null(value: &[u8]) -> bool {
    JsonType::of(value) == JsonType::Null
}

fn object(value: &[u8], field: Field<'_>) -> Result<(), String> {
    match JsonType::of(value) {
        JsonType::Object => Ok(()),
        other => Err(field.error(other.name())),
    }
}

fn text(place: &mut String, value: &[u8], field: Field<'_>) -> Result<(), String> {
    match JsonType::of(value) {
        JsonType::String => *place = json::string(value),
        JsonType::Null => {}
        other => return Err(field.error(other.name())),
    }
    Ok(())
}

fn optional_text(place: &mut Option<String>, value: &[u8], field: Field<'_>) -> Result<(), String> {
    let mut found = place.take().unwrap_or_default();
    text(&mut found, value, field)?;
    *place = Some(found).filter(|found| !found.is_empty());
    Ok(())
}

fn integer<N: TryFrom<i64>>(place: &mut Option<N>, value: &[u8], field: Field<'_>) -> Result<(), String> {
    match JsonType::of(value) {
        JsonType::Number => {
            let text = String::from_utf8_lossy(value);
            let number = text.parse::<i64>().ok().and_then(|number| N::try_from(number).ok());
            *place = Some(number.ok_or_else(|| field.error(&format!("number {text}")))?);
        }
        JsonType::Null => {}
        other => return Err(field.error(other.name())),
    }
    Ok(())
}
