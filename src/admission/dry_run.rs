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

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use lru::LruCache;
use portcullis_admission::GroupVersionResource;
use portcullis_go::url::path_segment;
use portcullis_limits::fair_limiter::{FairLimiter, Shares};
use portcullis_system::sync::lock;
use serde::Deserialize;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::AdmissionPlace;
use crate::backend::kube_client;

/// How long a document counts.
const TTL: Duration = Duration::from_mins(1);
/// How long a document counts for a resource or method that it does not have: a custom resource may be new.
const MISSING_TTL: Duration = Duration::from_secs(2);
const READ_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_DOCUMENT_BYTES: usize = 32 << 20;
const MAX_DOCUMENTS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(255);

/// Reads of documents: a client can name any group.
// threat: silent-backend
const SHARES: Shares = Shares::new(16, 4).with_queue(1024, 128);
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

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

/// Why it cannot be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DryRunError {
    /// The gateway has too many reads in progress.
    Busy,
    /// The document cannot be read, for this reason.
    Unreadable(String),
}

/// The documents of the API groups of a cluster.
pub(super) struct DryRunSupport {
    client: kube::Client,
    runtime: Handle,
    documents: Mutex<LruCache<(String, String), Arc<Document>>>,
    shares: FairLimiter<Arc<str>>,
}

/// The document of one group and version: requests that need it at once share one read.
#[derive(Debug, Default)]
struct Document {
    known: Mutex<Option<ReadDocument>>,
    reading: tokio::sync::Mutex<()>,
}

#[derive(Debug, Clone)]
struct ReadDocument {
    read: Instant,
    /// `None` if the group is not served in this version; the error of a read that failed.
    operations: Result<Option<Arc<Operations>>, String>,
    /// Whether kube-apiserver is known to serve the group in this version itself.
    is_local: bool,
}

/// The operations of a group, by resource, subresource and method.
#[derive(Debug, Default)]
struct Operations {
    /// The resources and subresources.
    resources: HashSet<(String, String)>,
    all: HashSet<(String, String, String)>,
    with_dry_run: HashSet<(String, String, String)>,
}

/// The part of an OpenAPI document that is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OpenApiDocument {
    paths: HashMap<String, PathItem>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PathItem {
    parameters: Vec<Parameter>,
    post: Option<Operation>,
    put: Option<Operation>,
    patch: Option<Operation>,
    delete: Option<Operation>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Operation {
    parameters: Vec<Parameter>,
}

/// A parameter; one that is only referred to does not count.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Parameter {
    name: String,
    #[serde(rename = "in")]
    place: String,
}

impl DryRunSupport {
    pub(super) fn new(place: &AdmissionPlace<'_>) -> Self {
        let client = {
            let _runtime = place.runtime.enter();
            kube_client::client(place.backend)
        };
        Self {
            client,
            runtime: place.runtime.clone(),
            documents: Mutex::new(LruCache::new(MAX_DOCUMENTS)),
            shares: FairLimiter::new(SHARES),
        }
    }

    /// What a dry run of this method means.
    pub(super) async fn of(
        &self,
        flow: &str,
        resource: &GroupVersionResource,
        subresource: &str,
        method: &Method,
    ) -> Result<DryRun, DryRunError> {
        let GroupVersionResource { group, version, resource } = resource;
        let document = {
            let key = (group.clone(), version.clone());
            Arc::clone(lock(&self.documents).get_or_insert(key, Arc::default))
        };
        let wanted = (resource.clone(), subresource.to_owned(), method.as_str().to_ascii_lowercase());
        // Without waiting for a read that others have caused.
        if let Some(support) = document.support(&wanted) {
            return Ok(support);
        }
        let Some(path) = path_of(group, version) else { return Ok(DryRun::Absent) };
        let service = format!("/apis/apiregistration.k8s.io/v1/apiservices/{version}.{group}");
        let until = Instant::now() + QUEUE_TIMEOUT;
        let permit = self.shares.acquire(flow.into(), 1, until).await.map_err(|_| DryRunError::Busy)?;
        let client = self.client.clone();
        let reading = AbortOnDropHandle::new(self.runtime.spawn(async move {
            let _permit = permit;
            let _reading = document.reading.lock().await;
            if let Some(support) = document.support(&wanted) {
                return Ok(support);
            }
            let read = Instant::now();
            let operations = timeout(READ_TIMEOUT, read_operations(client.clone(), &path)).await;
            let operations = operations.unwrap_or_else(|_| Err("no response in time".to_owned()));
            let operations = operations.map(|operations| operations.map(Arc::new));
            let mut known = ReadDocument { read, operations, is_local: false };
            let mut support = known.result(&wanted);
            if support == Ok(DryRun::Absent) {
                let local = timeout(READ_TIMEOUT, is_local(client, &service)).await;
                known.is_local = local.unwrap_or_default();
                support = known.result(&wanted);
            }
            *lock(&document.known) = Some(known);
            support
        }));
        let support = reading.await.unwrap_or_else(|_| Err("the read was cancelled".to_owned()));
        support.map_err(DryRunError::Unreadable)
    }
}

impl Document {
    fn support(&self, wanted: &(String, String, String)) -> Option<DryRun> {
        lock(&self.known).as_ref().and_then(|known| known.support(wanted))
    }
}

impl ReadDocument {
    fn result(&self, wanted: &(String, String, String)) -> Result<DryRun, String> {
        Ok(match self.listed(wanted)? {
            DryRun::Absent if self.is_local => DryRun::Supported,
            support => support,
        })
    }

    /// What the document says.
    fn listed(&self, wanted: &(String, String, String)) -> Result<DryRun, String> {
        let operations = self.operations.as_ref().map_err(Clone::clone)?;
        Ok(operations.as_ref().map_or(DryRun::Absent, |operations| operations.support(wanted)))
    }

    /// `None` if the document is too old to tell, or was not read.
    fn support(&self, wanted: &(String, String, String)) -> Option<DryRun> {
        let support = self.result(wanted).ok()?;
        let is_missing = matches!(self.listed(wanted), Ok(DryRun::Absent | DryRun::NoMethod));
        let ttl = if is_missing { MISSING_TTL } else { TTL };
        (self.read.elapsed() < ttl).then_some(support)
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

    fn of(document: OpenApiDocument) -> Self {
        let mut operations = Self::default();
        for (path, item) in document.paths {
            let Some((resource, subresource)) = resource_of(&path) else { continue };
            operations.resources.insert((resource.to_owned(), subresource.to_owned()));
            let common = has_dry_run(&item.parameters);
            let methods =
                [("post", item.post), ("put", item.put), ("patch", item.patch), ("delete", item.delete)];
            for (method, operation) in methods {
                let Some(operation) = operation else { continue };
                let wanted = (resource.to_owned(), subresource.to_owned(), method.to_owned());
                if common || has_dry_run(&operation.parameters) {
                    operations.with_dry_run.insert(wanted.clone());
                }
                operations.all.insert(wanted);
            }
        }
        operations
    }
}

fn has_dry_run(parameters: &[Parameter]) -> bool {
    parameters.iter().any(|parameter| parameter.name == "dryRun" && parameter.place == "query")
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

/// Reads a document; `None` if there is none.
async fn read_operations(client: kube::Client, path: &str) -> Result<Option<Operations>, String> {
    let request = http::Request::get(path).header(http::header::ACCEPT, "application/json");
    let request = request.body(Body::empty()).map_err(|error| error.to_string())?;
    let response = client.send(request).await.map_err(|error| error.to_string())?;
    match response.status().as_u16() {
        200 => {}
        404 => return Ok(None),
        status => return Err(format!("status {status}")),
    }
    let body = Limited::new(response.into_body(), MAX_DOCUMENT_BYTES).collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    let document = serde_json::from_slice::<OpenApiDocument>(&body).map_err(|error| error.to_string())?;
    Ok(Some(Operations::of(document)))
}

/// The part of an `APIService` that is read.
#[derive(Debug, Deserialize)]
struct ApiService {
    spec: ApiServiceSpec,
}

#[derive(Debug, Deserialize)]
struct ApiServiceSpec {
    /// Where an aggregated API server is.
    service: Option<serde::de::IgnoredAny>,
}

/// Whether kube-apiserver serves a group and version itself. Not known without the right to read it.
async fn is_local(client: kube::Client, path: &str) -> bool {
    let Ok(request) = http::Request::get(path).body(Body::empty()) else { return false };
    let Ok(response) = client.send(request).await else { return false };
    if response.status() != http::StatusCode::OK {
        return false;
    }
    let Ok(body) = Limited::new(response.into_body(), MAX_DOCUMENT_BYTES).collect().await else {
        return false;
    };
    let service = serde_json::from_slice::<ApiService>(&body.to_bytes());
    service.is_ok_and(|service| service.spec.service.is_none())
}

impl fmt::Debug for DryRunSupport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DryRunSupport").finish_non_exhaustive()
    }
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
        let operations = Operations::of(serde_json::from_value(document).unwrap());
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
    fn a_document_counts_for_its_time() {
        let operations = Operations { all: HashSet::from([wanted("a")]), ..Operations::default() };
        let known = |age: Duration| ReadDocument {
            read: Instant::now().checked_sub(age).unwrap(),
            operations: Ok(Some(Arc::new(Operations {
                all: operations.all.clone(),
                ..Operations::default()
            }))),
            is_local: false,
        };
        assert_eq!(known(Duration::ZERO).support(&wanted("a")), Some(DryRun::Unsupported));
        assert_eq!(known(MISSING_TTL).support(&wanted("a")), Some(DryRun::Unsupported));
        assert_eq!(known(TTL).support(&wanted("a")), None);
        assert_eq!(known(Duration::ZERO).support(&wanted("b")), Some(DryRun::Absent));
        assert_eq!(known(MISSING_TTL).support(&wanted("b")), None);
        // What kube-apiserver serves has dry runs, also if it is too new for the document.
        let local = |age| ReadDocument { is_local: true, ..known(age) };
        assert_eq!(local(Duration::ZERO).support(&wanted("b")), Some(DryRun::Supported));
        assert_eq!(local(MISSING_TTL).support(&wanted("b")), None);
        assert_eq!(local(Duration::ZERO).support(&wanted("a")), Some(DryRun::Unsupported));
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
