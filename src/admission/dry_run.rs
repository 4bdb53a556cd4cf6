//! Which requests a dry run can show to webhooks without doing anything:
//!
//! | request | dry run |
//! |---|---|
//! | creation of `serviceaccounts/token` | never: it would create a token that works ([`is_never_dry_run`]) |
//! | creation of another subresource in an API group that kube-apiserver does not serve itself | never: its dry run may do the same |
//! | a request whose method is not in the OpenAPI document of such a group, which has the resource | never: the API server answers 405 |
//! | any other request in such a group | if its OpenAPI document lists the parameter `dryRun` ([`DryRunSupport`]), or if its `APIService` has no service: then kube-apiserver serves it, also a custom resource that is so new that it is not in the document |
//! | any other request | yes: kube-apiserver's own resources have dry runs |
//!
//! An aggregated API server without dry runs would store what is only rehearsed, so this is never tried.
//! Custom resources look the same from outside; kube-apiserver publishes their documents.
// kube-aggregator: pkg/controllers/openapiv3, pkg/apiserver/handler_proxy.go; OpenAPI 3.0, section 4.8.10

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use portcullis_admission::GroupVersionResource;
use portcullis_go::url::path_segment;
use portcullis_limits::cache_budget::CacheShare;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use tokio::time::Instant;

use super::cached_reads::{CachedReads, DocumentReader, ReadError};

/// How long a document counts.
const TTL: Duration = Duration::from_mins(1);
/// How long a document counts for a resource or method that it does not have: a custom resource may be new.
const MISSING_TTL: Duration = Duration::from_secs(2);

const MAX_DOCUMENT_BYTES: usize = 32 << 20;
/// What is kept of a document, at most. That of a group has some thousand bytes.
const MAX_OPERATIONS_BYTES: usize = 4 << 20;
/// What is kept of all documents of a cluster.
const MAX_KEPT_BYTES: usize = 16 << 20;

/// What a dry run of a request means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DryRun {
    /// It stores nothing.
    Supported,
    /// It may store something.
    Unsupported,
    /// The resource is there, and has no such method.
    NoMethod,
    /// There is no such resource.
    Absent,
}

/// Whether the dry run of a creation may do what it is only to show. `is_extension`: whether the resource is in an API group
/// that kube-apiserver does not serve itself.
// threat: unreviewed-write
pub(crate) fn is_never_dry_run(
    resource: &GroupVersionResource,
    subresource: &str,
    is_extension: bool,
) -> bool {
    let is_token = resource.resource == "serviceaccounts" && subresource == "token";
    is_token || is_extension && !subresource.is_empty()
}

/// The documents of the API groups of a cluster, by group and version.
#[derive(Debug)]
pub(super) struct DryRunSupport {
    documents: CachedReads<(String, String), ReadDocument>,
}

#[derive(Debug, Clone)]
struct ReadDocument {
    read: Instant,
    /// `None` if the group is not served in this version.
    operations: Option<Arc<Operations>>,
    /// Whether kube-apiserver is known to serve the group in this version itself.
    is_local: Option<bool>,
}

/// A resource, a subresource, and a method.
type Wanted = (String, String, String);

/// The operations of a group, by resource, subresource and method.
#[derive(Debug, Default)]
struct Operations {
    /// The resources and subresources.
    resources: HashSet<(String, String)>,
    all: HashSet<(String, String, String)>,
    with_dry_run: HashSet<(String, String, String)>,
    /// The bytes of memory of these, approximately.
    size: usize,
}

/// The part of an OpenAPI document that is read, path by path.
// threat: published-schemas
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OpenApiDocument {
    #[serde(deserialize_with = "operations")]
    paths: Operations,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PathItem {
    parameters: Parameters,
    post: Option<Operation>,
    put: Option<Operation>,
    patch: Option<Operation>,
    delete: Option<Operation>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Operation {
    parameters: Parameters,
}

/// Whether `dryRun` is among the parameters.
#[derive(Debug, Default, Clone, Copy)]
struct Parameters {
    have_dry_run: bool,
}

/// A parameter; one that is only referred to does not count.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Parameter {
    name: String,
    #[serde(rename = "in")]
    place: String,
}

impl<'de> Deserialize<'de> for Parameters {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Parameters;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of parameters")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Parameters, A::Error> {
                let mut have_dry_run = false;
                while let Some(Parameter { name, place }) = items.next_element()? {
                    have_dry_run |= name == "dryRun" && place == "query";
                }
                Ok(Parameters { have_dry_run })
            }
        }
        from.deserialize_seq(List)
    }
}

fn operations<'de, D: Deserializer<'de>>(from: D) -> Result<Operations, D::Error> {
    struct Paths;
    impl<'de> Visitor<'de> for Paths {
        type Value = Operations;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object with paths")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut paths: A) -> Result<Operations, A::Error> {
            let mut operations = Operations::default();
            while let Some((path, item)) = paths.next_entry::<String, PathItem>()? {
                operations.add(&path, &item);
                if operations.size > MAX_OPERATIONS_BYTES {
                    return Err(de::Error::custom("the document has too many operations"));
                }
            }
            Ok(operations)
        }
    }
    from.deserialize_map(Paths)
}

impl DryRunSupport {
    pub(super) fn new(reader: &DocumentReader, caches: &CacheShare) -> Self {
        let size = |document: &ReadDocument| document.operations.as_ref().map_or(0, |known| known.size);
        Self { documents: CachedReads::within(reader, (MAX_KEPT_BYTES, size), caches) }
    }

    /// What a dry run of this method means.
    pub(super) async fn of(
        &self,
        flow: &str,
        resource: &GroupVersionResource,
        subresource: &str,
        method: &Method,
    ) -> Result<DryRun, ReadError> {
        let GroupVersionResource { group, version, resource } = resource;
        let Some(path) = path_of(group, version) else { return Ok(DryRun::Absent) };
        let service = format!("/apis/apiregistration.k8s.io/v1/apiservices/{version}.{group}");
        let wanted = (resource.clone(), subresource.to_owned(), method.as_str().to_ascii_lowercase());
        let read_for = wanted.clone();
        let is_fresh = |known: &ReadDocument, then| known.is_fresh_for(&wanted, then);
        let read = move |reader| async move { read_document(&reader, [&path, &service], &read_for).await };
        let document = self.documents.get(flow, (group.clone(), version.clone()), is_fresh, read).await?;
        Ok(document.support(&wanted))
    }
}

impl ReadDocument {
    fn support(&self, wanted: &Wanted) -> DryRun {
        match self.listed(wanted) {
            DryRun::Absent if self.is_local == Some(true) => DryRun::Supported,
            support => support,
        }
    }

    /// What the document says.
    fn listed(&self, wanted: &Wanted) -> DryRun {
        self.operations.as_ref().map_or(DryRun::Absent, |operations| operations.support(wanted))
    }

    /// Whether the document is new enough to tell, for a request that came then.
    fn is_fresh_for(&self, wanted: &Wanted, then: Instant) -> bool {
        let listed = self.listed(wanted);
        if listed == DryRun::Absent && self.is_local.is_none() {
            // Read for another resource: the `APIService` decides about this one.
            return false;
        }
        let is_missing = matches!(listed, DryRun::Absent | DryRun::NoMethod);
        let ttl = if is_missing { MISSING_TTL } else { TTL };
        then.saturating_duration_since(self.read) < ttl
    }
}

impl Operations {
    fn support(&self, wanted: &(String, String, String)) -> DryRun {
        if self.with_dry_run.contains(wanted) {
            DryRun::Supported
        } else if self.all.contains(wanted) {
            DryRun::Unsupported
        } else if self.resources.contains(&(wanted.0.clone(), wanted.1.clone())) {
            DryRun::NoMethod
        } else {
            DryRun::Absent
        }
    }

    fn add(&mut self, path: &str, item: &PathItem) {
        let Some((resource, subresource)) = resource_of(path) else { return };
        let bytes = resource.len() + subresource.len() + 4 * size_of::<String>();
        if self.resources.insert((resource.to_owned(), subresource.to_owned())) {
            self.size += bytes;
        }
        let methods =
            [("post", &item.post), ("put", &item.put), ("patch", &item.patch), ("delete", &item.delete)];
        for (method, operation) in methods {
            let Some(operation) = operation else { continue };
            let wanted = (resource.to_owned(), subresource.to_owned(), method.to_owned());
            if item.parameters.have_dry_run || operation.parameters.have_dry_run {
                self.size += bytes;
                self.with_dry_run.insert(wanted.clone());
            }
            self.size += bytes;
            self.all.insert(wanted);
        }
    }
}

/// The resource and the subresource of a path such as `/apis/G/V/namespaces/{namespace}/R/{name}/S`. The path of a collection and that
/// of an object have different methods.
fn resource_of(path: &str) -> Option<(&str, &str)> {
    let mut segments = path.strip_prefix("/apis/")?.split('/').skip(2);
    let mut resource = segments.next()?;
    let mut name = segments.next();
    if resource == "namespaces" && name == Some("{namespace}") {
        resource = segments.next()?;
        name = segments.next();
    }
    let subresource = segments.next().unwrap_or_default();
    let is_named = name.is_none_or(|name| name.starts_with('{'));
    (is_named && resource != "watch" && segments.next().is_none()).then_some((resource, subresource))
}

fn path_of(group: &str, version: &str) -> Option<String> {
    let [group, version] =
        [group, version].map(|name| path_segment(name).ok().filter(|escaped| escaped == name));
    Some(format!("/openapi/v3/apis/{}/{}", group?, version?))
}

/// Reads the document of a group, and its `APIService` if it does not have what is wanted.
async fn read_document(
    reader: &DocumentReader,
    [path, service]: [&str; 2],
    wanted: &Wanted,
) -> Result<ReadDocument, ReadError> {
    let read = Instant::now();
    let document = reader.read::<OpenApiDocument>(path, MAX_DOCUMENT_BYTES).await?;
    let operations = document.map(|document| Arc::new(document.paths));
    let mut known = ReadDocument { read, operations, is_local: None };
    if known.listed(wanted) == DryRun::Absent {
        known.is_local = Some(is_local(reader, service).await);
    }
    Ok(known)
}

/// The part of an `APIService` that is read.
#[derive(Debug, Deserialize)]
struct ApiService {
    spec: ApiServiceSpec,
}

#[derive(Debug, Deserialize)]
struct ApiServiceSpec {
    /// Where an aggregated API server is.
    service: Option<de::IgnoredAny>,
}

/// Whether kube-apiserver serves a group and version itself. Not known without the right to read it.
async fn is_local(reader: &DocumentReader, path: &str) -> bool {
    let service = reader.read::<ApiService>(path, MAX_DOCUMENT_BYTES).await;
    matches!(service, Ok(Some(service)) if service.spec.service.is_none())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_operations_that_list_the_parameter_have_dry_runs() {
        let dry_run = json!([{"name": "dryRun", "in": "query"}]);
        let document = json!({"paths": {
            "/apis/g/v/namespaces/{namespace}/widgets": {"post": {"parameters": dry_run}, "delete": {}, "get": {}},
            "/apis/g/v/namespaces/{namespace}/widgets/{name}": {"put": {"parameters": dry_run}, "patch": {}},
            "/apis/g/v/namespaces/{namespace}/widgets/{name}/status": {"parameters": dry_run, "put": {}},
            "/apis/g/v/widgets": {"get": {}},
            "/apis/g/v/watch/widgets": {"post": {"parameters": dry_run}},
            "/apis/g/v/gadgets/{name}": {"put": {"parameters": [{"name": "dryRun", "in": "header"}, {"$ref": "#/x"}]}},
            "/apis/g/v/": {"get": {}},
        }});
        let operations = serde_json::from_value::<OpenApiDocument>(document).unwrap().paths;
        let support = |resource: &str, subresource: &str, method: &str| {
            operations.support(&(resource.to_owned(), subresource.to_owned(), method.to_owned()))
        };
        assert_eq!(support("widgets", "", "post"), DryRun::Supported);
        assert_eq!(support("widgets", "", "delete"), DryRun::Unsupported);
        assert_eq!(support("widgets", "", "put"), DryRun::Supported);
        assert_eq!(support("widgets", "", "patch"), DryRun::Unsupported);
        assert_eq!(support("widgets", "status", "put"), DryRun::Supported);
        assert_eq!(support("widgets", "scale", "put"), DryRun::Absent);
        assert_eq!(support("widgets", "status", "patch"), DryRun::NoMethod);
        assert_eq!(support("gadgets", "", "post"), DryRun::NoMethod);
        assert_eq!(support("gadgets", "", "put"), DryRun::Unsupported);
        assert_eq!(support("watch", "", "post"), DryRun::Absent);
    }

    #[test]
    fn what_is_kept_of_a_document_is_bounded() {
        let read =
            |paths: &str| serde_json::from_str::<OpenApiDocument>(&format!(r#"{{"paths":{{{paths}}}}}"#));
        let parameters = vec!["{}"; 100_000].join(",");
        let one =
            read(&format!(r#""/apis/g/v/widgets":{{"parameters":[{parameters}],"put":{{}}}}"#)).unwrap();
        assert!(one.paths.size < 1_000, "{}", one.paths.size);
        let many = |count: usize| -> String {
            let paths =
                (0..count).map(|number| format!(r#""/apis/g/v/{number}":{{"put":{{}},"post":{{}}}}"#));
            paths.collect::<Vec<_>>().join(",")
        };
        assert!(read(&many(1_000)).unwrap().paths.size < 500_000);
        let refused = read(&many(30_000)).unwrap_err().to_string();
        assert!(refused.contains("too many operations"), "{refused}");
        assert!(read(r#""/apis/g/v/widgets":{"parameters":null}"#).is_err());
    }

    #[test]
    fn a_document_counts_for_its_time() {
        let operations = Operations { all: HashSet::from([wanted("a")]), ..Operations::default() };
        let known = |age: Duration| ReadDocument {
            read: Instant::now().checked_sub(age).unwrap(),
            operations: Some(Arc::new(Operations { all: operations.all.clone(), ..Operations::default() })),
            is_local: Some(false),
        };
        let support = |known: ReadDocument, wanted: &Wanted| {
            known.is_fresh_for(wanted, Instant::now()).then(|| known.support(wanted))
        };
        assert_eq!(support(known(Duration::ZERO), &wanted("a")), Some(DryRun::Unsupported));
        assert_eq!(support(known(MISSING_TTL), &wanted("a")), Some(DryRun::Unsupported));
        assert_eq!(support(known(TTL), &wanted("a")), None);
        assert_eq!(support(known(Duration::ZERO), &wanted("b")), Some(DryRun::Absent));
        assert_eq!(support(known(MISSING_TTL), &wanted("b")), None);
        // What kube-apiserver serves has dry runs, also if it is too new for the document.
        let local = |age| ReadDocument { is_local: Some(true), ..known(age) };
        assert_eq!(support(local(Duration::ZERO), &wanted("b")), Some(DryRun::Supported));
        assert_eq!(support(local(MISSING_TTL), &wanted("b")), None);
        assert_eq!(support(local(Duration::ZERO), &wanted("a")), Some(DryRun::Unsupported));
    }

    fn wanted(resource: &str) -> (String, String, String) {
        (resource.to_owned(), String::new(), "put".to_owned())
    }

    #[test]
    fn no_group_names_another_path() {
        assert_eq!(path_of("g.example", "v1").as_deref(), Some("/openapi/v3/apis/g.example/v1"));
        for (group, version) in [("..", "v1"), ("a/b", "v1"), ("a", "%2e"), ("a", "v1?x")] {
            assert_eq!(path_of(group, version), None, "{group} {version}");
        }
    }
}
