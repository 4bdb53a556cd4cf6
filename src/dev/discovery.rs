//! How kubectl learns what the embedded backend serves: discovery, the version, and as much `OpenAPI` v3 as
//! `kubectl create` and `apply` ask for.

use serde_json::{Map, Value, json};

use super::json::set;
use super::resources::{Does, GROUPS, RESOURCES};

/// The document at a path that is not a resource.
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
            let groups = GROUPS.iter().copied().filter(known).map(api_group).collect::<Vec<_>>();
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        ["apis", group] if known(group) => api_group(group),
        ["api", "v1"] => resource_list("", "v1"),
        ["apis", group, "v1"] if known(group) => resource_list(group, &format!("{group}/v1")),
        ["openapi", "v3"] => {
            let everywhere = json!({"serverRelativeURL": "/openapi/v3/all?hash=portcullis-dev"});
            let root = |group: &&str| match *group {
                "" => "api/v1".to_owned(),
                group => format!("apis/{group}/v1"),
            };
            let paths = GROUPS.iter().map(|group| (root(group), everywhere.clone()));
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
    let entries = RESOURCES.iter().filter(|resource| resource.group == group).map(|resource| {
        let mut entry = json!({
            "name": resource.plural, "singularName": resource.kind.to_lowercase(), "kind": resource.kind,
            "namespaced": resource.namespaced, "verbs": resource.verbs(),
            "categories": if matches!(resource.does, Does::Nothing) { &["all"][..] } else { &[] },
        });
        if !resource.short_name.is_empty() {
            set(&mut entry, "/shortNames", json!([resource.short_name]));
        }
        entry
    });
    let entries = entries.collect::<Vec<_>>();
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": entries})
}

/// One document for all groups. kubectl looks here for one thing, that PATCH takes `fieldValidation`: then it leaves
/// validation to the server, which here drops unknown fields without a word, whatever the parameter says. No kind is
/// described, so kubectl computes patches from the types it has built in.
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
