//! Discovery, the version, and the part of `OpenAPI` v3 that `kubectl create` and `apply` need.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::resources::{READ_VERBS, RESOURCES};

/// The document at a non-resource path.
pub(super) fn document(path: &str) -> Option<Value> {
    let segments = path.split('/').filter(|segment| !segment.is_empty()).collect::<Vec<_>>();
    let groups = RESOURCES.iter().map(|resource| resource.group).collect::<BTreeSet<_>>();
    let is_known = |group: &str| !group.is_empty() && groups.contains(group);
    Some(match segments.as_slice() {
        ["version"] => json!({
            "major": "1", "minor": "36", "gitVersion": "v1.36.0+portcullis-dev", "gitCommit": "", "gitTreeState": "",
            "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": "embedded",
        }),
        ["api"] => json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
        ["apis"] => {
            let groups = groups.into_iter().filter(|group| !group.is_empty()).map(api_group);
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups.collect::<Vec<_>>()})
        }
        ["apis", group] if is_known(group) => api_group(group),
        ["api", "v1"] => resource_list("", "v1"),
        ["apis", group, "v1"] if is_known(group) => resource_list(group, &format!("{group}/v1")),
        ["openapi", "v3"] => {
            let paths = groups.into_iter().map(|group| {
                let path = if group.is_empty() { "api/v1".to_owned() } else { format!("apis/{group}/v1") };
                (path, json!({"serverRelativeURL": "/openapi/v3/all?hash=portcullis-dev"}))
            });
            json!({"paths": paths.collect::<Map<_, _>>()})
        }
        ["openapi", "v3", "all"] => openapi(),
        _ => return None,
    })
}

fn api_group(group: &str) -> Value {
    let version = json!({"groupVersion": format!("{group}/v1"), "version": "v1"});
    json!({
        "kind": "APIGroup", "apiVersion": "v1",
        "name": group, "versions": [version], "preferredVersion": version,
    })
}

fn resource_list(group: &str, version: &str) -> Value {
    let resources = RESOURCES.iter().filter(|resource| resource.group == group).map(|resource| {
        json!({
            "name": resource.plural, "singularName": resource.kind.to_lowercase(), "kind": resource.kind,
            "namespaced": resource.namespaced, "verbs": resource.verbs,
            "shortNames": Some(resource.short_name).filter(|name| !name.is_empty()).as_slice(),
            "categories": if resource.verbs == READ_VERBS { &["all"][..] } else { &[] },
        })
    });
    let resources = resources.collect::<Vec<_>>();
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources})
}

/// One document for all groups. Its only content is that PATCH takes `fieldValidation`: then kubectl leaves validation
/// to the server, which drops unknown fields whatever the parameter. It has no schemas, so kubectl computes patches
/// from its built-in types.
fn openapi() -> Value {
    let paths = RESOURCES.iter().map(|resource| {
        let patch = json!({
            "x-kubernetes-group-version-kind": {"group": resource.group, "version": "v1", "kind": resource.kind},
            "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
            "responses": {},
        });
        (format!("/{}", resource.plural), json!({"patch": patch}))
    });
    let info = json!({"title": "portcullis dev", "version": "v1.36"});
    json!({"openapi": "3.0.0", "info": info, "paths": paths.collect::<Map<_, _>>()})
}
