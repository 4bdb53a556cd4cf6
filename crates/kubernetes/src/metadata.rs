//! The metadata of an object in a file, and its rules.
//!
//! Follows `pkg/api/validation/objectmeta.go` and `pkg/apis/meta/v1/validation/validation.go`.

use std::collections::BTreeMap;

use portcullis_go::quote::is_printable;
use portcullis_go::time::Time;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;

use crate::field::{FieldError, json_string};
use crate::labels::{annotation_errors, label_errors};
use crate::names::{dns_subdomain_problems, label_key_problems};
use crate::release::Release;

const NAME_FIX: &str = "give lower-case letters, digits, - and ., such as policy.example.com";
const OWNER_FIX: &str = "remove the owner: objects in a file have none";
const MAX_FIELD_MANAGER: usize = 128;
const MAX_SUBRESOURCE: usize = 256;

/// The metadata of an object.
// apimachinery: pkg/apis/meta/v1/types.go
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names of the API")]
pub struct ObjectMeta {
    pub name: String,
    pub generate_name: String,
    pub namespace: String,
    pub self_link: String,
    pub uid: String,
    pub resource_version: String,
    pub generation: i64,
    pub creation_timestamp: Timestamp,
    pub deletion_timestamp: Timestamp,
    pub deletion_grace_period_seconds: Option<i64>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub owner_references: Vec<OwnerReference>,
    pub finalizers: Vec<String>,
    pub managed_fields: Vec<ManagedFields>,
}

/// The metadata of a list.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names of the API")]
pub struct ListMeta {
    pub self_link: String,
    pub resource_version: String,
    #[serde(rename = "continue")]
    pub continue_token: String,
    pub remaining_item_count: Option<i64>,
    pub shard_info: Option<ShardInfo>,
}

/// The shard of a list.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names of the API")]
pub struct ShardInfo {
    pub selector: String,
}

/// An owner of an object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names of the API")]
pub struct OwnerReference {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    pub controller: Option<bool>,
    pub block_owner_deletion: Option<bool>,
}

/// The fields that a manager owns.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names of the API")]
pub struct ManagedFields {
    pub manager: String,
    pub operation: String,
    pub api_version: String,
    pub time: Timestamp,
    pub fields_type: String,
    #[serde(rename = "fieldsV1")]
    pub fields_v1: Value,
    pub subresource: String,
}

/// A time in RFC 3339, or none. Its value has no meaning in a file.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Timestamp(String);

impl<'de> Deserialize<'de> for Timestamp {
    // apimachinery: pkg/apis/meta/v1/time.go, UnmarshalJSON
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match Time::parse_rfc3339(&text) {
            Some(_) => Ok(Self(text)),
            None => Err(de::Error::custom("not a time such as 2006-01-02T15:04:05Z")),
        }
    }
}

/// The errors of the metadata of a cluster-scoped object whose name is a DNS subdomain.
// ValidateObjectMeta
pub fn cluster_object_errors(metadata: &ObjectMeta, field: &str, release: Release) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let child = |name: &str| format!("{field}.{name}");
    if !metadata.generate_name.is_empty() {
        let masked = without_trailing_dash(&metadata.generate_name);
        errors.extend(dns_subdomain_problems(&masked).into_iter().map(|problem| {
            FieldError::invalid(child("generateName"), &metadata.generate_name, problem).fix("remove it")
        }));
    }
    if metadata.name.is_empty() {
        errors.push(FieldError::required(child("name"), "name or generateName is required").fix(NAME_FIX));
    }
    let problems = if metadata.name.is_empty() { Vec::new() } else { dns_subdomain_problems(&metadata.name) };
    let problems = problems.into_iter();
    errors.extend(
        problems.map(|problem| FieldError::invalid(child("name"), &metadata.name, problem).fix(NAME_FIX)),
    );
    if !metadata.namespace.is_empty() {
        errors.push(FieldError::forbidden(child("namespace"), "not allowed on this type").fix("remove it"));
    }
    if metadata.generation < 0 {
        let problem = "must be greater than or equal to 0";
        let value = metadata.generation.to_string();
        errors.push(FieldError::invalid_json(child("generation"), &value, problem).fix("remove it"));
    }
    label_errors(&metadata.labels, &child("labels"), &mut errors);
    annotation_errors(&metadata.annotations, &child("annotations"), &mut errors);
    owner_errors(&metadata.owner_references, &child("ownerReferences"), release, &mut errors);
    finalizer_errors(&metadata.finalizers, &child("finalizers"), &mut errors);
    managed_field_errors(&metadata.managed_fields, &child("managedFields"), release, &mut errors);
    errors
}

/// A prefix of names as it is validated: the dash before the generated part belongs to no label's end.
// pkg/api/validation/generic.go, maskTrailingDash
fn without_trailing_dash(prefix: &str) -> String {
    match prefix
        .strip_suffix('-')
        .map(|rest| rest.char_indices().next_back().map(|(end, _)| rest.split_at(end)))
    {
        Some(Some((kept, _))) => format!("{kept}a"),
        _ => prefix.to_owned(),
    }
}

// ValidateOwnerReferences
fn owner_errors(owners: &[OwnerReference], field: &str, release: Release, errors: &mut Vec<FieldError>) {
    let fix = OWNER_FIX;
    let mut controller: Option<String> = None;
    for (index, owner) in owners.iter().enumerate() {
        if release.has_precise_metadata_errors() {
            owner_reference_errors(owner, &format!("{field}[{index}]"), errors);
        } else {
            owner_errors_before_1_37(owner, field, errors);
        }
        if owner.controller == Some(true) {
            let name = format!("{}/{}", owner.kind, owner.name);
            match &controller {
                Some(first) => {
                    let problem = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                    );
                    let all: Vec<String> = owners.iter().map(OwnerReference::json).collect();
                    let value = format!("[{}]", all.join(","));
                    errors.push(FieldError::invalid_json(field, &value, &problem).fix(fix));
                }
                None => controller = Some(name),
            }
        }
    }
}

// validateOwnerReference
fn owner_reference_errors(owner: &OwnerReference, field: &str, errors: &mut Vec<FieldError>) {
    let child = |name: &str| format!("{field}.{name}");
    let required = |name: &str| FieldError::required(child(name), "must not be empty").fix(OWNER_FIX);
    let version = owner.api_version.rsplit_once('/').map_or(&*owner.api_version, |(_, version)| version);
    if owner.api_version.is_empty() {
        errors.push(required("apiVersion"));
    } else if version.is_empty() || owner.api_version.matches('/').count() > 1 {
        let problem = "must be <group>/<version> or <version>";
        errors.push(FieldError::invalid(child("apiVersion"), &owner.api_version, problem).fix(OWNER_FIX));
    }
    let missing = owner.parts().into_iter().filter(|(_, value)| value.is_empty());
    errors.extend(missing.map(|(name, _)| required(name)));
    errors.extend(owner.banned(field));
}

// validateOwnerReference of 1.36
fn owner_errors_before_1_37(owner: &OwnerReference, field: &str, errors: &mut Vec<FieldError>) {
    let (_, version) = owner.api_version.rsplit_once('/').unwrap_or(("", &owner.api_version));
    // schema.FromAPIVersionAndKind: a version that does not parse yields an empty group and version.
    let has_version = !version.is_empty() && owner.api_version.matches('/').count() < 2;
    if !has_version {
        let field = format!("{field}.apiVersion");
        errors
            .push(FieldError::invalid(field, &owner.api_version, "version must not be empty").fix(OWNER_FIX));
    }
    for (name, _) in owner.parts().into_iter().filter(|(_, value)| value.is_empty()) {
        let field = format!("{field}.{name}");
        errors.push(FieldError::invalid_json(field, "\"\"", "must not be empty").fix(OWNER_FIX));
    }
    errors.extend(owner.banned(field));
}

impl OwnerReference {
    /// The fields that must not be empty beside the version, in the order of their errors.
    fn parts(&self) -> [(&'static str, &str); 3] {
        [("kind", &self.kind), ("name", &self.name), ("uid", &self.uid)]
    }

    /// The error of a kind that owns nothing.
    // BannedOwners
    fn banned(&self, field: &str) -> Option<FieldError> {
        let problem = "/v1, Kind=Event is disallowed from being an owner";
        (self.api_version == "v1" && self.kind == "Event")
            .then(|| FieldError::invalid_json(field, &self.json(), problem).fix(OWNER_FIX))
    }

    /// The JSON that Go writes.
    fn json(&self) -> String {
        let Self { api_version, kind, name, uid, controller, block_owner_deletion } = self;
        let [api_version, kind, name, uid] = [api_version, kind, name, uid].map(|text| json_string(text));
        let optional = |key: &str, value: &Option<bool>| {
            value.map_or_else(String::new, |value| format!(",\"{key}\":{value}"))
        };
        format!(
            "{{\"apiVersion\":{api_version},\"kind\":{kind},\"name\":{name},\"uid\":{uid}{}{}}}",
            optional("controller", controller),
            optional("blockOwnerDeletion", block_owner_deletion)
        )
    }
}

// ValidateFinalizers
fn finalizer_errors(finalizers: &[String], field: &str, errors: &mut Vec<FieldError>) {
    let fix = "remove it: objects in a file need no finalizers";
    for finalizer in finalizers {
        let problems = label_key_problems(finalizer).into_iter();
        errors.extend(problems.map(|problem| FieldError::invalid(field, finalizer, &problem).fix(fix)));
    }
    let has = |name: &str| finalizers.iter().any(|finalizer| finalizer == name);
    if has("orphan") && has("foregroundDeletion") {
        let problem = "finalizer orphan and foregroundDeletion cannot be both set";
        let value = crate::field::json_strings(finalizers);
        errors.push(FieldError::invalid_json(field, &value, problem).fix(fix));
    }
}

// ValidateManagedFields, ValidateFieldManager
fn managed_field_errors(
    entries: &[ManagedFields],
    field: &str,
    release: Release,
    errors: &mut Vec<FieldError>,
) {
    let fix = "remove managedFields";
    for (index, entry) in entries.iter().enumerate() {
        let child = |name: &str| format!("{field}[{index}].{name}");
        if !matches!(entry.operation.as_str(), "Apply" | "Update") {
            let field = child("operation");
            let error = match entry.operation.as_str() {
                operation if !release.has_precise_metadata_errors() => {
                    let value = json_string(operation);
                    FieldError::invalid_json(field, &value, "must be `Apply` or `Update`")
                }
                "" => FieldError::required(field, "must not be empty"),
                operation => {
                    FieldError::not_supported_json(field, &json_string(operation), &["Apply", "Update"])
                }
            };
            errors.push(error.fix(fix));
        }
        if !matches!(entry.fields_type.as_str(), "" | "FieldsV1") {
            let error = FieldError::invalid(child("fieldsType"), &entry.fields_type, "must be `FieldsV1`");
            errors.push(error.fix(fix));
        }
        if entry.manager.len() > MAX_FIELD_MANAGER {
            errors.push(FieldError::too_long(child("manager"), MAX_FIELD_MANAGER).fix(fix));
        }
        for (position, c) in entry.manager.char_indices().filter(|(_, c)| !(*c == ' ' || is_printable(*c))) {
            let problem = format!("invalid character U+{:04X} (at position {position})", u32::from(c));
            errors.push(FieldError::invalid(child("manager"), &entry.manager, &problem).fix(fix));
        }
        if entry.subresource.len() > MAX_SUBRESOURCE {
            errors.push(FieldError::too_long(child("subresource"), MAX_SUBRESOURCE).fix(fix));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// With the newest release they are compared with kube-apiserver's own code (`tests/it/compared_admission.rs`).
    #[test]
    fn errors_before_1_37_do_not_tell_the_place_of_an_owner() {
        let metadata = json!({
            "name": "a",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"},
                {"apiVersion": "a/b/c", "name": "p", "uid": "u"},
            ],
            "managedFields": [{"operation": ""}, {"operation": "<"}],
        });
        let metadata: ObjectMeta = serde_json::from_value(metadata).unwrap();
        let errors = |release| -> Vec<String> {
            cluster_object_errors(&metadata, "metadata", release).iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            errors(Release::V1_36),
            [
                r#"metadata.ownerReferences.apiVersion: Invalid value: "a/b/c": version must not be empty"#,
                r#"metadata.ownerReferences.kind: Invalid value: "": must not be empty"#,
                r#"metadata.managedFields[0].operation: Invalid value: "": must be `Apply` or `Update`"#,
                r#"metadata.managedFields[1].operation: Invalid value: "\u003c": must be `Apply` or `Update`"#,
            ]
        );
        assert_eq!(
            errors(Release::V1_37),
            [
                r#"metadata.ownerReferences[1].apiVersion: Invalid value: "a/b/c": must be <group>/<version> or <version>"#,
                "metadata.ownerReferences[1].kind: Required value: must not be empty",
                "metadata.managedFields[0].operation: Required value: must not be empty",
                r#"metadata.managedFields[1].operation: Unsupported value: "\u003c": supported values: "Apply", "Update""#,
            ]
        );
    }
}
