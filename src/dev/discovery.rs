//! How kubectl learns what the embedded backend serves: discovery in both forms, the version, and as
//! much `OpenAPI` v3 as `kubectl apply`, `create` and `explain` ask for.

use serde_json::{Map, Value, json};

use super::json::set;
use super::resources::{GROUPS, RESOURCES, Resource, of_group};

/// The media type of aggregated discovery.
pub(super) const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The version that the backend pretends to be: the one whose API the types are of.
pub(super) fn version() -> Value {
    json!({
        "major": "1", "minor": "36", "gitVersion": "v1.36.0+portcullis-dev", "gitCommit": "", "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": "embedded",
    })
}

/// The discovery document at `path`, with whether it is the aggregated one.
pub(super) fn document(path: &str, accept: &str) -> Option<(Value, bool)> {
    let aggregated = accept.split(',').any(|range| range.trim() == AGGREGATED);
    let parts = path
        .split('/')
        .skip(1)
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>();
    let document = match parts.as_slice() {
        ["api"] if aggregated => return Some((discovery_list(&[""]), true)),
        ["apis"] if aggregated => return Some((discovery_list(named_groups()), true)),
        ["api"] => json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [],
        }),
        ["apis"] => json!({
            "kind": "APIGroupList", "apiVersion": "v1",
            "groups": named_groups().iter().map(|group| api_group(group)).collect::<Vec<_>>(),
        }),
        ["api", "v1"] => resource_list(""),
        ["apis", group] if is_named(group) => {
            let mut document = api_group(group);
            set(&mut document, "/kind", "APIGroup");
            set(&mut document, "/apiVersion", "v1");
            document
        }
        ["apis", group, "v1"] if is_named(group) => resource_list(group),
        ["version"] => version(),
        ["openapi", "v3"] => openapi_index(),
        ["openapi", "v3", "api", "v1"] => openapi(""),
        ["openapi", "v3", "apis", group, "v1"] if is_named(group) => openapi(group),
        _ => return None,
    };
    Some((document, false))
}

fn named_groups() -> &'static [&'static str] {
    GROUPS.split_first().map_or(&[], |(_, named)| named)
}

fn is_named(group: &str) -> bool {
    named_groups().contains(&group)
}

fn discovery_list(groups: &[&str]) -> Value {
    let items = groups.iter().map(|group| {
        let resources = of_group(group).map(|resource| {
            let kind = json!({"group": resource.group, "version": "v1", "kind": resource.kind});
            json!({
                "resource": resource.plural, "responseKind": kind, "singularResource": resource.singular,
                "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
                "verbs": resource.verbs(), "shortNames": resource.short_names, "categories": categories(resource),
                "subresources": resource.subresources.iter().map(|name| json!({
                    "subresource": name, "responseKind": kind, "verbs": ["get", "patch", "update"],
                })).collect::<Vec<_>>(),
            })
        });
        json!({
            "metadata": {"name": group, "creationTimestamp": null},
            "versions": [{"version": "v1", "freshness": "Current", "resources": resources.collect::<Vec<_>>()}],
        })
    });
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
        "items": items.collect::<Vec<_>>(),
    })
}

/// `kubectl get all` asks for these.
fn categories(resource: &Resource) -> &'static [&'static str] {
    if ["pods", "services"].contains(&resource.plural) {
        &["all"]
    } else {
        &[]
    }
}

fn api_group(group: &str) -> Value {
    let version = json!({"groupVersion": format!("{group}/v1"), "version": "v1"});
    json!({"name": group, "versions": [version], "preferredVersion": version})
}

fn resource_list(group: &str) -> Value {
    let mut entries = Vec::new();
    for resource in of_group(group) {
        let entry = |name: String, verbs: &[&str]| {
            json!({
                "name": name, "singularName": resource.singular, "namespaced": resource.namespaced,
                "kind": resource.kind, "verbs": verbs,
            })
        };
        let mut main = entry(resource.plural.to_owned(), resource.verbs());
        set(&mut main, "/shortNames", json!(resource.short_names));
        set(&mut main, "/categories", json!(categories(resource)));
        entries.push(main);
        for subresource in resource.subresources {
            entries.push(entry(
                format!("{}/{subresource}", resource.plural),
                &["get", "patch", "update"],
            ));
        }
    }
    let version = if group.is_empty() {
        "v1".to_owned()
    } else {
        format!("{group}/v1")
    };
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": entries})
}

fn openapi_index() -> Value {
    let paths = GROUPS.iter().map(|group| {
        let root = root(group);
        (
            root.clone(),
            json!({"serverRelativeURL": format!("/openapi/v3/{root}?hash=portcullis-dev")}),
        )
    });
    json!({"paths": paths.collect::<Map<_, _>>()})
}

fn root(group: &str) -> String {
    if group.is_empty() {
        "api/v1".to_owned()
    } else {
        format!("apis/{group}/v1")
    }
}

/// kubectl looks here for two things: that PATCH takes `fieldValidation`, which makes the server validate instead of
/// kubectl, and the description of a kind. Strategic merge is not offered, so kubectl uses the types it has built in.
fn openapi(group: &str) -> Value {
    let mut paths = Map::new();
    let mut schemas = Map::new();
    for resource in RESOURCES.iter().filter(|resource| resource.group == group) {
        let kind = json!({"group": resource.group, "version": "v1", "kind": resource.kind});
        let place = if resource.namespaced {
            "namespaces/{namespace}/"
        } else {
            ""
        };
        let parameter = json!({"name": "fieldValidation", "in": "query", "schema": {"type": "string"}});
        let operation = json!({"x-kubernetes-group-version-kind": kind, "responses": {}});
        let mut patch = operation.clone();
        set(&mut patch, "/parameters", json!([parameter]));
        set(
            &mut patch,
            "/requestBody",
            json!({"content": {"application/merge-patch+json": {}}}),
        );
        paths.insert(
            format!("/{}/{place}{}/{{name}}", root(group), resource.plural),
            json!({"get": operation, "patch": patch}),
        );
        let text = |description: &str| json!({"type": "string", "description": description});
        schemas.insert(
            resource.kind.to_owned(),
            json!({
                "type": "object",
                "description": format!("{} (Described in full by a real API server.)", resource.description),
                "properties": {
                    "apiVersion": text("The version of the representation of this object."),
                    "kind": text("The kind of this object."),
                    "metadata": {"type": "object", "description": "Standard object's metadata."},
                },
                "x-kubernetes-group-version-kind": [kind],
            }),
        );
    }
    json!({
        "openapi": "3.0.0", "info": {"title": "Portcullis dev backend", "version": "v1.36"},
        "paths": paths, "components": {"schemas": schemas},
    })
}
