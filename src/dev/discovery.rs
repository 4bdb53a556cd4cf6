//! How kubectl learns what the embedded backend serves: discovery, the version, and as much `OpenAPI` v3 as
//! `kubectl apply`, `create` and `explain` ask for.

use serde_json::{Map, Value, json};

use super::json::set;
use super::resources::{Does, GROUPS, Resource, of_group};

/// The document at a path that is no resource.
pub(super) fn document(path: &str) -> Option<Value> {
    let parts = path.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>();
    let known = |group: &&str| !group.is_empty() && GROUPS.contains(group);
    Some(match parts.as_slice() {
        ["version"] => json!({
            "major": "1", "minor": "36", "gitVersion": "v1.36.0+portcullis-dev", "gitCommit": "", "gitTreeState": "",
            "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": "embedded",
        }),
        ["api"] => json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
        ["apis"] => {
            let groups =
                GROUPS.iter().filter(|group| known(group)).map(|group| api_group(group)).collect::<Vec<_>>();
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        ["apis", group] if known(group) => {
            let mut document = api_group(group);
            set(&mut document, "/kind", "APIGroup");
            set(&mut document, "/apiVersion", "v1");
            document
        }
        ["api", "v1"] => resource_list(""),
        ["apis", group, "v1"] if known(group) => resource_list(group),
        ["openapi", "v3"] => {
            let entry = |root: String| {
                let url = format!("/openapi/v3/{root}?hash=portcullis-dev");
                (root, json!({"serverRelativeURL": url}))
            };
            json!({"paths": GROUPS.iter().map(|group| entry(root(group))).collect::<Map<_, _>>()})
        }
        ["openapi", "v3", "api", "v1"] => openapi(""),
        ["openapi", "v3", "apis", group, "v1"] if known(group) => openapi(group),
        _ => return None,
    })
}

fn root(group: &str) -> String {
    if group.is_empty() { "api/v1".to_owned() } else { format!("apis/{group}/v1") }
}

fn api_group(group: &str) -> Value {
    let version = json!({"groupVersion": format!("{group}/v1"), "version": "v1"});
    json!({"name": group, "versions": [version], "preferredVersion": version})
}

fn resource_list(group: &str) -> Value {
    let entry = |resource: &Resource, name: String, verbs: &[&str]| {
        json!({
            "name": name, "singularName": resource.kind.to_lowercase(), "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": verbs,
        })
    };
    let mut entries = Vec::new();
    for resource in of_group(group) {
        let mut main = entry(resource, resource.plural.to_owned(), resource.verbs());
        if !resource.short_name.is_empty() {
            set(&mut main, "/shortNames", json!([resource.short_name]));
        }
        if resource.namespaced && matches!(resource.does, Does::Nothing) {
            set(&mut main, "/categories", json!(["all"]));
        }
        entries.push(main);
        for subresource in resource.subresources {
            let name = format!("{}/{subresource}", resource.plural);
            entries.push(entry(resource, name, &["get", "patch", "update"]));
        }
    }
    let version = root(group).trim_start_matches("apis/").trim_start_matches("api/").to_owned();
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": entries})
}

/// kubectl looks here for two things: that PATCH takes `fieldValidation`, which makes the server validate instead of
/// kubectl, and the description of a kind. Strategic merge is not offered, so kubectl uses the types it has built in.
fn openapi(group: &str) -> Value {
    let (mut paths, mut schemas) = (Map::new(), Map::new());
    for resource in of_group(group) {
        let kind = json!({"group": resource.group, "version": "v1", "kind": resource.kind});
        let place = if resource.namespaced { "namespaces/{namespace}/" } else { "" };
        let operation = json!({
            "x-kubernetes-group-version-kind": kind,
            "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
            "requestBody": {"content": {"application/merge-patch+json": {}}},
            "responses": {},
        });
        let path = format!("/{}/{place}{}/{{name}}", root(group), resource.plural);
        paths.insert(path, json!({"get": operation, "patch": operation}));
        let schema = json!({
            "type": "object", "x-kubernetes-group-version-kind": [kind],
            "description": "The backend of `portcullis dev` describes no fields; a real API server does.",
        });
        schemas.insert(resource.kind.to_owned(), schema);
    }
    let info = json!({"title": "portcullis dev", "version": "v1.36"});
    json!({"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}})
}
