//! The fields of an object that its kind does not have, as kube-apiserver's strict decoding names them.
// sigs.k8s.io/json: internal/golang/encoding/json/decode.go, kubernetes_patch.go

use serde_json::Value;

use crate::schema::{TypeRef, Types};

/// The most fields that are named.
const MAX_FIELDS: usize = 100;

/// The paths of the fields, such as `spec.containers[0].absent`, in the order of the object.
pub(crate) fn undeclared(types: &Types, kind: &TypeRef, object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    look(types, kind, object, &mut String::new(), &mut found);
    found
}

fn look(types: &Types, kind: &TypeRef, value: &Value, path: &mut String, found: &mut Vec<String>) {
    let Some(resolved) = types.resolve(kind) else { return };
    let length = path.len();
    match value {
        Value::Object(fields) => {
            let Some((map, _)) = resolved.map else { return };
            for (name, value) in fields {
                if found.len() >= MAX_FIELDS {
                    return;
                }
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(name);
                match map.type_of(name) {
                    TypeRef::Nothing => found.push(path.clone()),
                    kind => look(types, kind, value, path, found),
                }
                path.truncate(length);
            }
        }
        Value::Array(items) => {
            let Some((list, _)) = resolved.list else { return };
            for (index, item) in items.iter().enumerate() {
                path.extend(["[", &index.to_string(), "]"]);
                look(types, &list.element, item, path, found);
                path.truncate(length);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
