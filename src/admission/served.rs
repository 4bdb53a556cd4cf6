//! By which other resources the API servers of a cluster serve the objects of a request: other versions, and other groups with the
//! same objects. It is what discovery lists, read as the gateway, and only for requests that a webhook of `matchPolicy: Equivalent`
//! may match by another version or group.
//!
//! A list counts for [`TTL`], whatever it says: a version that is new is missing from it no longer than that, and one that is not
//! served any more makes the conversion fail. A list that does not have the request's own resource is older than the resource, or
//! the API server does not list what it serves: then nothing is known. What is not known may match, and a webhook that may match is not passed over.
// threat: unreviewed-write
// apimachinery: pkg/apis/meta/v1/types.go, APIVersions, APIGroup, APIResourceList; pkg/runtime/mapper.go

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use portcullis_admission::matching::equivalent_groups;
use portcullis_admission::{Attributes, GroupVersionKind, GroupVersionResource, ServedResource};
use portcullis_go::url::path_segment;
use serde::Deserialize;
use tokio::time::Instant;

use super::cached_reads::{CachedReads, DocumentReader, ReadError};

/// How long a list counts. kube-apiserver itself serves a new version some time before it lists it.
const TTL: Duration = Duration::from_secs(2);
/// The most versions of a group.
const MAX_VERSIONS: usize = 64;
/// The largest list, and the largest definition: etcd holds 1.5 MiB of one.
const MAX_BYTES: usize = 4 << 20;

/// What the API servers of a cluster serve, by group; and how they convert custom resources, by resource and group.
#[derive(Debug)]
pub(super) struct ServedResources {
    groups: CachedReads<String, Dated<Arc<ServedGroup>>>,
    definitions: CachedReads<(String, String), Dated<Strategy>>,
}

/// How the API server converts the objects of a resource from one version to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strategy {
    /// A custom resource whose versions differ in their `apiVersion` alone.
    None,
    /// A custom resource, by a webhook.
    Webhook,
    /// It is no custom resource.
    BuiltIn,
}

#[derive(Debug, Clone)]
struct Dated<T> {
    read: Instant,
    value: T,
}

impl<T> Dated<T> {
    /// Whether it counts for a request that came then.
    fn is_fresh(&self, then: Instant) -> bool {
        then.saturating_duration_since(self.read) < TTL
    }
}

/// The versions of a group in the API server's order, with the kinds of their resources.
#[derive(Debug, Default)]
pub(super) struct ServedGroup(Vec<(String, HashMap<String, GroupVersionKind>)>);

/// `APIVersions` of the core group.
#[derive(Debug, Deserialize)]
struct CoreVersions {
    versions: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct ApiGroup {
    versions: Vec<ApiGroupVersion>,
}

#[derive(Debug, Deserialize)]
struct ApiGroupVersion {
    version: String,
}

#[derive(Debug, Deserialize)]
struct ApiResourceList {
    resources: Vec<ApiResource>,
}

/// A resource, or a subresource: `widgets/status`. Without group and version, the kind is in those of the list.
#[derive(Debug, Deserialize)]
struct ApiResource {
    name: String,
    kind: String,
    #[serde(default)]
    group: String,
    #[serde(default)]
    version: String,
}

/// The part of a `CustomResourceDefinition` that is read.
#[derive(Debug, Deserialize)]
struct Definition {
    spec: DefinitionSpec,
}

#[derive(Debug, Deserialize)]
struct DefinitionSpec {
    conversion: DefinitionConversion,
}

#[derive(Debug, Deserialize)]
struct DefinitionConversion {
    strategy: String,
}

impl ServedResources {
    pub(super) fn new(reader: &DocumentReader) -> Self {
        Self { groups: CachedReads::new(reader), definitions: CachedReads::new(reader) }
    }

    /// The resources with the objects of a request, its own among them; `None` if its own is not listed.
    pub(super) async fn equivalents(
        &self,
        flow: &str,
        attributes: &Attributes,
    ) -> Result<Option<Vec<ServedResource>>, ReadError> {
        let GroupVersionResource { group, resource, .. } = &attributes.resource;
        let mut served = Vec::new();
        for group in equivalent_groups(group, resource) {
            served.extend(self.group(flow, group).await?.serving(group, resource, &attributes.subresource));
        }
        let is_listed = served.iter().any(|served| served.resource == attributes.resource);
        Ok(is_listed.then_some(served))
    }

    /// What is served of a group.
    pub(super) async fn group(&self, flow: &str, group: &str) -> Result<Arc<ServedGroup>, ReadError> {
        // In a path, it could name another document.
        if !group.is_empty() && !is_segment(group) {
            return Ok(Arc::default());
        }
        let name = group.to_owned();
        let read = move |reader| async move {
            let read = Instant::now();
            Ok(Dated { read, value: Arc::new(read_group(&reader, &name).await?) })
        };
        Ok(self.groups.get(flow, group.to_owned(), Dated::is_fresh, read).await?.value)
    }

    /// How the API server converts the objects of a resource.
    pub(super) async fn strategy(
        &self,
        flow: &str,
        resource: &GroupVersionResource,
    ) -> Result<Strategy, ReadError> {
        let GroupVersionResource { group, resource, .. } = resource;
        if !is_segment(group) || !is_segment(resource) {
            return Ok(Strategy::BuiltIn);
        }
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{resource}.{group}");
        let read = move |reader: DocumentReader| async move {
            let read = Instant::now();
            let definition = reader.read::<Definition>(&path, MAX_BYTES).await?;
            Ok(Dated { read, value: strategy_of(definition.as_ref())? })
        };
        let key = (resource.clone(), group.clone());
        Ok(self.definitions.get(flow, key, Dated::is_fresh, read).await?.value)
    }
}

impl ServedGroup {
    /// The kind of a resource.
    pub(super) fn kind(&self, version: &str, resource: &str) -> Option<GroupVersionKind> {
        let (_, kinds) = self.0.iter().find(|(known, _)| known == version)?;
        kinds.get(resource).cloned()
    }

    /// The resource in each version that has it.
    fn serving(&self, group: &str, resource: &str, subresource: &str) -> Vec<ServedResource> {
        let name =
            if subresource.is_empty() { resource.to_owned() } else { format!("{resource}/{subresource}") };
        let served = self.0.iter().filter_map(|(version, kinds)| {
            let resource = GroupVersionResource {
                group: group.to_owned(),
                version: version.clone(),
                resource: resource.to_owned(),
            };
            Some(ServedResource { resource, kind: kinds.get(&name)?.clone() })
        });
        served.collect()
    }
}

pub(super) fn is_segment(name: &str) -> bool {
    path_segment(name).is_ok_and(|escaped| escaped == name)
}

async fn read_group(reader: &DocumentReader, group: &str) -> Result<ServedGroup, ReadError> {
    let (path, versions) = if group.is_empty() {
        let core = reader.read::<CoreVersions>("/api", MAX_BYTES).await?;
        ("/api".to_owned(), core.map(|core| core.versions).unwrap_or_default())
    } else {
        let path = format!("/apis/{group}");
        let known =
            reader.read::<ApiGroup>(&path, MAX_BYTES).await?.map(|known| known.versions).unwrap_or_default();
        (path, known.into_iter().map(|known| known.version).collect())
    };
    if versions.len() > MAX_VERSIONS || !versions.iter().all(|version| is_segment(version)) {
        return Err(ReadError::unreadable(&"the list of versions is not valid"));
    }
    let lists = versions.into_iter().map(async |version| {
        let list = reader.read::<ApiResourceList>(&format!("{path}/{version}"), MAX_BYTES).await?;
        let list = list.ok_or_else(|| format!("{version} is listed and absent"))?;
        let kinds = list.resources.into_iter().map(|resource| resource.kind_in(group, &version)).collect();
        Ok::<_, ReadError>((version, kinds))
    });
    try_join_all(lists).await.map(ServedGroup)
}

impl ApiResource {
    fn kind_in(self, group: &str, version: &str) -> (String, GroupVersionKind) {
        let Self { name, kind, group: own_group, version: own_version } = self;
        let (group, version) = if own_group.is_empty() && own_version.is_empty() {
            (group.to_owned(), version.to_owned())
        } else {
            (own_group, own_version)
        };
        (name, GroupVersionKind { group, version, kind })
    }
}

fn strategy_of(definition: Option<&Definition>) -> Result<Strategy, String> {
    match definition.map(|definition| definition.spec.conversion.strategy.as_str()) {
        None => Ok(Strategy::BuiltIn),
        Some("None") => Ok(Strategy::None),
        Some("Webhook") => Ok(Strategy::Webhook),
        Some(_) => Err("its conversion strategy is not known".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn group(lists: &[(&str, serde_json::Value)]) -> ServedGroup {
        let version = |(version, resources): &(&str, serde_json::Value)| {
            let list: ApiResourceList =
                serde_json::from_value(json!({"groupVersion": "x", "resources": resources})).unwrap();
            let kinds = list.resources.into_iter().map(|resource| resource.kind_in("g", version));
            ((*version).to_owned(), kinds.collect())
        };
        ServedGroup(lists.iter().map(version).collect())
    }

    #[test]
    fn resources_have_the_kinds_that_discovery_lists() {
        let group = group(&[
            (
                "v2",
                json!([{"name": "widgets", "kind": "Widget", "verbs": ["get"]}, {"name": "widgets/status", "kind": "Widget"},
                {"name": "widgets/scale", "group": "autoscaling", "version": "v1", "kind": "Scale"}]),
            ),
            ("v1", json!([{"name": "widgets", "kind": "Widget"}, {"name": "gadgets", "kind": "Gadget"}])),
        ]);
        let serving = |resource: &str, subresource: &str| -> Vec<String> {
            let served = group.serving("g", resource, subresource);
            let text = |served: ServedResource| {
                let GroupVersionKind { group, version, kind } = served.kind;
                format!("{} {group}/{version} {kind}", served.resource)
            };
            served.into_iter().map(text).collect()
        };
        assert_eq!(
            serving("widgets", ""),
            ["g/v2, Resource=widgets g/v2 Widget", "g/v1, Resource=widgets g/v1 Widget"]
        );
        assert_eq!(serving("widgets", "status"), ["g/v2, Resource=widgets g/v2 Widget"]);
        assert_eq!(serving("widgets", "scale"), ["g/v2, Resource=widgets autoscaling/v1 Scale"]);
        assert_eq!(serving("gadgets", ""), ["g/v1, Resource=gadgets g/v1 Gadget"]);
        assert!(serving("absent", "").is_empty());
    }

    #[test]
    fn only_a_known_strategy_counts() {
        let of = |strategy: &str| {
            let definition = json!({"spec": {"conversion": {"strategy": strategy}, "group": "g"}});
            strategy_of(Some(&serde_json::from_value(definition).unwrap()))
        };
        assert_eq!(of("None"), Ok(Strategy::None));
        assert_eq!(of("Webhook"), Ok(Strategy::Webhook));
        assert!(of("Other").is_err());
        assert_eq!(strategy_of(None), Ok(Strategy::BuiltIn));
        assert!(serde_json::from_value::<Definition>(json!({"spec": {}})).is_err());
    }

    #[test]
    fn a_list_counts_for_its_time() {
        let read = Instant::now();
        let dated = Dated { read, value: () };
        assert!(dated.is_fresh(read) && dated.is_fresh(read + TTL / 2) && !dated.is_fresh(read + TTL));
        assert!(dated.is_fresh(read.checked_sub(TTL * 2).unwrap()), "it is newer than the request");
    }

    #[test]
    fn no_group_names_another_path() {
        assert!(is_segment("g.example") && is_segment("v1"));
        for name in ["", "..", "a/b", "%2e", "v1?x"] {
            assert!(!is_segment(name), "{name}");
        }
    }
}
